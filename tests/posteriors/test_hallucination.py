"""Pulls without reward take from variances what they take from the dense posterior."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import ArmPosterior, hallucination
from botorch_bkb.posteriors.hallucination import (
    HallucinatedPosterior,
    PoolPosterior,
)
from tests.posteriors import ATOL, each_dtype, longs, NUM_ARMS, Problem


SCALE = 1.5
seeds = st.integers(0, 10**6)
positions = st.integers(0, NUM_ARMS - 1)
pulls = st.lists(st.tuples(positions, st.integers(1, 4)), max_size=6)
some_arms = st.sets(positions, min_size=1).map(sorted)


def repeated(counts):
    """Return one arm per pull."""
    return [arm for arm, num_pulls in counts for _ in range(num_pulls)]


def dense_bounds(problem, appended=(), counts=()):
    covariance, _ = problem.dense(appended, repeated(counts))
    return problem.mean + SCALE * np.sqrt(covariance.diagonal().clip(min=0))


def assert_bounds(found, problem, arms, appended, counts, dtype):
    expected = dense_bounds(problem, appended, counts)
    np.testing.assert_allclose(found.bounds, expected[arms], atol=4 * ATOL[dtype])


def outcome(problem, arm, appended, counts):
    """Return the mean, the residual and the projected variance of an arm."""
    covariance, projected = problem.dense(appended, repeated(counts))
    return problem.mean[arm], (covariance - projected)[arm, arm], projected[arm, arm]


# A pool -------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("grow", [False, True])
@given(seed=seeds, arms=some_arms, pending=pulls, later=pulls)
@settings(max_examples=15)
def test_a_pool_has_the_variances_of_dense_algebra(
    dtype, grow, seed, arms, pending, later
):
    """Pending pulls of any arms, twins too; then pulls of its own arms."""
    problem = Problem(seed, dtype, exact=grow)
    pool = PoolPosterior(problem.posterior, SCALE, longs(*arms), _summed(pending), grow)
    counts = list(pending)
    assert_bounds(pool, problem, arms, [arm for arm, _ in counts] * grow, counts, dtype)
    for place, num_pulls in later:
        arm = arms[place % len(arms)]
        assert arm in pool
        pool.append(arm)
        pool.pull(arm, num_pulls)
        counts.append((arm, num_pulls))
    appended = [arm for arm, _ in counts] * grow
    assert_bounds(pool, problem, arms, appended, counts, dtype)
    mean, residual, projected = outcome(problem, arms[-1], appended, counts)
    found = pool.moments(arms[-1])
    if grow:  # all of it is one covariance
        residual, projected = 0.0, residual + projected
    assert found == pytest.approx((mean, residual, projected), abs=4 * ATOL[dtype])


def _summed(counts):
    found: dict[int, int] = {}
    for arm, num_pulls in counts:
        found[arm] = found.get(arm, 0) + num_pulls
    return found


@pytest.mark.parametrize("kept", [1, 64])
def test_it_does_not_matter_how_many_pulls_a_pool_keeps_apart(monkeypatch, kept):
    """Seventy pulls one by one are those at once."""
    monkeypatch.setattr(hallucination, "MAX_DOWNDATES", kept)
    problem, arms = Problem(1), list(range(NUM_ARMS))
    pool = PoolPosterior(problem.posterior, SCALE, longs(*arms), {3: 2}, False)
    for number in range(70):
        pool.pull(number % 7, 1)
    assert_bounds(
        pool, problem, arms, [], [(3, 2), *((arm, 10) for arm in range(7))],
        torch.float64,
    )  # fmt: skip


def each_way(posterior):
    """Yield a pool, all arms and all arms as an excerpt, of a posterior before data."""
    everything = torch.arange(posterior.num_arms)
    yield PoolPosterior(posterior, SCALE, everything, {}, True)
    yield HallucinatedPosterior(posterior, SCALE, None)
    yield HallucinatedPosterior(posterior, SCALE, None, everything)


def test_ties_go_to_the_lowest_index_that_is_open():
    """Before any data all arms have one bound, to the last bit."""
    for found in each_way(Problem(1).new_posterior()):
        assert (found.best(), found.rival(0), found.rival(2)) == (
            (SCALE, 0),
            (SCALE, 1),
            (SCALE, 0),
        )
        found.close(0)
        found.close(2)
        assert (found.best()[1], found.rival(1)[1]) == (1, 3)


def posterior_on_a_line():
    """Return a posterior of three arms alike and one that has no variance."""
    arms = torch.tensor([[1.0], [0.0], [1.0], [1.0]]).double()
    return ArmPosterior(arms, LinearKernel().double(), 0.5)


def test_arms_that_are_alike_lose_the_same_by_a_pull():
    """Prior variance v, noise 0.5: of n pulls there is left 0.5 v / (0.5 + n v)."""
    posterior = posterior_on_a_line()
    v = posterior.max_prior_variance
    for found in each_way(posterior):
        found.append(2)
        found.pull(2, 3)
        expected = SCALE * math.sqrt(0.5 * v / (0.5 + 3 * v))
        expected = [expected, 0.0, expected, expected]
        np.testing.assert_allclose(found.bounds.tolist(), expected, atol=1e-9)


# All arms, or those that are tracked --------------------------------------------------


@each_dtype
@given(seed=seeds, arms=st.none() | some_arms, steps=pulls)
@settings(max_examples=25)
def test_arms_that_join_and_pulls_have_the_variances_of_dense_algebra(
    dtype, seed, arms, steps
):
    """Some pulled arms are outside the span; every arm joins before its pulls."""
    problem = Problem(seed, dtype)
    tracked = None if arms is None else longs(*arms)
    found = HallucinatedPosterior(problem.posterior, SCALE, None, tracked)
    arms = list(range(NUM_ARMS)) if arms is None else arms
    assert_bounds(found, problem, arms, [], [], dtype)
    done: list[tuple[int, int]] = []
    for arm, num_pulls in steps:
        assert arm in found  # also one that is not tracked
        found.append(arm)
        joined = [*(index for index, _ in done), arm]
        assert_bounds(found, problem, arms, joined, done, dtype)
        found.pull(arm, num_pulls)
        done.append((arm, num_pulls))
        assert_bounds(found, problem, arms, joined, done, dtype)
    appended = [arm for arm, _ in done]
    expected = outcome(problem, arms[0], appended, done)
    assert found.moments(arms[0]) == pytest.approx(expected, abs=4 * ATOL[dtype])


@each_dtype
@given(seed=seeds, steps=pulls)
@settings(max_examples=15)
def test_with_inducing_arms_that_stay_pulls_leave_residuals(dtype, seed, steps):
    problem, arms = Problem(seed, dtype), list(range(NUM_ARMS))
    found = HallucinatedPosterior(problem.posterior, SCALE, None)
    residual = found.shards.column("residual").clone()
    for arm, num_pulls in steps:
        found.pull(arm, num_pulls)
    assert torch.equal(found.shards.column("residual"), residual)
    assert_bounds(found, problem, arms, [], steps, dtype)
    best, rival = found.best(), found.rival(found.best()[1])
    expected = np.sort(dense_bounds(problem, [], steps))[::-1]
    assert (best[0], rival[0]) == pytest.approx(
        tuple(expected[:2]), abs=4 * ATOL[dtype]
    )


@pytest.mark.parametrize("tracked", [None, longs(2, 5, 8, 16)])
def test_only_arms_that_are_allowed_and_open_can_be_best(tracked):
    problem = Problem(3)
    allowed = torch.zeros(NUM_ARMS, dtype=torch.bool)
    allowed[[5, 16]] = True
    found = HallucinatedPosterior(problem.posterior, SCALE, allowed, tracked)
    first = found.best()[1]
    second = found.rival(first)[1]
    assert {first, second} == {5, 16}
    expected = dense_bounds(problem)
    assert expected[first] > expected[second]
    found.close(4)  # which is not tracked, or closed already
    found.close(first)
    assert found.best() == (pytest.approx(expected[second]), second)
    found.pull(second, 1)
    assert found.best()[1] == second
    found.close(second)
    assert found.best()[0] == -math.inf
