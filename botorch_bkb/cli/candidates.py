"""What `suggest` asks of candidates: a table of them, or combinations of components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.arguments import DEFAULT_ID, SuggestOptions
from botorch_bkb.cli.features import Features
from botorch_bkb.tables.files import CsvFormat


class Rows(NamedTuple):
    """Results, their candidates (or names of controls), and their rewards.

    The index has the file, the earlier campaign ("" for this one), and the row.
    """

    results: pd.DataFrame
    indices: NDArray[Any]
    rewards: NDArray[np.float64]

    def where(self, kept: NDArray[np.bool_]) -> Rows:
        """Return those that are kept."""
        return Rows(self.results[kept], self.indices[kept], self.rewards[kept])


class Candidates(Protocol):
    """Candidates, with the measurements so far.

    Attributes:
        args: The options of the command.
        id_column: The column of their ids in the batch.
        ids: Their ids, by their numbers.
        num_candidates: Their number, without those that only results have.
        num_available: The number of those that can be chosen.
        results: The measurements of this campaign that did not fail.
        indices: The candidate of each.
        rewards: The result of each, NaN while it is in flight.
        others: The results of controls and of earlier campaigns.
        form: The format of a CSV file of predictions.
        features: The candidates as the model sees them.
    """

    args: SuggestOptions
    id_column: str = DEFAULT_ID
    ids: Any
    num_candidates: int
    num_available: int
    results: pd.DataFrame
    indices: NDArray[np.int64]
    rewards: NDArray[np.float64]
    others: Sequence[Rows] = ()
    form: CsvFormat | None
    features: Features

    @property
    def measured(self) -> Rows:
        """The measurements of this campaign."""
        return Rows(self.results, self.indices, self.rewards)

    def exclude(self, bandit: GPBandit) -> Tensor | None:
        """Retire candidates that are out for good, and return which are available."""

    def counts(self, bandit: GPBandit) -> str:
        """Say how many candidates there are, and how many of them were measured."""

    def columns_of(self, indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return the columns of some candidates, or the names of their components."""

    def names_of(self, indices: NDArray[np.int64]) -> pd.DataFrame:
        """Return the columns that name some candidates in a table of predictions."""
        return self.columns_of(indices)

    def next_table(
        self, batch: pd.DataFrame, picks: Tensor
    ) -> tuple[pd.DataFrame, CsvFormat | None]:
        """Return the table that `suggest` writes, and the format of a CSV file."""
