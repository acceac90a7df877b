"""Poor rewards on a logarithmic scale."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import Posterior, TransformedPosterior
from torch import Tensor
from typing_extensions import override


# Half of a 95 % interval of a normal distribution.
NORMAL_DEVIATIONS = 1.96


class LogWarp(NamedTuple):
    r"""Keeps good rewards as they are, and puts poor ones on a logarithmic scale.

    With the median ``m`` of the rewards and the root mean squared distance ``s`` of the
    better half from it, ::

        w(y) = y                              if y >= m
        w(y) = m - s log(1 + (m - y) / s)     otherwise

    Predictions below the least reward ``l`` are on the straight line from the median
    through ``l``: the inverse of ``w`` would run away, and nothing was seen there.

    A few failures would otherwise decide lengthscales and noise, which then do not tell
    good arms apart. Like the warping of poor rewards in [song2024vizier]_, with a
    likelihood as in warped Gaussian processes [snelson2003warped]_.

    Attributes:
        median: ``m``.
        spread: ``s``, positive.
        least: ``l``.
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
        if spread <= 1e-12 * rewards.abs().max():
            return None
        return cls(median.item(), spread.item(), rewards.min().item())

    def __call__(self, rewards: Tensor) -> Tensor:
        """Return ``w`` of rewards."""
        poor = self.median - self.spread * torch.log1p(self._depth(rewards))
        return torch.where(rewards >= self.median, rewards, poor)

    def undo(self, values: Tensor) -> Tensor:
        """Return the rewards of values of ``w``; below ``l``, those on the line."""
        log, (end, slope) = self._depth(values), self._line()
        depth = torch.where(log > end, slope * log, torch.expm1(log.clamp_max(end)))
        return torch.where(
            values >= self.median, values, self.median - self.spread * depth
        )

    def inverse(self, rewards: Tensor) -> Tensor:
        """Return the values that :meth:`undo` takes to rewards."""
        depth, (end, slope) = self._depth(rewards), self._line()
        log = torch.where(depth > slope * end, depth / slope, torch.log1p(depth))
        return torch.where(
            rewards >= self.median, rewards, self.median - self.spread * log
        )

    def _line(self) -> tuple[float, float]:
        """Return ``log(1 + (m - l) / s)``, and the slope of the line beyond it."""
        most = (self.median - self.least) / self.spread
        end = math.log1p(most)
        return end, most / end if end else 1.0

    def undo_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards of means, which become medians, and their variances.

        Those of the normal distribution whose 95 % interval is as wide as that of the
        rewards.
        """
        half = NORMAL_DEVIATIONS * variance.sqrt()
        width = self.undo(mean + half) - self.undo(mean - half)
        return self.undo(mean), (width / (2 * NORMAL_DEVIATIONS)).square()

    def measured(self, rewards: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``w`` of rewards, and their noise variances times ``w'^2``."""
        return self(rewards), noise / (1 + self._depth(rewards)).square()

    def log_slope(self, rewards: Tensor) -> float:
        """Return the mean of ``log w'``, by which log likelihoods are compared."""
        return -torch.log1p(self._depth(rewards)).mean().item()

    def _depth(self, values: Tensor) -> Tensor:
        return (self.median - values).clamp_min(0.0) / self.spread


class LogWarpOutcome(OutcomeTransform):
    """A :class:`LogWarp` as a transform of BoTorch.

    Its posterior has the mean and variance of :meth:`LogWarp.undo_moments`.

    Args:
        warp: The warp.
        sign: 1 if large rewards are good, -1 if small ones are.
    """

    def __init__(self, warp: LogWarp, sign: float) -> None:
        super().__init__()
        self.warp, self.sign = warp, sign

    @override
    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return warped rewards, and their noise variances if there are some."""
        noise = torch.zeros_like(Y) if Yvar is None else Yvar
        values, noise = self.warp.measured(self.sign * Y, noise)
        return self.sign * values, None if Yvar is None else noise

    @override
    def untransform(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Undo :meth:`forward`."""
        rewards = self.warp.undo(self.sign * Y)
        if Yvar is not None:
            Yvar = Yvar / self.warp.measured(rewards, torch.ones_like(Y))[1]
        return self.sign * rewards, Yvar

    @override
    def untransform_posterior(
        self, posterior: Posterior, X: Tensor | None = None
    ) -> Posterior:
        """Return the posterior of rewards, given that of warped ones."""
        undo_moments = self.warp.undo_moments
        return TransformedPosterior(
            posterior,
            lambda values: self.untransform(values)[0],
            lambda mean, _: self.untransform(mean)[0],
            lambda mean, variance: undo_moments(self.sign * mean, variance)[1],
        )
