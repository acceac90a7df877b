"""The dense reference against identities that do not pass through it."""

import math

import numpy as np
import pytest

from tests.reference import dtc_posterior, exact_posterior, nystrom_gram, simulate


@pytest.mark.parametrize("seed", range(6))
def test_posterior_is_subset_of_regressors_plus_the_nystrom_residual(seed):
    """Which is the exact GP of the kernel Q, and k - Q added; one row per pull.

    Every third problem has near-duplicates.
    """
    numbers = np.random.default_rng(seed)
    X = numbers.random((25, 2))
    if seed % 3 == 0:
        X[:-1:4] = X[1::4] + 1e-7 * X[:-1:4]
    squares = ((X[:, None] - X) ** 2).sum(axis=-1)
    K = np.exp(-0.5 * squares / numbers.uniform(0.2, 1.0) ** 2)
    noise = float(numbers.choice([0.05, 0.3, 2.0]))
    pulled = np.sort(numbers.choice(25, size=10, replace=False))
    counts = numbers.integers(1, 5, size=10)
    pulls = np.repeat(pulled, counts)
    y = numbers.normal(size=len(pulls))
    S = pulled[: numbers.integers(3, 10)]
    Q = nystrom_gram(K[np.ix_(S, S)], K[S])
    noises = np.full(len(pulls), noise)
    regressors = exact_posterior(Q[np.ix_(pulls, pulls)], Q[pulls], Q, noises, y)
    blocks = K[np.ix_(S, S)], K[np.ix_(S, pulled)], K[S], K
    means = np.bincount(pulls, y, minlength=25)[pulled] / counts
    mean, covariance = dtc_posterior(*blocks, counts / noise, means)
    np.testing.assert_allclose(mean, regressors[0], atol=1e-6)
    np.testing.assert_allclose(covariance, regressors[1] + K - Q, atol=1e-6)
    assert np.linalg.eigvalsh(K - Q).min() > -1e-8


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
    options = {"rule": "fixed", "width": "chowdhury_gopalan", "exact": True}
    run = run_three_unrelated_arms(draws, 4, F=0.0, delta=math.exp(-1), **options)
    assert run.batches == [[2], [0], [1], [0]]
    assert run.inducing_sets == [[], [2], [0, 2], [0, 1, 2]]
    expected = [math.sqrt(2 * (k * math.log(2) + 1)) for k in range(4)]
    np.testing.assert_allclose(run.widths, expected)
    assert draws.asked == []
