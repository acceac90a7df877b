"""The two tables that are the whole state of `suggest`: candidates and results."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.cli.columns import (
    BLANKS,
    is_date,
    is_numeric,
    reward_column,
    row_name,
    to_numbers,
)
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import (
    is_library,
    read_table,
    require_column,
    require_ids,
)


AVAILABLE_WORDS = {
    **dict.fromkeys(("yes", "y", "true"), "1"),
    **dict.fromkeys(("no", "n", "false"), "0"),
}


@dataclass(frozen=True)
class Campaign:
    """The two tables, read.

    Attributes:
        arms: The candidates; after them those that were measured, but are not in their
            table any more. Of a table that stays in its file only the ids.
        num_candidates: The number of the former.
        available: Which rows of ``arms`` may be chosen.
        results: The table of measurements; no rows if there are none.
        indices: The row of ``arms`` of each measurement.
        rewards: The reward of each, NaN where it is in flight.
    """

    arms: pd.DataFrame
    num_candidates: int
    available: Tensor
    results: pd.DataFrame
    indices: Tensor
    rewards: Tensor


def stays_in_file(path: Path, args: argparse.Namespace) -> bool:
    """Whether a table's features are left in its file.

    Molecules and fingerprints are not: they are packed, and fit.
    """
    has_bits = args.smiles is not None or args.kernel == "tanimoto"
    return not has_bits and is_library(path)


def read_campaign(args: argparse.Namespace) -> Campaign:
    """Read candidates and measurements, as the options of `suggest` name them.

    Raises:
        InputDataError: If a column is missing, an id is missing, twice or unknown, a
            reward is not a number, or it is not clear what is available.
    """
    is_large = stays_in_file(args.arms, args)
    kept = [args.id, args.available] if is_large else None
    arms = _read(args.arms, args, kept)
    require_column(arms, args.id, args.arms, "--id")
    require_ids(arms[args.id], args.arms)
    if args.smiles is not None:
        require_column(arms, args.smiles, args.arms, "--smiles")
    if arms.empty:
        raise InputDataError(
            f"Expected {args.arms} to have at least one row of a candidate, but it has "
            "none."
        )
    available = np.ones(len(arms), dtype="bool")
    if args.available is not None:
        require_column(arms, args.available, args.arms, "--available")
        available = availability(arms[args.available]).to_numpy()
        if not available.any():
            raise InputDataError(
                f"Expected candidates that are available, but by column "
                f"{args.available!r} of {args.arms} there is none. Correct it, or "
                "leave out --available."
            )
    results = _read_results(args)
    try:
        rewards, notes = reward_column(results[args.reward], may_be_empty=True)
    except InputDataError as error:
        raise InputDataError(
            f"{args.observations}: {error} Leave it empty if the measurement is in "
            "flight; remove the row if it failed."
        ) from error
    for text in notes:
        note(text)
    indices = match_ids(results[args.id], pd.Index(arms[args.id]))
    num_candidates = len(arms)
    _note_unread_rewards(arms, args)
    needed = [
        name
        for name in arms.columns
        if name not in (args.id, args.reward, args.available, *args.drop)
    ]
    # Molecules are compared where they are read.
    _note_other_values(results, arms, indices, {*needed} - {args.smiles}, args)
    if is_large and (indices < 0).any():
        row = int(np.flatnonzero(indices < 0)[0])
        raise InputDataError(
            f"{args.observations} measures id {results[args.id].iloc[row]!r}, which "
            f"{args.arms} lacks. Put it back there, or remove the row."
        )
    if (indices < 0).any():
        removed = _removed_candidates(results[indices < 0], arms, needed, args)
        arms = pd.concat({args.arms.name: arms, args.observations.name: removed})
        available = np.append(available, np.zeros(len(removed), dtype="bool"))
        indices = match_ids(results[args.id], pd.Index(arms[args.id]))
    return Campaign(
        arms=arms,
        num_candidates=num_candidates,
        available=torch.tensor(available),
        results=results,
        indices=torch.tensor(indices),
        rewards=torch.tensor(rewards.to_numpy(dtype="float64")),
    )


def availability(column: pd.Series) -> pd.Series:
    """Return which candidates may be chosen, by words or by amounts.

    Raises:
        InputDataError: If a cell is empty, or none of yes, no and an amount.
    """
    words = column.astype("str").str.strip().str.casefold()
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
    return amounts > 0


def match_ids(measured: pd.Series, ids: pd.Index) -> np.ndarray:
    """Return the places of measured ids among the candidates', -1 of those unknown."""
    indices = ids.get_indexer(pd.Index(measured))
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = measured.astype("str").str.replace(r"\.0+$", "", regex=True)
    return np.where(indices < 0, ids.get_indexer(pd.Index(whole)), indices)


def _read_results(args: argparse.Namespace) -> pd.DataFrame:
    """Read the measurements; no file, a missing or an empty one mean none so far."""
    path: Path | None = args.observations
    table = pd.DataFrame()
    if path is not None and path.is_dir():
        raise InputDataError(f"{path} is a folder, not a table of measurements.")
    if path is not None and not path.is_file():
        note(f"there is no file {path}, so nothing is measured yet")
    elif path is not None:
        table = _read(path, args)
    if path is None or table.columns.empty:
        id_column, reward = pd.Series(dtype="str"), pd.Series(dtype="float64")
        return pd.DataFrame({args.id: id_column, args.reward: reward})
    require_column(table, args.id, path, "--id")
    require_column(table, args.reward, path, "--reward")
    missing = table[args.id].isna()
    if missing.any():
        raise InputDataError(
            f"{path} has no id in {row_name(missing)}, column {args.id!r} (NA, None "
            "and the like count as empty)."
        )
    if _is_one_table(args):
        # What is not measured here is a candidate, not a measurement in flight.
        table = table[table[args.reward].notna()]
    return table


def _is_one_table(args: argparse.Namespace) -> bool:
    """Whether candidates and measurements are the same file."""
    path: Path | None = args.observations
    return path is not None and path.resolve() == args.arms.resolve()


def _note_unread_rewards(arms: pd.DataFrame, args: argparse.Namespace) -> None:
    """Say that rewards beside the candidates are not read, where there are some."""
    if _is_one_table(args) or args.reward not in arms:
        return
    num_rewards = int(arms[args.reward].notna().sum())
    if num_rewards:
        note(
            f"{args.arms.name} has {num_rewards:,} values in column {args.reward!r}, "
            "which are not read: measurements are those of --observations, which may "
            "be the same file"
        )


def _note_other_values(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    indices: np.ndarray,
    columns: Collection[str],
    args: argparse.Namespace,
) -> None:
    """Say where measurements have other values than the candidates that they name.

    Args:
        results: The measurements.
        arms: The candidates.
        indices: The row of ``arms`` of each measurement, -1 of those unknown.
        columns: The candidates' columns that are features.
        args: The options of `suggest`.
    """
    if _is_one_table(args):
        return
    is_known = indices >= 0
    told, own = results[is_known], arms.iloc[indices[is_known]]
    for name in results.columns.intersection(list(columns)):
        differs = _differs(told[name], own[name])
        if differs.any():
            row = int(np.flatnonzero(differs)[0])
            note(
                f"{args.observations.name} has other values than {args.arms.name} in "
                f"column {name!r}, in {differs.sum():,} rows, such as "
                f"{told[name].iloc[row]} where {told[args.id].iloc[row]} has "
                f"{own[name].iloc[row]}: the fit goes by {args.arms.name}"
            )


def _differs(told: pd.Series, own: pd.Series) -> NDArray[np.bool_]:
    """Return where two columns hold other numbers, or other words."""
    present = told.notna().to_numpy() & own.notna().to_numpy()
    if is_numeric(told) and is_numeric(own):
        values = to_numbers(told).to_numpy(), to_numbers(own).to_numpy()
        return present & ~np.isclose(*values, rtol=1e-6, atol=0)
    if is_numeric(told) or is_numeric(own) or is_date(told) or is_date(own):
        return np.zeros(len(told), dtype="bool")  # written in two ways
    words = [column.map(str).str.strip(BLANKS).to_numpy() for column in (told, own)]
    return present & (words[0] != words[1])


def _read(
    path: Path, args: argparse.Namespace, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    return read_table(
        path,
        text_columns=[args.id, *([] if args.smiles is None else [args.smiles])],
        separator=args.separator,
        decimal=args.decimal,
        columns=columns,
    )


def _removed_candidates(
    unknown: pd.DataFrame,
    arms: pd.DataFrame,
    needed: Sequence[str],
    args: argparse.Namespace,
) -> pd.DataFrame:
    """Return the candidates of measurements whose ids the candidates' table lacks.

    Raises:
        InputDataError: If such an id is like one that is there, or its features are not
            in the table of measurements, or differ from row to row.
    """
    ids = unknown[args.id]
    bare = pd.Series(arms[args.id].to_numpy(), index=arms[args.id].map(_bare_id))
    bare = bare[~bare.index.duplicated()]
    near = ids.map(_bare_id).map(bare)
    culprit = near.notna() if near.notna().any() else ids == ids.iloc[0]
    said = (
        f"{args.observations} measures id {ids[culprit].iloc[0]!r} in "
        f"{row_name(culprit)}, column {args.id!r}, which the table of candidates lacks"
    )
    if near.notna().any():
        raise InputDataError(
            f"{said}; it has {near[culprit].iloc[0]!r}. Spreadsheets drop leading "
            "zeros: correct the ids, and keep their column as text."
        )
    lacking = [name for name in needed if name not in unknown.columns]
    if lacking:
        raise InputDataError(
            f"{said}. Put it back there (--available keeps it from being chosen), or "
            "remove the row. It informs without that where the table of measurements "
            f"has its features too, the columns {list(needed)}."
        )
    removed = unknown[[args.id, *needed]].drop_duplicates()
    again = removed[args.id].duplicated()
    if again.any():
        raise InputDataError(
            f"{args.observations} measures id {removed[args.id][again].iloc[0]!r}, "
            "which the table of candidates lacks, with other features in "
            f"{row_name(again)} than before. Correct one of the rows."
        )
    names = ", ".join(removed[args.id].head(3))
    note(
        f"{len(removed):,} measured candidates are not in {args.arms.name} any more "
        f"({names}{', ...' if len(removed) > 3 else ''}): they inform by the features "
        f"in {args.observations.name}, and are not chosen"
    )
    return removed


def _bare_id(name: str) -> str:
    """Return an id without what spreadsheets and fingers change."""
    return "".join(name.casefold().split()).lstrip("0")
