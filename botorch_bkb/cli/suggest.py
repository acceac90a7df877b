"""The next batch to measure, from a table of candidates and one of measurements."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms.table import comparable_rows
from botorch_bkb.bandits import GPBandit, matern_to_learn, rbf_to_learn
from botorch_bkb.bandits.gp_bandit import Goal
from botorch_bkb.cli.arguments import BATCH_SIZE
from botorch_bkb.cli.campaign import Campaign, read_campaign, stays_in_file
from botorch_bkb.cli.candidates import Candidates, KernelName, read_candidates
from botorch_bkb.cli.columns import is_numeric
from botorch_bkb.cli.diagnosis import (
    decades_trouble,
    DEVIATIONS_OF_95_PERCENT,
    diagnose,
    has_spread,
    HeldOut,
    is_fitted,
    MIN_CANDIDATES_TO_JUDGE,
    NOT_FITTED,
    reward_trouble,
    round_effect,
)
from botorch_bkb.cli.files import (
    parquet_columns,
    read_cells,
    read_rows,
    table_kind,
    write_table,
)
from botorch_bkb.cli.progress import clock, note
from botorch_bkb.cli.report import (
    in_digits_of,
    plan_report,
    report_page,
    require_other_file,
    Rounds,
)
from botorch_bkb.cli.results import check_left, COLUMNS_OF_NEXT, reward_label
from botorch_bkb.cli.workers import on_workers, require_ray
from botorch_bkb.integrations.chem import draw_molecules
from botorch_bkb.models.utils.rows import find_duplicates


NUM_ROWS_SHOWN = 10
# So many deviations between two means are none.
EQUAL = 1e-6


def run(args: argparse.Namespace) -> None:
    """Choose the batch, write it, and print a summary."""
    # Asked now, so that a bad name fails before the fit.
    table_kind(args.output)
    if args.id in COLUMNS_OF_NEXT:
        raise InputDataError(
            f"--id {args.id!r} is a column that the batch has of its own. Rename it in "
            "the tables."
        )
    require_other_file("--output", args.output, [args.arms, *args.observations])
    require_ray(args.workers)
    with clock("Reading the tables", args.quiet):
        campaign = read_campaign(args)
        plan_report(args, campaign)  # refused before the work
        candidates = read_candidates(campaign, args)
        # Of molecules, rows may be left out, with their measurements.
        campaign = candidates.campaign
        rounds = plan_report(args, campaign)
        offered = campaign.available[: campaign.num_candidates]
        check_left(offered, campaign.indices, campaign.failed, args)
    with on_workers(candidates.arms, args.workers) as arms:
        _suggest(args, candidates, arms, rounds)


def _suggest(
    args: argparse.Namespace,
    candidates: Candidates,
    arms: Tensor,
    rounds: Rounds | None,
) -> None:
    """Choose the batch from tables that were read; ``arms`` may be on workers."""
    campaign = candidates.campaign
    ids = pd.Index(campaign.arms[args.id])
    with clock(f"Preparing {len(arms):,} candidates", args.quiet):
        _note_duplicates(candidates.arms[: campaign.num_candidates], ids)
        bandit = suggestion_bandit(
            arms,
            campaign.indices,
            campaign.rewards,
            seed=args.seed,
            goal=goal_named(args.goal),
            maximize=not args.minimize,
            max_repeats=args.max_repeats,
            kernel=candidates.kernel,
            max_inducing=args.max_inducing,
        )
    told = f"Fitting {bandit.num_pulls:,} measurements, choosing {args.batch_size:,}"
    # As always where nothing is out of stock.
    available = None if campaign.available.all() else campaign.available
    with warnings.catch_warnings(), clock(told, args.quiet):
        if int((bandit.counts > 0).sum()) >= MIN_CANDIDATES_TO_JUDGE:
            # The bandit's own verdict on its fit: the line below says more.
            warnings.filterwarnings("ignore", "The fit to .* observations explains")
        picks = bandit.ask(args.batch_size, available=available)
    _note_size(picks, int(campaign.available.sum()), args)
    held_out, problems = _print_fit(bandit, campaign, ids, candidates.sources, args)
    batch = describe_batch(
        bandit,
        picks,
        ids,
        id_column=args.id,
        has_unit=has_spread(campaign.rewards[~campaign.rewards.isnan()]),
        says_why=candidates.kernel == "tanimoto",
    )
    print_summary(bandit, batch, ids, campaign, reward_column=reward_label(args))
    _write_next(args, campaign, picks, batch)
    print(f"\nWrote {args.output}")
    if args.report is not None and rounds is not None:
        structures = None
        if args.smiles:
            places = ids.get_indexer(pd.Index(batch[args.id]))
            molecules = campaign.arms[args.smiles].iloc[places]
            # Several columns as one picture: a dot separates molecules.
            structures = draw_molecules(list(molecules.agg(".".join, axis="columns")))
        names = candidates.names
        found = (held_out, problems, structures)
        page = report_page(args, bandit, campaign, batch, rounds, names, *found)
        args.report.write_text(page, encoding="utf-8")
        print(f"Wrote {args.report}")


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
    kernel: KernelName | None = None,
    max_inducing: int | None = None,
) -> GPBandit:
    """Return the bandit that chooses the next batch, and knows all measurements.

    Args:
        arms: An ``A x d`` tensor of features.
        indices: The ``n`` arms measured so far, repeats included.
        rewards: Their ``n`` rewards, NaN where a measurement is in flight.
        seed: The source of all randomness.
        goal: What the measurements are for.
        maximize: Whether large rewards are good.
        max_repeats: The most measurements of one arm; None for no limit.
        kernel: The kernel to learn; None for the bandit's default.
        max_inducing: The most arms on which the posterior stands; None for no limit.
    """
    told = ~rewards.isnan()
    kernels = {"matern": matern_to_learn, "rbf": rbf_to_learn}
    bandit = GPBandit(
        arms,
        kernels.get(kernel or ""),
        goal=goal,
        maximize=maximize,
        max_repeats=max_repeats,
        max_inducing=max_inducing,
        generator=torch.Generator().manual_seed(seed),
    )
    bandit.add_observations(indices[told], rewards[told])
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
        return self._bandit.ask(size)

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Add rows to the table of measurements."""
        self.indices = torch.cat([self.indices, indices])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_arm(self) -> int:
        """Return what the command names as the best measured so far."""
        bandit = self._bandit
        if bandit.num_pulls < self.num_pulls:
            # As its next call would; there may be nothing left to choose.
            bandit = self._new_bandit()
        return bandit.best_arm()

    def _new_bandit(self) -> GPBandit:
        return suggestion_bandit(self.arms, self.indices, self.rewards, **self._options)


def describe_batch(
    bandit: GPBandit,
    picks: Tensor,
    ids: pd.Index,
    *,
    id_column: str,
    has_unit: bool = True,
    says_why: bool = False,
) -> pd.DataFrame:
    """Return one row per distinct pick, in the order of the choice.

    ``mean``, ``std`` and the 95 % interval from ``low`` to ``high`` are those of the
    mean reward given the measurements, in the reward's unit; they are empty while
    nothing is measured, all but the mean also while all rewards are equal.

    Args:
        bandit: The bandit.
        picks: What it has chosen.
        ids: The ids of its arms.
        id_column: Their column.
        has_unit: Whether the rewards differ, which gives deviations their unit.
        says_why: Whether a column ``why`` says what speaks for each.
    """
    repeats = pd.Series(picks.cpu().numpy()).value_counts(sort=False)
    arms = torch.tensor(repeats.index.tolist())
    batch = pd.DataFrame({id_column: ids[arms.numpy()], "repeats": repeats.to_numpy()})
    if bandit.num_pulls == 0:
        batch = batch.assign(mean=np.nan, std=np.nan, low=np.nan, high=np.nan)
        return batch.assign(why="explore: nothing is measured") if says_why else batch
    mean, variance = bandit.predict(arms)
    std = variance.sqrt()
    half = DEVIATIONS_OF_95_PERCENT * std
    columns = {"mean": mean, "std": std, "low": mean - half, "high": mean + half}
    batch = batch.assign(**{name: column.numpy() for name, column in columns.items()})
    if not has_unit:
        batch[["std", "low", "high"]] = np.nan
    return batch.assign(why=_reasons(bandit, arms, mean, std)) if says_why else batch


def _reasons(bandit: GPBandit, arms: Tensor, mean: Tensor, std: Tensor) -> list[str]:
    """Say of each pick whether its mean speaks for it, or what is not known of it."""
    best = bandit.predict(torch.tensor([bandit.best_arm()]))[0]
    ahead = mean - best if bandit.maximize else best - mean
    # Of rewards whose squares underflow it is zero.
    ahead /= std.clamp_min(torch.finfo(std.dtype).tiny)
    reasons = []
    for arm, gap in zip(arms.tolist(), ahead.tolist(), strict=True):
        if bandit.counts[arm] > 0:
            reasons.append("repeat: measured before, and may still be the best")
        elif gap >= -EQUAL:
            reasons.append(f"exploit: mean {gap:.1f} std better than the best so far")
        else:
            reasons.append(f"explore: mean {-gap:.1f} std short of the best so far")
    return reasons


def print_summary(
    bandit: GPBandit,
    batch: pd.DataFrame,
    ids: pd.Index,
    campaign: Campaign,
    *,
    reward_column: str,
) -> None:
    """Print what is known and what was chosen."""
    num_candidates, num_next = campaign.num_candidates, int(batch["repeats"].sum())
    num_out = num_candidates - int(campaign.available.sum())
    num_measured = int((bandit.counts[:num_candidates] > 0).sum())
    print(
        f"{num_candidates:,} candidates, "
        f"{f'{num_out:,} of them not available, ' if num_out else ''}"
        f"{num_measured:,} of them measured, {bandit.num_pulls:,} measurements in all, "
        f"{len(bandit.pending) - num_next:,} in flight."
    )
    if bandit.num_pulls > 0:
        best = bandit.best_arm()
        mean, variance = bandit.predict(torch.tensor([best]))
        interval, std = "", None
        if batch["std"].notna().any():
            std = variance.sqrt().item()
            half = DEVIATIONS_OF_95_PERCENT * std
            interval = f" +- {in_digits_of(half, std)} (95 %)"
        print(
            f"Best measured so far: {ids[best]}, mean {reward_column} "
            f"{in_digits_of(mean.item(), std)}{interval}."
        )
    print(f"\n{num_next:,} to measure next, {len(batch):,} distinct:\n")
    shown = batch.head(NUM_ROWS_SHOWN).dropna(axis="columns", how="all")
    stds = shown.get("std", pd.Series(np.nan, shown.index))
    for name in shown.columns.intersection(["mean", "std", "low", "high"]):
        shown[name] = list(map(in_digits_of, shown[name], stds))
    print(shown.to_string(index=False))
    if len(batch) > NUM_ROWS_SHOWN:
        print(f"... and {len(batch) - NUM_ROWS_SHOWN:,} more")
    if "low" in shown:
        by = "by the fit." if is_fitted(bandit) else f"by the model. {NOT_FITTED}"
        print(
            f"\nlow to high: where the mean {reward_column} lies with 95 % probability "
            f"{by}"
        )


def _print_fit(
    bandit: GPBandit,
    campaign: Campaign,
    ids: pd.Index,
    sources: Sequence[str],
    args: argparse.Namespace,
) -> tuple[HeldOut | None, list[str]]:
    """Print what the fit found; return held-out predictions and the warnings."""
    held_out = None
    told = ~campaign.rewards.isnan()
    indices, rewards = campaign.indices[told], campaign.rewards[told]
    troubles = [reward_trouble(rewards, list(ids[indices.numpy()]))]
    if not args.log_reward:
        troubles.append(decades_trouble(rewards))
    if is_fitted(bandit) and has_spread(rewards):
        with clock("Judging the fit", args.quiet):
            diagnosis = diagnose(bandit, indices, rewards, sources)
        print(f"Fit: {diagnosis}.")
        held_out = diagnosis.held_out
        troubles.append(diagnosis.trouble)
        if held_out is not None and args.round is not None:
            names = campaign.results[args.round][told.numpy()]
            if is_numeric(names):
                names = names.map("{:.15g}".format)
            effect = round_effect(held_out, names)
            if effect is not None:
                print(f"Rounds of column {args.round!r}: {effect}.")
                troubles.append(effect.trouble)
    problems = list(filter(None, troubles))
    for problem in problems:
        print(f"Warning: {problem}.")
    return held_out, problems


def _write_next(
    args: argparse.Namespace, campaign: Campaign, picks: Tensor, batch: pd.DataFrame
) -> None:
    """Write the batch, as the table is written that it goes with."""
    ids = campaign.arms[args.id]
    columns, form = list(batch.columns), campaign.arms_form
    places = pd.Index(ids).get_indexer(pd.Index(batch[args.id]))
    if args.per_measurement:
        places = picks.cpu().numpy()
        columns = list(campaign.results_columns)
        batch = pd.DataFrame(index=range(len(picks)))
        if campaign.results_id is not None:
            batch[campaign.results_id] = ids.iloc[places].to_numpy()
        form = campaign.results_form or form
    elif form is not None and form.encoding != "utf-8":
        # What every program reads, unless it is to be appended.
        form = replace(form, encoding="utf-8-sig")
    is_large = stays_in_file(args.arms, args)
    own = parquet_columns(args.arms) if is_large else list(campaign.arms.columns)
    own = [name for name in own if name not in (args.id, args.reward)]
    if args.with_columns or (campaign.is_numbered and not args.per_measurement):
        taken = [name for name in own if name in batch.columns]
        if taken:
            raise InputDataError(
                f"NEXT would have the candidates' column {taken[0]!r} beside one of "
                "that name which the fit fills. Rename it."
            )
        columns += [name for name in own if name not in columns]
    own = [name for name in own if name in columns and name not in batch.columns]
    source = campaign.arms_form
    if is_large and own:
        values = read_rows(args.arms, own, places)
    elif (
        own
        and source is not None
        and form is not None
        and (form.decimal != source.decimal)
    ):
        values = campaign.arms[own].iloc[places]
    elif own:
        # As they stand in the file, by their rows there: leading zeros and all.
        # `arms` lacks rows that are left out, and may have other types.
        cells = read_cells(args.arms, separator=args.separator).frame
        values = cells[own].loc[campaign.arms.index.get_level_values(-1)[places]]
    if own:
        batch = pd.concat([batch, values.reset_index(drop=True)], axis="columns")
    write_table(batch.reindex(columns=columns), args.output, form)


def _note_size(picks: Tensor, num_available: int, args: argparse.Namespace) -> None:
    """Say where a batch is smaller than asked for, or has more than all candidates."""
    if len(picks) < args.batch_size:
        note(
            f"--max-repeats {args.max_repeats} leaves only {len(picks):,} of "
            f"{args.batch_size:,} measurements"
        )
    elif len(picks) > num_available:
        note(
            f"{len(picks):,} measurements of {num_available:,} candidates are up to "
            f"{int(picks.bincount().max()):,} of each. Pass --batch-size for fewer "
            f"(default: {BATCH_SIZE}), or --max-repeats"
        )


def _note_duplicates(table: Tensor, ids: pd.Index) -> None:
    """Say which candidates the model cannot tell apart, if there are any."""
    duplicates = find_duplicates(comparable_rows(table))
    copies = (duplicates.rows != duplicates.first).nonzero().squeeze(-1)
    if len(copies):
        row, first = int(duplicates.rows[copies[0]]), int(duplicates.first[copies[0]])
        note(
            f"Candidates with the features of an earlier one: {len(copies):,}, such as "
            f"{ids[row]} with those of {ids[first]}; the earliest that may be measured "
            "is chosen"
        )
