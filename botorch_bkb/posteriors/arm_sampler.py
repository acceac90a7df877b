"""Thompson draws over arms, from the weights of the sparse posterior.

With the features ``z(x)`` of the inducing arms and ``V = I + Z^T W Z`` (see
:mod:`~botorch_bkb.posteriors.basis`), the weights are ``theta ~ N(V^{-1} Z^T W
ybar, V^{-1})``, equation (5) of [basu2017]_ in the units of the GP, and a draw is

    f(x) = z(x)^T theta = mean(x) + z(x)^T L_v^{-T} eps,    eps ~ N(0, I),

jointly over all arms, at ``O(A m)`` a draw and never an ``A x A`` covariance. It has
the posterior's mean, and the covariance ``z(x)^T V^{-1} z(x')``. That is too small by
the residual ``k(x, x') - z(x)^T z(x')``, which makes draws **over-confident far from
the inducing arms**.

With ``covariance="full"`` draws have the joint law of the posterior, residual included,
among the ``POOL_SIZE`` arms of the largest optimistic bounds: ``O(A)`` to find them and
``O(k^3)`` for ``k`` of them. Other arms are never best in such a draw;
:meth:`ArmSampler.outside_probability` bounds how often they should be.

A ``scale`` of ``a`` replaces each draw by ``mean(x) + a (f(x) - mean(x))``: the
posterior reshaping of [chapelle2011]_, which explores less below 1.
"""

from __future__ import annotations

from typing import cast, Literal

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from torch import Tensor

from botorch_bkb.checks import check_choice, check_number, check_size
from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.models.utils.nystrom import (
    APPEND_TOLERANCE,
    independent_points,
    psd_root,
)
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.posterior import Draws, StaticPosterior


DrawCovariance = Literal["projected", "full"]
COVARIANCES = {
    "projected": "over-confident far from the inducing arms",
    "full": "the posterior's law among the promising arms",
}
# Joint draws are over this many arms: their covariance takes 8 MiB, its factor 20 ms.
POOL_SIZE = 1024
JITTER = {torch.float64: 1e-10, torch.float32: 1e-5}
# Promising arms have the largest bounds mean + 3 sd, below which nearly all draws are.
POOL_DEVIATIONS = 3.0


class ArmSampler:
    r"""Draws the values of all arms, and the arms that are best in a draw.

    The arms of pending pulls join the inducing arms and their noise enters ``V``, so
    that draws are given these pulls, around the mean of the posterior.

    Memory: chunks of arms, and ``O(A)`` numbers for :meth:`draw_best_arms` or
    ``O(A num_draws)`` for :meth:`draw_values`, which returns them.

    Args:
        posterior: The posterior given all rewards; it is not changed.
        pending_indices: A long tensor of the pulls still without reward, repeats
            included. None for none.
        covariance: ``"projected"`` or ``"full"``; see the module.
        scale: How far draws go from the mean, see the module; 1 for the posterior's.

    Raises:
        InputDataError: If ``covariance`` is something else, or ``scale`` is negative.
        UnsupportedError: If it is not ``"full"`` over a product space.

    Example:
        >>> sampler = ArmSampler(posterior)
        >>> best = sampler.draw_best_arms(30, generator)
    """

    def __init__(
        self,
        posterior: StaticPosterior,
        pending_indices: Tensor | None = None,
        covariance: DrawCovariance = "projected",
        scale: float = 1.0,
    ) -> None:
        check_choice("covariance", covariance, COVARIANCES)
        if covariance != "full" and not isinstance(posterior, ArmPosterior):
            raise UnsupportedError(
                "Expected `covariance` to be 'full' over a product space, whose draws "
                f"are over promising products only, but got {covariance!r}."
            )
        self.posterior = posterior
        self.covariance = covariance
        self.scale = check_number("scale", scale, least=0.0)
        self._L_v = posterior.basis.L_v
        # The arms of the last joint draws, their features, and the residual's root.
        self._factored: tuple[Tensor, Tensor, Tensor] | None = None
        # The f pending arms that joined: the factor grows to [[L, 0], [B, C]].
        self._joined = posterior.pulled_indices[:0]
        self._B = self._L_v[:0]
        self._C = self._B[:, :0]
        if pending_indices is not None and pending_indices.numel():
            self._hallucinate(pending_indices.to(posterior.like.device))

    def draw_values(
        self,
        num_draws: int,
        generator: torch.Generator,
        indices: Tensor | None = None,
    ) -> Tensor:
        """Draw values of the arms, jointly.

        Args:
            num_draws: The number of draws.
            generator: The source of randomness.
            indices: A ``k``-dim long tensor of the arms to return; all if None. The
                values do not depend on it, but with ``covariance="full"``, where a
                draw takes ``O(k^2)`` memory and ``O(k^3)`` time.

        Returns:
            A ``num_draws x k`` tensor, in the units of the posterior.
        """
        posterior = self.posterior
        if self.covariance == "full":
            if indices is None:
                indices = torch.arange(posterior.num_arms, device=posterior.like.device)
            return self._draw_joint(num_draws, generator, indices)
        draws = self._draws(num_draws, generator)
        values = cast(ArmPosterior, posterior).drawn(draws)
        return values if indices is None else values[:, indices]

    def draw_best_arms(
        self,
        num_draws: int,
        generator: torch.Generator,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Draw the arm of the largest value, the lowest index among ties.

        Args:
            num_draws: The number of draws.
            generator: The source of randomness.
            allowed: An ``A``-dim boolean tensor of the arms that compete, or the mask
                of a product space; all if None.

        Returns:
            A ``num_draws``-dim long tensor of arm indices, in order of drawing.

        Raises:
            BotorchTensorDimensionError: If ``allowed`` has another shape.
            InputDataError: If no arm is allowed.
        """
        self._check_allowed(allowed)
        if self.covariance == "full":
            pool = self.promising_arms(allowed)
            return pool[self._draw_joint(num_draws, generator, pool).argmax(dim=-1)]
        draws = self._draws(num_draws, generator)
        return cast(ArmPosterior, self.posterior).best_of_draws(draws, allowed)

    def promising_arms(self, allowed: Tensor | None = None) -> Tensor:
        """Return the arms over which joint draws are, ascending.

        Those of the largest optimistic bounds, by the posterior's variances without
        pending pulls, whatever the scale.

        Args:
            allowed: An ``A``-dim boolean tensor of the arms that compete; all if None.
        """
        found = self.posterior.largest_bounds(POOL_DEVIATIONS, POOL_SIZE, allowed)
        return found.arms[found.values > -torch.inf].sort().values

    def outside_probability(self, allowed: Tensor | None = None) -> float:
        r"""Bound the probability that an arm outside the promising ones is best.

        For every level ``b`` it is at most ``P(f(x) < b)``, for any promising ``x``,
        plus the sum of ``P(f(x') > b)`` over the arms outside: the least of these
        bounds over a grid of levels. By the posterior's variances without pending
        pulls, whatever the scale.

        Args:
            allowed: An ``A``-dim boolean tensor of the arms that compete; all if None.

        Raises:
            BotorchTensorDimensionError: If ``allowed`` has another shape.
            InputDataError: If no arm is allowed.
            UnsupportedError: If the arms are a product space.
        """
        posterior = self.posterior
        if not isinstance(posterior, ArmPosterior):
            raise UnsupportedError(
                "Expected a table of arms, whose probabilities are added up, but got a "
                "product space."
            )
        self._check_allowed(allowed)
        pool = self.promising_arms(allowed)
        _, mean, residual, projected = posterior.moments(pool)
        std = (residual + projected).sqrt()
        std = std.clamp_min(torch.finfo(std.dtype).tiny)
        best = mean.argmax()
        levels = mean[best] + torch.linspace(-4.0, 4.0, 33).to(mean) * std[best]
        number, above = posterior.expected_above(levels, allowed, pool)
        if not number:
            return 0.0
        below = torch.special.ndtr((levels - mean.unsqueeze(-1)) / std.unsqueeze(-1))
        return min(1.0, (below.amin(dim=0) + above).min().item())

    def _check_allowed(self, allowed: Tensor | None) -> None:
        shape = (self.posterior.num_arms,)
        if not isinstance(allowed, Tensor):
            return
        if allowed.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected `allowed` of shape {shape}, but got {tuple(allowed.shape)}."
            )
        if not allowed.any():
            raise InputDataError(
                "Expected `allowed` to hold at least one arm, but none is allowed."
            )

    def _draw_joint(
        self, num_draws: int, generator: torch.Generator, arms: Tensor
    ) -> Tensor:
        """Return ``num_draws x k`` values of some arms, by the law of the posterior."""
        theta = self._weights(num_draws, generator)
        if self._factored is None or not torch.equal(self._factored[0], arms):
            posterior = self.posterior
            Z = self._features(arms)
            residual = posterior.prior_covariance(arms, arms) - Z.mT @ Z
            # Inducing arms have no residual, and rounding may make it negative: this
            # share of the prior variance is too small to show in a draw.
            jitter = JITTER.get(Z.dtype, 1e-3) * posterior.moments(arms)[0]
            self._factored = arms, Z, psd_root(residual + torch.diag(jitter))
        _, Z, root = self._factored
        noise = self._normals(len(arms), num_draws, generator)
        mean = self.posterior.means(arms).unsqueeze(-1)
        return (mean + Z.mT @ theta + root @ noise).mT

    def _draws(self, num_draws: int, generator: torch.Generator) -> Draws:
        """Draw weights, and return what shards need of them."""
        theta = self._weights(num_draws, generator)
        posterior, M = self.posterior, self._B.shape[1]
        vectors = torch.cat([theta[:M], self._B.mT], dim=-1)
        return Draws(
            posterior.basis.project(vectors),
            posterior.arms[self._joined],
            self._C,
            theta[M:],
        )

    def _weights(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draw ``(M + f) x num_draws`` weights, less their mean."""
        check_size("num_draws", num_draws)
        eps = self._normals(len(self._L_v), num_draws, generator)
        return torch.linalg.solve_triangular(self._L_v.mT, eps, upper=True)

    def _hallucinate(self, pending_indices: Tensor) -> None:
        """Add pending pulls to V, and their arms to the inducing arms."""
        posterior = self.posterior
        pending, counts = pending_indices.unique(return_counts=True)
        Z, prior = posterior.features(pending), posterior.moments(pending)[0]
        # What is left of an arm in the span is rounding, and no variance.
        is_new = prior - Z.square().sum(dim=0) > APPEND_TOLERANCE[Z.dtype] * prior
        arms, Z = pending[is_new], Z[:, is_new]
        schur = posterior.prior_covariance(arms, arms) - Z.mT @ Z
        kept = independent_points(schur)
        self._joined, self._B = arms[kept], Z[:, kept].mT
        self._C = torch.linalg.cholesky(schur[kept][:, kept])
        Z = self._features(pending)  # (M + f) x P
        known, _ = posterior.scatter_and_target(
            self._features(posterior.pulled_indices)
        )
        V = torch.eye(len(Z)).to(Z) + (Z * counts / posterior.noise_variance) @ Z.mT
        V += known
        self._L_v = torch.linalg.cholesky(V)

    def _features(self, arms: Tensor) -> Tensor:
        """Return the ``(M + f) x k`` features of some arms."""
        Z = self.posterior.features(arms)
        if not len(self._joined):
            return Z
        K = self.posterior.prior_covariance(self._joined, arms) - self._B @ Z
        return torch.cat([Z, torch.linalg.solve_triangular(self._C, K, upper=False)])

    def _normals(self, rows: int, columns: int, generator: torch.Generator) -> Tensor:
        normals = draw_normals(rows, columns, generator=generator)
        return self.scale * normals.to(self.posterior.like)
