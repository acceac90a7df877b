"""The local rule's sums are those of the covariances, for every arm and any pulls."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.posteriors import arm_posterior, ArmPosterior
from botorch_bkb.posteriors.local_sums import LocalSums
from botorch_bkb.posteriors.shards import plan_shards
from tests.posteriors import ATOL, each_dtype, longs, NOISE, NUM_ARMS, Problem
from tests.reference import local_shares


each_kind = pytest.mark.parametrize("projected", [True, False])
seeds = st.integers(0, 10**6)
positions = st.integers(0, NUM_ARMS - 1)
pulls = st.lists(st.tuples(positions, st.integers(1, 5)), max_size=6)


def dense_shares(problem, projected):
    """Return what a pull of an arm (a column) adds to the sum of each arm (a row)."""
    covariance, c = problem.dense()
    variance = covariance.diagonal()
    c = (c if projected else covariance).copy()
    np.fill_diagonal(c, variance)  # an arm counts against itself by all of it
    return local_shares(variance, c, NOISE)


def tolerance(dtype, num_pulls=1):
    return dict(rtol=10 * ATOL[dtype], atol=10 * ATOL[dtype] * num_pulls)


@each_dtype
@each_kind
@given(seed=seeds, steps=pulls, total=st.integers(1, 3))
@settings(max_examples=15)
def test_sums_are_those_of_dense_covariances(dtype, projected, seed, steps, total):
    """Pulls of one arm may come at once or after others."""
    problem = Problem(seed, dtype)
    shares = dense_shares(problem, projected)
    sums, expected = LocalSums(problem.posterior, total, projected), np.full(17, total)
    assert sums.largest() == total
    for arm, num_pulls in steps:
        sums.add(arm, num_pulls)
        expected = expected + num_pulls * shares[:, arm]
        np.testing.assert_allclose(sums.sums, expected, **tolerance(dtype, num_pulls))
        # Three more pulls of the last arm, without adding them.
        more = (expected + 3 * shares[:, arm]).max()
        assert sums.largest(3) == pytest.approx(more, rel=10 * ATOL[dtype])
    assert sums.largest() == pytest.approx(expected.max(), rel=10 * ATOL[dtype])
    assert sums.sums.dtype == dtype


@each_dtype
@given(seed=seeds, steps=pulls, arm=positions, room=st.integers(1, 40))
@settings(max_examples=15)
def test_the_crossing_is_the_first_number_of_pulls_past_the_threshold(
    dtype, seed, steps, arm, room
):
    """Before the last of them no sum is over it, after it one is, up to rounding."""
    problem = Problem(seed, dtype)
    shares, expected = dense_shares(problem, True), np.ones(NUM_ARMS)
    sums = LocalSums(problem.posterior, 1.0, True)
    for other, num_pulls in steps:
        sums.add(other, num_pulls)
        expected = expected + num_pulls * shares[:, other]
    threshold = expected.max() + room / 4
    before = sums.sums.clone()
    crossing = sums.crossing(arm, threshold)
    assert torch.equal(sums.sums, before)  # nothing is added
    slack = 10 * ATOL[dtype] * threshold
    assert (expected + crossing * shares[:, arm]).max() > threshold - slack
    assert (expected + (crossing - 1) * shares[:, arm]).max() <= threshold + slack
    sums.add(arm, crossing)
    assert sums.largest() > threshold


def test_a_threshold_that_is_passed_already_is_crossed_by_the_next_pull():
    problem = Problem(1)
    sums = LocalSums(problem.posterior, 5.0, True)
    assert sums.crossing(3, 4.0) == 1
    assert sums.crossing(3, -math.inf) == 1
    assert sums.crossing(3, math.inf) == UNLIMITED


@each_kind
def test_an_arm_without_variance_never_crosses_and_keeps_its_sum(projected):
    arms = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]).double()
    posterior = ArmPosterior(arms, LinearKernel().double(), NOISE)
    one = torch.ones(1).double()
    for inducing in (longs(), longs(2)):  # the exact arm and none
        posterior.update(inducing, inducing, one[: len(inducing)], one[: len(inducing)])
        sums = LocalSums(posterior, 1.0, projected)
        assert sums.crossing(1, 2.0) == UNLIMITED
        sums.add(1, 7)
        assert sums.sums.tolist() == [1.0] * 3
        sums.add(0, 2)
        assert sums.sums[1] == 1.0
        assert sums.sums[0] > 1.0


def test_a_pull_of_an_arm_counts_for_its_twin_as_covariances_say():
    """Arm 16 is that of 0; neither is explained, so only the whole covariance is one.

    The difference: pulls count against the very arm by its whole variance in any case.
    """
    problem = Problem(2, inducing=[5])
    variance = problem.dense()[0].diagonal()[0]
    whole = LocalSums(problem.posterior, 1.0, False)
    projected = LocalSums(problem.posterior, 1.0, True)
    for sums in (whole, projected):
        sums.add(0, 3)
    expected = 1 + 3 * variance / NOISE
    found = [sums.sums[arm].item() for sums in (whole, projected) for arm in (0, 16)]
    assert found[:3] == pytest.approx([expected] * 3)
    assert found[3] < expected - 1


def test_before_any_data_the_projected_sums_are_those_of_the_pulled_arm_alone():
    sums = LocalSums(Problem(3).new_posterior(), 1.0, True)
    sums.add(4, 2)
    assert sums.sums.tolist() == pytest.approx(
        [1 + 2 / NOISE * (arm == 4) for arm in range(17)]
    )


def test_all_sums_of_a_batch_that_is_closed_are_infinite():
    sums = LocalSums(Problem(4).posterior, 1.0, True)
    sums.add(3, 1)
    sums.close()
    assert sums.sums.tolist() == [math.inf] * NUM_ARMS
    assert sums.largest() == sums.largest(2) == math.inf
    assert sums.crossing(3, 1e9) == sums.crossing(5, 1e9) == 1
    sums.add(5, 2)
    assert sums.largest() == math.inf


def test_arms_in_several_shards_have_the_sums_of_one(monkeypatch):
    expected = LocalSums(Problem(5).posterior, 1.0, False)
    monkeypatch.setattr(arm_posterior, "BLOCK_SIZE", 4)
    monkeypatch.setattr(
        arm_posterior, "plan_shards", lambda A, _, size: plan_shards(A, 3, size)
    )
    sums = LocalSums(Problem(5).posterior, 1.0, False)
    assert len(sums.shards.limits) == 4
    for arm in (0, 3, 4, 16):
        for some in (expected, sums):
            some.add(arm, 2)
        torch.testing.assert_close(sums.sums, expected.sums)
        assert sums.largest(3) == pytest.approx(expected.largest(3))
    assert sums.crossing(9, 300.5) == expected.crossing(9, 300.5) > 1
