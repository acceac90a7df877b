"""Arms that stay where they are stored, such as a file of NumPy."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from botorch.exceptions.errors import (
    BotorchError,
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_count, check_positive, check_size
from botorch_bkb.models.utils.rows import LazyRows, row_numbers


# The most rows that are made dense at once, as bytes.
MAX_DENSE_BYTES = 2**28


class ShardDataError(InputDataError):
    """What is stored of some arms cannot be read, or has no meaning as features."""


class ShardLostError(BotorchError):
    """A worker was lost, and is not replaced any more."""


class ShardTimeoutError(BotorchError):
    """A worker gave no answer in time."""


class RowSource(ABC):
    """A table of ``A x d`` numbers of any real type, which does not change.

    Attributes:
        num_rows: A.
        num_columns: d.
        dtype: NumPy's dtype of the numbers.
        stamps: Size and time of change of each file, when the source was made.
    """

    num_rows: int
    num_columns: int
    dtype: np.dtype[Any]
    stamps: dict[Path, tuple[int, int]]

    @abstractmethod
    def take(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return rows that follow one another, or those of some numbers in order."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Return where a row is, for messages."""

    def verify(self, *paths: Path) -> None:
        """Raise a ``ShardDataError`` if one of some files, or of all, has changed."""
        for path in paths or self.stamps:
            try:
                stamp = stamp_of(path)
            except OSError as error:
                raise ShardDataError(f"{path} cannot be read: {error}") from error
            if stamp != self.stamps[path]:
                raise ShardDataError(
                    f"Expected {path} to stay as it was, but it has changed. Construct "
                    "arms and bandit again."
                )


def stamp_of(path: Path) -> tuple[int, int]:
    """Return the size of a file and when it was written."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@dataclass(eq=False)
class Workers:
    """Ray's workers for some arms, which start when they are first needed.

    The arguments are those of :meth:`StoredArms.on_ray`. ``pool`` is what runs, None
    before that and after :meth:`close`, and ``end`` ends it.
    """

    num_workers: int
    timeout: float
    max_restarts: int
    pool: Any = None
    end: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        check_size("workers", self.num_workers)
        check_positive("timeout", self.timeout)
        check_count("max_restarts", self.max_restarts)

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        if self.end is not None:
            self.end()
        self.pool = self.end = None


class StoredArms(LazyRows):
    r"""An ``A x d`` tensor of features whose rows are read when they are taken.

    It is a tensor like any other, on the processor. Rows that are taken are plain
    tensors, checked as they are read; rows that are joined to it (``add_arms``) stay in
    memory after the others. An operation that would make more than 256 MiB of rows
    dense at once is an error. The rows must not change as long as it is in use.

    Attributes:
        source: Where the rows are.
        added: The ``k x d`` rows after them.
        units: Pairs of ``d`` numbers, what is subtracted from rows of the source and
            what they are then divided by, one pair after the other.
        workers: Ray's workers, if they compute; None for this process.
    """

    source: RowSource
    added: Tensor
    units: tuple[tuple[Tensor, Tensor], ...]
    workers: Workers | None

    @classmethod
    def over(
        cls,
        source: RowSource,
        added: Tensor,
        units: tuple[tuple[Tensor, Tensor], ...] = (),
        workers: Workers | None = None,
    ) -> Self:
        """Return the rows of a source with others after them; see the attributes."""
        arms: Self = Tensor._make_wrapper_subclass(
            cls, (source.num_rows + len(added), source.num_columns), dtype=added.dtype
        )
        arms.source, arms.added, arms.units = source, added, units
        arms.workers = workers
        return arms

    @classmethod
    def of(cls, source: RowSource, dtype: torch.dtype | None) -> Self:
        """Return all rows of a source.

        Args:
            source: Where they are.
            dtype: What they are when they are taken. None: what is stored if that is
                float32, or else float64.

        Raises:
            BotorchTensorDimensionError: If there are no rows or no columns.
            InputDataError: If ``dtype`` is no float32 or float64.
        """
        if dtype is None:
            dtype = torch.float32 if source.dtype == np.float32 else torch.float64
        if dtype not in (torch.float32, torch.float64):
            raise InputDataError(
                f"Expected `dtype` to be float32 or float64, but got {dtype}."
            )
        if not source.num_rows or not source.num_columns:
            raise BotorchTensorDimensionError(
                "Expected at least one arm and one feature, but got "
                f"{source.num_rows} x {source.num_columns}."
            )
        return cls.over(source, torch.empty(0, source.num_columns, dtype=dtype))

    def scaled(self, low: Tensor, width: Tensor) -> Self:
        """Return ``(arms - low) / width``, made when rows are taken."""
        units = (*self.units, (low, width))
        added = (self.added - low) / width
        return self.over(self.source, added, units, self.workers)

    def on_ray(
        self, workers: int, timeout: float = 600.0, max_restarts: int = 20
    ) -> Self:
        """Return the same arms, computed by Ray's workers.

        Choices are the same, unless two arms are equal up to floating-point rounding.
        Workers join a Ray that is initialised in this process, whose machines must find
        the rows at the same path. Otherwise Ray is started on this machine, for this
        process alone, when a bandit first needs it. Workers end with
        ``arms.workers.close()``, or with the process. Arms cannot be added, and a
        filter over time (``TVGPUCB``) is refused.

        Args:
            workers: How many there are at most; of one thread each. A worker has whole
                blocks of 65,536 arms.
            timeout: The longest wait for an answer, in seconds.
            max_restarts: How often a worker that is lost is replaced.

        Raises:
            InputDataError: If a number is out of range.
        """
        pool = Workers(workers, timeout, max_restarts)
        return self.over(self.source, self.added, self.units, pool)

    @override
    def dense(self) -> Tensor:
        return self._taken(torch.arange(len(self)))

    @override
    def _joined(self, parts: list[Tensor]) -> Self:
        added = torch.cat([self.added, *parts[1:]])
        return self.over(self.source, added, self.units, self.workers)

    @override
    def _rows(self, rows: Tensor | slice) -> Tensor:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if (start, step) == (0, 1) and stop >= self.source.num_rows:
                kept = self.added[: stop - self.source.num_rows]
                return self.over(self.source, kept, self.units, self.workers)
        return self._taken(row_numbers(rows, len(self)))

    def _taken(self, rows: Tensor) -> Tensor:
        """Return rows by their numbers, dense."""
        num_bytes = len(rows) * self.shape[-1] * self.element_size()
        if num_bytes > MAX_DENSE_BYTES:
            raise UnsupportedError(
                f"Expected at most {MAX_DENSE_BYTES:,} bytes of stored arms to be "
                f"needed at once, but {len(rows):,} rows are {num_bytes:,} bytes. Take "
                "a part of them (`arms[indices]`), or pass on a tensor if memory "
                "holds it."
            )
        num_stored = self.source.num_rows
        is_stored = rows < num_stored
        if is_stored.all():
            return self._read(rows.numpy())
        values = self.added.new_empty(len(rows), self.source.num_columns)
        values[is_stored] = self._read(rows[is_stored].numpy())
        values[~is_stored] = self.added[rows[~is_stored] - num_stored]
        return values

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        """Return stored rows by their numbers, checked, in the kernel's units."""
        is_run = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        found = self.source.take(slice(rows[0], rows[-1] + 1) if is_run else rows)
        dtype = "float32" if self.dtype == torch.float32 else "float64"
        with np.errstate(over="ignore"):  # an infinity is refused below
            values = torch.from_numpy(np.array(found, dtype=dtype, order="C"))
        is_finite = values.isfinite()
        if not is_finite.all():
            row = int(rows[int((~is_finite).any(dim=-1).nonzero()[0])])
            raise ShardDataError(
                f"Expected finite features, but those of arm {row}, "
                f"{self.source.place(row)}, hold NaN or infinity. Impute or drop them."
            )
        for low, width in self.units:
            values = (values - low) / width
        return values

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self).over, (self.source, self.added, self.units)

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        more = f", and {len(self.added):,} in memory" if len(self.added) else ""
        return (
            f"{type(self).__name__} of {self.source.num_rows:,} rows{more}, "
            f"{self.source.num_columns} features of {self.dtype}"
        )


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
