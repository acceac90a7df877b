"""The factored posteriors against NumPy's dense ones."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.operators import DenseLinearOperator, DiagLinearOperator

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
@pytest.mark.parametrize("batch_shape", [(), (4,), (2, 1, 2)])
@pytest.mark.parametrize("q", [1, 2])
def test_a_batch_of_points_is_a_loop_over_it(sparse, batch_shape, q):
    problem = Problem(1)
    posterior = problem.posterior(sparse)
    X = torch.rand(*batch_shape, q, 2, generator=torch.Generator().manual_seed(0))
    X = 2 * X.double()
    found = posterior(X)
    assert found.mean.shape == X.shape[:-1]
    is_diagonal = isinstance(found.lazy_covariance_matrix, DiagLinearOperator)
    assert is_diagonal == (q == 1)
    means, covariances = found.mean.detach(), found.covariance_matrix.detach()
    for index in np.ndindex(*batch_shape):
        expected = problem.expected(sparse, X[index])
        np.testing.assert_allclose(means[index], expected.mean, atol=1e-8)
        np.testing.assert_allclose(covariances[index], expected.covariance, atol=1e-8)


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


@each_kind
def test_an_input_that_was_seen_before_adds_to_its_precision(sparse):
    problem = Problem(3)
    again = problem.observations(slice(4, 5))
    posterior = problem.posterior(sparse).condition(again)
    doubled = Problem(3)
    doubled.W[4] *= 2
    S = torch.cat([problem.S, again.inputs])
    assert_is(posterior, doubled.expected(sparse, problem.test, S=S), problem.test)


@each_kind
def test_a_batch_of_fantasies_is_a_loop_over_it(sparse):
    problem = Problem(4)
    posterior = problem.posterior(sparse)
    X = problem.new.unsqueeze(1)  # 3 x 1 x d
    means = torch.linspace(-1, 1, 6).double().reshape(2, 3, 1)
    W = torch.ones(3, 1).double()
    batch = posterior.condition(Observations(X, W, means))(problem.test)
    assert batch.mean.shape == (2, 3, 4)
    for i, j in np.ndindex(2, 3):
        one = Observations(X[j], W[j], means[i, j])
        found = posterior.condition(one)(problem.test)
        torch.testing.assert_close(batch.mean[i, j], found.mean)
        expected = found.covariance_matrix
        torch.testing.assert_close(batch.covariance_matrix[i, j], expected)


@each_kind
@given(seed=st.integers(0, 999))
@settings(max_examples=10)
def test_without_reprojection_conditioning_is_the_rule_of_bayes(sparse, seed):
    problem = Problem(seed)
    both = torch.cat([problem.new, problem.test])
    before = problem.posterior(sparse)(both)
    mean, C = before.mean.detach().numpy(), before.covariance_matrix.detach().numpy()
    new = problem.observations(slice(6, 9))
    noise = 1 / new.precisions.numpy()
    gain = C[:, :3] @ np.linalg.inv(C[:3, :3] + np.diag(noise))
    found = problem.posterior(sparse).condition(new, reproject=False)(both)
    expected = mean + gain @ (new.means.numpy() - mean[:3])
    np.testing.assert_allclose(found.mean.detach(), expected, atol=1e-8)
    covariance = found.covariance_matrix.detach()
    np.testing.assert_allclose(covariance, C - gain @ C[:3], atol=1e-8)


def test_one_inducing_point_and_one_observation_have_a_formula():
    kernel = rbf()
    x, test = torch.zeros(1, 2).double(), torch.tensor([[0.5, 0.0]]).double()
    told = Observations(x, torch.tensor([4.0]).double(), torch.tensor([3.0]).double())
    k = np.exp(-0.5)  # at a distance of one lengthscale
    for posterior in (
        ExactPosterior.from_observations(kernel, told),
        SparsePosterior.from_observations(kernel, told, x),
    ):
        found = posterior(test)
        assert found.mean.item() == pytest.approx(k * 3 * 4 / 5, rel=1e-9)
        assert found.variance.item() == pytest.approx(1 - k**2 * 4 / 5, rel=1e-9)


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


@each_kind
def test_gradients_reach_the_kernel_and_the_points(sparse):
    problem = Problem(8)
    X = problem.test[:1].clone().requires_grad_()
    mean = problem.posterior(sparse)(X).mean.sum()
    at_point, at_scale = torch.autograd.grad(mean, [X, problem.kernel.raw_lengthscale])
    step = 1e-5 * torch.eye(2).double()
    means = [
        [problem.expected(sparse, x.detach()).mean[0] for x in (X + h, X - h)]
        for h in step
    ]
    differences = np.array([(up - down) / 2e-5 for up, down in means])
    np.testing.assert_allclose(at_point.squeeze(0), differences, atol=1e-6)
    assert at_scale.item() != 0.0
