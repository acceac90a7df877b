"""Which candidate a result belongs to: the one with its id, or with its settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial import KDTree

from botorch_bkb.cli.columns import is_numeric, to_numbers


# Numbers are the same setting if they differ by no more than this share of the number
# and of the column's range. Zeros differ by rounding, a share of the range.
TOLERANCE = 1e-4
ROUNDING = 1e-9


def match_ids(measured: pd.Series, ids: pd.Series) -> NDArray[np.int64]:
    """Return the places of measured ids among the candidates', -1 of those unknown."""
    index = pd.Index(ids)
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = measured.str.replace(r"\.0+$", "", regex=True)
    places = index.get_indexer(pd.Index(measured))
    return np.where(places < 0, index.get_indexer(pd.Index(whole)), places)


def match_settings(
    results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
) -> NDArray[np.int64]:
    """Return the candidate with the settings of each result, -1 where there is none.

    Of several it is the nearest, of equals the first.

    Args:
        results: The results.
        arms: The candidates.
        columns: The columns of settings, which both have.
    """
    told, own = (np.empty((len(table), len(columns))) for table in (results, arms))
    widths = np.zeros(len(columns))
    for n, name in enumerate(columns):
        if is_numeric(arms[name]):
            told[:, n], own[:, n] = to_numbers(results[name]), to_numbers(arms[name])
            finite = own[np.isfinite(own[:, n]), n]
            widths[n] = np.ptp(finite) or np.abs(finite[0]) if len(finite) else 0.0
        else:
            words = pd.concat([results[name], arms[name]], ignore_index=True)
            codes = pd.factorize(words.astype("str").where(words.notna()))[0]
            numbers = np.where(codes < 0, np.nan, codes)
            told[:, n], own[:, n] = np.split(numbers, [len(results)])
    scale = np.where(widths > 0, widths, 1.0)
    points = [np.nan_to_num(x / scale, posinf=0, neginf=0) for x in (told, own)]
    distinct, first = np.unique(points[1], axis=0, return_index=True)
    nearest = first[KDTree(distinct).query(points[0], p=1)[1]]
    bound = TOLERANCE * np.minimum(np.abs(told), widths) + ROUNDING * widths
    is_same = (np.abs(own[nearest] - told) <= bound).all(axis=-1)
    return np.where(is_same, nearest, -1)
