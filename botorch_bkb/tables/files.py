"""Table files: CSV as programs save it, Excel, Parquet. Cells are not interpreted."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray


KINDS = {".csv": "csv", ".tsv": "csv", ".txt": "csv"}
KINDS |= {".xlsx": "excel", ".parquet": "parquet"}
# If several split header and rows into equally many fields, the first is used.
SEPARATORS = "\t;|,"
# How files begin that have a byte order mark, or are UTF-16 without one.
ENCODINGS = {b"\xff\xfe\0\0|\0\0\xfe\xff": "utf-32", b"\xef\xbb\xbf": "utf-8-sig"}
ENCODINGS |= {b"\xff\xfe|\xfe\xff": "utf-16"}
ENCODINGS |= {b"\0": "utf-16-be", b".\0": "utf-16-le"}
# Three letters in a row that are not ASCII, or bytes that cp1252 lacks or hardly uses.
NOT_WESTERN = re.compile(b"[\x80-\xff]{3,20}|[\x81\x83\x8d\x8f\x90\x9d]")
# The parts of an Excel format that are not places for digits.
LITERALS = re.compile(r'"[^"]*"|\\.|_.|\*.|\[[^\]]*\]')
# The first bytes of Parquet files, workbooks and old workbooks.
SIGNATURES = (b"PAR1", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# White space at the ends of a cell. Other invisible characters are refused.
BLANKS = " \t\r\n\u00a0\u2007\u202f"
HEAD_LENGTH = 2**16
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
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read.

    Attributes:
        frame: The columns. The index is the number of each row in the file, from zero,
            which is the header.
        form: The format of a CSV file; None for other kinds.
        notes: What a user may not expect of how the file was read.
        failed: The rows (of the index) whose result says that the measurement failed.
        typed: The columns that are read as text, but are not text in the file.
        sheet: The sheet of an Excel file.
        percents: The columns of numbers that have percent signs in the file.
    """

    frame: pd.DataFrame
    form: CsvFormat | None = None
    notes: tuple[str, ...] = ()
    failed: pd.Index = field(default_factory=lambda: pd.Index([]))
    typed: dict[str, pd.Series] = field(default_factory=dict)
    sheet: str = ""
    percents: frozenset[str] = frozenset()


def read_cells(
    path: Path,
    columns: Collection[str | None] | None,
    separator: str | None,
    encoding: str | None,
    sheets: list[str],
) -> Table:
    """Read the cells of a table as they stand in the file: those of CSV as text.

    The arguments are those of :func:`~botorch_bkb.tables.columns.read_table`.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}. Correct the name.")
    kind = table_kind(path)
    try:
        if kind == "parquet":
            table = Table(_read_parquet(path, columns))
        elif kind == "excel":
            table = _read_excel(path, sheets)
        else:
            table = _read_csv(path, separator, encoding)
    except InputDataError:
        raise
    # pandas, pyarrow and zlib raise many kinds of errors.
    except Exception as error:
        raise InputDataError(
            f"Could not read the table {path}: {str(error).strip().rstrip('.')}. The "
            "suffix of the name must be that of its kind. Every row of a CSV file "
            "begins a line; fields with the separator in them, such as decimal commas, "
            "need quotation marks; other encodings than UTF-8 need --encoding."
        ) from error
    names = [str(name).strip() for name in table.frame.columns]
    return replace(table, frame=table.frame.set_axis(names, axis="columns"))


def _read_csv(path: Path, separator: str | None, encoding: str | None) -> Table:
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        data: bytes = file.read()
    if data.startswith(SIGNATURES):
        raise ValueError("it is a workbook, an archive or a Parquet file")
    encoding = _find_encoding(data, encoding, path)
    text = data.decode(encoding)
    hint = re.match(r'"?sep=(.)"?[ \t]*(?:\r\n?|\n|$)', text)
    if hint is not None:  # spreadsheets do not show this line
        separator, text = separator or hint[1], text[hint.end() :]
    separator, num_columns = _find_separator(text, separator)
    form = CsvFormat(separator, encoding=encoding)
    if not num_columns:
        return Table(pd.DataFrame(), form)
    cells = pd.read_csv(
        io.StringIO(text, newline=""),
        sep=separator,
        # The header is read as a row: pandas would rename equal names.
        header=None,
        names=range(num_columns),
        dtype="str",
        keep_default_na=False,
        skipinitialspace=True,
        skip_blank_lines=False,
    )
    return Table(_with_header(cells), form)


def _with_header(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows below the first one with cells, which names the columns."""
    is_filled = cells.notna() & (cells != "")
    cells = cells.loc[is_filled.any(axis="columns").cummax()]
    frame = cells.iloc[1:]
    if len(cells):
        frame.columns = pd.Index(cells.iloc[0].fillna("").astype("str"))
    return frame


def _find_encoding(data: bytes, encoding: str | None, path: Path) -> str:
    """Return Unicode if a text is, else ``encoding``, which is cp1252 if omitted."""
    for mark, name in ENCODINGS.items():
        if re.match(mark, data):
            return name
    try:
        data.decode()
    except UnicodeDecodeError:
        found = NOT_WESTERN.search(data)
        if encoding is None and found is not None:
            raise InputDataError(
                f"{path} is not UTF-8. As cp1252 it has the letters "
                f"{found[0].decode('cp1252', 'replace')!r}: pass --encoding cp1252 if "
                "they are right, else gbk, big5, shift_jis, cp1251 or another."
            ) from None
        return encoding or "cp1252"
    return "utf-8"


def _find_separator(text: str, separator: str | None) -> tuple[str, int]:
    """Return what splits the header into the most names, and the number of columns."""
    head = text[: text.find("\n", HEAD_LENGTH) + 1 or None]
    widths = {mark: _widths(head, mark) for mark in SEPARATORS + (separator or "")}
    if separator is None or widths[separator][0] < 2:
        separator = max(SEPARATORS, key=widths.__getitem__)
    width = max(widths[separator])
    return separator if width > 1 else ",", width


def _widths(head: str, separator: str) -> tuple[int, int]:
    """Return the numbers of fields of the header, and of columns."""
    rows = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
    widths = [len(row) for row in rows if any(map(str.strip, row))] or [0]
    # A longer row is a mistake, unless it is the first one, or under a title.
    is_header = 1 < widths[0] == max(widths[:2])
    return widths[0], widths[0] if is_header else max(widths)


def _read_excel(path: Path, sheets: list[str]) -> Table:
    """Read the only sheet with values, or take the next of ``sheets``."""
    from openpyxl import load_workbook

    with (
        closing(load_workbook(path, read_only=True, data_only=True)) as book,
        closing(load_workbook(path, read_only=True)) as formulas,
    ):
        for sheet in (*book.worksheets, *formulas.worksheets):
            sheet.reset_dimensions()  # which some programs write wrong
        shown = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
        names = [sheet.title for sheet in shown if any(map(any, sheet.values))]
        name = (names or book.sheetnames)[0]
        if len(names) > 1:
            name = sheets.pop(0) if sheets else "none of them"
        if names and name not in names:
            raise InputDataError(
                f"{path} has the sheets {names}, but --sheet names {name}. Pass it "
                "once for each table from a file with several sheets, in the order "
                "candidates, results; or save the sheet as a file of its own."
            )
        with formulas[name]._get_source() as source:
            merged = re.search(rb'<mergeCell ref="([^"]*)', source.read())
        if merged:
            raise InputDataError(
                f"{path} has merged cells, first {merged[1].decode()}. Unmerge them, "
                "and fill in all rows."
            )
        pairs = zip(book[name].rows, formulas[name].rows, strict=True)
        rows = zip_longest(*([*map(_shown, *pair)] for pair in pairs))
        cells = pd.DataFrame(rows, dtype=object).T
    cells = cells.replace(r"^\s*$", np.nan, regex=True)
    return Table(_with_header(cells), sheet=name)


def _shown(cell: Any, source: Any) -> object:
    """Return a cell's value, or text if it shows another, or lacks its formula's."""
    value = cell.value
    if source.data_type == "f" and value is None and cell.data_type == "n":
        return f"formula {getattr(source.value, 'text', source.value)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    form = LITERALS.sub("", cell.number_format)
    if re.search(r"[0#?],+(?![0#?,])", form):
        return f"{value:.15g} shown scaled"
    if "%" in form:
        return f"{100 * value:.15g}%"
    return int(value) if value == int(value) else value


def _read_parquet(path: Path, columns: Collection[str | None] | None) -> pd.DataFrame:
    own = parquet_columns(path)
    names = None if columns is None else [name for name in own if name in columns]
    table = pd.read_parquet(path, columns=names)
    table = table.reset_index([name for name in table.index.names if name is not None])
    table = table.reset_index(drop=True)[names or [*table]]
    table.index += 1  # the header is row 0
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
        write = _write_excel if kind == "excel" else pd.DataFrame.to_parquet
        try:
            write(table, path, index=False)
        except (pa.ArrowException, TypeError, ValueError):  # mixed types, time zones
            texts = table.select_dtypes(exclude="number").astype("str")
            write(table.assign(**texts), path, index=False)
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


def _write_excel(table: pd.DataFrame, path: Path, *, index: bool) -> None:
    """Write text after "=" and whole numbers that Excel would round as text."""
    with pd.ExcelWriter(path, engine="openpyxl") as file:
        table.to_excel(file, index=index)
        for cell in chain(*next(iter(file.sheets.values())).iter_rows()):
            is_long = isinstance(cell.value, int) and abs(cell.value) >= 10**15
            if is_long or cell.data_type == "f":
                cell.value, cell.data_type = f"{cell.value}", "s"


def require_own(option: str, path: Path, mark: str, separator: str | None) -> None:
    """Raise an error if a file exists that no earlier run wrote, without its mark."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    text = path.read_bytes().decode(errors="replace")
    with suppress(InputDataError):
        table = read_cells(path, None, separator, None, [])
        text = "\n".join([*table.frame.columns, "", text])
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
            f" but got {path}. Save tables as CSV UTF-8, and name outputs *.csv."
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
    names = pq.read_schema(path).names
    # pandas keeps the numbers of rows.
    return [name for name in names if not name.startswith("__index_level_")]


def read_rows(
    path: Path, columns: Collection[str], rows: NDArray[np.int64]
) -> pd.DataFrame:
    """Read some rows of a Parquet file that may be larger than memory."""
    scanner = pyarrow.dataset.dataset(path).scanner(columns=list(columns))
    return scanner.take(pa.array(rows)).to_pandas()
