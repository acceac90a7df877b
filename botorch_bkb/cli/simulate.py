"""Bandits over a table of candidates whose mean results are known."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.acquisition.schedules import ConfidenceSchedule
from botorch_bkb.bandits import (
    BBKB,
    BKB,
    EpsilonGreedy,
    FiniteArmBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    UniformRandom,
)
from botorch_bkb.cli.arguments import BATCH_SIZE, NOISE_VARIANCE
from botorch_bkb.cli.campaign import (
    Campaign,
    distinct_rows,
    read_molecules_of,
    stays_in_file,
)
from botorch_bkb.cli.candidates import KernelName, read_candidates
from botorch_bkb.cli.features import drop_incomplete, feature_columns
from botorch_bkb.cli.progress import note, status
from botorch_bkb.cli.simulation import Player, recommendation, report, run_bandit
from botorch_bkb.cli.suggest import goal_named, SuggestLoop
from botorch_bkb.cli.tables import (
    read_by_options,
    require_column,
    require_ids,
    reward_column,
)
from botorch_bkb.models.utils.rows import as_dense
from botorch_bkb.optim.batch_rules import FixedSize
from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.finite_arm import standardized


# The algorithms of the papers; `suggest` is a loop around a GPBandit.
BANDITS: dict[str, type[FiniteArmBandit]] = {
    "bbkb": BBKB,
    "bkb": BKB,
    "gpucb": GPUCB,
    "gpbucb": GPBUCB,
    "thompson": GPThompsonSampling,
    "epsilon-greedy": EpsilonGreedy,
    "uniform": UniformRandom,
}
# Without the theorems' constants, and for a norm bound of 1.
WIDTHS: dict[str, Callable[..., ConfidenceSchedule]] = {
    "bbkb": PracticalBBKBWidth,
    "bkb": PracticalBKBWidth,
    "gpucb": ChowdhuryGopalanWidth,
    "gpbucb": ChowdhuryGopalanWidth,
}
# No table has a column of this name: columns without one are left out or refused.
ROW_NAMES = ""
# The bandits to which an option applies, if not to all.
USES: dict[str, Collection[str]] = {
    **dict.fromkeys(("lengthscale", "noise_variance", "confidence"), BANDITS),
    **dict.fromkeys(("smiles", "goal", "kernel tanimoto"), ("suggest",)),
    "max_inducing": ("suggest", "bbkb", "bkb", "thompson", "epsilon-greedy"),
}


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A table whose mean results are known.

    Attributes:
        problem: Its arms as `suggest` sees them, and their mean rewards.
        features: Standardized features of the arms, for the bandits of the papers.
        kernel: The kernel of `suggest`; None for the bandit's default.
        arm_names: The names of the arms.
    """

    problem: FiniteArmProblem
    features: Tensor | None
    kernel: KernelName | None
    arm_names: Sequence[str]


def run(args: argparse.Namespace) -> None:
    """Run the bandits over the table and write their outcome."""
    check_options(args)
    status("Reading the table", args.quiet)
    rehearsal = load_rehearsal(args)
    problem, names = rehearsal.problem, list(dict.fromkeys(args.bandit))
    most = (args.max_repeats or math.inf) * problem.num_arms
    if args.horizon > most:
        raise InputDataError(
            f"--max-repeats {args.max_repeats} allows {most:,} measurements of the "
            f"{problem.num_arms:,} candidates, but --horizon is {args.horizon:,}. "
            "Lower it, or allow more repeats."
        )
    recommended, rounds = "", []
    for name, index in itertools.product(names, range(args.repetitions)):
        generator = torch.Generator().manual_seed(args.seed + index)
        bandit = build_bandit(name, args, rehearsal, generator)
        options = {"name": name, "seed": args.seed + index, "generator": generator}
        rounds.append(
            run_bandit(bandit, problem, args.horizon, quiet=args.quiet, **options)
        )
        recommended = recommendation(bandit, problem, rehearsal.arm_names)
    report(
        pd.concat(rounds),
        problem,
        args.output,
        title=f"{', '.join(names)} on {args.table.name}, {problem.num_arms:,} "
        f"candidates, {args.horizon:,} measurements, noise {args.noise_std:g}",
        reward_unit=f"standard deviations of {args.reward}",
        recommended=recommended if len(rounds) == 1 else "",
    )


def check_options(args: argparse.Namespace) -> None:
    """Raise an error for options that do not apply to a bandit.

    Raises:
        UnsupportedError: If there is one.
    """
    given = [name for name in USES if getattr(args, name, None) not in (None, [])]
    if args.kernel == "tanimoto":
        given.append("kernel tanimoto")
    for option in given:
        for name in args.bandit:
            if name not in USES[option]:
                raise UnsupportedError(
                    f"--{option.replace('_', '-')} does not apply to --bandit {name}, "
                    f"only to {', '.join(USES[option])}. Leave one of them out."
                )


def load_rehearsal(args: argparse.Namespace) -> Rehearsal:
    """Read the table by the options of `simulate`.

    Raises:
        InputDataError: If a column is missing, cannot be a feature or has no result, an
            id is missing or twice, or a SMILES cannot be read.
        UnsupportedError: If a bandit needs more than memory holds.
    """
    is_large = stays_in_file(args.table, args)
    columns = [args.reward, args.id] if is_large else None
    table = read_by_options(args.table, args, columns).frame
    require_column(table, args.reward, args.table, "--reward")
    for name in args.smiles:
        require_column(table, name, args.table, "--smiles")
    if args.id is None:
        names = [f"row {row + 1:,}" for row in table.index]
        table[ROW_NAMES] = pd.Series(names, table.index, dtype="str")
    else:
        require_column(table, args.id, args.table, "--id")
        require_ids(table[args.id], args.table)
    if table.empty:
        raise InputDataError(f"Expected at least one candidate in {args.table}.")
    rewards = reward_column(table[args.reward], may_be_empty=False).to_numpy()
    # The options by which `suggest` would read the table.
    ids = ROW_NAMES if args.id is None else args.id
    changes = {"arms": args.table, "id": ids, "available": None}
    options = argparse.Namespace(**{**vars(args), **changes})
    if args.drop_incomplete and not is_large:
        drop_incomplete(table, options)
    rows, _, found = read_molecules_of(table, table[[ids]], options)
    is_there = np.ones(len(rows), dtype="bool")
    settings = feature_columns(rows, options)
    group, first = distinct_rows(rows, settings, found, is_there, options)
    none = np.zeros(0, dtype="int64")
    campaign = Campaign(
        table=table.iloc[first],
        rows=rows.iloc[first],
        available=is_there[first],
        results=table[:0],
        indices=none,
        rewards=none.astype("float64"),
        fingerprints=found,
    )
    candidates = read_candidates(campaign, options)
    # A candidate in several rows has their mean result.
    kept = group >= 0
    means = np.bincount(group[kept], rewards[kept]) / np.bincount(group[kept])
    values = standardized(pd.Series(means, name=args.reward))
    note(
        "results, regret and --noise-std are in standard deviations of "
        f"{args.reward!r}, which is {means.std():.4g}"
    )
    problem = FiniteArmProblem(
        candidates.arms, values, args.noise_std, not args.minimize
    )
    features = None
    others = [name for name in args.bandit if name != "suggest"]
    if others and is_large:
        raise UnsupportedError(
            f"--bandit {others[0]} needs the table in memory, but {args.table} is too "
            "large for that. Use --bandit suggest, or a part of the table."
        )
    if others:
        dense = as_dense(candidates.arms)
        std = dense.std(dim=0, correction=0)
        # Packed bits are filled up with columns of zeros.
        features = ((dense - dense.mean(dim=0)) / std)[:, std > 0]
    names = campaign.rows[ids].tolist()
    return Rehearsal(problem, features, candidates.kernel, names)


def build_bandit(
    name: str,
    args: argparse.Namespace,
    rehearsal: Rehearsal,
    generator: torch.Generator,
) -> Player:
    """Return the bandit of a name, by the options."""
    problem = rehearsal.problem
    options: dict[str, Any] = {
        "maximize": problem.maximize,
        "max_repeats": args.max_repeats,
    }
    if args.max_inducing is not None:
        options["max_inducing"] = args.max_inducing
    if rehearsal.features is None or name == "suggest":
        if args.goal is not None:
            options["goal"] = goal_named(args.goal)
        return SuggestLoop(
            problem.arms,
            kernel=rehearsal.kernel,
            seed=int(torch.randint(2**31, (1,), generator=generator)),
            batch_size=args.batch_size or BATCH_SIZE,
            **options,
        )
    arms = rehearsal.features
    kernel = MaternKernel(nu=2.5) if args.kernel == "matern" else RBFKernel()
    kernel.lengthscale = args.lengthscale or math.sqrt(arms.shape[-1])
    options["covar_module"] = kernel
    options["noise_variance"] = args.noise_variance or NOISE_VARIANCE
    if args.batch_size is not None:
        options["batch_rule"] = FixedSize(args.batch_size)
    confidence = args.confidence
    if confidence is None and name in WIDTHS:
        # A horizon of one measurement still needs a probability under 1.
        confidence = WIDTHS[name](failure_probability=min(0.5, 1 / args.horizon))
    return BANDITS[name](arms, confidence=confidence, generator=generator, **options)
