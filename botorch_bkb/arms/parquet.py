"""Arms in Parquet files, of which a row group at a time is in memory."""

from __future__ import annotations

import glob
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.stored import dtype_of, RowSource, ShardDataError, StoredArms
from botorch_bkb.checks import check_indices


# Of the row groups that were read last: one at least.
CACHE_BYTES = 2**28
# A row group is in memory as a whole.
MAX_GROUP_BYTES = 2**30
# Of rows that were taken from here and there: what is pulled is needed again.
KEPT_BYTES = 2**24
# Rows this much further apart than rows in a row are not part of a sweep.
FAR_APART = 64
# A pass over the files shows how far it is when it has taken so long.
BAR_SECONDS = 3.0


class ParquetArms(StoredArms):
    r"""Arms of one or several Parquet files: see ``StoredArms``.

    An arm is its position among the rows of the files, in the order of their paths. The
    constructor reads footers only. Row groups are read as they are needed, the wanted
    columns only; a file must not change as long as the arms are in use. Memory: 256 MiB
    of row groups, or one where that is larger (at most 1 GiB), once more while it is
    read, and 16 MiB of single rows. Rows that lie far apart cost a pass over all files
    when they are first taken: row groups of some 100,000 rows read well.

    Needs the extra ``parquet``.

    Args:
        paths: A pattern such as ``"library/*.parquet"``, or a list of files.
        columns: The names of numeric columns, or the name of one whose type is a list
            of fixed size. None: all columns but the ids'.
        ids: The column of what :meth:`ids` returns.
        dtype: What rows are when they are taken. None: what is stored, if all of it is
            float32 or float64, or else float64.
        quiet: Whether to hide the progress bar of passes over the files that take more
            than a few seconds. It hides itself where standard error is no terminal.

    Raises:
        ImportError: If pyarrow is missing.
        FileNotFoundError: If there is no such file.
        ShardDataError: If a file is no Parquet file, or a column is missing or none of
            numbers; later, where a number is missing or not finite, or a file cannot
            be read or has changed. The message names the file, and the row group.

    Example:
        >>> arms = ParquetArms("library/*.parquet", columns=["x0", "x1"], ids="name")
        >>> bandit = BBKB(arms, covar_module=kernel, noise_variance=0.1)
        >>> names = arms.ids(bandit.ask())
    """

    source: ParquetSource

    @staticmethod
    def __new__(
        cls,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: str | Sequence[str] | None = None,
        *,
        ids: str | None = None,
        dtype: torch.dtype | None = None,
        quiet: bool = False,
    ) -> ParquetArms:
        """Read the footers."""
        source = ParquetSource(_files(paths), columns, ids, quiet)
        return cls.of(source, dtype_of(source.dtype, dtype))

    def ids(self, indices: Tensor | Sequence[int]) -> list[Any]:
        """Return the ids of some arms, read from the files.

        Args:
            indices: The arms.

        Raises:
            InputDataError: If no column was named, or an arm is unknown or was added.
        """
        rows = check_indices(indices, self.source.num_rows)
        return self.source.ids(np.array(rows, dtype="int64"))


@dataclass(frozen=True)
class ParquetFile:
    """A file as it was when its footer was read.

    Attributes:
        path: Where it is.
        stamp: Its size and time of change.
    """

    path: Path
    stamp: tuple[int, int]

    def require_unchanged(self) -> None:
        """Refuse a file that is not what it was.

        Raises:
            ShardDataError: If it has changed.
        """
        try:
            found = _stamp(self.path)
        except OSError as error:
            raise ShardDataError(f"{self.path} cannot be read: {error}") from error
        if found != self.stamp:
            raise ShardDataError(
                f"Expected {self.path} to stay as it is, but it has changed since its "
                "footer was read. Construct arms and bandit anew."
            )


class ParquetSource(RowSource):
    """The rows of Parquet files.

    Args:
        paths: The files.
        columns: As in ``ParquetArms``.
        id_column: The column of ids.
        is_quiet: Whether there are no progress bars.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        columns: str | Sequence[str] | None,
        id_column: str | None,
        is_quiet: bool = False,
    ) -> None:
        self.id_column = id_column
        self.is_quiet = is_quiet
        self.files: list[ParquetFile] = []
        # Of every row group that has rows: its file, its number there, its first row.
        self.group_files: list[int] = []
        self.group_numbers: list[int] = []
        sizes: list[int] = []
        dtypes: list[np.dtype[Any]] = []
        for path in paths:
            file = ParquetFile(path, _stamp(path))
            try:
                with _pyarrow_parquet().ParquetFile(path) as opened:
                    schema, footer = opened.schema_arrow, opened.metadata
            except ImportError:
                raise
            except Exception as error:  # one of pyarrow's many
                raise ShardDataError(f"{path} cannot be read: {error}") from error
            if not self.files:
                self.columns = _chosen(columns, schema, id_column)
            wanted = self.columns if id_column is None else [*self.columns, id_column]
            missing = [name for name in wanted if name not in schema.names]
            if missing:
                raise ShardDataError(
                    f"{path} has no column {missing[0]!r}, only {schema.names}."
                )
            width, file_dtypes = _width_of(schema, self.columns, path)
            if self.files and width != self.num_columns:
                raise ShardDataError(
                    f"Expected {self.num_columns} features in {path}, as in the files "
                    f"before it, but got {width}."
                )
            self.num_columns = width
            dtypes += file_dtypes
            for number in range(footer.num_row_groups):
                num_rows = footer.row_group(number).num_rows
                if num_rows:
                    self.group_files.append(len(self.files))
                    self.group_numbers.append(number)
                    sizes.append(num_rows)
            self.files.append(file)
        self.dtype = np.result_type(*dtypes)
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype("int64")
        self.num_rows = int(self.starts[-1])
        largest = max(sizes, default=0) * self._row_bytes
        if largest > MAX_GROUP_BYTES:
            group = int(np.argmax(sizes))
            raise ShardDataError(
                f"Expected row groups of at most {MAX_GROUP_BYTES:,} bytes, but "
                f"{self._group_name(group)} has {largest:,}. Write the file with a "
                "smaller `row_group_size`."
            )
        self._forget()

    @override
    def verify(self) -> None:
        for file in self.files:
            file.require_unchanged()

    def _forget(self) -> None:
        """Begin with nothing in memory."""
        self._lock = RLock()
        self._bar: Any = None
        self._groups: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._kept = np.empty(0, dtype="int64")  # ascending
        self._kept_rows = np.empty((0, self.num_columns), self.dtype)

    @property
    def _row_bytes(self) -> int:
        return self.num_columns * self.dtype.itemsize

    @override
    def read(self, start: int, stop: int) -> NDArray[Any]:
        first, last = self._group_of(np.array([start, stop - 1])).tolist()
        parts = []
        for group in range(first, last + 1):
            offset = self.starts[group]
            rows = slice(max(start - offset, 0), stop - offset)
            parts.append(self._group(group)[rows])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @override
    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if not len(rows):
            return np.empty((0, self.num_columns), self.dtype)
        is_sweep = np.ptp(rows) < FAR_APART * len(rows)
        with self._lock:
            if is_sweep or len(rows) * self._row_bytes > KEPT_BYTES:
                return self._gathered(rows)
            self._keep(rows)
            return self._kept_rows[np.searchsorted(self._kept, rows)]

    def _keep(self, rows: NDArray[np.int64]) -> None:
        """Keep rows in memory; where that is too much, these only."""
        missing = np.setdiff1d(rows, self._kept)
        if not len(missing):
            return
        if (len(self._kept) + len(missing)) * self._row_bytes > KEPT_BYTES:
            self._kept, self._kept_rows = self._kept[:0], self._kept_rows[:0]
            missing = np.unique(rows)
        found = self._gathered(missing)
        places = np.searchsorted(self._kept, missing)
        self._kept = np.insert(self._kept, places, missing)
        self._kept_rows = np.insert(self._kept_rows, places, found, axis=0)

    def _gathered(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows, one row group after the other."""
        found = np.empty((len(rows), self.num_columns), self.dtype)
        groups = self._group_of(rows)
        for group in np.unique(groups).tolist():
            here = groups == group
            found[here] = self._group(group)[rows[here] - self.starts[group]]
        return found

    def ids(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return the ids of rows."""
        if self.id_column is None:
            raise InputDataError(
                "Expected a column of ids, but none was named. Pass `ids` to "
                "`ParquetArms`."
            )
        groups = self._group_of(rows)
        found = np.empty(len(rows), dtype=object)
        for group in np.unique(groups).tolist():
            here = groups == group
            column = self._read_group(group, [self.id_column]).column(0)
            found[here] = column.take(rows[here] - self.starts[group]).to_pylist()
        return found.tolist()

    @override
    def place(self, row: int) -> str:
        group = int(self._group_of(np.array([row]))[0])
        return f"row {row - self.starts[group]} of {self._group_name(group)}"

    def _group_of(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _group_name(self, group: int) -> str:
        path = self.files[self.group_files[group]].path
        return f"row group {self.group_numbers[group]} of {path}"

    def _group(self, group: int) -> NDArray[Any]:
        """Return the features of a row group, from memory if they are there."""
        with self._lock:
            if group in self._groups:
                self._groups.move_to_end(group)
                return self._groups[group]
            num_bytes = self._row_bytes * int(np.diff(self.starts)[group])
            while self._groups and num_bytes + self._cached_bytes > CACHE_BYTES:
                self._groups.popitem(last=False)
            self._move_bar(group)
            self._groups[group] = self._decoded(group)
            return self._groups[group]

    def _move_bar(self, group: int) -> None:
        """Show how far a pass over the files is, if that takes some time."""
        if self._bar is not None and group != self._bar.n:
            self._bar.close()
            self._bar = None
        if group == 0 and not self.is_quiet:
            self._bar = _new_bar(len(self.group_files))
        if self._bar is not None:
            self._bar.update()
            if self._bar.n == self._bar.total:
                self._bar.close()

    @property
    def _cached_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._groups.values())

    def _decoded(self, group: int) -> NDArray[Any]:
        """Read the features of a row group."""
        table = self._read_group(group, self.columns)
        values = []
        for name, column in zip(self.columns, table.columns, strict=True):
            self._require_filled(column, name, group)
            values.append(column)
        if len(values) == 1 and hasattr(values[0].type, "list_size"):
            numbers = values[0].combine_chunks().flatten()
            self._require_filled(numbers, self.columns[0], group, self.num_columns)
            return numbers.to_numpy(zero_copy_only=False).reshape(-1, self.num_columns)
        # A column after the other is how they come; rows are gathered as they are read.
        rows = np.empty((self.num_columns, len(table)), self.dtype)
        for place, column in enumerate(values):
            rows[place] = column.to_numpy()
        return rows.T

    def _require_filled(
        self, column: Any, name: str, group: int, width: int = 1
    ) -> None:
        if not column.null_count:
            return
        is_null = np.asarray(column.is_null())
        row = int(self.starts[group]) + int(np.flatnonzero(is_null)[0]) // width
        raise ShardDataError(
            f"Expected a number in every row of column {name!r}, but that of arm {row},"
            f" {self.place(row)}, is missing. Impute or drop such rows."
        )

    def _read_group(self, group: int, columns: list[str]) -> Any:
        """Read columns of a row group, as a table of pyarrow's."""
        file = self.files[self.group_files[group]]
        file.require_unchanged()
        try:
            with _pyarrow_parquet().ParquetFile(
                file.path, page_checksum_verification=True
            ) as opened:
                number = self.group_numbers[group]
                return opened.read_row_group(number, columns=columns).select(columns)
        except Exception as error:  # one of pyarrow's many
            raise ShardDataError(
                f"{self._group_name(group)} cannot be read: {error}"
            ) from error

    @override
    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        for name in ("_lock", "_bar", "_groups", "_kept", "_kept_rows"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "ParquetArms needs pyarrow, which is not installed. Install with pip "
            'install "botorch_bkb[parquet]", or use ArrayArms.'
        ) from error
    return pyarrow.parquet


def _new_bar(total: int) -> Any:
    """Return a progress bar for a terminal, shown late; None where tqdm is missing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    text = "Passing over the arms"
    return tqdm(
        desc=text,
        total=total,
        unit=" row groups",
        delay=BAR_SECONDS,
        leave=False,
        disable=None,
    )


def _files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[Path]:
    """Return the files that are meant, sorted."""
    if not isinstance(paths, str | os.PathLike):
        found = [Path(path).resolve() for path in paths]
    elif Path(paths).is_file():
        found = [Path(paths).resolve()]
    else:
        matches = glob.glob(str(paths), recursive=True)
        found = [Path(path).resolve() for path in matches]
    if not found:
        raise FileNotFoundError(
            f"Expected Parquet files at {paths}, but there are none. Pass a pattern "
            'such as "library/*.parquet", or a list of files.'
        )
    return sorted(found)


def _stamp(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _chosen(
    columns: str | Sequence[str] | None, schema: Any, id_column: str | None
) -> list[str]:
    """Return the columns of features."""
    if isinstance(columns, str):
        return [columns]
    if columns is None:
        return [name for name in schema.names if name != id_column]
    return list(columns)


def _width_of(
    schema: Any, columns: list[str], path: Path
) -> tuple[int, list[np.dtype[Any]]]:
    """Return how many features columns hold, and of which dtypes."""
    import pyarrow.types as kinds

    if not columns:
        raise BotorchTensorDimensionError("Expected at least one of `columns`.")
    width, dtypes = 0, []
    for name in columns:
        kind = schema.field(name).type
        is_list = len(columns) == 1 and kinds.is_fixed_size_list(kind)
        number = kind.value_type if is_list else kind
        if not (kinds.is_integer(number) or kinds.is_floating(number)):
            raise ShardDataError(
                f"Expected column {name!r} of {path} to hold numbers, or a list of "
                f"them of fixed size if it is the only one, but got {kind}."
            )
        width += kind.list_size if is_list else 1
        dtypes.append(np.dtype(number.to_pandas_dtype()))
    return width, dtypes
