"""Inclusion probabilities, draws by them, and the few that say most."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.models.utils.leverage_scores import (
    inclusion_probabilities,
    leverage_pivots,
    sample_inducing_indices,
)
from tests.helpers import gram_matrix, seeded
from tests.reference import inclusion_probability, resample


@pytest.mark.parametrize("inclusion", ["merged", "per_pull"])
@given(seed=st.integers(0, 2**31), oversampling=st.sampled_from([1e-3, 0.2, 2.0]))
@settings(max_examples=30)
def test_both_laws_keep_what_the_reference_keeps(inclusion, seed, oversampling):
    """That is the point of the largest score if none is drawn."""
    stream, merged = np.random.default_rng(seed), inclusion == "merged"
    (scores, uniforms), counts = stream.random((2, 12)), stream.integers(1, 13, 12)
    x, n, u = map(torch.from_numpy, (scores, counts, uniforms))
    found = inclusion_probabilities(x, n, oversampling, inclusion)
    law = scores, counts, oversampling
    np.testing.assert_allclose(found, inclusion_probability(*law, merged))
    expected = resample(*law, uniforms, merged)
    assert sample_inducing_indices(found, x, u).tolist() == expected.tolist()


# Pivots by leverage -------------------------------------------------------------------


def left_by(K, pivots):
    """Return what pulls of some points leave of all prior variances, by Schur."""
    cross = K[pivots]
    return np.diag(K) - np.einsum(
        "ij,ij->j", cross, np.linalg.pinv(K[np.ix_(pivots, pivots)]) @ cross
    )


def assert_greedy(K, counts, pivots):
    """Each pivot has the largest leverage that those before leave, up to rounding."""
    for step, pivot in enumerate(pivots):
        left = counts * left_by(K, pivots[:step])
        assert left[pivot] >= (1 - 1e-5) * left.max() - 1e-9


@given(
    seed=st.integers(0, 2**31),
    num_points=st.integers(1, 60),
    share=st.floats(0.01, 1.0),
    rough=st.booleans(),
    repeats=st.booleans(),
)
@settings(max_examples=40)
def test_pivots_have_the_largest_leverage_that_is_left(
    seed, num_points, share, rough, repeats
):
    numbers = np.random.default_rng(seed)
    points = torch.from_numpy(numbers.random((num_points, 3)))
    counts = numbers.geometric(0.1, num_points) if repeats else np.ones(num_points)
    kernel = (MaternKernel(nu=1.5) if rough else RBFKernel()).double()
    kernel.lengthscale = 0.3
    size = max(1, round(share * num_points))
    pivots = leverage_pivots(kernel, points, torch.from_numpy(counts), size).tolist()
    assert len(set(pivots)) == len(pivots) == size
    assert_greedy(gram_matrix(kernel, points), counts, pivots)


def test_pivots_stop_where_the_others_are_in_their_span():
    points = torch.rand(40, 3, generator=seeded()).double()
    kernel = LinearKernel().double()
    pivots = leverage_pivots(kernel, points, torch.ones(40), 20).tolist()
    assert len(pivots) == 3
    assert_greedy(gram_matrix(kernel, points), np.ones(40), pivots)
    rbf, twice = RBFKernel().double(), torch.cat([points[:5]] * 2)
    assert len(leverage_pivots(rbf, twice, torch.ones(10), 10).unique()) == 5


def test_pivots_of_a_broken_kernel_come_to_an_end():
    """It is NaN off its diagonal."""
    kernel = PrecomputedKernel(torch.eye(40).double())
    kernel.covariance[~torch.eye(40).bool()] = torch.nan
    points = torch.arange(40).double().unsqueeze(-1)
    assert len(leverage_pivots(kernel, points, torch.ones(40), 20)) == 1
