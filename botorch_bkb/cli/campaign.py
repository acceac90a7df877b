"""The two tables that are the whole state of `suggest`: candidates and results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.cli.arguments import DEFAULT_ID
from botorch_bkb.cli.features import drop_incomplete, feature_columns, LOOKS_NUMERIC
from botorch_bkb.cli.files import CsvFormat, is_library, parquet_columns, Table
from botorch_bkb.cli.identity import differing, match_ids, match_settings
from botorch_bkb.cli.molecules import (
    Fingerprints,
    first_rows,
    group_rows,
    read_smiles,
    valid_rows,
)
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.results import (
    check_copies,
    check_output,
    last_failures,
    note_unused_columns,
    NUM_IDS_SHOWN,
    read_results,
    read_rewards,
    results_name,
)
from botorch_bkb.cli.tables import (
    AVAILABLE_WORDS,
    find_column,
    is_numeric,
    listing,
    NUMBER,
    outcome_columns,
    quoted,
    read_by_options,
    require_column,
    require_ids,
    row_name,
    unit_trouble,
)


# The column that numbers the rows of a table without ids.
ROW_COLUMN = "candidate"


@dataclass(frozen=True, eq=False)
class Campaign:
    """Candidates and measurements.

    Attributes:
        table: The candidates as in their file, each molecule once. Only the ids of a
            table that stays in its file. The rows of a table without ids are numbered.
        rows: The candidates with canonical SMILES, and after them measured candidates
            that are no longer in the table.
        available: Which of ``rows`` can be chosen.
        results: The measurements that did not fail.
        indices: The row of each.
        rewards: The result of each, NaN while it is in flight.
        num_failed: The number of candidates whose last measurement failed.
        fingerprints: The molecules of each column of SMILES.
        id_column: The column of ids of ``rows``.
        results_id: The column of ids of ``results``; None if they have none.
        is_numbered: Whether the candidates have no ids in their file.
        form: The format of the candidates' CSV file.
        results_form: The format of the last CSV file of results.
        results_columns: Its columns.
        is_large: Whether the candidates' features stay in their file.
        columns: The columns of the candidates in their file.
    """

    table: pd.DataFrame
    rows: pd.DataFrame
    available: NDArray[np.bool_]
    results: pd.DataFrame
    indices: NDArray[np.int64]
    rewards: NDArray[np.float64]
    num_failed: int = 0
    fingerprints: dict[str, Fingerprints] = field(default_factory=dict)
    id_column: str = DEFAULT_ID
    results_id: str | None = None
    is_numbered: bool = False
    form: CsvFormat | None = None
    results_form: CsvFormat | None = None
    results_columns: tuple[str, ...] = ()
    is_large: bool = False
    columns: Sequence[str] = ()

    @property
    def ids(self) -> pd.Index:
        """The ids of ``rows``."""
        return pd.Index(self.rows[self.id_column])

    @property
    def num_candidates(self) -> int:
        """The number of candidates in the table."""
        return len(self.table)

    @property
    def num_available(self) -> int:
        """The number of candidates that can be chosen."""
        return int(self.available.sum())

    def columns_of(self, indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return some of ``rows``."""
        return self.rows.iloc[indices]


def read_campaign(args: argparse.Namespace) -> Campaign:
    """Read candidates and measurements by the options of `suggest`.

    ``args.id`` becomes the column of ids.
    """
    # Fingerprints do not stay in their file.
    has_bits = args.smiles or args.kernel == "tanimoto"
    is_large = not has_bits and is_library(args.arms)
    file, is_numbered = _read_arms(args, is_large)
    table = file.frame
    if args.drop_incomplete:
        drop_incomplete(table, args)
    settings = feature_columns(table, args)
    own = parquet_columns(args.arms) if is_large else list(table.columns)
    results, is_failed, last = read_results(args, settings, is_numbered)
    outcomes = outcome_columns(args)
    results_id = None if is_numbered else find_column(results.columns, args.results_id)
    used = [*own, results_id, *outcomes, args.round, args.noise_column]
    note_unused_columns(results, used)
    check_copies(results, args)
    check_output(args, results, results_id, own)
    rewards = read_rewards(results, args)
    arms, results, found = read_molecules_of(table, results, args)
    places, removed = _identify(results, arms, settings, results_id, args)
    available = np.append(_available(arms, args), np.zeros(len(removed), dtype="bool"))
    rows = arms
    if len(removed):
        rows = pd.concat([pd.concat({args.arms.name: arms}), removed])
    group, first = distinct_rows(rows, settings, found, available, args)
    indices = group[places]
    is_known = (indices >= 0) & (places < len(arms))
    candidates = arms.iloc[places[is_known]]
    _compare_settings(results[is_known], candidates, settings, args)
    names = rows[args.id].iloc[first].array
    failed = last_failures(indices, is_failed, names)
    available = available[first]
    available[failed] = False
    kept = (indices >= 0) & ~is_failed
    num_candidates = int(group[: len(arms)].max()) + 1
    return Campaign(
        table=table.iloc[first[:num_candidates]].assign(**file.typed),
        rows=rows.iloc[first],
        available=available,
        results=results[kept],
        indices=indices[kept],
        rewards=rewards.to_numpy(dtype="float64")[kept],
        num_failed=int((failed < num_candidates).sum()),
        fingerprints=found,
        id_column=args.id,
        results_id=results_id,
        is_numbered=is_numbered,
        form=file.form,
        results_form=last.form,
        results_columns=tuple(last.frame.columns),
        is_large=is_large,
        columns=own,
    )


def read_molecules_of(
    arms: pd.DataFrame, results: pd.DataFrame, args: argparse.Namespace
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Fingerprints]]:
    """Return both tables with canonical SMILES, and the molecules of each column."""
    found: dict[str, Fingerprints] = {}
    for name in args.smiles:
        cells = [table[name] for table in (arms, results) if name in table]
        smiles, found[name] = read_smiles(pd.concat(cells, ignore_index=True), args)
        arms = arms.assign(**{name: smiles[: len(arms)].array})
        if name in results:
            results = results.assign(**{name: smiles[len(arms) :].array})
    return arms, results, found


def distinct_rows(
    rows: pd.DataFrame,
    settings: Sequence[str],
    found: dict[str, Fingerprints],
    available: NDArray[np.bool_],
    args: argparse.Namespace,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the candidate of each row, -1 for none, and the row of each candidate.

    Rows with the same molecules and settings are one candidate.
    """
    if not found:
        return np.arange(len(rows)), np.arange(len(rows))
    columns = [*dict.fromkeys([*found, *settings])]
    group = group_rows(rows, columns, valid_rows(rows, found, args))
    return group, first_rows(rows[args.id], group, available)


def _read_arms(args: argparse.Namespace, is_large: bool) -> tuple[Table, bool]:
    """Return the candidates, and whether they are numbered."""
    columns = [args.id, args.available, *outcome_columns(args)] if is_large else None
    table = read_by_options(args.arms, args, columns)
    args.arms_sheet = table.sheet
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
            "and results belong to the candidate with the same settings"
        )
    else:
        args.results_id = args.results_id or args.id
        args.id = name or args.id
        require_column(arms, args.id, args.arms, "--id")
        require_ids(arms[args.id], args.arms)
    if arms.empty:
        raise InputDataError(f"Expected at least one candidate in {args.arms}.")
    return table, is_numbered


def _require_no_ids(arms: pd.DataFrame, args: argparse.Namespace) -> None:
    """Raise an error if a column may hold ids, or if the header is missing."""
    named = {*args.category, *args.smiles}
    columns = [name for name in feature_columns(arms, args) if name not in named]
    for name in columns:
        if is_numeric(arms[name]):
            is_count = name == columns[0] and len(columns) > 1
            is_id = is_count and (np.diff(arms[name].astype("float64")) == 1).all()
        else:
            words = arms[name].astype("str")
            is_id = words.nunique() == len(arms)
            is_id = is_id and not words.map(LOOKS_NUMERIC.fullmatch).any()
        word = quoted(name)
        if (is_id and len(arms) > 2) or NUMBER.fullmatch(name.replace(",", ".")):
            raise InputDataError(
                f"{args.arms} has no column 'id' in its header, but a column {name!r}. "
                "Write a header above the rows if there is none. If the column names "
                f"or counts the candidates, pass --id {word} or --drop {word}. If "
                "it is a setting, add a column 'id', or, for words, pass --category "
                f"{word}. If it is the whole header, pass --separator."
            )


def _available(arms: pd.DataFrame, args: argparse.Namespace) -> NDArray[np.bool_]:
    """Return which candidates can be chosen, by words or by amounts."""
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


def _identify(
    results: pd.DataFrame,
    arms: pd.DataFrame,
    settings: Sequence[str],
    results_id: str | None,
    args: argparse.Namespace,
) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Return the candidate of each result, by its id, or else by its settings.

    Measured candidates that are no longer in their table are returned too; their
    numbers follow.
    """
    if not len(results):
        return np.zeros(0, dtype="int64"), arms[:0]
    is_same_file = [path.resolve() for path in args.observations] == [
        args.arms.resolve()
    ]
    if results_id is None and is_same_file:
        rows = results.index.get_level_values(-1)
        return arms.index.get_indexer(rows), arms[:0]
    names = [f"row {row + 1} of {file}" for file, row in results.index]
    ids = pd.Series(names, results.index, dtype="str")
    if results_id is not None:  # which not every table of results has
        ids = results[results_id].fillna(ids)
    places = match_ids(ids, arms[args.id])
    is_open = places < 0
    if not is_open.any():
        return places, arms[:0]
    if not settings or not {*settings} <= {*results.columns}:
        raise InputDataError(_unknown_id(ids[is_open], "", arms, args))
    places[is_open] = match_settings(results[is_open], arms, settings)
    is_found = is_open & (places >= 0)
    if is_found.any():
        own = arms[args.id].iloc[places[is_found][0]]
        note(
            f"{is_found.sum():,} of {len(results):,} results without a known id have "
            f"the settings of candidates of {args.arms.name} (numbers may differ by "
            f"0.01 %), such as {ids[is_found].iloc[0]} those of {own}, and belong to "
            "them"
        )
    is_open = places < 0
    unknown = results.assign(**{args.id: ids})[is_open]
    # Results of the same settings are of the same candidate.
    group = group_rows(unknown, settings, np.ones(len(unknown), dtype="bool"))
    places[is_open] = len(arms) + group
    removed = unknown.loc[
        ~pd.Series(group).duplicated().to_numpy(), [args.id, *settings]
    ]
    again = removed[args.id].duplicated()
    if again.any():
        ids = removed[args.id][again]
        raise InputDataError(_unknown_id(ids, " with other settings", arms, args))
    if len(removed):
        shown = listing(list(removed[args.id]), NUM_IDS_SHOWN)
        note(
            f"measured candidates that are no longer in {args.arms.name}: "
            f"{len(removed):,} ({shown}). Their results train the model with the "
            f"settings in {results_name(args)}, and they are not chosen"
        )
        for name in settings:
            cells = {"the results": removed[name], args.arms.name: arms[name]}
            note(unit_trouble(name, cells))
    return places, removed


def _unknown_id(
    ids: pd.Series, said: str, arms: pd.DataFrame, args: argparse.Namespace
) -> str:
    """Say which measured id is not among the candidates, and what to do."""
    more = f" and {len(ids) - 1:,} more rows" if len(ids) > 1 else ""
    return (
        f"{results_name(args)} measures id {ids.iloc[0]!r}{said} in "
        f"{row_name(ids.notna())}{more}, which is not in the table of candidates; it "
        f"has ids such as {arms[args.id].iloc[0]!r}. Write ids alike in both tables, "
        "as text: spreadsheets drop zeros, shorten numbers and make dates. If the "
        "candidate was removed, put it back (--available keeps it from being chosen), "
        "remove the row, or write its settings, the same in all rows, beside it."
    )


def _compare_settings(
    results: pd.DataFrame,
    own: pd.DataFrame,
    settings: Sequence[str],
    args: argparse.Namespace,
) -> None:
    """Report results with other settings than the candidates whose ids they have."""
    columns = [name for name in settings if name in results]
    differ = differing(results, own, columns)
    for name, wrong in zip(columns, differ.T, strict=True):
        if name in args.smiles and wrong.any():
            told, right = results[name][wrong].iloc[0], own[name][wrong].iloc[0]
            raise InputDataError(
                f"The results have the SMILES {told[:80]!r} in "
                f"{row_name(pd.Series(wrong, results.index))}, but the molecule of "
                f"{own[args.id][wrong].iloc[0]} is {right[:80]!r} in {args.arms}. "
                "Correct one of them."
            )
    if differ.any():
        counts = zip(columns, differ.sum(axis=0), strict=True)
        said = [f"{name!r} (rows: {count:,})" for name, count in counts if count]
        first = row_name(pd.Series(differ.any(axis=-1), results.index))
        note(
            f"the results have other values than {args.arms.name} in columns "
            f"{listing(said)}, first in {first}: the model uses {args.arms.name}"
        )
    for name, wrong in zip(columns, differ.T, strict=True):
        cells = {"the results": results[name][wrong], args.arms.name: own[name][wrong]}
        note(unit_trouble(name, cells))
