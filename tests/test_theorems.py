"""The papers' theorems, where they are not vacuous.

A theorem that fails with probability ``delta`` = 0.001 is refuted by two failures in at
most twelve runs: that happens with probability under 1e-4 (the false-alarm rate) if it
holds. The lemmas must hold without exception.
"""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.theorems import (
    exact_linear_variances,
    leverage_run,
    regret_run,
    Sampling,
)
from botorch_bkb.optim import ArmPosterior, LocalRule, ProductRule, SumRule
from tests.reference import Arms


MAX_FAILURES = 1


def test_leverage_scores_keep_variances_and_sizes():
    """Theorem 1 and Lemma 3 of BBKB over 20,000 distinct pulls."""
    runs = [leverage_run(20_000, 12, Sampling(), seed) for seed in range(3)]
    assert sum(run["failed"] for run in runs) <= MAX_FAILURES
    for run in runs:
        assert run["inducing_share"] < 0.5  # else everything is kept, and exact
        assert run["batches"] >= 20


def test_too_few_inducing_arms_are_noticed():
    """The same check fails where q-bar is small and draws do not keep up."""
    runs = [leverage_run(2000, 12, Sampling(0.3), seed) for seed in range(3)]
    assert sum(run["failed"] for run in runs) > MAX_FAILURES


def test_exact_linear_variances_are_those_of_the_dense_gp():
    generator = np.random.default_rng(0)
    arms = generator.normal(size=(30, 4))
    counts = generator.integers(0, 3, size=30)
    variance = Arms(arms @ arms.T, 1.0).posterior(
        list(counts.nonzero()[0]), counts, np.zeros(30)
    )[1]
    np.testing.assert_allclose(exact_linear_variances(arms, counts), variance)


@pytest.fixture(scope="module")
def regret_runs():
    return {
        "BKB": [regret_run("BKB", 300, seed) for seed in range(4)],
        "BBKB": [regret_run("BBKB", 10_000, seed) for seed in range(8)],
    }


def test_the_band_covers_the_function(regret_runs):
    """Theorem 2 of either paper: at all arms and batches, in 1 - delta of the runs."""
    runs = [run for bandit in regret_runs.values() for run in bandit]
    assert sum(run["failed"] for run in runs) <= MAX_FAILURES


def test_regret_is_sublinear(regret_runs):
    """The exponent of the second half; pulling at random has exponent one."""
    exponents = np.array([run["exponent"] for run in regret_runs["BBKB"]])
    error = exponents.std(ddof=1) / np.sqrt(len(exponents))
    assert exponents.mean() + 4 * error < 0.9
    for run in regret_runs["BBKB"]:
        assert run["regret"] < 0.6 * run["uniform_regret"]


def test_batches_and_inducing_arms_follow_the_effective_dimension(regret_runs):
    """Theorem 1 of BBKB: at most 8 batches and 8 inducing arms per dimension."""
    for run in regret_runs["BBKB"]:
        assert run["batches_over_d_eff"] < 8
        assert run["inducing_over_d_eff"] < 8


class Sequence:
    """A random posterior and a random sequence of pulls, chosen by nobody."""

    def __init__(self, seed, exact):
        numbers = np.random.default_rng(seed)
        arms = torch.as_tensor(numbers.uniform(size=(25, 2)))
        kernel = RBFKernel().double()
        kernel.lengthscale = numbers.uniform(0.1, 1.0)
        self.noise = float(numbers.choice([0.05, 0.5, 5.0]))
        pulled = np.sort(numbers.choice(25, size=8, replace=False))
        self.S = list(pulled) if exact else list(pulled[: numbers.integers(2, 8)])
        self.counts = np.zeros(25)
        self.counts[pulled] = numbers.integers(1, 4, size=8)
        with torch.no_grad():
            self.arms = Arms(kernel(arms).to_dense().numpy(), self.noise)
        self.posterior = ArmPosterior(arms, kernel, self.noise)
        self.posterior.update(
            torch.as_tensor(np.array(self.S)),
            torch.as_tensor(pulled),
            torch.as_tensor(self.counts[pulled]),
            torch.zeros(8, dtype=torch.double),
        )
        # Few different arms: repeats are where the bounds are tight.
        self.pulls = numbers.choice(numbers.choice(25, size=4), size=30)

    def variances(self, num_pulls):
        """Return variance and projected variance of all arms after some pulls."""
        counts = self.counts.copy()
        np.add.at(counts, self.pulls[:num_pulls], 1)
        _, variance, projected = self.arms.posterior(self.S, counts, np.zeros(25))
        return variance, np.diagonal(projected)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_lemma_4_bounds_the_variance_ratio_of_the_exact_gp(seed):
    """Lemma 4: ``var_start / var_now <= 1 + sum_s var_start(x_s) / lambda``."""
    sequence = Sequence(seed, exact=True)
    # The exact GP over all arms: the new pulls are inducing too.
    sequence.S = list(range(25))
    start = sequence.variances(0)[0]
    total = 1 + np.cumsum(start[sequence.pulls]) / sequence.noise
    for stop in (1, 3, 10, 30):
        now = sequence.variances(stop)[0]
        assert (start <= total[stop - 1] * now * (1 + 1e-8) + 1e-10).all()


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_lemma_8_bounds_the_variance_ratio_of_the_sparse_posterior(seed):
    """Lemma 8 with S fixed, by the whole variances and by the projected ones alone."""
    sequence = Sequence(seed, exact=False)
    start, projected = sequence.variances(0)
    total = 1 + np.cumsum(projected[sequence.pulls]) / sequence.noise
    assert (projected <= start + 1e-10).all()
    for stop in (1, 3, 10, 30):
        now = sequence.variances(stop)[0]
        assert (start <= total[stop - 1] * now * (1 + 1e-8) + 1e-10).all()


@pytest.mark.parametrize(
    "rule",
    [SumRule(2.0), SumRule(2.0, projected=True), ProductRule(2.0), LocalRule(2.0)],
    ids=["sum", "projected", "product", "local"],
)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_rules_bound_the_variance_ratio_for_any_pulls(rule, seed):
    """Up to the pull that closes a batch, whoever chose the pulls."""
    sequence = Sequence(seed, exact=False)
    none = sequence.posterior.mean[:0]
    batch = rule.open(sequence.posterior, none, projected=True)
    start = sequence.variances(0)[0]
    for stop, arm in enumerate(sequence.pulls, start=1):
        assert batch.take(int(arm), 1) == 1
        if batch.is_closed:
            break
        now = sequence.variances(stop)[0]
        assert (start <= 2.0 * now * (1 + 1e-8) + 1e-10).all()
