"""A warning, with a figure, where rounding matters."""

from __future__ import annotations

import warnings

import torch
from botorch.exceptions.warnings import NumericsWarning


# A variance that rounding changes by more than this error of itself is worth a word.
ROUNDING_THRESHOLD = 0.01


class RoundingReport:
    """Says by how much rounding changes variances, and again when it is ten times that.

    Args:
        dtype: In which the variances are computed.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._reported = ROUNDING_THRESHOLD / 10

    def note(self, error: float, arm: int) -> None:
        """Warn if the variance of an arm is off by this error of itself or more."""
        if error <= 10 * self._reported:
            return
        self._reported = error
        size = f"{error:.1%}" if error < 1 else f"{min(error, 1e6):.0f} times"
        warnings.warn(
            f"Rounding in {self.dtype} changes the variance of arm {arm} by about "
            f"{size} of itself, and its mean likewise: the rewards tell that arm from "
            "those nearby better than numbers of this precision can. Use float64 or a "
            "larger `noise_variance`, or merge arms that are all but equal.",
            NumericsWarning,
            stacklevel=2,
        )
