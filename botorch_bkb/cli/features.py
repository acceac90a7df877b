"""The rule that turns a table's columns into features."""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Collection, Hashable, Iterable
from numbers import Number

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.files import MAX_TABLE_BYTES
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import (
    AVAILABLE_WORDS,
    days,
    is_no_number,
    is_numeric,
    is_text,
    listing,
    MAX_NUMBER,
    outcome_columns,
    quoted,
    require_column,
    row_name,
    to_numbers,
    WRITE_NUMBERS,
)


# Names of columns that are seldom settings.
OF_STOCK = re.compile("avail|stock|inventory", re.IGNORECASE)
OF_ORDERS = re.compile("supplier|vendor|price|comment|remark|barcode", re.IGNORECASE)
# Of a column that no option names.
MAX_ONE_HOT_VALUES = 20
# Faults in one message.
NUM_FAULTS_SHOWN = 5
# Values are crowded if all but one in a hundred at either end lie in one hundredth of
# their column's range.
CROWD_SHARE, FAR_SHARE, MIN_CROWD = 0.01, 0.01, 8
# A word that occurs once is probably a slip if others occur that often.
USUAL_COUNT = 5
# 20 C, 1,200, 20-25, 1:10, 3.2.2026 and 3 Feb 2026, but neither 2-propanol nor A4.
LOOKS_NUMERIC = re.compile(
    r"\W*\d(?:[\d\s.,'\u2019:/\u00d7*±~^\u2013-]*\d)?\s*(?:(?:[^\W\d_]|[°%‰]).{0,11})?"
    r"|\d+[-./ ]+[^\W\d_]{3,9}[-./, ]+\d+"
)


def feature_columns(names: Iterable[Hashable], args: argparse.Namespace) -> list[str]:
    """Return the columns of candidates that are features, by the options."""
    # Measurements are often kept in a copy of the candidates' table.
    others = {args.id, *args.drop, *outcome_columns(args)}
    others |= {args.available, args.noise_column}
    return [str(name) for name in names if name not in others]


def read_features(
    table: pd.DataFrame, args: argparse.Namespace, beside: Collection[str] = ()
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the :func:`feature_table` of the columns that are not ``beside``."""
    for option, names in {"--drop": args.drop, "--category": args.category}.items():
        for name in names:
            require_column(table, name, args.arms, option)
    others = [name for name in feature_columns(table, args) if name not in beside]
    features, sources = feature_table(table[others], args.category)
    if features.empty and not beside:
        raise InputDataError(
            "Expected at least one column that can be a feature and is not constant, "
            f"but there is none among {list(table.columns)}. Add one."
        )
    return features, sources


def note_forgotten(table: pd.DataFrame, args: argparse.Namespace) -> None:
    """Name features that are probably no settings, with the options that help."""
    for name in feature_columns(table, args):
        column, word, hint = table[name], quoted(name), ""
        words = {*column.str.casefold()} if is_text(column) else set()
        if OF_STOCK.search(name) or (words and words <= {*AVAILABLE_WORDS}):
            if args.command == "suggest" and not args.component:
                hint = f"; --available {word} if it says what is available"
        elif 2 * len(words) <= len(column) and not OF_ORDERS.search(name):
            continue
        if name not in (*args.smiles, *args.category) and column.nunique() > 1:
            note(f"column {name!r} is a feature (--drop {word} leaves it out{hint})")


def feature_table(
    table: pd.DataFrame, categories: Collection[str] = ()
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Turn a table's columns into numeric features, and print how.

    Columns of numbers and dates are features. A column of text becomes one column of 0
    and 1 per value if it has at most 20 values or is one of ``categories``. Constant
    columns are dropped.

    Returns:
        One float64 column per feature, without gaps, and the column of the table from
        which each feature comes.
    """
    gaps = _gaps(table)
    if gaps:
        first = next(iter(gaps))
        name = quoted(first)
        raise InputDataError(
            f"Column {first!r} has a missing, infinite or huge value in "
            f"{row_name(gaps[first])}; columns with such values are "
            f"{listing(list(gaps))}. Fill it (NA, None and the like count as empty). "
            "If the setting does not apply there, write the column's median (or a word "
            f"such as without, and --category {name}), and add a column of yes and no "
            f"that says so. Or remove the row, or leave columns out by --drop {name}, "
            "all of them by --drop-incomplete."
        )
    notes: list[str] = []
    features: dict[str, pd.Series] = {}
    sources: list[str] = []
    faults = []
    for key, column in table.items():
        name = str(key)
        try:
            if is_numeric(column) and name not in categories:
                coded = {name: to_numbers(column)}
            else:
                coded, said = _read_text(column, name in categories)
                notes.append(said)
        except InputDataError as error:
            faults.append(str(error))
            continue
        for feature, values in coded.items():
            if values.nunique() > 1:
                features[feature] = values
                sources.append(name)
            else:
                notes.append(f"column {feature!r} is constant and was dropped")
    if faults:
        raise InputDataError(" ".join(faults[:NUM_FAULTS_SHOWN]))
    for text in filter(None, [*notes, *map(_crowd, features.values())]):
        note(text)
    return pd.DataFrame(features, index=table.index), tuple(sources)


def _crowd(column: pd.Series) -> str | None:
    """Return a note if a few far values leave the others a small part of the range."""
    values = np.sort(column.to_numpy())
    num_far = max(1, int(FAR_SHARE * len(values)))
    inner = values[num_far : len(values) - num_far]
    # Equal values are those of a column that marks something rare.
    most = CROWD_SHARE * np.ptp(values)
    if len(inner) < MIN_CROWD or not 0 < np.ptp(inner) <= most:
        return None
    distance = (column - inner.mean()).abs()
    is_farthest = distance == distance.max()
    return (
        f"column {column.name!r} is scaled by its range from {values[0]:g} to "
        f"{values[-1]:g}, but nearly all of its {len(values):,} values are near "
        f"{inner.mean():g}, and the model can hardly distinguish them. Correct "
        f"{column[is_farthest].iloc[0]:g} in {row_name(is_farthest)} if it is a slip. "
        "Otherwise replace the column by its logarithm"
    )


def drop_incomplete(table: pd.DataFrame, args: argparse.Namespace) -> None:
    """Add the columns with missing values to ``args.drop``, and say so."""
    kept = {*args.smiles, *args.category}
    columns = [name for name in feature_columns(table, args) if name not in kept]
    names = list(_gaps(table[columns]))
    args.drop = [*args.drop, *names]
    if names:
        note(
            f"--drop-incomplete: {len(names):,} columns with missing values are left "
            f"out: {listing(names)}"
        )


def _gaps(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the rows with a missing, infinite or huge value, by column."""
    gaps = {}
    for name, column in table.items():
        bad = column.isna()
        if is_numeric(column):
            bad |= ~(to_numbers(column).abs() <= MAX_NUMBER)
        if bad.any():
            gaps[str(name)] = bad
    return gaps


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
            f"into one of them, or pass --drop {quoted(column.name)}."
        )
    text = column.astype("str")
    dates = None if is_category else days(text)
    if dates is not None:
        first = text[dates == 0].iloc[0][:10]
        return {str(text.name): dates}, (
            f"column {text.name!r} holds dates, which became days since {first}"
        )
    if not is_category:
        _require_names(text)
    return _one_hot(text, is_category)


def _one_hot(text: pd.Series, is_category: bool) -> tuple[dict[str, pd.Series], str]:
    """Return a column of 0 and 1 per value, and a note."""
    counts = text.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    name = quoted(text.name)
    if len(counts) * len(text) * 8 > MAX_TABLE_BYTES:
        raise InputDataError(
            f"--category {name} makes {len(counts):,} columns of 0 and 1 in "
            f"{len(text):,} rows, more than 1 GiB. Pass --drop {name}, or write "
            "numbers."
        )
    one_hot = {
        f"{text.name}={value}": (text == value).astype("float64")
        for value in sorted(counts.index)
    }
    kind = "column" if is_category else "text column"
    shown = listing([f"{value} ({count})" for value, count in counts.items()])
    return one_hot, (
        f"{kind} {text.name!r} became {len(one_hot)} columns of 0 and 1: {shown}"
    )


def _require_names(text: pd.Series) -> None:
    """Raise an error if text is probably a number, a slip or an id, and not a name."""
    values, name = text.drop_duplicates(), quoted(text.name)
    is_like_number = values.map(lambda value: bool(LOOKS_NUMERIC.fullmatch(value)))
    wrong, remedy = None, "Correct it if it is a slip"
    if to_numbers(values).notna().any():
        wrong, why = is_no_number(text), "stands among numbers"
        remedy = WRITE_NUMBERS
    elif 2 * is_like_number.sum() >= max(1, len(values)):
        wrong = text.isin(values[is_like_number])
        why, remedy = "looks like a number or a date", WRITE_NUMBERS
    elif len(values) > MAX_ONE_HOT_VALUES:
        wrong = text == values.iloc[-1]
        why = (
            f"is one of {len(values)} different values; at most {MAX_ONE_HOT_VALUES} "
            "become columns of 0 and 1"
        )
        remedy = f"Pass --id {name} if it names the rows"
    else:
        slip = find_slip(text.value_counts(sort=False))
        if slip is not None:
            wrong, why = text == slip[0], slip[1]
    if wrong is not None:
        raise InputDataError(
            f"Text column {text.name!r} has {text[wrong].iloc[0]!r} in "
            f"{row_name(wrong)}, which {why}. {remedy}. Write dates as 2026-01-31, "
            f"pass --category {name} if its values are names, or --drop {name}."
        )


def find_slip(counts: pd.Series) -> tuple[str, str] | None:
    """Return a value that is probably misspelt, and why."""
    counts = counts.sort_values(ascending=False, kind="stable")
    first: dict[str, str] = {}
    for value in counts.index:
        folded = unicodedata.normalize("NFKC", value).casefold()
        usual = first.setdefault("".join(folded.split()), value)
        if usual != value:
            return value, f"differs from {usual!r} in case or spaces only"
    is_word = counts.index.str.casefold().isin(AVAILABLE_WORDS)
    for value in counts.index[(counts == 1) & ~is_word]:
        usual_count = counts.drop(value).median()
        if usual_count >= USUAL_COUNT:
            return value, f"occurs once where others occur {usual_count:g} times"
    return None
