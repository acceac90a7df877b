"""The factored posteriors against NumPy's dense ones."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.operators import DenseLinearOperator

from botorch_bkb.models.utils import prediction
from botorch_bkb.models.utils.prediction import (
    ExactPosterior,
    nystrom_features,
    Observations,
    SparsePosterior,
)
from tests.helpers import gram_matrix
from tests.reference import dtc_parts, exact_posterior, nystrom_gram


ATOL = {torch.double: 1e-8, torch.float: 2e-3}
each_dtype = pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
each_kind = pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "exact"])


def rbf(dtype=torch.double):
    kernel = RBFKernel().to(dtype)
    kernel.lengthscale = 0.5
    return kernel


class Problem:
    """Six observed inputs on a grid, of which three are inducing, and four others."""

    def __init__(self, seed=0, dtype=torch.double):
        stream = np.random.default_rng(seed)
        grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), -1).reshape(-1, 2)
        points = torch.as_tensor(stream.permutation(grid) / 2).to(dtype)
        self.X, self.new, self.test = points[:6], points[6:9], points[9:13]
        self.S = self.X[[4, 0, 3]]
        self.W = torch.as_tensor(stream.integers(1, 9, size=9) / 2).to(dtype)
        self.y = torch.as_tensor(stream.normal(size=9)).to(dtype)
        self.kernel = rbf(dtype)

    def observations(self, rows=slice(6)):
        X = torch.cat([self.X, self.new])
        return Observations(X[rows], self.W[rows], self.y[rows])

    def posterior(self, sparse, rows=slice(6)):
        if not sparse:
            return ExactPosterior.from_observations(
                self.kernel, self.observations(rows)
            )
        return SparsePosterior.from_observations(
            self.kernel, self.observations(rows), self.S
        )

    def expected(self, sparse, X, rows=slice(6), S=None):
        """Return mean, covariance, projected covariance and log determinant."""
        observed, W, y = self.observations(rows)
        W, y = W.numpy(), y.numpy()
        S = observed if not sparse else self.S if S is None else S
        parts = [(S, S), (S, observed), (S, X), (X, X)]
        blocks = [gram_matrix(self.kernel, *pair) for pair in parts]
        Q = nystrom_gram(*blocks[:2]) * np.sqrt(np.outer(W, W))
        log_det = np.linalg.slogdet(np.eye(len(W)) + Q)[1]
        parts = dtc_parts(*blocks, W, y)
        if not sparse:
            K, cross = gram_matrix(self.kernel, observed), blocks[2]
            parts = (*exact_posterior(K, cross, blocks[3], 1 / W, y), None)
        return SimpleNamespace(
            **dict(zip(["mean", "covariance", "projected"], parts, strict=True)),
            log_det=log_det,
        )


def assert_is(posterior, expected, X, dtype=torch.double):
    atol = ATOL[dtype]
    found = posterior(X)
    assert found.mean.dtype == dtype
    np.testing.assert_allclose(found.mean.detach(), expected.mean, atol=atol)
    covariance = found.covariance_matrix.detach()
    np.testing.assert_allclose(covariance, expected.covariance, atol=atol)
    log_det = posterior.log_det.detach()
    np.testing.assert_allclose(log_det, expected.log_det, rtol=atol, atol=atol)


@each_dtype
@each_kind
@given(seed=st.integers(0, 999))
@settings(max_examples=10)
def test_moments_are_those_of_the_dense_posterior(sparse, dtype, seed):
    problem = Problem(seed, dtype)
    posterior = problem.posterior(sparse)
    expected = problem.expected(sparse, problem.test)
    assert_is(posterior, expected, problem.test, dtype)
    if sparse:
        projected = posterior.projected_variance(problem.test).detach()
        diagonal = expected.projected.diagonal()
        np.testing.assert_allclose(projected, diagonal, atol=ATOL[dtype])


@each_kind
@pytest.mark.parametrize("num_new", [0, 1, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_appended_observations_are_as_if_they_had_been_there(sparse, num_new, at_once):
    """New inputs join the inducing points, and old data speak through them too."""
    problem = Problem(2)
    posterior = problem.posterior(sparse)
    blocks = [slice(6, 6 + num_new)]
    if not at_once:
        blocks = [slice(row, row + 1) for row in range(6, 6 + num_new)]
    for rows in blocks:
        posterior = posterior.condition(problem.observations(rows))
    S = torch.cat([problem.S, problem.new[:num_new]])
    expected = problem.expected(sparse, problem.test, slice(6 + num_new), S)
    assert_is(posterior, expected, problem.test)


def test_inducing_points_twice_are_one():
    problem = Problem(5)
    twice = torch.cat([problem.S, problem.S[:2], problem.S])
    features = nystrom_features(problem.kernel, twice)
    assert features.L.shape == (3, 3)
    posterior = SparsePosterior.from_observations(
        problem.kernel, problem.observations(), twice
    )
    assert_is(posterior, problem.expected(True, problem.test), problem.test)


def test_no_inducing_points_leave_the_prior():
    problem = Problem(6)
    problem.S = problem.S[:0]
    posterior = problem.posterior(True)
    found = posterior(problem.test)
    assert found.mean.tolist() == [0.0] * 4
    prior = gram_matrix(problem.kernel, problem.test)
    np.testing.assert_allclose(found.covariance_matrix.detach(), prior, atol=1e-12)
    assert posterior.log_det.item() == 0.0


@each_kind
def test_a_covariance_of_many_points_stays_lazy(sparse, monkeypatch):
    problem = Problem(7)
    posterior = problem.posterior(sparse)
    dense = posterior(problem.test)
    assert isinstance(dense.lazy_covariance_matrix, DenseLinearOperator)
    monkeypatch.setattr(prediction, "MAX_DENSE_POINTS", 3)
    lazy = posterior(problem.test)
    assert not isinstance(lazy.lazy_covariance_matrix, DenseLinearOperator)
    torch.testing.assert_close(lazy.variance, dense.variance)
    torch.testing.assert_close(lazy.covariance_matrix, dense.covariance_matrix)
