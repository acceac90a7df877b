"""How commands read tables, and what they say of them."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.arguments import DEFAULT_ID, SuggestOptions
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


YES = ("yes", "y", "true", "ja", "oui", "sí", "si", "はい", "是")
NO = ("no", "n", "false", "nein", "non", "いいえ", "否")
AVAILABLE_WORDS = dict.fromkeys(YES, "1") | dict.fromkeys(NO, "0")


# Numbers with more decimals, or more digits before them, are written with an exponent.
MAX_DECIMALS = 9
# Of a yield that is written as a fraction, with its noise.
MAX_FRACTION = 1.5


def status(text: str, quiet: bool) -> None:
    """Say on a terminal what begins now, unless ``quiet``."""
    if sys.stderr.isatty() and not quiet:
        print(f"{text} ...", file=sys.stderr)


def note(text: str) -> None:
    """Say in one line what was found or done, if anything was."""
    if text:
        print(f"Note: {text}.")


def in_digits_of(value: float, std: float) -> str:
    """Return a number down to the second digit of its standard deviation.

    Ten digits if that is zero or infinite.
    """
    if not 0 < std < math.inf:
        return f"{value:.10g}"
    num_decimals = 1 - math.floor(math.log10(std))
    size = math.floor(math.log10(abs(value))) if value else 0
    if num_decimals > MAX_DECIMALS or size > MAX_DECIMALS:
        return f"{value:.{min(max(size + num_decimals, 1), 15)}e}"
    return f"{value:z.{max(num_decimals, 0)}f}"


def quoted(name: object) -> str:
    """Return a name as a command line takes it."""
    text = f"{name}"
    if re.search(r'["$`]|!', text):
        return shlex.quote(text)
    return text if re.fullmatch(r"[\w.:/=+-]+", text) else f'"{text}"'


def read_by_options(
    path: Path,
    args: SuggestOptions,
    columns: Collection[str | None] | None = None,
    words: Collection[str | None] = (),
) -> Table:
    """Read a table by the options of a command, and print notes.

    ``words`` are columns of names, which stay as they are written, as do those of ids.
    """
    outcomes = args.outcome_columns
    names = {args.id, args.results_id, *args.smiles, *args.drop, *args.category}
    names |= {DEFAULT_ID} if args.control else set()
    table = read_table(
        path,
        names - {*outcomes, args.round} | {*words},
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


def require_different_columns(args: SuggestOptions) -> None:
    """Raise an error if options name one column twice, or one of the batch's own."""
    owners = dict.fromkeys(args.columns_of_next, "which the batch has of its own")
    named: dict[str, Sequence[str | None]] = {
        "--component": [name for name, _ in args.component],
        "--id": [args.id],
        args.outcome_option: args.outcome_columns,
        "--noise-std": [args.noise_column],
        "--group": [args.group],
    }
    for option, columns in named.items():
        for name in filter(None, columns):
            if name in owners:
                raise InputDataError(
                    f"{option} names the column {name!r}, {owners[name]}. Rename it in "
                    "the tables, or name another."
                )
            owners[name] = f"as {option} does"


def unit_trouble(name: str, parts: Mapping[str, pd.Series]) -> str:
    """Return which file has a column in about hundredths of another's, if one has."""
    sizes = {file: (x := to_numbers(part).abs())[x > 0] for file, part in parts.items()}
    for (file, low), (other, high) in permutations(sizes.items(), 2):
        ratio = high.median() / low.median()
        may_be = low.max() <= MAX_FRACTION and high.max() <= 100 * MAX_FRACTION
        if may_be and low.max() <= high.quantile(0.25) and 20 <= ratio <= 500:
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
    if not is_numeric(column) and column[wrong].notna().all():
        strange = is_no_number(column)
        wrong = strange if strange.any() else wrong
    if wrong.any():
        cell = column[wrong].iloc[0]
        empty = "an empty cell, or a word such as failed,"  # which becomes one
        shown = empty if pd.isna(cell) else repr(str(cell))
        more = f" More such rows: {wrong.sum() - 1:,}." if wrong.sum() > 1 else ""
        only = re.fullmatch(
            r"(?:ca\.?|[<>≤≥=~≈\s])*([0-9]+(?:[.,][0-9]+)?)(?:[%+]|\s+[^\s\d]+)?",
            f"{cell}",
        )
        gaps = ", or failed for a failed measurement, or leave the cell empty until "
        gaps += "there is a result"
        right = only[1] if only and only[1] != f"{cell}" else "a number"
        write = f"Write {right}{gaps * may_be_empty}. "
        write += "Of a reading beyond a limit, write the limit. " * (right[0] == "a")
        is_large = abs(rewards[wrong].iloc[0]) > MAX_NUMBER
        why = f"beyond {MAX_NUMBER:g}" if is_large else "not a number"
        raise InputDataError(
            f"Column {column.name!r} has {shown} in {row_name(wrong)}, which is {why}."
            f"{more} {write}{WRITE_NUMBERS}."
        )
    return rewards
