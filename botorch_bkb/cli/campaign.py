"""The two tables that are the whole state of `suggest`: candidates and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.arms.table import comparable_rows
from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.arguments import DEFAULT_ID, SuggestOptions
from botorch_bkb.cli.features import (
    drop_incomplete,
    feature_columns,
    library_features,
    LOOKS_NUMERIC,
    table_features,
)
from botorch_bkb.cli.molecules import (
    Fingerprints,
    first_rows,
    group_rows,
    read_smiles,
    valid_rows,
)
from botorch_bkb.cli.results import NUM_IDS_SHOWN, read_results, Rows, sort_results
from botorch_bkb.cli.tables import (
    AVAILABLE_WORDS,
    note,
    quoted,
    read_by_options,
    status,
    unit_trouble,
)
from botorch_bkb.models.utils.rows import find_duplicates
from botorch_bkb.tables.columns import (
    days,
    find_column,
    is_numeric,
    listing,
    NUMBER,
    require_column,
    require_ids,
    row_name,
    to_numbers,
)
from botorch_bkb.tables.files import (
    CsvFormat,
    is_library,
    parquet_columns,
    read_rows,
    Table,
)


# Numbers are the same setting if they differ by no more than this share of the number
# and of the column's range. Zeros differ by rounding, a share of the range.
TOLERANCE = 1e-4
ROUNDING = 1e-9

Numbers = NDArray[np.float64]
# With more columns, as of descriptors, outputs have the ids alone.
MOST_SETTINGS = 20
# So many results, and such a share of a file, with the settings of other candidates
# have wrong ids. A search for these takes time: it is made for the first ones.
MIN_MOVED, MOST_MOVED = 3, 0.5
NUM_MOVED = 100
# The column that numbers the rows of a table without ids.
ROW_COLUMN = "candidate"


class Campaign:
    """Candidates of a table, and measurements.

    Attributes:
        args: The options of the command.
        num_candidates: Their number, without those that only results have.
        num_available: The number of those that can be chosen.
        results: The measurements of this campaign that did not fail.
        indices: The candidate of each.
        rewards: The result of each, NaN while it is in flight.
        others: The results of controls and of earlier campaigns.
        failures: Which rows of RESULTS failed, by outcome, NaN without its column.
        form: The format of a CSV file of predictions.
        features: The candidates as the model sees them.
        file_rows: The candidates as in their file. Only ids and results of a table that
            stays in its file. The rows of a table without ids are numbered.
        candidate_of: The candidate of each of these; -1 if it has no molecule.
        table: The same, each molecule once.
        rows: The candidates with canonical SMILES, and after them measured candidates
            that are no longer in the table.
        available: Which of ``rows`` can be chosen.
        failed: The candidates whose last measurement failed.
        fingerprints: The molecules of each column of SMILES.
        results_id: The column of ids of ``results``; None if they have none.
        is_numbered: Whether the candidates have no ids in their file.
        last: The last table of results.
        is_large: Whether the candidates' features stay in their file.
        columns: The columns of the candidates in their file.
    """

    def __init__(self, args: SuggestOptions) -> None:
        self.args = args
        # Fingerprints do not stay in their file.
        has_bits = args.smiles or args.kernel == "tanimoto"
        self.is_large = not has_bits and is_library(args.arms)
        file, self.is_numbered = _read_arms(args, self.is_large)
        table, self.form = file.frame, file.form
        if args.drop_incomplete:
            drop_incomplete(table, args)
        settings = feature_columns(table, args)
        self.columns = [*map(str, table)]
        if self.is_large:
            self.columns = parquet_columns(args.arms)
        shown = self.columns if args.with_columns else settings
        taken = [name for name in shown if name in args.columns_of_next]
        if taken:
            raise InputDataError(
                f"{args.arms} has a column {taken[0]!r}, and the batch has one of its "
                "own. Rename that of the candidates."
            )
        told, self.failures, controls, self.last = read_results(
            args, args.results_id, settings, self.columns
        )
        is_control = table[args.id].isin(args.control)
        if is_control.any():
            raise InputDataError(
                "Expected --control to name samples that are not candidates, but "
                f"{args.arms} has {table[args.id][is_control].iloc[0]!r}. Leave it out."
            )
        results = told.results
        self.results_id = find_column(results.columns, args.results_id)
        arms = table
        self.fingerprints: dict[str, Fingerprints] = {}
        is_described = len({*args.smiles}) == 1 and args.kernel is None
        for name in args.smiles:  # which become canonical, in both tables
            cells = [part[name] for part in (arms, results) if name in part]
            texts = pd.concat(cells, ignore_index=True)
            smiles, found = read_smiles(texts, args, is_described)
            self.fingerprints[name] = found
            arms = arms.assign(**{name: smiles[: len(arms)].array})
            if name in results:
                results = results.assign(**{name: smiles[len(arms) :].array})
        places, removed = _identify(results, arms, settings, self.results_id, args)
        available = _available(arms, args)
        available = np.append(available, np.zeros(len(removed), dtype="bool"))
        rows = arms
        if len(removed):
            rows = pd.concat([pd.concat({args.arms.name: arms}), removed.droplevel(1)])
        group = first = np.arange(len(rows))
        if self.fingerprints:  # rows of the same molecules and settings are one
            columns = [*dict.fromkeys([*self.fingerprints, *settings])]
            group = group_rows(rows, columns, valid_rows(rows, self.fingerprints, args))
            first = first_rows(rows[args.id], group, available)
        indices = group[places]
        is_known = (indices >= 0) & (places < len(arms))
        candidates = arms.iloc[places[is_known]]
        _compare_settings(results[is_known], candidates, arms, settings, args)
        self.file_rows, self.candidate_of = table, group[: len(arms)]
        self.num_candidates = int(self.candidate_of.max()) + 1
        if self.num_candidates < len(table):
            table = table.iloc[first[: self.num_candidates]]
        self.table = table.assign(**file.typed)
        self.rows, self.available = rows.iloc[first], available[first]
        told = Rows(results, indices, told.rewards)
        own, self.others, self.failed = sort_results(
            told, self.failures, controls, self.ids_of, args
        )
        self.results, self.indices, self.rewards = own
        self.available[self.failed] = False
        self.num_available = int(self.available.sum())

    def make_features(self) -> None:
        """Set the features of the candidates, and say what they are."""
        if self.is_large:
            self.features = library_features(self.columns, self.args)
        else:
            self.features = table_features(self.rows, self.fingerprints, self.args)

    def check_left(self) -> None:
        """Raise an error if no candidate can be chosen; name those that look alike."""
        args, available = self.args, self.available[: self.num_candidates]
        # Rows of some outcomes may complete each other, and the bandit counts them.
        told = self.results[[*args.roles]].notna()
        is_whole = (told.all(axis="columns") | ~told.any(axis="columns")).to_numpy()
        counts = np.bincount(self.indices[is_whole], minlength=len(available))
        counts = counts[: len(available)]
        most = args.max_repeats or len(counts) + counts.sum()
        if not (available & (counts < most)).any():
            num_done = int(available.sum())
            num_failed = int((self.failed < len(available)).sum())
            raise InputDataError(
                f"Expected candidates to be left for {args.batch_size:,} measurements, "
                f"but of {len(available):,} candidates {num_done:,} have had their "
                "repeats (--max-repeats, those in flight included),"
                f" {num_failed:,} failed, and "
                f"{len(available) - num_done - num_failed:,} are not available. Add or "
                "restock candidates, allow more repeats, or remove the rows of those "
                "that failed."
            )
        status(f"Preparing {len(self.rows):,} candidates", args.quiet)
        table = comparable_rows(self.features.arms[: self.num_candidates])
        found = find_duplicates(table)
        copies = (found.rows != found.first).nonzero().squeeze(-1)
        if len(copies):
            pair = [int(rows[copies[0]]) for rows in (found.rows, found.first)]
            row, first = self.ids_of(pair)
            note(
                f"Candidates with the features of an earlier one: {len(copies):,}, "
                f"such as {row} with those of {first}. The "
                "earliest available one is chosen"
            )

    def exclude(self, bandit: GPBandit) -> Tensor | None:
        """Retire candidates that are out for good, and return which are available."""
        if self.available.all():
            return None
        available = torch.from_numpy(self.available)
        # Measured ones may still be the best; others never will be.
        is_out = ~available
        is_out[self.indices] = False
        bandit.retire_arms(is_out.nonzero().squeeze(-1))
        return available

    def counts(self, measured: Tensor) -> str:
        """Say how many candidates there are, and how many of them were measured."""
        measured = measured < self.num_candidates
        num_out = self.num_candidates - self.num_available
        out = f", {num_out:,} of them not available" if num_out else ""
        return (
            f"{self.num_candidates:,} candidates{out}, {int(measured.sum()):,} of them "
            "measured"
        )

    def ids_of(self, indices: Any) -> list[str]:
        """Return the ids of some candidates."""
        return self.rows[self.args.id].iloc[indices].tolist()

    def columns_of(self, indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return the columns of some candidates."""
        if self.is_large:
            return read_rows(self.args.arms, self.columns, indices)
        return self.rows.iloc[indices]

    def names_of(self, indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return the columns that name some candidates in a table of predictions."""
        names = self.table[self.args.id].iloc[indices].reset_index(drop=True)
        # All candidates of a table that stays in its file are too many to be read.
        is_all = self.is_large and len(indices) == self.num_candidates
        own = [] if is_all else self._settings()
        return pd.concat([names, self._cells(own, indices)], axis="columns")

    def _settings(self) -> list[str]:
        """Return the columns that outputs show beside the ids."""
        args = self.args
        others = {args.id, args.noise_column, args.group, *args.outcome_columns}
        own = [name for name in self.columns if name not in others]
        if args.with_columns or self.is_numbered:
            return own
        is_shown = len(own) <= MOST_SETTINGS and not args.ids_only
        taken = {*args.columns_of_next, "probability_best"}
        return [name for name in own if name not in taken] if is_shown else []

    def _cells(self, own: list[str], indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return columns of some candidates, as they are in the file."""
        if self.is_large and own:
            return read_rows(self.args.arms, own, indices)
        return self.table[own].iloc[indices].reset_index(drop=True)

    def next_table(
        self, batch: pd.DataFrame, picks: Tensor
    ) -> tuple[pd.DataFrame, CsvFormat | None]:
        """Return the table that `suggest` writes, and the format of a CSV file."""
        args, form, own = self.args, self.form, self._settings()
        if args.per_measurement:
            places, columns = picks.numpy(), list(self.last.frame.columns)
            batch = pd.DataFrame(index=range(len(picks)))
            form = self.last.form or form
            # An earlier table may have no ids.
            id_column = find_column(columns, self.results_id or args.results_id)
            if args.with_columns or not args.observations:
                # After the id, or after the columns of RESULTS.
                at = len(columns) if args.observations else int(id_column is not None)
                columns[at:at] = [name for name in own if name not in columns]
        else:
            places, columns = batch.index.to_numpy(), list(batch.columns)
            id_column, batch = args.id, batch.reset_index(drop=True)
            columns[1:1] = own
            if form is not None and form.encoding != "utf-8":
                # Every program reads this encoding.
                form = replace(form, encoding="utf-8-sig")
        if id_column is not None:
            batch[id_column] = self.table[args.id].iloc[places].array
        own = [name for name in own if name in columns and name not in batch.columns]
        batch = pd.concat([batch, self._cells(own, places)], axis="columns")
        return batch.reindex(columns=columns), form


def _read_arms(args: SuggestOptions, is_large: bool) -> tuple[Table, bool]:
    """Return the candidates, and whether they are numbered."""
    columns = [args.id, args.available, *args.outcome_columns] if is_large else None
    table = read_by_options(args.arms, args, columns)
    args.arms_sheet = table.sheet
    arms = table.frame
    name = find_column(arms.columns, args.id)
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
    limited = {name for name, *_ in args.limit}
    for name in () if args.has_own_results else args.roles:
        # A copy of the candidates with old results has all outcomes.
        is_setting = name in limited or not {*args.roles} <= {*arms}
        if is_setting and name in arms and arms[name].notna().all():
            option = "--limit" if name in limited else args.outcome_option
            raise InputDataError(
                f"{option} names {name!r}, a column that all candidates of {args.arms} "
                "have: it is a setting and not a result. Leave out that option. In "
                "place of a limit, remove the candidates beyond it, or mark them by no "
                "in a column that you name by --available. If it was measured too, "
                "rename the column of the results."
            )
    return table, is_numbered


def _require_no_ids(arms: pd.DataFrame, args: SuggestOptions) -> None:
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


def _available(arms: pd.DataFrame, args: SuggestOptions) -> NDArray[np.bool_]:
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
    args: SuggestOptions,
) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Return the candidate of each result, by its id, or else by its settings.

    Measured candidates that are no longer in their table are returned too; their
    numbers follow.
    """
    if not len(results):
        return np.zeros(0, dtype="int64"), arms[:0]
    paths = [path.resolve() for path in (*args.observations, *args.earlier)]
    if results_id is None and paths == [args.arms.resolve()]:
        rows = results.index.get_level_values(-1)
        return arms.index.get_indexer(rows), arms[:0]
    names = [f"row {row + 1} of {file}" for file, _, row in results.index]
    ids = pd.Series(names, results.index, dtype="str")
    if results_id is not None:  # which not every table of results has
        ids = results[results_id].fillna(ids)
    places = match_ids(ids, arms[args.id])
    is_open = places < 0
    if not is_open.any():
        return places, arms[:0]
    # Of several tables, some may have no settings.
    lacks = results.reindex(columns=list(settings)).isna()
    is_lost = is_open & (lacks.all().any() | lacks.all(axis="columns").to_numpy())
    is_nameless = ids.isin(names) & is_lost
    if is_nameless.any():
        raise InputDataError(
            f"{row_name(is_nameless)} has no id, and lacks settings. Fill in one of "
            f"them, name columns as in {args.arms.name}, or remove the row."
        )
    if is_lost.any():
        raise InputDataError(_unknown_id(ids[is_lost], "", arms, args))
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
    # Another campaign may have the same ids.
    campaigns = removed.index.get_level_values(1)
    again = pd.MultiIndex.from_arrays([removed[args.id], campaigns]).duplicated()
    if again.any():
        ids = removed[args.id][again]
        raise InputDataError(_unknown_id(ids, " with other settings", arms, args))
    if len(removed):
        shown = listing(list(removed[args.id]), NUM_IDS_SHOWN)
        note(
            f"measured candidates that are no longer in {args.arms.name}: "
            f"{len(removed):,} ({shown}). Their results train the model with the "
            f"settings in {args.results_name}, and they are not chosen"
        )
        for name in settings:
            cells = {"the results": removed[name], args.arms.name: arms[name]}
            note(unit_trouble(name, cells))
    return places, removed


def _unknown_id(
    ids: pd.Series, said: str, arms: pd.DataFrame, args: SuggestOptions
) -> str:
    """Say which measured id is not among the candidates, and what to do."""
    more = f", the first of {len(ids):,} such rows" if len(ids) > 1 else ""
    return (
        f"{args.results_name} measures id {ids.iloc[0]!r}{said} in "
        f"{row_name(ids.notna())}{more}, which is not in the table of candidates; it "
        f"has ids such as {arms[args.id].iloc[0]!r}. Write ids alike in both tables, "
        "as text: spreadsheets drop zeros, shorten numbers and make dates. If the "
        "candidate was removed, put it back (--available keeps it from being chosen), "
        "remove the row, or write its settings, the same in all rows, beside it. If it "
        f"is a control, pass --control {quoted(ids.iloc[0])} and --group COLUMN."
    )


def _compare_settings(
    results: pd.DataFrame,
    own: pd.DataFrame,
    arms: pd.DataFrame,
    settings: Sequence[str],
    args: SuggestOptions,
) -> None:
    """Report results with other settings than the candidates whose ids they have.

    Raise an error if most have those of another candidate: their ids are wrong.
    """
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
    has_all = results[columns].notna().all(axis="columns") & (columns == [*settings])
    moved = pd.Series(differ.any(axis=-1), results.index)[has_all]
    moved = moved[moved & (moved.groupby(level=0).transform("mean") > MOST_MOVED)]
    if len(moved) >= MIN_MOVED:
        is_shown = results.index.isin(moved.index[:NUM_MOVED])
        others = match_settings(results[is_shown], arms, settings)
        if (others >= 0).mean() > MOST_MOVED:
            at = int((others >= 0).argmax())
            raise InputDataError(
                f"{len(moved):,} results have other settings than their candidates in "
                f"{args.arms}: {row_name(pd.Series(True, moved.index[[at]]))} has the "
                f"id of {own[args.id][is_shown].iloc[at]} and the settings of "
                f"{arms[args.id].iloc[others[at]]}. Correct the ids, or remove their "
                "column from these results: then candidates are found by settings."
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


# The candidate of a result: the one with its id, or with its settings ----------------


def match_ids(measured: pd.Series, ids: pd.Series) -> NDArray[np.int64]:
    """Return the places of measured ids among the candidates', -1 if unknown."""
    # Of candidates that are one molecule, the first.
    rows, index = np.flatnonzero(~ids.duplicated()), pd.Index(ids.drop_duplicates())
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = measured.str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)
    places = index.get_indexer(pd.Index(measured))
    places = np.where(places < 0, index.get_indexer(pd.Index(whole)), places)
    return np.where(places < 0, -1, rows[places])


def differing(
    results: pd.DataFrame, own: pd.DataFrame, columns: Sequence[str]
) -> NDArray[np.bool_]:
    """Return which settings of each result are not those of its candidate in ``own``.

    A result without a setting does not differ.
    """
    told, numbers, widths = _as_numbers(results, own, columns)
    is_same = np.abs(numbers - told) <= setting_bounds(told, widths)
    return ~is_same & results[list(columns)].notna().to_numpy("bool")


def match_settings(
    results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
) -> NDArray[np.int64]:
    """Return the candidate with the settings of each result, -1 if there is none.

    Of several it is the nearest; of equals, the first.
    """
    told, own, widths = _as_numbers(results, arms, columns)
    scale = np.where(widths > 0, widths, 1.0)
    places = np.full(len(told), -1)
    for row, (setting, bounds) in enumerate(
        zip(told, setting_bounds(told, widths), strict=True)
    ):
        near = np.arange(len(own))
        for n, bound in enumerate(bounds):
            near = near[np.abs(own[near, n] - setting[n]) <= bound]
        if len(near):
            distance = np.abs((own[near] - setting) / scale).sum(axis=-1)
            places[row] = near[distance.argmin()]
    return places


def setting_bounds(told: Numbers, widths: Numbers) -> Numbers:
    """Return by how much each setting may differ from the same setting."""
    return TOLERANCE * np.minimum(np.abs(told), widths) + ROUNDING * widths


def _as_numbers(
    results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the settings of both tables, NaN for none, and the columns' ranges.

    Words are numbered, and their range is 0. The range of equal numbers is the number.
    """
    told, own = (np.empty((len(table), len(columns))) for table in (results, arms))
    widths = np.zeros(len(columns))
    for n, name in enumerate(columns):
        if is_numeric(arms[name]):
            told[:, n], own[:, n] = to_numbers(results[name]), to_numbers(arms[name])
            finite = own[np.isfinite(own[:, n]), n]
            if len(finite):
                widths[n] = np.ptp(finite) or np.abs(finite[0])
        else:
            words = pd.concat([results[name], arms[name]], ignore_index=True)
            words = words.astype("str").where(words.notna()).rename(name)
            # Equal dates may be written differently.
            dates = days(words.dropna())
            words = words if dates is None else dates.reindex(words.index)
            codes = pd.factorize(words)[0]
            numbers = np.where(codes < 0, np.nan, codes)
            told[:, n], own[:, n] = np.split(numbers, [len(results)])
    return told, own, widths
