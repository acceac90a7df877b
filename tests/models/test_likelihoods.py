"""Likelihoods that say their noise only when they are called."""

import warnings

import gpytorch
import numpy as np
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.likelihoods.sparse_outlier_noise import (
    SparseOutlierGaussianLikelihood,
)
from botorch.models.relevance_pursuit import backward_relevance_pursuit
from botorch.utils.constraints import NonTransformedInterval
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import _GaussianLikelihoodBase
from gpytorch.likelihoods.noise_models import HeteroskedasticNoise, HomoskedasticNoise
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_bkb.acquisition import confidence_state_from_model
from botorch_bkb.models import SingleTaskDTCGP
from tests.helpers import gram_matrix, seeded
from tests.models.test_dtc_gp import dense_answer, make_kernel


OUTLIERS = [3, 17]
RBF = make_kernel("rbf")


def make_data():
    stream = seeded()
    X = torch.rand(30, 2, generator=stream, dtype=torch.double)
    noise = 0.05 * torch.randn(30, 1, generator=stream, dtype=torch.double)
    Y = torch.sin(4 * X.sum(dim=-1, keepdim=True)) + noise
    Y[OUTLIERS[0]] += 4
    Y[OUTLIERS[1]] -= 5
    X_test = torch.rand(6, 2, generator=stream, dtype=torch.double)
    return X, Y, X_test


class NoiseModel(gpytorch.Module):
    """Noise of ``0.05 + x_1``, before a constraint of the least noise."""

    def forward(self, x):
        eye = torch.eye(x.shape[-2]).to(x)
        return MultivariateNormal(0.05 + x[..., 0], eye)


def varying_noise():
    constraint = Positive(transform=None)
    noise = HeteroskedasticNoise(NoiseModel(), noise_constraint=constraint)
    return _GaussianLikelihoodBase(noise)


def robust(dim=30, indices=None):
    constraint = NonTransformedInterval(1e-5, 1e-1, initial_value=1e-3)
    base = HomoskedasticNoise(noise_constraint=constraint).double()
    return SparseOutlierGaussianLikelihood(base, dim, outlier_indices=indices)


def plain(X, Y, likelihood, **options):
    options = {"mean_module": ZeroMean(), "outcome_transform": None, **options}
    return SingleTaskDTCGP(X, Y, likelihood=likelihood, covar_module=RBF, **options)


def check(model, X_test, X, Y, S, noise):
    """Compare with the dense posterior of some data and noise variances."""
    with torch.no_grad():
        posterior = model.posterior(X_test)
    mean, covariance = dense_answer(RBF, X, Y, S, X_test, noise)
    np.testing.assert_allclose(posterior.mean.squeeze(-1), mean, atol=1e-7)
    np.testing.assert_allclose(
        posterior.variance.squeeze(-1), np.diag(covariance), atol=1e-7
    )


@pytest.mark.parametrize("num_inducing", [10, 30])
def test_noise_that_varies_with_the_input_is_asked_for(num_inducing):
    X, Y, X_test = make_data()
    S = X[:num_inducing]
    model = plain(X, Y, varying_noise(), inducing_points=S)
    noise = 0.05 + X[:, 0]
    check(model, X_test, X, Y, S, noise.numpy())
    scores = model.posterior(X.unsqueeze(-2)).variance.flatten().detach() / noise
    torch.testing.assert_close(model.leverage_scores(), scores)
    torch.testing.assert_close(model.leverage_scores(X), scores)
    # New observations have the noise of their own inputs.
    conditioned = model.condition_on_observations(X_test[:2], Y[:2])
    data = torch.cat([X, X_test[:2]]), torch.cat([Y, Y[:2]])
    S = torch.cat([S, X_test[:2]])
    noise = 0.05 + data[0][:, 0].numpy()
    check(conditioned, X_test[2:], *data, S, noise)


def robust_noise(model, X, S):
    """Base noise, and rho times the DTC prior variance plus noise for an outlier."""
    base = model.likelihood.noise_covar.base_noise.noise.item()
    K_sx = gram_matrix(RBF, S, X)
    prior = (K_sx * np.linalg.solve(gram_matrix(RBF, S, S), K_sx)).sum(0)
    rho = model.likelihood.noise_covar.rho.detach().numpy()
    return base + (prior + base) * rho


@pytest.mark.parametrize("num_inducing", [10, 30])
def test_the_variance_of_outliers_is_that_of_training(num_inducing):
    X, Y, X_test = make_data()
    S = X[:num_inducing]
    likelihood = robust(indices=OUTLIERS)
    likelihood.noise_covar.raw_rho.data[:] = torch.tensor([0.5, 0.9])
    model = plain(X, Y, likelihood, inducing_points=S)
    assert likelihood.noise_covar._cached_train_inputs is None  # not called yet
    check(model, X_test, X, Y, S, robust_noise(model, X, S))
    # Of pulls yet to come none is an outlier, as BoTorch says by a warning.
    with pytest.warns(InputDataWarning, match="Robust rho not applied"):
        scores = model.leverage_scores(X_test)
    variance = model.posterior(X_test.unsqueeze(-2)).variance.flatten().detach()
    torch.testing.assert_close(scores, variance / 1e-3)


def test_relevance_pursuit_finds_the_outliers():
    X, Y, X_test = make_data()
    few = [*range(8), OUTLIERS[1]]
    X, Y = X[few], Y[few]
    model = SingleTaskDTCGP(X, Y, likelihood=robust(9), inducing_points=X[:6])
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    module = model.likelihood.noise_covar
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting a tensor", UserWarning)
        backward_relevance_pursuit(module, mll, sparsity_levels=[9, 2])
    assert sorted(module.support) == [OUTLIERS[0], 8]
    value = qLogExpectedImprovement(model, best_f=1.0)(X_test.unsqueeze(-2))
    assert value.isfinite().all()


def test_confidence_widths_ask_for_one_noise_variance():
    X, Y, _ = make_data()
    model = plain(X, Y, robust())
    with pytest.raises(UnsupportedError, match="got none from its SparseOutlier"):
        confidence_state_from_model(model)
