"""Pulls without reward beside a posterior that stays.

The reward of a *hallucinated* pull is still unknown. The pull counts as if its reward
were the posterior mean: means stay and variances fall (GP-BUCB).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_bkb.models.utils.rows import as_dense, positions_in
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.shards import LocalShards, Shards


# At least so many bytes hold one number per arm and pull.
LEAST_BYTES = 2**25


class TrackedShard:
    """The variances of a shard's arms as pulls are added.

    Args:
        shard: The arms at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: Which of all arms may be pulled; all if None.
        projected: Whether pulls reduce the projected variance only.
    """

    def __init__(
        self, shard: ArmShard, scale: float, allowed: Tensor | None, projected: bool
    ) -> None:
        self.shard = shard
        self.scale = scale
        _, self.mean, self.residual, self.variance = shard.moments
        if not projected:
            self.residual, self.variance = torch.zeros_like(self.mean), shard.variance
        if allowed is not None:
            self.mean = self.mean.masked_fill(~allowed[shard.rows], -math.inf)
        # Row j times row j^T is what pull j took from the arms' covariance.
        self.downdates = self.mean.new_empty(0, len(self.mean))
        self._bounds: Tensor | None = None

    def close(self, index: int) -> None:
        """Exclude an arm from now on."""
        place = index - self.shard.start
        if 0 <= place < len(self.mean):
            self.mean = self.mean.clone()
            self.mean[place] = -math.inf
            self._bounds = None

    def pull(self, vector: Tensor, factor: Tensor) -> None:
        """Subtract ``factor`` times the squared inner products with a vector."""
        self._subtract(factor * self.shard.dot(vector).square())

    def condition(
        self,
        points: Tensor,
        weights: Tensor,
        vector: Tensor,
        earlier: Tensor,
        root: Tensor,
        room: int,
    ) -> None:
        """Add pulls of one arm.

        Its downdate is ``(column - earlier @ downdates) / root``, where the column is a
        weighted sum of the prior covariances of ``points`` plus the features' inner
        products with ``vector``. There is room for so many downdates; if there is none,
        the earlier ones are dropped, and the column is that of all pulls.
        """
        column = self.shard.prior_sums(points, weights) + self.shard.dot(vector)
        number = len(earlier)
        known = self.downdates[:number]
        downdate = (column - earlier @ known) / root
        if number == len(self.downdates) or not room:
            more = min(max(number, 16), room - number) if room else 0
            self.downdates = torch.cat([known, known.new_empty(more, len(column))])
        if room:
            self.downdates[number] = downdate
        self._subtract(downdate.square())

    def moments(self, index: int) -> list[float] | None:
        """Return an arm's mean, fixed variance and reducible variance, or None."""
        place = index - self.shard.start
        if not 0 <= place < len(self.mean):
            return None
        columns = self.mean, self.residual, self.variance
        return torch.stack([column[place] for column in columns]).tolist()

    def bounds(self) -> Tensor:
        """Return the upper confidence bounds."""
        if self._bounds is None:
            variance = self.residual + self.variance
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

    def _subtract(self, lost: Tensor) -> None:
        self.variance = (self.variance - lost).clamp_(min=0.0)
        self._bounds = None


class HallucinatedPosterior:
    r"""The variances of arms as pulls without reward are added.

    With ``projected``, a pull enters through the features of the inducing arms, which
    stay, and ``V^{-1}`` is updated. Otherwise pulls condition the posterior as any
    joint Gaussian, with the lower Cholesky factor ``C`` of the covariance of their
    rewards. Every pull passes over the features of all arms, ``O(A (m + f))`` for ``f``
    pulls before, or of those that are tracked. One number per arm and pull is kept in a
    quarter of ``max_feature_bytes``, at least 32 MiB. If more are needed, none is kept:
    every pull computes ``f`` kernel rows, a chunk of arms at a time.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: An ``A``-dim boolean tensor of the available arms; None for all of
            them, or if ``indices`` are.
        projected: Whether pulls reduce the projected variance only.
        indices: The arms to track, ascending; all if None.
    """

    shards: Shards[TrackedShard]

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        allowed: Tensor | None,
        projected: bool,
        indices: Tensor | None = None,
    ) -> None:
        self.posterior = posterior
        self.projected = projected
        self.indices = indices
        if indices is None:
            args = scale, allowed, projected
            self.shards = posterior.shards.fork(TrackedShard, *args)
        else:
            shard = excerpt(posterior, indices)
            tracked = TrackedShard(shard, scale, None, projected)
            self.shards = LocalShards([tracked], [0, len(indices)])
        num_bytes = max(posterior.max_feature_bytes // 4, LEAST_BYTES)
        num_arms = posterior.num_arms if indices is None else len(indices)
        self.room = num_bytes // (num_arms * posterior.like.element_size())
        L_v = posterior.basis.L_v
        self.V_inverse = torch.cholesky_inverse(L_v)
        self.pulled = posterior.pulled_indices[:0]
        self.vectors, self.C = L_v[:0], L_v[:0, :0]

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
        """Return an arm's mean, fixed variance and reducible variance."""
        found = self.shards.ask(TrackedShard.moments, self._place(index))
        return next(moments for moments in found if moments is not None)

    def close(self, index: int) -> None:
        """Exclude an arm from now on."""
        self.shards.change(TrackedShard.close, self._place(index))

    def pull(self, index: int, num_pulls: int) -> None:
        r"""Add pulls of one arm, without rewards.

        With ``c`` the (projected) covariance now, ``n`` pulls lower any variance by ``n
        c(x, x')^2 / (lambda + n c(x', x'))``.
        """
        posterior, noise = self.posterior, self.posterior.noise_variance
        arm = torch.tensor([index], device=posterior.like.device)
        z = posterior.features(arm).squeeze(-1)
        solved = self.V_inverse @ z
        if self.projected:
            p = (z @ solved).clamp_min(0.0)
            factor = num_pulls / (noise + num_pulls * p)
            self.shards.change(TrackedShard.pull, solved, factor)
            self.V_inverse = self.V_inverse - factor * torch.outer(solved, solved)
            return
        cross = posterior.covariance(self.pulled, arm, projected=False)
        earlier = torch.linalg.solve_triangular(self.C, cross, upper=False).squeeze(-1)
        p = posterior.variances(arm)[0] - earlier.square().sum()
        root = (p.clamp_min(0.0) + noise / num_pulls).sqrt()
        self.pulled = torch.cat([self.pulled, arm])
        self.vectors = torch.cat([self.vectors, (solved - z).unsqueeze(0)])
        above = torch.nn.functional.pad(self.C, (0, 1))
        self.C = torch.cat([above, torch.cat([earlier, root[None]]).unsqueeze(0)])
        one, room = root.new_ones(1), self.room
        args = posterior.arms[arm], one, solved - z, earlier, root, room
        if len(self.pulled) > room:
            # The last row of C^{-1} times the pulls' covariances.
            last = torch.nn.functional.pad(one, (len(earlier), 0)).unsqueeze(-1)
            w = torch.linalg.solve_triangular(self.C.mT, last, upper=True).squeeze(-1)
            points = posterior.arms[self.pulled]
            args = points, w, w @ self.vectors, earlier[:0], one[0], 0
        self.shards.change(TrackedShard.condition, *args)

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
    shard = ArmShard(rows, 0, size, kernel, size)
    shard.load(posterior.moments(indices).contiguous(), posterior.features(indices))
    return shard
