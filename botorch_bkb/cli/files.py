"""Table files: CSV as programs save it, Excel, Parquet. Cells are not interpreted."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from typing_extensions import override


KINDS = {".csv": "csv", ".tsv": "csv", ".txt": "csv"}
KINDS |= {".xlsx": "excel", ".parquet": "parquet"}
# If several split the header into equally many names, the first is used.
SEPARATORS = "\t;|,"
BYTE_ORDER_MARKS = {
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}
# The first bytes of Parquet files, workbooks and old workbooks.
SIGNATURES = (b"PAR1", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# White space at the ends of a cell. Other invisible characters are refused.
BLANKS = " \t\r\n\u00a0\u2007\u202f"
HEAD_BYTES = 2**16
# The numbers of a larger Parquet table stay in its file.
MAX_TABLE_BYTES = 2**30
BYTES = (pa.bool_(), pa.uint8(), pa.int8())


@dataclass(frozen=True)
class CsvFormat:
    """The format of a CSV file.

    Attributes:
        separator: The character between fields.
        decimal: ``"."`` or ``","``.
        encoding: Python's name of the encoding.
        num_skipped: The number of lines above the header: blank ones, or ``sep=;``.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    num_skipped: int = 0

    @override
    def __str__(self) -> str:
        return (
            f"{self.separator!r} between fields, {self.decimal!r} before decimals, "
            f"{self.encoding}"
        )


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read.

    Attributes:
        frame: The columns. The index is the number of each row in the file, from zero.
        form: The format of a CSV file; None for other kinds.
        notes: What a user may not expect of how the file was read.
        failed: The rows (of the index) whose result says that the measurement failed.
        typed: The columns that are read as text, but are not text in the file.
    """

    frame: pd.DataFrame
    form: CsvFormat | None = None
    notes: tuple[str, ...] = ()
    failed: pd.Index = field(default_factory=lambda: pd.Index([]))
    typed: dict[str, pd.Series] = field(default_factory=dict)


def read_cells(
    path: Path, separator: str | None, columns: Collection[str | None] | None
) -> Table:
    """Read the cells of a table as they stand in the file: those of CSV as text.

    The arguments are those of :func:`~botorch_bkb.cli.tables.read_table`.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}. Correct the name.")
    kind = table_kind(path)
    try:
        if kind == "parquet":
            table = Table(_read_parquet(path, columns))
        else:
            table = _read_excel(path) if kind == "excel" else _read_csv(path, separator)
    # pandas, pyarrow and zlib raise many kinds of errors.
    except Exception as error:
        raise InputDataError(
            f"Could not read the table {path}: {str(error).strip().rstrip('.')}. The "
            "suffix of the name must be that of its kind. The first line of a CSV "
            "file must be the header, with a name for every column; every row begins "
            "a line; fields with the separator in them, such as decimal commas, need "
            "quotation marks; the encoding must be UTF-8 or UTF-16."
        ) from error
    names = [str(name).strip() for name in table.frame.columns]
    return replace(table, frame=table.frame.set_axis(names, axis="columns"))


def _read_csv(path: Path, separator: str | None) -> Table:
    form, num_columns = _find_format(path, separator)
    if not num_columns:
        return Table(pd.DataFrame(), form)
    options: dict[str, Any] = {
        "sep": form.separator,
        "skiprows": form.num_skipped,
        # The header is read as a row: pandas would rename equal names.
        "header": None,
        "names": range(num_columns),
        "dtype": "str",
        "keep_default_na": False,
        "skipinitialspace": True,
        "skip_blank_lines": False,
    }
    try:
        cells = pd.read_csv(path, encoding=form.encoding, **options)
    except UnicodeDecodeError:
        if form.encoding != "utf-8":
            raise
        form = replace(form, encoding="cp1252")
        cells = pd.read_csv(path, encoding=form.encoding, **options)
    return Table(_with_header(cells), form)


def _with_header(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows below the first one, which names the columns."""
    frame = cells.iloc[1:].reset_index(drop=True)
    if len(cells):
        frame.columns = pd.Index(cells.iloc[0].fillna("").astype("str"))
    return frame


def _find_format(path: Path, separator: str | None) -> tuple[CsvFormat, int]:
    """Find the format of a CSV file from its header, and the number of columns.

    The separator is the one that splits the header into the most names. UTF-16 is
    recognized by its mark or its zeros. Other files are UTF-8 unless a byte is invalid.
    """
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        head: bytes = file.read(HEAD_BYTES) + file.readline()
    if head.startswith(SIGNATURES):
        raise ValueError("it is a workbook, an archive or a Parquet file")
    encoding = "utf-8"
    if 0 in head[:2]:
        encoding = "utf-16-le" if head[0] else "utf-16-be"
    for mark, name in BYTE_ORDER_MARKS.items():
        encoding = name if head.startswith(mark) else encoding
    lines = io.StringIO(head.decode(encoding, "replace"), newline="").readlines()
    num_skipped, hint = 0, re.fullmatch(r'"?sep=(.)"?\s*', "".join(lines[:1]))
    if hint is not None:
        separator, num_skipped = separator or hint[1], 1
    while lines[num_skipped:] and not lines[num_skipped].strip(BLANKS + ",;|"):
        num_skipped += 1
    marks = [*SEPARATORS] if separator is None else [separator, *SEPARATORS]
    rows = {mark: _first_rows(lines[num_skipped:], mark) for mark in marks}
    if separator is None or len(rows[separator][0]) < 2:
        separator = max(SEPARATORS, key=lambda mark: len(rows[mark][0]))
        separator = separator if len(rows[separator][0]) > 1 else ","
    header, row = rows[separator]
    # Some programs end all rows except the header with a separator.
    num_columns = len(header) + (len(row) == len(header) + 1 and row[-1] == "")
    form = CsvFormat(separator, encoding=encoding, num_skipped=num_skipped)
    return form, num_columns


def _first_rows(lines: list[str], separator: str) -> tuple[list[str], list[str]]:
    """Return the header and the first row below it, split."""
    rows = filter(any, csv.reader(lines, delimiter=separator))
    return next(rows, []), next(rows, [])


def _read_excel(path: Path) -> Table:
    with pd.ExcelFile(path, engine="openpyxl") as book:
        sheets = book.sheet_names
        # As with CSV files, pandas would rename equal names.
        cells = pd.read_excel(book, header=None, dtype=object, keep_default_na=False)
    cells = cells.replace(r"^\s*$", np.nan, regex=True)
    frame = _with_header(cells.loc[cells.notna().any(axis="columns").cummax()])
    notes = [f"{sheets[0]!r}, the first of {len(sheets)} sheets, is read"]
    return Table(frame, notes=tuple(notes) if len(sheets) > 1 else ())


def _read_parquet(path: Path, columns: Collection[str | None] | None) -> pd.DataFrame:
    own = parquet_columns(path)
    names = None if columns is None else [name for name in own if name in columns]
    table = pd.read_parquet(path, columns=names).reset_index(drop=True)
    # pyarrow keeps the memory of reading for another time.
    pa.default_memory_pool().release_unused()
    # Invalid text in a damaged file is an error only when it is decoded.
    table.select_dtypes("str").to_numpy(dtype=object)
    return table


def write_table(table: pd.DataFrame, path: Path, form: CsvFormat | None = None) -> None:
    """Write a CSV, Excel or Parquet file, by its suffix, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = table_kind(path)
    if kind != "csv":
        try:
            getattr(table, f"to_{kind}")(path, index=False)
        except (pa.ArrowException, TypeError, ValueError):  # mixed types, time zones
            texts = table.select_dtypes(exclude="number").astype("str")
            getattr(table.assign(**texts), f"to_{kind}")(path, index=False)
    else:
        form = form or CsvFormat()
        sep, decimal, encoding = form.separator, form.decimal, form.encoding
        try:
            table.to_csv(path, index=False, sep=sep, decimal=decimal, encoding=encoding)
        except UnicodeEncodeError as error:
            path.unlink(missing_ok=True)
            raise InputDataError(
                f"{path} cannot hold {error.object[error.start]!r} in {error.encoding},"
                " the encoding of the table whose format it has. Save that table as "
                "UTF-8."
            ) from error


def require_own(option: str, path: Path, mark: str, separator: str | None) -> None:
    """Raise an error if a file exists that no earlier run wrote, without its mark."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        table = read_cells(path, separator, None)
        text = "" if table.notes else ",".join(table.frame.columns)
    except InputDataError:
        text = path.read_bytes().decode(errors="replace")
    if not re.search(mark, text):
        raise InputDataError(
            f"{option} would replace {path}, which no earlier run wrote. Move that "
            f"file away, or name another {option}."
        )


def table_kind(path: Path) -> str:
    """Return the kind of a table, ``csv``, ``excel`` or ``parquet``, by its name."""
    stem = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    kind = KINDS.get(stem.suffix.lower())
    if kind is None or (stem is not path and kind != "csv"):
        raise InputDataError(
            "Expected a table named *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet,"
            f" but got {path}. Save it as CSV UTF-8."
        )
    if kind == "excel" and find_spec("openpyxl") is None:
        raise InputDataError(
            f"{path} needs openpyxl, which is not installed. Install it with pip "
            'install "botorch_bkb[excel]", or use CSV UTF-8.'
        )
    return kind


def is_library(path: Path) -> bool:
    """Whether a table is a Parquet file that is too large to be read as a whole.

    Columns of bits and of small counts do not count: they stay as small as they are.
    """
    if table_kind(path) != "parquet" or not path.is_file():
        return False
    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, OSError):  # reported where the file is read
        return False
    num_wide = sum(kind not in BYTES for kind in schema.types)
    return 8 * footer.num_rows * num_wide > MAX_TABLE_BYTES


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a Parquet file's columns."""
    return list(pq.read_schema(path).names)


def read_rows(
    path: Path, columns: Collection[str], rows: NDArray[np.int64]
) -> pd.DataFrame:
    """Read some rows of a Parquet file that may be larger than memory."""
    scanner = pyarrow.dataset.dataset(path).scanner(columns=list(columns))
    return scanner.take(pa.array(rows)).to_pandas()
