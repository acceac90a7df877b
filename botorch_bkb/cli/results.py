"""The tables of results: how they are read, and checks before a model is fitted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.cli.arguments import DEFAULT_ID, SuggestOptions
from botorch_bkb.cli.tables import note, read_by_options, reward_column
from botorch_bkb.desirability import Desirability
from botorch_bkb.tables.columns import (
    find_column,
    is_no_number,
    is_numeric,
    listing,
    MAX_NUMBER,
    read_table,
    require_column,
    require_ids,
    row_name,
    to_numbers,
)
from botorch_bkb.tables.files import Table


NUM_IDS_SHOWN = 3


def read_results(
    args: SuggestOptions,
    results_id: str | None,
    settings: Sequence[str],
    own: Sequence[str],
) -> tuple[pd.DataFrame, NDArray[np.bool_], NDArray[np.float64], Table]:
    """Read and check the measurements; no file, or one without rows, means none so far.

    Candidates are found by their ids, or by ``settings`` without ``results_id``. Their
    table has the columns ``own``.
    Returns the rows of all files, with the file's name in the index; which of them say
    that the measurement failed; their rewards, NaN in flight; and the last table.
    """
    paths = args.observations
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputDataError(
            f"--observations names a table twice: {args.results_name}. Name each once."
        )
    tables = [_read_result(path, args, results_id, settings) for path in paths]
    if args.sheet:
        raise InputDataError(f"No table needs --sheet {args.sheet[0]!r}. Leave it out.")
    if not tables:
        columns = [*(settings if results_id is None else [results_id])]
        columns += args.outcome_columns
        results = pd.DataFrame(columns=columns, dtype="float64")
        tables = [Table(results)]
    else:
        # They may name the ids in another case, or have none.
        ids = [find_column(table.frame.columns, results_id) for table in tables]
        name = next(filter(None, reversed(ids)), None)
        frames = [
            table.frame
            if own_id is None
            else table.frame.rename(columns={own_id: name})
            for table, own_id in zip(tables, ids, strict=True)
        ]
        names = [path.name for path in paths]
        keys = names if len({*names}) == len(names) else [*map(str, paths)]
        results = pd.concat(frames, keys=keys)
    found = find_column(results.columns, results_id)
    _note_unused_columns(
        results,
        [*own, found, *args.outcome_columns, args.round, args.noise_column],
        takes_noise=not args.roles,
    )
    _check_copies(results, args)
    _check_output(args, results, found, own)
    rewards = _read_rewards(results, args).to_numpy(dtype="float64")
    is_failed = [table.frame.index.isin(table.failed) for table in tables]
    return results, np.concatenate(is_failed), rewards, tables[-1]


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
    path: Path, args: SuggestOptions, results_id: str | None, settings: Sequence[str]
) -> Table:
    """Read one of the tables of results."""
    first = "In the first round, without results, leave out --observations."
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}. Correct the name. {first}")
    table = read_by_options(path, args)
    frame = table.frame
    if frame.columns.empty:
        raise InputDataError(f"{path} is empty. Restore its results. {first}")
    outcomes = args.outcome_columns
    for name in outcomes:
        require_column(frame, name, path, args.outcome_option)
    if args.noise_column is not None:
        require_column(frame, args.noise_column, path, "--noise-std")
    column = find_column(frame.columns, results_id)
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


def _read_rewards(results: pd.DataFrame, args: SuggestOptions) -> pd.Series:
    """Return the reward of each result, NaN while an outcome of its is missing.

    Of several outcomes it is the first.
    """
    columns = [
        reward_column(results[name], may_be_empty=True) for name in args.outcome_columns
    ]
    if args.objective:
        score = Desirability(dict(args.objective))(np.stack(columns, axis=-1))
        return pd.Series(score.numpy(), results.index)
    rewards = columns[0]
    if not args.log_reward:
        return rewards
    wrong = rewards <= 0
    if wrong.any():
        raise InputDataError(
            f"Column {args.reward!r} has the result {rewards[wrong].iloc[0]:g} in "
            f"{row_name(wrong)}, which has no logarithm. Write the detection limit if "
            "it is below, or leave out --log-reward."
        )
    note(
        f"the model is fitted to {args.reward_label}, and mean, std, low and high are "
        "in this unit: a difference of 1 is a factor of 10"
    )
    return np.log10(rewards)


def noise_variances(
    results: pd.DataFrame, rewards: NDArray[np.float64], args: SuggestOptions
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


def _note_unused_columns(
    results: pd.DataFrame, used: Collection[str | None], takes_noise: bool
) -> None:
    """Name the columns of the results that are not used."""
    unused = [column for column in results.columns if column not in used]
    stds = "need --noise-std" if takes_noise else "do not count with several outcomes"
    if unused:
        note(
            f"columns of the results that are not used: {listing(unused)}. "
            f"Standard deviations of results {stds}, and numbers of replicates do not "
            'count: see "Unused columns" of the page "Tables for suggest"'
        )


def _check_copies(results: pd.DataFrame, args: SuggestOptions) -> None:
    """Raise an error if most results were entered twice; name a few that were."""
    told = results[results[args.outcome_columns].notna().all(axis="columns")]
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
            f"{args.results_name}: {said}. Remove the copies if results were entered "
            "twice. Pass --replicates-are-real if they are separate measurements."
        )
    note(
        f"{said}, and count as further measurements. Remove them if they were entered "
        "twice"
    )


def _check_output(
    args: SuggestOptions,
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
    outcomes = args.outcome_columns
    try:
        table = read_table(
            path,
            names,
            separator=args.separator,
            decimal=args.decimal,
            encoding=args.encoding,
            outcomes=outcomes,
        )
        frame = table.frame
        if results_id is not None and results_id not in frame:
            require_column(frame, args.id, path, "--id")
            frame = frame.rename(columns={args.id: results_id})
        own_columns = args.columns_of_next
        is_batch = any({*names} <= {*frame} for names in (own_columns, outcomes))
        if not is_batch:
            raise InputDataError("it lacks the columns of one.")
    except InputDataError as error:
        raise InputDataError(
            f"--output {path} exists, and is not a batch of suggest: {error} {remedy}"
        ) from error
    written = {results_id, args.id, *args.columns_of_next, *own} - {*outcomes}
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
