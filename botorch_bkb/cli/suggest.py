"""The next batch to measure, from a table of candidates and one of measurements."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.bandits import BBKB
from botorch_bkb.bandits.goal import Goal
from botorch_bkb.cli.arguments import BATCH_SIZE
from botorch_bkb.cli.progress import clock
from botorch_bkb.cli.tables import (
    feature_table,
    is_parquet,
    MAX_NUMBER,
    read_table,
    require_column,
    row_name,
    to_numbers,
    write_table,
)
from botorch_bkb.models.utils.replicates import find_twins


NUM_ROWS_SHOWN = 10
# Of a normal distribution, 95 % lies within this many deviations.
DEVIATIONS_OF_95_PERCENT = 1.96


def run(args: argparse.Namespace) -> None:
    """Choose the batch, write it, and print a summary."""
    # Asked now, so that a bad name fails before the fit.
    is_parquet(args.output)
    _require_other_file(args.output, [args.arms, args.observations])
    arms = read_table(args.arms, text_columns=[args.id])
    require_column(arms, args.id, args.arms, "--id")
    _require_ids(arms[args.id], args.arms)
    ids = pd.Index(arms[args.id])
    # Measurements are often kept in a copy of the candidates' table.
    features = feature_table(
        arms,
        exclude=[args.id, args.reward],
        drop=args.drop,
        codes=dict(args.code),
    )
    indices, rewards = read_observations(
        args.observations, ids, id_column=args.id, reward_column=args.reward
    )
    table = torch.from_numpy(features.values.to_numpy(dtype="float64", copy=True))
    bandit = suggestion_bandit(
        table,
        indices,
        rewards,
        seed=args.seed,
        goal=goal_named(args.goal),
        maximize=not args.minimize,
        max_repeats=args.max_repeats,
    )
    told = f"Fitting {bandit.num_pulls:,} measurements, choosing {args.batch_size:,}"
    with clock(told, args.quiet):
        picks = bandit.ask(size=args.batch_size)
    batch = describe_batch(bandit, picks, ids, id_column=args.id)
    write_table(batch, args.output)
    notes = [*features.notes, *_twin_notes(table, ids)]
    if len(picks) < args.batch_size:
        notes.append(
            f"--max-repeats {args.max_repeats} leaves only {len(picks):,} of "
            f"{args.batch_size:,} measurements"
        )
    for note in notes:
        print(f"Note: {note}.")
    print_summary(bandit, batch, ids, args.output, reward_column=args.reward)


def goal_named(word: str) -> Goal:
    """Return the goal that a word of the command line means."""
    return "best_arm" if word == "best-arm" else "regret"


def suggestion_bandit(
    arms: Tensor,
    indices: Tensor,
    rewards: Tensor,
    *,
    seed: int,
    goal: Goal = "best_arm",
    maximize: bool = True,
    max_repeats: int | None = None,
) -> BBKB:
    """Return the bandit that chooses the next batch: BBKB, left to its own defaults.

    Args:
        arms: An ``A x d`` tensor of features.
        indices: The ``n`` arms measured so far, repeats included.
        rewards: Their ``n`` rewards, NaN where a measurement is in flight.
        seed: The source of all randomness.
        goal: What the measurements are for.
        maximize: Whether large rewards are good.
        max_repeats: The most measurements of one arm; None for no limit.
    """
    bandit = BBKB(
        arms,
        goal=goal,
        maximize=maximize,
        max_repeats=max_repeats,
        generator=torch.Generator().manual_seed(seed),
    )
    told = ~rewards.isnan()
    bandit.tell(indices[told], rewards[told], external=True)
    bandit.add_pending(indices[~told])
    return bandit


class SuggestLoop:
    """The command called for one batch after another; ask and tell as of a bandit.

    Like the command it keeps only the table of measurements: each batch is the choice
    of a new bandit.
    """

    def __init__(
        self, arms: Tensor, *, seed: int, batch_size: int = BATCH_SIZE, **options: Any
    ) -> None:
        """Construct the loop.

        Args:
            arms: An ``A x d`` tensor of features.
            seed: That of every call.
            batch_size: The size of a batch.
            options: The others of :func:`suggestion_bandit`.
        """
        self.arms = arms
        self.batch_size = batch_size
        self.indices = torch.empty(0, dtype=torch.long)
        self.rewards = arms.new_empty(0)
        self._options = {"seed": seed, **options}
        self._bandit = self._new_bandit()

    @property
    def goal(self) -> Goal:
        """What the measurements are for."""
        return self._bandit.goal

    @property
    def num_pulls(self) -> int:
        """The number of measurements so far."""
        return len(self.indices)

    @property
    def inducing_indices(self) -> Tensor:
        """The inducing arms of the last call."""
        return self._bandit.inducing_indices

    @property
    def confidence_width(self) -> float:
        """The width of the last call's confidence bound."""
        return self._bandit.confidence_width

    def ask(self, max_size: int | None = None) -> Tensor:
        """Choose the next batch, of at most ``max_size``."""
        size = self.batch_size if max_size is None else min(max_size, self.batch_size)
        self._bandit = self._new_bandit()
        return self._bandit.ask(size=size)

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Add rows to the table of measurements."""
        self.indices = torch.cat([self.indices, indices])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_arm(self) -> int:
        """Return what the command names as the best measured so far."""
        if self._bandit.num_pulls < self.num_pulls:
            # The command says so beside its choice, after the fit that it needs.
            self.ask(max_size=1)
        return self._bandit.best_arm()

    def _new_bandit(self) -> BBKB:
        return suggestion_bandit(self.arms, self.indices, self.rewards, **self._options)


def read_observations(
    path: Path | None, ids: pd.Index, *, id_column: str, reward_column: str
) -> tuple[Tensor, Tensor]:
    """Read the measurements so far.

    Args:
        path: The table; None, a missing file or an empty one mean none so far.
        ids: The candidates' ids.
        id_column: The column of ids.
        reward_column: The column of rewards.

    Returns:
        An ``n``-dim tensor of arm indices and an ``n``-dim tensor of rewards, NaN where
        a measurement is in flight.

    Raises:
        InputDataError: If a column is missing, an id is missing or unknown, or a reward
            is not a number.
    """
    if path is not None and path.is_dir():
        raise InputDataError(f"{path} is a folder, not a table of measurements.")
    if path is None or not path.is_file():
        if path is not None:
            print(f"Note: there is no file {path}, so nothing is measured yet.")
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
    table = read_table(path, text_columns=[id_column])
    if table.empty:
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
    require_column(table, id_column, path, "--id")
    require_column(table, reward_column, path, "--reward")
    missing = table[id_column].isna()
    if missing.any():
        raise InputDataError(
            f"{path} has no id in {row_name(missing)}, column {id_column!r}."
        )
    indices = ids.get_indexer(pd.Index(table[id_column]))
    # A column of whole numbers with a gap becomes 1.0, 2.0, ... in many programs.
    whole = table[id_column].astype(str).str.replace(r"\.0+$", "", regex=True)
    indices = np.where(indices < 0, ids.get_indexer(pd.Index(whole)), indices)
    unknown = pd.Series(indices < 0, index=table.index)
    if unknown.any():
        raise InputDataError(
            f"{path} measures id {table[id_column][unknown].iloc[0]!r} in "
            f"{row_name(unknown)}, column {id_column!r}, which the table of candidates "
            "lacks."
        )
    rewards = to_numbers(table[reward_column])
    wrong = table[reward_column].notna() & ~(rewards.abs() <= MAX_NUMBER)
    if wrong.any():
        raise InputDataError(
            f"{path} has the reward {str(table[reward_column][wrong].iloc[0])!r} in "
            f"{row_name(wrong)}, column {reward_column!r}, which is no finite number. "
            "Leave it empty if the measurement is in flight; remove the row if it "
            "failed."
        )
    return torch.from_numpy(indices.astype("int64")), torch.tensor(rewards.to_numpy())


def describe_batch(
    bandit: BBKB, picks: Tensor, ids: pd.Index, *, id_column: str
) -> pd.DataFrame:
    """Return one row per distinct pick, in the order of the choice.

    ``mean``, ``std`` and the 95 % interval from ``low`` to ``high`` are those of the
    mean reward given the measurements, in the reward's unit; they are empty while
    nothing is measured.
    """
    picks = picks.cpu()
    repeats = pd.Series(picks.numpy()).value_counts(sort=False)
    arms = torch.tensor(repeats.index.tolist())
    batch = pd.DataFrame({id_column: ids[arms.numpy()], "repeats": repeats.to_numpy()})
    if bandit.num_pulls == 0:
        return batch.assign(mean=np.nan, std=np.nan, low=np.nan, high=np.nan)
    mean, variance = bandit.predict(arms)
    std = variance.sqrt()
    half = DEVIATIONS_OF_95_PERCENT * std
    columns = {"mean": mean, "std": std, "low": mean - half, "high": mean + half}
    return batch.assign(**{name: column.numpy() for name, column in columns.items()})


def print_summary(
    bandit: BBKB,
    batch: pd.DataFrame,
    ids: pd.Index,
    output: Path,
    *,
    reward_column: str,
) -> None:
    """Print what is known and what was chosen."""
    num_measured = int((bandit.counts > 0).sum())
    in_flight = len(bandit.pending) - int(batch["repeats"].sum())
    print(
        f"{len(ids):,} candidates, {num_measured:,} of them measured, "
        f"{bandit.num_pulls:,} measurements in all, {in_flight:,} in flight."
    )
    if bandit.num_pulls > 0:
        best = bandit.best_arm()
        mean, variance = bandit.predict(torch.tensor([best]))
        half = DEVIATIONS_OF_95_PERCENT * variance.sqrt().item()
        print(
            f"Best measured so far: {ids[best]}, mean {reward_column} "
            f"{mean.item():.4g} +- {half:.2g} (95 %)."
        )
    print(
        f"\n{int(batch['repeats'].sum()):,} to measure next, {len(batch):,} distinct:\n"
    )
    shown = batch.head(NUM_ROWS_SHOWN).dropna(axis="columns", how="all")
    print(shown.to_string(index=False, float_format="{:.4g}".format))
    if len(batch) > NUM_ROWS_SHOWN:
        print(f"... and {len(batch) - NUM_ROWS_SHOWN:,} more")
    if "low" in shown:
        print(
            f"\nlow to high: where the mean {reward_column} lies with 95 % probability "
            "by the fit."
        )
    print(f"\nWrote {output}")


def _twin_notes(table: Tensor, ids: pd.Index) -> list[str]:
    """Say which candidates the model cannot tell apart, if there are any."""
    twins = find_twins(table)
    copies = (twins.rows != twins.first).nonzero().squeeze(-1)
    if not len(copies):
        return []
    row, first = int(twins.rows[copies[0]]), int(twins.first[copies[0]])
    return [
        f"{len(copies):,} candidates have the features of an earlier one, such as "
        f"{ids[row]} those of {ids[first]}; the earliest that may be measured is chosen"
    ]


def _require_other_file(output: Path, inputs: Sequence[Path | None]) -> None:
    for path in inputs:
        if path is not None and path.resolve() == output.resolve():
            raise InputDataError(
                f"--output {output} is one of the tables read, which it would replace. "
                "Name another file."
            )


def _require_ids(ids: pd.Series, path: Path) -> None:
    missing = ids.isna()
    if missing.any():
        raise InputDataError(
            f"{path} has no id in {row_name(missing)}, column {ids.name!r}."
        )
    broken = ids.str.contains(r"[\r\n]")
    if broken.any():
        raise InputDataError(
            f"{path} has the id {ids[broken].iloc[0]!r} in {row_name(broken)}, column "
            f"{ids.name!r}, over several lines. Close the quotation mark before it."
        )
    repeated = ids.duplicated()
    if repeated.any():
        raise InputDataError(
            f"{path} has the id {ids[repeated].iloc[0]!r} more than once, again in "
            f"{row_name(repeated)}, column {ids.name!r}. Keep one row per candidate."
        )
