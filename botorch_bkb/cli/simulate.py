"""A bandit over a table whose rows are arms with known mean rewards."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from typing import Any

import pandas as pd
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel

from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    BKBWidth,
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
    ConstantWidth,
    LogWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.bandits import (
    BBKB,
    BKB,
    EpsilonGreedy,
    FiniteArmBandit,
    GPBUCB,
    GPUCB,
    UniformRandom,
)
from botorch_bkb.cli.simulation import report, run_bandit
from botorch_bkb.cli.tables import (
    feature_table,
    read_table,
    require_column,
    reward_column,
)
from botorch_bkb.optim.batch_rules import FixedSize, ProductRule, SumRule
from botorch_bkb.test_functions import FiniteArmProblem


BANDITS = {
    "bbkb": BBKB,
    "bkb": BKB,
    "gpucb": GPUCB,
    "gpbucb": GPBUCB,
    "epsilon-greedy": EpsilonGreedy,
    "uniform": UniformRandom,
}
FREE_WIDTHS = {"constant": ConstantWidth, "log": LogWidth}
PRACTICAL_WIDTHS = {
    "bbkb": PracticalBBKBWidth,
    "bkb": PracticalBKBWidth,
    "gpucb": ChowdhuryGopalanWidth,
    "gpbucb": ChowdhuryGopalanWidth,
}
THEOREM_WIDTHS = {
    "bbkb": BBKBWidth,
    "bkb": BKBWidth,
    "gpucb": ChowdhuryGopalanWidth,
    "gpbucb": ChowdhuryGopalanWidth,
}
RATIO_RULES = {"bbkb": SumRule, "gpbucb": ProductRule}
SPARSE_BANDITS = ("bbkb", "bkb", "epsilon-greedy")


def run(args: argparse.Namespace) -> None:
    """Run the bandit over the table and write its outcome."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    problem, notes, rows = load_problem(args)
    generator = torch.Generator().manual_seed(args.seed)
    bandit = build_bandit(args, problem, generator)
    for note in notes:
        print(f"Note: {note}.")
    rounds = run_bandit(
        bandit, problem, args.horizon, generator=generator, quiet=args.quiet
    )
    report(
        bandit,
        problem,
        rounds,
        args.output,
        title=f"{type(bandit).__name__} on {args.table.name}, "
        f"{problem.num_arms:,} arms, {args.horizon:,} pulls, "
        f"noise {args.noise_std:g}",
        reward_unit=f"standard deviations of {args.reward}",
        arm_name=lambda arm: f"row {rows[arm] + 1:,}",
    )


def load_problem(
    args: argparse.Namespace,
) -> tuple[FiniteArmProblem, tuple[str, ...], pd.Index]:
    """Return the table's problem, notes on its columns, and its rows in the file."""
    table = read_table(args.table)
    require_column(table, args.reward, args.table, "--reward")
    features = feature_table(
        table, exclude=[args.reward], drop=args.drop, codes=dict(args.code)
    )
    rewards = reward_column(table[args.reward])
    problem = FiniteArmProblem.from_table(
        features.values.assign(**{args.reward: rewards}),
        args.reward,
        noise_std=args.noise_std,
        maximize=not args.minimize,
        standardize_reward=True,
    )
    unit = rewards.std(ddof=0)
    standardized = (
        "features and reward are standardized; rewards, regret and --noise-std are in\n"
        f"standard deviations of {args.reward!r}, which is {unit:.4g}"
    )
    return problem, (*features.notes, standardized), table.index


def build_bandit(
    args: argparse.Namespace, problem: FiniteArmProblem, generator: torch.Generator
) -> FiniteArmBandit:
    """Return the bandit that the options describe.

    Raises:
        UnsupportedError: If an option means nothing to the chosen bandit.
    """
    options: dict[str, Any] = {"confidence": _confidence(args)}
    if args.batch_size is not None:
        options["batch_rule"] = FixedSize(args.batch_size)
    if args.ratio_threshold is not None:
        _require_use(args, "--ratio-threshold", RATIO_RULES)
        options["batch_rule"] = RATIO_RULES[args.bandit](args.ratio_threshold)
    for name in ("oversampling", "resampling"):
        value = getattr(args, name)
        if value is not None:
            _require_use(args, f"--{name}", SPARSE_BANDITS)
            options[name] = value
    return BANDITS[args.bandit](
        problem.arms,
        covar_module=_kernel(args, num_features=problem.arms.shape[-1]),
        noise_variance=args.noise_variance,
        maximize=problem.maximize,
        generator=generator,
        **options,
    )


def _kernel(args: argparse.Namespace, num_features: int) -> Kernel:
    kernel = RBFKernel() if args.kernel == "rbf" else MaternKernel(nu=2.5)
    kernel.lengthscale = args.lengthscale or math.sqrt(num_features)
    return kernel


def _confidence(args: argparse.Namespace) -> ConfidenceSchedule | None:
    rule, parameters = args.confidence
    if rule in FREE_WIDTHS:
        return FREE_WIDTHS[rule](*parameters)
    widths = PRACTICAL_WIDTHS if rule == "practical" else THEOREM_WIDTHS
    if args.bandit not in widths:
        return None
    return widths[args.bandit](
        norm_bound=args.norm_bound,
        # A horizon of one pull still needs a probability under 1.
        failure_probability=args.failure_probability or min(0.5, 1 / args.horizon),
    )


def _require_use(
    args: argparse.Namespace, option: str, bandits: Collection[str]
) -> None:
    if args.bandit not in bandits:
        raise UnsupportedError(
            f"{option} means nothing to --bandit {args.bandit}, only to "
            f"{', '.join(bandits)}. Leave it out."
        )
