"""Which candidate a result belongs to: the one with its id, or with its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray

from botorch_bkb.cli.columns import days, is_numeric, looks_numeric, to_numbers


# Numbers are the same setting if they differ by no more than this share of the number
# and of the column's range. Zeros differ by rounding, a share of the range.
TOLERANCE = 1e-4
ROUNDING = 1e-9
TOLERANCE_WORDS = "numbers may differ by 0.01 %"
# The column that numbers the rows of a table without ids.
ROW_COLUMN = "candidate"
# Unmatched results that are looked at for the one with the nearest candidate.
NUM_NEAREST = 100
# Columns that are named in which they differ.
NUM_SHOWN = 3


def numbered(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a table with a first column that names its rows, and that column."""
    name = ROW_COLUMN
    while name in table.columns:
        name += "_"
    names = [f"row {number + 1}" for number in table.index]
    ids = pd.Series(names, table.index, dtype="str", name=name)
    return pd.concat([ids, table], axis="columns"), name


def require_no_ids(table: pd.DataFrame, columns: Sequence[str], path: Path) -> None:
    """Refuse a table without ids where one of its columns likely holds them.

    Args:
        table: The candidates.
        columns: The columns that would be features.
        path: Their file.

    Raises:
        InputDataError: If a text differs in every row, or the first column counts them.
    """
    if len(columns) < 2 or len(table) < 3:
        return
    for name in columns:
        column = table[name]
        if column.isna().any() or column.duplicated().any():
            continue
        if is_numeric(column):
            counts = name == columns[0] and (np.diff(to_numbers(column)) == 1).all()
            said, remedy = "counts the rows", "give the table a column 'id'"
        else:
            text = column.astype("str")
            counts = looks_numeric(text) is None and days(text) is None
            said, remedy = "differs in every row", f"pass --category {name}"
        if counts:
            raise InputDataError(
                f"{path} has no column 'id', but its column {name!r} {said}, as ids "
                f"do. Name it by --id {name!r}, or pass --drop {name!r}; if it is a "
                f"setting, {remedy}."
            )


@dataclass(frozen=True)
class Settings:
    """A column of settings of results and of candidates, as comparable numbers.

    Attributes:
        name: The column.
        told: A number per result; a code per word; NaN where there is none.
        own: The same per candidate.
        width: The range of the candidates' numbers, or the number if all are equal; 0
            for words.
    """

    name: str
    told: NDArray[np.float64]
    own: NDArray[np.float64]
    width: float

    def of(self, rows: NDArray[np.bool_]) -> Settings:
        """Return those of some results."""
        return replace(self, told=self.told[rows])


def compare_settings(
    results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
) -> list[Settings]:
    """Return the settings of results and of candidates as comparable numbers."""
    found = []
    for name in columns:
        if is_numeric(arms[name]):
            own = to_numbers(arms[name]).to_numpy()
            told = to_numbers(results[name]).to_numpy()
            finite = own[np.isfinite(own)]
            width = float(np.ptp(finite) or np.abs(finite[0])) if len(finite) else 0.0
        else:
            words = pd.concat([results[name], arms[name]], ignore_index=True)
            codes = pd.factorize(words.astype("str").where(words.notna()))[0]
            numbers = np.where(codes < 0, np.nan, codes).astype("float64")
            told, own = np.split(numbers, [len(results)])
            width = 0.0
        found.append(Settings(name, told, own, width))
    return found


def match_settings(columns: Sequence[Settings]) -> NDArray[np.int64]:
    """Return the candidate with the settings of each result, -1 where there is none.

    Of several it is the nearest, of equals the first.
    """
    num_results = len(columns[0].told) if columns else 0
    places = np.full(num_results, -1)
    for row in range(num_results):
        near = np.arange(len(columns[0].own))
        distance = np.zeros(len(near))
        for column in columns:
            value = column.told[row]
            gap = np.abs(column.own[near] - value)
            bound = TOLERANCE * min(abs(value), column.width) + ROUNDING * column.width
            is_near = gap <= bound
            scaled = gap[is_near] / max(column.width, 1e-300)
            near, distance = near[is_near], distance[is_near] + scaled
            if not len(near):
                break
        if len(near):
            places[row] = near[distance.argmin()]
    return places


def nearest_settings(
    columns: Sequence[Settings], results: pd.DataFrame, arms: pd.DataFrame
) -> tuple[int, int, str]:
    """Find the pair of a candidate and a result whose settings are nearest.

    Args:
        columns: The settings.
        results: The results, at least one.
        arms: The candidates.

    Returns:
        The candidate, the result, and the settings in which they differ, in words.
    """
    found = []
    for row in range(min(len(results), NUM_NEAREST)):
        distance = np.zeros(len(arms))
        for column in columns:
            gap = np.abs(column.own - column.told[row])
            share = np.minimum(gap / column.width, 1) if column.width else gap > 0
            distance += np.where(np.isnan(gap), 1.0, share)
        place = int(distance.argmin())
        found.append((distance[place], row, place))
    _, row, place = min(found)
    words = [
        f"{column.name} {results[column.name].iloc[row]} for "
        f"{arms[column.name].iloc[place]}"
        for column in columns
        if not abs(column.told[row] - column.own[place]) <= TOLERANCE * column.width
    ]
    more = " ..." if len(words) > NUM_SHOWN else ""
    return place, row, ", ".join(words[:NUM_SHOWN]) + more
