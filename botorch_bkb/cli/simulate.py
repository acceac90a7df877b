"""Bandits over a table whose rows are arms with known mean rewards."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

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
from botorch_bkb.acquisition.time_varying import RTVWidth, TVWidth
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
    Candidates,
    fingerprint_columns,
    KernelName,
    library_arms,
    read_candidates,
    read_features,
)
from botorch_bkb.cli.columns import reward_column
from botorch_bkb.cli.features import drop_incomplete
from botorch_bkb.cli.progress import clock, note
from botorch_bkb.cli.simulation import Player, report, report_comparison, run_bandit
from botorch_bkb.cli.suggest import goal_named, SuggestLoop
from botorch_bkb.cli.tables import require_column, require_ids
from botorch_bkb.cli.workers import on_workers, require_ray
from botorch_bkb.models.utils.lazy_rows import row_blocks
from botorch_bkb.models.utils.replicates import sum_replicates
from botorch_bkb.optim.batch_rules import FixedSize, ProductRule, SumRule
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
FREE_WIDTHS = {"constant": ConstantWidth, "log": LogWidth}
_EXACT_WIDTHS = {"gpucb": ChowdhuryGopalanWidth, "gpbucb": ChowdhuryGopalanWidth}
WIDTHS: dict[str, dict[str, Callable[..., ConfidenceSchedule]]] = {
    "practical": {
        "bbkb": PracticalBBKBWidth,
        "bkb": PracticalBKBWidth,
        **_EXACT_WIDTHS,
    },
    "theorem": {"bbkb": BBKBWidth, "bkb": BKBWidth, **_EXACT_WIDTHS},
}
# Those that drift know no norm, and have one width on a finite set of arms.
DRIFT_WIDTHS = {"tvgpucb": TVWidth, "rgpucb": RTVWidth}
RATIO_RULES = {"bbkb": SumRule, "gpbucb": ProductRule}
SPARSE_BANDITS = ("bbkb", "bkb", "thompson", "epsilon-greedy")
MODEL_OPTIONS = ("--kernel", "--lengthscale", "--noise-variance")
BOUND_OPTIONS = ("--norm-bound", "--failure-probability")
MATERN_NU = 2.5
# A column that no table has: those without a name are left out of it, or refused.
ROW_NAMES = ""
# The filter over all arms of more would be of gigabytes.
MAX_FILTERED_ARMS = 5_000
# The bandits to which an option means something, where these are not all.
USES: dict[str, Collection[str]] = {
    **dict.fromkeys((*MODEL_OPTIONS, "--confidence", *BOUND_OPTIONS), BANDITS),
    "--kernel": BANDIT_NAMES,
    "--norm-bound": [name for name in BANDITS if name not in DRIFT_WIDTHS],
    "--forgetting-rate": DRIFT_WIDTHS,
    "--block-size": ["rgpucb"],
    "--workers": [n for n in BANDIT_NAMES if n not in ("uniform", "tvgpucb")],
    "--ratio-threshold": RATIO_RULES,
    **dict.fromkeys(
        ("--oversampling", "--resampling", "--max-inducing"), SPARSE_BANDITS
    ),
}


@dataclass(frozen=True, eq=False)
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
    arm_names: list[str]

    def over(self, arms: Tensor) -> Self:
        """Return it with the same arms, computed with elsewhere."""
        problem = copy(self.problem)
        problem.arms = arms
        return replace(self, problem=problem, arms=arms)


def run(args: argparse.Namespace) -> None:
    """Run the bandits over the table and write their outcome."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    check_options(args)
    require_ray(args.workers)
    with clock("Reading the table", args.quiet):
        rehearsal = load_rehearsal(args)
    check_horizon(args, rehearsal.problem)
    # Where suggest sees others than the other bandits, these are fingerprints.
    seen = rehearsal.arms if "suggest" in args.bandit else rehearsal.problem.arms
    with on_workers(seen, args.workers) as arms:
        _simulate(args, rehearsal if arms is seen else rehearsal.over(arms))


def _simulate(args: argparse.Namespace, rehearsal: Rehearsal) -> None:
    """Run the bandits over a table that was read."""
    problem = rehearsal.problem
    names = list(dict.fromkeys(args.bandit))
    seeds = range(args.seed, args.seed + args.repetitions)
    where = (
        f"on {args.table.name}, {problem.num_arms:,} arms, {args.horizon:,} pulls, "
        f"noise {args.noise_std:g}"
    )
    reward_unit = f"standard deviations of {args.reward}"
    if len(names) == len(seeds) == 1:
        bandit, rounds = play(names[0], args.seed, args, rehearsal)
        name = BANDITS[names[0]].__name__ if names[0] in BANDITS else names[0]
        report(
            bandit,
            problem,
            rounds,
            args.output,
            name=name,
            title=f"{name} {where}",
            reward_unit=reward_unit,
            arm_name=rehearsal.arm_names.__getitem__,
            seeks_best=isinstance(bandit, SuggestLoop) and bandit.goal == "best_arm",
        )
        return
    report_comparison(
        {
            name: [play(name, seed, args, rehearsal)[1] for seed in seeds]
            for name in names
        },
        problem,
        args.output,
        title=f"{', '.join(names)} {where}, repetitions {len(seeds):,}",
        reward_unit=reward_unit,
    )


def play(
    name: str, seed: int, args: argparse.Namespace, rehearsal: Rehearsal
) -> tuple[Player, pd.DataFrame]:
    """Run one bandit at one seed; return it, and its rounds with its name and seed."""
    generator = torch.Generator().manual_seed(seed)
    with clock(f"Preparing {rehearsal.problem.num_arms:,} arms", args.quiet):
        bandit = build_bandit(name, args, rehearsal, generator)
    rounds = run_bandit(
        bandit,
        rehearsal.problem,
        args.horizon,
        generator=generator,
        quiet=args.quiet,
        label=f"{name}, seed {seed}",
    )
    rounds.insert(0, "bandit", name)
    rounds.insert(1, "seed", seed)
    return bandit, rounds


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing to a bandit, or beside another option.

    Raises:
        UnsupportedError: If there is one.
    """
    for option, bandits in USES.items():
        for name in args.bandit:
            if _is_given(args, option) and name not in bandits:
                raise UnsupportedError(
                    f"{option} means nothing to --bandit {name}, only to "
                    f"{', '.join(bandits)}. Leave it out."
                )
    others = [name for name in args.bandit if name in BANDITS]
    for option in ("smiles", "goal"):
        if others and getattr(args, option):
            raise UnsupportedError(
                f"--{option} means nothing to --bandit {others[0]}, an algorithm as it "
                "was published, only to suggest. Leave it out."
            )
    if others and args.kernel == "tanimoto":
        raise UnsupportedError(
            f"--kernel tanimoto means nothing to --bandit {others[0]}, only to "
            "suggest. Leave it out."
        )


def _is_given(args: argparse.Namespace, option: str) -> bool:
    return getattr(args, option.removeprefix("--").replace("-", "_")) is not None


def check_horizon(args: argparse.Namespace, problem: FiniteArmProblem) -> None:
    """Refuse more pulls than arms allow, or more seeds than there are.

    Raises:
        InputDataError: If they do not suffice.
    """
    if args.max_repeats is not None:
        most = args.max_repeats * problem.num_arms
        if args.horizon > most:
            raise InputDataError(
                f"--max-repeats {args.max_repeats} allows {most:,} pulls of the "
                f"{problem.num_arms:,} arms, but --horizon is {args.horizon:,}. Lower "
                "it, or allow more repeats."
            )
    if args.seed + args.repetitions > 2**63:
        raise InputDataError(
            f"--seed {args.seed} leaves no {args.repetitions:,} seeds below 2 to the "
            "63rd. Start at a smaller one."
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
        return _of_library(table, rewards, arm_names, args)
    if args.drop_incomplete:
        drop_incomplete(table, args, {args.id, args.reward})
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
        for name in args.smiles:
            require_column(table, name, args.table, "--smiles")
        return _of_molecules(read_candidates(campaign, options), args)
    problem = FiniteArmProblem.from_table(
        read_features(campaign.arms, options).values.assign(**{args.reward: rewards}),
        args.reward,
        noise_std=args.noise_std,
        maximize=not args.minimize,
        standardize_reward=True,
    )
    note(f"features and reward are standardized; {_unit_note(rewards, args)}")
    # That its features are standardized changes nothing: the fit scales them.
    arms, kernel = problem.arms, args.kernel
    if "suggest" in args.bandit and fingerprint_columns(campaign.arms, options):
        candidates = read_candidates(campaign, options)
        arms, kernel = candidates.arms, candidates.kernel
    return Rehearsal(problem, arms, kernel, arm_names)


def moments_of_rows(arms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and standard deviations of columns, in two passes."""
    sums = [rows.sum(dim=0) for _, rows in row_blocks(arms)]
    mean = torch.stack(sums).sum(dim=0) / len(arms)
    squares = [(rows - mean).square().sum(dim=0) for _, rows in row_blocks(arms)]
    return mean, (torch.stack(squares).sum(dim=0) / len(arms)).sqrt()


def _of_library(
    table: pd.DataFrame,
    rewards: pd.Series,
    arm_names: list[str],
    args: argparse.Namespace,
) -> Rehearsal:
    """Return the rehearsal of a table whose features stay in its file.

    Raises:
        InputDataError: If an option wants more than numbers as they are, or a column
            is constant or holds something else.
    """
    arms = library_arms(args.table, args, [args.reward, args.id])
    mean, deviation = moments_of_rows(arms)
    is_constant = deviation <= 1e-12 * mean.abs()
    if is_constant.any():
        column = arms.source.columns[int(is_constant.nonzero()[0])]
        raise InputDataError(
            f"Expected column {column!r} of {args.table} to vary, but it is constant. "
            f"Pass --drop {column}."
        )
    problem = FiniteArmProblem(
        arms.scaled(mean, deviation),
        standardized(rewards),
        args.noise_std,
        not args.minimize,
    )
    note(f"features and reward are standardized; {_unit_note(rewards, args)}")
    return Rehearsal(problem, problem.arms, args.kernel, arm_names)


def _of_molecules(candidates: Candidates, args: argparse.Namespace) -> Rehearsal:
    """Return the rehearsal of molecules, each with the mean of its rows' rewards."""
    campaign = candidates.campaign
    sums = sum_replicates(campaign.rewards, campaign.indices, len(campaign.arms))
    rewards = pd.Series(sums / campaign.indices.bincount(), name=args.reward)
    problem = FiniteArmProblem(
        candidates.arms, standardized(rewards), args.noise_std, not args.minimize
    )
    note(f"the reward is standardized; {_unit_note(rewards, args)}")
    names = campaign.arms[ROW_NAMES].tolist()
    return Rehearsal(problem, candidates.arms, candidates.kernel, names)


def _unit_note(rewards: pd.Series, args: argparse.Namespace) -> str:
    return (
        "rewards, regret and --noise-std are in\n"
        f"standard deviations of {args.reward!r}, which is {rewards.std(ddof=0):.4g}"
    )


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
    if name not in BANDITS:
        if args.goal is not None:
            options["goal"] = goal_named(args.goal)
        return SuggestLoop(
            rehearsal.arms,
            kernel=rehearsal.kernel,
            seed=int(torch.randint(2**31, (1,), generator=generator)),
            batch_size=args.batch_size or BATCH_SIZE,
            **options,
        )
    if args.batch_size is not None:
        options["batch_rule"] = FixedSize(args.batch_size)
    if args.ratio_threshold is not None:
        options["batch_rule"] = RATIO_RULES[name](args.ratio_threshold)
    for option in ("oversampling", "resampling", "max_inducing"):
        value = getattr(args, option)
        if value is not None:
            options[option] = value
    if name == "tvgpucb":
        rate = args.forgetting_rate
        options["forgetting_rate"] = FORGETTING_RATE if rate is None else rate
        options["sparse"] = problem.num_arms > MAX_FILTERED_ARMS
    if name == "rgpucb":
        options["block_size"] = _block_size(args, problem.arms.shape[-1])
    options["covar_module"] = _kernel(args, problem.arms.shape[-1])
    options["noise_variance"] = args.noise_variance or NOISE_VARIANCE
    return BANDITS[name](
        problem.arms, confidence=_confidence(name, args), generator=generator, **options
    )


def _kernel(args: argparse.Namespace, num_features: int) -> Kernel:
    kernel = MaternKernel(nu=MATERN_NU) if args.kernel == "matern" else RBFKernel()
    kernel.lengthscale = args.lengthscale or math.sqrt(num_features)
    return kernel


def _block_size(args: argparse.Namespace, num_features: int) -> float:
    """Return the block size given, or the paper's for a forgetting rate."""
    if args.block_size is not None:
        return args.block_size
    rate = args.forgetting_rate
    rate = FORGETTING_RATE if rate is None else rate
    if args.kernel == "matern":
        return matern_block_size(rate, args.horizon, MATERN_NU, num_features)
    return rbf_block_size(rate, args.horizon)


def _confidence(name: str, args: argparse.Namespace) -> ConfidenceSchedule | None:
    rule, parameters = args.confidence or ("practical", [])
    if rule in FREE_WIDTHS:
        return FREE_WIDTHS[rule](*parameters)
    # A horizon of one pull still needs a probability under 1.
    delta = args.failure_probability or min(0.5, 1 / args.horizon)
    if name in DRIFT_WIDTHS:
        return DRIFT_WIDTHS[name](failure_probability=delta)
    if name not in WIDTHS[rule]:
        return None
    return WIDTHS[rule][name](
        norm_bound=args.norm_bound or 1.0, failure_probability=delta
    )
