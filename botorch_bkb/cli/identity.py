"""The candidate of a result: the one with its id, or with its settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from botorch_bkb.cli.tables import is_numeric, to_numbers


# Numbers are the same setting if they differ by no more than this share of the number
# and of the column's range. Zeros differ by rounding, a share of the range.
TOLERANCE = 1e-4
ROUNDING = 1e-9

Numbers = NDArray[np.float64]


def match_ids(measured: pd.Series, ids: pd.Series) -> NDArray[np.int64]:
    """Return the places of measured ids among the candidates', -1 if unknown."""
    index = pd.Index(ids)
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = measured.str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)
    places = index.get_indexer(pd.Index(measured))
    return np.where(places < 0, index.get_indexer(pd.Index(whole)), places)


def differing(
    results: pd.DataFrame, own: pd.DataFrame, columns: Sequence[str]
) -> NDArray[np.bool_]:
    """Return which settings of each result are not those of its candidate in ``own``.

    A result without a setting does not differ.
    """
    told, numbers, widths = _as_numbers(results, own, columns)
    is_same = np.abs(numbers - told) <= _bounds(told, widths)
    return ~is_same & ~np.isnan(told)


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
        zip(told, _bounds(told, widths), strict=True)
    ):
        near = np.arange(len(own))
        for n, bound in enumerate(bounds):
            near = near[np.abs(own[near, n] - setting[n]) <= bound]
        if len(near):
            distance = np.abs((own[near] - setting) / scale).sum(axis=-1)
            places[row] = near[distance.argmin()]
    return places


def _bounds(told: Numbers, widths: Numbers) -> Numbers:
    """Return by how much each setting may differ from the same setting."""
    return TOLERANCE * np.minimum(np.abs(told), widths) + ROUNDING * widths


def _as_numbers(
    results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the settings of both tables, NaN for none, and the columns' ranges.

    Words are numbered, and their range is 0. The range of equal numbers is the number.
    """
    told, own = (
        np.empty((len(results), len(columns))),
        np.empty((len(arms), len(columns))),
    )
    widths = np.zeros(len(columns))
    for n, name in enumerate(columns):
        if is_numeric(arms[name]):
            told[:, n], own[:, n] = to_numbers(results[name]), to_numbers(arms[name])
            finite = own[np.isfinite(own[:, n]), n]
            if len(finite):
                widths[n] = np.ptp(finite) or np.abs(finite[0])
        else:
            words = pd.concat([results[name], arms[name]], ignore_index=True)
            codes = pd.factorize(words.astype("str").where(words.notna()))[0]
            numbers = np.where(codes < 0, np.nan, codes)
            told[:, n], own[:, n] = np.split(numbers, [len(results)])
    return told, own, widths
