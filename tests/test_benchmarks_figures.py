"""The mathematics of the papers' figures."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import drift, drift_real, thompson_decay
from benchmarks.bbkb import growth, thinned
from benchmarks.starvation import Seed, Starvation
from benchmarks.thompson_decay import bimodal, flat
from botorch_bkb import TVGPUCB


def test_thinned_rows_keep_the_last_of_a_slice_and_the_largest_batch():
    sizes = np.array([1, 2, 9, 3, 1, 40, 2, 2])
    rounds = pd.DataFrame({"batch_size": sizes, "num_pulls": sizes.cumsum()})
    thin = thinned(rounds, 2000)  # in slices of ten pulls
    assert list(thin["num_pulls"]) == [3, 16, 60]
    assert list(thin["batch_size"]) == [2, 9, 40]


def test_the_exponent_is_that_of_a_power_law():
    pulls = np.arange(20, 2001, 20)
    run = pd.DataFrame({"num_pulls": pulls, "cumulative_regret": 3 * pulls**0.7})
    assert growth(run) == pytest.approx(0.7)


def test_bkb_does_not_starve_and_the_subset_of_regressors_does():
    figure = Starvation(smoke=True)
    rows = figure.play(Seed(0)).assign(seed=0)
    tables, pictures = figure.report(rows)
    far = tables["starvation"].set_index("posterior")["least_far_variance"]
    assert far["exact GP"].min() > 0.9
    assert (far["BKB (DTC)"] >= far["exact GP"].to_numpy() - 1e-4).all()
    assert far["SoR"].max() < 1e-3
    assert list(pictures) == ["starvation"]


# --- drift


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
    assert table.loc["R-GP-UCB", "over_TV-GP-UCB"] == pytest.approx(gaps.mean())
    assert table.loc["R-GP-UCB", "average_regret"] == pytest.approx(10 / 3)
    assert table.loc["R-GP-UCB", "standard_error"] == pytest.approx(error)
    assert table.loc["TV-GP-UCB", "over_TV-GP-UCB"] == 0


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


# --- Thompson sampling


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


def test_a_steady_decay_is_surely_negative_and_noise_is_not():
    rng = np.random.default_rng(1)
    decays = -0.2 * np.arange(40) + rng.normal(0, 0.5, 40)
    assert thompson_decay.slope_interval(decays)[2] < 0
    noise = rng.normal(0, 1, 40)
    assert thompson_decay.slope_interval(noise)[2] > 0


def test_a_perfect_point_has_the_floor_as_its_error():
    function = bimodal(1)
    assert thompson_decay.log_error(function, function.maximizer) == -12
    nine_percent_off = function.maximizer * 1.1
    assert thompson_decay.log_error(function, nine_percent_off) == pytest.approx(-2)


def test_a_run_is_one_point_and_then_thirty_a_round():
    calls = []

    class Spy:
        bounds, name = bimodal(1).bounds, "f1"
        maximizer = bimodal(1).maximizer
        relative_error = staticmethod(bimodal(1).relative_error)

        def __call__(self, points):
            calls.append(len(points))
            return bimodal(1)(points)

    table = thompson_decay.play(Spy(), 0.1, 3, seed=0)
    assert calls == [1, 30, 30]
    assert list(table["round"]) == [1, 2, 3]
    assert table["error"].iloc[-1] < table["error"].iloc[0]
