"""Bounds of arms that drift are those of dense algebra, and NaN is an error.

``tests/optim/test_batch_ucb.py`` has the choices among other arms.
"""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms import PullLimits
from botorch_bkb.arms.table import UNLIMITED
from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.posteriors import ArmMoments, SparseArmKalmanFilter
from botorch_bkb.posteriors.hallucination import excerpt, HallucinatedPosterior
from botorch_bkb.posteriors.replay import (
    DriftingUpperBounds,
    Observation,
    ReplayedFilter,
)
from botorch_bkb.posteriors.upper_bounds import first_crossing, UpperBounds
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


@pytest.mark.parametrize("projected", [True, False])
def test_an_excerpt_answers_as_all_arms_do_and_holds_no_graph_of_the_kernel(projected):
    problem = Problem(3)
    posterior, few = problem.posterior, longs(2, 5, 11, 14)
    assert posterior.covar_module.raw_lengthscale.requires_grad
    found = excerpt(posterior, few).prior_rows(posterior.arms[5:7])
    np.testing.assert_allclose(found, problem.gram[5:7, few], rtol=1e-6)
    some, all_ = (
        HallucinatedPosterior(posterior, SCALE, None, projected, arms)
        for arms in (few, None)
    )
    for tracked in (some, all_):
        tracked.pull(5, 2)
        tracked.pull(7, 1)
        tracked.close(11)
    torch.testing.assert_close(some.bounds(), all_.bounds()[few])
    assert some.moments(14) == pytest.approx(all_.moments(14))
    best = some.best()[1]
    assert best == few[some.bounds().argmax()]
    assert some.best(other_than=best)[1] != best
    (part,) = some.shards.parts
    for column in (part.mean, part.residual, part.variance, part.downdates):
        assert not column.requires_grad


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


RATE, NOW = 0.1, 6.0
TOLD = [(0.0, 1, 0.5), (1.0, 4, -1.0), (2.5, 1, 1.0), (2.5, 9, 0.0), (5.0, 3, 2.0)]


class Drift:
    """A filter that was told a few rewards, and the choices at a time."""

    def __init__(self, dtype=torch.float64, pending=(), limits=None):
        self.gram, self.pending = Problem(0).gram, list(pending)
        kernel = PrecomputedKernel(torch.tensor(self.gram, dtype=dtype))
        arms = torch.arange(NUM_ARMS, dtype=dtype).unsqueeze(-1)
        self.replayed = ReplayedFilter(
            SparseArmKalmanFilter(arms, kernel, NOISE, RATE, 0.0)
        )
        oldest = min((time for time, _ in self.pending), default=math.inf)
        self.replayed.observe([Observation(*told) for told in TOLD], oldest)
        mean, variance = self.replayed.filter.predict(NOW)
        prior = torch.ones_like(mean)
        self.moments = ArmMoments(
            mean, variance, prior, NOISE, longs(), longs(), 0.0, 0.0
        )
        self.limits = limits or PullLimits.unlimited(mean, NUM_ARMS)
        self.bounds = DriftingUpperBounds(
            self.moments, SCALE, self.replayed, self.pending, NOW, self.limits
        )

    def dense(self, pulls):
        """Return means by what was told, variances by all pulls at their times."""
        times, arms, rewards = (np.array(x) for x in zip(*TOLD, strict=True))
        args = self.gram, NOISE, RATE
        mean, _ = time_varying_posterior(*args, arms, times, rewards, NOW)
        out = [*self.pending, *((NOW, arm) for arm in pulls)]
        arms = np.concatenate([arms, [arm for _, arm in out]]).astype(int)
        times = np.concatenate([times, [time for time, _ in out]])
        _, variance = time_varying_posterior(
            *args, arms, times, np.zeros(len(arms)), NOW
        )
        return mean + SCALE * np.sqrt(variance)


@each_dtype
@pytest.mark.parametrize("pending", [[], [(3.0, 12)], [(2.0, 4), (5.0, 4), (5.5, 7)]])
def test_drifting_arms_are_chosen_by_their_bounds_at_the_decision(dtype, pending):
    """Pending pulls count at the times they were asked at, new ones now."""
    drift, pulls = Drift(dtype, pending), []
    for num_pulls in (1, 2, 1, 3, 1):
        expected = drift.dense(pulls)
        found = drift.bounds.mean + SCALE * drift.bounds.variance.sqrt()
        np.testing.assert_allclose(found, expected, atol=4 * ATOL[dtype])
        arm = drift.bounds.best()
        assert expected[arm] >= expected.max() - 4 * ATOL[dtype]
        assert drift.bounds.num_repeats(arm) == 1
        drift.bounds.pull(arm, num_pulls)
        pulls += [arm] * num_pulls


@pytest.mark.parametrize("pending", [[], [(3.0, 12)]])
def test_drifting_arms_are_used_up_as_others_are(pending):
    left = torch.zeros(NUM_ARMS, dtype=torch.int32)
    left[[2, 8]] = 2
    limits = PullLimits(left)
    drift, chosen = Drift(pending=pending, limits=limits), []
    while (arm := drift.bounds.best()) is not None:
        drift.bounds.pull(arm, 1)
        chosen.append(arm)
    assert sorted(chosen) == [2, 2, 8, 8]
    assert limits.num_open == 0
