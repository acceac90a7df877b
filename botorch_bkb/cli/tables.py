"""Tables in and out: CSV as people save it, Excel, Parquet."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.cli.columns import row_name
from botorch_bkb.cli.csv_format import CsvFormat, find_csv_format, SEPARATORS
from botorch_bkb.cli.progress import note


CSV_SUFFIXES = (".csv", ".tsv", ".txt")
# The numbers of a larger Parquet table stay in its file.
MAX_TABLE_BYTES = 2**30
BYTES = (pa.bool_(), pa.uint8(), pa.int8())
# Of a CSV file, from which on it is read in parts, and their rows.
MIN_TO_CHUNK = 2**24
ROWS_OF_A_CHUNK = 5_000
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zip", ".zst")


def read_table(
    path: Path,
    text_columns: Collection[str] = (),
    *,
    separator: str | None = None,
    decimal: str | None = None,
    as_text: bool = False,
    columns: Collection[str] | None = None,
) -> pd.DataFrame:
    """Read a CSV file, perhaps compressed, an Excel or a Parquet file, by its suffix.

    Names of columns lose the spaces around them; blank rows, and empty columns without
    a name, are left out; the index keeps the number of each row in the file, from zero.
    Prints what was found of a CSV file that is not written with commas, decimal points
    and UTF-8.

    Args:
        path: The file.
        text_columns: Columns to keep as text, so that an id ``007`` stays one.
        separator: The separator of a CSV file; found from the file if omitted.
        decimal: The decimal mark of a CSV file; found from the file if omitted.
        as_text: Whether to keep all columns of a CSV file as text.
        columns: What to read of a Parquet file, where it has them; all if omitted.

    Raises:
        InputDataError: If the file is missing, of another kind, or not readable, has
            rows longer than its header, a column twice or one without a name.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}.")
    kind = table_kind(path)
    try:
        if kind == "parquet":
            if columns is not None:
                columns = [name for name in parquet_columns(path) if name in columns]
            table = pd.read_parquet(path, columns=columns).reset_index(drop=True)
            # What reading took, which pyarrow keeps for another time.
            pa.default_memory_pool().release_unused()
            # Of a damaged file: text that is none shows only where it is decoded.
            table.select_dtypes("str").to_numpy(dtype=object)
        elif kind == "excel":
            table = _read_excel(path)
        else:
            table = _read_csv(path, text_columns, separator, decimal, as_text)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except InputDataError:
        raise
    # Which of their many errors pandas, pyarrow and zlib raise is no matter here.
    except Exception as error:
        raise InputDataError(f"Could not read the table {path}: {error}") from error
    table.columns = pd.Index([str(name).strip() for name in table.columns])
    table = _without_unnamed(table, path)
    repeated = table.columns[table.columns.duplicated()]
    if len(repeated):
        raise InputDataError(
            f"{path} has the column {repeated[0]!r} more than once. Rename one of them."
        )
    for column in table.columns.intersection(list(text_columns)):
        table[column] = table[column].astype("str").where(table[column].notna())
        # One letter or a letter and its accent: the same id.
        table[column] = table[column].str.strip().str.normalize("NFC")
    return table


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
    path: Path, columns: Sequence[str], rows: NDArray[np.int64]
) -> pd.DataFrame:
    """Read some rows of a Parquet file, one row group after the other."""
    order = np.argsort(rows, kind="stable")
    parts = []
    with pq.ParquetFile(path) as file:
        stop = 0
        for number in range(file.num_row_groups):
            start, stop = stop, stop + file.metadata.row_group(number).num_rows
            here = rows[order][(rows[order] >= start) & (rows[order] < stop)]
            if len(here):
                group = file.read_row_group(number, columns=list(columns))
                parts.append(group.take(here - start))
    table = pa.concat_tables(parts).select(list(columns)).to_pandas()
    return table.iloc[np.argsort(order)].reset_index(drop=True)


def _read_csv(
    path: Path,
    text_columns: Collection[str],
    separator: str | None,
    decimal: str | None,
    as_text: bool,
) -> pd.DataFrame:
    form = find_csv_format(path, text_columns, separator=separator, decimal=decimal)
    if not as_text and not form.is_plain:
        note(f"{path.name} is read with {form}")
    options: dict[str, Any] = {
        "sep": form.separator,
        "decimal": form.decimal,
        "encoding": form.encoding,
        "skiprows": form.num_skipped,
        "skipinitialspace": True,
    }
    try:
        # With the names read apart: pandas renames columns of the same name, and takes
        # the first column for an index where the rows are longer than the header.
        head = pd.read_csv(path, header=None, nrows=1, dtype="str", **options)
        names = head.iloc[0].fillna("")
        is_text = [name for name in names if name.strip() in text_columns]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            # A column of mixed types is looked at later, value by value.
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            options |= {
                "dtype": "str" if as_text else dict.fromkeys(is_text, "str"),
                "index_col": False,
                "skip_blank_lines": False,
            }
            table = _read_chunks(path, options)
            if table is None:
                table = pd.read_csv(path, **options)
    except pd.errors.ParserWarning as warning:
        raise ValueError(
            "row 1 has more fields than the header. Is the first line the header? "
            "Numbers with decimal commas need another separator, or quotation marks."
        ) from warning
    except pd.errors.ParserError as error:
        raise ValueError(
            f"{str(error).strip()}. Is the first line the header, with a name for "
            "every column, and does every row begin a line?"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{error}. Save it as UTF-8, which spreadsheets call CSV UTF-8."
        ) from error
    if len(names) == len(table.columns):
        table.columns = pd.Index(names)
    return _without_blank_rows(table)


def _read_chunks(path: Path, options: dict[str, Any]) -> pd.DataFrame | None:
    """Read a large CSV file with a byte for a small whole number; None for others.

    None too where a column has other kinds of values in one part of the file than in
    another: what it is, only all of it tells.
    """
    if path.stat().st_size < MIN_TO_CHUNK:
        return None
    with pd.read_csv(path, chunksize=ROWS_OF_A_CHUNK, **options) as reader:
        chunks = [_with_bytes(chunk) for chunk in reader]
    kinds = {
        tuple("whole" if str(kind) in ("int64", "uint8") else str(kind) for kind in row)
        for row in (chunk.dtypes for chunk in chunks)
    }
    return pd.concat(chunks) if len(kinds) == 1 else None


def _with_bytes(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns of whole numbers from 0 to 255 are bytes."""
    whole = table.select_dtypes("int64")
    is_small = (whole.min() >= 0) & (whole.max() <= 255)
    return table.astype(dict.fromkeys(whole.columns[is_small], "uint8"))


def _read_excel(path: Path) -> pd.DataFrame:
    with pd.ExcelFile(path, engine="openpyxl") as book:
        sheets = book.sheet_names
        # As with CSV files, pandas would rename columns.
        cells = pd.read_excel(book, header=None, dtype=object)
    cells = cells.replace(r"^\s*$", np.nan, regex=True)
    if len(sheets) > 1:
        note(f"{path.name} has {len(sheets)} sheets, of which {sheets[0]!r} is read")
    cells = cells.loc[cells.notna().any(axis="columns").cummax()]
    if cells.empty:
        return pd.DataFrame()
    table = cells.iloc[1:].reset_index(drop=True)
    table.columns = pd.Index(cells.iloc[0].fillna("").astype("str"))
    return _without_blank_rows(table).infer_objects()


def _without_blank_rows(table: pd.DataFrame) -> pd.DataFrame:
    is_blank = table.isna().all(axis="columns")
    if not is_blank.any():
        return table
    # Truth values beside a blank are objects.
    return table[~is_blank].infer_objects()


def _without_unnamed(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Leave out what a spreadsheet saves of columns that were used once."""
    is_unnamed = table.columns == ""
    if not is_unnamed.any():
        return table
    filled = table.loc[:, is_unnamed].notna()
    if filled.any(axis=None):
        row = int(table.index[filled.any(axis="columns")][0])
        raise InputDataError(
            f"{path} has values in a column without a name, first in row {row + 1} "
            "(the first under the header is row 1). Name it in the header, or remove "
            "it; one that counts rows is no feature."
        )
    return table.loc[:, ~is_unnamed]


def write_table(table: pd.DataFrame, path: Path, form: CsvFormat | None = None) -> None:
    """Write a CSV, Excel or Parquet file, by its suffix, and the folders above it.

    Args:
        table: The table.
        path: The file.
        form: How to write a CSV file; commas, decimal points and UTF-8 if omitted.

    Raises:
        InputDataError: If the encoding lacks a letter.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = table_kind(path)
    if kind == "parquet":
        table.to_parquet(path, index=False)
    elif kind == "excel":
        table.to_excel(path, index=False)
    else:
        form = CsvFormat() if form is None else form
        try:
            table.to_csv(
                path,
                index=False,
                sep=form.separator,
                decimal=form.decimal,
                encoding=form.encoding,
            )
        except UnicodeEncodeError as error:
            path.unlink(missing_ok=True)
            raise InputDataError(
                f"{path} cannot hold {error.object[error.start]!r} in {error.encoding},"
                " in which the table that it goes with is written. Save that as UTF-8."
            ) from error


def table_kind(path: Path) -> Literal["csv", "excel", "parquet"]:
    """Tell the kind of a table by its name.

    Raises:
        InputDataError: If it is of none that is read and written, or of Excel and the
            extra for that is not installed.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        return "parquet"
    if suffixes[-1:] == [".xlsx"]:
        if find_spec("openpyxl") is None:
            raise InputDataError(
                f"{path} needs openpyxl, which is not installed. Install with pip "
                'install "botorch_bkb[excel]", or use CSV UTF-8.'
            )
        return "excel"
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if suffixes and suffixes[-1] in CSV_SUFFIXES:
        return "csv"
    raise InputDataError(
        "Expected a table named *.csv, *.csv.gz, *.tsv, *.txt, *.xlsx or *.parquet, "
        f"but got {path}. Save it as CSV UTF-8."
    )


def require_column(table: pd.DataFrame, column: str, path: Path, option: str) -> None:
    """Refuse a table that lacks a column which an option names.

    Raises:
        InputDataError: If the column is missing.
    """
    if column in table.columns:
        return
    hint = ""
    is_split = not any(mark in name for name in table.columns for mark in SEPARATORS)
    if table_kind(path) == "csv" and not (is_split and len(table.columns) > 1):
        hint = (
            " If that is the whole header, pass --separator; if it is a title, remove "
            "the lines above the header."
        )
    raise InputDataError(
        f"{path} has no column {column!r}, only {list(table.columns)}. Name it by "
        f"{option}.{hint}"
    )


def require_ids(ids: pd.Series, path: Path) -> None:
    """Refuse candidates without an id, or with that of another.

    Raises:
        InputDataError: If there is one.
    """
    missing = ids.isna()
    if missing.any():
        raise InputDataError(
            f"{path} has no id in {row_name(missing)}, column {ids.name!r} (NA, None "
            "and the like count as empty)."
        )
    broken = ids.str.contains(r"[\r\n]")
    if broken.any():
        raise InputDataError(
            f"{path} has the id {ids[broken].iloc[0]!r} in {row_name(broken)}, column "
            f"{ids.name!r}, over several lines. Close the quotation mark before it."
        )
    repeated = ids.duplicated()
    if repeated.any():
        raise InputDataError(
            f"{path} has the id {ids[repeated].iloc[0]!r} more than once, again in "
            f"{row_name(repeated)}, column {ids.name!r}. Keep one row per candidate."
        )
