"""The local rule's sums, one for every arm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_bkb.models.utils.crossing import first_crossing
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_shard import ArmShard


class SummedShard:
    """The sums of a shard's arms.

    Args:
        shard: The arms at the start of the batch; it is not changed.
        noise_variance: lambda.
        total: The sums at the start.
    """

    def __init__(self, shard: ArmShard, noise_variance: float, total: float) -> None:
        self.shard = shard
        self.noise_variance = noise_variance
        self.sums = torch.full_like(shard.mean, total)
        self.increments = torch.zeros_like(shard.mean)

    def aim(
        self,
        index: int,
        own: float,
        point: Tensor,
        vector: Tensor,
        removed: Tensor | None,
    ) -> None:
        """Compute what a pull of an arm adds to the sum of every arm.

        Args:
            index: The arm.
            own: What it adds to its own sum.
            point: See :meth:`ArmShard.covariances`.
            vector: See there.
            removed: See there.
        """
        shard = self.shard
        covariance = shard.covariances(point, vector, removed)
        scale = self.noise_variance * shard.variance
        # An arm of no variance has no covariance either: its sum stays.
        scale = scale.clamp_min(torch.finfo(scale.dtype).tiny)
        self.increments = covariance.square() / scale
        if 0 <= index - shard.start < len(scale):
            self.increments[index - shard.start] = own

    def add(self, num_pulls: int) -> None:
        """Add pulls of the arm that was aimed at."""
        self.sums += num_pulls * self.increments

    def close(self) -> None:
        """Let every sum be infinite."""
        self.sums.fill_(math.inf)

    def column(self, name: str) -> Tensor:
        """Return a number of each arm: an attribute."""
        column: Tensor = getattr(self, name)
        return column

    def largest(self, num_pulls: int) -> float:
        """Return the largest sum after more pulls of the arm that was aimed at."""
        if not num_pulls:
            return self.sums.max().item()
        return (self.sums + num_pulls * self.increments).max().item()

    def fewest(self, threshold: float) -> float:
        """Return how many pulls take a sum to a threshold, as a real number."""
        pulls = (threshold - self.sums) / self.increments
        return pulls.nan_to_num(math.inf).min().item()


class LocalSums:
    r"""For every arm ``x`` the sum of ``c(x, x_s)^2 / (lambda var_start(x))`` of pulls.

    See :class:`~botorch_bkb.optim.LocalRule`. A pull costs a pass over all features.

    Args:
        posterior: The posterior at the start of the batch.
        total: The sums at the start.
        projected: Whether ``c`` is the projected covariance.
    """

    def __init__(self, posterior: ArmPosterior, total: float, projected: bool) -> None:
        self.posterior = posterior
        self.projected = projected
        self.shards = posterior.shards.fork(
            SummedShard, posterior.noise_variance, total
        )
        self._aimed = -1

    @property
    def sums(self) -> Tensor:
        """The ``A`` sums."""
        return self.shards.column("sums")

    def largest(self, num_pulls: int = 0) -> float:
        """Return the largest sum of all arms, after more pulls of the last one."""
        found = self.shards.ask("largest", num_pulls)
        return torch.tensor(found, dtype=torch.double).max().item()  # NaN if there is

    def add(self, index: int, num_pulls: int) -> None:
        """Add pulls of an arm."""
        self._aim(index)
        self.shards.change("add", num_pulls)

    def close(self) -> None:
        """Let every sum be infinite."""
        self.shards.change("close")

    def crossing(self, index: int, threshold: float) -> int:
        """Return how many pulls of an arm take some arm's sum over a threshold."""
        self._aim(index)
        return first_crossing(
            lambda num_pulls: not self.largest(num_pulls) <= threshold,  # or NaN
            min(self.shards.ask("fewest", threshold)),
        )

    def _aim(self, index: int) -> None:
        """Let shards know what a pull of an arm adds to the sum of every arm."""
        if self._aimed != index:
            self._aimed = index
            own = self.posterior.leverage_score(index)
            pull = self.posterior.pull_of(index, self.projected)
            self.shards.change("aim", index, own, *pull)
