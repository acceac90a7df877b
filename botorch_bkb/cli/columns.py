"""Columns of a table that was read: numbers, or text."""

from __future__ import annotations

import re

import pandas as pd
from botorch.exceptions.errors import InputDataError


# Larger numbers overflow when they are squared and summed.
MAX_NUMBER = 1e100
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ISO_DATE = (
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
)
# 20 C, 1,200, 20-25, 1:10, 3.2.2026 and 3 Feb 2026, but neither 2-propanol nor A4.
LOOKS_NUMERIC = re.compile(
    r"\W*\d(?:[\d\s.,'\u2019:/\u00d7*±~^\u2013-]*\d)?\s*(?:(?:[^\W\d_]|[°%‰]).{0,11})?"
    r"|\d+[-./ ]+[^\W\d_]{3,9}[-./, ]+\d+"
)
WRITE_NUMBERS = (
    "Write bare numbers: no unit, bound, range or date, no mark between thousands, "
    "decimals as the file's other ones"
)


def is_numeric(column: pd.Series) -> bool:
    """Tell whether a column is one of numbers or truth values."""
    return pd.api.types.is_numeric_dtype(column)


def is_text(column: pd.Series) -> bool:
    """Tell whether a column is one of text."""
    return isinstance(column.dtype, pd.StringDtype)


def to_numbers(column: pd.Series) -> pd.Series:
    """Return double precision numbers, NaN where a cell is no number."""
    if is_numeric(column):
        return column.astype("float64")
    is_number = column.map(lambda cell: bool(NUMBER.fullmatch(str(cell))))
    return pd.to_numeric(column.where(is_number), errors="coerce").astype("float64")


def is_no_number(column: pd.Series) -> pd.Series:
    """Return which cells of a column of text keep it from being one of numbers.

    If all are numbers by decimal points, these are the cells with a point: their file
    has decimal commas.
    """
    wrong = to_numbers(column).isna() & column.notna()
    if not wrong.any():
        return column.map(lambda cell: isinstance(cell, str) and "." in cell)
    return wrong


def days(text: pd.Series) -> tuple[pd.Series, str] | None:
    """Return dates as days since the first, and a note; None if they are no dates.

    Dates are of the form 2026-01-31, with a time or without.

    Raises:
        InputDataError: If a day does not exist.
    """
    if (
        not re.fullmatch(ISO_DATE, text.iloc[0])
        or not text.str.fullmatch(ISO_DATE).all()
    ):
        return None
    dates = pd.to_datetime(text, errors="coerce", format="ISO8601", utc=True)
    wrong = dates.isna()
    if wrong.any():
        raise InputDataError(
            f"Column {text.name!r} has the date {text[wrong].iloc[0]!r} in "
            f"{row_name(wrong)}, which does not exist. Correct it."
        )
    numbers = (dates - dates.min()) / pd.Timedelta(days=1)
    return numbers, (
        f"column {text.name!r} holds dates, which became days since "
        f"{dates.min():%Y-%m-%d}"
    )


def reward_column(column: pd.Series, *, may_be_empty: bool) -> pd.Series:
    """Return a column of rewards as numbers, NaN where there is none.

    Args:
        column: The column.
        may_be_empty: Whether rewards may be missing.

    Raises:
        InputDataError: If a value is infinite, huge, or no number.
    """
    rewards = to_numbers(column)
    wrong = ~(rewards.abs() <= MAX_NUMBER)
    if may_be_empty:
        wrong &= column.notna()
    if not wrong.any() and not is_numeric(column):
        wrong = is_no_number(column)
    if wrong.any():
        cell = column[wrong].iloc[0]
        shown = "an empty cell" if pd.isna(cell) else repr(str(cell))
        more = f", as are {wrong.sum() - 1:,} more" if wrong.sum() > 1 else ""
        gaps = "in flight: an empty cell; failed: the word failed"
        raise InputDataError(
            f"Column {column.name!r} has {shown} in {row_name(wrong)}, which is no "
            f"finite number up to {MAX_NUMBER:g} as it is written{more}. "
            f"{WRITE_NUMBERS} ({gaps if may_be_empty else 'no empty cell'}), or remove "
            "the row."
        )
    return rewards


def row_name(selected: pd.Series) -> str:
    """Name the first selected row as a reader of the file counts.

    Of tables joined by ``pandas.concat`` with a file's name each, the file too.
    """
    index = selected.index[selected.to_numpy(dtype="bool")]
    if index.nlevels == 2:
        file, row = index[0]
        return f"row {row + 1} of {file} (the first under the header is row 1)"
    return f"row {index.min() + 1} (the first under the header is row 1)"


def listing(words: list[str], num_shown: int = 20) -> str:
    """Return the first of some words, and how many more there are."""
    more = len(words) - num_shown
    shown = ", ".join(words[:num_shown])
    return f"{shown} and {more:,} more" if more > 0 else shown
