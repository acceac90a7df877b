"""The local rule's sums, one for every arm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_bkb.models.utils.crossing import first_crossing
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


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
        self.sums = torch.full_like(posterior.mean, total)
        self._last: tuple[int, Tensor] | None = None

    def largest(self) -> float:
        """Return the largest sum of all arms."""
        return self.sums.max().item()

    def add(self, index: int, num_pulls: int) -> None:
        """Add pulls of an arm."""
        self.sums += num_pulls * self._increments(index)

    def close(self) -> None:
        """Let every sum be infinite."""
        self.sums.fill_(math.inf)

    def crossing(self, index: int, threshold: float) -> int:
        """Return how many pulls of an arm take some arm's sum over a threshold."""
        increments = self._increments(index)
        return first_crossing(
            lambda n: (self.sums + n * increments).max().item() > threshold,
            ((threshold - self.sums) / increments).nan_to_num(math.inf).min().item(),
        )

    def _increments(self, index: int) -> Tensor:
        """Return what a pull of an arm adds to the sum of every arm."""
        if self._last is None or self._last[0] != index:
            posterior = self.posterior
            covariance = posterior.covariance_column(index, self.projected)
            scale = posterior.noise_variance * posterior.variance
            # An arm of no variance has no covariance either: its sum stays.
            scale = scale.clamp_min(torch.finfo(scale.dtype).tiny)
            increments = covariance.square() / scale
            increments[index] = posterior.leverage_score(index)
            self._last = index, increments
        return self._last[1]
