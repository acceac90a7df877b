"""Columns of a table that was read: numbers, or text."""

from __future__ import annotations

import re
import unicodedata
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
        raise InputDataError(_wrong_reward(column, rewards, wrong, may_be_empty))
    if not is_numeric(column) and column.notna().any():
        refuse_points(column)
    return rewards


DATE = (
    rf"{ISO_DATE}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}|\d{{1,4}}[-./ ]+{MONTH}|"
    rf"{MONTH}[-./ ]+\d{{1,4}}|\d{{1,2}}[-./ ]+{MONTH}[-./ ]+\d{{2,4}}"
)
# What to do about a reward of a form that is no number: the first form that fits.
REWARD_REMEDIES = {
    r"#.+": "It is an error of a spreadsheet. Correct the formula.",
    r"(<|>|≤|≥|«|»|less than|more than|above|below|under|over).*": "It is a bound, and "
    "bounds are not modelled. Write a number if you know one that is near enough (the "
    "bound itself, if the optimum is far from it), or remove the row.",
    r"(~|≈|ca\.?|about|approx\.?).*\d.*": "Write the number alone.",
    r".*\d.*(±|\+/?-).*\d.*": "Write the mean alone, or one row per measurement.",
    DATE: "It is a date: spreadsheets turn numbers such as 3.2 into dates. Enter the "
    "number again, in a cell whose format is a number.",
    r"[+-]?\d[\d.,]*\s*([-\u2013\u2014]|to|\.\.+)\s*\d[\d.,]*": "It is a range. Write "
    "one number, such as the mean.",
    r"[+-]?inf(inity)?": "Write a number, or remove the row.",
    r"yes|no|y|n|true|false|(in)?active|positive|negative|pos\.?|neg\.?|hit|pass|ok|"
    r"high|medium|low|good|bad|traces?|\+{1,3}": "Rewards are numbers. Write a number "
    "for each word in all rows, such as 1 for yes and 0 for no.",
    LOOKS_NUMERIC.pattern: "Write bare numbers: no unit, no mark between thousands, "
    "one decimal mark.",
}


def _wrong_reward(
    column: pd.Series, rewards: pd.Series, wrong: pd.Series, may_be_empty: bool
) -> str:
    """Say what is wrong with the first of the rewards that are, and what to do."""
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
    others = "leave it empty if the measurement is in flight, write failed if it failed"
    remedy = f"Correct it{f'; {others}' if may_be_empty else ', or remove the row'}."
    if text == column.name:
        remedy = "It is the header again. Remove the row."
    else:
        fitting = (
            hint
            for form, hint in REWARD_REMEDIES.items()
            if re.fullmatch(form, text, re.IGNORECASE)
        )
        remedy = next(fitting, remedy)
    more = f", as are {wrong.sum() - 1:,} more" if wrong.sum() > 1 else ""
    return f"{said} no finite number{more}. {remedy}"


def id_trouble(name: str) -> str:
    """Return what a spreadsheet has likely done to an id; nothing by most ids."""
    if re.fullmatch(r"\d([.,]\d+)?E\+?\d+", name, re.IGNORECASE):
        done = "shorten long numbers like this, so that different ids become equal"
    elif re.fullmatch(DATE, name, re.IGNORECASE):
        done = "turn ids such as MAR1 or 3-2 into dates"
    else:
        return ""
    return (
        f" Spreadsheets {done}. Restore the ids from their source, and keep their "
        "column as text."
    )


def bare_id(name: str) -> str:
    """Return an id without what spreadsheets and fingers change."""
    text = _plain_dashes(name.casefold())
    return re.sub(r"(?<![\d.,])0+(?=\d)", "", text)


def _plain_dashes(name: str) -> str:
    """Return an id with one kind of dash, and without blanks."""
    text = unicodedata.normalize("NFKC", name)
    return re.sub(r"[\u2010-\u2015\u2212_]", "-", "".join(text.split()))


def id_change(told: str, own: str) -> str:
    """Say how two ids differ that are alike, and what to do."""
    if told.casefold() == own.casefold():
        return "They differ in upper and lower case. Correct the ids."
    if _plain_dashes(told) == _plain_dashes(own):
        return (
            "They differ in a dash, a blank or a letter that looks alike. Correct the "
            "ids, and switch off the spreadsheet's automatic correction."
        )
    return (
        "Spreadsheets drop leading zeros: correct the ids, and keep their column as "
        "text."
    )


def row_name(selected: pd.Series) -> str:
    """Name the first selected row as a reader of the file counts.

    Of tables joined by ``pandas.concat`` with a file's name each, the file too.
    """
    index = selected.index[selected.to_numpy(dtype="bool")]
    if index.nlevels == 2:
        file, row = index[0]
        return f"row {row + 1} of {file} (the first under the header is row 1)"
    return f"row {index.min() + 1} (the first under the header is row 1)"
