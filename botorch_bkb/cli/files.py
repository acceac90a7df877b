"""Files of tables: CSV as people save it, Excel, Parquet; cells as they stand there."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from typing_extensions import override

from botorch_bkb.cli.columns import is_text


Kind = Literal["csv", "excel", "parquet"]
KINDS: dict[str, Kind] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    ".xlsx": "excel",
    ".parquet": "parquet",
}
# Of those that split the header into equally many names, the first is taken.
SEPARATORS = "\t;|,"
BYTE_ORDER_MARKS = {
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}
# The first bytes of Parquet files, of workbooks, and of old workbooks.
SIGNATURES = (b"PAR1", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# White space at the ends of a cell. Other invisible characters are refused.
BLANKS = " \t\r\n\u00a0\u2007\u202f"
HEAD_BYTES = 2**16
ROWS_OF_A_PART = 5_000
# The numbers of a larger Parquet table stay in its file.
MAX_TABLE_BYTES = 2**30
BYTES = (pa.bool_(), pa.uint8(), pa.int8())


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written.

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

    @property
    def is_plain(self) -> bool:
        """Whether most programs write this format."""
        is_utf8 = self.encoding.startswith("utf-8")
        return (self.separator, self.decimal, is_utf8) == (",", ".", True)


@dataclass(frozen=True, eq=False)
class Table:
    """A table that was read.

    Attributes:
        frame: The columns. The index is the number of each row in the file, from zero.
        form: How a CSV file is written; None for other kinds.
        notes: What a user may not expect of how the file was read.
        failed: The rows (of the index) whose reward says that the measurement failed.
    """

    frame: pd.DataFrame
    form: CsvFormat | None = None
    notes: tuple[str, ...] = ()
    failed: pd.Index = field(default_factory=lambda: pd.Index([]))


def read_cells(
    path: Path,
    *,
    separator: str | None = None,
    columns: Collection[str | None] | None = None,
) -> Table:
    """Read a table's cells as they stand in the file: those of a CSV file as text.

    The arguments are those of :func:`~botorch_bkb.cli.tables.read_table`.

    Raises:
        InputDataError: If the file is missing, of another kind, or not readable.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}.")
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
            "name of the file has to tell its kind. Of a CSV file the first line is "
            "the header, with a name for every column; every row begins a line; fields "
            "with the separator in them, such as decimal commas, are in quotation "
            "marks; the encoding is UTF-8 or UTF-16."
        ) from error
    names = [str(name).strip() for name in table.frame.columns]
    return replace(table, frame=table.frame.set_axis(names, axis="columns"))


def _read_csv(path: Path, separator: str | None) -> Table:
    form, num_columns = _find_format(path, separator)
    if not num_columns:
        return Table(pd.DataFrame(), form)
    try:
        return Table(_read_parts(path, form, num_columns), form)
    except UnicodeDecodeError:
        if form.encoding != "utf-8":
            raise
        form = replace(form, encoding="cp1252")
        return Table(_read_parts(path, form, num_columns), form)


def _find_format(path: Path, separator: str | None) -> tuple[CsvFormat, int]:
    """Find the format of a CSV file from its header, and the number of columns.

    The separator is the one that splits the header into the most names. The encoding is
    UTF-16 by its mark or its zeros; otherwise UTF-8, until a byte contradicts it.
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
    # Some programs end all rows but the header with a separator.
    num_columns = len(header) + (len(row) == len(header) + 1 and row[-1] == "")
    form = CsvFormat(separator, encoding=encoding, num_skipped=num_skipped)
    return form, num_columns


def _first_rows(lines: list[str], separator: str) -> tuple[list[str], list[str]]:
    """Return the header and the first row below, split."""
    rows = filter(any, csv.reader(lines, delimiter=separator))
    return next(rows, []), next(rows, [])


def _read_parts(path: Path, form: CsvFormat, num_columns: int) -> pd.DataFrame:
    """Read text; whole numbers up to 255 as bytes, which are the same text."""
    parts: list[pd.DataFrame] = []
    with pd.read_csv(
        path,
        sep=form.separator,
        encoding=form.encoding,
        skiprows=form.num_skipped,
        # The header is a row as others are: pandas would rename equal names.
        header=None,
        names=range(num_columns),
        dtype="str",
        keep_default_na=False,
        skipinitialspace=True,
        skip_blank_lines=False,
        chunksize=ROWS_OF_A_PART,
    ) as reader:
        for part in reader:
            if not parts:
                header, part = part.iloc[0].fillna(""), part.iloc[1:]
            parts.append(pd.DataFrame({name: _narrow(part[name]) for name in part}))
    texts = {name: "str" for part in parts for name in part if is_text(part[name])}
    parts = [part.astype(texts) for part in parts]
    table = pd.concat(parts)
    table.columns = pd.Index(header)
    table.index -= 1
    return table


def _narrow(text: pd.Series) -> pd.Series:
    """Return whole numbers up to 255 as bytes, if that keeps every cell as written."""
    if not text.iloc[:1].map(str.isdigit).all():
        return text
    try:
        numbers = text.astype("UInt8").astype("uint8")
    except ValueError:
        return text
    return numbers if (numbers.astype("str") == text).all() else text


def _read_excel(path: Path) -> Table:
    with pd.ExcelFile(path, engine="openpyxl") as book:
        sheets = book.sheet_names
        # As with CSV files, pandas would rename equal names.
        cells = pd.read_excel(book, header=None, dtype=object, keep_default_na=False)
    cells = cells.replace(r"^\s*$", np.nan, regex=True)
    cells = cells.loc[cells.notna().any(axis="columns").cummax()]
    frame = cells.iloc[1:].reset_index(drop=True)
    if len(cells):
        frame.columns = pd.Index(cells.iloc[0].fillna("").astype("str"))
    notes = [f"of {len(sheets)} sheets {sheets[0]!r} is read"]
    return Table(frame, notes=tuple(notes) if len(sheets) > 1 else ())


def _read_parquet(path: Path, columns: Collection[str | None] | None) -> pd.DataFrame:
    own = parquet_columns(path)
    names = None if columns is None else [name for name in own if name in columns]
    table = pd.read_parquet(path, columns=names).reset_index(drop=True)
    # pyarrow keeps the memory of reading for another time.
    pa.default_memory_pool().release_unused()
    # In a damaged file, bytes that are no text show only where they are decoded.
    table.select_dtypes("str").to_numpy(dtype=object)
    return table


def write_table(table: pd.DataFrame, path: Path, form: CsvFormat | None = None) -> None:
    """Write a CSV, Excel or Parquet file, by its suffix, and the folders above it.

    Raises:
        InputDataError: If the encoding of ``form`` lacks a letter.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = table_kind(path)
    if kind == "parquet":
        table.to_parquet(path, index=False)
    elif kind == "excel":
        table.to_excel(path, index=False)
    else:
        form = form or CsvFormat()
        sep, decimal, encoding = form.separator, form.decimal, form.encoding
        try:
            table.to_csv(path, index=False, sep=sep, decimal=decimal, encoding=encoding)
        except UnicodeEncodeError as error:
            path.unlink(missing_ok=True)
            raise InputDataError(
                f"{path} cannot hold {error.object[error.start]!r} in {error.encoding},"
                " in which the table that it goes with is written. Save that as UTF-8."
            ) from error


def table_kind(path: Path) -> Kind:
    """Tell the kind of a table by its name.

    Raises:
        InputDataError: If it is of none that is read and written, or of Excel and the
            extra for that is not installed.
    """
    suffix = path.suffix.lower()
    kind = KINDS.get(suffix)
    if suffix == ".gz" and KINDS.get(Path(path.stem).suffix.lower()) == "csv":
        kind = "csv"
    if kind is None:
        raise InputDataError(
            "Expected a table named *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet,"
            f" but got {path}. Save it as CSV UTF-8."
        )
    if kind == "excel" and find_spec("openpyxl") is None:
        raise InputDataError(
            f"{path} needs openpyxl, which is not installed. Install with pip install "
            '"botorch_bkb[excel]", or use CSV UTF-8.'
        )
    return kind


def is_library(path: Path) -> bool:
    """Whether a table is one of Parquet, and too large to be read as a whole.

    Columns of bits and of small counts do not count: they stay as small as they are.
    """
    if table_kind(path) != "parquet" or not path.is_file():
        return False
    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, OSError):  # which is said where it is read
        return False
    num_wide = sum(kind not in BYTES for kind in schema.types)
    return 8 * footer.num_rows * num_wide > MAX_TABLE_BYTES


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a Parquet file's columns."""
    return list(pq.read_schema(path).names)


def read_rows(
    path: Path, columns: Collection[str], rows: NDArray[np.int64]
) -> pd.DataFrame:
    """Read some rows of a Parquet file, which memory need not hold."""
    scanner = pyarrow.dataset.dataset(path).scanner(columns=list(columns))
    return scanner.take(pa.array(rows)).to_pandas()
