"""Bandits over a table whose rows are arms with known mean rewards."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    RTVWidth,
    TVWidth,
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
    matern_block_size,
    rbf_block_size,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.cli.arguments import (
    BANDIT_NAMES,
    BATCH_SIZE,
    FORGETTING_RATE,
    NOISE_VARIANCE,
)
from botorch_bkb.cli.campaign import Campaign, read_by_options, stays_in_file
from botorch_bkb.cli.candidates import (
    fingerprint_columns,
    KernelName,
    library_arms,
    read_candidates,
    read_features,
)
from botorch_bkb.cli.columns import reward_column
from botorch_bkb.cli.features import drop_incomplete
from botorch_bkb.cli.progress import clock, note
from botorch_bkb.cli.simulation import Player, recommendation, report, run_bandit
from botorch_bkb.cli.suggest import goal_named, SuggestLoop
from botorch_bkb.cli.tables import require_column, require_ids
from botorch_bkb.cli.workers import on_workers, require_ray
from botorch_bkb.models.utils.rows import row_blocks, sum_replicates
from botorch_bkb.optim.batch_rules import FixedSize
from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.finite_arm import standardized


# All but `suggest`, which is a loop around one of them.
BANDITS: dict[str, type[FiniteArmBandit]] = {
    "bbkb": BBKB,
    "bkb": BKB,
    "gpucb": GPUCB,
    "gpbucb": GPBUCB,
    "thompson": GPThompsonSampling,
    "epsilon-greedy": EpsilonGreedy,
    "uniform": UniformRandom,
    "tvgpucb": TVGPUCB,
    "rgpucb": RGPUCB,
}
# Without the theorems' constants, and of a norm bound of 1. Those that drift know no
# norm.
WIDTHS: dict[str, Callable[..., ConfidenceSchedule]] = {
    "bbkb": PracticalBBKBWidth,
    "bkb": PracticalBKBWidth,
    "gpucb": ChowdhuryGopalanWidth,
    "gpbucb": ChowdhuryGopalanWidth,
    "tvgpucb": TVWidth,
    "rgpucb": RTVWidth,
}
MATERN_NU = 2.5
# A column that no table has: those without a name are left out of it, or refused.
ROW_NAMES = ""
# The filter over all arms of more would be of gigabytes.
MAX_FILTERED_ARMS = 5_000
# The bandits to which an option means something, where these are not all.
USES: dict[str, Collection[str]] = {
    **dict.fromkeys(("lengthscale", "noise_variance", "confidence"), BANDITS),
    **dict.fromkeys(("smiles", "goal", "kernel tanimoto"), ("suggest",)),
    "max_inducing": ("suggest", "bbkb", "bkb", "thompson", "epsilon-greedy"),
    "forgetting_rate": ("tvgpucb", "rgpucb"),
    "workers": [n for n in BANDIT_NAMES if n not in ("uniform", "tvgpucb")],
}


@dataclass(eq=False)
class Rehearsal:
    """A table whose mean rewards are known, as the bandits see it.

    Attributes:
        problem: What they play.
        arms: Its arms as `suggest` would see them: perhaps as fingerprints.
        kernel: By what `suggest` would compare them; None for the bandit's own choice.
        arm_names: What to call them.
    """

    problem: FiniteArmProblem
    arms: Tensor
    kernel: KernelName | None
    arm_names: Sequence[str]


def run(args: argparse.Namespace) -> None:
    """Run the bandits over the table and write their outcome."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    check_options(args)
    require_ray(args.workers)
    with clock("Reading the table", args.quiet):
        rehearsal = load_rehearsal(args)
    problem, names = rehearsal.problem, list(dict.fromkeys(args.bandit))
    check_horizon(args, problem)
    recommended, rounds = "", []
    with on_workers(rehearsal.arms, args.workers) as arms:
        if arms is not rehearsal.arms:
            rehearsal.arms = problem.arms = arms
        for name, index in itertools.product(names, range(args.repetitions)):
            generator = torch.Generator().manual_seed(args.seed + index)
            with clock(f"Preparing {problem.num_arms:,} arms", args.quiet):
                bandit = build_bandit(name, args, rehearsal, generator)
            rounds.append(
                run_bandit(
                    bandit,
                    problem,
                    args.horizon,
                    name=name,
                    seed=args.seed + index,
                    generator=generator,
                    quiet=args.quiet,
                )
            )
            recommended = recommendation(bandit, problem, rehearsal.arm_names)
    report(
        pd.concat(rounds),
        problem,
        args.output,
        title=f"{', '.join(names)} on {args.table.name}, {problem.num_arms:,} arms, "
        f"{args.horizon:,} pulls, noise {args.noise_std:g}",
        reward_unit=f"standard deviations of {args.reward}",
        recommended=recommended if len(rounds) == 1 else "",
    )


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing to a bandit.

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
                    f"--{option.replace('_', '-')} means nothing to --bandit {name}, "
                    f"only to {', '.join(USES[option])}. Leave it out."
                )


def check_horizon(args: argparse.Namespace, problem: FiniteArmProblem) -> None:
    """Refuse more pulls than arms allow.

    Raises:
        InputDataError: If they do not suffice.
    """
    most = (args.max_repeats or math.inf) * problem.num_arms
    if args.horizon > most:
        raise InputDataError(
            f"--max-repeats {args.max_repeats} allows {most:,} pulls of the "
            f"{problem.num_arms:,} arms, but --horizon is {args.horizon:,}. Lower "
            "it, or allow more repeats."
        )


def load_rehearsal(args: argparse.Namespace) -> Rehearsal:
    """Read the table, as the options of `simulate` say.

    Raises:
        InputDataError: If a column is missing, is no feature or holds no reward, an id
            is missing or twice, or a SMILES cannot be read.
    """
    is_large = stays_in_file(args.table, args)
    columns = [args.reward, args.id] if is_large else None
    table = read_by_options(args.table, args, columns).frame
    require_column(table, args.reward, args.table, "--reward")
    arm_names = [f"row {row + 1:,}" for row in table.index]
    if args.id is not None:
        require_column(table, args.id, args.table, "--id")
        require_ids(table[args.id], args.table)
        arm_names = table[args.id].tolist()
    rewards = reward_column(table[args.reward], may_be_empty=False)
    if is_large:
        arms = _library_arms(args)
        return Rehearsal(_problem(arms, rewards, args), arms, args.kernel, arm_names)
    for name in args.smiles:
        require_column(table, name, args.table, "--smiles")
    if args.drop_incomplete:
        drop_incomplete(table, args)
    # As `suggest` would read it.
    campaign = Campaign(
        arms=table.drop(columns=args.id or []).assign(**{ROW_NAMES: arm_names}),
        num_candidates=len(table),
        available=torch.ones(len(table), dtype=torch.bool),
        results=pd.DataFrame(),
        indices=torch.arange(len(table)),
        rewards=torch.from_numpy(rewards.to_numpy(dtype="float64", copy=True)),
    )
    options = argparse.Namespace(
        **{**vars(args), "arms": args.table, "id": ROW_NAMES, "available": None}
    )
    if args.smiles:
        candidates = read_candidates(campaign, options)
        campaign, arms = candidates.campaign, candidates.arms
        # A molecule that is in several rows has the mean of their rewards.
        sums = sum_replicates(campaign.rewards, campaign.indices, len(campaign.arms))
        rewards = pd.Series(sums / campaign.indices.bincount(), name=args.reward)
        problem = _problem(arms, rewards, args)
        arm_names = campaign.arms[ROW_NAMES].tolist()
        return Rehearsal(problem, arms, candidates.kernel, arm_names)
    features = read_features(campaign.arms, options).values
    columns = [standardized(features[name]) for name in features]
    problem = _problem(torch.stack(columns, dim=-1), rewards, args)
    # That its features are standardized changes nothing: the fit scales them.
    arms, kernel = problem.arms, args.kernel
    if "suggest" in args.bandit and fingerprint_columns(campaign.arms, options):
        candidates = read_candidates(campaign, options)
        arms, kernel = candidates.arms, candidates.kernel
    return Rehearsal(problem, arms, kernel, arm_names)


def _problem(
    arms: Tensor, rewards: pd.Series, args: argparse.Namespace
) -> FiniteArmProblem:
    values = standardized(rewards)
    note(
        "rewards, regret and --noise-std are in standard deviations of "
        f"{args.reward!r}, which is {rewards.std(ddof=0):.4g}"
    )
    return FiniteArmProblem(arms, values, args.noise_std, not args.minimize)


def moments_of_rows(arms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and standard deviations of columns, in two passes."""
    sums = [rows.sum(dim=0) for _, rows in row_blocks(arms)]
    mean = torch.stack(sums).sum(dim=0) / len(arms)
    squares = [(rows - mean).square().sum(dim=0) for _, rows in row_blocks(arms)]
    return mean, (torch.stack(squares).sum(dim=0) / len(arms)).sqrt()


def _library_arms(args: argparse.Namespace) -> Tensor:
    """Return the standardized features of a table that stay in its file.

    Raises:
        InputDataError: If an option wants more than numbers as they are, or a column
            is constant or holds something else.
    """
    arms = library_arms(args.table, args)
    mean, deviation = moments_of_rows(arms)
    is_constant = deviation <= 1e-12 * mean.abs()
    if is_constant.any():
        column = arms.source.columns[int(is_constant.nonzero()[0])]
        raise InputDataError(
            f"Expected column {column!r} of {args.table} to vary, but it is constant. "
            f"Pass --drop {column}."
        )
    return arms.scaled(mean, deviation)


def build_bandit(
    name: str,
    args: argparse.Namespace,
    rehearsal: Rehearsal,
    generator: torch.Generator,
) -> Player:
    """Return the bandit of a name, as the options describe it."""
    problem = rehearsal.problem
    options: dict[str, Any] = {
        "maximize": problem.maximize,
        "max_repeats": args.max_repeats,
    }
    if args.max_inducing is not None:
        options["max_inducing"] = args.max_inducing
    if name == "suggest":
        if args.goal is not None:
            options["goal"] = goal_named(args.goal)
        return SuggestLoop(
            rehearsal.arms,
            kernel=rehearsal.kernel,
            seed=int(torch.randint(2**31, (1,), generator=generator)),
            batch_size=args.batch_size or BATCH_SIZE,
            **options,
        )
    num_features = problem.arms.shape[-1]
    kernel = MaternKernel(nu=MATERN_NU) if args.kernel == "matern" else RBFKernel()
    kernel.lengthscale = args.lengthscale or math.sqrt(num_features)
    if args.batch_size is not None:
        options["batch_rule"] = FixedSize(args.batch_size)
    rate = FORGETTING_RATE if args.forgetting_rate is None else args.forgetting_rate
    if name == "tvgpucb":
        options["forgetting_rate"] = rate
        options["sparse"] = problem.num_arms > MAX_FILTERED_ARMS
    if name == "rgpucb":
        options["block_size"] = rbf_block_size(rate, args.horizon)
        if args.kernel == "matern":
            options["block_size"] = matern_block_size(
                rate, args.horizon, MATERN_NU, num_features
            )
    confidence = args.confidence
    if confidence is None and name in WIDTHS:
        # A horizon of one pull still needs a probability under 1.
        confidence = WIDTHS[name](failure_probability=min(0.5, 1 / args.horizon))
    options["covar_module"] = kernel
    options["noise_variance"] = args.noise_variance or NOISE_VARIANCE
    return BANDITS[name](
        problem.arms, confidence=confidence, generator=generator, **options
    )
