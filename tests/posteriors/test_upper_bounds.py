"""Bounds of arms that drift are those of dense algebra, and NaN is an error.

``tests/optim/test_batch_ucb.py`` has the choices among other arms.
"""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms import PullLimits
from botorch_bkb.arms.table import UNLIMITED
from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.posteriors import (
    ArmMoments,
    ArmPosterior,
    hallucination,
    SparseArmKalmanFilter,
)
from botorch_bkb.posteriors.hallucination import excerpt, HallucinatedPosterior
from botorch_bkb.posteriors.replay import (
    DriftingUpperBounds,
    Observation,
    ReplayedFilter,
)
from botorch_bkb.posteriors.upper_bounds import first_crossing, UpperBounds
from tests.bandits import rbf
from tests.helpers import gram_matrix, LargestTensor
from tests.posteriors import ATOL, each_dtype, longs, NOISE, NUM_ARMS, Problem
from tests.reference import time_varying_posterior


SCALE = 1.5


@pytest.mark.parametrize("pending", [[], [2]])
def test_bounds_that_are_no_numbers_are_an_error(pending):
    posterior = Problem(6).posterior
    limits = PullLimits.unlimited(posterior.like, NUM_ARMS)
    bounds = UpperBounds(posterior, math.nan, True, longs(*pending), limits)
    with pytest.raises(InputDataError, match=r"to be numbers, but got NaN. Check"):
        bounds.best()


@pytest.mark.parametrize("least_bytes", [0, NUM_ARMS * 8 * 3])
def test_bounds_are_the_same_whatever_is_kept_of_earlier_pulls(
    monkeypatch, least_bytes
):
    monkeypatch.setattr(hallucination, "LEAST_BYTES", least_bytes)
    posterior = Problem(3).posterior
    arms = [5, 7, 5, 1, 9, 0]
    found = []
    for max_bytes in (0, 2**31):
        posterior.max_feature_bytes = max_bytes
        tracked = HallucinatedPosterior(posterior, SCALE, None, False)
        found.append([])
        for number, arm in enumerate(arms, 1):
            tracked.pull(arm, number)
            found[-1].append(tracked.bounds())
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_first_batch_over_many_arms_holds_no_number_per_arm_and_pull():
    """96 numbers for each of 200,000 arms would be 147 MiB."""
    arms = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0)).double()
    posterior = ArmPosterior(arms, rbf(0.3), 0.1, max_feature_bytes=2**24)
    tracked = HallucinatedPosterior(posterior, SCALE, None, False)
    with LargestTensor() as largest:
        for arm in range(24):
            tracked.pull(arm * 8000, 1)
    assert largest.nbytes <= 2**25
    assert sum(part.downdates.numel() for part in tracked.shards.parts) == 0
    pulls, seen = arms[:184_001:8000], arms[[3, 4000, 199_999]]
    K, cross = gram_matrix(rbf(0.3), pulls), gram_matrix(rbf(0.3), pulls, seen)
    lost = (cross * np.linalg.solve(K + 0.1 * np.eye(24), cross)).sum(axis=0)
    found = tracked.bounds()[[3, 4000, 199_999]]
    np.testing.assert_allclose(found, SCALE * np.sqrt(1 - lost), rtol=1e-9)


@pytest.mark.parametrize("projected", [True, False])
def test_an_excerpt_answers_as_all_arms_do_and_holds_no_graph_of_the_kernel(projected):
    problem = Problem(3)
    posterior, few = problem.posterior, longs(2, 5, 11, 14)
    assert posterior.covar_module.raw_lengthscale.requires_grad
    weights = torch.tensor([2.0, -0.5]).to(posterior.like)
    found = excerpt(posterior, few).prior_sums(posterior.arms[5:7], weights)
    expected = weights.numpy() @ problem.gram[5:7, few]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
    some, all_ = (
        HallucinatedPosterior(posterior, SCALE, None, projected, arms)
        for arms in (few, None)
    )
    for tracked in (some, all_):
        tracked.pull(5, 2)
        tracked.pull(7, 1)
        tracked.close(11)
    torch.testing.assert_close(some.bounds(), all_.bounds()[few])
    pulls, (covariance, _) = [5, 5, 7], problem.dense()
    expected = np.diag(problem.dense(pulls=pulls)[0])
    if not projected:
        K = covariance[np.ix_(pulls, pulls)] + NOISE * np.eye(3)
        lost = covariance[pulls] * np.linalg.solve(K, covariance[pulls])
        expected = np.diag(covariance) - lost.sum(axis=0)
    for tracked in (some, all_):
        found = [sum(tracked.moments(arm)[1:]) for arm in few.tolist()]
        np.testing.assert_allclose(found, expected[few], rtol=1e-6)
    assert some.moments(14) == pytest.approx(all_.moments(14))
    best = some.best()[1]
    assert best == few[some.bounds().argmax()]
    assert some.best(other_than=best)[1] != best
    (part,) = some.shards.parts
    for column in (part.mean, part.residual, part.variance, part.downdates):
        assert not column.requires_grad


def test_arms_whose_bounds_have_fallen_make_room_for_others():
    """Else all arms would be tracked after half as many pulls."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(20_000, 3, generator=generator, dtype=torch.double)
    kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
    kernel.lengthscale = 0.5
    posterior = ArmPosterior(arms, kernel, 0.01)
    pulled, ones = torch.arange(0, 20_000, 200), torch.ones(100)
    posterior.update(pulled, pulled, ones, torch.sin(3 * arms[pulled].sum(dim=-1)))
    limits = PullLimits.unlimited(arms, len(arms))
    bounds = UpperBounds(posterior, 2.0, False, longs(), limits)
    for _ in range(38):
        bounds.pull(bounds.best(), 1)
    assert bounds.tracked.indices is not None


@given(
    crossing=st.integers(1, UNLIMITED + 2),
    most=st.sampled_from([1, 2, 1000, UNLIMITED]),
)
def test_the_least_count_is_found(crossing, most):
    asked = []

    def crosses(n):
        asked.append(n)
        return n >= crossing

    assert first_crossing(crosses, most) == min(crossing, most)
    assert len(asked) <= 2 * min(crossing, most).bit_length()


def moments_of(mean, variance):
    prior = torch.ones_like(mean)
    return ArmMoments(mean, variance, prior, NOISE, longs(), longs(), 0.0, 0.0)


def test_the_largest_bounds_at_one_time_are_of_arms_that_compete():
    mean, variance = torch.tensor([[1.0, 3.0, 2.0, 3.0], [4.0, 0.0, 1.0, 0.0]])
    moments = moments_of(mean, variance)
    competes = torch.tensor([True, False, True, True])
    assert moments.largest_bounds(1.0, 3).arms.tolist() == [0, 1, 2]
    assert moments.largest_bounds(1.0, 9, competes).arms.tolist() == [0, 2, 3, 1]
    assert (moments.best_mean(), moments.best_mean(competes)) == (1, 3)


@each_dtype
@pytest.mark.parametrize("pending", [[], [(3.0, 12)], [(2.0, 4), (5.0, 4), (5.5, 7)]])
def test_drifting_arms_are_chosen_by_their_bounds_at_the_decision(dtype, pending):
    """Pending pulls count at the times they were asked at, new ones now."""
    gram, rate, now = Problem(0).gram, 0.1, 6.0
    told = [(0.0, 1, 0.5), (1.0, 4, -1.0), (2.5, 1, 1.0), (2.5, 9, 0.0), (5.0, 3, 2.0)]
    kernel = PrecomputedKernel(torch.tensor(gram, dtype=dtype))
    arms = torch.arange(NUM_ARMS, dtype=dtype).unsqueeze(-1)
    replayed = ReplayedFilter(SparseArmKalmanFilter(arms, kernel, NOISE, rate, 0.0))
    oldest = min((time for time, _ in pending), default=math.inf)
    replayed.observe([Observation(*one) for one in told], oldest)
    moments = moments_of(*replayed.filter.predict(now))
    limits = PullLimits.unlimited(moments.mean, NUM_ARMS)
    bounds = DriftingUpperBounds(moments, SCALE, replayed, pending, now, limits)
    times, indices, rewards = map(np.array, zip(*told, strict=True))
    args = gram, NOISE, rate
    mean, _ = time_varying_posterior(*args, indices, times, rewards, now)
    out = list(pending)
    for num_pulls in (1, 2, 1, 3, 1):
        seen = np.append(indices, [arm for _, arm in out]).astype(int)
        when = np.append(times, [time for time, _ in out])
        zeros = np.zeros(len(seen))
        _, variance = time_varying_posterior(*args, seen, when, zeros, now)
        expected = mean + SCALE * np.sqrt(variance)
        found = bounds.mean + SCALE * bounds.variance.sqrt()
        np.testing.assert_allclose(found, expected, atol=4 * ATOL[dtype])
        arm = bounds.best()
        assert expected[arm] >= expected.max() - 4 * ATOL[dtype]
        assert bounds.num_repeats(arm) == 1
        bounds.pull(arm, num_pulls)
        out += [(now, arm)] * num_pulls
