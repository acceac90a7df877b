"""Draws over arms against dense Gaussians, up to a stated Monte Carlo error."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from botorch_bkb.posteriors import arm_sampler, ArmSampler
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from tests.helpers import LargestTensor
from tests.reference import dtc_parts


NOISE = 0.1
NUM_DRAWS = 20_000
# Of all the means and covariances of one comparison, some 400 numbers, the largest
# standardized error exceeds this with a probability under 1e-3.
MAX_Z = 4.8
# Relative to the prior variance: what rounding adds to a Monte Carlo error.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
EPS = {dtype: torch.finfo(dtype).eps for dtype in ROUNDING}
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
both_caches = pytest.mark.parametrize("max_bytes", [0, 2**31], ids=["chunks", "cache"])


def rbf(lengthscale=0.3):
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


class Problem:
    """Random arms, pulls and inducing arms, and the dense posterior of any choice."""

    def __init__(self, seed=0, num_arms=25, num_pulled=8, kernel=None):
        self.generator = torch.Generator().manual_seed(seed)
        self.arms = torch.rand(
            num_arms, 2, generator=self.generator, dtype=torch.double
        )
        self.kernel = rbf() if kernel is None else kernel.double()
        self.K = self.kernel(self.arms).to_dense().detach().numpy()
        order = torch.randperm(num_arms, generator=self.generator)
        self.pulled = order[:num_pulled].sort().values
        self.counts = torch.randint(1, 5, (num_pulled,), generator=self.generator)
        self.sums = self.counts * torch.randn(
            num_pulled, generator=self.generator, dtype=torch.double
        )

    def posterior(self, inducing, dtype=torch.float64, max_bytes=2**31):
        posterior = ArmPosterior(
            self.arms.to(dtype), self.kernel.to(dtype), NOISE, max_bytes
        )
        posterior.update(
            inducing, self.pulled, self.counts.to(dtype), self.sums.to(dtype)
        )
        self.kernel.double()
        return posterior

    def dense(self, inducing, pending=()):
        """Return mean, covariance and projected covariance of all arms."""
        seen, weights = self.pulled.tolist(), (self.counts / NOISE).tolist()
        targets = (self.sums / self.counts).tolist()
        for arm in pending:
            seen, weights = [*seen, arm], [*weights, 1 / NOISE]
            targets = [*targets, 0.0]
        S = sorted({*inducing.tolist(), *pending})
        K = self.K
        parts = (K[np.ix_(S, S)], K[np.ix_(S, seen)], K[S], K)
        return dtc_parts(*parts, np.array(weights), np.array(targets))


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


# Moments ------------------------------------------------------------------------------


@both_dtypes
@both_caches
@pytest.mark.parametrize("part", ["projected", "full"])
@pytest.mark.parametrize("num_inducing", [1, 8])
@pytest.mark.parametrize("pending", [(), (2, 2, 19)], ids=["none", "pending"])
def test_draws_have_the_moments_of_the_posterior(
    dtype, max_bytes, part, num_inducing, pending
):
    """With the residual or without, and with pending arms that join."""
    problem = Problem()
    inducing = problem.pulled[:num_inducing]
    if pending:  # a pulled arm that is inducing and one that is not, too
        pending = [*pending, int(problem.pulled[0]), int(problem.pulled[5])]
    posterior = problem.posterior(inducing, dtype, max_bytes)
    sampler = ArmSampler(posterior, torch.tensor(pending).long(), part)
    draws = sampler.draw_values(NUM_DRAWS, problem.generator)
    assert (draws.dtype, draws.shape) == (dtype, (NUM_DRAWS, 25))
    mean = problem.dense(inducing)[0]  # pending pulls bring the mean, and leave it
    _, *covariances = problem.dense(inducing, pending)
    covariance = covariances[part == "projected"]
    rounding = 10 * ROUNDING[dtype]
    assert largest_z(draws, mean, covariance, rounding) < MAX_Z
    chosen = torch.tensor([3, 20, 7])
    some = sampler.draw_values(NUM_DRAWS, problem.generator, chosen)
    expected = covariance[np.ix_(chosen, chosen)]
    assert largest_z(some, mean[chosen], expected, rounding) < MAX_Z


def test_promising_arms_are_those_of_the_largest_bounds(monkeypatch):
    monkeypatch.setattr(arm_sampler, "POOL_SIZE", 6)
    problem = Problem()
    posterior = problem.posterior(problem.pulled)
    sampler = ArmSampler(posterior, covariance="full")
    mean, covariance, _ = problem.dense(problem.pulled)
    bounds = mean + 3 * np.sqrt(np.diag(covariance))
    assert sampler.promising_arms().tolist() == sorted(bounds.argsort()[-6:])
    allowed = torch.zeros(25, dtype=torch.bool)
    allowed[[1, 4, 9]] = True
    assert sampler.promising_arms(allowed).tolist() == [1, 4, 9]
    best = sampler.draw_best_arms(200, problem.generator)
    assert set(best.tolist()) <= set(sampler.promising_arms().tolist())


@pytest.mark.parametrize("pool_size", [3, 8, 15, 25])
def test_the_probability_outside_is_bounded(monkeypatch, pool_size):
    """Against joint draws over all arms; nothing is outside of a pool of all."""
    for seed in range(5):
        problem = Problem(seed)
        posterior = problem.posterior(problem.pulled[:6])
        with monkeypatch.context() as patch:
            patch.setattr(arm_sampler, "POOL_SIZE", pool_size)
            sampler = ArmSampler(posterior, covariance="full")
            bound, pool = sampler.outside_probability(), sampler.promising_arms()
            draws = sampler.draw_values(4000, problem.generator)
        share = (~torch.isin(draws.argmax(dim=-1), pool)).double().mean().item()
        assert share <= bound + 0.03
        assert 0 <= bound <= 1
        assert (bound == 0) == (pool_size == 25)


def test_a_posterior_without_inducing_arms_is_its_mean():
    problem = Problem()
    sampler = ArmSampler(ArmPosterior(problem.arms, problem.kernel, NOISE))
    assert (sampler.draw_values(3, problem.generator) == 0).all()
    assert sampler.draw_best_arms(3, problem.generator).tolist() == [0, 0, 0]


@both_dtypes
@pytest.mark.parametrize("part", ["projected", "full"])
@pytest.mark.parametrize("pending", [(), (2, 2, 19)], ids=["none", "pending"])
def test_a_scale_multiplies_the_deviations_from_the_mean(dtype, part, pending):
    problem = Problem()
    posterior = problem.posterior(problem.pulled[:5], dtype)
    pending = torch.tensor(pending, dtype=torch.long)
    mean = posterior.means(torch.arange(25))
    full = ArmSampler(posterior, pending, part)
    full = full.draw_values(40, torch.Generator().manual_seed(3))
    for scale in (0.0, 0.7, 2.0):
        sampler = ArmSampler(posterior, pending, part, scale)
        values = sampler.draw_values(40, torch.Generator().manual_seed(3))
        expected = mean + scale * (full - mean)
        torch.testing.assert_close(values, expected, rtol=0, atol=100 * EPS[dtype])
        best = sampler.draw_best_arms(40, torch.Generator().manual_seed(3))
        if part != "full":  # whose draws depend on the arms that compete
            assert torch.equal(best, values.argmax(dim=-1))
    best = ArmSampler(posterior, pending, part, scale=0.0).draw_best_arms(
        3, problem.generator
    )
    assert torch.equal(best, mean.argmax().expand(3))


# Best arms ----------------------------------------------------------------------------


@both_caches
@pytest.mark.parametrize("num_allowed", [None, 1, 9])
def test_best_arms_are_the_argmax_of_the_values(max_bytes, num_allowed):
    problem = Problem()
    posterior = problem.posterior(problem.pulled, max_bytes=max_bytes)
    sampler = ArmSampler(posterior, torch.tensor([2, 5]))
    values = sampler.draw_values(500, torch.Generator().manual_seed(5))
    allowed = None
    if num_allowed is not None:
        allowed = torch.zeros(25, dtype=torch.bool)
        allowed[torch.randperm(25, generator=problem.generator)[:num_allowed]] = True
        values[:, ~allowed] = -torch.inf
    best = sampler.draw_best_arms(500, torch.Generator().manual_seed(5), allowed)
    assert torch.equal(best, values.argmax(dim=-1))


def test_no_tensor_is_larger_than_the_features():
    """Never A x A, and never A x (number of draws) for the best arms."""
    problem = Problem(num_arms=3000, num_pulled=20)
    sampler = ArmSampler(
        problem.posterior(problem.pulled, max_bytes=0), torch.arange(10)
    )
    with LargestTensor() as largest:
        sampler.draw_best_arms(5000, problem.generator)
    # A chunk of 2 MiB with the appended columns of the pending arms.
    assert largest.nbytes <= 2**21 * 1.1


# Errors -------------------------------------------------------------------------------


def test_bad_arguments_are_refused():
    problem = Problem()
    posterior = problem.posterior(problem.pulled)
    with pytest.raises(InputDataError, match="Expected `covariance` to be 'projected'"):
        ArmSampler(posterior, covariance="exact")
    with pytest.raises(InputDataError, match="`scale` to be a number from 0"):
        ArmSampler(posterior, scale=-0.1)
    sampler = ArmSampler(posterior)
    with pytest.raises(InputDataError, match="`num_draws` to be an integer"):
        sampler.draw_values(0, problem.generator)
    few, none = torch.ones(4, dtype=torch.bool), torch.zeros(25, dtype=torch.bool)
    for ask in (
        lambda allowed: sampler.draw_best_arms(3, problem.generator, allowed),
        sampler.outside_probability,
    ):
        with pytest.raises(BotorchTensorDimensionError, match=r"of shape \(25,"):
            ask(few)
        with pytest.raises(InputDataError, match="none is allowed"):
            ask(none)
