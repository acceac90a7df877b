"""The tables of results: how they are read, and checks before a model is fitted."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.cli.arguments import DEFAULT_ID
from botorch_bkb.cli.files import Table
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import (
    find_column,
    is_no_number,
    is_numeric,
    listing,
    MAX_NUMBER,
    outcome_columns,
    read_by_options,
    read_table,
    require_column,
    require_ids,
    reward_column,
    row_name,
    to_numbers,
)
from botorch_bkb.desirability import Desirability


NUM_IDS_SHOWN = 3
# The columns of a batch, beside the ids.
COLUMNS_OF_NEXT = ("repeats", "mean", "std", "low", "high", "why")


def results_name(args: argparse.Namespace) -> str:
    """Return how messages name the tables of results."""
    return " and ".join(map(str, args.observations))


def reward_label(args: argparse.Namespace) -> str:
    """Return the name of the reward: the result, its logarithm, or the score."""
    if args.objective:
        return "score"
    return f"log10({args.reward})" if args.log_reward else str(args.reward)


def check_reward(args: argparse.Namespace) -> None:
    """Raise an error if the options do not say what is optimized."""
    if not args.objective:
        args.reward = args.reward or "reward"
        return
    for name in ("reward", "minimize", "log_reward"):
        if getattr(args, name):
            raise InputDataError(
                f"--{name.replace('_', '-')} does not go with --objective, which names "
                "the columns and their directions. Leave it out."
            )
    if args.noise_column is not None:
        raise InputDataError(
            "--noise-std does not go with --objective: it is the standard deviation of "
            "one outcome, not of the score. Leave it out."
        )
    names = pd.Index(outcome_columns(args))
    wrong = names[names.duplicated() | names.isin([args.id, *COLUMNS_OF_NEXT])]
    if len(wrong):
        raise InputDataError(
            f"Expected each --objective to have a column of its own, and none of the "
            f"batch, but got {wrong[0]!r}. Leave it out, or rename the column."
        )
    Desirability(dict(args.objective))  # checks directions, ranges and weights


def read_results(
    args: argparse.Namespace, settings: Sequence[str], is_numbered: bool
) -> tuple[pd.DataFrame, NDArray[np.bool_], Table]:
    """Read the measurements; no file, or one without rows, means none so far.

    Returns the rows of all files, with the file's name in the index; which of them say
    that the measurement failed; and the last table.
    """
    paths: list[Path] = args.observations
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputDataError(
            f"--observations names a table twice: {results_name(args)}. Name each once."
        )
    tables = {path: _read_result(path, args, settings, is_numbered) for path in paths}
    if args.sheet:
        raise InputDataError(f"No table needs --sheet {args.sheet[0]!r}. Leave it out.")
    if not tables:
        columns = [*(settings if is_numbered else [args.results_id])]
        columns += outcome_columns(args)
        nothing = pd.DataFrame(columns=columns, dtype="float64")
        return nothing, np.zeros(0, dtype="bool"), Table(nothing)
    *_, last = tables.values()
    frames = [table.frame for table in tables.values()]
    is_failed = [table.frame.index.isin(table.failed) for table in tables.values()]
    if not is_numbered:
        # They may name the ids in another case, or have none.
        own = [find_column(frame.columns, args.results_id) for frame in frames]
        ids = next(filter(None, reversed(own)), None)
        frames = [
            frame if name is None else frame.rename(columns={name: ids})
            for frame, name in zip(frames, own, strict=True)
        ]
    names = [path.name for path in tables]
    keys = names if len({*names}) == len(names) else [*map(str, tables)]
    return pd.concat(frames, keys=keys), np.concatenate(is_failed), last


def last_failures(
    indices: NDArray[np.int64], is_failed: NDArray[np.bool_], ids: Any
) -> NDArray[np.int64]:
    """Return the candidates whose last measurement failed, and report them.

    Args:
        indices: The candidate of each result, -1 if it is none.
        is_failed: Which measurements failed.
        ids: The names of candidates.
    """
    is_last = ~pd.Series(indices).duplicated(keep="last").to_numpy()
    failed = indices[is_failed & is_last & (indices >= 0)]
    if len(failed):
        note(
            f"candidates whose last measurement failed: {len(failed):,} "
            f"({listing(list(map(str, ids[failed])), NUM_IDS_SHOWN)}). They are not "
            "chosen. Remove the rows of failed measurements to let these candidates be "
            "chosen again"
        )
    return failed


def _read_result(
    path: Path, args: argparse.Namespace, settings: Sequence[str], is_numbered: bool
) -> Table:
    """Read one of the tables of results."""
    first = "In the first round, without results, leave out --observations."
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}. Correct the name. {first}")
    table = read_by_options(path, args)
    frame = table.frame
    if frame.columns.empty:
        raise InputDataError(f"{path} is empty. Restore its results. {first}")
    outcomes = outcome_columns(args)
    option = "--objective" if args.objective else "--reward"
    for name in outcomes:
        require_column(frame, name, path, option)
    if args.noise_column is not None:
        require_column(frame, args.noise_column, path, "--noise-std")
    column = None if is_numbered else find_column(list(frame.columns), args.results_id)
    lacks = [name for name in settings if name not in frame.columns]
    if column is not None:
        require_ids(frame[column], path, may_repeat=True)
    elif lacks or not settings:
        raise InputDataError(
            f"{path} has no column {args.results_id or DEFAULT_ID!r} of ids. To find "
            f"candidates by their settings, it lacks the columns {lacks}. Name one of "
            f"its columns {list(frame.columns)} by --id or --results-id, add the "
            "missing columns, or leave them out by --drop."
        )
    is_same_file = path.resolve() == args.arms.resolve()
    if is_same_file and table.sheet != args.arms_sheet:
        args.arms /= args.arms_sheet  # which is another table from now on
    elif is_same_file:
        # An empty result here is a candidate, not a measurement in flight.
        is_measured = frame[outcomes].notna().any(axis="columns")
        is_measured |= frame.index.isin(table.failed)
        return replace(table, frame=frame[is_measured])
    return table


def read_rewards(results: pd.DataFrame, args: argparse.Namespace) -> pd.Series:
    """Return the reward of each result, NaN while an outcome is missing."""
    columns = [
        reward_column(results[name], may_be_empty=True)
        for name in outcome_columns(args)
    ]
    if args.objective:
        score = Desirability(dict(args.objective))(np.stack(columns, axis=-1))
        return pd.Series(score.numpy(), results.index)
    return log_rewards(columns[0], args) if args.log_reward else columns[0]


def log_rewards(rewards: pd.Series, args: argparse.Namespace) -> pd.Series:
    """Return the logarithms of results to base 10; raise an error if one has none."""
    wrong = rewards <= 0
    if wrong.any():
        raise InputDataError(
            f"Column {args.reward!r} has the result {rewards[wrong].iloc[0]:g} in "
            f"{row_name(wrong)}, which has no logarithm. Write the detection limit if "
            "it is below, or leave out --log-reward."
        )
    note(
        f"the model is fitted to {reward_label(args)}, and mean, std, low and high are "
        "in this unit: a difference of 1 is a factor of 10"
    )
    return np.log10(rewards)


def noise_variances(
    results: pd.DataFrame, rewards: NDArray[np.float64], args: argparse.Namespace
) -> torch.Tensor:
    """Return the noise variance of each result by --noise-std, NaN if not known."""
    if args.noise_column not in results:
        return torch.full((len(results),), torch.nan, dtype=torch.double)
    column = results[args.noise_column]
    stds = to_numbers(column)
    wrong = column.notna() & ~((stds > 0) & (stds <= MAX_NUMBER))
    if not wrong.any() and not is_numeric(column):
        wrong = is_no_number(column)
    if wrong.any():
        raise InputDataError(
            f"Column {args.noise_column!r} of --noise-std has "
            f"{str(column[wrong].iloc[0])!r} in {row_name(wrong)}, which is not a "
            "standard deviation: a number above 0. Correct it, or leave the cell empty "
            "if it is not known."
        )
    if args.log_reward:  # the derivative of the logarithm
        stds = stds / (np.log(10) * 10**rewards)
    return torch.from_numpy(stds.to_numpy("float64", copy=True)).square()


def note_unused_columns(results: pd.DataFrame, used: Collection[str | None]) -> None:
    """Name the columns of the results that are not used."""
    unused = [column for column in results.columns if column not in used]
    if unused:
        note(
            f"columns of the results that are not used: {listing(unused)}. Standard "
            "deviations of results need --noise-std, and numbers of replicates do not "
            'count: see "Unused columns" of the page "Tables for suggest"'
        )


def check_copies(results: pd.DataFrame, args: argparse.Namespace) -> None:
    """Raise an error if most results were entered twice; name a few that were."""
    told = results[results[outcome_columns(args)].notna().all(axis="columns")]
    is_copy = told.duplicated()
    if args.replicates_are_real or not is_copy.any():
        return
    has_copy = told.duplicated(keep=False)
    said = (
        f"{has_copy.sum():,} of {len(told):,} measurements are equal to another row in "
        f"every column, such as {row_name(is_copy)}"
    )
    # Equal results of one candidate alone are probably true.
    if 2 * has_copy.sum() > len(told) and (has_copy & ~is_copy).sum() > 1:
        raise InputDataError(
            f"{results_name(args)}: {said}. Remove the copies if results were entered "
            "twice. Pass --replicates-are-real if they are separate measurements."
        )
    note(
        f"{said}, and count as further measurements. Remove them if they were entered "
        "twice"
    )


def check_output(
    args: argparse.Namespace,
    results: pd.DataFrame,
    results_id: str | None,
    own: Collection[str],
) -> None:
    """Raise an error if NEXT would replace a table that was filled in.

    A table may be replaced if the columns that `suggest` leaves empty are empty, or
    repeat rows of the results. ``own`` are the candidates' columns.
    """
    path: Path = args.output
    if not path.is_file() or path.stat().st_size == 0:
        return
    remedy = "Move that file away, or name another --output."
    names = [args.id, results_id, *results.select_dtypes("str")]
    outcomes = outcome_columns(args)
    marks = {name: getattr(args, name) for name in ("separator", "decimal", "encoding")}
    try:
        table = read_table(path, names, outcomes=outcomes, **marks)
        frame = table.frame
        if results_id is not None and results_id not in frame:
            require_column(frame, args.id, path, "--id")
            frame = frame.rename(columns={args.id: results_id})
        is_batch = any({*names} <= {*frame} for names in (COLUMNS_OF_NEXT, outcomes))
        if not is_batch:
            raise InputDataError("it lacks the columns of one.")
    except InputDataError as error:
        raise InputDataError(
            f"--output {path} exists, and is not a batch of suggest: {error} {remedy}"
        ) from error
    written = {results_id, args.id, *COLUMNS_OF_NEXT, *own} - {*outcomes}
    filled = frame[[name for name in frame.columns if name not in written]]
    is_lost = filled.notna().any(axis="columns") | frame.index.isin(table.failed)
    keys = [name for name in own if name in frame and name != args.id]
    keys = [*(keys if results_id is None else [results_id]), *outcomes]
    if {*keys} <= {*frame.columns} & {*results.columns}:
        known = {*_rows(results[keys])}
        is_lost &= np.array([row not in known for row in _rows(frame[keys])], "bool")
    if is_lost.any():
        raise InputDataError(
            f"--output {path} exists, and {is_lost.sum():,} of its rows have entries "
            f"that the results lack, first in {row_name(is_lost)}. Append these rows "
            f"to the results first. {remedy}"
        )


def _rows(table: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Return the cells of each row: numbers, words, None."""
    cells = table.astype("object")
    return cells.where(cells.notna(), None).itertuples(index=False, name=None)
