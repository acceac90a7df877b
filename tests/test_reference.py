"""The dense reference against identities that do not pass through it."""

import math
from typing import Any

import numpy as np
import pytest

from tests.reference import (
    dtc_log_marginal_likelihood,
    dtc_posterior,
    exact_posterior,
    greedy_batch,
    nystrom_gram,
    simulate,
)


SEEDS = range(6)


class Problem:
    """Random arms, pulls and inducing points; every third one has near-duplicates."""

    def __init__(self, seed, num_arms=25):
        numbers = self.numbers = np.random.default_rng(seed)
        X = numbers.random((num_arms, 2))
        if seed % 3 == 0:
            X[:-1:4] = X[1::4] + 1e-7 * X[:-1:4]
        squares = ((X[:, None] - X) ** 2).sum(axis=-1)
        self.gram = np.exp(-0.5 * squares / numbers.uniform(0.2, 1.0) ** 2)
        self.noise = float(numbers.choice([0.05, 0.3, 2.0]))
        self.p = np.sort(numbers.choice(num_arms, size=10, replace=False))
        self.counts = np.zeros(num_arms)
        self.counts[self.p] = numbers.integers(1, 5, size=10)
        self.pulls = np.repeat(np.arange(num_arms), self.counts.astype(int))
        self.y = numbers.normal(size=len(self.pulls))
        self.sums = np.bincount(self.pulls, self.y, minlength=num_arms)
        self.S = self.p[: numbers.integers(3, 10)]

    def blocks(self, S: Any) -> tuple[Any, Any, Any, Any]:
        gram = self.gram
        return gram[np.ix_(S, S)], gram[np.ix_(S, self.p)], gram[S], gram

    def dtc(self, S):
        n = self.counts[self.p]
        weights, targets = n / self.noise, self.sums[self.p] / n
        return dtc_posterior(*self.blocks(S), weights, targets)

    def nystrom_gram(self):
        K_ss, _, K_sx, _ = self.blocks(self.S)
        return nystrom_gram(K_ss, K_sx)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_pulled_arms_inducing_is_the_exact_gp_on_single_pulls(seed):
    problem = Problem(seed)
    rows = problem.gram[problem.pulls]
    expected = exact_posterior(
        rows[:, problem.pulls],
        rows,
        problem.gram,
        np.full(len(problem.pulls), problem.noise),
        problem.y,
    )
    for ours, theirs in zip(problem.dtc(problem.p), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_posterior_is_subset_of_regressors_plus_the_nystrom_residual(seed):
    """Which is the exact GP of the kernel Q, and k - Q added; one row per pull."""
    problem = Problem(seed)
    Q = problem.nystrom_gram()
    pulls = problem.pulls
    noise = np.full(len(pulls), problem.noise)
    regressors = exact_posterior(Q[np.ix_(pulls, pulls)], Q[pulls], Q, noise, problem.y)
    mean, covariance = problem.dtc(problem.S)
    np.testing.assert_allclose(mean, regressors[0], atol=1e-6)
    np.testing.assert_allclose(covariance, regressors[1] + problem.gram - Q, atol=1e-6)
    assert np.linalg.eigvalsh(problem.gram - Q).min() > -1e-8


def test_merged_likelihood_and_scatter_equal_the_likelihood_of_single_pulls():
    """The identity of DESIGN 3."""
    problem = Problem(4)
    pulls, noise = problem.pulls, problem.noise
    Q = problem.nystrom_gram()
    single = dtc_log_marginal_likelihood(Q[np.ix_(pulls, pulls)], noise, problem.y)
    n = problem.counts[problem.p]
    means = problem.sums / np.maximum(problem.counts, 1)
    merged = dtc_log_marginal_likelihood(
        Q[np.ix_(problem.p, problem.p)], noise / n, means[problem.p]
    )
    scatter = -0.5 * ((problem.y - means[pulls]) ** 2).sum() / noise
    scatter -= 0.5 * (len(pulls) - len(n)) * math.log(2 * math.pi * noise)
    scatter -= 0.5 * np.log(n).sum()
    assert single == pytest.approx(merged + scatter, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_picks_are_those_of_the_exact_gp_when_all_arms_join(seed):
    """The greedy loop of GP-BUCB, written with one row per pull."""
    problem = Problem(seed)
    state = problem.gram, problem.noise, problem.p, problem.counts, problem.sums
    batch = greedy_batch(*state, 2.0, "fixed", size=6, projected=False, pending=[3])
    pulls, gram = [*problem.pulls, 3], problem.gram
    told = list(problem.pulls)
    noise = np.full(len(told) + 7, problem.noise)

    def posterior(rows, y):
        blocks = gram[np.ix_(rows, rows)], gram[rows], gram
        return exact_posterior(*blocks, noise[: len(rows)], y)

    mean = posterior(told, problem.y)[0]
    for arm in batch:
        variance = np.diag(posterior(pulls, np.zeros(len(pulls)))[1])
        bounds = mean + 2.0 * np.sqrt(np.maximum(variance, 0) / problem.noise)
        assert bounds[arm] >= bounds.max() - 1e-6
        pulls.append(arm)


class Draws:
    """Scripted randomness; records how many numbers were asked for."""

    def __init__(self, first, uniforms):
        self.first, self.uniforms, self.asked = first, list(uniforms), []

    def draw_first(self):
        return self.first

    def draw_uniforms(self, n):
        self.asked.append(n)
        return np.array([self.uniforms.pop(0) for _ in range(n)])


REWARDS = [0.8, 0.2, 0.0]


def run_three_unrelated_arms(draws, num_pulls, **options):
    """K = I, lambda = 1: n pulls of an arm in S give s / (n + 1) and 1 / (n + 1)."""
    problem = np.eye(3), 1.0, REWARDS.__getitem__
    return simulate(
        *problem, draws.draw_first, draws.draw_uniforms, num_pulls, **options
    )


def test_a_tiny_bbkb_run_by_hand():
    """Width 1, C = 2, q = 1; bounds of arms 0, 1, 2 before each pull."""
    draws = Draws(0, [0.5, 0.8, 0.1, 0.9, 0.6])
    run = run_three_unrelated_arms(draws, 6, oversampling=1.0)
    assert run.batches == [
        [0],  # drawn
        # p = 1: S = {0}. 0.4 + 0.707, 1, 1: sum 1.5. 0.4 + 0.577, 1, 1: sum 2.5.
        [0, 1],
        # Arm 0: 1 - (1 - 0.5)^2 = 0.75 < 0.8, dropped; arm 1: p = 1. S = {1}.
        # 1, 0.1 + 0.707, 1: sum 2, not yet crossed; arm 0 is not in S: 1 again, sum 3.
        [0, 0],
        # Arm 0: p = 1; arm 1: p = 0.5 < 0.6, dropped. S = {0}: mean 3.2 / 5.
        # 0.64 + 0.447, + 0.408, + 0.378: sum 1.6; + 0.354 < 1: arm 1, sum 2.6.
        [0, 0, 0, 1],
    ]
    assert run.inducing_sets == [[], [0], [1], [0]]
    assert run.widths == [1.0] * 4
    assert run.arms == [0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert run.batch_sizes == [1, 2, 2, 4]
    assert draws.asked == [1, 2, 2]


def test_a_tiny_gp_ucb_run_by_hand():
    """F = 0, delta = 1/e: width sqrt(2 (log det + 1)), log det = sum log(n + 1)."""
    draws = Draws(2, [])
    run = run_three_unrelated_arms(
        draws,
        4,
        rule="fixed",
        width="chowdhury_gopalan",
        exact=True,
        F=0.0,
        delta=math.exp(-1),
    )
    assert run.batches == [[2], [0], [1], [0]]
    assert run.inducing_sets == [[], [2], [0, 2], [0, 1, 2]]
    expected = [math.sqrt(2 * (k * math.log(2) + 1)) for k in range(4)]
    np.testing.assert_allclose(run.widths, expected)
    assert draws.asked == []
