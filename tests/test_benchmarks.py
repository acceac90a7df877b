"""What the benchmarks measure and keep; `.ci/run` runs them in smoke mode."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import drift_real, regret, speed, thompson_decay
from benchmarks.problems import load_problem, new_kernel
from benchmarks.rows import RowFile
from benchmarks.thompson_decay import bimodal, flat
from botorch_bkb import BBKB
from tests.reference import exact_posterior


class Run(NamedTuple):
    name: str
    seed: int


@pytest.fixture(scope="module")
def problem():
    return load_problem("abalone", smoke=True)


# --- rows


def rows_of(seed):
    return pd.DataFrame({"name": "a", "seed": seed, "x": [1.5, 2.5], "rows": 2})


def test_half_of_a_run_and_half_of_a_line_are_dropped(tmp_path):
    path = tmp_path / "rows.csv"
    rows = RowFile(path, Run._fields)
    rows.append(rows_of(0))
    rows.append(rows_of(1))
    whole = path.read_text()
    path.write_text(whole[:-4])
    rows = RowFile(path, Run._fields)
    pd.testing.assert_frame_equal(rows.table(), rows_of(0))
    rows.append(rows_of(1))
    assert path.read_text() == whole


def test_a_killed_run_continues_and_a_failed_one_costs_no_other(tmp_path):
    played = []

    def play(run):
        played.append(run.seed)
        if len(played) == 2:
            raise KeyboardInterrupt
        if run.seed == 2:
            raise ValueError("a bug")
        return pd.DataFrame({"x": [float(run.seed)]})

    rows = RowFile(tmp_path / "rows.csv", Run._fields)
    wanted = [Run("a", seed) for seed in range(4)]
    with pytest.raises(KeyboardInterrupt):
        rows.play_missing(wanted, play, {"commit": "abcdefg"})
    with pytest.raises(SystemExit, match=r"seed=2\): ValueError: a bug"):
        rows.play_missing(wanted, play, {"commit": "abcdefg"})
    assert played == [0, 1, 1, 2, 3]
    table = rows.table()
    assert list(table.columns) == ["name", "seed", "x", "rows", "commit"]
    assert list(table["seed"]) == [0, 1, 3]
    rows.play_missing(wanted[:1], play, {"commit": "abcdefg"}, again=True)
    assert played[5:] == [0]
    assert sorted(rows.table()["seed"]) == [0, 1, 3]


# --- speed and regret


def test_tasks_find_the_arm_of_the_largest_dense_bound():
    arms = speed.uniform_arms(300, 8).numpy()
    rewards = speed.noisy_rewards(torch.tensor(arms[:40])).numpy()
    squared = ((arms[:, None] - arms[None]) ** 2).sum(axis=-1)
    K = np.exp(-squared / (2 * 0.5**2))
    noise = np.full(40, speed.NOISE_VARIANCE)
    mean, covariance = exact_posterior(K[:40, :40], K[:40], K, noise, rewards)
    best = (mean + np.sqrt(speed.BETA * np.diag(covariance))).argmax()
    for call in (
        speed.argmax_sparse("cpu", 300, 40, 40, cached=False),
        speed.argmax_exact("cpu", 300, 40, stock=False),
        speed.argmax_exact("cpu", 300, 40, stock=True),
    ):
        assert call() == f"arm {best}"


def test_regret_rows_add_up_to_the_regret_of_the_picks(problem):
    picks = []

    class Spy(BBKB):
        @override
        def tell(self, indices, rewards, *args, **options):
            picks.append(indices)
            super().tell(indices, rewards, *args, **options)

    bandit = Spy(problem.arms, new_kernel(), 0.2, generator=torch.Generator())
    rounds = regret.play(bandit, problem, 120, seed=3)
    gaps = problem.mean_rewards.max() - problem.mean_rewards
    totals = np.cumsum([gaps[batch].sum().item() for batch in picks])
    np.testing.assert_allclose(rounds["cumulative_regret"], totals)
    assert list(rounds["batch_size"]) == [len(batch) for batch in picks]
    assert list(rounds["num_pulls"]) == list(np.cumsum(rounds["batch_size"]))
    assert rounds["num_pulls"].iloc[-1] == 120
    assert rounds["seconds"].is_monotonic_increasing
    assert not rounds["truncated"].any()


# --- drift and Thompson sampling


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


def test_the_functions_are_those_of_the_paper():
    x = np.array([2.0, 5.0, 3.3])
    expected = 5 * np.exp(-((x - 2) ** 2) / 2) + 10 * np.exp(-((x - 5) ** 2) / 2)
    values = bimodal(1)(torch.tensor(x).unsqueeze(-1))
    np.testing.assert_allclose(values, expected / np.sqrt(2 * np.pi))
    points = torch.tensor([[2.0, 2.0], [5.0, 4.0]], dtype=torch.double)
    expected = [5 + 10 * np.exp(-9), 5 * np.exp(-6.5) + 10 * np.exp(-0.5)]
    np.testing.assert_allclose(2 * np.pi * bimodal(2)(points), expected)
    points = torch.tensor([[1.0], [5.0]], dtype=torch.double)
    np.testing.assert_allclose(flat(0.5)(points), [0.5 * np.exp(-2), 0.5])


@pytest.mark.parametrize("function", [bimodal(1), bimodal(2), flat(2.0)])
def test_the_maximizer_is_where_the_gradient_vanishes(function):
    x = function.maximizer.clone().requires_grad_()
    value = function(x)
    value.backward()
    assert x.grad.norm() < 1e-12
    low, high = function.bounds
    draws = torch.rand(20_000, len(low), dtype=torch.double)
    assert function(low + (high - low) * draws).max() <= value
    assert function.relative_error(function.maximizer) == 0
    assert 0 < (function.maximizer - 5).norm() < 0.02 or function.name.startswith("f_b")


def test_the_interval_of_a_slope_covers_it():
    rng = np.random.default_rng(0)
    truth, covered = -0.05, 0
    for seed in range(200):
        errors = truth * np.arange(60) + rng.normal(0, 1, 60)
        slope, low, high = thompson_decay.slope_interval(errors, seed)
        assert low < slope < high
        covered += low <= truth <= high
    # Blocks of five make it a little too short: 85 to 99 %.
    assert 170 <= covered <= 198
