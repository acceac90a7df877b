"""Tables of numbers and text, from files of any kind.

A CSV file is read as text. A column then becomes numbers if all of its cells are
numbers. Otherwise it stays text, and whoever needs numbers says what is wrong with it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Number
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.columns import (
    id_trouble,
    is_numeric,
    is_text,
    row_name,
    to_numbers,
)
from botorch_bkb.cli.files import (
    BLANKS,
    CsvFormat,
    read_cells,
    SEPARATORS,
    Table,
    table_kind,
)


# Cells that count as empty.
MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "N/A", "n/a", "NA", "n.a.", "N.A.", "<NA>"),
    *("NaN", "nan", "NAN", "-nan", "-NaN", "NULL", "Null", "null", "None"),
    *("n.d.", "N.D.", "n/d", "N/D", "ND", "-", "--", "\u2013", "\u2014", "?"),
)
# In a column of rewards these words count as empty too, in upper or lower case.
FAILED = "failed"
IN_FLIGHT = (
    *("pending", "in flight", "in progress", "running", "ongoing", "queued", "planned"),
    *("submitted", "started", "waiting", "open", "to do", "todo", "tbd", "tba"),
    *("none", "na", "nd", "missing", "not measured", "not determined"),
)
# Numbers whose mark may stand between thousands.
# [0-9] and not \d, of which pandas takes the slow way.
THOUSANDS = r"[+-]?[1-9][0-9]?[0-9]?[.,][0-9][0-9][0-9] *%?"
# So many numbers in order are names of columns, such as wavelengths.
MIN_NAMES_IN_ORDER = 5
# Larger ones are not exact as numbers.
MAX_WHOLE = 2**53


def read_table(
    path: Path,
    text_columns: Iterable[str | None] = (),
    *,
    separator: str | None = None,
    decimal: str | None = None,
    columns: Collection[str | None] | None = None,
    reward: str | None = None,
) -> Table:
    """Read a table into columns of numbers and columns of text.

    A column of text becomes numbers if all of its cells are numbers. Text has no blanks
    around it, dates are text such as 2026-01-31, and missing cells are NaN. Blank rows
    are left out.

    Args:
        path: A CSV file, perhaps compressed, an Excel or a Parquet file.
        text_columns: Columns that stay text, so that an id ``007`` stays one; found as
            by :func:`find_column`.
        separator: The separator of a CSV file; found from its header if omitted, or if
            the header lacks it.
        decimal: The decimal mark of numbers in text; found from them if omitted.
        columns: The columns to read of a Parquet file; all if omitted.
        reward: The column in which the words of ``FAILED`` and ``IN_FLIGHT`` count as
            empty.

    Raises:
        InputDataError: If the file is missing, of another kind, or not readable, has
            rows longer than its header, a column twice, or values in a column without a
            name, or if it is unclear what the mark in a number such as 1,200 means.
    """
    table = read_cells(path, separator=separator, columns=columns)
    form, notes = table.form, [*table.notes]
    cells = dict(_named(table.frame, path).items())
    del table  # so that each column's cells go when they have been read
    names = [str(name) for name in cells]
    kept = {find_column(names, name) for name in text_columns if name is not None}
    frame, words = _plain_columns(cells, kept, reward)
    is_blank = frame.isna().all(axis="columns")
    if is_blank.any():
        frame = frame[~is_blank]
    texts = {
        name: frame[name] for name in names if name not in kept and is_text(frame[name])
    }
    marks, of_file = _decimal_marks(texts, path, form, decimal)
    if form is not None:
        form = replace(form, decimal=of_file)
        if not form.is_plain:
            notes.append(f"{path.name} is read with {form}")
    for name, text in texts.items():
        numbers = _numbers(text, marks[name])
        if numbers is not None:
            frame[name] = numbers
            said = _note_on_numbers(text, marks[name], form)
            notes += [f"{path.name}: column {name!r} {said}"] if said else []
    return Table(frame, form, tuple(notes), words)


def _named(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return the columns that have a name; spreadsheets save empty ones without."""
    repeated = table.columns[(table.columns != "") & table.columns.duplicated()]
    if len(repeated):
        raise InputDataError(
            f"{path} has the column {repeated[0]!r} more than once. Rename one of them."
        )
    is_unnamed = table.columns == ""
    unnamed = table.loc[:, is_unnamed].apply(_plain, keeps_text=True)
    is_filled = unnamed.notna().any(axis="columns")
    if is_filled.any():
        raise InputDataError(
            f"{path} has values in a column without a name, first in "
            f"{row_name(is_filled)}. Name it in the header, or remove it; one that "
            "counts rows is no feature."
        )
    return table.loc[:, ~is_unnamed]


def _plain_columns(
    cells: dict[Hashable, pd.Series], kept: Collection[str | None], reward: str | None
) -> tuple[pd.DataFrame, dict[str, pd.Series]]:
    """Return columns of numbers and of text, and the words that count as empty."""
    columns, words = {}, {}
    for name in list(cells):
        column = cells.pop(name)
        plain = _plain(column, name in kept)
        if name == reward and is_text(plain):
            plain = plain.mask(plain.str.casefold().isin((FAILED, *IN_FLIGHT)))
        gaps = column[plain.isna() & column.notna()].astype("str").str.strip(BLANKS)
        if (gaps != "").any():
            words[str(name)] = gaps[gaps != ""]
        columns[str(name)] = plain
    return pd.DataFrame(columns), words


def _plain(column: pd.Series, keeps_text: bool) -> pd.Series:
    """Return a column of any kind as one of numbers or of text, if it is one.

    Args:
        column: The column, as its file has it.
        keeps_text: Whether numbers become text.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if column.dtype == object:
        column = column.infer_objects()
    if column.dtype == object and not keeps_text:
        present = column.dropna()
        if present.map(lambda value: isinstance(value, Number)).all():
            return column.astype("float64")
        if not present.map(lambda value: isinstance(value, str | datetime.date)).any():
            return column
    if is_numeric(column) and not keeps_text:
        if not pd.api.types.is_extension_array_dtype(column):
            return column
        numbers = column.to_numpy("float64", na_value=np.nan)
        return pd.Series(numbers, column.index, name=column.name)
    text = column.astype("str").where(column.notna()).str.strip(BLANKS)
    if keeps_text:
        # One letter, or a letter and its accent: the same id.
        text = text.str.normalize("NFC")
    return text.mask(text.isin(MISSING))


def _decimal_marks(
    texts: Mapping[str, pd.Series],
    path: Path,
    form: CsvFormat | None,
    decimal: str | None,
) -> tuple[dict[str, str], str]:
    """Find the mark before the decimals of each column of text.

    It is the mark of the column's numbers such as 1,5 or 1.5. If there are none, it is
    that of the other columns.

    Returns:
        The mark of each column, and that of the file.

    Raises:
        InputDataError: If nothing tells what the mark in a number such as 1,200 means.
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
            needs_two = mark == "," and (has_commas or form is None)
            if (mark == "." and has_commas) or (~may_group).sum() > needs_two:
                sure[name] = mark
            elif may_group.any():
                unclear[name] = cells[may_group].iloc[0]
    marks = set(sure.values())
    of_file = min(marks) if len(marks) == 1 else "."
    if unclear and len(marks) != 1:
        name, number = next(iter(unclear.items()))
        raise InputDataError(
            f"{path} has numbers such as {number} in column {name!r}, "
            f"{row_name(texts[name] == number)}, which is one thing with decimal "
            "commas and another with decimal points. Pass --decimal , or --decimal . "
            "(then write thousands without a mark)."
        )
    return {name: sure.get(name, of_file) for name in texts}, of_file


def _numbers(text: pd.Series, mark: str) -> pd.Series | None:
    """Return the numbers of a column of text; None if a cell is none by this mark.

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
    numbers = pd.Series(values, words.index, name=text.name)
    if len(words) < len(text):
        return numbers.reindex(text.index)
    is_whole = (values == np.floor(values)) & (np.abs(values) < MAX_WHOLE)
    return numbers.astype("int64") if is_whole.all() else numbers


def _note_on_numbers(text: pd.Series, mark: str, form: CsvFormat | None) -> str:
    """Say what a user may not expect of a column of text that was read as numbers."""
    first = text.dropna().iloc[0]
    if first.endswith("%"):
        return f"has percent signs; {first} is read as {first[:-1]}"
    commas = ", with decimal commas" if mark == "," else ""
    if form is None:
        return f"holds numbers as text, which are read as numbers{commas}"
    return "" if mark == form.decimal else f"is read{commas}"


def find_column(columns: Collection[str], name: str) -> str | None:
    """Return the column of a name, else the only one of that name in another case."""
    if name in columns:
        return name
    found = [column for column in columns if column.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else None


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


def require_header(
    table: pd.DataFrame, path: Path, named: Sequence[str | None]
) -> None:
    """Refuse a table whose first row of values was taken for the header.

    Args:
        table: The table.
        path: Its file.
        named: The columns of ids and of rewards.

    Raises:
        InputDataError: If a name is a number, but for numbers in order; if a name is
            one of the column's values or, of ids, like them; or if a row repeats the
            header.
    """
    if table_kind(path) == "parquet" or table.empty:
        return
    names = [str(name) for name in table.columns]
    texts = {name: table[name] for name in names if is_text(table[name])}
    equal = pd.DataFrame({name: text == name for name, text in texts.items()})
    again = equal.sum(axis="columns") > 1
    if again.any():
        raise InputDataError(
            f"{path} has the header again in {row_name(again)}. Remove that row."
        )
    numbers = to_numbers(pd.Series(names).str.replace(",", ".")).dropna()
    steps = numbers.diff().dropna()
    in_order = (steps > 0).all() or (steps < 0).all()
    is_range = len(numbers) >= MIN_NAMES_IN_ORDER or (
        numbers.iloc[:1].isin([0, 1]).all() and (steps == 1).all() and len(steps)
    )
    wrong = [name for name in equal if equal[name].any() and name not in named]
    if not (in_order and is_range):
        wrong += [names[place] for place in numbers.index]
    for name in filter(named.__contains__, texts):
        form = re.sub(r"\d+", "0", name)
        if "0" in form and form == re.sub(r"\d+", "0", str(texts[name].iloc[0])):
            wrong.append(name)
    if wrong:
        lacks = "" if named[0] in [None, *names] else f"no column {named[0]!r}, and "
        raise InputDataError(
            f"{path} has {lacks}{wrong[0]!r} in its first line where the name of a "
            "column is expected. It seems to lack a header: its first row would be "
            f"lost. Write a line with {len(names)} names above it. If that is the "
            "header, rename the column."
        )


def require_filled(ids: pd.Series, path: Path) -> None:
    """Refuse a column of ids with an empty cell.

    Raises:
        InputDataError: If there is one.
    """
    missing = ids.isna()
    if missing.any():
        raise InputDataError(
            f"{path} has no id in {row_name(missing)}, column {ids.name!r} (NA, None "
            "and the like count as empty). Fill it, or remove the row."
        )


def require_ids(ids: pd.Series, path: Path) -> None:
    """Refuse candidates without an id, or with that of another.

    Raises:
        InputDataError: If there is one.
    """
    require_filled(ids, path)
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
            f"{id_trouble(ids[repeated].iloc[0])}"
        )
