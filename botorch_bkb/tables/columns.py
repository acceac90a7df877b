"""Tables with columns of numbers and columns of text, from files of any kind.

A CSV file is read as text. A column becomes numbers if all of its cells are numbers.
Otherwise it stays text, and code that needs numbers reports what is wrong with it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from numbers import Number
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.tables.files import BLANKS, CsvFormat, read_cells, Table


# Cells that count as empty.
MISSING = (
    *("", "N/A", "n/a", "NA", "n.a.", "N.A.", "<NA>"),
    *("NaN", "nan", "NAN", "-nan", "-NaN", "NULL", "Null", "null", "None"),
    *("n.d.", "N.D.", "n/d", "N/D", "ND", "-", "--", "\u2013", "\u2014", "?"),
)
# A formula that has no value, which counts as empty except in the column of results.
FORMULA = r"#+|#[^\W\d_]\S*[!?]|#N/?[AD]|#N/A N/A|#NV|(Err|Fehler) ?:\d+|formula =.*"
# In the column of results these words count as empty too, in upper or lower case.
FAILED = ("failed", "fehlgeschlagen", "échoué", "échec", "fallido", "失敗", "失败")
IN_FLIGHT = (
    *("pending", "in flight", "in progress", "running", "ongoing", "queued", "planned"),
    *("submitted", "started", "waiting", "open", "to do", "todo", "tbd", "tba"),
    *("none", "na", "nd", "missing", "not measured", "not determined"),
)
# Numbers whose mark may separate thousands. [0-9]: pandas is slow with \d.
THOUSANDS = r"[+-]?[1-9][0-9]?[0-9]?[.,][0-9][0-9][0-9] *%?"
# Larger integers are not exact in double precision.
MAX_WHOLE = 2**53
# Larger numbers overflow when they are squared and summed.
MAX_NUMBER = 1e100
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ISO_DATE = (
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
)
WRITE_NUMBERS = (
    "Write bare numbers: no unit, bound, range or date, no mark between thousands, "
    "decimals as in the rest of the file, % after all of a column or none (Excel: "
    "first choose the format General), and formulas with a value"
)


def read_table(
    path: Path,
    text_columns: Iterable[str | None] = (),
    *,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    sheets: list[str] | None = None,
    columns: Collection[str | None] | None = None,
    outcomes: Collection[str] = (),
) -> Table:
    """Read a table into columns of numbers and columns of text.

    A column of text becomes numbers if all of its cells are numbers. Text has no blanks
    around it, dates are text such as 2026-01-31, and missing cells are NaN. Blank rows
    are left out.

    Args:
        path: A CSV file, perhaps compressed, an Excel or a Parquet file.
        text_columns: Columns that stay text, so that an id ``007`` is kept.
        separator: The separator of a CSV file; found from its header if it lacks it.
        decimal: The decimal mark of numbers in text; found from them if omitted.
        encoding: That of a CSV file that is not UTF-8 or UTF-16; cp1252 if omitted.
        sheets: The sheets to read; a file with several takes the first from the list.
        columns: The columns to read of a Parquet file; all if omitted.
        outcomes: The columns of results, in which the words of ``FAILED`` and
            ``IN_FLIGHT`` count as empty.
    """
    table = read_cells(path, columns, separator, encoding, sheets or [])
    cells = {str(name): cells for name, cells in _named(table.frame, path).items()}
    # Each column's cells are released when they have been read.
    table, notes = replace(table, frame=pd.DataFrame()), [*table.notes]
    kept = {find_column(cells, name) for name in text_columns}
    typed = {name: cells[name].infer_objects() for name in cells if name in kept}
    frame, words, failed = _plain_columns(cells, kept, outcomes)
    if columns is None:  # all of them, so a row without cells is blank
        is_blank = frame.isna().all(axis="columns")
        for ids in typed.values():  # one with the id None is not
            given = ids[is_blank].dropna().astype("str").str.strip(BLANKS)
            is_blank[given.index[given.isin(MISSING[1:])]] = False
        frame = frame[~is_blank]
    shown = [repr(word) for word in words if word and word.casefold() not in FAILED]
    if shown:
        notes.append(f"these cells count as empty: {listing(shown)}")
    unkept = [str(name) for name in frame if name not in kept]
    texts = {name: frame[name] for name in unkept if is_text(frame[name])}
    marks, of_file = _decimal_marks(texts, path, table.form, decimal)
    form = None if table.form is None else replace(table.form, decimal=of_file)
    if form not in (None, CsvFormat(), CsvFormat(encoding="utf-8-sig")):
        notes.append(
            f"is read with {form.separator!r} between fields, {form.decimal!r} before "
            f"decimals, {form.encoding} (--separator, --decimal and --encoding name "
            "others)"
        )
    percents = set[str]()
    for name, text in texts.items():
        numbers, first = _numbers(text, marks[name]), text.first_valid_index()
        if numbers is None:
            continue
        frame[name] = numbers
        if text[first].endswith("%"):
            percents.add(name)
        if name in percents or form is None or form.decimal != marks[name]:
            notes.append(
                f"column {name!r} of text is read as numbers, such as {text[first]!r} "
                f"as {numbers[first]:.15g}"
            )
    for name in typed if form is not None else ():  # numbers as all programs write them
        numbers = _numbers(frame[name], ".")
        if numbers is not None and numbers.astype("str").equals(frame[name]):
            typed[name] = numbers
    typed = {  # floats as objects, without the decimal commas of CSV files
        name: cells.astype("object" if cells.dtype.kind == "f" else cells.dtype)
        for name, cells in typed.items()
        if not is_text(cells)
    }
    said = tuple(f"{path.name}: {text}" for text in notes)
    return Table(frame, form, said, failed, typed, table.sheet, frozenset(percents))


def _named(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the columns that have a name; spreadsheets save empty ones without."""
    repeated = table.columns[(table.columns != "") & table.columns.duplicated()]
    if len(repeated):
        raise InputDataError(
            f"{path} has the column {repeated[0]!r} more than once. Rename one of them."
        )
    is_unnamed = table.columns == ""
    unnamed = table.loc[:, is_unnamed].apply(_plain, args=(True, False))
    is_filled = unnamed.notna().any(axis="columns")
    if is_filled.any():
        raise InputDataError(
            f"{path} has values in a column without a name, first in "
            f"{row_name(is_filled)}. If the first row looks like a title, remove what "
            "is above the header. Otherwise name the column, or remove it; fields with "
            "the separator in them, such as decimal commas, need quotation marks."
        )
    return table.loc[:, ~is_unnamed]


def _plain_columns(
    cells: dict[str, pd.Series], kept: Collection[str | None], outcomes: Collection[str]
) -> tuple[pd.DataFrame, Collection[str], pd.Index]:
    """Return columns of numbers and text, words that count as empty, failed rows."""
    plain: dict[str, pd.Series] = {}
    words: dict[str, None] = {}
    failed: list[int] = []
    for name in list(cells):
        column = cells.pop(name)
        plain[name] = _plain(column, name in kept, name in outcomes)
        if name in outcomes and is_text(plain[name]):
            folded = plain[name].str.casefold()
            failed.extend(folded.index[folded.isin(FAILED)])
            plain[name] = plain[name].mask(folded.isin((*FAILED, *IN_FLIGHT)))
        gaps = column[plain[name].isna() & column.notna()]
        words |= dict.fromkeys(gaps.astype("str").str.strip(BLANKS).unique())
    return pd.DataFrame(plain), words, pd.Index(failed)


def _plain(column: pd.Series, keeps_text: bool, is_outcome: bool) -> pd.Series:
    """Return a column of any kind as one of numbers or of text, if possible."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if column.dtype == object:
        column = column.infer_objects()
    if column.dtype == object and not keeps_text:
        present = column.dropna()
        kinds = {*map(type, present)}
        if all(issubclass(k, Number) for k in kinds) and not {bool} < kinds:
            return column.astype("float64")
        if not present.map(lambda value: isinstance(value, str | datetime.date)).any():
            return column
    if column.dtype.kind == "m" and not keeps_text:  # durations
        return column
    if is_numeric(column) and not keeps_text:
        if not pd.api.types.is_extension_array_dtype(column):
            return column
        numbers = column.to_numpy("float64", na_value=np.nan)
        return pd.Series(numbers, column.index, name=column.name)
    text = column.astype("str").where(column.notna()).str.strip(BLANKS)
    if keeps_text:
        # One letter, or a letter and its accent: the same id. 35.0 is 35.
        text = text.str.normalize("NFC").str.removesuffix(" 00:00:00")
        if pd.api.types.is_float_dtype(column):
            text = text.str.removesuffix(".0")
    is_error = text.str.fullmatch(FORMULA, na=False) & (not is_outcome)
    return text.mask(text.isin(MISSING) | is_error)


def _decimal_marks(
    texts: Mapping[str, pd.Series],
    path: Path,
    form: CsvFormat | None,
    decimal: str | None,
) -> tuple[dict[str, str], str]:
    """Find the decimal mark of each column of text, and of the file.

    It is the mark of the column's numbers such as 1,5 or 1.5. If there are none, it is
    that of the other columns.
    """
    if decimal is not None:
        return dict.fromkeys(texts, decimal), decimal
    sure: dict[str, str] = {}
    unclear: dict[str, str] = {}
    has_commas = form is not None and form.separator == ","
    for name, text in texts.items():
        for mark in ",.":
            cells = text[text.str.contains(mark, regex=False, na=False)]
            if cells.empty or _numbers(text, mark) is None:
                continue
            may_group = cells.str.fullmatch(THOUSANDS)
            # One comma among points, or between fields with commas, may be a slip.
            is_unusual = mark == "," and (has_commas or form is None)
            num_needed = 2 if is_unusual else 1
            if (mark == "." and has_commas) or (~may_group).sum() >= num_needed:
                sure[name] = mark
            elif may_group.any():
                unclear[name] = cells[may_group].iloc[0]
    marks = set(sure.values())
    of_file = min(marks) if len(marks) == 1 else "."
    if unclear and len(marks) != 1:
        name, number = next(iter(unclear.items()))
        raise InputDataError(
            f"{path} has numbers such as {number} in column {name!r}, "
            f"{row_name(texts[name] == number)}. Their mark may separate thousands or "
            "decimals. Pass --decimal , or --decimal . (and write thousands without a "
            "mark)."
        )
    return {name: sure.get(name, of_file) for name in texts}, of_file


def _numbers(text: pd.Series, mark: str) -> pd.Series | None:
    """Return the numbers of a column of text; None if a cell is not a number.

    Truth values are 0 and 1. Percent signs after all numbers are left out.
    """
    words = text.dropna()
    if words.empty:
        return None
    if words.iloc[0].lower() in ("true", "false"):
        numbers = words.str.lower().map({"true": 1.0, "false": 0.0})
        return None if numbers.isna().any() else numbers.reindex(text.index)
    if words.iloc[0].endswith("%") and words.str.endswith("%").all():
        words = words.str.removesuffix("%").str.strip(BLANKS)
    if mark == ",":
        if words.str.contains(".", regex=False).any():
            return None
        words = words.str.replace(",", ".", regex=False)
    try:
        # Stricter than pandas.to_numeric: no blanks, and nothing but numbers.
        values = words.astype("Float64").to_numpy("float64")
    except ValueError:
        return None
    numbers = pd.Series(values, words.index, name=text.name).reindex(text.index)
    is_whole = (values == np.floor(values)) & (np.abs(values) < MAX_WHOLE)
    if len(words) < len(text) or not is_whole.all():
        return numbers
    # Columns of bits take a byte per cell.
    return pd.to_numeric(numbers.astype("int64"), downcast="unsigned")


# Columns that were read ---------------------------------------------------------------


def is_numeric(column: pd.Series | pd.Index) -> bool:
    """Tell whether a column is one of numbers or truth values."""
    return pd.api.types.is_numeric_dtype(column)


def is_text(column: pd.Series) -> bool:
    """Tell whether a column is one of text."""
    return isinstance(column.dtype, pd.StringDtype)


def to_numbers(column: pd.Series) -> pd.Series:
    """Return double precision numbers, NaN where a cell is not a number."""
    if is_numeric(column):
        return column.astype("float64")
    cells = column.astype("object")  # where the gaps of durations are no numbers
    is_number = cells.map(lambda cell: bool(NUMBER.fullmatch(str(cell))))
    return pd.to_numeric(cells.where(is_number), errors="coerce").astype("float64")


def is_no_number(column: pd.Series) -> pd.Series:
    """Return which cells keep a column of text from being one of numbers.

    If all are numbers with decimal points, these are the cells with a point: their file
    has decimal commas. Numbers with a comma count only if there are no other cells.
    """
    wrong = to_numbers(column).isna() & column.notna()
    if not wrong.any():
        return column.map(lambda cell: isinstance(cell, str) and "." in cell)
    others = wrong & ~column.astype("str").str.fullmatch(r"[-+]?\d+,\d+", na=False)
    return others if others.any() else wrong


def days(text: pd.Series) -> pd.Series | None:
    """Return dates, perhaps with times, as days since the first; None for others."""
    if text.empty or not text.str.fullmatch(ISO_DATE).all():
        return None
    dates = pd.to_datetime(text, errors="coerce", format="ISO8601", utc=True)
    wrong = dates.isna()
    if wrong.any():
        raise InputDataError(
            f"Column {text.name!r} has the date {text[wrong].iloc[0]!r} in "
            f"{row_name(wrong)}, which does not exist. Correct it."
        )
    return (dates - dates.min()) / pd.Timedelta(days=1)


def find_column(columns: Collection[str], name: str | None) -> str | None:
    """Return the column of a name, else the only one of that name in another case."""
    if name is None or name in columns:
        return name
    found = [column for column in columns if column.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else None


def require_column(table: pd.DataFrame, column: str, path: Path, option: str) -> None:
    """Raise an error if a table lacks a column that an option names."""
    if column not in table.columns:
        raise InputDataError(
            f"{path} has no column {column!r}, only {list(table.columns)}. Name it by "
            f"{option}. The first line has to be the header; if it is not split into "
            "columns, pass --separator."
        )


def require_ids(ids: pd.Series, path: Path, *, may_repeat: bool = False) -> None:
    """Raise an error if a column of ids has an empty cell, or an id twice."""
    faults = {
        "no id": ids.isna(),
        "the id {!r} over several lines": ids.str.contains(r"[\r\n]", na=False),
    }
    if not may_repeat:
        faults["the id {!r} more than once, again"] = ids.duplicated()
    for fault, wrong in faults.items():
        if wrong.any():
            raise InputDataError(
                f"{path} has {fault.format(ids[wrong].iloc[0])} in {row_name(wrong)}, "
                f"column {ids.name!r} (rows: {wrong.sum():,}). Correct it or remove "
                "the row: each candidate needs an id, and NA, None and the like are no "
                "ids. If wells repeat on every plate, join plate and well in all "
                "tables, such as P1-A1."
            )


def row_name(selected: pd.Series) -> str:
    """Name the first selected row as a spreadsheet counts.

    The index is the number of the row, or begins with its file and ends with it.
    """
    row = selected.index[selected.to_numpy(dtype="bool")][0]
    number, of = (row[-1], f" of {row[0]}") if isinstance(row, tuple) else (row, "")
    return f"row {number + 1}{of} (the header counts, as in a spreadsheet)"


def listing(words: list[str], num_shown: int = 20) -> str:
    """Return the first of some words, and how many more there are."""
    more = len(words) - num_shown
    shown = ", ".join(words[:num_shown])
    return f"{shown} and {more:,} more" if more > 0 else shown
