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
    bare_id,
    id_change,
    id_trouble,
    is_numeric,
    reward_column,
    row_name,
    to_numbers,
)
from botorch_bkb.cli.features import drop_incomplete
from botorch_bkb.cli.files import CsvFormat, is_library, parquet_columns, Table
from botorch_bkb.cli.identity import (
    compare_settings,
    match_settings,
    nearest_settings,
    numbered,
    require_no_ids,
    TOLERANCE_WORDS,
)
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.results import (
    check_copies,
    check_output,
    note_unused_columns,
    note_words,
)
from botorch_bkb.cli.tables import (
    FAILED,
    find_column,
    read_table,
    require_column,
    require_filled,
    require_header,
    require_ids,
)


NUM_IDS_SHOWN = 3
AVAILABLE_WORDS = {"yes": "1", "y": "1", "true": "1", "no": "0", "n": "0", "false": "0"}


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
    """Read a table as the options of a command say, and print what was found.

    Args:
        path: The file.
        args: The options.
        columns: The columns to read of a Parquet file; all if omitted.

    Raises:
        InputDataError: As :func:`read_table`.
    """
    if len(dict(args.code)) < len(args.code):
        raise InputDataError(
            "Expected one --code for each column, but a column has two. Write all of "
            "its codes into one."
        )
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
    require_header(table.frame, path, [args.id, args.reward])
    note_words(table.words, args.reward, path.name)
    return table


def read_campaign(args: argparse.Namespace) -> Campaign:
    """Read candidates and measurements, as the options of `suggest` name them.

    ``args.id`` becomes the column of ``arms`` that holds the ids.

    Raises:
        InputDataError: If a column is missing, an id is missing, twice or unknown, a
            reward is not a number, or it is not clear what is available.
    """
    is_large = stays_in_file(args.arms, args)
    arms, arms_form, is_numbered = _read_arms(args)
    if args.drop_incomplete:
        drop_incomplete(arms, args, {args.id, args.reward, args.available})
    others = {args.id, args.reward, args.available, *args.drop}
    needed = [name for name in arms.columns if name not in others]
    if is_numbered:
        named = {*args.category, *dict(args.code), *args.smiles}
        require_no_ids(arms, [name for name in needed if name not in named], args.arms)
    available = _available(arms, args)
    results, is_failed, last = _read_results(args, arms, needed, is_numbered)
    results_id = None if is_numbered else find_column(results.columns, args.results_id)
    own = parquet_columns(args.arms) if is_large else arms.columns
    rewards = _checked_rewards(results, own, results_id, args)
    ids, said = _identify(results, arms, needed, results_id, args)
    is_last = ~ids.duplicated(keep="last").to_numpy()
    failed = _failed_candidates(ids[is_failed & is_last], arms, args)
    available = available & ~np.isin(np.arange(len(arms)), failed)
    results, ids, rewards = results[~is_failed], ids[~is_failed], rewards[~is_failed]
    indices = match_ids(ids, pd.Index(arms[args.id]))
    num_candidates = len(arms)
    if not any(_is_table_of_arms(path, args) for path in args.observations):
        _note_unread_rewards(arms, args)
    # Molecules are compared where they are read.
    compared = [name for name in needed if name not in args.smiles]
    columns = results.columns.intersection(compared)
    _note_other_values(results, arms, indices, columns, args)
    if (indices < 0).any():
        if is_large:
            raise InputDataError(
                f"{_unknown_id(ids, indices < 0, args)}. Put it back "
                "there, or remove the row."
            )
        unknown = results.assign(**{args.id: ids})[indices < 0]
        removed = _removed_candidates(unknown, arms, needed, said, args)
        if removed.index.nlevels == 1:
            file = next(path for path in args.observations if path.is_file())
            removed = pd.concat({file.name: removed})
        arms = pd.concat([pd.concat({args.arms.name: arms}), removed])
        available = np.append(available, np.zeros(len(removed), dtype="bool"))
        indices = match_ids(ids, pd.Index(arms[args.id]))
    return Campaign(
        arms=arms,
        num_candidates=num_candidates,
        available=torch.tensor(available),
        results=results,
        indices=torch.tensor(indices),
        rewards=torch.tensor(rewards.to_numpy(dtype="float64")),
        results_id=results_id,
        is_numbered=is_numbered,
        arms_form=arms_form,
        results_form=last.form,
        results_columns=tuple(last.frame.columns),
        failed=torch.from_numpy(failed),
    )


def reward_label(args: argparse.Namespace) -> str:
    """Return what is maximized or minimized: the reward, or its logarithm."""
    return f"log10({args.reward})" if args.log_reward else str(args.reward)


def _logarithms(rewards: pd.Series, args: argparse.Namespace) -> pd.Series:
    """Return the logarithms of rewards, to base 10.

    Raises:
        InputDataError: If a reward has none.
    """
    wrong = rewards <= 0
    if wrong.any():
        raise InputDataError(
            f"{results_name(args)} has the reward {rewards[wrong].iloc[0]:g} in "
            f"{row_name(wrong)}, which has no logarithm. Write the detection limit if "
            "it is below, or leave out --log-reward."
        )
    note(
        f"rewards are fitted as {reward_label(args)}, of which mean, std, low and high "
        "are too: a difference of 1 is a factor of 10"
    )
    return np.log10(rewards)


def _read_arms(
    args: argparse.Namespace,
) -> tuple[pd.DataFrame, CsvFormat | None, bool]:
    """Read the candidates; ``args.id`` becomes their column of ids.

    Returns:
        The candidates, how their file is written, and whether they were numbered.
    """
    is_large = stays_in_file(args.arms, args)
    table = read_by_options(
        args.arms, args, [args.id, args.available] if is_large else None
    )
    arms = table.frame
    name = find_column(list(arms.columns), args.id)
    is_default = args.id == DEFAULT_ID and args.results_id is None
    # One column of text is likelier a header whose separator was not found.
    is_table = len(arms.columns) > 1 or not arms.select_dtypes("number").empty
    is_numbered = (
        name is None
        and is_default
        and (is_table or any(column in arms for column in args.smiles))
    )
    if is_numbered and not is_large:
        arms, args.id = numbered(arms)
        note(
            f"{args.arms.name} has no column {DEFAULT_ID!r}: its rows are numbered, "
            "and results belong to the candidate with their settings"
        )
    else:
        args.results_id = args.results_id or args.id
        args.id = name or args.id
        require_column(arms, args.id, args.arms, "--id")
        require_ids(arms[args.id], args.arms)
    for smiles in args.smiles:
        require_column(arms, smiles, args.arms, "--smiles")
    if arms.empty:
        raise InputDataError(
            f"Expected {args.arms} to have at least one row of a candidate, but it has "
            "none."
        )
    return arms, table.form, is_numbered and not is_large


def _identify(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    needed: Sequence[str],
    results_id: str | None,
    args: argparse.Namespace,
) -> tuple[pd.Series, str]:
    """Return the candidate of each result, by its id, or else by its settings.

    Args:
        results: The measurements.
        arms: The candidates, with a column of ids.
        needed: The columns of their settings.
        results_id: The column of ids of ``results``, if there is one.
        args: The options of `suggest`.

    Returns:
        The id of each result's candidate, which may not be among the candidates, and
        what is near to one that is not, if that is known.
    """
    paths: list[Path] = args.observations
    if results_id is None and len(paths) == 1 and _is_table_of_arms(paths[0], args):
        return arms.loc[results.index, args.id], ""
    if results_id is None:
        # Results of the same settings are of the same candidate.
        group = results.groupby(list(needed), sort=False, dropna=False).ngroup()
        places_in_files = results.index
        if places_in_files.nlevels == 1:
            places_in_files = pd.MultiIndex.from_product(
                [[path.name for path in paths[:1]], results.index]
            )
        names = [f"row {row + 1} of {file}" for file, row in places_in_files]
        ids = pd.Series(names, results.index, dtype="str", name=args.id)
        ids = ids.groupby(group.to_numpy()).transform("first")
        open_rows = np.arange(len(ids))
    else:
        ids = results[results_id]
        open_rows = np.flatnonzero(match_ids(ids, pd.Index(arms[args.id])) < 0)
    if not len(open_rows) or not needed or not {*needed} <= {*results.columns}:
        return ids, ""
    settings = compare_settings(results.iloc[open_rows], arms, needed)
    places = match_settings(settings)
    is_found = places >= 0
    own, ids = arms[args.id].to_numpy()[places[is_found]], ids.copy()
    if is_found.any():
        said = ids.iloc[open_rows[is_found]].iloc[0]
        of_ids = "" if results_id is None else " under unknown ids"
        note(
            f"{is_found.sum():,} of {len(results):,} results{of_ids} have the settings "
            f"of candidates of {args.arms.name}, such as {said} those of {own[0]}: "
            f"they count as theirs ({TOLERANCE_WORDS})"
        )
    if is_found.all():
        ids.iloc[open_rows] = own
        return ids, ""
    rows = open_rows[~is_found]
    place, row, words = nearest_settings(
        [column.of(~is_found) for column in settings], results.iloc[rows], arms
    )
    name = arms[args.id].iloc[place]
    said = f"; nearest is {ids.iloc[rows[row]]} to {name}, with {words}"
    ids.iloc[open_rows[is_found]] = own
    return ids, said


def match_ids(measured: pd.Series, ids: pd.Index) -> np.ndarray:
    """Return the places of measured ids among the candidates', -1 of those unknown."""
    indices = ids.get_indexer(pd.Index(measured))
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = measured.astype("str").str.replace(r"\.0+$", "", regex=True)
    return np.where(indices < 0, ids.get_indexer(pd.Index(whole)), indices)


def _failed_candidates(
    ids: pd.Series, arms: pd.DataFrame, args: argparse.Namespace
) -> NDArray[np.int64]:
    """Return the rows of ``arms`` whose last measurement failed, and say so.

    Raises:
        InputDataError: If the candidates lack one of them.
    """
    indices = match_ids(ids, pd.Index(arms[args.id]))
    if (indices < 0).any():
        raise InputDataError(
            f"{_unknown_id(ids, indices < 0, args)}. Correct it, or remove the row."
        )
    if len(ids):
        more = ", ..." if len(ids) > NUM_IDS_SHOWN else ""
        note(
            f"the last measurement of {len(ids):,} candidates failed "
            f"({', '.join(ids.head(NUM_IDS_SHOWN))}{more}): they are not chosen. "
            "Remove such a row to let its candidate be chosen again"
        )
    return indices


def _available(arms: pd.DataFrame, args: argparse.Namespace) -> NDArray[np.bool_]:
    """Return which candidates may be chosen, by words or by amounts.

    Raises:
        InputDataError: If a cell is empty, or none of yes, no and an amount, or if no
            candidate is available.
    """
    if args.available is None:
        return np.ones(len(arms), dtype="bool")
    require_column(arms, args.available, args.arms, "--available")
    column = arms[args.available]
    words = column.astype("str").str.casefold()
    amounts = pd.to_numeric(words.replace(AVAILABLE_WORDS), errors="coerce")
    wrong = ~(amounts >= 0)
    if wrong.any():
        value = column[wrong].iloc[0]
        shown = "an empty cell" if pd.isna(value) else repr(str(value))
        raise InputDataError(
            f"--available names column {column.name!r}, which has {shown} in "
            f"{row_name(wrong)}. Expected yes or no, true or false, or an amount, of "
            "which 0 is none."
        )
    if not amounts.any():
        raise InputDataError(
            f"Expected candidates that are available, but by column {column.name!r} of "
            f"{args.arms} there is none. Correct it, or leave out --available."
        )
    return (amounts > 0).to_numpy()


def _checked_rewards(
    results: pd.DataFrame,
    named: Collection[str],
    results_id: str | None,
    args: argparse.Namespace,
) -> pd.Series:
    """Return the rewards, and say or refuse what is strange about the measurements.

    Args:
        results: The measurements, failed ones included.
        named: The columns of the candidates.
        results_id: The column of ids of ``results``, if there is one.
        args: The options of `suggest`.

    Raises:
        InputDataError: If a reward is not a number, if most measurements are copies, or
            if --output would lose entries.
    """
    name = results_name(args)
    note_unused_columns(results, {*named, results_id, args.reward, args.round}, name)
    check_copies(results, args, name)
    check_output(args, results, results_id, named)
    try:
        rewards = reward_column(results[args.reward], may_be_empty=True)
    except InputDataError as error:
        raise InputDataError(f"{name}: {error}") from error
    return _logarithms(rewards, args) if args.log_reward else rewards


def results_name(args: argparse.Namespace) -> str:
    """Return how messages name the tables of measurements."""
    return " and ".join(map(str, args.observations))


def _read_results(
    args: argparse.Namespace,
    arms: pd.DataFrame,
    needed: Sequence[str],
    is_numbered: bool,
) -> tuple[pd.DataFrame, NDArray[np.bool_], Table]:
    """Read the measurements; no file, a missing or an empty one mean none so far.

    Args:
        args: The options of `suggest`.
        arms: The candidates.
        needed: The columns of their settings.
        is_numbered: Whether they have no ids in their file.

    Returns:
        The rows of all files, those of several with the file's name in their index;
        which of them say that the measurement failed; and the last table.
    """
    paths: list[Path] = args.observations
    tables = {path: _read_result(path, args, needed, is_numbered) for path in paths}
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputDataError(
            f"--observations names a table twice: {results_name(args)}. Name each once."
        )
    nothing = arms[needed if is_numbered else [args.id]].iloc[:0]
    nothing = nothing.rename(columns={args.id: args.results_id})
    nothing = nothing.assign(**{args.reward: 0.0})
    last = tables[paths[-1]] if paths else Table(nothing)
    if last.frame.columns.empty:
        last = replace(last, frame=nothing)
    frames = {
        path: table.frame for path, table in tables.items() if len(table.frame.columns)
    }
    results = next(iter(frames.values()), nothing)
    is_failed = [_is_failed(tables[path], args) for path in frames]
    if len(frames) > 1 and not is_numbered:
        # They may name the ids in another case.
        ids = find_column(last.frame.columns, args.results_id)
        frames = {
            path: frame.rename(
                columns={find_column(frame.columns, args.results_id): ids}
            )
            for path, frame in frames.items()
        }
    if len(frames) > 1:
        are_names_unique = len({path.name for path in frames}) == len(frames)
        names = [path.name if are_names_unique else str(path) for path in frames]
        results = pd.concat([*frames.values()], keys=names)
    return results, np.concatenate([np.zeros(0, dtype="bool"), *is_failed]), last


def _is_failed(table: Table, args: argparse.Namespace) -> NDArray[np.bool_]:
    """Return which rows say that the measurement failed."""
    words = table.words.get(args.reward, pd.Series(dtype="str"))
    failed = words.index[words.str.casefold() == FAILED]
    return np.asarray(table.frame.index.isin(failed))


def _read_result(
    path: Path, args: argparse.Namespace, needed: Sequence[str], is_numbered: bool
) -> Table:
    """Read one of the tables of measurements."""
    if path.is_dir():
        raise InputDataError(f"{path} is a folder, not a table of measurements.")
    if not path.is_file():
        is_only = len(args.observations) == 1
        so = "nothing is measured yet" if is_only else "it is skipped"
        note(f"there is no file {path}, so {so}")
        return Table(pd.DataFrame())
    table = read_by_options(path, args)
    frame = table.frame
    if frame.columns.empty:
        return table
    require_column(frame, args.reward, path, "--reward")
    column = None if is_numbered else find_column(list(frame.columns), args.results_id)
    if column is not None:
        require_filled(frame[column], path)
    elif not needed or not {*needed} <= {*frame.columns}:
        if not is_numbered:
            option = (
                "--id or --results-id, or add the columns of the candidates' settings"
            )
            require_column(frame, args.results_id, path, option)
        lacks = [name for name in needed if name not in frame.columns]
        raise InputDataError(
            f"{args.arms} has no column 'id', so that results are found by their "
            f"settings, but {path} lacks the columns {lacks}; it has "
            f"{list(frame.columns)}. Add them, leave them out by --drop, or name a "
            "column of ids by --id."
        )
    if _is_table_of_arms(path, args):
        # What is not measured here is a candidate, not a measurement in flight.
        frame = frame[frame[args.reward].notna() | _is_failed(table, args)]
    return replace(table, frame=frame)


def _is_table_of_arms(path: Path, args: argparse.Namespace) -> bool:
    """Whether a table of measurements is the table of candidates."""
    return path.resolve() == args.arms.resolve()


def _note_unread_rewards(arms: pd.DataFrame, args: argparse.Namespace) -> None:
    """Say that rewards beside the candidates are not read, where there are some."""
    num_rewards = int(arms[args.reward].notna().sum()) if args.reward in arms else 0
    if num_rewards:
        note(
            f"{args.arms.name} has {num_rewards:,} values in column {args.reward!r}, "
            "which are not read: measurements are those of --observations, which may "
            "be the same file"
        )


def _note_other_values(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    indices: NDArray[np.int64],
    columns: Collection[str],
    args: argparse.Namespace,
) -> None:
    """Say where measurements have other values than the candidates that they name.

    Args:
        results: The measurements.
        arms: The candidates.
        indices: The row of ``arms`` of each measurement, -1 of those unknown.
        columns: The columns of both tables that are features.
        args: The options of `suggest`.
    """
    is_known = indices >= 0
    told, own = results[is_known], arms.iloc[indices[is_known]]
    said = []
    for name in columns:
        size = _difference(told[name], own[name])
        if not size.any():
            continue
        row = int(size.argmax())
        place = row_name(pd.Series(np.arange(len(told)) == row, told.index))
        text = (
            f"{results_name(args)} has other values than {args.arms.name} in column "
            f"{name!r}, in {(size > 0).sum():,} rows, such as {told[name].iloc[row]} "
            f"where {own[args.id].iloc[row]} has {own[name].iloc[row]}: the fit goes "
            f"by {args.arms.name}. That is the largest difference, in {place}"
        )
        said.append((size.max() / _scale(arms[name]), text))
    for _, text in sorted(said, reverse=True):
        note(text)


def _scale(column: pd.Series) -> float:
    """Return the unit in which differences of columns are compared: their range."""
    if not is_numeric(column):
        return 1.0
    numbers = to_numbers(column)
    return float(numbers.max() - numbers.min()) or 1.0


def _difference(told: pd.Series, own: pd.Series) -> NDArray[np.float64]:
    """Return how far numbers differ, and 1 where words do; 0 up to rounding."""
    present = told.notna().to_numpy() & own.notna().to_numpy()
    if is_numeric(told) != is_numeric(own):
        return np.zeros(len(told))  # written in two ways
    if is_numeric(told):
        first, second = to_numbers(told).to_numpy(), to_numbers(own).to_numpy()
        differs = present & ~np.isclose(first, second, rtol=1e-6, atol=0)
        return np.where(differs, np.abs(first - second), 0.0)
    return 1.0 * (present & (told.map(str).to_numpy() != own.map(str).to_numpy()))


def _unknown_id(
    ids: pd.Series, is_unknown: NDArray[np.bool_], args: argparse.Namespace
) -> str:
    """Say which measured id the candidates lack."""
    wrong = pd.Series(is_unknown, ids.index)
    more = f" and {wrong.sum() - 1:,} more rows" if wrong.sum() > 1 else ""
    return (
        f"{results_name(args)} measures id {ids[wrong].iloc[0]!r} in "
        f"{row_name(wrong)}{more}, column {ids.name!r}, which the table of candidates "
        "lacks"
    )


def _removed_candidates(
    unknown: pd.DataFrame,
    arms: pd.DataFrame,
    needed: Sequence[str],
    said: str,
    args: argparse.Namespace,
) -> pd.DataFrame:
    """Return the candidates of measurements whose ids the candidates' table lacks.

    Args:
        unknown: These measurements.
        arms: The candidates.
        needed: The columns of their settings.
        said: What is near to one of them.
        args: The options of `suggest`.

    Raises:
        InputDataError: If such an id is like one that is there, or its features are not
            in the table of measurements, or differ from row to row.
    """
    ids = unknown[args.id].rename(args.results_id)
    bare = pd.Series(arms[args.id].to_numpy(), index=arms[args.id].map(bare_id))
    near = ids.map(bare_id).map(bare[~bare.index.duplicated()])
    if near.notna().any():
        is_near = near.notna().to_numpy()
        told, own = ids[is_near].iloc[0], near[is_near].iloc[0]
        change = id_change(told, own)
        raise InputDataError(
            f"{_unknown_id(ids, is_near, args)}; it has {own!r}. {change}"
        )
    is_strange = ids.map(id_trouble).ne("").to_numpy()
    strange = arms[args.id][arms[args.id].map(id_trouble) != ""].head(1)
    if is_strange.any() and strange.empty:
        trouble = id_trouble(ids[is_strange].iloc[0])
        raise InputDataError(f"{_unknown_id(ids, is_strange, args)}.{trouble}")
    if not {*needed} <= {*unknown.columns}:
        raise InputDataError(
            f"{_unknown_id(ids, np.ones(len(ids), dtype='bool'), args)}. Put it back "
            "there (--available keeps it from being chosen), or remove the row. It "
            "informs without that where the table of measurements has its features "
            f"too, the columns {list(needed)}."
            + "".join(
                f" The candidates have ids such as {name!r}.{id_trouble(name)}"
                for name in strange
            )
        )
    removed = unknown[[args.id, *needed]].drop_duplicates()
    again = removed[args.id].duplicated()
    if again.any():
        raise InputDataError(
            f"{_unknown_id(removed[args.id], again.to_numpy(), args)}, with other "
            "features than in an earlier row. Correct one of the rows."
        )
    names = ", ".join(removed[args.id].head(3))
    note(
        f"{len(removed):,} measured candidates are not in {args.arms.name} any more "
        f"({names}{', ...' if len(removed) > 3 else ''}): they inform by the features "
        f"in {results_name(args)}, and are not chosen{said}"
    )
    return removed
