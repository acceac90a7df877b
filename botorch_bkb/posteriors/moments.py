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
        mean = self.mean
        if competes is not None:
            mean = mean.masked_fill(~competes, -torch.inf)
        return int(mean.argmax())

    def upper_bounds(self, scale: float, competes: Tensor | None = None) -> Tensor:
        """Return ``mean + scale sqrt(variance)`` of all arms, for this layer's use.

        Args:
            scale: The number of standard deviations.
            competes: An ``A``-dim boolean tensor; minus infinity for all others.
        """
        bounds = self.mean + scale * self.variance.sqrt()
        return bounds if competes is None else bounds.masked_fill(~competes, -torch.inf)

    def promising_arms(
        self, scale: float, size: int, competes: Tensor | None = None
    ) -> Tensor:
        """Return the arms of the largest upper bounds, ascending.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            competes: An ``A``-dim boolean tensor; all if None.
        """
        bounds = self.upper_bounds(scale, competes)
        most = len(bounds) if competes is None else int(competes.sum())
        return bounds.topk(min(size, most)).indices.sort().values

    def _arm(self, index: int) -> Tensor:
        return torch.tensor([index], device=self.mean.device)


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
