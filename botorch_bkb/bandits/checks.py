"""What every bandit asks of its arms."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


def check_arms(arms: Tensor) -> None:
    """Raise unless these are the arms of a bandit.

    Raises:
        BotorchTensorDimensionError: If they are not ``A x d`` with ``A, d >= 1``.
        InputDataError: If they are no tensor of floats, or one is not finite.
    """
    if not isinstance(arms, Tensor):
        raise InputDataError(
            f"Expected `arms` to be a tensor, but got {type(arms).__name__}. Use "
            "`torch.as_tensor(arms)`."
        )
    if arms.dim() != 2 or 0 in arms.shape:
        raise BotorchTensorDimensionError(
            "Expected `arms` of shape A x d with at least one arm and one feature, but "
            f"got {tuple(arms.shape)}."
        )
    if arms.dtype not in (torch.float32, torch.float64):
        raise InputDataError(
            f"Expected `arms` of dtype float64 or float32, but got {arms.dtype}. Use "
            "`arms.double()`."
        )
    bad = (~arms.isfinite()).any(dim=-1).nonzero()
    if bad.numel():
        raise InputDataError(
            f"Expected finite `arms`, but {bad.shape[0]} rows hold NaN or infinity, "
            f"the first is row {int(bad[0])}. Impute or drop them."
        )
