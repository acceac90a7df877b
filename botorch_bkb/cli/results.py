"""The tables of results: how they are read, and checks before a model is fitted."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.bandits.observations import LABELS
from botorch_bkb.cli.arguments import DEFAULT_ID, MOMENTS, SuggestOptions
from botorch_bkb.cli.features import find_slip
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
# A whole number; longer ones are not exact as floats, and 1.10 may be no 1.1.
NUMBER = re.compile(r"\d{1,12}(\.0+)?", re.ASCII)


class Rows(NamedTuple):
    """Results, their candidates (or names of controls), and their rewards.

    The index has the file, the earlier campaign ("" for this one), and the row.
    """

    results: pd.DataFrame
    indices: NDArray[Any]
    rewards: NDArray[np.float64]

    def where(self, kept: NDArray[np.bool_]) -> Rows:
        """Return those that are kept."""
        return Rows(self.results[kept], self.indices[kept], self.rewards[kept])


def read_results(
    args: SuggestOptions,
    results_id: str | None,
    settings: Sequence[str],
    own: Sequence[str],
    words: Sequence[str] = (),
) -> tuple[Rows, pd.DataFrame, Rows, Table]:
    """Read and check the measurements; no file, or one without rows, means none so far.

    Candidates are found by their ids, or by ``settings`` without ``results_id``, of
    which ``words`` are texts. Their table has the columns ``own``.
    Returns the rows of all files, without candidates yet; whether they say that the
    measurement failed, 1 or 0, by outcome, NaN if their file lacks it; the rows of
    controls; and the last table of this campaign.
    """
    paths = [*args.observations, *args.earlier]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputDataError(
            f"A table of results is named twice: {args.results_name}. Name each once, "
            "and save further sheets of a workbook as files of their own."
        )
    tables = [_read_result(path, args, results_id, settings, words) for path in paths]
    if args.sheet:
        raise InputDataError(
            f"No table needs --sheet {args.sheet[0]!r}. Leave it out, or name its "
            "table by --observations or --earlier."
        )
    columns = [*(settings if results_id is None else [results_id])]
    columns += args.columns_to_fill(own)
    empty = Table(pd.DataFrame(columns=[*dict.fromkeys(columns)], dtype=float))
    last = [empty, *tables][len(args.observations)]
    tables = tables or [empty]
    # They may name the ids in another case, or have none.
    ids = [find_column(table.frame.columns, results_id) for table in tables]
    name = next(filter(None, reversed(ids)), None)
    frames = [
        table.frame if own_id is None else table.frame.rename(columns={own_id: name})
        for table, own_id in zip(tables, ids, strict=True)
    ]
    names = [path.name for path in paths] or [""]
    names = names if len({*names}) == len(names) else [*map(str, paths)]
    stems = [os.path.splitext(name.removesuffix(".gz"))[0] for name in names]
    if len({*stems}) < len(stems):  # such as those of 24.csv and 24.xlsx
        stems = [*names]
    stems[: len(args.observations)] = [""] * len(args.observations)
    results = pd.concat(frames, keys=[*zip(names, stems, strict=True)])
    for name in args.outcome_columns:
        require_column(results, name, Path(args.results_name), args.outcome_option)
    found = find_column(results.columns, results_id)
    samples = _samples(results, found, args)
    used = [found, args.round, args.group, args.noise_column]
    used += [DEFAULT_ID] * bool(args.control)
    used += ["round"] * bool(args.report)  # which has the rounds of this column
    if {*args.columns_of_next} <= {*results}:  # a batch that was filled in
        used += args.columns_of_next
    _note_unused_columns(
        results, [*own, *args.outcome_columns, *used], takes_noise=not args.roles
    )
    _check_copies(results, args)
    _check_groups(results, args)
    _check_output(args, results, found, own)
    rewards = _read_rewards(results, args).to_numpy(dtype="float64")
    failures = pd.concat([_failures(each, args.outcome_columns) for each in tables])
    failures.index = results.index
    rows = Rows(results, samples.to_numpy(), rewards)
    is_control = samples.isin(args.control).to_numpy()
    controls = rows.where(is_control & ~failures.eq(1).any(axis="columns").to_numpy())
    return rows.where(~is_control), failures[~is_control], controls, last


def _failures(table: Table, outcomes: Sequence[str]) -> pd.DataFrame:
    """Return whether each row failed, 1 or 0, for the outcomes that the table has."""
    is_failed = table.frame.index.isin(table.failed).astype("float64")
    return pd.DataFrame({name: is_failed for name in outcomes if name in table.frame})


def _samples(
    results: pd.DataFrame, results_id: str | None, args: SuggestOptions
) -> pd.Series:
    """Return the ids of results, some of them those of --control; empty without it."""
    ids = pd.Series("", results.index)
    names = [args.id, DEFAULT_ID] if results_id is None else [results_id]
    names = [name for name in names if name in results]
    if args.control and names:  # batches of numbered candidates have their column
        ids = results[names].bfill(axis="columns").iloc[:, 0]
    for name in args.control:
        if args.observations and not ids.eq(name).any():
            raise InputDataError(
                f"Expected results with the id {name!r} of --control in a column "
                f"{(names or [DEFAULT_ID])[-1]!r}, but there are none. Correct the "
                "name, or leave out the option."
            )
    return ids


def told_table(
    indices: Any, rewards: Any, noise: Any = np.nan, **names: Any
) -> pd.DataFrame:
    """Return a table of results as a bandit takes them.

    Its columns are the ``indices`` of candidates, -1 for controls; the ``rewards``, NaN
    while in flight; their ``noise`` variances, NaN if not known; and the names of
    ``group``, ``campaign`` and ``control``, empty without.
    """
    columns = {"indices": indices, "rewards": rewards, "noise": noise}
    return pd.DataFrame(columns | dict.fromkeys(LABELS, "") | names)


def told(rows: Rows, args: SuggestOptions) -> pd.DataFrame:
    """Return results as a bandit takes them."""
    results, samples, rewards = rows
    is_control = samples.dtype.kind != "i"
    return told_table(
        np.full(len(samples), -1) if is_control else samples,
        rewards,
        noise_variances(results, rewards, args),
        group=labels(results, args.group).to_numpy(),
        campaign=results.index.get_level_values(1).to_numpy(),
        control=samples if is_control else "",
    )


def add_results(bandit: Any, told: pd.DataFrame) -> None:
    """Add results to a bandit: those of candidates, then those of controls."""
    for is_control, rows in told.groupby(told["control"] != ""):
        names = [*LABELS] if is_control else ["group", "campaign"]
        bandit.add_observations(
            None if is_control else rows["indices"].to_numpy(),
            rows["rewards"].to_numpy(),
            noise_variance=rows["noise"].to_numpy(),
            **{name: rows[name].to_numpy() for name in names},
        )


def labels(results: pd.DataFrame, name: str | None) -> pd.Series:
    """Return the cells of a column as text, empty if they are or there is no such.

    Whether a file has numbers or texts depends on its other cells: 01 and 1.0 are 1.
    """
    cells = results.get(name, pd.Series("", results.index)).astype("object")
    texts = cells.map(
        lambda cell: (
            cell
            if isinstance(cell, str) and not NUMBER.fullmatch(cell)
            else f"{float(cell):.15g}"
        )
    )
    # A time anywhere in a column of dates gives a time to all.
    return texts.str.removesuffix(" 00:00:00").where(cells.notna(), "")


def sort_results(
    rows: Rows,
    failures: pd.DataFrame,
    controls: Rows,
    ids_of: Any,
    args: SuggestOptions,
) -> tuple[Rows, list[Rows], NDArray[np.int64]]:
    """Return the results of this campaign, and those of earlier ones and controls.

    Results of no candidate (-1), failed ones, and those that were entered again with
    more outcomes are left out. The candidates whose last measurement failed are
    returned too, and reported by their names, of ``ids_of``.
    """
    is_own = rows.results.index.get_level_values(1) == ""
    is_of_candidate = rows.indices >= 0
    is_failed = failures.eq(1).any(axis="columns").to_numpy()
    # The last one of each outcome: a file of another outcome may follow.
    known = is_own & is_of_candidate
    last = failures[known].groupby(rows.indices[known], sort=False).last()
    failed = last.index[last.eq(1).any(axis="columns")].to_numpy(copy=True)
    if len(failed):
        note(
            f"candidates whose last measurement failed: {len(failed):,} "
            f"({listing(ids_of(failed), NUM_IDS_SHOWN)}). They are not "
            "chosen. Remove the rows of failed measurements to let these candidates be "
            "chosen again"
        )
    is_told = is_of_candidate & ~is_failed
    is_told &= ~_is_completed(rows, is_told, args)
    return (
        rows.where(is_told & is_own),
        [rows.where(is_told & ~is_own), controls],
        failed,
    )


def _is_completed(
    rows: Rows, is_told: NDArray[np.bool_], args: SuggestOptions
) -> NDArray[np.bool_]:
    """Return which rows with open outcomes were entered again with more outcomes.

    Another row of the candidate and of the same group then has all their results. Only
    rows that are told count.
    """
    is_completed = np.zeros(len(rows.indices), dtype="bool")
    if len(args.roles) < 2 or args.replicates_are_real:
        return is_completed
    table = rows.results[[*args.roles]].apply(to_numbers)
    is_known = table.notna()
    is_open = is_known.any(axis="columns") & ~is_known.all(axis="columns") & is_told
    campaign = table.index.get_level_values(1)
    of_row = [rows.indices, labels(rows.results, args.group).array, campaign]
    for known in is_known[is_open].drop_duplicates().to_numpy():
        own = (is_known == known).all(axis="columns").to_numpy() & is_told
        more = is_known.loc[:, known].all(axis="columns").to_numpy() & is_told & ~own
        columns = [*of_row, *table.loc[:, known].to_numpy().T]
        again = pd.MultiIndex.from_arrays([column[more] for column in columns])
        cells = pd.MultiIndex.from_arrays([column[own] for column in columns])
        is_completed[own] = cells.isin(again)
    if is_completed.any():
        first = row_name(pd.Series(is_completed, table.index))
        note(
            f"{is_completed.sum():,} results with open outcomes were entered again "
            f"with more outcomes, such as {first}. The row with more counts alone. "
            "Pass --replicates-are-real if they are separate measurements"
        )
    return is_completed


def _read_result(
    path: Path,
    args: SuggestOptions,
    results_id: str | None,
    settings: Sequence[str],
    words: Sequence[str],
) -> Table:
    """Read one of the tables of results."""
    is_earlier = path in args.earlier
    first = "In the first round, without results, leave out --observations."
    first = "Without results, leave out --earlier." if is_earlier else first
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}. Correct the name. {first}")
    table = read_by_options(path, args, words=words)
    frame = table.frame
    if frame.columns.empty:
        raise InputDataError(f"{path} is empty. Restore its results. {first}")
    outcomes = [name for name in args.outcome_columns if name in frame]
    others = [f"{name}" for name in frame if name not in (*outcomes, *settings)]
    for name in args.outcome_columns:
        if not (outcomes and args.roles):  # of several outcomes, a file may have one
            require_column(frame, name, path, args.outcome_option)
        if name not in frame and (like := get_close_matches(name, others, 1, 0.8)):
            raise InputDataError(
                f"{path} has no column {name!r}, but one with a name like it, "
                f"{like[0]!r}. Correct that name, or add an empty column {name!r}."
            )
    of_own = {"--noise-std": args.noise_column, "--group": args.group}
    for option, own in of_own.items():
        if own is not None and not is_earlier:
            require_column(frame, own, path, option)
    column = find_column(frame.columns, results_id)
    lacks = [name for name in settings if name not in frame.columns]
    if column is not None:
        require_ids(frame[column], path, may_repeat=True)
    elif (lacks or not settings) and not _has_controls_alone(frame, args):
        raise InputDataError(
            f"{path} has no column {args.results_id or DEFAULT_ID!r} of ids. To find "
            f"candidates by their settings, it lacks the columns {lacks}. Name one of "
            f"its columns {list(frame.columns)} by --id or --results-id, add the "
            "missing columns, or leave them out by --drop."
        )
    _check_percents(table, path, args)
    is_failed = frame.index.isin(table.failed)
    is_measured = frame[outcomes].notna().any(axis="columns")
    if path.resolve() == args.arms.resolve() and table.sheet != args.arms_sheet:
        args.arms /= args.arms_sheet  # which is another table from now on
    if is_earlier:
        return replace(table, frame=frame[is_measured & ~is_failed])
    if path.resolve() == args.arms.resolve():
        # An empty result here is a candidate, not a measurement in flight.
        return replace(table, frame=frame[is_measured | is_failed])
    return table


def _has_controls_alone(frame: pd.DataFrame, args: SuggestOptions) -> bool:
    """Whether all rows of a table without ids of candidates are of controls."""
    if not args.control or DEFAULT_ID not in frame:
        return False
    return bool(frame[DEFAULT_ID].isin(args.control).all())


def _check_percents(table: Table, path: Path, args: SuggestOptions) -> None:
    """Raise an error if only results or only their standard deviations are in %."""
    if args.noise_column not in table.frame:
        return
    columns = [*args.outcome_columns, args.noise_column]
    if 0 < len(table.percents.intersection(columns)) < len(columns):
        raise InputDataError(
            f"{path} has % in one of the columns {columns} and not in the other. Write "
            "both with %, or both without."
        )


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
) -> NDArray[np.float64]:
    """Return the noise variance of each result by --noise-std, NaN if not known."""
    if args.noise_column not in results:
        return np.full(len(results), np.nan)
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
    return np.square(stds.to_numpy("float64"))


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
    outcomes = args.outcome_columns
    told = results[results[outcomes].notna().any(axis="columns")]
    # Some tables have more columns than others, but all of them name the candidates.
    shared = [
        str(name)
        for name in told
        if name in outcomes or (told[name].groupby(level=0).count() > 0).all()
    ]
    groups = told.get(args.group)
    if find_column(shared, args.results_id) is not None:
        told = told[shared]
    is_copy = told.duplicated()
    if groups is not None:  # results of another group are no copies
        is_copy &= groups.isna() | pd.concat([told, groups], axis=1).duplicated()
    if args.replicates_are_real or not is_copy.any():
        return
    rows = [told[name] for name in told]
    has_copy = is_copy.groupby(rows, sort=False, dropna=False).transform("any")
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


def _check_groups(results: pd.DataFrame, args: SuggestOptions) -> None:
    """Raise an error if a campaign has a group that is probably another one."""
    names = labels(results, args.group)
    for _, own in names[names != ""].groupby(level=1):
        slip = find_slip(own.value_counts(sort=False) + 1)  # small groups are no slips
        if slip is not None:
            raise InputDataError(
                f"Column {args.group!r} of --group has {slip[0]!r} in "
                f"{row_name(own == slip[0])}, which {slip[1]}. Write it alike."
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
        # Each batch, also of other outcomes, has columns of predictions.
        predicted = set[str]()
        for name in frame.filter(regex="mean$"):
            moments = {name.removesuffix("mean") + kind for kind in MOMENTS}
            predicted |= moments if moments <= {*frame} else set()
        is_batch = "repeats" in frame and predicted
        if not (is_batch or {*outcomes} <= {*frame}):
            raise InputDataError("it lacks the columns of one.")
    except InputDataError as error:
        raise InputDataError(
            f"--output {path} exists, and is not a batch of suggest: {error} {remedy}"
        ) from error
    # The settings, those that the candidates no longer have included.
    before = frame.columns.get_loc("repeats") if "repeats" in frame else 0
    settings = [*own, *frame.columns[:before]]
    written = {results_id, args.id, *args.columns_of_next, *settings}
    written |= {"why", "probability_feasible"} | predicted
    written -= {*outcomes}
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
