"""Which columns matter, and which of their values are good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from botorch_bkb.arms import BitArms, ProductArms, TableArms
from botorch_bkb.bandits.progress import DEVIATIONS_OF_95_PERCENT
from botorch_bkb.cli.components import Candidates, Products
from botorch_bkb.tables.columns import is_numeric, to_numbers


if TYPE_CHECKING:
    from botorch_bkb.cli.report import Part


# Measured candidates, in all and per column. With fewer, the order of the columns and
# words of a known function is often wrong.
MIN_CANDIDATES, MIN_CANDIDATES_PER_COLUMN = 24, 4
# The model is evaluated for up to 20 numbers or 256 words of each column.
MAX_COLUMNS = 32
MIN_SHARE, NUM_NAMED = 0.01, 3
# Candidates in the picture of the batch, and words along a side of it.
MAX_PLACES, MAX_WORDS = 1000, 40


@dataclass(frozen=True, eq=False)
class ColumnEffects:
    """The columns that matter, the most important one first.

    Attributes:
        shares: Of the variance of the predictions: what each column explains ``alone``,
            and half of what it explains ``together`` with others.
        tables: Each ``value`` of a column, with its ``mean``, ``low`` and ``high``:
            numbers in order, words from the best one on. None of molecules.
        confounded: Sentences about columns that vary together.
    """

    shares: pd.DataFrame
    tables: dict[str, pd.DataFrame]
    confounded: list[str]

    def sentence(self, of: str = "") -> str:
        """Say which columns matter most, ``of`` for an outcome, and confounding."""
        total = 100 * self.shares[:NUM_NAMED].sum(axis="columns")
        named = [f"{name} ({share:.0f} %" for name, share in total.items()]
        named[0] += " of the predicted differences"
        text = "), ".join(named)
        return " ".join([f"Columns that matter most{of}: {text}).", *self.confounded])


def column_effects(part: Part) -> ColumnEffects | None:
    """Return the effects of columns on an outcome; None if too little is known."""
    features, held_out = part.campaign.features, part.held_out
    names, arms = [*map(str, features.columns)], features.arms
    least = max(MIN_CANDIDATES, MIN_CANDIDATES_PER_COLUMN * len(names))
    if held_out is None or part.problems or not held_out.beats_mean:
        return None
    is_wide = held_out.num_candidates < least or len(names) > MAX_COLUMNS
    if is_wide or len(names) < 2 or isinstance(arms, BitArms):
        return None
    found = part.bandit.main_effects()
    own = dict(zip(found.effects, names, strict=True))
    first, total = pd.DataFrame(found.importance).to_numpy()
    shares = pd.DataFrame({"alone": first, "together": (total - first) / 2}, names)
    # Interactions of more than two columns, and confounded columns, count repeatedly.
    shares /= max(1.0, shares.to_numpy().sum())
    order = shares.sum(axis="columns").sort_values(ascending=False, kind="stable")
    shares = shares.loc[order.index[order >= MIN_SHARE]]
    tables, kinds = {}, arms.kinds if isinstance(arms, TableArms) else [""] * len(names)
    for number, (key, name) in enumerate(own.items()):
        table = pd.DataFrame(found.effects[key])
        half = DEVIATIONS_OF_95_PERCENT * table.pop("std")
        table = table.assign(low=table["mean"] - half, high=table["mean"] + half)
        table[["low", "high"]] = table[["low", "high"]].clip(*part.bandit.bounds)
        if isinstance(part.campaign, Products):
            ids = part.campaign.names[number]
            if len(ids) > len(table):
                continue  # the most frequent elements, without their names
            is_listed = table["value"].tolist() == ids.tolist()
            table["value"] = ids if is_listed else ids.astype("str")
        by = "value" if is_numeric(table["value"]) else "mean"
        rises = by == "value" or part.args.minimize
        if kinds[number] != "molecules":
            tables[name] = table.sort_values(by, ascending=rises, kind="stable")
    pairs = [(own[a], own[b]) for a, b in found.confounded]
    confounded = [
        f"{a} and {b} vary together in the table: results hardly tell their effects "
        "apart."
        for a, b in pairs
        if {a, b} & {*shares.index[:NUM_NAMED]}
    ]
    tables = {name: tables[name] for name in shares.index if name in tables}
    own_effects = ColumnEffects(shares, tables, confounded[:NUM_NAMED])
    return None if shares.empty else own_effects


def batch_places(
    parts: Sequence[Part], campaign: Candidates, picks: NDArray[np.int64]
) -> tuple[list[pd.DataFrame], dict[str, list[str]]]:
    """Return other, measured and chosen candidates in the two most important columns.

    Also the words of both, in order. Candidates lie near the position of their word.
    """
    found = [part.effects for part in parts if part.effects is not None]
    rng, words = np.random.default_rng(0), dict[str, list[str]]()
    arms = campaign.features.arms
    if not found:
        return [], words
    sums = pd.DataFrame([each.shares.sum(axis="columns") for each in found]).fillna(0)
    tables = {n: table for each in reversed(found) for n, table in each.tables.items()}
    told = (part.campaign.indices[~np.isnan(part.campaign.rewards)] for part in parts)
    measured = np.unique(np.concatenate([*told]))
    others = np.arange(len(arms))
    if len(arms) > MAX_PLACES:
        others = np.unique(rng.integers(len(arms), size=MAX_PLACES))
    if isinstance(arms, ProductArms):
        others = others[arms.is_allowed(torch.from_numpy(others)).numpy()]
    others = np.setdiff1d(others, [*measured, *picks])
    rows = [campaign.columns_of(own) for own in (others, measured, picks)]
    for name in sums.mean().sort_values(ascending=False, kind="stable").index:
        if name not in tables or len(words) == 2:
            continue
        values = tables[name]["value"]
        is_number = is_numeric(values)
        # Dates are numbers to the model only.
        if is_numeric(rows[1][name]) if is_number else len(values) <= MAX_WORDS:
            words[name] = [] if is_number else values.tolist()
    places = [
        pd.DataFrame(
            {
                name: pd.Index(own).get_indexer(pd.Index(cells[name].astype("str")))
                + rng.uniform(-0.3, 0.3, len(cells))
                if own
                else to_numbers(cells[name])
                for name, own in words.items()
            }
        )
        for cells in rows
    ]
    words = dict(sorted(words.items(), key=lambda item: len(item[1])))
    return places, words if len(words) == 2 else {}
