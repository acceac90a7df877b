"""Arms are chosen one by one by bounds that dense algebra gives them at every pull."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.arms import Capacity, PullCounts
from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.posteriors import ArmFilter, ArmMoments, upper_bounds
from botorch_bkb.posteriors.replay import Observation, ReplayedFilter
from botorch_bkb.posteriors.upper_bounds import DriftingUpperBounds, UpperBounds
from tests.posteriors import ATOL, each_dtype, longs, NOISE, NUM_ARMS, Problem
from tests.reference import time_varying_posterior


SCALE = 1.5
seeds = st.integers(0, 10**6)
arm_lists = st.lists(st.integers(0, NUM_ARMS - 1), max_size=4)
# The first pool, the largest pool and the excerpt: what is tracked after them.
SIZES = [(128, 1024, 2**15), (2, 8, 2**15), (1, 2, 3)]


def set_sizes(patch, sizes):
    names = ("POOL_SIZE", "MAX_POOL_SIZE", "EXCERPT_SIZE")
    for name, size in zip(names, sizes, strict=True):
        patch.setattr(upper_bounds, name, size)


def choose(problem, grow=False, pending=(), capacity=None, scale=SCALE):
    capacity = capacity or Capacity(NUM_ARMS)
    return UpperBounds(problem.posterior, scale, grow, longs(*pending), capacity)


def dense_bounds(problem, grow, pending, pulls, joined=()):
    """Return all bounds; pending arms are inducing, and pulled ones if these grow."""
    appended = [*pending, *(pulls if grow else []), *joined]
    covariance, _ = problem.dense(appended, [*pending, *pulls])
    return problem.mean + SCALE * np.sqrt(covariance.diagonal().clip(min=0))


@each_dtype
@pytest.mark.parametrize("grow", [False, True])
@given(seed=seeds, exact=st.booleans(), pending=arm_lists, sizes=st.sampled_from(SIZES))
@settings(max_examples=15)
def test_the_choice_has_the_largest_bound_and_keeps_it_for_its_repeats(
    dtype, grow, seed, exact, pending, sizes
):
    """Pools, excerpts or all arms; sparse or exact; pending pulls that repeat."""
    atol, problem = 4 * ATOL[dtype], Problem(seed, dtype, exact)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, sizes)
        bounds, pulls = choose(problem, grow, pending), []
        stale = dense_bounds(problem, grow, [], [])
        for _ in range(4):
            arm = bounds.best()
            expected = dense_bounds(problem, grow, pending, pulls)
            assert expected[arm] >= expected.max() - atol
            repeats = min(bounds.num_repeats(arm), 50)
            assert repeats >= 1
            last = dense_bounds(problem, grow, pending, pulls + [arm] * (repeats - 1))
            assert last[arm] >= np.delete(last, arm).max() - atol
            if repeats < 50:
                # It falls behind the others' bounds before these pulls; behind those of
                # the start, where arms are outside the pool.
                joined = dense_bounds(problem, grow, pending, pulls, [arm] * grow)
                rivals = np.maximum(expected, joined)
                if sizes != SIZES[0]:
                    rivals = np.maximum(rivals, stale)
                after = dense_bounds(problem, grow, pending, pulls + [arm] * repeats)
                assert after[arm] <= np.delete(rivals, arm).max() + atol
            bounds.pull(arm, repeats)
            pulls += [arm] * repeats


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("grow", [False, True])
def test_every_arm_is_chosen_until_it_is_used_up(monkeypatch, sizes, grow):
    """Arm 3 allows two pulls, the others one, 5 none; 7 is not offered."""
    set_sizes(monkeypatch, sizes)
    offered = torch.arange(NUM_ARMS) != 7
    capacity = Capacity(NUM_ARMS, 1, offered, PullCounts(longs(3, 5), longs(2, 0)))
    bounds, chosen = choose(Problem(1), grow, [7, 7, 2], capacity), []
    while (arm := bounds.best()) is not None:
        assert 1 <= bounds.num_repeats(arm) <= capacity.of(arm)
        bounds.pull(arm, 1)
        chosen.append(arm)
        assert len(chosen) < 99
    assert sorted(chosen) == sorted([*({*range(NUM_ARMS)} - {5, 7}), 3])
    assert capacity.is_used_up
    assert bounds.best() is None


def test_ties_go_round_from_the_lowest_index(monkeypatch):
    """Before any data all bounds are one; a twin (16) goes with its first (0)."""
    for sizes in SIZES:
        set_sizes(monkeypatch, sizes)
        problem = Problem(4)
        problem.posterior = problem.new_posterior()
        bounds = choose(problem)
        assert bounds.best() == 0
        assert bounds.num_repeats(0) == UNLIMITED  # no inducing arms: nothing falls
        bounds = choose(problem, grow=True)
        assert (bounds.best(), bounds.num_repeats(0)) == (0, 1)
        bounds.pull(0, 1)
        assert bounds.best() not in (0, 16)


@pytest.mark.parametrize("pending", [[], [2]])
def test_bounds_that_are_no_numbers_are_an_error(pending):
    bounds = choose(Problem(6), False, pending, scale=math.nan)
    with pytest.raises(InputDataError, match=r"to be numbers, but got NaN. Check"):
        bounds.best()


# Arms that drift ----------------------------------------------------------------------

RATE, NOW = 0.1, 6.0
TOLD = [(0.0, 1, 0.5), (1.0, 4, -1.0), (2.5, 1, 1.0), (2.5, 9, 0.0), (5.0, 3, 2.0)]


class Drift:
    """A filter that was told a few rewards, and the choices at a time."""

    def __init__(self, dtype=torch.float64, pending=(), capacity=None):
        self.gram, self.pending = Problem(0).gram, list(pending)
        self.replayed = ReplayedFilter(
            ArmFilter(torch.tensor(self.gram, dtype=dtype), NOISE, RATE)
        )
        oldest = min((time for time, _ in self.pending), default=math.inf)
        self.replayed.observe([Observation(*told) for told in TOLD], oldest)
        mean, variance = self.replayed.filter.predict(NOW)
        prior = torch.ones_like(mean)
        self.moments = ArmMoments(
            mean, variance, prior, NOISE, longs(), longs(), 0.0, 0.0
        )
        self.capacity = capacity or Capacity(NUM_ARMS)
        self.bounds = DriftingUpperBounds(
            self.moments, SCALE, self.replayed, self.pending, NOW, self.capacity
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
    offered = torch.zeros(NUM_ARMS, dtype=torch.bool)
    offered[[2, 8]] = True
    capacity = Capacity(NUM_ARMS, 2, offered)
    drift, chosen = Drift(pending=pending, capacity=capacity), []
    while (arm := drift.bounds.best()) is not None:
        drift.bounds.pull(arm, 1)
        chosen.append(arm)
    assert sorted(chosen) == [2, 2, 8, 8]
    assert capacity.is_used_up
