r"""Variances as pulls are added that have no reward yet.

A *hallucinated* pull brings the mean that is known already, so that means stay and
variances fall (GP-BUCB): for a few arms, whose covariance matrix is kept
(:class:`PoolPosterior`), or for all (:class:`HallucinatedPosterior`).
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.lazy_rows import as_dense
from botorch_bkb.models.utils.nystrom import span_tolerance
from botorch_bkb.posteriors.appended import AppendedArms
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.kernel_rows import positions_in_ascending
from botorch_bkb.posteriors.shards import LocalShards, PerArm, Shards


class Step(NamedTuple):
    """A vector with whose inner product, squared and scaled, variances change.

    Attributes:
        projected: Its coordinates in the basis, as shards take them.
        new: Those in the appended arms.
        scale: The factor.
    """

    projected: Tensor
    new: Tensor
    scale: Tensor


# So few that a pool's product with them stays below the size from which BLAS libraries
# start threads, which cost more than the product.
MAX_DOWNDATES = 64


class PoolPosterior:
    r"""The bounds of a few arms as pulls without reward are added.

    ``n`` pulls of an arm turn a covariance ``M`` into ``M - n m m^T / (lambda + n p)``,
    ``m`` the arm's column and ``p`` its variance. With fixed inducing arms ``M`` is the
    projected covariance, beside which the residual stays; with inducing arms that grow
    on the exact GP it is the whole covariance, and nothing is left beside it.

    In NumPy on the processor: on a hundred numbers PyTorch's overhead is most of the
    time, and an accelerator's launches are all of it.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        indices: The ``k`` arms of the pool, ascending.
        pulls: The pulls so far, by arm.
        grow: Whether pulled arms join the inducing arms.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        indices: Tensor,
        pulls: dict[int, int],
        grow: bool,
    ) -> None:
        self.noise_variance = posterior.noise_variance
        self.scale = scale
        self.indices = indices
        self.arms: list[int] = indices.tolist()
        self.position = {arm: position for position, arm in enumerate(self.arms)}
        self._start = posterior, dict(pulls), grow
        _, mean, residual, projected = posterior.moments(indices)
        if grow:
            residual, projected = torch.zeros_like(residual), residual + projected
        self.mean = mean.cpu().numpy()
        self.residual = residual.cpu().numpy()
        self.projected = projected.cpu().numpy()
        if pulls:
            # Rounding can leave a variance of zero below it, and a bound that is NaN.
            self.projected = self.covariance.diagonal().clip(min=0.0)
        # The downdates m sqrt(n / (lambda + n p)) not yet in `covariance`.
        self.downdates = np.empty((MAX_DOWNDATES, len(self.arms)), self.mean.dtype)
        self.num_downdates = 0
        self._refresh()

    @cached_property
    def covariance(self) -> np.ndarray:
        """The covariances of the pool; the choice that ends a batch needs none."""
        posterior, pulls, grow = self._start
        indices = self.indices
        covariance = posterior.covariance(indices, indices, projected=not grow)
        if pulls:
            arms = torch.tensor(list(pulls), device=indices.device)
            counts = covariance.new_tensor(list(pulls.values()))
            K = posterior.covariance(arms, arms, projected=not grow)
            cross = posterior.covariance(arms, indices, projected=not grow)
            L = torch.linalg.cholesky(K + torch.diag(self.noise_variance / counts))
            root = torch.linalg.solve_triangular(L, cross, upper=False)
            covariance -= root.mT @ root
        return covariance.cpu().numpy()

    def __contains__(self, index: int) -> bool:
        """Whether an arm is in the pool."""
        return index in self.position

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        position = int(self.bounds.argmax())
        return self.bounds.item(position), self.arms[position]

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        position = self.position[index]
        own = self.bounds[position]
        self.bounds[position] = -math.inf
        best = self.best()
        self.bounds[position] = own
        return best

    def moments(self, index: int) -> tuple[float, float, float]:
        """Return the mean, the residual and the projected variance of an arm."""
        position = self.position[index]
        columns = self.mean, self.residual, self.projected
        mean, residual, projected = (column.item(position) for column in columns)
        return mean, residual, projected

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        self.mean[self.position[index]] = -math.inf
        self._refresh()

    def append(self, index: int) -> None:
        """Do nothing: the covariance of the exact GP knows arms that join."""

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of one arm of the pool, without rewards."""
        position = self.position[index]
        p = self.projected.item(position)
        if p <= 0:
            return
        if self.num_downdates == MAX_DOWNDATES:
            self.covariance -= self.downdates.T @ self.downdates
            self.num_downdates = 0
        earlier = self.downdates[: self.num_downdates]
        column = self.covariance[position] - earlier[:, position] @ earlier
        column *= math.sqrt(num_pulls / (self.noise_variance + num_pulls * p))
        self.downdates[self.num_downdates] = column
        self.num_downdates += 1
        self.projected -= column * column
        np.maximum(self.projected, 0.0, out=self.projected)
        self._refresh()

    def _refresh(self) -> None:
        self.bounds = self.mean + self.scale * np.sqrt(self.residual + self.projected)


class Excerpt:
    """A few arms of a posterior, with their features, as if they were a shard.

    Args:
        posterior: The posterior; it is not changed.
        indices: The ``k`` arms, ascending.
    """

    def __init__(self, posterior: ArmPosterior, indices: Tensor) -> None:
        self.posterior = posterior
        self.indices = indices
        _, self.mean, self.residual, self.projected = posterior.moments(indices)
        self._features = posterior.features(indices).mT.contiguous()

    def dot(self, vector: Tensor) -> Tensor:
        """Return the features' inner products with an ``M``-dim vector."""
        return torch.mv(self._features, vector)

    @torch.no_grad()
    def prior_rows(self, points: Tensor) -> Tensor:
        """Return the prior covariances of some points with all arms."""
        covariance = dense_covariance(self.posterior.covar_module, points, self._rows)
        return covariance.to(self._features)

    @cached_property
    def _rows(self) -> Tensor:
        return as_dense(self.posterior.arms[self.indices])

    def arm_at(self, place: int) -> int:
        """Return which arm stands at a place."""
        return int(self.indices[place])

    def place_of(self, index: int) -> int | None:
        """Return where an arm stands; None if it is not here."""
        arm = self.indices.new_tensor([index])
        place = int(positions_in_ascending(self.indices, arm))
        return None if place < 0 else place


class TrackedShard:
    """The variances of a shard's arms as pulls and inducing arms are added.

    Args:
        shard: The arms as they are without; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: Which of the arms may be pulled; all if None.
    """

    def __init__(
        self, shard: ArmShard | Excerpt, scale: float, allowed: PerArm
    ) -> None:
        self.shard = shard
        self.scale = scale
        self.mean = shard.mean
        if allowed.values is not None:
            self.mean = self.mean.masked_fill(~allowed.values, -math.inf)
        self.residual, self.projected = shard.residual, shard.projected
        self.appended = self.mean.new_empty(0, len(self.mean))
        self._bounds: Tensor | None = None

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        place = self.shard.place_of(index)
        if place is not None:
            self.mean = self.mean.clone()
            self.mean[place] = -math.inf
            self._bounds = None

    def append(
        self, point: Tensor, z: Tensor, new: Tensor, root: Tensor, step: Step
    ) -> None:
        """Add an inducing arm.

        Args:
            point: Its row, ``1 x d``.
            z: Its features, those of the basis projected.
            new: Its coordinates in the arms that were appended before.
            root: The root of what they leave of its variance.
            step: What its feature adds to projected variances.
        """
        column = self.shard.prior_rows(point).squeeze(0)
        a = (column - self._dot(z, new)) / root
        self.projected = self.projected + (a - self._dot(*step[:2])).square() / step[2]
        self.residual = (self.residual - a.square()).clamp_min(0.0)
        self.appended = torch.cat([self.appended, a.unsqueeze(0)])
        self._bounds = None

    def pull(self, step: Step) -> None:
        """Add pulls: what they take from projected variances."""
        lost = step[2] * self._dot(*step[:2]).square()
        self.projected = (self.projected - lost).clamp_(min=0.0)
        self._bounds = None

    def moments(self, indices: Tensor) -> Tensor:
        """Return mean, residual and projected variance of a few arms, ``k x 3``."""
        places = [self.shard.place_of(index) for index in indices.tolist()]
        columns = [self.mean, self.residual, self.projected]
        return torch.stack([column[places] for column in columns], dim=-1)

    @property
    def bounds(self) -> Tensor:
        """The upper confidence bounds."""
        if self._bounds is None:
            variance = self.residual + self.projected
            self._bounds = self.mean + self.scale * variance.sqrt()
        return self._bounds

    def best(self, other_than: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, lowest index first."""
        bounds, place = self.bounds, self.shard.place_of(other_than)
        own = None if place is None else bounds[place].item()
        if own is not None:
            bounds[place] = -math.inf
        largest = int(bounds.argmax())
        best = bounds[largest].item(), self.shard.arm_at(largest)
        if own is not None:
            bounds[place] = own
        return best

    def _dot(self, projected: Tensor, new: Tensor) -> Tensor:
        """Return the features' inner products with a vector."""
        return self.shard.dot(projected) + new @ self.appended


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
            self.shards = posterior.shards.fork(TrackedShard, scale, PerArm(allowed))
        else:
            inside = None if allowed is None else allowed[indices]
            tracked = TrackedShard(Excerpt(posterior, indices), scale, PerArm(inside))
            self.shards = LocalShards([tracked], [0, len(indices)])
        self._seen: set[int] = set()  # arms that are inducing or in their span
        self._is_changed = False

    def _begin(self) -> None:
        """Prepare for changes; the choice that ends a batch makes none."""
        if self._is_changed:
            return
        self._is_changed = True
        posterior = self.posterior
        m = posterior.L_v.shape[0]
        eye = torch.eye(m).to(posterior.L_v)
        self.R = torch.linalg.solve_triangular(posterior.L_v, eye, upper=False).mT
        self.appended = AppendedArms(posterior)
        # Pulled arms outside the span of S change V once it grows.
        is_outside = ~posterior.pulled_in_span
        self.outside = posterior.pulled_indices[is_outside]
        self.features = posterior.features(self.outside)  # m x P
        self.new_features = self.features[:0]  # f x P
        self.precisions = posterior.precisions[is_outside]

    def __contains__(self, index: int) -> bool:
        """Whether pulls of an arm can be added: those of all can."""
        return True

    @property
    def bounds(self) -> Tensor:
        """The upper confidence bounds of the arms that are tracked."""
        return self.shards.column(lambda shard: shard.bounds)

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        return _best(self.shards.ask(TrackedShard.best, -1))

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        return _best(self.shards.ask(TrackedShard.best, index))

    def moments(self, index: int) -> tuple[float, float, float]:
        """Return the mean, the residual and the projected variance of an arm."""
        arm = torch.tensor([index], device=self.posterior.like.device)
        mean, residual, projected = self.shards.ask_of(TrackedShard.moments, arm)[
            0
        ].tolist()
        return mean, residual, projected

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        self.shards.change(TrackedShard.close, index)

    def append(self, index: int) -> None:
        r"""Append an arm to the inducing points, unless it is in their span.

        With ``a(x)`` the new feature and, over the pulled arms, ``g = Z^T W a`` and
        ``s = 1 + a^T W a - |R^T g|^2``, ``V`` grows to ``[[V, g], [g^T, 1 + a^T W a]]``
        and ``projected(x)`` by ``(a(x) - z(x)^T V^{-1} g)^2 / s``.
        """
        if index in self._seen:
            return
        self._seen.add(index)
        self._begin()
        posterior = self.posterior
        arm = torch.tensor([index], device=posterior.like.device)
        z = self.appended.features(arm).squeeze(-1)
        m = posterior.L_v.shape[0]
        prior, _, before, _ = posterior.moments(arm)
        residual = before[0] - z[m:].square().sum()
        if residual <= span_tolerance(z.dtype) * prior[0]:
            return
        root = residual.sqrt()
        column = posterior.prior_covariance(arm, self.outside).squeeze(0)
        known = z[:m] @ self.features + z[m:] @ self.new_features
        a_pulled = (column - known) / root
        weighted = self.precisions * a_pulled
        g = torch.cat([self.features @ weighted, self.new_features @ weighted])
        h = self.R.mT @ g
        Rh = self.R @ h
        s = 1 + (weighted @ a_pulled) - h.square().sum()
        self.shards.change(
            TrackedShard.append,
            posterior.arms[arm],
            self._as_stored(z[:m]),
            z[m:],
            root,
            Step(self._as_stored(Rh[:m]), Rh[m:], s),
        )
        self.new_features = torch.cat([self.new_features, a_pulled.unsqueeze(0)])
        corner = (1 / s.sqrt()).reshape(1, 1)
        self.R = _bordered(self.R, -Rh.unsqueeze(-1) * corner, corner)
        self.appended.border(arm, z.unsqueeze(-1), root.reshape(1, 1))

    def pull(self, index: int, num_pulls: int) -> None:
        r"""Add pulls of one arm, without rewards.

        With ``p = projected(x)`` of the arm, ``n`` pulls turn ``p`` into
        ``p lambda / (lambda + n p)`` and lower any ``projected(x')`` by
        ``n c(x, x')^2 / (lambda + n p)``, ``c = z(x)^T V^{-1} z(x')``.
        """
        self._begin()
        noise = self.posterior.noise_variance
        arm = torch.tensor([index], device=self.posterior.like.device)
        u = self.R.mT @ self.appended.features(arm).squeeze(-1)
        p = u.square().sum()
        if p <= 0:
            return
        Ru = self.R @ u
        m = self.posterior.L_v.shape[0]
        shrink = num_pulls / (noise + num_pulls * p)
        step = Step(self._as_stored(Ru[:m]), Ru[m:], shrink)
        self.shards.change(TrackedShard.pull, step)
        # 1 - sqrt(lambda / (lambda + n p)) without cancellation.
        ratio = num_pulls * p / (noise + num_pulls * p)
        alpha = ratio / (1 + (1 - ratio).sqrt())
        self.R = self.R - torch.outer(Ru, u * (alpha / p))

    def _as_stored(self, vector: Tensor) -> Tensor:
        return self.posterior.project(vector.unsqueeze(-1)).squeeze(-1)


def _best(found: list[tuple[float, int]]) -> tuple[float, int]:
    """Return the largest of shards' bounds and its arm; NaN if there is one."""
    return max(found, key=lambda best: (math.isnan(best[0]), best[0]))


def _bordered(block: Tensor, side: Tensor, corner: Tensor) -> Tensor:
    """Return ``[[block, side], [0, corner]]``."""
    below = torch.cat([block.new_zeros(1, block.shape[1]), corner], dim=-1)
    return torch.cat([torch.cat([block, side], dim=-1), below])
