"""Which candidate a result belongs to: the one with its id, or with its settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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


class Settings:
    """The settings of results and of candidates as numbers that can be compared.

    Attributes:
        told: A row per result, NaN where there is no setting.
        own: A row per candidate.
        widths: The range of each column of numbers among the candidates, or the number
            if all are equal; 0 for words.
        bounds: By how much each number of ``told`` may differ from the same setting.
    """

    def __init__(
        self, results: pd.DataFrame, arms: pd.DataFrame, columns: Sequence[str]
    ) -> None:
        """Compare the columns, which both tables have."""
        self.told = np.empty((len(results), len(columns)))
        self.own = np.empty((len(arms), len(columns)))
        self.widths = np.zeros(len(columns))
        for n, name in enumerate(columns):
            told, own = results[name], arms[name]
            if is_numeric(own):
                self.told[:, n], self.own[:, n] = to_numbers(told), to_numbers(own)
                finite = self.own[np.isfinite(self.own[:, n]), n]
                if len(finite):
                    self.widths[n] = np.ptp(finite) or np.abs(finite[0])
            else:
                words = pd.concat([told, own], ignore_index=True)
                codes = pd.factorize(words.astype("str").where(words.notna()))[0]
                numbers = np.where(codes < 0, np.nan, codes)
                self.told[:, n], self.own[:, n] = np.split(numbers, [len(results)])

        bounds = TOLERANCE * np.minimum(np.abs(self.told), self.widths)
        self.bounds = bounds + ROUNDING * self.widths

    def differ(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which settings of each result are not those of a candidate."""
        return ~(np.abs(self.own[places] - self.told) <= self.bounds)

    def match(self) -> NDArray[np.int64]:
        """Return the candidate with the settings of each result, -1 if there is none.

        Of several it is the nearest, of equals the first.
        """
        scale = np.where(self.widths > 0, self.widths, 1.0)
        places = np.full(len(self.told), -1)
        for row, told in enumerate(self.told):
            near = np.arange(len(self.own))
            for n, bound in enumerate(self.bounds[row]):
                near = near[np.abs(self.own[near, n] - told[n]) <= bound]
            if len(near):
                distance = np.abs((self.own[near] - told) / scale).sum(axis=-1)
                places[row] = near[distance.argmin()]
        return places
