"""The benchmarks of drift run small, and their sums are right."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import drift, drift_real, drift_steps
from botorch_bkb import TVGPUCB
from tests.test_benchmarks import options


def test_differences_are_paired():
    values = {"TV-GP-UCB": [1.0, 2.0, 3.0], "R-GP-UCB": [2.0, 3.5, 4.5]}
    steps = pd.DataFrame(
        [
            ("matched", "SE", 0.01, seed, name, step, value if step == 20 else 9.0)
            for name, rows in values.items()
            for seed, value in enumerate(rows)
            for step in (10, 20)
        ],
        columns=["part", "kernel", "eps", "seed", "bandit", "step", "average_regret"],
    )
    table = drift.compare(steps).set_index("bandit")
    gaps = np.array([1.0, 1.5, 1.5])
    error = gaps.std(ddof=1) / math.sqrt(3)
    assert table.loc["R-GP-UCB", "over_tv"] == pytest.approx(gaps.mean())
    assert table.loc["R-GP-UCB", "ratio_to_tv"] == pytest.approx(10 / 6)
    assert table.loc["R-GP-UCB", "standard_error"] == pytest.approx(error)
    assert table.loc["TV-GP-UCB", "over_tv"] == 0


class Recorder:
    """Pulls arm 0 and keeps what it is told."""

    def __init__(self):
        self.rewards = []

    def ask(self):
        return torch.tensor([0])

    def tell(self, indices, rewards):
        self.rewards.append(rewards.item())


def test_noise_has_nothing_to_do_with_the_function():
    """Of arms far apart, so that their values are the draws of the function."""
    arms = torch.arange(8).double().unsqueeze(-1)
    functions, noises = [], []
    for seed in range(drift.FIRST_SEED, drift.FIRST_SEED + 300):
        problem, recorder = drift.new_problem(arms, "SE", 0.0, seed), Recorder()
        drift.play(problem, {"recorder": recorder}, horizon=8, seed=seed)
        functions.append(problem.mean_rewards.numpy())
        noises.append(np.array(recorder.rewards) - functions[-1][0])
    functions, noises = np.array(functions).T, np.array(noises).T
    correlations = np.corrcoef(functions, noises)[:8, 8:]
    assert noises.std() == pytest.approx(drift.NOISE_VARIANCE**0.5, rel=0.06)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(300)


def test_the_rate_maximizes_the_marginal_likelihood():
    """Against the dense Gaussian density of all readings, on a grid."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(4, 4))
    K, noise = A @ A.T / 4, 0.1
    root = np.linalg.cholesky(K)
    days = []
    for _ in range(3):
        f, rows = root @ rng.normal(size=4), []
        for _ in range(25):
            rows.append(f + math.sqrt(noise) * rng.normal(size=4))
            f = math.sqrt(0.8) * f + math.sqrt(0.2) * (root @ rng.normal(size=4))
        days.append(np.array(rows))
    steps = np.arange(25)

    def loss(rate):
        D = (1 - rate) ** (np.abs(steps[:, None] - steps) / 2)
        C = np.kron(D, K) + noise * np.eye(100)
        _, log_det = np.linalg.slogdet(C)
        return sum(
            log_det + day.ravel() @ np.linalg.solve(C, day.ravel()) for day in days
        )

    grid = np.exp(np.linspace(math.log(0.05), math.log(0.6), 150))
    best = grid[np.argmin([loss(rate) for rate in grid])]
    tensors = [torch.as_tensor(day) for day in days]
    found = drift_real.learn_rate(tensors, torch.as_tensor(K), noise)
    assert found == pytest.approx(best, rel=0.03)


def test_runs_begin_with_the_start_they_are_given():
    table = drift_real.made_up_table("intel")
    series = drift_real.intel_series(table)
    values = series.test["days 4 and 5"]
    for start in (0, 3):
        bandit = drift_real.new_bandit("TV-GP-UCB", series, 5, seed=0)
        regrets = drift_real.play(values, bandit, start)
        assert isinstance(bandit, TVGPUCB)
        assert regrets[0] == pytest.approx((values[0].max() - values[0, start]).item())
        assert len(regrets) == bandit.num_pulls == len(values)
    # The table's mean over the training days is what is taken off.
    assert series.mean == pytest.approx(table.iloc[:36].to_numpy().mean())


def test_steps_are_timed_and_agree(tmp_path, capsys):
    args = options(drift_steps, "--smoke")
    args.output = tmp_path
    drift_steps.run(args)
    out = capsys.readouterr().out
    error = float(out.split("dense update: ")[1].split()[0])
    assert error < 1e-9
    assert set(pd.read_csv(tmp_path / "steps.csv")["way"]) == {
        "exact",
        "dense",
        "sparse",
    }
