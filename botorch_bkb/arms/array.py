"""Arms in a file of NumPy, of which the system keeps in memory what it has room for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from typing_extensions import override

from botorch_bkb.arms.stored import RowSource, stamp_of, StoredArms


class ArrayArms(StoredArms):
    """Arms of a memory-mapped ``.npy`` file, or of an array: see ``StoredArms``.

    Args:
        array: The path of a ``.npy`` file, or an ``A x d`` array of numbers, such as a
            ``numpy.memmap``. A pickle holds the path, or else the array.
        dtype: What rows are when they are taken. None: what is stored if that is
            float32, or else float64.

    Raises:
        FileNotFoundError: If there is no such file.
        BotorchTensorDimensionError: If it is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If the file is none of NumPy's, or holds no real numbers.

    Example:
        >>> arms = ArrayArms("library.npy")
        >>> bandit = BBKB(arms, covar_module=kernel, noise_variance=0.1)
    """

    @staticmethod
    def __new__(
        cls,
        array: str | os.PathLike[str] | NDArray[Any],
        dtype: torch.dtype | None = None,
    ) -> ArrayArms:
        """Map the file; nothing of it is read."""
        return cls.of(ArraySource(array), dtype)


class ArraySource(RowSource):
    """The rows of an array, or of a ``.npy`` file."""

    def __init__(self, array: str | os.PathLike[str] | NDArray[Any]) -> None:
        self.path = None if isinstance(array, np.ndarray) else Path(array).resolve()
        self.stamps = {} if self.path is None else {self.path: stamp_of(self.path)}
        try:
            self.array = (
                np.asanyarray(array)
                if self.path is None
                else np.load(self.path, mmap_mode="r", allow_pickle=False)
            )
        except ValueError as error:
            raise InputDataError(
                f"Expected {array} to be an array as `numpy.save` writes it, but it "
                f"cannot be mapped: {error}"
            ) from error
        if self.array.ndim != 2:
            raise BotorchTensorDimensionError(
                f"Expected {self} of shape A x d, but got {self.array.shape}."
            )
        if self.array.dtype.kind not in "fiu":
            raise InputDataError(
                f"Expected {self} to hold numbers, but got {self.array.dtype}."
            )
        self.num_rows, self.num_columns = self.array.shape
        self.dtype = self.array.dtype

    @override
    def take(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        return self.array[rows]

    @override
    def place(self, row: int) -> str:
        return f"row {row} of {self}"

    @override
    def __reduce__(self) -> Any:
        array = self.array if self.path is None else self.path
        return ArraySource, (array,), {"stamps": self.stamps}

    @override
    def __str__(self) -> str:
        return "the array" if self.path is None else str(self.path)
