"""Output warping: poor rewards on a logarithmic scale."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


# Of a normal distribution, to either side.
DEVIATIONS_OF_95_PERCENT = 1.96


class LogWarp(NamedTuple):
    r"""Keeps good rewards as they are, and puts poor ones on a logarithmic scale.

    With the median ``m`` of the rewards and the root mean squared distance ``s`` of the
    better half from it, ::

        w(y) = y                              if y >= m
        w(y) = m - s log(1 + (m - y) / s)     otherwise

    A few failures would otherwise decide lengthscales and noise, which then do not tell
    good arms apart. Like the warping of poor rewards in [song2024vizier]_, with a
    likelihood as in warped Gaussian processes [snelson2003warped]_.

    Attributes:
        median: ``m``.
        spread: ``s``, positive.
        least: The least reward; predictions are not below it.
    """

    median: float
    spread: float
    least: float

    @classmethod
    def of(cls, rewards: Tensor) -> Self | None:
        """Return the warp of ``n`` rewards; None if the better half is all equal."""
        median = rewards.median()
        spread = (rewards - median)[rewards >= median].square().mean().sqrt()
        # Equal rewards may differ in their last bits.
        if spread <= 1e-9 * rewards.abs().max():
            return None
        return cls(median.item(), spread.item(), rewards.min().item())

    def __call__(self, rewards: Tensor) -> Tensor:
        """Return ``w`` of rewards."""
        poor = self.median - self.spread * torch.log1p(self._depth(rewards))
        return torch.where(rewards >= self.median, rewards, poor)

    def undo(self, values: Tensor) -> Tensor:
        """Return the rewards of values of ``w``, the least one at least."""
        poor = self.median - self.spread * torch.expm1(self._depth(values))
        rewards = torch.where(values >= self.median, values, poor)
        return rewards.clamp_min(self.least)

    def undo_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards of means, which become medians, and their variances.

        Those of the normal distribution whose 95 % interval is as wide as that of the
        rewards; means below the least reward count as if at it.
        """
        half = DEVIATIONS_OF_95_PERCENT * variance.sqrt()
        center = mean.clamp_min(self(mean.new_tensor(self.least)).item())
        width = self.undo(center + half) - self.undo(center - half)
        return self.undo(mean), (width / (2 * DEVIATIONS_OF_95_PERCENT)).square()

    def measured(self, rewards: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``w`` of rewards, and their noise variances times ``w'^2``."""
        return self(rewards), noise / (1 + self._depth(rewards)).square()

    def log_slope(self, rewards: Tensor) -> float:
        """Return the mean of ``log w'``, by which log likelihoods are compared."""
        return -torch.log1p(self._depth(rewards)).mean().item()

    def _depth(self, values: Tensor) -> Tensor:
        return (self.median - values).clamp_min(0.0) / self.spread
