"""What is known of all arms, whatever posterior it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Moments(Protocol):
    """What is known of all arms: what every bandit reads off its posterior."""

    mean: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor

    @property
    def variance(self) -> Tensor:
        """The ``A`` posterior variances."""

    @property
    def leverage_scores(self) -> Tensor:
        """The ``A`` variances over lambda."""

    @property
    def log_det(self) -> float:
        """``log det(I + K / lambda)`` of the pulls."""

    @property
    def effective_dimension(self) -> float:
        """The sum of the pulls' leverage scores."""

    @property
    def feature_bytes(self) -> int:
        """How much data a choice passes over."""


@dataclass
class ArmMoments:
    """Mean and variance of all arms at one time, and what widths need beside them.

    Has what bandits read off an :class:`~botorch_bkb.posteriors.ArmPosterior`.
    """

    mean: Tensor
    variance: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float
    feature_bytes: int = 0

    @property
    def leverage_scores(self) -> Tensor:
        """The ``A`` variances over lambda."""
        return self.variance / self.noise_variance
