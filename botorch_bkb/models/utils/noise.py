"""The noise variances of pulls, as a likelihood gives them.

Most likelihoods have the attribute ``noise``. Others, such as BoTorch's robust
``SparseOutlierGaussianLikelihood``, give noise only when they are called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.multitask_gaussian_likelihood import (
    _MultitaskGaussianLikelihoodBase,
)
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from linear_operator.operators import AddedDiagLinearOperator
from torch import Tensor


def check_likelihood(likelihood: Likelihood | None) -> None:
    """Raise an ``UnsupportedError`` unless noise is Gaussian and of one output."""
    if likelihood is None:
        return
    several = (_MultitaskGaussianLikelihoodBase, HadamardGaussianLikelihood)
    if not isinstance(likelihood, _GaussianLikelihoodBase) or isinstance(
        likelihood, several
    ):
        raise UnsupportedError(
            "Expected `likelihood` to be a Gaussian one of one output, but got "
            f"a {type(likelihood).__name__}."
        )


def train_noise(
    likelihood: Likelihood, prior: Callable[[], MultivariateNormal], X: Tensor
) -> Tensor:
    """Return the ``n`` noise variances of the training data.

    Args:
        likelihood: A likelihood of Gaussian noise.
        prior: Gives the prior over the training data, since noise may scale with its
            variances. Called only if the likelihood does not name its noise.
        X: The ``n x d`` transformed training inputs.

    Raises:
        UnsupportedError: If there is no noise variance for each of them.
    """
    noise: Tensor | None = getattr(likelihood, "noise", None)
    if noise is None:
        covariance = likelihood(prior(), X).lazy_covariance_matrix
        if isinstance(covariance, AddedDiagLinearOperator):
            noise = covariance._diag_tensor.diagonal()
    n = X.shape[-2]
    if noise is None or tuple(noise.shape) not in ((1,), (n,)):
        found = "none" if noise is None else f"shape {tuple(noise.shape)}"
        raise UnsupportedError(
            f"Expected `likelihood` to give one noise variance, or {n}, one per row of "
            f"`train_X`, but got {found} from a {type(likelihood).__name__}."
        )
    return noise.expand(n)


def new_noise(likelihood: Likelihood, X: Tensor) -> Tensor:
    """Return noise variances that broadcast to ``... x q``, of pulls at new inputs.

    Args:
        likelihood: A likelihood of Gaussian noise.
        X: A ``... x q x d`` tensor of transformed inputs.

    Raises:
        UnsupportedError: If it knows the noise of the training data only.
    """
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        raise UnsupportedError(
            "Expected the noise variance of each new pull (`noise`, or `Yvar` of "
            "leverage scores), since this model was given `train_Yvar`, but got None."
        )
    noise = getattr(likelihood, "noise", None)
    if noise is None:
        noise = likelihood.forward(torch.zeros_like(X[..., 0]), X).variance
    return noise


def observed_noise(
    likelihood: Likelihood, noise: Tensor | None, X: Tensor
) -> tuple[Likelihood, Tensor]:
    """Return the likelihood after observations, and the noise variances of these.

    Known noise is rounded up as GPyTorch does it, to 1e-6 in float64 and 1e-4 in
    float32 (``gpytorch.settings.min_fixed_noise``), with its warning.

    Args:
        likelihood: The likelihood so far.
        noise: The ``... x q`` noise variances, if they are known.
        X: The ``... x q x d`` transformed inputs of the observations.
    """
    if noise is None:
        noise = new_noise(likelihood, X)
        return likelihood.get_fantasy_likelihood(), noise
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        num_old = likelihood.noise.shape[-1]
        likelihood = likelihood.get_fantasy_likelihood(noise=noise)
        return likelihood, likelihood.noise[..., num_old:]
    noise = FixedGaussianNoise(noise=noise).noise
    return likelihood.get_fantasy_likelihood(), noise
