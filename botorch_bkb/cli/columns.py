"""Numbers in a column: as they are, as text, with percent signs, as dates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.csv_format import decimal_marks


# Larger numbers overflow when they are squared and summed.
MAX_NUMBER = 1e100
# What is no part of a word at its ends; other invisible characters are seen.
BLANKS = " \t\r\n\u00a0\u2007\u202f"
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
    """Tell whether all values of a column are numbers or truth values, or missing."""
    if pd.api.types.is_complex_dtype(column):
        return False
    if pd.api.types.is_numeric_dtype(column):
        return True
    if column.dtype != object:
        return False
    # Decimals, and numbers too large for a computer's integers.
    present = column.dropna()
    is_text = present.map(lambda value: isinstance(value, str)).astype("bool")
    return not is_text.any() and bool(to_numbers(present).notna().all())


def is_date(column: pd.Series) -> bool:
    """Tell whether all values of a column are dates, as Excel and Parquet hold them."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return True
    return column.dtype == object and all(
        isinstance(value, datetime.date) for value in column
    )


def to_numbers(column: pd.Series) -> pd.Series:
    """Return double precision numbers, NaN where a value is none."""
    if pd.api.types.is_numeric_dtype(column):
        return pd.Series(
            column.to_numpy(dtype="float64", na_value=np.nan),
            index=column.index,
            name=column.name,
        )
    return pd.to_numeric(column.map(str), errors="coerce").astype("float64")


def days(column: pd.Series) -> tuple[pd.Series, str] | None:
    """Return dates as days since the first, and a note; None if they are no dates.

    Text counts where it is of the form 2026-01-31, with a time or without.

    Raises:
        InputDataError: If there is no such day.
    """
    if not is_date(column):
        text = column.map(str).str.strip(BLANKS)  # bytes need not be text
        if not re.fullmatch(ISO_DATE, text.iloc[0]):
            return None
        if not text.str.fullmatch(ISO_DATE).all():
            return None
        column = text
    dates = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    wrong = dates.isna()
    if wrong.any():
        raise InputDataError(
            f"Column {column.name!r} has the date {column[wrong].iloc[0]!r} in "
            f"{row_name(wrong)}, which there is not. Correct it."
        )
    numbers = (dates - dates.min()) / pd.Timedelta(days=1)
    return numbers, (
        f"column {column.name!r} holds dates, which became days since "
        f"{dates.min():%Y-%m-%d}"
    )


def numbers_in_text(column: pd.Series) -> tuple[pd.Series, str] | None:
    """Return the numbers that text holds, and a note; None if it does not everywhere.

    Percent signs after all of them are left out; decimal commas are read
    where two or more have one (one could be a slip) and nothing else can be meant.

    Raises:
        InputDataError: If points may stand between thousands, as in 1.200.
    """
    text = column.astype("str").str.strip(BLANKS)
    if text.empty or not LOOKS_NUMERIC.fullmatch(text.iloc[0]):
        return None
    values = pd.Series(text.unique(), dtype="str")
    said = f"column {column.name!r} holds numbers as text, which are read as numbers"
    is_percent = bool(values.str.endswith("%").all())
    if is_percent:
        said = f"column {column.name!r} has percent signs; {values[0]} is read as "
        values = values.str.removesuffix("%").str.strip()
        said += values[0]
    plain = values
    certain, uncertain = decimal_marks(values)
    has_comma = values.str.contains(",")
    if has_comma.sum() >= 2 and certain == {","}:
        plain = values.str.replace(",", ".")
        said += ", with decimal commas"
    numbers = pd.to_numeric(plain, errors="coerce").astype("float64")
    is_plain = values.map(str.isprintable).astype("bool")
    if not (is_plain & (numbers.abs() <= MAX_NUMBER)).all():
        return None
    if "." in uncertain and "." not in certain and not is_percent:
        # Text, since the file has decimal commas, or a workbook's cells are text.
        value = uncertain["."]
        raise InputDataError(
            f"Column {column.name!r} has text such as {value!r} in "
            f"{row_name(text == value)}, which is one number if the point stands "
            "between thousands and another if before decimals. Write thousands "
            "without a mark, and decimals as the file's other ones."
        )
    places, _ = pd.factorize(text)
    found = pd.Series(numbers.to_numpy()[places], index=column.index, name=column.name)
    return found, said


def looks_numeric(values: Iterable[str]) -> str | None:
    """Return a text that is likelier a number than a name, if half of them are."""
    texts = list(values)
    found = [text for text in texts if LOOKS_NUMERIC.fullmatch(text)]
    return found[0] if 2 * len(found) >= max(1, len(texts)) else None


def reward_column(
    column: pd.Series, *, may_be_empty: bool
) -> tuple[pd.Series, tuple[str, ...]]:
    """Return a column of rewards as numbers, NaN where there is none, and notes.

    Args:
        column: The column.
        may_be_empty: Whether rewards may be missing.

    Raises:
        InputDataError: If a value is infinite, huge, or no number.
    """
    present = column.dropna()
    found = None if is_numeric(column) else numbers_in_text(present)
    notes = () if found is None else (found[1],)
    rewards = to_numbers(column) if found is None else found[0].reindex(column.index)
    wrong = ~(rewards.abs() <= MAX_NUMBER)
    if may_be_empty:
        wrong &= column.notna()
    if wrong.any():
        raise InputDataError(_wrong_reward(column, rewards, wrong))
    return rewards, notes


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
