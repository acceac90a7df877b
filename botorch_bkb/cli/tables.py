"""How commands read tables, and what they say of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from itertools import permutations
from pathlib import Path

import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.arguments import SuggestOptions
from botorch_bkb.tables.columns import (
    is_no_number,
    is_numeric,
    MAX_NUMBER,
    read_table,
    row_name,
    to_numbers,
    WRITE_NUMBERS,
)
from botorch_bkb.tables.files import Table


AVAILABLE_WORDS = {"yes": "1", "y": "1", "true": "1", "no": "0", "n": "0", "false": "0"}


def status(text: str, quiet: bool) -> None:
    """Say on a terminal what begins now, unless ``quiet``."""
    if sys.stderr.isatty() and not quiet:
        print(f"{text} ...", file=sys.stderr)


def note(text: str) -> None:
    """Say in one line what was found or done, if anything was."""
    if text:
        print(f"Note: {text}.")


def quoted(name: object) -> str:
    """Return a name as a command line takes it."""
    return f"{name}" if re.fullmatch(r"[\w.-]+", f"{name}") else f'"{name}"'


def read_by_options(
    path: Path, args: SuggestOptions, columns: Collection[str | None] | None = None
) -> Table:
    """Read a table by the options of a command, and print notes."""
    outcomes = args.outcome_columns
    names = {args.id, args.results_id, *args.smiles, *args.drop, *args.category}
    names.update(name for name, _ in args.component)
    table = read_table(
        path,
        names - {*outcomes, args.round},
        separator=args.separator,
        decimal=args.decimal,
        encoding=args.encoding,
        sheets=args.sheet,
        columns=columns,
        outcomes=outcomes,
    )
    for text in table.notes:
        note(text)
    return table


def unit_trouble(name: str, parts: Mapping[str, pd.Series]) -> str:
    """Return which file has a column in about hundredths of another's, if one has."""
    sizes = {file: (x := to_numbers(part).abs())[x > 0] for file, part in parts.items()}
    for (file, low), (other, high) in permutations(sizes.items(), 2):
        ratio = high.median() / low.median()
        if low.max() <= high.quantile(0.25) and 20 <= ratio <= 500:
            return (
                f"the values of column {name!r} in {file} are about a hundredth of "
                f"those in {other}. Write both as percentages, or both as fractions"
            )
    return ""


def reward_column(column: pd.Series, *, may_be_empty: bool) -> pd.Series:
    """Return a column of results as numbers, NaN for an empty cell."""
    rewards = to_numbers(column)
    wrong = ~(rewards.abs() <= MAX_NUMBER)
    if may_be_empty:
        wrong &= column.notna()
    if not wrong.any() and not is_numeric(column):
        wrong = is_no_number(column)
    if wrong.any():
        cell = column[wrong].iloc[0]
        shown = "an empty cell" if pd.isna(cell) else repr(str(cell))
        more = f" (more such rows: {wrong.sum() - 1:,})" if wrong.sum() > 1 else ""
        gaps = "pending: an empty cell; failed: the word failed; beyond a limit, such "
        gaps += "as >100: the limit"
        raise InputDataError(
            f"Column {column.name!r} has {shown} in {row_name(wrong)}{more}, which is "
            f"not a finite number up to {MAX_NUMBER:g}. {WRITE_NUMBERS} "
            f"({gaps if may_be_empty else 'no empty cell'}), or remove the row."
        )
    return rewards
