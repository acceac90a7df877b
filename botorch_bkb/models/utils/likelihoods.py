"""The noise variances of pulls, and the marginal likelihood of repeated observations.

Most likelihoods have the attribute ``noise``. Others, such as BoTorch's robust
``SparseOutlierGaussianLikelihood``, give noise only when they are called.

Importing BoTorch switches GPyTorch's low-rank log probability off, and a plain
multivariate normal would go dense. ``ReplicatedMultivariateNormal`` keeps the structure
``B M B^T + diag(noise)`` (``B`` repeats the rows of unique inputs) through the stock
likelihood and ``ExactMarginalLogLikelihood``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.likelihoods.multitask_gaussian_likelihood import (
    _MultitaskGaussianLikelihoodBase,
)
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.means import Mean
from linear_operator.operators import (
    AddedDiagLinearOperator,
    DiagLinearOperator,
    InterpolatedLinearOperator,
    LinearOperator,
    LowRankRootLinearOperator,
    to_linear_operator,
)
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.prediction import nystrom_features
from botorch_bkb.models.utils.rows import find_replicates, sum_replicates


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


class PartlyKnownNoise(GaussianLikelihood):
    """Gaussian noise of ``n`` observations: known variances, the others learned.

    For the marginal likelihood of these observations, and no other.
    """

    def __init__(
        self, learned: GaussianLikelihood, is_known: Tensor, known: Tensor
    ) -> None:
        super().__init__()
        self.noise_covar = learned.noise_covar
        self.is_known, self.known = is_known, known

    @override
    def _shaped_noise_covar(self, *args: Any, **kwargs: Any) -> DiagLinearOperator:
        noise = torch.where(self.is_known, self.known, self.noise_covar.noise)
        return DiagLinearOperator(noise)


def dtc_prior(
    covar_module: Kernel, mean_module: Mean, X: Tensor, inducing_points: Tensor | None
) -> ReplicatedMultivariateNormal:
    """Return the DTC prior over ``n x d`` inputs; None for all of them inducing."""
    inverse, first = find_replicates(X)
    base: LinearOperator
    if inducing_points is None:
        base = to_linear_operator(dense_covariance(covar_module, X[first]))
    else:
        features = nystrom_features(covar_module, inducing_points)
        base = LowRankRootLinearOperator(features(X[first]).mT)
    # `B M B^T`, where B repeats the rows of unique inputs.
    rows = inverse.unsqueeze(-1)
    ones = torch.ones(rows.shape).to(X)
    covariance = InterpolatedLinearOperator(base, rows, ones, rows, ones)
    return ReplicatedMultivariateNormal(mean_module(X), covariance)


def low_rank_log_prob(
    Z: Tensor,  # P x m, features of the unique inputs
    inverse: Tensor,  # n
    diff: Tensor,  # n, targets minus prior mean
    noise: Tensor,  # n
) -> Tensor:
    r"""Return ``log N(diff; 0, B Z Z^T B^T + diag(noise))`` in ``O(P m^2 + n m)``.

    With ``V = I + Z^T W Z`` (``W``: summed precisions) and ``theta = V^{-1} Z^T s``, ::

        quadratic form = sum_i (diff_i - z_i^T theta)^2 / noise_i + |theta|^2
        log determinant = log det V + sum_i log noise_i

    Both terms of the quadratic form are positive, so nothing cancels.
    """
    W = sum_replicates(1 / noise, inverse, Z.shape[0])
    s = sum_replicates(diff / noise, inverse, Z.shape[0])
    V = torch.eye(Z.shape[-1]).to(Z) + Z.mT @ (W.unsqueeze(-1) * Z)
    L_v = torch.linalg.cholesky(V)
    theta = torch.cholesky_solve((Z.mT @ s).unsqueeze(-1), L_v).squeeze(-1)
    fit = (Z @ theta)[inverse]
    quadratic = ((diff - fit).square() / noise).sum() + theta.square().sum()
    log_det = 2 * L_v.diagonal().log().sum() + noise.log().sum()
    return -0.5 * (quadratic + log_det + diff.shape[-1] * math.log(2 * math.pi))


def replicated_log_prob(
    K: Tensor,  # P x P, Gram matrix of the unique inputs
    inverse: Tensor,  # n
    diff: Tensor,  # n
    noise: Tensor,  # n
) -> Tensor:
    r"""Return ``log N(diff; 0, B K B^T + diag(noise))`` in ``O(P^3 + n)``.

    Merged repeats are one observation of noise ``1 / W``; what the merging leaves out
    is the scatter within the repeats, ``sum_i (diff_i - mean)^2 / noise_i``, and the
    normalizers.
    """
    W = sum_replicates(1 / noise, inverse, K.shape[0])
    mean = sum_replicates(diff / noise, inverse, K.shape[0]) / W
    L = torch.linalg.cholesky(K + torch.diag(1 / W))
    root = torch.linalg.solve_triangular(L, mean.unsqueeze(-1), upper=False)
    scatter = ((diff - mean[inverse]).square() / noise).sum()
    log_det = 2 * L.diagonal().log().sum() + W.log().sum() + noise.log().sum()
    quadratic = root.square().sum() + scatter
    return -0.5 * (quadratic + log_det + diff.shape[-1] * math.log(2 * math.pi))


class ReplicatedMultivariateNormal(MultivariateNormal):
    """A multivariate normal over rows that repeat a few unique inputs."""

    @override
    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of an ``n``-dim tensor of observations."""
        covariance = self.lazy_covariance_matrix
        if not isinstance(covariance, AddedDiagLinearOperator):
            return super().log_prob(value)
        noise = covariance._diag_tensor.diagonal()
        repeated = covariance._linear_op
        inverse = repeated.left_interp_indices.squeeze(-1)
        base = repeated.base_linear_op
        diff = value - self.loc
        if isinstance(base, LowRankRootLinearOperator):
            return low_rank_log_prob(base.root.to_dense(), inverse, diff, noise)
        return replicated_log_prob(base.to_dense(), inverse, diff, noise)
