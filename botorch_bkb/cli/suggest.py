"""The next batch to measure, from a table of candidates and tables of results."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms.table import comparable_rows
from botorch_bkb.bandits import GPBandit, matern_to_learn, rbf_to_learn
from botorch_bkb.bandits.observations import DEVIATIONS_OF_95_PERCENT
from botorch_bkb.cli.arguments import BATCH_SIZE
from botorch_bkb.cli.campaign import Campaign, read_campaign
from botorch_bkb.cli.candidates import Candidates, KernelName, read_candidates
from botorch_bkb.cli.components import Products
from botorch_bkb.cli.diagnosis import (
    decades_trouble,
    diagnose,
    fit_trouble,
    HeldOut,
    is_fitted,
    MIN_CANDIDATES_TO_JUDGE,
    reward_trouble,
    round_effect,
)
from botorch_bkb.cli.files import read_rows, write_table
from botorch_bkb.cli.predictions import when_to_stop, write_predictions
from botorch_bkb.cli.progress import note, status
from botorch_bkb.cli.report import check_paths, in_digits_of, read_rounds, report_page
from botorch_bkb.cli.results import (
    check_reward,
    COLUMNS_OF_NEXT,
    noise_variances,
    reward_label,
)
from botorch_bkb.cli.tables import outcome_columns, to_numbers, unit_trouble
from botorch_bkb.models.utils.rows import find_duplicates


NUM_ROWS_SHOWN = 10
# Two means are equal if they differ by so many standard deviations.
EQUAL = 1e-6


def run(args: argparse.Namespace) -> None:
    """Choose the batch, write it, and print a summary."""
    _check_options(args)
    status("Reading the tables", args.quiet)
    campaign: Campaign | Products
    if args.component:
        campaign = products = Products(args)
        candidates = Candidates(products.arms, None, (), ())
        rounds = read_rounds(args, campaign)
    else:
        campaign = read_campaign(args)
        _note_own_results(campaign, args)
        candidates = read_candidates(campaign, args)
        rounds = read_rounds(args, campaign)
        _check_left(campaign, args)
        status(f"Preparing {len(campaign.ids):,} candidates", args.quiet)
        _note_duplicates(candidates.arms[: campaign.num_candidates], campaign.ids)
    _suggest(args, campaign, candidates, rounds)


def _check_options(args: argparse.Namespace) -> None:
    """Raise an error if options do not fit: before the work."""
    if (args.arms is None) == (not args.component):
        raise InputDataError(
            "Expected either a table CANDIDATES or lists of components (--component), "
            "and not both."
        )
    check_reward(args)
    if args.component:
        args.arms = Path(" x ".join(name for name, _ in args.component))
        of_tables = "kernel", "available", "drop_incomplete", "with_columns"
        for name in of_tables:
            if getattr(args, name):
                raise InputDataError(
                    f"--{name.replace('_', '-')} needs a table of candidates, but the "
                    "candidates are combinations (--component). Leave it out."
                )
    elif args.id in COLUMNS_OF_NEXT:
        raise InputDataError(
            f"--id {args.id!r} is a column that the batch has of its own. Rename it in "
            "the tables."
        )
    check_paths(args)


def _suggest(
    args: argparse.Namespace,
    campaign: Campaign | Products,
    candidates: Candidates,
    rounds: pd.DataFrame,
) -> None:
    """Choose the batch from tables that were read, write it, and print a summary."""
    ids = campaign.ids
    indices = torch.from_numpy(campaign.indices)
    rewards = torch.from_numpy(campaign.rewards)
    noise = noise_variances(campaign.results, campaign.rewards, args)
    options = bandit_options(args, candidates)
    bandit = suggestion_bandit(
        candidates.arms, indices, rewards, noise, seed=args.seed, **options
    )
    told = f"{bandit.num_pulls:,} measurements, choosing {args.batch_size:,}"
    status(f"Fitting {told}", args.quiet)
    picks = _choose(bandit, campaign, candidates, args)
    is_told = ~rewards.isnan()
    known = indices[is_told], rewards[is_told], noise[is_told]
    batch = describe_batch(bandit, picks, ids, campaign.id_column, is_fitted(known[1]))
    _write_next(args, campaign, picks, batch)
    held_out, problems = _print_fit(bandit, *known, rounds, campaign, args)
    if isinstance(campaign, Products):
        # Predictions, below, evaluate more of them.
        share, size = bandit.evaluated_share, campaign.num_candidates
        print(f"{share:.2%} of {size:,} combinations were evaluated exactly.")
    same = campaign.columns_of(picks[:1].numpy())
    same = same[same.columns.intersection(args.same)]
    batch.attrs["same"] = same.to_dict("records")[0]
    print_summary(bandit, batch, campaign, reward_label(args))
    print(f"\nWrote {args.output}")
    if args.predictions is not None:
        write_predictions(args, bandit, campaign, bool(batch["mean"].notna().all()))
        print(f"Wrote {args.predictions}")
    if args.report is not None:
        found = candidates.names, held_out, problems
        page = report_page(args, bandit, campaign, batch, rounds, *found)
        args.report.write_text(page, encoding="utf-8")
        print(f"Wrote {args.report}")


def _choose(
    bandit: GPBandit,
    campaign: Campaign | Products,
    candidates: Candidates,
    args: argparse.Namespace,
) -> Tensor:
    """Ask for the batch; what failed or is not available is left out."""
    available = None
    if isinstance(campaign, Products):
        bandit.retire_arms(campaign.failed)
    elif not campaign.available.all():
        available = torch.from_numpy(campaign.available)
        # Measured ones may still be the best; others never will be.
        is_out = ~available
        is_out[campaign.indices] = False
        bandit.retire_arms(is_out.nonzero().squeeze(-1))
    with warnings.catch_warnings():
        if len(bandit.observed_arms) >= MIN_CANDIDATES_TO_JUDGE:
            # The line about the fit says more than the bandit's own warning.
            warnings.filterwarnings("ignore", "The fit to .* observations explains")
        same = candidates.shared_columns(args)
        picks = bandit.ask(args.batch_size, available=available, same=same)
    _note_size(picks, campaign.num_available, args)
    return picks


def bandit_options(args: argparse.Namespace, candidates: Candidates) -> dict[str, Any]:
    """Return the options of :func:`suggestion_bandit` that a command has."""
    return {
        "goal": args.goal,
        "maximize": not args.minimize,
        "max_repeats": args.max_repeats,
        "max_inducing": args.max_inducing,
        "kernel": candidates.kernel,
        "confidence": args.confidence,
    }


def suggestion_bandit(
    arms: Tensor,
    indices: Tensor,
    rewards: Tensor,
    noise: Tensor | None = None,
    *,
    seed: int,
    kernel: KernelName | None = None,
    **options: Any,
) -> GPBandit:
    """Return the bandit that chooses the next batch, with all measurements.

    Args:
        arms: An ``A x d`` tensor of features.
        indices: The ``n`` arms measured so far, repeats included.
        rewards: Their ``n`` rewards, NaN while a measurement is in flight.
        noise: Their ``n`` noise variances, NaN for those not known; None if none is.
        seed: The source of all randomness.
        kernel: The kernel to learn; None for the bandit's default.
        options: Others of :class:`~botorch_bkb.GPBandit`.
    """
    told = ~rewards.isnan()
    kernels = {"matern": matern_to_learn, "rbf": rbf_to_learn}
    generator = torch.Generator().manual_seed(seed)
    bandit = GPBandit(arms, kernels.get(kernel or ""), generator=generator, **options)
    known = None if noise is None else noise[told]
    bandit.add_observations(indices[told], rewards[told], noise_variance=known)
    bandit.add_pending(indices[~told])
    return bandit


class SuggestLoop:
    """The command called for one batch after another, with a bandit's ask and tell.

    Like the command it keeps only the table of measurements. A new bandit chooses each
    batch.

    Args:
        arms: An ``A x d`` tensor of features.
        seed: That of every call.
        batch_size: The size of a batch.
        options: The other options of :func:`suggestion_bandit`.
    """

    def __init__(
        self, arms: Tensor, *, seed: int, batch_size: int = BATCH_SIZE, **options: Any
    ) -> None:
        self.arms = arms
        self.batch_size = batch_size
        self.indices = torch.empty(0, dtype=torch.long)
        self.rewards = arms.new_empty(0)
        self._options = {"seed": seed, **options}
        self._bandit = self._new_bandit()

    @property
    def num_pulls(self) -> int:
        """The number of measurements so far."""
        return len(self.indices)

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
        """Return the arm that the command names as the best measured so far."""
        bandit = self._bandit
        if bandit.num_pulls < self.num_pulls:
            bandit = self._new_bandit()
        return bandit.best_arm()

    def _new_bandit(self) -> GPBandit:
        return suggestion_bandit(self.arms, self.indices, self.rewards, **self._options)


def describe_batch(
    bandit: GPBandit, picks: Tensor, ids: Any, id_column: str, is_fitted: bool
) -> pd.DataFrame:
    """Return one row per distinct pick, in the order of the choice.

    ``mean``, ``std`` and the 95 % interval from ``low`` to ``high`` are those of the
    mean reward given the measurements, in the reward's unit. They are empty before
    kernel and noise are fitted.
    """
    repeats = pd.Series(picks.cpu().numpy()).value_counts(sort=False)
    arms = torch.tensor(repeats.index.tolist())
    batch = pd.DataFrame({id_column: ids[arms.numpy()], "repeats": repeats.to_numpy()})
    batch.attrs["arms"] = arms.tolist()
    if not is_fitted:
        batch = batch.assign(mean=np.nan, std=np.nan, low=np.nan, high=np.nan)
        return batch.assign(why="explore: no model yet")
    (mean, variance), (low, high) = bandit.predict(arms), bandit._interval(arms)
    std = variance.sqrt()
    columns = {"mean": mean, "std": std, "low": low, "high": high}
    batch = batch.assign(**{name: column.numpy() for name, column in columns.items()})
    return batch.assign(why=_reasons(bandit, arms, mean, std))


def _reasons(bandit: GPBandit, arms: Tensor, mean: Tensor, std: Tensor) -> list[str]:
    """Return why each arm was chosen: for its mean, or for its uncertainty."""
    best = bandit.predict(torch.tensor([bandit.best_arm()]))[0]
    ahead = mean - best if bandit.maximize else best - mean
    # The standard deviation of tiny rewards may underflow to zero.
    ahead /= std.clamp_min(torch.finfo(std.dtype).tiny)
    measured = {*bandit.observed_arms.tolist()}
    reasons = []
    for arm, gap in zip(arms.tolist(), ahead.tolist(), strict=True):
        if arm in measured:
            reasons.append("repeat: measured before, and may still be the best")
        elif gap >= -EQUAL:
            reasons.append(f"exploit: mean {gap:.1f} std better than the best so far")
        else:
            reasons.append(f"explore: mean {-gap:.1f} std worse than the best so far")
    return reasons


def print_summary(
    bandit: GPBandit,
    batch: pd.DataFrame,
    campaign: Campaign | Products,
    reward_column: str,
) -> None:
    """Print the state of the campaign, the best measured candidate and the batch."""
    size, measured = f"{campaign.num_candidates:,} candidates", bandit.observed_arms
    if isinstance(campaign, Products):
        size = f"{campaign.num_candidates:,} combinations"
    else:  # without those that only results have
        measured = measured[measured < campaign.num_candidates]
        num_out = campaign.num_candidates - campaign.num_available
        size += f", {num_out:,} of them not available" if num_out else ""
    num_next = int(batch["repeats"].sum())
    print(
        f"{size}, {len(measured):,} of them measured, {bandit.num_pulls:,} "
        f"measurements in all, {len(bandit.pending) - num_next:,} in flight."
    )
    is_fitted = batch["mean"].notna().all()
    if is_fitted:
        ids, best = campaign.ids, bandit.best_arm()
        mean, variance = bandit.predict(torch.tensor([best]))
        std = variance.sqrt().item()
        print(
            f"Best measured so far: {ids[best]}, mean {reward_column} "
            f"{in_digits_of(mean.item(), std)} +- "
            f"{in_digits_of(DEVIATIONS_OF_95_PERCENT * std, std)} (95 %)."
        )
        batch.attrs["stop"] = when_to_stop(bandit, batch, campaign, reward_column)
        print("When to stop:", *batch.attrs["stop"])
    same = "".join(f", all of {k} {v}" for k, v in batch.attrs["same"].items())
    print(f"\n{num_next:,} to measure next, {len(batch):,} distinct{same}:\n")
    shown = batch.head(NUM_ROWS_SHOWN).dropna(axis="columns", how="all")
    for name in shown.columns.intersection(["mean", "low", "high", "std"], sort=False):
        shown[name] = list(map(in_digits_of, batch[name], batch["std"]))[: len(shown)]
    print(shown.to_string(index=False))
    if len(batch) > NUM_ROWS_SHOWN:
        print(f"... and {len(batch) - NUM_ROWS_SHOWN:,} more")
    if is_fitted:
        print(f"\nlow to high: 95 % interval of the mean {reward_column} by the model.")


def _print_fit(
    bandit: GPBandit,
    indices: Tensor,
    rewards: Tensor,
    noise: Tensor,
    rounds: pd.DataFrame,
    campaign: Campaign | Products,
    args: argparse.Namespace,
) -> tuple[HeldOut | None, list[str]]:
    """Print a description of the fit; return held-out predictions and warnings."""
    held_out = None
    names = list(campaign.ids[indices.numpy()])
    files = campaign.results.groupby(level=0, sort=False)
    troubles: list[str | None] = [
        unit_trouble(name, dict(iter(files[name]))) for name in outcome_columns(args)
    ]
    log_reward = None if args.objective or any(troubles) else args.log_reward
    if log_reward is False:
        troubles.append(decades_trouble(rewards, args.minimize))
    told = campaign.results[[name for name, _ in args.objective]].apply(to_numbers)
    outcomes = torch.tensor(told[~np.isnan(campaign.rewards)].to_numpy().T)
    marks = reward_trouble(bandit, rewards, noise, names, log_reward, [*outcomes])
    troubles.append(marks)
    if is_fitted(rewards):
        status("Checking the fit", args.quiet)
        text, held_out = diagnose(bandit, indices, rewards, noise)
        print(f"Fit: {text}.")
    if held_out is not None:
        troubles.append(fit_trouble(held_out))
        effect = None
        if args.round is not None:
            effect = round_effect(held_out, rounds["name"].tolist())
        if effect is not None:
            print(f"Rounds of column {args.round!r}: {effect[0]}.")
            troubles.append(effect[1])
    problems = list(filter(None, troubles))
    for problem in problems:
        print(f"Warning: {problem}.")
    return held_out, problems


def _write_next(
    args: argparse.Namespace,
    campaign: Campaign | Products,
    picks: Tensor,
    batch: pd.DataFrame,
) -> None:
    """Write the batch in the format of the table that it goes with."""
    batch = batch.assign(**{name: np.nan for name, _ in args.objective})
    if isinstance(campaign, Products):
        parts = campaign.columns_of(batch.attrs["arms"])
        table = pd.concat([parts, batch.drop(columns="id")], axis="columns")
        if args.per_measurement:
            table = table.loc[table.index.repeat(table["repeats"])]
            table = table.reindex(columns=[*parts, *outcome_columns(args)])
        write_table(table, args.output, campaign.form)
        return
    places, form = batch.attrs["arms"], campaign.form
    ids, columns = campaign.table[args.id], list(batch.columns)
    batch[args.id] = ids.iloc[places].array
    if args.per_measurement:
        places, columns = picks.tolist(), list(campaign.results_columns)
        batch = pd.DataFrame(index=range(len(picks)))
        if campaign.results_id is not None:
            batch[campaign.results_id] = ids.iloc[places].array
        form = campaign.results_form or form
    elif form is not None and form.encoding != "utf-8":
        # Every program reads this encoding.
        form = replace(form, encoding="utf-8-sig")
    others = {args.id, args.noise_column, *outcome_columns(args)}
    own = [name for name in campaign.columns if name not in others]
    if args.with_columns or (campaign.is_numbered and not args.per_measurement):
        taken = [name for name in own if name in batch.columns]
        if taken:
            raise InputDataError(
                f"NEXT would have the candidates' column {taken[0]!r} beside its own "
                "column of that name. Rename the candidates' column."
            )
        columns += [name for name in own if name not in columns]
    own = [name for name in own if name in columns and name not in batch.columns]
    if campaign.is_large and own:
        values = read_rows(args.arms, own, np.array(places))
    else:
        values = campaign.table[own].iloc[places].reset_index(drop=True)
    batch = pd.concat([batch, values], axis="columns")
    write_table(batch.reindex(columns=columns), args.output, form)


def _note_own_results(campaign: Campaign, args: argparse.Namespace) -> None:
    """Report results beside the candidates that are not read."""
    own = [name for name in outcome_columns(args) if name in campaign.table]
    if own and args.arms.resolve() not in [
        path.resolve() for path in args.observations
    ]:
        note(
            f"{args.arms.name} has a column {own[0]!r}, which is not read: "
            "results come from --observations, which may be the same file"
        )


def _check_left(campaign: Campaign, args: argparse.Namespace) -> None:
    """Raise an error if no candidate can be measured any more."""
    available = campaign.available[: campaign.num_candidates]
    counts = np.bincount(campaign.indices, minlength=len(available))[: len(available)]
    if (available & (counts < (args.max_repeats or len(counts) + counts.sum()))).any():
        return
    num_done, num_failed = int(available.sum()), campaign.num_failed
    raise InputDataError(
        f"Expected candidates to be left for {args.batch_size:,} measurements, but of "
        f"{len(available):,} candidates {num_done:,} have had their repeats "
        f"(--max-repeats {args.max_repeats}, those in flight included), "
        f"{num_failed:,} failed, and {len(available) - num_done - num_failed:,} are "
        "not available. Add or restock candidates, allow more repeats, or remove the "
        "rows of those that failed."
    )


def _note_size(picks: Tensor, num_available: int, args: argparse.Namespace) -> None:
    """Report a batch that is smaller than asked for, or larger than all candidates."""
    if len(picks) < args.batch_size:
        is_once = args.goal != "regret" and len(picks) == num_available
        once = "Each candidate comes once in a batch (but with --goal regret), which"
        note(
            f"{once if is_once else f'--max-repeats {args.max_repeats}'} leaves only "
            f"{len(picks):,} of {args.batch_size:,} measurements"
        )
    elif len(picks) > num_available:
        note(
            f"{len(picks):,} measurements of {num_available:,} candidates are up to "
            f"{int(picks.bincount().max()):,} of each. Pass --batch-size for fewer "
            f"(default: {BATCH_SIZE}), or --max-repeats"
        )


def _note_duplicates(table: Tensor, ids: pd.Index) -> None:
    """Report candidates that the model cannot distinguish, if there are any."""
    duplicates = find_duplicates(comparable_rows(table))
    copies = (duplicates.rows != duplicates.first).nonzero().squeeze(-1)
    if len(copies):
        row, first = int(duplicates.rows[copies[0]]), int(duplicates.first[copies[0]])
        note(
            f"Candidates with the features of an earlier one: {len(copies):,}, such as "
            f"{ids[row]} with those of {ids[first]}. The earliest available one is "
            "chosen"
        )
