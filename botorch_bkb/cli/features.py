"""The rule that turns a table's columns into features."""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.columns import (
    days,
    is_numeric,
    looks_numeric,
    MAX_NUMBER,
    refuse_points,
    row_name,
    to_numbers,
)
from botorch_bkb.cli.files import MAX_TABLE_BYTES
from botorch_bkb.cli.progress import note


# Of a column that nobody has named.
MAX_ONE_HOT_VALUES = 20
# Columns of one fault, and faults, that one message names.
MAX_NAMES_SHOWN, NUM_FAULTS_SHOWN = 20, 5
# A crowd are values in so small a share of their column's range, but for so many on
# either side.
CROWD_SHARE, FAR_SHARE, MIN_CROWD = 0.01, 0.01, 8
# A word that occurs once is taken for a slip where others occur that often.
USUAL_COUNT = 5

Codes = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class FeatureTable:
    """Numeric features, and what was done to get them.

    Attributes:
        values: One float64 column per feature, no gaps, none constant.
        notes: One sentence per column that was dropped or coded.
        sources: The table's column from which each feature comes.
    """

    values: pd.DataFrame
    notes: tuple[str, ...]
    sources: tuple[str, ...]


def feature_table(
    table: pd.DataFrame,
    *,
    exclude: Collection[str],
    drop: Collection[str] = (),
    codes: Codes | None = None,
    categories: Collection[str] = (),
    may_be_empty: bool = False,
) -> FeatureTable:
    """Turn a table's columns into numeric features.

    Numeric columns are features as they are; so are those of percentages, dates and
    numbers kept as text, with a note. A text column is coded by ``codes`` where they
    name it, else by one column of 0 and 1 per value if it has at most 20 values or is
    one of ``categories``. Constant columns are dropped with a note. What is likelier a
    slip than a kind is refused: text among numbers, numbers with units, words that
    differ in case or spaces only, a word that occurs once where others occur often.

    Args:
        table: The table.
        exclude: Columns that are no features: the reward, the id.
        drop: Columns that the user wants dropped.
        codes: The number of each value, by column.
        categories: Columns whose values are names, whatever they look like.
        may_be_empty: Whether no feature at all is fine.

    Raises:
        InputDataError: If there is no row, a value is missing, infinite, neither number
            nor text, or likelier a slip, a column has too many values, ``drop``,
            ``codes`` or ``categories`` name something that is not there, or no feature
            is left.
    """
    codes, faults = codes or {}, []
    for option, named in {
        "--drop": drop,
        "--code": codes,
        "--category": categories,
    }.items():
        for name in named:
            if name not in table.columns:
                raise InputDataError(
                    f"{option} names {name!r}, but the table's columns are "
                    f"{list(table.columns)}."
                )
    if table.empty:
        raise InputDataError("Expected a table of at least one row, but it has none.")
    others = {*exclude, *drop}
    columns = [name for name in table.columns if name not in others]
    notes: list[str] = []
    features: dict[str, pd.Series] = {}
    sources: dict[str, str] = {}
    _require_complete(table[columns])
    for name in columns:
        column = table[name]
        try:
            if name in codes:
                coded = {name: _coded(column.astype("str"), codes[name])}
            elif is_numeric(column) and name not in categories:
                coded = {name: to_numbers(column)}
            else:
                coded, said = _read_text(column, name in categories)
                notes.append(said)
        except InputDataError as error:
            faults.append(str(error))
            continue
        features.update(coded)
        sources.update(dict.fromkeys(coded, name))
    if faults:
        more = len(faults) - NUM_FAULTS_SHOWN
        rest = [f"So have {more:,} more columns."] if more > 0 else []
        raise InputDataError(" ".join([*faults[:NUM_FAULTS_SHOWN], *rest]))
    for name in [name for name, column in features.items() if column.nunique() == 1]:
        del features[name]
        notes.append(f"column {name!r} is constant and was dropped")
    notes += filter(None, map(_crowd, features.values()))
    if not features and not may_be_empty:
        raise InputDataError(
            "Expected at least one column that can be a feature, and values that "
            f"differ, but none of {list(table.columns)} is left of a table of "
            f"{len(table)} rows: there is nothing to choose."
        )
    return FeatureTable(
        pd.DataFrame(features, index=table.index),
        tuple(notes),
        tuple(sources[name] for name in features),
    )


def _crowd(column: pd.Series) -> str | None:
    """Say that a few values far off leave the others no room, if that is so.

    Features are scaled by their range.
    """
    values = np.sort(column.to_numpy())
    num_far = max(1, int(FAR_SHARE * len(values)))
    inner = values[num_far : len(values) - num_far]
    if len(inner) < MIN_CROWD:
        return None
    room = CROWD_SHARE * (values[-1] - values[0])
    # Of one value are columns that say whether something rare is the case.
    if not 0 < inner[-1] - inner[0] <= room:
        return None
    is_far = (column < inner[0] - room) | (column > inner[-1] + room)
    distance = (column - inner.mean()).abs()
    is_farthest = distance == distance.max()
    return (
        f"column {column.name!r} goes from {values[0]:g} to {values[-1]:g}, and all "
        f"but {int(is_far.sum()):,} of {len(values):,} values are near "
        f"{inner.mean():g}, where the model can hardly tell them apart: it scales by "
        f"the whole range. Correct {column[is_farthest].iloc[0]:g} in "
        f"{row_name(is_farthest)} if it is a slip; if not, the column's logarithm may "
        "tell more"
    )


def drop_incomplete(
    arms: pd.DataFrame, args: argparse.Namespace, others: Collection[str | None]
) -> None:
    """Add the columns with missing values to ``args.drop``, and say so.

    Args:
        arms: The candidates.
        args: The options of a command.
        others: Columns that are no features.
    """
    others = {*others, *args.smiles, *args.drop, *args.category, *dict(args.code)}
    features = arms[[name for name in arms.columns if name not in others]]
    names = list(_incomplete_columns(features))
    args.drop = [*args.drop, *names]
    if names:
        note(
            f"--drop-incomplete: {len(names):,} columns with missing values are left "
            f"out: {_listing(names)}"
        )


def _listing(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES_SHOWN
    shown = ", ".join(names[:MAX_NAMES_SHOWN])
    return f"{shown} and {more:,} more" if more > 0 else shown


def _incomplete_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return where columns have a missing, infinite or huge value, if they have one."""
    gaps = {}
    for name, column in table.items():
        bad = column.isna()
        if is_numeric(column):
            bad |= ~(to_numbers(column).abs() <= MAX_NUMBER)
        if bad.any():
            gaps[str(name)] = bad
    return gaps


def _require_complete(table: pd.DataFrame) -> None:
    gaps = _incomplete_columns(table)
    if not gaps:
        return
    name, bad = next(iter(gaps.items()))
    more, remedy = "", f"pass --drop {name}"
    if len(gaps) > 1:
        more = f"; so have columns {_listing([*gaps][1:])}, {len(gaps):,} in all"
        remedy = "pass --drop-incomplete, which leaves out all these columns"
    raise InputDataError(
        f"Column {name!r} has a missing, infinite or huge value in {row_name(bad)}"
        f"{more}. Fill it (NA, None and the like count as empty), remove the row, or "
        f"{remedy}."
    )


def _read_text(
    column: pd.Series, is_category: bool
) -> tuple[dict[str, pd.Series], str]:
    """Return the features of a column that is not of numbers, and a note."""
    # Parquet has others, and candidates from two tables may be of both kinds.
    other = ~column.map(lambda cell: isinstance(cell, str | Number)).astype("bool")
    if other.any():
        raise InputDataError(
            f"Column {column.name!r} has the value {column[other].iloc[0]} in "
            f"{row_name(other)}, which is neither a number nor text. Turn the column "
            f"into one of them, or pass --drop {column.name}."
        )
    text = column.astype("str")
    found = None if is_category else days(text)
    if found is None:
        return _one_hot(text, is_asked=is_category)
    numbers, said = found
    return {str(column.name): numbers}, said


def _coded(text: pd.Series, numbers: Mapping[str, float]) -> pd.Series:
    coded = text.map(numbers).astype("float64")
    unknown = coded.isna()
    if unknown.any():
        raise InputDataError(
            f"--code gives no number for {text[unknown].iloc[0]!r} in column "
            f"{text.name!r}, {row_name(unknown)}, only for {list(numbers)}."
        )
    return coded


def _one_hot(text: pd.Series, is_asked: bool) -> tuple[dict[str, pd.Series], str]:
    """Return a column of 0 and 1 per value, and a note.

    Args:
        text: The column.
        is_asked: Whether the user has said that the values are names.
    """
    counts = text.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    if not is_asked:
        _require_names(text)
    if len(counts) > MAX_ONE_HOT_VALUES and not is_asked:
        raise InputDataError(
            f"Text column {text.name!r} has {len(counts)} different values, more than "
            f"the {MAX_ONE_HOT_VALUES} that become columns of 0 and 1 unasked. Pass "
            f"--category {text.name} if it is a kind, --id {text.name} if it names the "
            f"rows, --drop {text.name}, or --code {text.name}:VALUE=NUMBER,..."
        )
    if len(counts) * len(text) * 8 > MAX_TABLE_BYTES:
        raise InputDataError(
            f"--category {text.name} makes {len(counts):,} columns of 0 and 1 in "
            f"{len(text):,} rows, more than 1 GiB. Pass --drop {text.name}, or --code "
            f"{text.name}:VALUE=NUMBER,..."
        )
    shown = counts.head(MAX_ONE_HOT_VALUES).items()
    listing = ", ".join(f"{value} ({count})" for value, count in shown)
    if len(counts) > MAX_ONE_HOT_VALUES:
        listing += f" and {len(counts) - MAX_ONE_HOT_VALUES:,} more"
    slip = None if is_asked else _slip(counts)
    if slip is not None:
        value, why = slip
        raise InputDataError(
            f"Text column {text.name!r} has the values {listing}; {value!r}, first in "
            f"{row_name(text == value)}, {why}. Correct the table if that is a slip. "
            f"If not, pass --category {text.name}, or --code {text.name}:VALUE="
            "NUMBER,... for values with an order."
        )
    one_hot = {
        f"{text.name}={value}": (text == value).astype("float64")
        for value in sorted(counts.index)
    }
    kind = "column" if is_asked else "text column"
    return one_hot, (
        f"{kind} {text.name!r} became {len(one_hot)} columns of 0 and 1: {listing}"
    )


def _require_names(text: pd.Series) -> None:
    """Refuse text that is likelier a number than the name of a kind."""
    name, values = text.name, text.drop_duplicates()
    is_number = to_numbers(values).notna()
    if is_number.all():
        refuse_points(text)
    if is_number.any():
        is_word = ~text.isin(values[is_number])
        raise InputDataError(
            f"Column {name!r} has the text {text[is_word].iloc[0]!r} in "
            f"{row_name(is_word)}, and the number {text[~is_word].iloc[0]} elsewhere. "
            f"Correct one of them, or pass --drop {name}, or --code "
            f"{name}:VALUE=NUMBER,... or --category {name} if the numbers are names."
        )
    number = looks_numeric(values)
    if number is not None:
        raise InputDataError(
            f"Column {name!r} has text that looks like numbers or dates, such as "
            f"{number!r} in {row_name(text == number)}. Write bare numbers (the unit "
            "into the column's name, no mark between thousands, decimals as the file's "
            "other ones) and dates as 2026-01-31; or pass "
            f"--code {name}:VALUE=NUMBER,... or --drop {name}, or --category {name} if "
            "they are names."
        )


def _slip(counts: pd.Series) -> tuple[str, str] | None:
    """Return a value that is likely misspelt, and why."""
    first: dict[str, str] = {}
    for value in counts.index:
        folded = unicodedata.normalize("NFKC", value).casefold()
        usual = first.setdefault("".join(folded.split()), value)
        if usual != value:
            return value, f"differs from {usual!r} in case or spaces only"
    for value in counts.index[counts == 1]:
        usual_count = counts.drop(value).median()
        if usual_count >= USUAL_COUNT:
            return value, f"occurs once where others occur {usual_count:g} times"
    return None
