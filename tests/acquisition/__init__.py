"""A small GP with fixed hyper-parameters, as a BoTorch model and in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from numpy.typing import NDArray
from torch import Tensor

from tests.reference import exact_posterior


LENGTHSCALE = 0.4
NOISE = 0.05


def standardized_data(
    num_points: int, num_features: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return random inputs and standardized rewards, which BoTorch takes as they are.

    The last input repeats the first one.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_points, num_features, dtype=torch.float64, generator=generator)
    X[-1] = X[0]
    Y = torch.randn(num_points, 1, dtype=torch.float64, generator=generator)
    return X, (Y - Y.mean()) / Y.std()


def fixed_gp(
    train_X: Tensor,
    train_Y: Tensor,
    noise: float = NOISE,
    model_class: type[SingleTaskGP] = SingleTaskGP,
    **options: Any,
) -> SingleTaskGP:
    """Return a zero-mean GP with an RBF kernel; nothing is fitted or transformed."""
    covar_module = RBFKernel().to(train_X)
    covar_module.lengthscale = LENGTHSCALE
    likelihood = GaussianLikelihood().to(train_X)
    likelihood.noise = noise
    options |= {"likelihood": likelihood, "covar_module": covar_module}
    model = model_class(train_X, train_Y, outcome_transform=None, **options)
    model.mean_module.constant.data.zero_()
    return model


def rbf_gram(X1: NDArray[np.float64], X2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gram matrix of the kernel of ``fixed_gp``."""
    square_distances = ((X1[:, None] - X2[None]) ** 2).sum(-1)
    return np.exp(-square_distances / (2 * LENGTHSCALE**2))


def exact_moments(
    train_X: Tensor, train_Y: Tensor, X: Tensor, noise: float = NOISE
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of the exact GP at ``X``, by dense algebra."""
    mean, covariance = exact_joint(train_X, train_Y, X.numpy(), noise)
    return mean, covariance.diagonal()


def exact_joint(
    train_X: Tensor, train_Y: Tensor, points: NDArray[np.float64], noise: float = NOISE
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and covariance of the exact GP at points, by dense algebra."""
    observed, y = train_X.numpy(), train_Y.numpy()[:, 0]
    K, k = rbf_gram(observed, observed), rbf_gram(observed, points)
    noises = np.full(len(observed), noise)
    return exact_posterior(K, k, rbf_gram(points, points), noises, y)
