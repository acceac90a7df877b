"""Output warping: poor rewards on a logarithmic scale."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


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
        if spread == 0:
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

        A standard deviation is half of the interval that has one on either side.
        """
        std = variance.sqrt()
        half = (self.undo(mean + std) - self.undo(mean - std)) / 2
        return self.undo(mean), half.square()

    def measured(self, rewards: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``w`` of rewards, and their noise variances times ``w'^2``."""
        return self(rewards), noise / (1 + self._depth(rewards)).square()

    def log_slope(self, rewards: Tensor) -> float:
        """Return the mean of ``log w'``, by which log likelihoods are compared."""
        return -torch.log1p(self._depth(rewards)).mean().item()

    def _depth(self, values: Tensor) -> Tensor:
        return (self.median - values).clamp_min(0.0) / self.spread
