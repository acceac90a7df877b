"""The two tables that are the whole state of `suggest`: candidates and results."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.cli.arguments import DEFAULT_ID
from botorch_bkb.cli.columns import (
    is_numeric,
    listing,
    LOOKS_NUMERIC,
    NUMBER,
    reward_column,
    row_name,
)
from botorch_bkb.cli.features import drop_incomplete, feature_columns
from botorch_bkb.cli.files import CsvFormat, is_library, parquet_columns, Table
from botorch_bkb.cli.identity import match_ids, Settings
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.results import (
    check_copies,
    check_output,
    log_rewards,
    note_other_settings,
    note_unused_columns,
    results_name,
)
from botorch_bkb.cli.tables import (
    find_column,
    read_table,
    require_column,
    require_ids,
)


NUM_IDS_SHOWN = 3
AVAILABLE_WORDS = {"yes": "1", "y": "1", "true": "1", "no": "0", "n": "0", "false": "0"}
# The column that numbers the rows of a table without ids.
ROW_COLUMN = "candidate"


@dataclass(frozen=True)
class Campaign:
    """The two tables, read.

    Attributes:
        arms: The candidates; after them those that were measured, but are not in their
            table any more. Of a table that stays in its file only the ids. One without
            ids has a first column that names its rows.
        num_candidates: The number of the former.
        available: Which rows of ``arms`` may be chosen.
        results: The table of measurements; no rows if there are none.
        indices: The row of ``arms`` of each measurement.
        rewards: The reward of each, NaN where it is in flight.
        results_id: The column of ids of ``results``; None if its rows are matched by
            their settings.
        is_numbered: Whether the candidates have no ids in their file.
        arms_form: How the file of the candidates is written, if it is a CSV file.
        results_form: How the file of the measurements is written, if it is a CSV file.
        results_columns: Its columns. Of several files the last one counts.
        failed: The rows of ``arms`` whose last measurement failed: not available.
    """

    arms: pd.DataFrame
    num_candidates: int
    available: Tensor
    results: pd.DataFrame
    indices: Tensor
    rewards: Tensor
    results_id: str | None = None
    is_numbered: bool = False
    arms_form: CsvFormat | None = None
    results_form: CsvFormat | None = None
    results_columns: tuple[str, ...] = ()
    failed: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def regrouped(self, group: NDArray[np.int64], rows: NDArray[np.int64]) -> Campaign:
        """Return the campaign with one row of ``arms`` for each group of rows.

        Args:
            group: The group of each row, counted from 0 by first rows; -1 for rows that
                are left out, with their measurements.
            rows: The row that is kept of each group.
        """
        indices = group[self.indices.numpy()]
        is_kept = indices >= 0
        available = self.available[torch.from_numpy(rows)]
        failed = torch.from_numpy(group[self.failed.numpy()])
        failed = failed[failed >= 0]
        available[failed] = False
        return replace(
            self,
            failed=failed,
            arms=self.arms.iloc[rows],
            num_candidates=int(group[: self.num_candidates].max()) + 1,
            available=available,
            results=self.results[is_kept] if len(self.results) else self.results,
            indices=torch.from_numpy(indices[is_kept]),
            rewards=self.rewards[torch.from_numpy(is_kept)],
        )


def stays_in_file(path: Path, args: argparse.Namespace) -> bool:
    """Whether a table's features are left in its file.

    Molecules and fingerprints are not: they are packed, and fit.
    """
    has_bits = args.smiles or args.kernel == "tanimoto"
    return not has_bits and is_library(path)


def read_by_options(
    path: Path, args: argparse.Namespace, columns: Collection[str | None] | None = None
) -> Table:
    """Read a table as the options of a command say, and print what was found."""
    if len(dict(args.code)) < len(args.code):
        raise InputDataError("A column has two --code. Write its codes into one.")
    names = {args.id, *args.smiles, *args.drop, *args.category, *dict(args.code)}
    names.add(getattr(args, "results_id", None))
    table = read_table(
        path,
        names - {args.reward, getattr(args, "round", None)},
        separator=args.separator,
        decimal=args.decimal,
        columns=columns,
        reward=args.reward,
    )
    for text in table.notes:
        note(text)
    return table


def read_campaign(args: argparse.Namespace) -> Campaign:
    """Read candidates and measurements, as the options of `suggest` name them.

    ``args.id`` becomes the column of ``arms`` that holds the ids.

    Raises:
        InputDataError: If a column is missing, an id is missing, twice or unknown, a
            reward is not a number, or it is not clear what is available.
    """
    is_large = stays_in_file(args.arms, args)
    arms, form, is_numbered = _read_arms(args, is_large)
    if args.drop_incomplete:
        drop_incomplete(arms, args)
    settings = feature_columns(arms, args)
    results, is_failed, last = _read_results(args, settings, is_numbered)
    results_id = None if is_numbered else find_column(results.columns, args.results_id)
    own = parquet_columns(args.arms) if is_large else list(arms.columns)
    note_unused_columns(results, [*own, results_id, args.reward, args.round])
    check_copies(results, args)
    check_output(args, results, results_id, own)
    rewards = reward_column(results[args.reward], may_be_empty=True)
    if args.log_reward:
        rewards = log_rewards(rewards, args)
    indices, removed = _identify(results, arms, settings, results_id, args)
    # Molecules are compared where they are read.
    compared = [name for name in settings if name not in args.smiles]
    note_other_settings(results, arms, indices, compared, args)
    available = np.append(_available(arms, args), np.zeros(len(removed), dtype="bool"))
    num_candidates = len(arms)
    if len(removed):
        arms = pd.concat([pd.concat({args.arms.name: arms}), removed])
    is_last = ~pd.Series(indices).duplicated(keep="last").to_numpy()
    failed = indices[is_failed & is_last]
    available[failed] = False
    if len(failed):
        names = list(arms[args.id].iloc[failed])
        note(
            f"the last measurement of {len(failed):,} candidates failed "
            f"({listing(names, NUM_IDS_SHOWN)}): they are not chosen. Remove such a "
            "row to let its candidate be chosen again"
        )
    return Campaign(
        arms=arms,
        num_candidates=num_candidates,
        available=torch.tensor(available),
        results=results[~is_failed],
        indices=torch.tensor(indices[~is_failed]),
        rewards=torch.tensor(rewards.to_numpy(dtype="float64")[~is_failed]),
        results_id=results_id,
        is_numbered=is_numbered,
        arms_form=form,
        results_form=last.form,
        results_columns=tuple(last.frame.columns),
        failed=torch.from_numpy(failed),
    )


def _read_arms(
    args: argparse.Namespace, is_large: bool
) -> tuple[pd.DataFrame, CsvFormat | None, bool]:
    """Read the candidates, how their file is written, and whether they are numbered."""
    columns = [args.id, args.available] if is_large else None
    table = read_by_options(args.arms, args, columns)
    arms = table.frame
    name = find_column(list(arms.columns), args.id)
    is_default = args.id == DEFAULT_ID and args.results_id is None and not is_large
    is_numbered = name is None and is_default
    for smiles in args.smiles:
        require_column(arms, smiles, args.arms, "--smiles")
    if is_numbered:
        _require_no_ids(arms, args)
        args.id = ROW_COLUMN
        while args.id in arms:
            args.id += "_"
        names = [f"row {row + 1}" for row in arms.index]
        arms.insert(0, args.id, pd.Series(names, arms.index, dtype="str"))
        note(
            f"{args.arms.name} has no column {DEFAULT_ID!r}: its rows are numbered, "
            "and results belong to the candidate with their settings"
        )
    else:
        args.results_id = args.results_id or args.id
        args.id = name or args.id
        require_column(arms, args.id, args.arms, "--id")
        require_ids(arms[args.id], args.arms)
    if arms.empty:
        raise InputDataError(f"Expected at least one candidate in {args.arms}.")
    if args.reward in arms and args.arms.resolve() not in _paths(args):
        note(
            f"{args.arms.name} has a column {args.reward!r}, which is not read: "
            "measurements are those of --observations, which may be the same file"
        )
    return arms, table.form, is_numbered


def _require_no_ids(arms: pd.DataFrame, args: argparse.Namespace) -> None:
    """Refuse candidates without ids if a column may hold ids, or the header values."""
    named = {*args.category, *dict(args.code), *args.smiles}
    columns = [name for name in feature_columns(arms, args) if name not in named]
    for name in columns:
        if is_numeric(arms[name]):
            is_count = name == columns[0] and len(columns) > 1
            is_id = is_count and (np.diff(arms[name].astype("float64")) == 1).all()
        else:
            words = arms[name].astype("str")
            is_id = words.nunique() == len(arms)
            is_id = is_id and not words.map(LOOKS_NUMERIC.fullmatch).any()
        if (is_id and len(arms) > 2) or NUMBER.fullmatch(name.replace(",", ".")):
            raise InputDataError(
                f"{args.arms} has no column 'id' in its header, but a column {name!r}. "
                "Write a header above the rows if there is none. If the column names "
                f"or counts the candidates, pass --id {name!r} or --drop {name!r}. If "
                "it is a setting, add a column 'id', or, for words, pass --category "
                f"{name!r}. If it is the whole header, pass --separator."
            )


def _paths(args: argparse.Namespace) -> list[Path]:
    """Return where the tables of measurements are."""
    return [path.resolve() for path in args.observations]


def _available(arms: pd.DataFrame, args: argparse.Namespace) -> NDArray[np.bool_]:
    """Return which candidates may be chosen, by words or by amounts."""
    if args.available is None:
        return np.ones(len(arms), dtype="bool")
    require_column(arms, args.available, args.arms, "--available")
    column = arms[args.available]
    words = column.astype("str").str.casefold()
    amounts = pd.to_numeric(words.replace(AVAILABLE_WORDS), errors="coerce")
    wrong = ~(amounts >= 0)
    if wrong.any():
        raise InputDataError(
            f"Expected yes or no, true or false, or an amount in column {column.name!r}"
            f" of --available, but got {str(column[wrong].iloc[0])!r} in "
            f"{row_name(wrong)}. Correct it."
        )
    return (amounts > 0).to_numpy()


def _read_results(
    args: argparse.Namespace, settings: Sequence[str], is_numbered: bool
) -> tuple[pd.DataFrame, NDArray[np.bool_], Table]:
    """Read the measurements; no file, a missing or an empty one mean none so far.

    Returns:
        The rows of all files, each with its file's name in the index; which of them say
        that the measurement failed; and the last table.
    """
    paths: list[Path] = args.observations
    if len({*_paths(args)}) < len(paths):
        raise InputDataError(
            f"--observations names a table twice: {results_name(args)}. Name each once."
        )
    tables = {path: _read_result(path, args, settings, is_numbered) for path in paths}
    tables = {path: table for path, table in tables.items() if len(table.frame.columns)}
    if not tables:
        columns = [*(settings if is_numbered else [args.results_id]), args.reward]
        nothing = pd.DataFrame(columns=columns, dtype="float64")
        return nothing, np.zeros(0, dtype="bool"), Table(nothing)
    *_, last = tables.values()
    frames = [table.frame for table in tables.values()]
    is_failed = [table.frame.index.isin(table.failed) for table in tables.values()]
    if not is_numbered:
        # They may name the ids in another case.
        ids = find_column(last.frame.columns, args.results_id)
        own = [find_column(frame.columns, args.results_id) for frame in frames]
        frames = [f.rename(columns={n: ids}) for f, n in zip(frames, own, strict=True)]
    are_names_unique = len({path.name for path in tables}) == len(tables)
    keys = [path.name if are_names_unique else str(path) for path in tables]
    return pd.concat(frames, keys=keys), np.concatenate(is_failed), last


def _read_result(
    path: Path, args: argparse.Namespace, settings: Sequence[str], is_numbered: bool
) -> Table:
    """Read one of the tables of measurements; one without columns if there is none."""
    if path.is_dir():
        raise InputDataError(f"{path} is a folder, not a table of measurements.")
    if not path.is_file():
        note(f"there is no file {path}: nothing is measured yet, or it is skipped")
        return Table(pd.DataFrame())
    table = read_by_options(path, args)
    frame = table.frame
    if frame.columns.empty:
        return table
    require_column(frame, args.reward, path, "--reward")
    column = None if is_numbered else find_column(list(frame.columns), args.results_id)
    lacks = [name for name in settings if name not in frame.columns]
    if column is not None:
        require_ids(frame[column], path, may_repeat=True)
    elif lacks or not settings:
        raise InputDataError(
            f"{path} has no column {args.results_id or DEFAULT_ID!r} of ids, and to "
            f"find candidates by their settings it lacks the columns {lacks}. Name "
            f"one of its columns {list(frame.columns)} by --id or --results-id, add "
            "what is lacking, or leave it out by --drop."
        )
    if path.resolve() == args.arms.resolve():
        # What is not measured here is a candidate, not a measurement in flight.
        is_measured = frame[args.reward].notna() | frame.index.isin(table.failed)
        return replace(table, frame=frame[is_measured])
    return table


def _identify(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    settings: Sequence[str],
    results_id: str | None,
    args: argparse.Namespace,
) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Return the candidate of each result: that of its id, or else of its settings.

    Candidates that are no longer in their table are returned too; their rows follow.
    """
    if not len(results):
        return np.zeros(0, dtype="int64"), arms[:0]
    if results_id is None and _paths(args) == [args.arms.resolve()]:
        rows = results.index.get_level_values(-1)
        return arms.index.get_indexer(rows), arms[:0]
    if results_id is None:
        names = [f"row {row + 1} of {file}" for file, row in results.index]
        ids = pd.Series(names, results.index, dtype="str")
    else:
        ids = results[results_id]
    places = match_ids(ids, arms[args.id])
    is_open = places < 0
    if not is_open.any():
        return places, arms[:0]
    if not settings or not {*settings} <= {*results.columns}:
        raise InputDataError(_unknown_id(ids[is_open], "", arms, args))
    places[is_open] = Settings(results[is_open], arms, settings).match()
    is_found = is_open & (places >= 0)
    if is_found.any():
        own = arms[args.id].iloc[places[is_found][0]]
        note(
            f"{is_found.sum():,} of {len(results):,} results without a known id have "
            f"the settings of candidates of {args.arms.name}, such as "
            f"{ids[is_found].iloc[0]} those of {own}: they count as theirs (numbers "
            "may differ by 0.01 %)"
        )
    is_open = places < 0
    unknown = results.assign(**{args.id: ids})[is_open]
    # Results of the same settings are of the same candidate.
    group = unknown.groupby(list(settings), sort=False, dropna=False).ngroup()
    places[is_open] = len(arms) + group
    removed = unknown.loc[~group.duplicated(), [args.id, *settings]]
    again = removed[args.id].duplicated()
    if again.any():
        ids = removed[args.id][again]
        raise InputDataError(_unknown_id(ids, " with other settings", arms, args))
    if len(removed):
        note(
            f"{len(removed):,} measured candidates are not in {args.arms.name} any "
            f"more ({listing(list(removed[args.id]), NUM_IDS_SHOWN)}): they inform by "
            f"the features in {results_name(args)}, and are not chosen"
        )
    return places, removed


def _unknown_id(
    ids: pd.Series, said: str, arms: pd.DataFrame, args: argparse.Namespace
) -> str:
    """Say which measured id the candidates lack, and what to do."""
    more = f" and {len(ids) - 1:,} more rows" if len(ids) > 1 else ""
    return (
        f"{results_name(args)} measures id {ids.iloc[0]!r}{said} in "
        f"{row_name(ids.notna())}{more}, which the table of candidates lacks; it has "
        f"ids such as {arms[args.id].iloc[0]!r}. Write ids alike in both tables, as "
        "text: spreadsheets drop zeros, shorten numbers and make dates. If the "
        "candidate was removed, put it back (--available keeps it from being chosen), "
        "remove the row, or write its settings, the same in all rows, beside it."
    )
