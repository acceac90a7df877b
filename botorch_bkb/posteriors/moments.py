"""What is known of all arms, and the questions that are asked of it.

Above this layer nothing holds or passes over numbers of all arms, but where a user asks
for them: arms are asked for, and every answer is small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from botorch_bkb.posteriors.shards import largest, Ranked


class Moments(ABC):
    """Means and variances of ``A`` arms, and what widths need beside them.

    Attributes:
        mean: The ``A`` posterior means.
        prior_variance: The ``A`` prior variances.
        noise_variance: lambda.
        pulled_indices: The arms with rewards.
        inducing_indices: The inducing arms.
        log_det: ``log det(I + K / lambda)`` of the pulls.
        effective_dimension: The sum of the pulls' leverage scores.
        feature_bytes: How much data a choice passes over.
    """

    mean: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float
    feature_bytes: int

    @property
    def like(self) -> Tensor:
        """A tensor without entries, of the dtype and on the device of the moments."""
        return self.mean[:0]

    def means(self, indices: Tensor) -> Tensor:
        """Return the posterior means of a few arms."""
        return self.mean[indices]

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The ``A`` posterior variances."""

    @abstractmethod
    def variances(self, indices: Tensor) -> Tensor:
        """Return the posterior variances of a few arms."""

    @property
    def leverage_scores(self) -> Tensor:
        """The ``A`` ridge leverage scores, ``variance / noise_variance``."""
        return self.variance / self.noise_variance

    def leverage_scores_of(self, indices: Tensor) -> Tensor:
        """Return the ridge leverage scores of a few arms."""
        return self.variances(indices) / self.noise_variance

    def leverage_score(self, index: int) -> float:
        """Return the ridge leverage score of one arm."""
        return self.leverage_scores_of(self._arm(index)).item()

    @property
    def num_arms(self) -> int:
        """A."""
        return len(self.mean)

    @property
    def max_prior_variance(self) -> float:
        """The largest prior variance, kappa squared."""
        return self.prior_variance.max().item()

    def best_mean(self, competes: Tensor | None = None) -> int:
        """Return the arm of the largest mean, the lowest index among ties.

        Args:
            competes: An ``A``-dim boolean tensor; all if None.
        """
        return int(self.largest_bounds(0.0, 1, competes).arms)

    def largest_bounds(
        self,
        scale: float,
        size: int,
        competes: Tensor | None = None,
        known: Ranked | None = None,
    ) -> Ranked:
        """Return the arms of the largest ``mean + scale sqrt(variance)``.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            competes: An ``A``-dim boolean tensor; minus infinity for all others. All
                if None.
            known: Arms whose bounds are known, in any order.
        """
        bounds = self.mean + scale * self.variance.sqrt()
        if competes is not None:
            bounds = bounds.masked_fill(~competes, -torch.inf)
        if known is not None:
            bounds[known.arms] = known.values
        return largest(bounds, size)

    def promising_arms(
        self, scale: float, size: int, competes: Tensor | None = None
    ) -> Tensor:
        """Return the arms of the largest upper bounds, ascending.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            competes: An ``A``-dim boolean tensor; all if None.
        """
        if competes is not None:
            size = min(size, int(competes.sum()))
        return self.largest_bounds(scale, size, competes).arms.sort().values

    def _arm(self, index: int) -> Tensor:
        return torch.tensor([index], device=self.like.device)


@dataclass
class ArmMoments(Moments):
    """The moments of all arms at one time, as numbers."""

    mean: Tensor
    all_variances: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float
    feature_bytes: int = 0

    @property
    @override
    def variance(self) -> Tensor:
        return self.all_variances

    @override
    def variances(self, indices: Tensor) -> Tensor:
        return self.all_variances[indices]
