import numpy as np
import pytest
import torch

from benchmarks import regret, thompson_decay, thompson_draws
from benchmarks.problems import load_problem
from benchmarks.thompson_functions import bimodal, flat
from botorch_bkb import GPThompsonSampling
from tests.test_benchmarks import options


# --- the paper's functions


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


# --- decay


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
    assert thompson_decay.pairs_high(decays) < 0
    noise = rng.normal(0, 1, 40)
    assert thompson_decay.slope_interval(noise)[2] > 0
    assert thompson_decay.pairs_high(noise) > 0


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


# --- draws


def test_moments_of_draws_are_within_their_monte_carlo_error():
    row = thompson_draws.compare_moments(3)
    limit = row["z of 1 in 1,000"]
    assert limit == pytest.approx(4.68, abs=0.05)
    assert row["all arms: largest z"] < limit
    assert row["half: largest z"] < limit
    assert row["half: covariance short of the exact GP's by"] > 0.1


def test_ways_draw_the_same_distribution_of_the_best_arm(monkeypatch):
    monkeypatch.setattr(thompson_draws, "NUM_DRAWS", 3000)
    monkeypatch.setattr(thompson_draws, "NUM_PULLS", 60)
    monkeypatch.setattr(thompson_draws, "NUM_INDUCING", 60)
    ours = thompson_draws.draw_ours(60, "cpu")()
    paths = thompson_draws.draw_paths(60, "cpu")()
    arms = thompson_draws._task(60, "cpu")[0]
    joint = thompson_draws.draw_joint(60, "cpu")()
    joint = (joint.unsqueeze(1) == arms).all(dim=-1).long().argmax(dim=-1)
    counts = np.stack(
        [np.bincount(best, minlength=60) for best in (ours, paths, joint)]
    )
    p = counts.mean(axis=0) / 3000
    # Differences of two shares; the Fourier features of the paths come on top.
    error = np.sqrt(2 * p * (1 - p) / 3000) + 1e-3
    assert (np.abs(counts[0] - counts[2]) / 3000 / error).max() < 4.5
    assert (np.abs(counts[0] - counts[1]) / 3000 / error).max() < 6


def test_a_way_that_fails_is_tried_on_fewer_arms(monkeypatch):
    tried = []

    def instead(way, num_arms, args):
        tried.append((way, num_arms))
        fails = way == "joint" and num_arms > 2000
        failure = "out of memory" if fails else None
        return {"way": way, "num_arms": num_arms, "seconds": 1.0, "failure": failure}

    monkeypatch.setattr(thompson_draws, "_measured", instead)
    thompson_draws.measure_costs(options(thompson_draws, "--repeats", "1"))
    assert [size for way, size in tried if way == "joint"] == [
        20_000,
        10_000,
        5000,
        2000,
    ]
    assert [size for way, size in tried if way == "ours"] == [200_000, 20_000]


def test_regret_takes_thompson_sampling_along():
    problem = load_problem("abalone", None, smoke=True)
    args = options(regret, "--bandits", "GPThompsonSampling", "GPUCB")
    players = regret.new_players(args, problem, 90)
    assert isinstance(players["GPThompsonSampling"](0), GPThompsonSampling)
    rounds = regret.play(players["GPThompsonSampling"](0), problem, 90, seed=0)
    assert list(rounds["batch_size"]) == [30, 30, 30]
