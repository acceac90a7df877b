"""Draws over arms against dense Gaussians, up to a stated Monte Carlo error."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)

from botorch_bkb.arms import ProductArms
from botorch_bkb.posteriors import arm_sampler, ArmSampler, ProductPosterior
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from tests.helpers import LargestTensor, random_points, seeded
from tests.posteriors import each_dtype, longs, NOISE, NUM_ARMS, Problem


NUM_DRAWS = 20_000
# Of all the means and covariances of one comparison, some 400 numbers, the largest
# standardized error exceeds this with a probability under 1e-3.
MAX_Z = 4.8
# Relative to the prior variance: what rounding adds to a Monte Carlo error.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
EPS = {dtype: torch.finfo(dtype).eps for dtype in ROUNDING}
both_caches = pytest.mark.parametrize("max_bytes", [0, 2**31], ids=["chunks", "cache"])


def largest_z(draws, mean, covariance, rounding=1e-9):
    """Return the largest standardized error of the moments of Gaussian draws.

    The standard error of a mean is sqrt(C_ii / n), and that of a covariance about the
    known mean sqrt((C_ii C_jj + C_ij^2) / n).
    """
    n = len(draws)
    centered = draws.double().numpy() - mean
    scale = np.diag(covariance)
    error = np.sqrt(scale / n) + rounding
    z_mean = np.abs(centered.mean(axis=0)) / error
    error = np.sqrt((np.outer(scale, scale) + covariance**2) / n) + rounding
    z_covariance = np.abs(centered.T @ centered / n - covariance) / error
    return max(z_mean.max(), z_covariance.max())


@each_dtype
@both_caches
@pytest.mark.parametrize("part", ["projected", "full"])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_draws_have_the_moments_of_the_posterior(
    dtype, max_bytes, part, exact, pending
):
    """With the residual or without, and with pending arms that join."""
    problem = Problem(1, dtype, exact, max_bytes=max_bytes)
    out = []
    if pending:  # new arms, one of them twice, inducing ones and pulled ones
        new = np.flatnonzero(problem.counts == 0)
        out = [*new[2:4], new[2], problem.S[0], *np.flatnonzero(problem.counts)[:2]]
    sampler = ArmSampler(problem.posterior, longs(*out), part)
    draws = sampler.draw_values(NUM_DRAWS, seeded())
    assert (draws.dtype, draws.shape) == (dtype, (NUM_DRAWS, NUM_ARMS))
    joined = sorted(set(out) - set(problem.S))
    covariance = problem.dense(joined, out)[part == "projected"]
    mean = problem.mean  # pending pulls bring the mean, and leave it
    assert largest_z(draws, mean, covariance, ROUNDING[dtype]) < MAX_Z
    chosen = longs(3, 12, 7)
    some = sampler.draw_values(NUM_DRAWS, seeded(1), chosen)
    expected = covariance[np.ix_(chosen, chosen)]
    assert largest_z(some, mean[chosen], expected, ROUNDING[dtype]) < MAX_Z


def test_promising_arms_are_those_of_the_largest_bounds(monkeypatch):
    monkeypatch.setattr(arm_sampler, "POOL_SIZE", 6)
    problem = Problem()
    sampler = ArmSampler(problem.posterior, covariance="full")
    bounds = problem.mean + 3 * np.sqrt(np.diag(problem.dense()[0]))
    assert sampler.promising_arms().tolist() == sorted(bounds.argsort()[-6:])
    allowed = torch.zeros(NUM_ARMS, dtype=torch.bool)
    allowed[[1, 4, 9]] = True
    assert sampler.promising_arms(allowed).tolist() == [1, 4, 9]
    best = sampler.draw_best_arms(200, seeded())
    assert set(best.tolist()) <= set(sampler.promising_arms().tolist())


def test_a_posterior_without_inducing_arms_is_its_mean():
    before = Problem().posterior
    sampler = ArmSampler(ArmPosterior(before.arms, before.covar_module, NOISE))
    assert (sampler.draw_values(3, seeded()) == 0).all()
    assert sampler.draw_best_arms(3, seeded()).tolist() == [0, 0, 0]


@each_dtype
@pytest.mark.parametrize("part", ["projected", "full"])
@pytest.mark.parametrize("pending", [(), (2, 2, 11)], ids=["none", "pending"])
def test_a_scale_multiplies_the_deviations_from_the_mean(dtype, part, pending):
    posterior = Problem(dtype=dtype).posterior
    mean = posterior.means(torch.arange(NUM_ARMS))
    full = ArmSampler(posterior, longs(*pending), part).draw_values(40, seeded(3))
    for scale in (0.0, 0.7, 2.0):
        sampler = ArmSampler(posterior, longs(*pending), part, scale)
        values = sampler.draw_values(40, seeded(3))
        expected = mean + scale * (full - mean)
        torch.testing.assert_close(values, expected, rtol=0, atol=100 * EPS[dtype])
        best = sampler.draw_best_arms(40, seeded(3))
        if part != "full":  # whose draws depend on the arms that compete
            assert torch.equal(best, values.argmax(dim=-1))
        if scale == 0:
            assert torch.equal(best, mean.argmax().expand(40))


@both_caches
@pytest.mark.parametrize("num_allowed", [None, 1, 9])
def test_best_arms_are_the_argmax_of_the_values(max_bytes, num_allowed):
    sampler = ArmSampler(Problem(max_bytes=max_bytes).posterior, longs(2, 5))
    values = sampler.draw_values(500, seeded(5))
    allowed = None
    if num_allowed is not None:
        allowed = torch.zeros(NUM_ARMS, dtype=torch.bool)
        allowed[torch.randperm(NUM_ARMS, generator=seeded())[:num_allowed]] = True
        values[:, ~allowed] = -torch.inf
    best = sampler.draw_best_arms(500, seeded(5), allowed)
    assert torch.equal(best, values.argmax(dim=-1))


def test_no_tensor_is_larger_than_the_features():
    """Never A x A, and never A x (number of draws) for the best arms."""
    arms = random_points(3000, 2)
    kernel = Problem().posterior.covar_module
    posterior = ArmPosterior(arms, kernel, NOISE, 0)
    pulled, ones = torch.arange(20), torch.ones(20)
    posterior.update(pulled, pulled, ones, ones)
    sampler = ArmSampler(posterior, torch.arange(15, 25))
    with LargestTensor() as largest:
        sampler.draw_best_arms(500, seeded())
    # A chunk of 2 MiB with the appended columns of the pending arms.
    assert largest.nbytes <= 2**21 * 1.1


def test_bad_arguments_are_refused():
    posterior = Problem().posterior
    with pytest.raises(InputDataError, match="Expected `covariance` to be 'projected'"):
        ArmSampler(posterior, covariance="exact")
    with pytest.raises(InputDataError, match="`scale` to be a number from 0"):
        ArmSampler(posterior, scale=-0.1)
    sampler = ArmSampler(posterior)
    with pytest.raises(InputDataError, match="`num_draws` to be an integer"):
        sampler.draw_values(0, seeded())
    few, none = torch.ones(4, dtype=torch.bool), torch.zeros(NUM_ARMS, dtype=torch.bool)
    for ask in (
        lambda allowed: sampler.draw_best_arms(3, seeded(), allowed),
        sampler.outside_probability,
    ):
        with pytest.raises(BotorchTensorDimensionError, match=r"of shape \(17,"):
            ask(few)
        with pytest.raises(InputDataError, match="none is allowed"):
            ask(none)
    allowed = torch.ones(4, dtype=torch.bool)
    arms = ProductArms({"a": ["x", "y"], "b": ["x", "y"]})
    products = ProductPosterior(arms, arms.kernel_to_learn(), 0.1)
    with pytest.raises(UnsupportedError, match="got a product space"):
        ArmSampler(products, covariance="full").outside_probability(allowed)
