"""Pulls without reward, and more inducing arms, beside a posterior that stays.

A *hallucinated* pull brings the mean that is known already, so that means stay and
variances fall (GP-BUCB).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_bkb.models.utils.lazy_rows import as_dense
from botorch_bkb.models.utils.nystrom import (
    append_tolerance,
    independent_points,
    span_tolerance,
)
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.moments import positions_in
from botorch_bkb.posteriors.shards import LocalShards, Shards


class AppendedArms:
    r"""``f`` more inducing arms: the factor grows to ``[[L, 0], [B, C]]``.

    Args:
        posterior: The posterior; it is not changed.

    Attributes:
        indices: The ``f`` arms.
        B: The ``f x M`` features of these arms.
        C: The ``f x f`` lower Cholesky factor of their Schur complement.
    """

    def __init__(self, posterior: ArmPosterior) -> None:
        self.posterior = posterior
        self.indices = posterior.pulled_indices[:0]
        self.B = posterior.basis.L[:0]
        self.C = self.B[:, :0]

    def features(self, arms: Tensor) -> Tensor:
        """Return the ``(M + f) x k`` features of some arms."""
        Z = self.posterior.features(arms)
        if not len(self.indices):
            return Z
        K = self.posterior.cache.prior_covariance(self.indices, arms) - self.B @ Z
        return torch.cat([Z, torch.linalg.solve_triangular(self.C, K, upper=False)])

    def append(self, arms: Tensor) -> None:
        """Append arms, but those in the span of the others."""
        Z = self.features(arms)
        prior = self.posterior.moments(arms)[0]
        # What is left of an arm in the span is rounding, and no variance.
        is_new = prior - Z.square().sum(dim=0) > append_tolerance(Z.dtype) * prior
        arms, Z = arms[is_new], Z[:, is_new]
        schur = self.posterior.cache.prior_covariance(arms, arms) - Z.mT @ Z
        kept = independent_points(schur)
        corner = torch.linalg.cholesky(schur[kept][:, kept])
        self.border(arms[kept], Z[:, kept], corner)

    def border(self, arms: Tensor, Z: Tensor, corner: Tensor) -> None:
        """Append arms, given features and the factor of their Schur complement."""
        M = self.B.shape[1]
        above = self.C.new_zeros(self.C.shape[0], corner.shape[0])
        below = torch.cat([Z[M:].mT, corner], dim=-1)
        self.C = torch.cat([torch.cat([self.C, above], dim=-1), below])
        self.B = torch.cat([self.B, Z[:M].mT])
        self.indices = torch.cat([self.indices, arms])


class TrackedShard:
    """The variances of a shard's arms as pulls and inducing arms are added.

    Vectors have ``M + f`` coordinates: of the basis, projected, and of ``f`` arms that
    joined.

    Args:
        shard: The arms as they are without; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: Which of all arms may be pulled; all if None.
    """

    def __init__(self, shard: ArmShard, scale: float, allowed: Tensor | None) -> None:
        self.shard = shard
        self.scale = scale
        _, self.mean, self.residual, self.projected = shard.moments
        if allowed is not None:
            self.mean = self.mean.masked_fill(~allowed[shard.rows], -math.inf)
        self.appended = self.mean.new_empty(0, len(self.mean))
        self._bounds: Tensor | None = None

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        place = index - self.shard.start
        if 0 <= place < len(self.mean):
            self.mean = self.mean.clone()
            self.mean[place] = -math.inf
            self._bounds = None

    def append(
        self, point: Tensor, z: Tensor, root: Tensor, vector: Tensor, variance: Tensor
    ) -> None:
        """Add an inducing arm.

        Given its row, its features, the root of what they leave of its variance, and
        ``V^{-1} g`` and ``s`` of :meth:`HallucinatedPosterior.append`.
        """
        column = self.shard.prior_rows(point).squeeze(0)
        a = (column - self._dot(z)) / root
        self.projected = self.projected + (a - self._dot(vector)).square() / variance
        self.residual = (self.residual - a.square()).clamp_min(0.0)
        self.appended = torch.cat([self.appended, a.unsqueeze(0)])
        self._bounds = None

    def pull(self, vector: Tensor, factor: Tensor) -> None:
        """Add pulls: a squared inner product leaves the projected variances."""
        lost = factor * self._dot(vector).square()
        self.projected = (self.projected - lost).clamp_(min=0.0)
        self._bounds = None

    def moments(self, index: int) -> list[float] | None:
        """Return an arm's mean, residual and projected variance; None if not here."""
        place = index - self.shard.start
        if not 0 <= place < len(self.mean):
            return None
        columns = self.mean, self.residual, self.projected
        return torch.stack([column[place] for column in columns]).tolist()

    def bounds(self) -> Tensor:
        """Return the upper confidence bounds."""
        if self._bounds is None:
            variance = self.residual + self.projected
            self._bounds = self.mean + self.scale * variance.sqrt()
        return self._bounds

    def best(self, other_than: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, lowest index first."""
        bounds, place = self.bounds(), other_than - self.shard.start
        if 0 <= place < len(bounds):
            bounds = bounds.clone()
            bounds[place] = -math.inf
        best = int(bounds.argmax())
        return bounds[best].item(), self.shard.start + best

    def _dot(self, vector: Tensor) -> Tensor:
        """Return the features' inner products with a vector."""
        M = len(vector) - len(self.appended)
        return self.shard.dot(vector[:M]) + vector[M:] @ self.appended


class HallucinatedPosterior:
    r"""The variances of arms as pulls without reward and inducing arms are added.

    Holds ``R`` with ``V_now^{-1} = R R^T`` and the arms appended to the inducing arms;
    ``V`` and the features are those of
    :class:`~botorch_bkb.posteriors.ArmPosterior`, and variances stand in its shards.
    Every change passes over the features of all arms, ``O(A (m + f))``, or of those
    that are tracked.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: An ``A``-dim boolean tensor of the arms that may be pulled, or None.
        indices: The arms to track, ascending; all if None.
    """

    shards: Shards[TrackedShard]

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        allowed: Tensor | None,
        indices: Tensor | None = None,
    ) -> None:
        self.posterior = posterior
        self.indices = indices
        if indices is None:
            self.shards = posterior.shards.fork(TrackedShard, scale, allowed)
        else:
            if allowed is not None:
                allowed = allowed[indices]
            tracked = TrackedShard(excerpt(posterior, indices), scale, allowed)
            self.shards = LocalShards([tracked], [0, len(indices)])
        self._seen: set[int] = set()  # arms that are inducing or in their span
        L_v = posterior.basis.L_v
        eye = torch.eye(len(L_v)).to(L_v)
        self.R = torch.linalg.solve_triangular(L_v, eye, upper=False).mT
        self.appended = AppendedArms(posterior)
        # Pulled arms outside the span of S change V once it grows.
        is_outside = ~posterior.pulled_in_span
        self.outside = posterior.pulled_indices[is_outside]
        self.features = posterior.features(self.outside)  # (m + f) x P
        self.precisions = posterior.data[0, is_outside]

    def bounds(self) -> Tensor:
        """Return the upper confidence bounds of the arms that are tracked."""
        return self.shards.column(TrackedShard.bounds)

    def best(self, other_than: int | None = None) -> tuple[float, int]:
        """Return the largest bound, of the other arms, and the lowest index among ties.

        A NaN is larger than any number.
        """
        place = -1 if other_than is None else self._place(other_than)
        found = self.shards.ask(TrackedShard.best, place)
        bound, best = max(found, key=lambda one: (math.isnan(one[0]), one[0]))
        return bound, best if self.indices is None else int(self.indices[best])

    def moments(self, index: int) -> list[float]:
        """Return the mean, the residual and the projected variance of an arm."""
        found = self.shards.ask(TrackedShard.moments, self._place(index))
        return next(moments for moments in found if moments is not None)

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        self.shards.change(TrackedShard.close, self._place(index))

    def append(self, index: int) -> None:
        r"""Append an arm to the inducing points, unless it is in their span.

        With ``a(x)`` the new feature and, over the pulled arms, ``g = Z^T W a`` and
        ``s = 1 + a^T W a - |R^T g|^2``, ``V`` grows to ``[[V, g], [g^T, 1 + a^T W a]]``
        and ``projected(x)`` by ``(a(x) - z(x)^T V^{-1} g)^2 / s``.
        """
        if index in self._seen:
            return
        self._seen.add(index)
        posterior = self.posterior
        arm = torch.tensor([index], device=posterior.like.device)
        z = self.appended.features(arm).squeeze(-1)
        prior, _, before, _ = posterior.moments(arm)
        residual = before[0] - z[len(posterior.basis.L) :].square().sum()
        if residual <= span_tolerance(z.dtype) * prior[0]:
            return
        root = residual.sqrt()
        column = posterior.cache.prior_covariance(arm, self.outside).squeeze(0)
        a = (column - z @ self.features) / root
        weighted = self.precisions * a
        g = self.features @ weighted
        h = self.R.mT @ g
        Rh = self.R @ h
        s = 1 + (weighted @ a) - h.square().sum()
        self.shards.change(
            TrackedShard.append,
            posterior.arms[arm],
            self._projected(z),
            root,
            self._projected(Rh),
            s,
        )
        self.features = torch.cat([self.features, a.unsqueeze(0)])
        # R grows to [[R, -R h / sqrt(s)], [0, 1 / sqrt(s)]].
        corner = (1 / s.sqrt()).reshape(1, 1)
        side = torch.cat([-Rh.unsqueeze(-1) * corner, corner])
        self.R = torch.cat([torch.nn.functional.pad(self.R, (0, 0, 0, 1)), side], -1)
        self.appended.border(arm, z.unsqueeze(-1), root.reshape(1, 1))

    def pull(self, index: int, num_pulls: int) -> None:
        r"""Add pulls of one arm, without rewards.

        With ``p = projected(x)`` of the arm, ``n`` pulls turn ``p`` into
        ``p lambda / (lambda + n p)`` and lower any ``projected(x')`` by
        ``n c(x, x')^2 / (lambda + n p)``, ``c = z(x)^T V^{-1} z(x')``.
        """
        noise = self.posterior.noise_variance
        arm = torch.tensor([index], device=self.posterior.like.device)
        u = self.R.mT @ self.appended.features(arm).squeeze(-1)
        p = u.square().sum()
        if p <= 0:
            return
        Ru = self.R @ u
        shrink = num_pulls / (noise + num_pulls * p)
        self.shards.change(TrackedShard.pull, self._projected(Ru), shrink)
        # 1 - sqrt(lambda / (lambda + n p)) without cancellation.
        ratio = num_pulls * p / (noise + num_pulls * p)
        alpha = ratio / (1 + (1 - ratio).sqrt())
        self.R = self.R - torch.outer(Ru, u * (alpha / p))

    def _projected(self, vector: Tensor) -> Tensor:
        """Return ``M + f`` coordinates, those of the basis as shards take them."""
        M = len(self.posterior.basis.L)
        own = self.posterior.basis.project(vector[:M].unsqueeze(-1)).squeeze(-1)
        return torch.cat([own, vector[M:]])

    def _place(self, index: int) -> int:
        """Return the number of an arm among those that are tracked, or -1."""
        if self.indices is None:
            return index
        arm = self.indices.new_tensor([index])
        return int(positions_in(self.indices, arm, is_ascending=True))


def excerpt(posterior: ArmPosterior, indices: Tensor) -> ArmShard:
    """Return a few arms with their moments and features, as a shard of their own."""
    rows = as_dense(posterior.arms[indices])
    kernel, size = posterior.covar_module, len(indices)
    shard = ArmShard(rows, 0, size, kernel, 0, size)
    shard.load(posterior.moments(indices).contiguous(), posterior.features(indices))
    return shard
