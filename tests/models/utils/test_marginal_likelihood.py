"""Log densities at the cost of the unique inputs, against NumPy's dense ones."""

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.operators import LowRankRootLinearOperator, to_linear_operator

from botorch_bkb.models.utils.marginal_likelihood import (
    low_rank_log_prob,
    repeat_rows,
    replicated_log_prob,
    ReplicatedMultivariateNormal,
)
from tests.helpers import LargestTensor
from tests.reference import dtc_log_marginal_likelihood


RTOL = {torch.double: 1e-9, torch.float: 1e-4}
each_dtype = pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)


class Problem:
    """Features of ``P`` inputs, and ``n`` observations of them, each at least once."""

    def __init__(self, seed, num_inputs=5, num_rows=12, m=3, dtype=torch.double):
        stream = np.random.default_rng(seed)
        self.Z = stream.normal(size=(num_inputs, m)) / np.sqrt(m)
        more = stream.integers(num_inputs, size=num_rows - num_inputs)
        inverse = np.concatenate([np.arange(num_inputs), more])
        self.inverse = stream.permutation(inverse)
        self.diff = stream.normal(size=num_rows)
        self.noise = stream.uniform(0.05, 1.0, size=num_rows)
        self.dtype = dtype

    @property
    def dense(self):
        return (self.Z @ self.Z.T)[np.ix_(self.inverse, self.inverse)]

    def expected(self, noise=None):
        noise = self.noise if noise is None else noise
        return dtc_log_marginal_likelihood(self.dense, noise, self.diff)

    def tensor(self, values):
        return torch.as_tensor(values).to(self.dtype)

    def ways(self, noise=None):
        """Return the log density by features, and by the Gram matrix of the inputs."""
        noise = self.tensor(self.noise) if noise is None else noise
        Z, diff = self.tensor(self.Z), self.tensor(self.diff)
        inverse = torch.as_tensor(self.inverse)
        return (
            low_rank_log_prob(Z, inverse, diff, noise),
            replicated_log_prob(Z @ Z.mT, inverse, diff, noise),
        )


@each_dtype
@given(
    seed=st.integers(0, 999),
    sizes=st.sampled_from([(1, 1, 1), (1, 6, 2), (4, 4, 2), (5, 12, 7), (6, 20, 1)]),
)
@settings(max_examples=25)
def test_log_densities_are_those_of_all_rows(dtype, seed, sizes):
    num_inputs, num_rows, m = sizes
    problem = Problem(seed, num_inputs, num_rows, m, dtype)
    for found in problem.ways():
        assert (found.dtype, found.shape) == (dtype, ())
        np.testing.assert_allclose(
            found, problem.expected(), rtol=RTOL[dtype], atol=20 * RTOL[dtype]
        )


def test_the_noise_of_every_row_has_its_gradient():
    """By differences: the scatter within repeats and the normalizers count."""
    problem = Problem(1)
    noise = torch.as_tensor(problem.noise).requires_grad_()
    step = 1e-5 * np.eye(len(problem.noise))
    expected = [
        (problem.expected(problem.noise + e) - problem.expected(problem.noise - e))
        / 2e-5
        for e in step
    ]
    for found in problem.ways(noise):
        (gradient,) = torch.autograd.grad(found, noise)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def likelihoods(noise):
    common = GaussianLikelihood().double()
    common.noise = torch.tensor(0.25).double()
    rows = FixedNoiseGaussianLikelihood(torch.as_tensor(noise))
    return (common, np.full(len(noise), 0.25)), (rows, noise)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_stock_likelihood_keeps_the_structure(sparse):
    problem = Problem(3)
    Z, loc = torch.as_tensor(problem.Z), torch.linspace(-1, 1, 12).double()
    base = LowRankRootLinearOperator(Z) if sparse else to_linear_operator(Z @ Z.mT)
    covariance = repeat_rows(base, torch.as_tensor(problem.inverse))
    prior = ReplicatedMultivariateNormal(loc, covariance)
    for likelihood, noise in likelihoods(problem.noise):
        marginal = likelihood(prior)
        assert isinstance(marginal, ReplicatedMultivariateNormal)
        found = marginal.log_prob(loc + torch.as_tensor(problem.diff)).item()
        assert found == pytest.approx(problem.expected(noise), rel=1e-9)


def test_no_tensor_has_a_number_of_every_pair_of_rows():
    problem = Problem(5, num_inputs=6, num_rows=400)
    covariance = repeat_rows(
        LowRankRootLinearOperator(torch.as_tensor(problem.Z)),
        torch.as_tensor(problem.inverse),
    )
    prior = ReplicatedMultivariateNormal(torch.zeros(400).double(), covariance)
    (likelihood, noise), _ = likelihoods(problem.noise)
    with LargestTensor() as largest, torch.no_grad():
        found = likelihood(prior).log_prob(torch.as_tensor(problem.diff))
    assert found.item() == pytest.approx(problem.expected(noise), rel=1e-9)
    assert largest.nbytes <= 8 * 400 * 3
