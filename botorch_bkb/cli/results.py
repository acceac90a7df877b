"""Checks of a table of measurements, before the model is fitted to it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.cli.columns import row_name, to_numbers
from botorch_bkb.cli.files import read_cells
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import FAILED, read_table, require_column


# The columns of a batch, beside the ids.
COLUMNS_OF_NEXT = ("repeats", "mean", "std", "low", "high", "why")
NUM_SHOWN = 5
# In the names of columns that say how exact a measurement is.
EXACTNESS = re.compile(
    r"(?<![a-z])(sem|sd|std|std ?dev|std ?err|se|error|err|uncertainty|sigma|variance|"
    r"var|ci|cv|rsd|n|count|replicates?|weight)(?![a-z])",
    re.IGNORECASE,
)


def note_unused_columns(
    results: pd.DataFrame, used: Collection[str | None], name: str
) -> None:
    """Name the columns of the measurements that are not used.

    Args:
        results: The measurements.
        used: The columns that are used, or compared with those of the candidates.
        name: The name of the table.
    """
    unused = [column for column in results.columns if column not in used]
    if not unused:
        return
    said = f"{name} has columns that are not used: {', '.join(unused)}"
    exactness = ", ".join(filter(EXACTNESS.search, unused))
    if exactness:
        said += (
            f". Whatever {exactness} says, all measurements have the same noise: see "
            '"Unused columns" of the page "Tables for suggest"'
        )
    note(said)


def note_words(words: Mapping[str, pd.Series], reward: str, name: str) -> None:
    """Say which words of a table count as empty.

    Args:
        words: By column, the cells with such a word.
        reward: The column of rewards, where failures are said elsewhere.
        name: The name of the table.
    """
    said = []
    for column, cells in words.items():
        if column == reward:
            cells = cells[cells.str.casefold() != FAILED]
        counts = cells.value_counts(sort=False).head(NUM_SHOWN)
        if len(counts):
            listing = ", ".join(f"{word!r} ({count})" for word, count in counts.items())
            said.append(f"{listing} in column {column!r}")
    more = f" and in {len(said) - NUM_SHOWN:,} more columns" if said[NUM_SHOWN:] else ""
    if said:
        note(f"{name}: empty cells are also {'; '.join(said[:NUM_SHOWN])}{more}")


def check_copies(results: pd.DataFrame, args: argparse.Namespace, name: str) -> None:
    """Refuse results of which most were entered twice, and name a few that were.

    Raises:
        InputDataError: If most rows with a reward are equal to another one, and the
            options do not say that they are separate measurements.
    """
    told = results[results[args.reward].notna()]
    is_copy = told.duplicated()
    if args.replicates_are_real or not is_copy.any():
        return
    has_copy = told.duplicated(keep=False)
    place = f"such as {row_name(is_copy)}"
    # Of one candidate alone, equal results are likelier true.
    if 2 * has_copy.sum() <= len(told) or (has_copy & ~is_copy).sum() < 2:
        note(
            f"{name}: {is_copy.sum():,} rows are equal to an earlier row, {place}, and "
            "count as further measurements. Remove them if they were entered twice"
        )
        return
    raise InputDataError(
        f"{name}: {has_copy.sum():,} of {len(told):,} measurements are equal to "
        f"another row in every column, {place}. Remove the copies if results were "
        "entered twice. Pass --replicates-are-real if they are separate measurements."
    )


def check_output(
    args: argparse.Namespace,
    results: pd.DataFrame,
    results_id: str | None,
    arms: Collection[str],
) -> None:
    """Refuse to write NEXT over a table that somebody has filled in or changed.

    A table may be replaced if it has no other columns than NEXT, and if the columns
    that `suggest` leaves empty are empty or repeat rows of the measurements.

    Args:
        args: The options of `suggest`.
        results: The measurements.
        results_id: Their column of ids; None if the candidates' settings tell them.
        arms: The columns of the candidates.

    Raises:
        InputDataError: If the file is not a table, or if entries would be lost.
    """
    path: Path = args.output
    if not path.is_file() or path.stat().st_size == 0:
        return
    remedy = "Move that file away, or name another --output."
    try:
        names = read_cells(path, separator=args.separator).frame.columns
        table = read_table(path, names, separator=args.separator).frame
        if results_id is not None and results_id not in names:
            require_column(table, args.id, path, "--id")
            table = table.rename(columns={args.id: results_id})
    except InputDataError as error:
        raise InputDataError(
            f"--output {path} exists, and is no batch of suggest: {error} {remedy}"
        ) from error
    others = {*arms} - {args.reward, results_id}
    own = table.columns.isin([results_id, *COLUMNS_OF_NEXT, *others])
    entries = table.loc[:, ~own].dropna(how="all")
    keys = [results_id] if results_id is not None else sorted(others & {*table.columns})
    if args.reward in entries and {*keys} <= {*results.columns}:
        keys.append(args.reward)
        rewards = table[args.reward].str.replace(",", ".")
        table = table.assign(**{args.reward: to_numbers(rewards)})
        is_known = _words(table, keys).isin(_words(results, keys))
        entries = entries[~is_known[entries.index]]
    if entries.empty:
        return
    column = entries.columns[entries.iloc[0].notna()][0]
    raise InputDataError(
        f"--output {path} exists, and {len(entries):,} of its rows have entries that "
        f"the measurements lack, such as {entries[column].iloc[0]!r} in column "
        f"{column!r}, {row_name(entries[column].notna())}. Append these rows to the "
        f"measurements first. {remedy}"
    )


def check_left(
    available: Tensor, indices: Tensor, failed: Tensor, args: argparse.Namespace
) -> None:
    """Refuse to choose if no candidate may be measured any more.

    Args:
        available: Which candidates may be chosen.
        indices: The candidate of each measurement.
        failed: The candidates whose last measurement failed; not available.
        args: The options of `suggest`.

    Raises:
        InputDataError: If none is left.
    """
    counts = indices.bincount(minlength=len(available))[: len(available)]
    is_open = available & (counts < (args.max_repeats or len(indices) + 1))
    if is_open.any():
        return
    num_failed, num_done = len(failed.unique()), int(available.sum())
    reasons = {
        f"have had their repeats (--max-repeats {args.max_repeats}), those in flight "
        "included": (num_done, "allow more repeats"),
        "failed": (num_failed, "remove their rows from the measurements"),
        "are not available": (len(available) - num_done - num_failed, "restock"),
    }
    said = {why: by for why, by in reasons.items() if by[0]}
    raise InputDataError(
        f"Expected candidates to be left for {args.batch_size:,} measurements, but of "
        f"{len(available):,} candidates "
        f"{' and '.join(f'{number:,} {why}' for why, (number, _) in said.items())}. "
        f"Add candidates, or {', or '.join(remedy for _, remedy in said.values())}."
    )


def _words(table: pd.DataFrame, columns: list[str]) -> pd.Series:
    """Return one text for each row, which is equal for equal words and numbers."""
    words = table[columns].astype("str").replace(",", ".", regex=True)
    numbers = words.apply(to_numbers).map("{:.9g}".format)
    return (
        words.where(numbers == "nan", numbers).fillna("").agg(" ".join, axis="columns")
    )
