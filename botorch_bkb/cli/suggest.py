"""The next batch to measure, from a table of candidates and tables of results."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms.table import as_arms
from botorch_bkb.bandits import GPBandit
from botorch_bkb.bandits.base import Array
from botorch_bkb.cli.arguments import (
    BATCH_SIZE,
    by_option,
    candidates_first,
    KernelName,
    SuggestOptions,
)
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.components import Candidates, Products
from botorch_bkb.cli.diagnosis import (
    bounds_trouble,
    decades_trouble,
    diagnose,
    fit_trouble,
    intervals_trouble,
    is_fitted,
    MIN_CANDIDATES_TO_JUDGE,
    objective_troubles,
    reward_trouble,
    round_effect,
)
from botorch_bkb.cli.effects import column_effects
from botorch_bkb.cli.outcomes import (
    best_outcomes,
    KERNELS,
    outcome_parts,
    outcome_words,
    outcomes_bandit,
    predict_outcomes,
    read_roles,
    recommended,
)
from botorch_bkb.cli.predictions import (
    best_measured,
    describe_batch,
    describe_groups,
    predictions_table,
    when_to_stop,
)
from botorch_bkb.cli.report import Part, report_page
from botorch_bkb.cli.results import add_results, told_table
from botorch_bkb.cli.tables import (
    in_digits_of,
    note,
    quoted,
    require_different_columns,
    status,
    unit_trouble,
)
from botorch_bkb.desirability import Desirability
from botorch_bkb.tables.columns import listing, to_numbers
from botorch_bkb.tables.files import KINDS, require_own, table_kind, write_table


NUM_ROWS_SHOWN = 10
# What only files of earlier runs have.
MARKS = {
    "output": "(?m)^# Options of suggest",
    "predictions": "\nmean\nstd\nlow\nhigh\nprobability_best(\nprobability_[a-z]*)?\n\n"
    "|\n.+_std\n.+_low\n.+_high(\nprobability_feasible)?\n\n",
    "report": "<title>Next batch for ",
}


def run(args: SuggestOptions) -> None:
    """Choose the batch, write it, and print a summary."""
    _check_options(args)
    status("Reading the tables", args.quiet)
    if args.component:
        _suggest(Products(args))
        return
    campaign = Campaign(args)
    own = [name for name in args.outcome_columns if name in campaign.table]
    if own and not args.has_own_results:
        use = f". To use its results, add --observations {quoted(args.arms)}"
        note(
            f"the column {own[0]!r} of the candidates is ignored"
            f"{use if len(own) == len(args.outcome_columns) else ''}"
        )
    campaign.make_features()
    campaign.check_left()
    _suggest(campaign)


def _numbered(name: str | Path) -> list[Any]:
    """Return a key that sorts names by the numbers in them: round 9, then round 10."""
    parts = re.split("([0-9]+)", f"{name}")
    return [int(part) if n % 2 else part for n, part in enumerate(parts)]


def _check_options(args: SuggestOptions) -> None:
    """Raise an error if options do not fit: before the work."""
    # Before CANDIDATES, --minimize alone takes them for its column.
    stems = {name: Path(name.removesuffix(".gz")) for name in args.minimize}
    files = [name for name, stem in stems.items() if stem.suffix.lower() in KINDS]
    if args.arms is None and not args.component and files:
        args.minimize[args.minimize.index(files[-1])] = ""
        args.arms = Path(files[-1])
        args.words = candidates_first(args.words, "--minimize", args.arms)
    elif args.arms is None and not args.component:
        lists = [each for each in by_option(args.words) if each[0] == "--observations"]
        if lists and len(lists[-1]) > 2:  # CANDIDATES stands after its files
            args.arms = args.observations.pop()
            args.words = candidates_first(args.words, "--observations", args.arms)
    # Shells list the files of a pattern in the order of the alphabet, and Windows
    # leaves patterns as they are. Excel locks a table by a file ~$.
    if args.observations == sorted(args.observations):
        args.observations.sort(key=_numbered)
    paths: list[Path] = []
    for path in args.observations:
        names = [] if path.exists() else sorted(glob.glob(f"{path}"), key=_numbered)
        paths += list(map(Path, names)) or [path]
    args.observations = [path for path in paths if not path.name.startswith("~$")]
    if (args.arms is None) == (not args.component):
        raise InputDataError(
            "Expected either a table CANDIDATES or lists of components (--component), "
            "and not both. The name of the table stands best right after suggest."
        )
    _check_reward(args)
    if args.component:
        args.arms = Path(" x ".join(name for name, _ in args.component))
        of_tables = {
            "kernel": args.kernel,
            "cyclic": args.cyclic,
            "available": args.available,
            "drop-incomplete": args.drop_incomplete,
            "results-id": args.results_id,
        }
        for name, value in of_tables.items():
            if value:
                raise InputDataError(
                    f"--{name} needs a table of candidates, but the "
                    "candidates are combinations (--component). Leave it out."
                )
    elif args.forbid:
        raise InputDataError(
            "--forbid needs lists of components (--component), but the candidates are "
            "a table. Remove such rows from it, or pass --available COLUMN, a column "
            "that says no there."
        )
    require_different_columns(args)
    if args.control and args.group is None:
        raise InputDataError(
            "--control needs --group COLUMN: controls tell how groups of results "
            "differ, such as plates. Pass it, or leave out --control."
        )
    _check_files(args)


def _check_reward(args: SuggestOptions) -> None:
    """Raise an error if options do not say what is optimized."""
    words = outcome_words(args)
    read_roles(args)
    if not args.objective:
        args.reward = args.reward or "reward"
        known, only = args.outcome_columns, "" if args.roles else args.reward
        columns = [name or only for name, *_ in args.bounds]
        if not {*columns} <= {*known} or len({*columns}) < len(columns):
            given = [name or "one without a column" for name in columns]
            raise InputDataError(
                f"Expected --bounds of {listing(known)}, at most one of each, but got "
                f"{listing(given)}. Write COLUMN=LOW:HIGH."
            )
        return
    others = {"reward": args.reward, "minimize": args.minimize, "bounds": args.bounds}
    for name, value in {**others, "log-reward": args.log_reward}.items():
        if value:
            raise InputDataError(
                f"--{name} does not go with --objective, which names "
                "the columns and their directions. Leave it out."
            )
    if args.noise_column is not None:
        raise InputDataError(
            "--noise-std does not go with --objective: it is the standard deviation of "
            "one outcome, not of the score. Leave it out."
        )
    names = pd.Index(args.outcome_columns)
    if names.has_duplicates:
        raise InputDataError(
            "Expected each --objective to have a column of its own, but got "
            f"{names[names.duplicated()][0]!r} twice. Leave one out. For a limit, pass "
            f"{words} instead."
        )
    Desirability(dict(args.objective))  # checks directions, ranges and weights


def _check_files(args: SuggestOptions) -> None:
    """Raise an error if a file cannot be written, or has no use."""
    for table in filter(None, (args.output, args.predictions)):
        table_kind(table)
    threshold = args.threshold
    has_use = args.predictions or args.report or threshold is None
    if not has_use or (args.top and not args.predictions):
        raise InputDataError("--top and --threshold need --predictions FILE.")
    if threshold is not None and args.log_reward and threshold <= 0:
        raise InputDataError(
            "Expected --threshold in the unit of the results, above 0 with "
            f"--log-reward, but got {threshold:g}."
        )
    lists = [Path(text) for _, text in args.component if os.path.isfile(text)]
    paths = args.arms, *args.observations, *args.earlier, *lists
    tables = [path.resolve() for path in paths]
    for name in MARKS:
        path = getattr(args, name)
        if path is None:
            continue
        if path.resolve() in tables:
            raise InputDataError(
                f"--{name} {path} is one of the tables, which it would replace. Name "
                "another file."
            )
        tables.append(path.resolve())
        if path.is_dir():
            raise InputDataError(f"--{name} {path} is a folder. Name a file.")
        own = _options_file(args) if name == "output" else path
        require_own(f"--{name}", own, MARKS[name], args.separator)
        if name != "output" and not path.parent.is_dir():
            raise InputDataError(
                f"There is no folder {path.parent} for --{name}. Make it first."
            )


def _options_file(args: SuggestOptions) -> Path:
    """Return the file of the options that repeat this run."""
    return args.output.with_suffix(".options.txt")


def _write_options(args: SuggestOptions) -> None:
    """Write the options of this run, one a line, and say how to repeat it."""
    lines = [" ".join(map(quoted, group)) for group in by_option(args.words)]
    path = _options_file(args)
    text = "\n".join(["# Options of suggest, one a line", *lines, ""])
    path.write_text(text, encoding="utf-8")
    print(f"To repeat this: python -m botorch_bkb suggest {quoted(f'@{path}')}")


def _suggest(campaign: Candidates) -> None:
    """Choose the batch from tables that were read, write it, and print a summary."""
    args, parts = campaign.args, outcome_parts(campaign)
    # An outcome whose results are all equal may still hold its limit.
    fitted = [p.name for p in parts if p.is_fitted or p.constant is not None]
    bandit: Any
    if args.roles:
        bandit = outcomes_bandit(campaign, parts)
        models = list(bandit.outcomes.values())
    else:
        options = {"seed": args.seed, **bandit_options(campaign)}
        options["bounds"] = next(iter(args.bounds_of.values()), None)
        told = pd.concat([parts[0].own, parts[0].others])
        bandit = suggestion_bandit(campaign.features.arms, told, **options)
        models = [bandit]
    num_told, size = models[0].num_pulls, args.batch_size
    status(f"Fitting {num_told:,} measurements, choosing {size:,}", args.quiet)
    picks = _choose(bandit, campaign)
    if args.roles:
        batch = predict_outcomes(args, bandit, picks, fitted)
        batch.insert(0, "repeats", 1)
        batch.insert(0, args.id, campaign.ids_of(picks.numpy()))
    else:
        batch = describe_batch(bandit, picks, campaign, bool(fitted))
    to_fill = args.columns_to_fill(campaign.columns)
    to_fill = [name for name in to_fill if name not in batch]
    empty = batch.assign(**dict.fromkeys(to_fill, np.nan))
    table, form = campaign.next_table(empty, picks)
    write_table(table, args.output, form)
    for part, model in zip(parts, models, strict=True):
        part.bandit = model
        _print_fit(part)
        part.effects = column_effects(part)
        if part.effects is not None:
            print(part.effects.sentence(f" for {part.name}" if args.roles else ""))
    stop = print_summary(bandit, batch, campaign, fitted)
    print(f"\nWrote {args.output}")
    if args.predictions is not None:
        if args.roles:
            table = best_outcomes(bandit, campaign, fitted)
        else:
            table = predictions_table(bandit, campaign, bool(fitted))
        write_table(table, args.predictions, campaign.form)
        print(f"Wrote {args.predictions}")
    if args.report is not None:
        page = report_page(bandit, campaign, batch, parts, stop)
        args.report.write_text(page, encoding="utf-8")
        print(f"Wrote {args.report}")
    _write_options(args)


def _choose(bandit: Any, campaign: Candidates) -> Tensor:
    """Ask for the batch; what failed or is not available is left out."""
    args, available = campaign.args, campaign.exclude(bandit)
    with warnings.catch_warnings():
        if len(bandit.observed_arms) >= MIN_CANDIDATES_TO_JUDGE:
            # The line about the fit says more than the bandit's own warning.
            warnings.filterwarnings("ignore", "The fit to .* observations explains")
        same = campaign.features.shared_columns(args)
        picks = bandit.ask(args.batch_size, available=available, same=same)
    if len(picks) < args.batch_size:
        is_all = args.goal != "regret" and len(picks) == campaign.num_available
        is_once = is_all or args.max_repeats is None
        but = "" if args.roles else " (but with --goal regret)"
        once = f"Each candidate comes once in a batch{but}, which"
        once = once if is_once else f"--max-repeats {args.max_repeats}"
        once = f"--same {' '.join(args.same)}" if args.same else once
        note(f"{once} leaves only {len(picks):,} of {args.batch_size:,} measurements")
    elif len(picks) > campaign.num_available:
        note(
            f"{len(picks):,} measurements of {campaign.num_available:,} candidates "
            f"are up to {int(picks.bincount().max()):,} of each. Pass --batch-size for "
            f"fewer (default: {BATCH_SIZE}), or --max-repeats"
        )
    return picks


def bandit_options(campaign: Candidates) -> dict[str, Any]:
    """Return the options of :func:`suggestion_bandit` that a command has."""
    args = campaign.args
    return {
        "goal": args.goal,
        "maximize": not args.minimize,
        "max_repeats": args.max_repeats,
        "max_inducing": args.max_inducing,
        "kernel": campaign.features.kernel,
        "confidence": args.confidence,
    }


def suggestion_bandit(
    arms: Tensor,
    told: pd.DataFrame,
    *,
    seed: int,
    kernel: KernelName | None = None,
    **options: Any,
) -> GPBandit:
    """Return the bandit that chooses the next batch, with all measurements.

    Args:
        arms: An ``A x d`` tensor of features.
        told: The measurements, as :func:`told_table` returns them.
        seed: The source of all randomness.
        kernel: The kernel to learn; None for the bandit's default.
        options: Others of :class:`~botorch_bkb.GPBandit`.
    """
    generator = torch.Generator().manual_seed(seed)
    bandit = GPBandit(arms, KERNELS.get(kernel or ""), generator=generator, **options)
    is_open = told["rewards"].isna()
    add_results(bandit, told[~is_open])
    bandit.add_pending(told["indices"][is_open].to_numpy())
    return bandit


class SuggestLoop:
    """The command called for one batch after another, with a bandit's ask and tell.

    Like the command it keeps only the table of measurements. A new bandit chooses each
    batch.

    Args:
        arms: An ``A x d`` tensor of features, or a frame with numbers and words.
        seed: That of every call.
        batch_size: The size of a batch.
        options: The other options of :func:`suggestion_bandit`.
    """

    def __init__(
        self, arms: Array, *, seed: int, batch_size: int = BATCH_SIZE, **options: Any
    ) -> None:
        self.arms = as_arms(arms, takes_words=True)
        self.batch_size = batch_size
        self._told = told_table(np.zeros(0, dtype="int64"), np.zeros(0))
        self._options = {"seed": seed, **options}
        self._bandit = self._new_bandit()

    @property
    def num_pulls(self) -> int:
        """The number of measurements so far."""
        return len(self._told)

    def ask(self, max_size: int | None = None) -> Tensor:
        """Choose the next batch, of at most ``max_size``."""
        size = self.batch_size if max_size is None else min(max_size, self.batch_size)
        self._bandit = self._new_bandit()
        return self._bandit.ask(size)

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Add rows to the table of measurements."""
        told = told_table(indices.numpy(force=True), rewards.numpy(force=True))
        self._told = pd.concat([self._told, told])

    def best_arm(self) -> int:
        """Return the arm that the command names as the best measured so far."""
        bandit = self._bandit
        if bandit.num_pulls < self.num_pulls:
            bandit = self._new_bandit()
        return bandit.best_arm()

    def _new_bandit(self) -> GPBandit:
        return suggestion_bandit(self.arms, self._told, **self._options)


def print_summary(
    bandit: Any, batch: pd.DataFrame, campaign: Candidates, fitted: Sequence[str]
) -> list[str]:
    """Print the state of the campaign, the best measured candidates and the batch.

    Returns the sentences about when to stop, none before the model is fitted. Of
    several outcomes these are the lines about the best candidates.
    """
    args, stop = campaign.args, list[str]()
    reward = args.reward_label
    num_next = int(batch["repeats"].sum())
    num_open = len(bandit.pending) - num_next
    num_told = len(campaign.results) - num_open
    if args.roles:  # rows that complete each other are one measurement
        num_told = int(bandit._used().counts.sum()) - len(bandit.pending)
    told = f"{num_told:,} measurements in all, {num_open:,} "
    told += "with open outcomes or in flight" if args.roles else "in flight"
    measured = bandit.observed_arms
    measured = measured if num_told else measured[:0]  # none has all outcomes
    print(f"{campaign.counts(measured)}, {told}.")
    if args.roles:
        stop = recommended(bandit, campaign, fitted, len(measured) > 0)
        print(*stop, sep="\n")
    elif fitted and len(bandit.observed_arms):
        best = best_measured(bandit, campaign)
        numbers = (best[name] for name in ("mean", "low", "high"))
        mean, low, high = (in_digits_of(each, best["std"]) for each in numbers)
        print(
            f"Best measured so far: {best['id']}, mean {reward} {mean} "
            f"(95 %: {low} to {high})."
        )
        stop = when_to_stop(bandit, batch, campaign)
        print("When to stop:", *stop)
    first = campaign.columns_of(batch.index[:1].to_numpy())
    own = first.columns.intersection(args.same)
    same = "".join(f", all of {name} {first[name].iloc[0]}" for name in own)
    print(f"\n{num_next:,} to measure next, {len(batch):,} distinct{same}:\n")
    shown = batch.head(NUM_ROWS_SHOWN).dropna(axis="columns", how="all")
    if args.roles:
        shown = shown.filter(regex="(?<!_low)(?<!_high)$")
    for of in [f"{name}_" for name in args.roles] or [""]:
        for name in (f"{of}{kind}" for kind in ("mean", "low", "high", "std")):
            if name in shown:
                digits = list(map(in_digits_of, batch[name], batch[f"{of}std"]))
                shown[name] = digits[: len(shown)]
    print(shown.to_string(index=False, float_format="{:.3g}".format))
    if len(batch) > NUM_ROWS_SHOWN:
        print(f"... and {len(batch) - NUM_ROWS_SHOWN:,} more")
    if fitted and not args.roles:
        print(f"\nlow to high: 95 % interval of the mean {reward} by the model.")
    return stop


def _print_fit(part: Part) -> None:
    """Print a description of the fit; keep held-out predictions and warnings."""
    args, campaign, bandit = part.args, part.campaign, part.bandit
    of, before = (f" of {part.name}", f"{part.name}: ") if args.roles else ("", "")
    own = part.own.dropna(subset="rewards")
    rewards, noise = (torch.tensor(own[name].array) for name in ("rewards", "noise"))
    names = campaign.ids_of(own["indices"])
    tables = [campaign.results, *(rows.results for rows in campaign.others)]
    table = pd.concat(tables)
    files = table.groupby(level=0, sort=False)
    troubles: list[str | None] = [
        unit_trouble(name, dict(iter(files[name])))
        for name in filter(None, (*args.outcome_columns, args.noise_column))
        if name in table  # earlier results may have no standard deviations
    ]
    is_other = args.objective or args.roles or any(troubles)
    log_reward = None if is_other else args.log_reward
    if log_reward is False:
        troubles.append(decades_trouble(rewards, args.minimize))
    troubles.append(bounds_trouble(rewards, args))
    told = campaign.results[[name for name, _ in args.objective]].apply(to_numbers)
    told = told[part.own["rewards"].notna().array]
    troubles += objective_troubles(told, args)
    outcomes = torch.tensor(told.to_numpy().T)
    marks = reward_trouble(bandit, rewards, noise, names, log_reward, [*outcomes])
    troubles.append(marks)
    if is_fitted(rewards):
        status("Checking the fit", args.quiet)
        text, part.held_out = diagnose(bandit, own, part.others)
        print(f"Fit{of}: {text}.")
    if bandit.num_pulls and (args.group is not None or args.earlier):
        part.groups = describe_groups(bandit, args)
        for line in part.groups:
            print(f"{before}{line}")
    if part.held_out is not None:
        troubles.append(fit_trouble(part.held_out))
        effect = None
        if args.round not in (None, args.group):
            instead = f" in place of --group {quoted(args.group)}" if args.group else ""
            advice = f"Pass --group {quoted(args.round)}{instead}"
            names = part.rounds["name"].tolist()
            effect = round_effect(part.held_out, names, advice)
        if effect is not None:
            print(f"Rounds of column {args.round!r}{of}: {effect[0]}.")
            troubles.append(effect[1])
    part.problems = list(filter(None, troubles))
    # The report says this in its own words.
    sure = part.held_out and intervals_trouble(part.held_out)
    for problem in [*part.problems, *filter(None, [sure])]:
        print(f"Warning: {before}{problem}.")
