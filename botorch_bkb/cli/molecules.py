"""Columns of SMILES: canonical SMILES, fingerprints, and rows of one molecule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from tqdm import tqdm

from botorch_bkb.cli.arguments import SuggestOptions
from botorch_bkb.cli.tables import note
from botorch_bkb.integrations.chem import read_molecules
from botorch_bkb.tables.columns import listing, row_name


NUM_ROWS_SHOWN = 10


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """The different molecules of a column.

    Attributes:
        names: Their canonical SMILES.
        codes: Their fingerprints, a row each.
        descriptors: Their descriptors, a row each.
        invalid: For texts that are not molecules, the reason.
    """

    names: pd.Index
    codes: NDArray[np.uint8]
    descriptors: NDArray[np.float64]
    invalid: dict[str, str]

    def descriptors_of(self, smiles: pd.Series) -> NDArray[np.float64]:
        """Return the descriptors of each canonical SMILES."""
        return self.descriptors[self.names.get_indexer(pd.Index(smiles))]

    def of(self, smiles: pd.Series | list[str]) -> NDArray[np.uint8]:
        """Return the fingerprint of each canonical SMILES, zeros for empty cells."""
        places = self.names.get_indexer(pd.Index(smiles))
        is_all = np.array_equal(places, np.arange(len(self.codes)))
        is_there = bool((places >= 0).all())
        codes = self.codes if is_there else np.pad(self.codes, ((0, 1), (0, 0)))
        return codes if is_all else codes[places]


def read_smiles(
    column: pd.Series, args: SuggestOptions, descriptors: bool = False
) -> tuple[pd.Series, Fingerprints]:
    """Return a column with canonical SMILES, and its molecules.

    Texts that are not molecules, and empty cells, stay as they are.
    """
    texts: list[str] = column.dropna().astype("str").unique().tolist()
    hidden = True if args.quiet else None
    try:
        with tqdm(total=len(texts), desc="Fingerprints", disable=hidden) as bar:
            found = read_molecules(
                texts,
                radius=args.radius,
                num_bits=args.num_bits,
                counts=not args.bits,
                descriptors=descriptors,
                skip_invalid=True,
                progress=bar.update,
            )
    except RuntimeError as error:
        raise InputDataError(str(error)) from error
    names = dict(zip(texts, texts, strict=True))
    names |= {texts[n]: name for n, name in zip(found.rows, found.smiles, strict=True)}
    names |= {texts[n]: names[texts[first]] for n, first in found.duplicates.items()}
    invalid = {texts[n]: reason for n, reason in found.invalid.items()}
    canonical = column.map(names).astype("str").where(column.notna())
    own = found.codes, found.descriptors
    return canonical, Fingerprints(pd.Index(found.smiles), *own, invalid)


def distinguished(
    name: str, elements: Any, rows: NDArray[Any], is_packed: bool = False
) -> NDArray[Any]:
    """Return the features of a column's elements, with marks on equal ones; name these.

    Enantiomers, for instance, have the same fingerprint.
    """
    keys = pd.Series([hash(row.tobytes()) for row in rows])
    nth = keys.groupby(keys).cumcount().to_numpy()
    if not nth.any():
        return rows
    copies = np.asarray(elements)[nth > 0].astype("str").tolist()
    note(
        f"elements of {name!r} with the features of an earlier one: "
        f"{listing(copies, 3)}. A feature of their own distinguishes them"
    )
    marks = nth[:, np.newaxis] == np.arange(1, nth.max() + 1)
    if is_packed:
        marks = np.packbits(marks, axis=-1)
    return np.concatenate([rows, marks.astype(rows.dtype)], axis=-1)


def valid_rows(
    arms: pd.DataFrame, found: dict[str, Fingerprints], args: SuggestOptions
) -> NDArray[np.bool_]:
    """Return which candidates have a molecule in every column of SMILES."""
    faults: dict[int, tuple[str, str, str]] = {}
    for column, molecules in found.items():
        cells = arms[column].fillna("")
        reasons = {"": "is empty", **molecules.invalid}
        for row in np.flatnonzero(cells.isin(list(reasons))).tolist():
            text = cells.iloc[row]
            faults.setdefault(row, (column, text, reasons[text]))
    is_valid = np.ones(len(arms), dtype="bool")
    is_valid[[*faults]] = False
    if faults and (not args.skip_invalid or not is_valid.any()):
        row = min(faults)
        column, text, reason = faults[row]
        raise InputDataError(
            f"Expected a molecule in every row of column {column!r}, but {text[:80]!r} "
            f"in {row_name(pd.Series(True, arms.index[[row]]))} {reason}; there are "
            f"{len(faults):,} such rows of {len(arms):,}. Correct them, or pass "
            "--skip-invalid."
        )
    if faults:
        numbers = arms.index.get_level_values(-1) + 1
        shown = [f"{numbers[row]} ({faults[row][-1]})" for row in sorted(faults)]
        note(
            f"rows without a molecule, skipped with their measurements: "
            f"{len(faults):,}. Rows: {listing(shown, NUM_ROWS_SHOWN)}"
        )
    return is_valid


def first_rows(
    ids: pd.Series, group: NDArray[np.int64], is_preferred: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the first preferred row of each group, or else the first; note copies.

    ``group`` is -1 for rows that are left out.
    """
    order = np.argsort(~is_preferred, kind="stable")
    order = order[group[order] >= 0]
    rows = order[np.unique(group[order], return_index=True)[1]]
    copies = np.setdiff1d(order, rows)
    if len(copies):
        own = rows[group[copies[0]]]
        note(
            "rows with the molecule and settings of another row: "
            f"{len(copies):,}, such as {ids.iloc[copies[0]]} those of {ids.iloc[own]}. "
            "Each group is one candidate, with the measurements of all"
        )
    return rows


def group_rows(
    table: pd.DataFrame, columns: Sequence[str], kept: Collection[bool]
) -> NDArray[np.int64]:
    """Return the number of the group of equal rows; -1 for rows that are not kept."""
    cells = table.loc[np.asarray(kept, dtype="bool"), list(columns)]
    # Cells of other kinds may have no hash.
    texts = {name: "str" for name in cells if cells[name].dtype == object}
    rows = cells.astype(texts).groupby(list(columns), sort=False, dropna=False)
    group = np.full(len(table), -1)
    group[np.asarray(kept, dtype="bool")] = rows.ngroup()
    return group
