"""Columns of a table that was read: numbers, or text."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError


# Larger numbers overflow when they are squared and summed.
MAX_NUMBER = 1e100
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ISO_DATE = (
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
)
MONTH = r"(?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]*"
# 20 C, 1,200, 20-25, 1:10, 3.2.2026 and 3 Feb 2026, but neither 2-propanol nor A4.
LOOKS_NUMERIC = re.compile(
    r"\W*\d(?:[\d\s.,'\u2019:/\u00d7*±~^\u2013-]*\d)?\s*(?:(?:[^\W\d_]|[°%‰]).{0,11})?"
    rf"|\d{{1,4}}[-./ ]+{MONTH}[-./, ]+\d{{1,4}}",
    re.IGNORECASE,
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


def looks_numeric(values: Iterable[str]) -> str | None:
    """Return a text that is likelier a number than a name, if half of them are."""
    texts = list(values)
    found = [text for text in texts if LOOKS_NUMERIC.fullmatch(text)]
    return found[0] if 2 * len(found) >= max(1, len(texts)) else None


def refuse_points(text: pd.Series) -> None:
    """Refuse a column of text whose cells are all numbers with decimal points.

    It is text because its file has decimal commas.
    """
    is_pointed = text.str.contains(".", regex=False, na=False)
    raise InputDataError(
        f"Column {text.name!r} has {text[is_pointed].iloc[0]!r} in "
        f"{row_name(is_pointed)}, with a point, in a file with decimal commas. Write "
        "thousands without a mark, and decimals as the file's other ones."
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
    if wrong.any():
        raise InputDataError(_wrong_reward(column, rewards, wrong))
    if not is_numeric(column) and column.notna().any():
        refuse_points(column)
    return rewards


def _wrong_reward(column: pd.Series, rewards: pd.Series, wrong: pd.Series) -> str:
    """Say what is wrong with the first of the rewards that are."""
    place = f"in {row_name(wrong)}"
    if column[wrong].isna().iloc[0]:
        return (
            f"Column {column.name!r} has no reward {place}. Fill the cell, or remove "
            "the row."
        )
    text = str(column[wrong].iloc[0])
    said = f"Column {column.name!r} has the reward {text!r} {place}, which is"
    if np.isfinite(rewards[wrong].iloc[0]):
        return f"{said} beyond {MAX_NUMBER:g}. Choose a larger unit."
    hint = ""
    if LOOKS_NUMERIC.fullmatch(text):
        hint = (
            " Write bare numbers: no unit, no mark between thousands, one decimal mark."
        )
    return f"{said} no finite number.{hint}"


def row_name(selected: pd.Series) -> str:
    """Name the first selected row as a reader of the file counts.

    Of tables joined by ``pandas.concat`` with a file's name each, the file too.
    """
    index = selected.index[selected.to_numpy(dtype="bool")]
    if index.nlevels == 2:
        file, row = index[0]
        return f"row {row + 1} of {file} (the first under the header is row 1)"
    return f"row {index.min() + 1} (the first under the header is row 1)"
