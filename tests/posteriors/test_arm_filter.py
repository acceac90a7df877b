"""The filter equals equations (7) and (8) of the TV-GP-UCB paper, solved densely."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import SparseArmFilter
from tests.helpers import gram_matrix
from tests.reference import time_varying_posterior


NOISE = 0.2


def points(num_arms, seed=0):
    return np.random.default_rng(seed).uniform(size=(num_arms, 2))


def kernel_of(name):
    kernel = {"rbf": RBFKernel, "linear": LinearKernel}[name]().double()
    if kernel.has_lengthscale:
        kernel.lengthscale = 0.3
    return kernel


def history(num_arms, num_times, seed):
    """Return times with real gaps and no, one or several observations at each."""
    generator = np.random.default_rng(seed)
    times = np.cumsum(generator.exponential(1.0, size=num_times))
    sizes = generator.integers(0, 4, size=num_times)
    return [
        (time, generator.integers(0, num_arms, size=size), generator.normal(size=size))
        for time, size in zip(times, sizes, strict=True)
    ]


def assert_equals_the_dense_answer(arms, kernel, rate, steps, gap, atol=1e-9):
    filtered = SparseArmFilter(torch.as_tensor(arms), kernel, NOISE, rate, 0.0)
    gram = gram_matrix(kernel, torch.as_tensor(arms))
    for time, arms, rewards in steps:
        filtered.observe(torch.as_tensor(arms), torch.as_tensor(rewards), time)
    decision = steps[-1][0] + gap
    mean, variance = filtered.predict(decision)
    times = np.concatenate([np.full(len(arms), time) for time, arms, _ in steps])
    expected = time_varying_posterior(
        gram,
        NOISE,
        rate,
        np.concatenate([arms for _, arms, _ in steps]),
        times,
        np.concatenate([rewards for *_, rewards in steps]),
        decision,
    )
    np.testing.assert_allclose(mean, expected[0], atol=atol)
    np.testing.assert_allclose(variance, expected[1], atol=atol)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_300_times_equal_the_dense_answer(kernel):
    """A linear kernel makes most arms redundant."""
    arms, steps = points(60), history(60, 300, 1)
    assert_equals_the_dense_answer(arms, kernel_of(kernel), 0.03, steps, gap=1.0)


@given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    gap=st.sampled_from([0.0, 0.7, 30.0]),
)
@settings(max_examples=40, deadline=None)
def test_random_histories_equal_the_dense_answer(seed, rate, gap):
    steps = history(12, 15, seed)
    # Twice the same time: as if it were one.
    steps.append((steps[-1][0], np.array([3, 3]), np.array([0.5, -0.5])))
    arms, kernel = points(12, seed), kernel_of("rbf")
    assert_equals_the_dense_answer(arms, kernel, rate, steps, gap)
