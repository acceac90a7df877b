"""Posteriors given pulls without reward are those of dense algebra; NaN is an error.

``tests/optim/test_batch_rules.py`` has the choices among other arms.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb.arms import PullLimits
from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.posteriors import ArmPosterior, FilterPosterior, SparseArmKalmanFilter
from botorch_bkb.posteriors.replay import Observation, ReplayedFilter
from botorch_bkb.posteriors.upper_bounds import UpperBounds
from tests.bandits import rbf
from tests.helpers import gram_matrix, LargestTensor, seeded
from tests.posteriors import ATOL, each_dtype, longs, NOISE, NUM_ARMS, Problem
from tests.reference import time_varying_posterior


SCALE = 1.5


def unlimited(posterior):
    return PullLimits.unlimited(posterior.like, posterior.num_arms)


@pytest.mark.parametrize("pending", [{}, {2: 1}])
def test_bounds_that_are_no_numbers_are_an_error(pending):
    posterior = Problem(6).posterior.given(pending)
    bounds = UpperBounds(posterior, math.nan, True, unlimited(posterior))
    with pytest.raises(InputDataError, match=r"to be numbers, but got NaN. Check"):
        bounds.best()


@each_dtype
@pytest.mark.parametrize("max_bytes", [0, 2**31], ids=["recomputed", "cached"])
@pytest.mark.parametrize("room", [0, 3, 100])
@pytest.mark.parametrize("projected", [True, False])
def test_pulls_without_reward_condition_as_dense_algebra_does(
    dtype, max_bytes, room, projected
):
    """At once, one after the other, and after other pulls, whatever shards keep."""
    problem = Problem(3, dtype, max_bytes=max_bytes)
    posterior, everything = problem.posterior, torch.arange(NUM_ARMS)
    posterior.room = room
    steps = [{5: 2}, {5: 2, 7: 1}, {11: 1}, {5: 2, 7: 1}, {5: 2, 7: 1, 2: 3, 16: 1}]
    for pulls in steps:
        covariance, expected = problem.dense(pulls=list(Counter(pulls).elements()))
        if not projected:
            covariance, arms = problem.dense()[0], list(pulls)
            K = covariance[np.ix_(arms, arms)] + np.diag(
                NOISE / np.array([*pulls.values()])
            )
            lost = covariance[:, arms] @ np.linalg.solve(K, covariance[arms])
            covariance = expected = covariance - lost
        given = posterior.given(pulls, projected)
        found = given.covariance(everything, everything, projected)
        np.testing.assert_allclose(found, expected, atol=ATOL[dtype])
        variance = np.diag(covariance)
        np.testing.assert_allclose(
            given.variances(everything), variance, atol=ATOL[dtype]
        )
        top = given.largest_bounds(SCALE, NUM_ARMS)
        bounds = problem.mean + SCALE * np.sqrt(variance)
        np.testing.assert_allclose(top.values, bounds[top.arms], atol=ATOL[dtype])
        some = longs(3, 9)
        assert torch.equal(given.means(some), posterior.means(some))
    one, *more = ({arm: n} for arm, n in steps[-1].items())
    chained = posterior.given(one, projected)
    for pulls in more:
        chained = chained.given(pulls, projected)
    torch.testing.assert_close(
        chained.variances(everything), given.variances(everything)
    )


def test_the_first_batch_over_many_arms_stays_within_its_budget():
    """96 numbers for each of 200,000 arms would be 147 MiB."""
    arms = torch.rand(200_000, 2, generator=seeded()).double()
    posterior = ArmPosterior(arms, rbf(0.3), 0.1, max_feature_bytes=2**24)
    with LargestTensor() as largest:
        given = posterior.given({arm * 8000: 1 for arm in range(24)})
        found = given.largest_bounds(SCALE, len(arms))
    assert largest.nbytes <= 2**25
    values = torch.empty_like(found.values)
    values[found.arms] = found.values
    pulls, seen = arms[:184_001:8000], arms[[3, 4000, 199_999]]
    K, cross = gram_matrix(rbf(0.3), pulls), gram_matrix(rbf(0.3), pulls, seen)
    lost = (cross * np.linalg.solve(K + 0.1 * np.eye(24), cross)).sum(axis=0)
    expected = SCALE * np.sqrt(1 - lost)
    np.testing.assert_allclose(values[[3, 4000, 199_999]], expected, rtol=1e-9)


def moments_of(mean, variance, **options):
    prior = torch.ones_like(mean)
    args = longs(), longs(), 0.0, 0.0
    return FilterPosterior(mean, variance, prior, NOISE, *args, **options)


def test_the_largest_bounds_at_one_time_are_of_arms_that_compete():
    mean, variance = torch.tensor([[1.0, 3.0, 2.0, 3.0], [4.0, 0.0, 1.0, 0.0]])
    moments = moments_of(mean, variance)
    allowed = torch.tensor([True, False, True, True])
    assert moments.largest_bounds(1.0, 3).arms.tolist() == [0, 1, 2]
    assert moments.largest_bounds(1.0, 9, allowed).arms.tolist() == [0, 2, 3, 1]
    assert (moments.best_mean(), moments.best_mean(allowed)) == (1, 3)


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
    posterior = replayed.at(now, pending)
    bounds = UpperBounds(posterior, SCALE, True, unlimited(posterior))
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
        found = bounds.posterior.mean + SCALE * bounds.posterior.variance.sqrt()
        np.testing.assert_allclose(found, expected, atol=4 * ATOL[dtype])
        arm = bounds.best()
        assert expected[arm] >= expected.max() - 4 * ATOL[dtype]
        assert bounds.num_repeats(arm) == 1
        bounds.pull(arm, num_pulls)
        out += [(now, arm)] * num_pulls
