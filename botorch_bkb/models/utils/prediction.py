r"""The factored posterior, the marginal likelihood, and the noise of observations.

Factor once, predict anywhere, append observations.

With ``W`` the summed precisions of the pulls of each unique input (``n_i / lambda``)
and ``y`` its precision-weighted mean target,

    V = I + Z^T W Z             (the papers' V, divided by lambda)
    mean(x) = z(x)^T V^{-1} Z^T W y
    cov(x, x') = k(x, x') - z(x)^T z(x') + z(x)^T V^{-1} z(x')

is the papers' DTC posterior, equations (1) and (2) of BBKB with the variance times
lambda. With every unique input inducing it is the exact GP, which is computed from the
dual factor ``L L^T = K + W^{-1}`` instead: features ``z(x) = L^{-1} k(x)``, no ``K_S``,
and ``cov(x, x') = k(x, x') - z(x)^T z(x')``.

Most likelihoods have the attribute ``noise``. Others, such as BoTorch's robust
``SparseOutlierGaussianLikelihood``, give noise only when they are called.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast, NamedTuple

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
    MatmulLinearOperator,
    to_linear_operator,
)
from torch import nn, Tensor
from typing_extensions import override

from botorch_bkb.models.utils.nystrom import (
    dense_covariance,
    independent_points,
    lazy_covariance,
    SPAN_TOLERANCE,
)
from botorch_bkb.models.utils.rows import find_replicates, sum_replicates


MAX_DENSE_POINTS = 512


# From a `... x q x d` tensor of points to their `... x m x q` features.
FeatureMap = Callable[[Tensor], Tensor]


def masked_cholesky(
    schur: Tensor,  # ... x q x q
    prior: Tensor,  # ... x q, prior variances
) -> tuple[Tensor, Tensor]:
    r"""Factor a batch of positive semi-definite matrices, skipping null directions.

    Column ``j`` of the factor is a unit vector if point ``j`` adds nothing to the span
    of those before it. The other columns have ``C C^T = schur``, for a singular matrix
    too. Differentiable.

    Returns:
        The lower triangular, invertible factor ``C`` (``... x q x q``) and a ``... x
        q`` boolean mask of the other columns.
    """
    num_points = schur.shape[-1]
    if num_points == 0:
        return schur, torch.empty_like(prior, dtype=torch.bool)
    threshold = SPAN_TOLERANCE[schur.dtype] * prior
    columns: list[Tensor] = []
    kept: list[Tensor] = []
    rows = torch.arange(num_points, device=schur.device)
    for j in range(num_points):
        column = schur[..., j]
        for previous in columns:
            column = column - previous * previous[..., j : j + 1]
        pivot = column[..., j]
        keep = pivot > threshold[..., j]
        root = torch.where(keep, pivot, torch.ones_like(pivot)).sqrt().unsqueeze(-1)
        below = keep.unsqueeze(-1) & (rows >= j)
        unit = (~keep.unsqueeze(-1) & (rows == j)).to(column)
        columns.append(torch.where(below, column / root, unit))
        kept.append(keep)
    return torch.stack(columns, dim=-1), torch.stack(kept, dim=-1)


@dataclass(eq=False, repr=False)
class KernelFeatures:
    r"""The map ``x -> L^{-1} k_S(x)``.

    Attributes:
        covar_module: The kernel ``k``.
        points: The ``m x d`` points ``S``.
        L: An ``m x m`` lower triangular factor.
    """

    covar_module: Kernel
    points: Tensor
    L: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """Return the ``... x m x q`` features of a ``... x q x d`` tensor of points."""
        # Flattened, a batch of arms is one matrix product; the points are not copied.
        flat = X.reshape(-1, X.shape[-1])
        K = dense_covariance(self.covar_module, self.points, flat)
        return solve_lower(self.L, K.unflatten(-1, X.shape[:-1]).movedim(0, -2))


def solve_lower(L: Tensor, rhs: Tensor) -> Tensor:
    """Solve a lower triangular system; batched factors broadcast over the points."""
    if L.dim() > 2 or rhs.dim() == 2:
        return torch.linalg.solve_triangular(L, rhs, upper=False)
    # Broadcasting would copy L for every batch element: solve for all at once.
    columns = rhs.movedim(-2, 0)  # m x ... x q
    flat = torch.linalg.solve_triangular(L, columns.flatten(start_dim=1), upper=False)
    return flat.reshape(columns.shape).movedim(0, -2)


@dataclass(eq=False, repr=False)
class AppendedFeatures:
    r"""A feature map extended by ``q`` points: ``L_new = [[L, 0], [B, C]]``.

    Attributes:
        base: The map to extend.
        covar_module: The kernel ``k``.
        points: A ``... x q x d`` tensor, the new points.
        B: The ``... x q x m`` features of the new points under ``base``.
        C: A ``... x q x q`` lower triangular factor of their Schur complement.
        keep: A ``... x q`` mask; the other points are in the span of those before.
    """

    base: FeatureMap
    covar_module: Kernel
    points: Tensor
    B: Tensor
    C: Tensor
    keep: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """Return the ``... x (m + q') x q`` features of ``... x q x d`` points."""
        return concatenate(*self.parts(X), dim=-2)

    def parts(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first ``m`` features and the others, not broadcast."""
        z = self.base(X)
        residual = dense_covariance(self.covar_module, self.points, X) - self.B @ z
        new = solve_lower(self.C, residual)
        return z, torch.where(self.keep.unsqueeze(-1), new, torch.zeros_like(new))


class Observations(NamedTuple):
    """Observations of ``P`` inputs, repeats merged.

    Attributes:
        inputs: A ``... x P x d`` tensor.
        precisions: A ``... x P`` tensor of summed precisions ``W``.
        means: A ``... x P`` tensor of precision-weighted mean targets, centered.
    """

    inputs: Tensor
    precisions: Tensor
    means: Tensor

    @classmethod
    def merged(cls, X: Tensor, centered: Tensor, noise: Tensor) -> Observations:
        """Merge ``n`` centered targets of ``n x d`` inputs, some of them repeated."""
        inverse, first = find_replicates(X)
        W = sum_replicates(1 / noise, inverse, len(first))
        return cls(
            X[first], W, sum_replicates(centered / noise, inverse, len(first)) / W
        )


@dataclass(eq=False, repr=False)
class DTCPredictionStrategy(ABC):
    """A centered GP posterior over factors; conditioning returns a new one.

    Attributes:
        covar_module: The kernel.
        features: The map ``z``.
        weights: The ``... x m`` coefficients of the mean on the root features,
            ``L_v^{-1} z``, or ``z`` if there is no ``L_v``.
        log_det: The log determinant of ``I + W^{1/2} K W^{1/2}`` (Nystrom's K).
        L_v: The ``... x m x m`` Cholesky factor of ``V``; None for the exact GP.
    """

    covar_module: Kernel
    features: FeatureMap
    weights: Tensor
    log_det: Tensor
    L_v: Tensor | None = None

    def __call__(self, X: Tensor) -> MultivariateNormal:
        """Return the centered posterior over ``... x q x d`` points, jointly in ``q``.

        One point at a time (``q = 1``) only variances are computed. A covariance of
        more than ``MAX_DENSE_POINTS`` points is left lazy, so that asking for its
        diagonal stays cheap.
        """
        z = self.features(X)  # ... x m x q
        root = z if self.L_v is None else solve_lower(self.L_v, z)
        mean = (root.mT @ self.weights.unsqueeze(-1)).squeeze(-1)  # ... x q
        if X.shape[-2] == 1:
            variance = self.covar_module(X, diag=True) - z.square().sum(dim=-2)
            variance = variance.clamp_min(0.0)
            if self.L_v is not None:
                variance = variance + root.square().sum(dim=-2)
            covariance = DiagLinearOperator(variance)
        else:
            covariance = lazy_covariance(self.covar_module, X) + MatmulLinearOperator(
                -z.mT, z
            )
            if self.L_v is not None:
                covariance = covariance + MatmulLinearOperator(root.mT, root)
            if X.shape[-2] <= MAX_DENSE_POINTS:
                covariance = to_linear_operator(covariance.to_dense())
        return MultivariateNormal(mean, covariance.expand(*mean.shape, X.shape[-2]))

    @abstractmethod
    def condition(
        self, observations: Observations, reproject: bool = True
    ) -> DTCPredictionStrategy:
        """Append ``... x q`` observations, and their inputs to the inducing points.

        The means may carry further leading (fantasy) dimensions. What a batch of
        fantasies shares is not expanded.

        Args:
            observations: The new ones.
            reproject: Whether the old ones are projected on the new inducing points
                too. If not, this is Bayes' rule on the present posterior.
        """


class ExactPosterior(DTCPredictionStrategy):
    """The exact GP, from the factor of ``K + W^{-1}``."""

    @classmethod
    def from_observations(
        cls, covar_module: Kernel, observations: Observations
    ) -> ExactPosterior:
        """Factor in ``O(P^3)``."""
        X, W, means = observations
        L = torch.linalg.cholesky(dense_covariance(covar_module, X) + torch.diag(1 / W))
        return cls(
            covar_module,
            KernelFeatures(covar_module, X, L),
            solve_lower(L, means.unsqueeze(-1)).squeeze(-1),
            2 * L.diagonal().log().sum() + W.log().sum(),
        )

    @override
    def condition(
        self, observations: Observations, reproject: bool = True
    ) -> ExactPosterior:
        X, W, means = observations
        B = self.features(X).mT  # ... x q x m
        schur = dense_covariance(self.covar_module, X) - B @ B.mT
        C = torch.linalg.cholesky(schur + torch.diag_embed(1 / W))
        explained = (B @ self.weights.unsqueeze(-1)).squeeze(-1)
        weights = solve_lower(C, (means - explained).unsqueeze(-1)).squeeze(-1)
        keep = torch.ones_like(W, dtype=torch.bool)
        log_diagonal = C.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        return ExactPosterior(
            self.covar_module,
            AppendedFeatures(self.features, self.covar_module, X, B, C, keep),
            concatenate(self.weights, weights),
            self.log_det + 2 * log_diagonal + W.log().sum(dim=-1),
        )


class SparsePosterior(DTCPredictionStrategy):
    """The DTC posterior over a set of inducing points.

    Args:
        covar_module: The kernel.
        features: The Nystrom features ``z`` of the inducing points.
        scatter: The ``... x m x m`` matrix ``Z^T W Z = V - I``.
        b: The ``... x m`` vector ``Z^T W y``.
        observations: All observations, in blocks.
    """

    def __init__(
        self,
        covar_module: Kernel,
        features: FeatureMap,
        scatter: Tensor,
        b: Tensor,
        observations: tuple[Observations, ...],
    ) -> None:
        self.scatter = scatter
        self.b = b
        self.observations = observations
        L_v = torch.linalg.cholesky(torch.eye(scatter.shape[-1]).to(scatter) + scatter)
        log_diagonal = L_v.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        weights = solve_lower(L_v, b.unsqueeze(-1)).squeeze(-1)
        super().__init__(covar_module, features, weights, 2 * log_diagonal, L_v)

    @classmethod
    def from_observations(
        cls, covar_module: Kernel, observations: Observations, inducing_points: Tensor
    ) -> SparsePosterior:
        """Factor over ``m x d`` inducing points in ``O(P m^2)``."""
        features = nystrom_features(covar_module, inducing_points)
        sums = _feature_sums(features, observations)
        return cls(covar_module, features, *sums, (observations,))

    @override
    def condition(
        self, observations: Observations, reproject: bool = True
    ) -> SparsePosterior:
        X = observations.inputs
        B = self.features(X).mT  # ... x q x m
        schur = dense_covariance(self.covar_module, X) - B @ B.mT
        C, keep = masked_cholesky(schur, self.covar_module(X, diag=True))
        features = AppendedFeatures(self.features, self.covar_module, X, B, C, keep)
        scatter, b = _feature_sums(features, observations)
        if reproject:
            for block in self.observations:
                more = _feature_sums(features, block)
                scatter, b = scatter + more[0], b + more[1]
        else:  # the new coordinates are independent of the old data
            q = X.shape[-2]
            scatter = scatter + nn.functional.pad(self.scatter, (0, q, 0, q))
            b = b + nn.functional.pad(self.b, (0, q))
        blocks = (*self.observations, observations)
        return SparsePosterior(self.covar_module, features, scatter, b, blocks)

    def leave_one_out(
        self, X: Tensor, targets: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``n`` means and variances of pulls, each given all others.

        With ``h = z^T V^{-1} z / noise`` and the Sherman-Morrison formula for ``V``
        less one pull, the mean moves by ``-h / (1 - h) (y - mean)`` and the projected
        variance is ``noise h / (1 - h)``. The ``n`` targets are centered.
        """
        now = self(X.unsqueeze(-2))
        mean, variance = now.mean.squeeze(-1), now.variance.squeeze(-1)
        root = solve_lower(cast(Tensor, self.L_v), self.features(X.unsqueeze(-2)))
        known = root.square().sum(dim=-2).squeeze(-1)
        odds = known / (noise - known)
        return mean - odds * (targets - mean), variance - known + noise * odds


def _feature_sums(
    features: FeatureMap, observations: Observations
) -> tuple[Tensor, Tensor]:
    """Return ``Z^T W Z`` and ``Z^T W y`` of some observations."""
    X, W, means = observations
    parts: Sequence[Tensor]  # ... x m x P each
    if isinstance(features, AppendedFeatures):  # only the new ones may be a batch
        parts = features.parts(X)
    else:
        parts = [features(X)]
    weighted = [part * W.unsqueeze(-2) for part in parts]
    rows = [
        reduce(concatenate, [left @ part.mT for part in parts]) for left in weighted
    ]
    sums = [(left @ means.unsqueeze(-1)).squeeze(-1) for left in weighted]
    return reduce(partial(concatenate, dim=-2), rows), reduce(concatenate, sums)


def nystrom_features(covar_module: Kernel, inducing_points: Tensor) -> KernelFeatures:
    """Factor ``K_S``, leaving out the points that add nothing to its span."""
    K_ss = dense_covariance(covar_module, inducing_points)
    kept = independent_points(K_ss)
    L = torch.linalg.cholesky(K_ss[kept][:, kept])
    return KernelFeatures(covar_module, inducing_points[kept], L)


def concatenate(
    left: Tensor, right: Tensor, dim: int = -1, leading: Sequence[int] = ()
) -> Tensor:
    """Concatenate along ``dim`` (negative) after broadcasting the dimensions before."""
    shape = torch.broadcast_shapes(left.shape[:dim], right.shape[:dim], leading)
    parts = [part.expand(*shape, *part.shape[dim:]) for part in (left, right)]
    return torch.cat(parts, dim=dim)


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


class ReplicatedMultivariateNormal(MultivariateNormal):
    r"""A multivariate normal over rows that repeat a few unique inputs.

    Importing BoTorch switches GPyTorch's low-rank log probability off, and a plain
    multivariate normal would go dense. This one keeps the structure ``B M B^T +
    diag(noise)`` (``B`` repeats the rows of unique inputs) through the stock likelihood
    and ``ExactMarginalLogLikelihood``.
    """

    @override
    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return the log density of an ``n``-dim tensor of observations.

        Of ``M = Z Z^T`` in ``O(P m^2 + n m)``. With ``V = I + Z^T W Z`` (``W``: summed
        precisions) and ``theta = V^{-1} Z^T s``, ::

            quadratic form = sum_i (diff_i - z_i^T theta)^2 / noise_i + |theta|^2
            log determinant = log det V + sum_i log noise_i

        Both terms of the quadratic form are positive, so nothing cancels. Of a dense
        ``M`` in ``O(P^3 + n)``: merged repeats are one observation of noise ``1 / W``,
        and the scatter within the repeats takes the place of the first term.
        """
        covariance = self.lazy_covariance_matrix
        if not isinstance(covariance, AddedDiagLinearOperator):
            return super().log_prob(value)
        noise = covariance._diag_tensor.diagonal()
        repeated = covariance._linear_op
        inverse = repeated.left_interp_indices.squeeze(-1)
        base, diff = repeated.base_linear_op, value - self.loc
        W = sum_replicates(1 / noise, inverse, base.shape[-1])
        sums = sum_replicates(diff / noise, inverse, base.shape[-1])
        if isinstance(base, LowRankRootLinearOperator):
            Z = base.root.to_dense()
            L = torch.linalg.cholesky(
                torch.eye(Z.shape[-1]).to(Z) + Z.mT @ (W.unsqueeze(-1) * Z)
            )
            root = torch.cholesky_solve((Z.mT @ sums).unsqueeze(-1), L).squeeze(-1)
            fit, log_det = Z @ root, 2 * L.diagonal().log().sum()
        else:
            fit = sums / W
            L = torch.linalg.cholesky(base.to_dense() + torch.diag(1 / W))
            root = torch.linalg.solve_triangular(L, fit.unsqueeze(-1), upper=False)
            log_det = 2 * L.diagonal().log().sum() + W.log().sum()
        misfit = ((diff - fit[inverse]).square() / noise).sum()
        quadratic, log_det = misfit + root.square().sum(), log_det + noise.log().sum()
        return -0.5 * (quadratic + log_det + len(diff) * math.log(2 * math.pi))


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


def new_noise(likelihood: Likelihood, X: Tensor) -> Tensor:
    """Return noise variances that broadcast to ``... x q``, of pulls at new inputs.

    Raises an ``UnsupportedError`` if the noise of the training data alone is known.
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

    The observations are at ``... x q x d`` transformed inputs. Known noise, ``... x q``
    variances, is rounded up as GPyTorch does it, to 1e-6 in float64 and 1e-4 in float32
    (``gpytorch.settings.min_fixed_noise``), with its warning.
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

    For the marginal likelihood of these observations, and no other. ``ratios`` returns
    ratios by which they are multiplied; all are 1 if it is None.
    """

    def __init__(
        self,
        learned: GaussianLikelihood,
        is_known: Tensor,
        known: Tensor,
        ratios: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.noise_covar = learned.noise_covar
        self.is_known, self.known, self.ratios = is_known, known, ratios

    @override
    def _shaped_noise_covar(self, *args: Any, **kwargs: Any) -> DiagLinearOperator:
        noise = torch.where(self.is_known, self.known, self.noise_covar.noise)
        if self.ratios is not None:
            noise = noise * self.ratios()
        return DiagLinearOperator(noise)
