"""Checks of a table of measurements, before the model is fitted to it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection

import pandas as pd
from botorch.exceptions.errors import InputDataError

from botorch_bkb.cli.columns import row_name
from botorch_bkb.cli.progress import note


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
    first = told[args.id][is_copy].iloc[0]
    place = f"such as {row_name(is_copy)}, of {first}"
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
