"""Arms in Parquet files, read row group by row group."""

from __future__ import annotations

import glob
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from botorch_bkb.arms.stored import RowSource, ShardDataError, stamp_of, StoredArms
from botorch_bkb.checks import check_indices


# Of the row groups that were read last: one at least.
CACHE_BYTES = 2**28
# A row group is in memory as a whole.
MAX_GROUP_BYTES = 2**30
# Of rows that were taken from here and there: what is pulled is needed again.
KEPT_BYTES = 2**24
# What Python needs of memory for each of them.
ROW_OVERHEAD = 200
# Mean gap above which requested rows are read one by one.
FAR_APART = 64
# How pandas names a column that has the numbers of rows.
ROW_NUMBERS = "__index_level_"
# A pass over the files shows how far it is when it has taken so long.
BAR_SECONDS = 3.0


class ParquetArms(StoredArms):
    r"""Arms of one or several Parquet files: see ``StoredArms``.

    An arm is its position among the rows of the files, in the order of their paths. The
    constructor reads footers only. Row groups are read as they are needed; files must
    not change as long as the arms are in use. Memory: 256 MiB of row groups, or one if
    that is larger (at most 1 GiB), once more while it is read, and 16 MiB of single
    rows. Rows that lie far apart cost a pass over all files when they are first taken:
    row groups of some 100,000 rows read well.

    Needs the extra ``parquet``.

    Args:
        paths: A pattern such as ``"library/*.parquet"``, or a list of files.
        columns: The names of numeric columns, or the name of one whose type is a list
            of fixed size. None: all columns but the ids' and the row numbers of pandas.
        ids: The column of what :meth:`ids` returns.
        dtype: What rows are when they are taken. None: float32 if all that is stored
            is, or else float64.
        quiet: Whether to hide the progress bar of passes over the files that take more
            than a few seconds. It shows on terminals only.

    Raises:
        ImportError: If pyarrow is missing.
        FileNotFoundError: If there is no such file.
        ShardDataError: If a file is no Parquet file, or a column is missing or none of
            numbers; later, if a number is missing or not finite, or a file cannot be
            read or has changed. The message names the file, and the row group.

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
        return cls.of(source, dtype)

    def ids(self, indices: Tensor | Sequence[int]) -> list[Any]:
        """Return the ids of some arms, read from the files.

        Raises:
            InputDataError: If no column was named, or an arm is unknown or was added.
        """
        rows = check_indices(indices, self.source.num_rows)
        return self.source.ids(np.array(rows, dtype="int64"))


class ParquetSource(RowSource):
    """The rows of Parquet files; the arguments are those of ``ParquetArms``.

    Attributes:
        groups: File and number of every row group that has rows.
        starts: The first row of each of these, and the number of rows.
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
        self.stamps = {}
        self.groups: list[tuple[Path, int]] = []
        sizes: list[int] = []
        dtypes: list[np.dtype[Any]] = []
        for path in paths:
            self.stamps[path] = stamp_of(path)
            schema, footer = _read(
                path, lambda file: (file.schema_arrow, file.metadata), str(path)
            )
            if columns is None:
                columns = [
                    name
                    for name in schema.names
                    if name != id_column and not name.startswith(ROW_NUMBERS)
                ]
            self.columns = [columns] if isinstance(columns, str) else list(columns)
            for name in [*self.columns, *([id_column] if id_column else [])]:
                if name not in schema.names:
                    raise ShardDataError(
                        f"{path} has no column {name!r}, only {schema.names}."
                    )
            width, file_dtypes = _width_of(schema, self.columns, path)
            if dtypes and width != self.num_columns:
                raise ShardDataError(
                    f"Expected {self.num_columns} features in {path}, as in the files "
                    f"before it, but got {width}."
                )
            self.num_columns = width
            dtypes += file_dtypes
            for number in range(footer.num_row_groups):
                num_rows = footer.row_group(number).num_rows
                if num_rows:
                    self.groups.append((path, number))
                    sizes.append(num_rows)
        self.dtype = np.result_type(*dtypes)
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype("int64")
        self.num_rows = int(self.starts[-1])
        self._row_bytes = self.num_columns * self.dtype.itemsize
        largest = max(sizes, default=0) * self._row_bytes
        if largest > MAX_GROUP_BYTES:
            raise ShardDataError(
                f"Expected row groups of at most {MAX_GROUP_BYTES:,} bytes, but "
                f"{self._name(int(np.argmax(sizes)))} has {largest:,}. Write the file "
                "with a smaller `row_group_size`."
            )
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing in memory."""
        self._lock = Lock()
        self._bar: Any = None
        self._cache: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._kept: dict[int, NDArray[Any]] = {}

    @override
    def take(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        with self._lock:
            if isinstance(rows, slice):
                return self._run(rows.start, rows.stop)
            is_sweep = len(rows) == 0 or np.ptp(rows) < FAR_APART * len(rows)
            most = KEPT_BYTES // (self._row_bytes + ROW_OVERHEAD)
            if is_sweep or len(rows) > most:
                return self._gathered(rows)
            missing = set(rows.tolist()) - self._kept.keys()
            if len(self._kept) + len(missing) > most:
                self._kept.clear()
                missing = set(rows.tolist())
            if missing:
                found = self._gathered(np.array(sorted(missing)))
                self._kept.update(zip(sorted(missing), found, strict=True))
            return np.stack([self._kept[row] for row in rows.tolist()])

    def _run(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows that follow one another."""
        first, last = self._group_of(np.array([start, stop - 1])).tolist()
        parts = []
        for group in range(first, last + 1):
            offset = self.starts[group]
            parts.append(self._group(group)[max(start - offset, 0) : stop - offset])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gathered(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows, one row group after the other."""
        found = np.empty((len(rows), self.num_columns), self.dtype)
        for group, here, places in self._by_group(rows):
            found[here] = self._group(group)[places]
        return found

    def ids(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return the ids of rows."""
        if self.id_column is None:
            raise InputDataError(
                "Expected a column of ids, but none was named. Pass `ids` to "
                "`ParquetArms`."
            )
        found = np.empty(len(rows), dtype=object)
        for group, here, places in self._by_group(rows):
            column = self._table(group, [self.id_column]).column(0)
            found[here] = column.take(places).to_pylist()
        return found.tolist()

    @override
    def place(self, row: int) -> str:
        group = int(self._group_of(np.array([row]))[0])
        return f"row {row - self.starts[group]} of {self._name(group)}"

    def _by_group(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64]]]:
        """Yield each row group, which rows it has, and their places in it."""
        groups = self._group_of(rows)
        for group in np.unique(groups).tolist():
            here = groups == group
            yield group, here, rows[here] - self.starts[group]

    def _group_of(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _name(self, group: int) -> str:
        path, number = self.groups[group]
        return f"row group {number} of {path}"

    def _group(self, group: int) -> NDArray[Any]:
        """Return the features of a row group, from memory if they are there."""
        if group in self._cache:
            self._cache.move_to_end(group)
            return self._cache[group]
        num_bytes = self._row_bytes * int(np.diff(self.starts)[group])
        cached = sum(rows.nbytes for rows in self._cache.values())
        while self._cache and num_bytes + cached > CACHE_BYTES:
            cached -= self._cache.popitem(last=False)[1].nbytes
        self._move_bar(group)
        self._cache[group] = self._decoded(group)
        return self._cache[group]

    def _move_bar(self, group: int) -> None:
        """Show how far a pass over the files is, if that takes some time."""
        if group == 0 and not self.is_quiet:
            self._bar = tqdm(
                desc="Passing over the arms",
                total=len(self.groups),
                unit=" row groups",
                delay=BAR_SECONDS,
                leave=False,
                disable=None,  # where standard error is no terminal
            )
        elif self._bar is not None and group != self._bar.n:
            self._bar.close()  # no pass
            self._bar = None
        if self._bar is not None:
            self._bar.update()
            if self._bar.n == self._bar.total:
                self._bar.close()

    def _decoded(self, group: int) -> NDArray[Any]:
        """Read the features of a row group."""
        columns = self._table(group, self.columns).columns
        for name, column in zip(self.columns, columns, strict=True):
            self._require_filled(column, name, group)
        if hasattr(columns[0].type, "list_size"):
            numbers = columns[0].combine_chunks().flatten()
            self._require_filled(numbers, self.columns[0], group, self.num_columns)
            return numbers.to_numpy(zero_copy_only=False).reshape(-1, self.num_columns)
        # Column by column, as they are stored; rows are gathered as they are read.
        rows = np.empty((self.num_columns, len(columns[0])), self.dtype)
        for place, column in enumerate(columns):
            rows[place] = column.to_numpy()
        return rows.T

    def _require_filled(
        self, column: Any, name: str, group: int, width: int = 1
    ) -> None:
        if column.null_count:
            null = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            row = int(self.starts[group]) + null // width
            raise ShardDataError(
                f"Expected a number in every row of column {name!r}, but that of arm "
                f"{row}, {self.place(row)}, is missing. Impute or drop such rows."
            )

    def _table(self, group: int, columns: list[str]) -> Any:
        """Read columns of a row group, as a table of pyarrow's."""
        path, number = self.groups[group]
        self.verify(path)
        return _read(
            path,
            lambda file: file.read_row_group(number, columns=columns).select(columns),
            self._name(group),
        )

    @override
    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        for name in ("_lock", "_bar", "_cache", "_kept"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def _read(path: Path, part: Callable[[Any], Any], name: str) -> Any:
    """Return a part of a Parquet file.

    Raises:
        ImportError: If pyarrow is missing.
        ShardDataError: If the file cannot be read.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(
            "ParquetArms needs pyarrow, which is not installed. Install with pip "
            'install "botorch_bkb[parquet]", or use ArrayArms.'
        ) from error
    try:
        with ParquetFile(path, page_checksum_verification=True) as file:
            return part(file)
    except Exception as error:  # one of pyarrow's many
        raise ShardDataError(f"{name} cannot be read: {error}") from error


def _files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[Path]:
    """Return the files that are meant, sorted."""
    if not isinstance(paths, str | os.PathLike):
        found = list(paths)
    elif Path(paths).is_file():
        found = [paths]
    else:
        found = list(glob.glob(str(paths), recursive=True))
    if not found:
        raise FileNotFoundError(
            f"Expected Parquet files at {paths}, but there are none. Pass a pattern "
            'such as "library/*.parquet", or a list of files.'
        )
    return sorted(Path(path).resolve() for path in found)


def _width_of(
    schema: Any, columns: list[str], path: Path
) -> tuple[int, list[np.dtype[Any]]]:
    """Return the number of features in some columns, and their dtypes."""
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
                f"them of fixed size if it is the only one, but got {kind}. Leave it "
                "out, or store it as numbers."
            )
        width += kind.list_size if is_list else 1
        dtypes.append(np.dtype(number.to_pandas_dtype()))
    return width, dtypes
