"""Checks of a table of measurements, before the model is fitted to it."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.cli.columns import listing, row_name
from botorch_bkb.cli.identity import Settings
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import read_table, require_column


# The columns of a batch, beside the ids.
COLUMNS_OF_NEXT = ("repeats", "mean", "std", "low", "high", "why")


def results_name(args: argparse.Namespace) -> str:
    """Return how messages name the tables of measurements."""
    return " and ".join(map(str, args.observations))


def reward_label(args: argparse.Namespace) -> str:
    """Return what is maximized or minimized: the reward, or its logarithm."""
    return f"log10({args.reward})" if args.log_reward else str(args.reward)


def log_rewards(rewards: pd.Series, args: argparse.Namespace) -> pd.Series:
    """Return the logarithms of rewards, to base 10; refuse those that have none."""
    wrong = rewards <= 0
    if wrong.any():
        raise InputDataError(
            f"Column {args.reward!r} has the reward {rewards[wrong].iloc[0]:g} in "
            f"{row_name(wrong)}, which has no logarithm. Write the detection limit if "
            "it is below, or leave out --log-reward."
        )
    note(
        f"rewards are fitted as {reward_label(args)}, of which mean, std, low and high "
        "are too: a difference of 1 is a factor of 10"
    )
    return np.log10(rewards)


def note_unused_columns(results: pd.DataFrame, used: Collection[str | None]) -> None:
    """Name the columns of the measurements that are not used."""
    unused = [column for column in results.columns if column not in used]
    if unused:
        note(
            f"columns of the results that are not used: {listing(unused)}. All "
            "measurements have the same noise, whatever their columns of errors and of "
            'replicates say: see "Unused columns" of the page "Tables for suggest"'
        )


def note_other_settings(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    indices: NDArray[np.int64],
    columns: list[str],
    args: argparse.Namespace,
) -> None:
    """Say where measurements have other settings than the candidates that they name."""
    told = results[indices < len(arms)]
    columns = [name for name in columns if name in told]
    if not len(told) or not columns:
        return
    own = arms.iloc[indices[indices < len(arms)]]
    settings = Settings(told, own, columns)
    differ = settings.differ(np.arange(len(told))) & ~np.isnan(settings.told)
    if differ.any():
        counts = zip(columns, differ.sum(axis=0), strict=True)
        said = [f"{name!r} (rows: {count:,})" for name, count in counts if count]
        first = row_name(pd.Series(differ.any(axis=-1), told.index))
        note(
            f"the results have other values than {args.arms.name} in columns "
            f"{listing(said)}, first in {first}: the fit goes by {args.arms.name}"
        )


def check_copies(results: pd.DataFrame, args: argparse.Namespace) -> None:
    """Refuse results of which most were entered twice, and name a few that were."""
    told = results[results[args.reward].notna()]
    is_copy = told.duplicated()
    if args.replicates_are_real or not is_copy.any():
        return
    has_copy = told.duplicated(keep=False)
    said = (
        f"{has_copy.sum():,} of {len(told):,} measurements are equal to another row in "
        f"every column, such as {row_name(is_copy)}"
    )
    # Of one candidate alone, equal results are likelier true.
    if 2 * has_copy.sum() > len(told) and (has_copy & ~is_copy).sum() > 1:
        raise InputDataError(
            f"{results_name(args)}: {said}. Remove the copies if results were entered "
            "twice. Pass --replicates-are-real if they are separate measurements."
        )
    note(f"{said}, and count as further ones. Remove them if they were entered twice")


def check_output(
    args: argparse.Namespace,
    results: pd.DataFrame,
    results_id: str | None,
    arms: Collection[str],
) -> None:
    """Refuse to write NEXT over a table that somebody has filled in or changed.

    A table may be replaced if the columns that `suggest` leaves empty are empty, or
    repeat rows of the measurements.
    """
    path: Path = args.output
    if not path.is_file() or path.stat().st_size == 0:
        return
    remedy = "Move that file away, or name another --output."
    try:
        table = read_table(
            path,
            [args.id, results_id],
            separator=args.separator,
            decimal=args.decimal,
            reward=args.reward,
        )
        frame = table.frame
        if results_id is not None and results_id not in frame:
            require_column(frame, args.id, path, "--id")
            frame = frame.rename(columns={args.id: results_id})
    except InputDataError as error:
        raise InputDataError(
            f"--output {path} exists, and is no batch of suggest: {error} {remedy}"
        ) from error
    own = {results_id, args.id, *COLUMNS_OF_NEXT, *arms} - {args.reward}
    keys = [name for name in arms if name in frame and name != args.id]
    keys = keys if results_id is None else [results_id]
    others = [name for name in frame.columns if name not in own]
    is_lost = frame[others].notna().any(axis="columns") | frame.index.isin(table.failed)
    if args.reward in frame and {*keys} <= {*results.columns}:
        known = {*_rows(results, [*keys, args.reward])}
        rows = _rows(frame, [*keys, args.reward])
        is_lost &= np.array([row not in known for row in rows], dtype="bool")
    if is_lost.any():
        raise InputDataError(
            f"--output {path} exists, and {is_lost.sum():,} of its rows have entries "
            f"that the measurements lack, first in {row_name(is_lost)}. Append these "
            f"rows to the measurements first. {remedy}"
        )


def _rows(table: pd.DataFrame, names: list[str]) -> list[tuple[object, ...]]:
    """Return the cells of each row: numbers, words, None."""
    cells = table[names].astype("object")
    return [*cells.where(cells.notna(), None).itertuples(index=False, name=None)]


def check_left(
    available: Tensor, indices: Tensor, failed: Tensor, args: argparse.Namespace
) -> None:
    """Refuse to choose if no candidate may be measured any more."""
    counts = indices.bincount(minlength=len(available))[: len(available)]
    is_open = available & (counts < (args.max_repeats or len(indices) + 1))
    if is_open.any():
        return
    num_failed, num_done = int((failed < len(available)).sum()), int(available.sum())
    raise InputDataError(
        f"Expected candidates to be left for {args.batch_size:,} measurements, but of "
        f"{len(available):,} candidates {num_done:,} have had their repeats "
        f"(--max-repeats {args.max_repeats}, those in flight included), "
        f"{num_failed:,} failed, and {len(available) - num_done - num_failed:,} are "
        "not available. Add or restock candidates, allow more repeats, or remove the "
        "rows of those that failed."
    )
