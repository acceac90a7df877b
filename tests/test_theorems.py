"""The papers' theorems, where they are not vacuous.

A theorem that fails with probability ``delta`` = 0.001 is refuted by two failures in at
most eight runs: that happens with probability under 1e-4 (the false-alarm rate) if it
holds. BKB's is tried once: its false-alarm rate is ``delta``. The lemmas must hold
without exception.
"""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.theorems import (
    exact_line_variances,
    late_run,
    leverage_run,
    narrowest_band,
)
from botorch_bkb import BBKB
from botorch_bkb.bandits.inducing import BULK_SIZE
from botorch_bkb.optim import ProductRule, SumRule
from tests.optim.test_batch_rules import Problem
from tests.reference import Arms


MAX_FAILURES = 1


def test_bbkb_keeps_variances_sizes_and_batches():
    """Theorem 1, Lemmas 3 and 5 of BBKB over 3,600 distinct pulls."""
    runs = [leverage_run(3600, seed) for seed in range(2)]
    assert sum(run["failed"] for run in runs) <= MAX_FAILURES
    for run in runs:
        assert run["inducing_share"] < 0.5  # else everything is kept, and exact
        assert run["bound_share"] < 1  # else the bound on |S| says nothing
        assert run["worst_ratio"] > 1 + 1e-4  # nor is S a basis of the features
        assert run["drop_over_bound"] < 1
        assert run["batches_over_bound"] < 1
        assert run["batches"] > 20
        assert run["largest_batch"] <= BULK_SIZE


def test_bkb_keeps_variances_and_sizes():
    """Theorem 1 of BKB at the last of 9,000 steps."""
    run = late_run(9000, 1, seed=0)
    assert not run["failed"]
    assert run["inducing_share"] < 0.5
    assert run["bound_share"] < 1
    assert run["largest_drop"] > 1 + 2**0.5  # else any variance keeps to alpha


def test_too_few_inducing_arms_are_noticed():
    """The same check fails at half the practical q-bar, far below the theorem's."""
    runs = [leverage_run(2000, seed, oversampling=1.0) for seed in range(3)]
    assert sum(run["failed"] for run in runs) > MAX_FAILURES


@pytest.mark.parametrize("noise", [0.1, 10.0])
def test_exact_line_variances_are_those_of_the_dense_gp(noise):
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(size=30))
    counts = generator.integers(0, 3, size=30)
    gram = np.exp(-np.abs(x[:, None] - x) / 0.3)
    S = list(counts.nonzero()[0])
    variance = Arms(gram, noise).posterior(S, counts, np.zeros(30))[1]
    np.testing.assert_allclose(exact_line_variances(x, counts, noise, 0.3), variance)


def test_the_narrowest_band_is_that_of_the_dense_posterior():
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(30, 2, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    bandit = BBKB(arms, kernel, 1.0, confidence=0.7, generator=generator)
    for _ in range(4):
        bandit.tell(batch := bandit.ask(), arms[batch, 0])
    batch = bandit.ask()
    assert len(batch) > 2
    counts = bandit.counts.numpy().astype(float)
    np.add.at(counts, batch[:-1].numpy(), 1)
    dense = Arms(kernel(arms).to_dense().detach().numpy(), 1.0)
    S = bandit.inducing_indices.tolist()
    variance = dense.posterior(S, counts, np.zeros(30))[1]
    band = narrowest_band(bandit, batch).numpy()
    np.testing.assert_allclose(band, 0.7 * np.sqrt(variance), rtol=1e-6)


class Sequence(Problem):
    """A random posterior and a random sequence of pulls, chosen by nobody."""

    def __init__(self, seed, exact):
        super().__init__(seed, 25, exact)
        self.arms = Arms(self.gram, self.noise)
        numbers = np.random.default_rng(seed)
        # Few different arms: repeats are where the bounds are tight.
        self.pulls = numbers.choice(numbers.choice(25, size=4), size=30)

    def variances(self, num_pulls):
        """Return the variances of all arms after some pulls."""
        counts = self.counts.copy()
        np.add.at(counts, self.pulls[:num_pulls], 1)
        return self.arms.posterior(self.S, counts, np.zeros(25))[1]


@pytest.mark.parametrize("exact", [False, True], ids=["sparse", "exact"])
@pytest.mark.parametrize(
    "rule", [SumRule(2.0), ProductRule(2.0)], ids=["sum", "product"]
)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_rules_bound_the_variance_ratio_for_any_pulls(rule, exact, seed):
    """Lemmas 4 and 8: up to the pull that closes a batch, whoever chose the pulls."""
    sequence = Sequence(seed, exact)
    none = sequence.posterior.mean[:0]
    batch = rule.open(sequence.posterior, none)
    if exact:
        sequence.S = list(range(25))  # the new pulls are inducing too
    start = sequence.variances(0)
    for stop, arm in enumerate(sequence.pulls, start=1):
        assert batch.take(int(arm), 1) == 1
        if batch.is_closed:
            break
        now = sequence.variances(stop)
        assert (start <= 2.0 * now * (1 + 1e-8) + 1e-10).all()
