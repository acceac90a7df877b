"""What models and kernels ask of their arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor


def check_tensors(**values: Any) -> None:
    """Raise an ``InputDataError`` unless each argument is a tensor of floats, or None.

    Args:
        **values: The arguments, by name.
    """
    for name, value in values.items():
        found = value.dtype if isinstance(value, Tensor) else type(value).__name__
        if value is not None and found not in (torch.float64, torch.float32):
            raise InputDataError(
                f"Expected `{name}` to be a tensor of dtype float64 or float32, but "
                f"got {found}. Use `torch.as_tensor({name}, dtype=torch.double)`."
            )


def check_modules(kind: type, **values: Any) -> None:
    """Raise unless each argument is one module of a kind, or None.

    Args:
        kind: ``Kernel`` or ``Mean``.
        **values: The arguments, by name.

    Raises:
        InputDataError: If one is something else.
        UnsupportedError: If one is a batch of modules.
    """
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, kind):
            raise InputDataError(
                f"Expected `{name}` to be a GPyTorch {kind.__name__}, but got "
                f"{value!r}."
            )
        # A mean has the attribute where its parameters come in batches.
        batch_shape = getattr(value, "batch_shape", ())
        if len(batch_shape) > 0:
            raise UnsupportedError(
                f"Expected `{name}` to be one {kind.__name__}, but it is a batch of "
                f"shape {tuple(batch_shape)}. Leave out `batch_shape`."
            )


def check_single_output(model: str, train_X: Tensor, train_Y: Tensor) -> None:
    """Raise an ``UnsupportedError`` unless data are unbatched and of one output.

    Args:
        model: The name of the model's class.
        train_X: Training inputs.
        train_Y: Training observations.
    """
    if train_X.dim() != 2 or train_Y.shape[-1] != 1:
        raise UnsupportedError(
            "Expected unbatched `train_X` (n x d) and one output in `train_Y` "
            f"(n x 1), but got shapes {tuple(train_X.shape)} and "
            f"{tuple(train_Y.shape)}. Use a `ModelListGP` of `{model}`s for several "
            "outputs."
        )


def check_generator(generator: Any) -> None:
    """Raise an ``InputDataError`` unless this is a ``torch.Generator``, or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputDataError(
            "Expected `generator` to be a torch.Generator, such as "
            f"`torch.Generator().manual_seed(0)`, but got {generator!r}."
        )


def check_size(name: str, value: int) -> None:
    """Raise an ``InputDataError`` unless an argument is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputDataError(
            f"Expected `{name}` to be an integer of at least 1, but got {value!r}."
        )


def as_number(value: Any) -> float:
    """Return a number, or NaN, which no interval holds, for what is none."""
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
