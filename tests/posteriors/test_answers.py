"""Answers about all arms are those of dense algebra, whatever shards and chunks."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from scipy.stats import norm

from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.posteriors import arm_sampler, ArmPosterior, ArmSampler, shards
from botorch_bkb.posteriors.posterior import expected_rise, largest
from tests.posteriors import ATOL, each_dtype, longs, NOISE, NUM_ARMS, Problem
from tests.posteriors.test_shards import set_shards
from tests.reference import Arms


SOME = torch.arange(NUM_ARMS) % 4 > 0


@pytest.fixture(autouse=True, params=[1, 3], ids=["one-shard", "three-shards"])
def _shards(request, monkeypatch):
    """Let every pass have several chunks, some of them of a part of a block."""
    set_shards(monkeypatch, request.param, block_size=4)
    monkeypatch.setattr(shards, "MIN_CHUNK", 2)
    for name in ("CHUNK_BYTES", "PASS_CHUNK_BYTES"):
        monkeypatch.setattr(shards, name, 64)


@each_dtype
@pytest.mark.parametrize("max_bytes", [0, 2**31], ids=["recomputed", "cached"])
def test_moments_are_those_of_the_dense_posterior(dtype, max_bytes):
    problem = Problem(dtype=dtype, max_bytes=max_bytes)
    posterior = problem.posterior
    covariance, projected = map(np.diag, problem.dense())
    expected = [np.ones(NUM_ARMS), problem.mean, covariance - projected, projected]
    found = posterior.moments(torch.arange(NUM_ARMS))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=ATOL[dtype])
    assert not found[2, problem.S].any()
    some = longs(16, 3, 9, 3)
    assert torch.equal(posterior.moments(some), found[:, some])
    assert torch.equal(posterior.mean, found[1])
    assert torch.equal(posterior.variance, found[2] + found[3])


@each_dtype
@pytest.mark.parametrize("exact", [False, True])
def test_arms_without_their_own_rewards_are_as_if_these_had_never_come(dtype, exact):
    problem = Problem(3, dtype, exact)
    pulled = np.flatnonzero(problem.counts)
    for left in (pulled[:1], pulled[[3, 1]], np.setdiff1d(np.arange(NUM_ARMS), 2)):
        counts, sums = problem.counts.copy(), problem.sums.copy()
        counts[left] = sums[left] = 0
        answer = Arms(problem.gram, NOISE).posterior(problem.S, counts, sums)[:2]
        found = problem.posterior.left_out(torch.from_numpy(left))
        expected = [part[left] for part in answer]
        np.testing.assert_allclose(torch.stack(found), expected, atol=5 * ATOL[dtype])


@pytest.mark.parametrize("allowed", [None, SOME], ids=["all", "some"])
def test_the_largest_bounds_are_those_of_a_sort(allowed):
    for seed in range(5):
        posterior = Problem(seed).posterior
        for scale in (0.0, 1.5):
            bounds = posterior.mean + scale * posterior.variance.sqrt()
            if allowed is not None:
                bounds[~allowed] = -torch.inf
            order = sorted(range(NUM_ARMS), key=lambda i: (-bounds[i].item(), i))
            for size in (1, 6, 25):
                found = posterior.largest_bounds(scale, size, allowed)
                assert found.arms.tolist() == order[:size]
                assert torch.equal(found.values, bounds[order[:size]])


@each_dtype
@pytest.mark.parametrize("allowed", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("pool_size", [9, NUM_ARMS])
def test_the_bound_of_the_probability_outside(monkeypatch, dtype, allowed, pool_size):
    """The least, over levels, of P(best < b) and the sum of P(f > b) outside."""
    monkeypatch.setattr(arm_sampler, "POOL_SIZE", pool_size)
    problem = Problem(2, dtype)
    sampler = ArmSampler(problem.posterior)
    mean, std = problem.mean, np.sqrt(np.diag(problem.dense()[0]))
    pool = sampler.promising_arms(allowed).numpy()
    outside = np.ones(NUM_ARMS, bool) if allowed is None else allowed.numpy().copy()
    outside[pool] = False
    best = pool[mean[pool].argmax()]
    levels = mean[best] + np.linspace(-4, 4, 33)[:, None] * std[best]
    above = norm.sf(levels, mean, std)[:, outside].sum(axis=1)
    below = norm.cdf(levels, mean, std)[:, pool].min(axis=1)
    expected = min(1.0, (above + below).min()) if outside.any() else 0.0
    found = sampler.outside_probability(allowed)
    assert found == pytest.approx(expected, abs=10 * ATOL[dtype])


def test_the_largest_gain_is_of_arms_that_compete_and_are_not_left_out():
    posterior = Problem().posterior
    mean, variance = posterior.mean, posterior.variance
    for allowed in (torch.ones_like(SOME), SOME, torch.zeros_like(SOME)):
        top = largest(mean.masked_fill(~allowed, -torch.inf), 2)
        is_best = torch.arange(NUM_ARMS) == top.arms[0]
        gain = expected_rise(mean, variance, NOISE, top, is_best)
        gain = gain.masked_fill(~allowed, -torch.inf)
        for without in (longs(), gain.argsort(descending=True)[:4]):
            expected = gain.index_fill(0, without, -torch.inf).max()
            assert posterior.largest_gain(top, allowed, without) == expected


NUMBERED = torch.arange(12).double().unsqueeze(-1)


def test_a_kernel_that_is_not_positive_semidefinite_is_refused():
    """Two arms are correlated with a third by more than they allow each other."""
    kernel = PrecomputedKernel(torch.eye(12).double())
    kernel.covariance[[3, 9, 8, 9], [9, 3, 9, 8]] = 0.9
    posterior = ArmPosterior(NUMBERED, kernel, NOISE)
    pulled, ones = longs(3, 8), torch.ones(2).double()
    with pytest.raises(InputDataError, match=r"left a variance of -6\.2e-01 times"):
        posterior.update(pulled, pulled, ones, ones)


@pytest.mark.parametrize("bad", [torch.nan, -0.5])
def test_a_prior_variance_that_no_kernel_has_is_refused_by_its_arm(bad):
    kernel = PrecomputedKernel(torch.eye(12).double())
    kernel.covariance[9, 9] = bad
    with pytest.raises(InputDataError, match=rf"got {bad} for arm 9\."):
        ArmPosterior(NUMBERED, kernel, NOISE)
