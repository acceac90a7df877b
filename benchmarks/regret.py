"""Bandits on a table, by name: regret, seconds and batch size over pulls.

The paper's setting (`--setting paper`), section 4 of "Near-linear time Gaussian process
optimization with adaptive batching and resparsification": Gaussian kernel with sigma^2
= 5, F = 20, delta = 1 / T, q-bar = 2, lambda = 0.2, T = 10^4, 10 repetitions;
EpsilonGreedy, GP-UCB, BKB and BBKB with the same parameters and the widths as printed
(Theorem 2 of each paper; equation (7) of the BKB paper for GP-UCB). The paper leaves
open what follows, so these are our choices: features and rewards standardized, sigma
the lengthscale in exp(-r^2 / (2 sigma^2)), reward noise of standard deviation 0.1, xi =
sqrt(lambda), C~ = 2, EpsilonGreedy uniform with probability 0.1 on the model of BKB.
`--setting released` is F = 20 with the widths of the authors' released code: with that
and features that go from 0 to 1 batches on Abalone are of the size that the paper
shows, with the setting as above they stay below fifty (the part `bbkb` of the benchmark
`figures` runs both at the paper's size).

The practical setting (`--setting practical`) differs in F = 1 and in the widths, which
are those of the authors' code for BKB and BBKB.

Data: `abalone` (A = 4,177) and `cadata` (A = 20,640) are the paper's tables, read from
`--data-path` or from the folder that BOTORCH_BKB_DATA names. The papers run no test
function; `hartmann` is BoTorch's Hartmann function in six dimensions on 10,000
scrambled Sobol points. `--smoke` makes up a small table instead.

`--bandits GPThompsonSampling` adds Thompson sampling, thirty draws a batch, on the same
model (it has no width).

A run that has used `--seconds-per-run` is stopped: its rows say so (`truncated`), and
its curve ends early. Only the bandit's own seconds count.

`--batch-bkb` runs the authors' code too: same arms, kernel, width and threads, the same
reward noise and opening arm per seed, in alternation with ours.

Writes `rounds.csv`, `summary.csv` and `regret.png`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor

from benchmarks.batch_bkb import AuthorsBBKB, load_library
from benchmarks.problems import DATA_SETS, load_problem, new_kernel
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPThompsonSampling, GPUCB
from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    BKBWidth,
    ChowdhuryGopalanWidth,
    NormBoundedWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.models.utils.leverage_scores import Inclusion, Resampling
from botorch_bkb.optim import SumRule
from botorch_bkb.plotting import plot_repetitions
from botorch_bkb.test_functions import FiniteArmProblem


# Of a bandit's own time in one run of `TenThousandPulls`.
MAX_SECONDS = 3600.0
NOISE_VARIANCE = 0.2
OVERSAMPLING = 2.0
RATIO_THRESHOLD = 2.0
UNIFORM_PROBABILITY = 0.1
BANDITS: dict[str, type[FiniteArmBandit]] = {
    "EpsilonGreedy": EpsilonGreedy,
    "GPUCB": GPUCB,
    "BKB": BKB,
    "BBKB": BBKB,
    "GPThompsonSampling": GPThompsonSampling,
}
PAPER_BANDITS = ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
SPARSE_BANDITS = tuple(name for name in BANDITS if name != "GPUCB")
RESAMPLINGS: dict[str, tuple[Resampling, ...]] = {
    "independent": ("independent",),
    "coupled": ("coupled",),
    "both": ("independent", "coupled"),
}
AUTHORS = "BBKB, authors' code"
NUM_WARM_UP_PULLS = 20


@dataclass(frozen=True)
class Setting:
    """A norm bound and the widths that go with it.

    Attributes:
        norm_bound: F.
        bkb: The width of BKB (and of bandits that do not use it to choose).
        bbkb: The width of BBKB.
    """

    norm_bound: float
    bkb: type[NormBoundedWidth]
    bbkb: type[NormBoundedWidth]


SETTINGS = {
    "paper": Setting(20.0, BKBWidth, BBKBWidth),
    "practical": Setting(1.0, PracticalBKBWidth, PracticalBBKBWidth),
    "released": Setting(20.0, PracticalBKBWidth, PracticalBBKBWidth),
}


@dataclass(frozen=True)
class Choices:
    """A bandit, and the options that may be varied.

    Attributes:
        bandit: One of ``BANDITS``.
        setting: One of ``SETTINGS``.
        norm_bound: F, in place of the setting's.
        oversampling: q-bar.
        ratio_threshold: C~.
        inclusion: Whether the pulls of an arm share one draw.
        resampling: How one draw depends on that before.
    """

    bandit: str = "BBKB"
    setting: str = "practical"
    norm_bound: float | None = None
    oversampling: float = OVERSAMPLING
    ratio_threshold: float = RATIO_THRESHOLD
    inclusion: Inclusion = "merged"
    resampling: Resampling = "independent"

    def new_bandit(
        self, arms: Tensor, horizon: int, seed: int, device: str = "cpu"
    ) -> FiniteArmBandit:
        """Return a bandit that was told nothing yet."""
        setting = SETTINGS[self.setting]
        norm_bound = self.norm_bound or setting.norm_bound
        width: dict[str, type[NormBoundedWidth]] = {
            "GPUCB": ChowdhuryGopalanWidth,
            "BBKB": setting.bbkb,
        }
        options: dict[str, Any] = {
            "covar_module": new_kernel().to(device),
            "noise_variance": NOISE_VARIANCE,
            "confidence": width.get(self.bandit, setting.bkb)(
                norm_bound=norm_bound, failure_probability=1 / horizon
            ),
            "generator": torch.Generator().manual_seed(seed),
        }
        if self.bandit == "BBKB":
            options["batch_rule"] = SumRule(self.ratio_threshold)
        if self.bandit == "EpsilonGreedy":
            options["uniform_probability"] = UNIFORM_PROBABILITY
        if self.bandit in SPARSE_BANDITS:
            options["oversampling"] = self.oversampling
            options["inclusion"] = self.inclusion
            options["resampling"] = self.resampling
        return BANDITS[self.bandit](arms.to(device), **options)


class TenThousandPulls:
    """What the runs of several benchmarks share: the paper's horizon, and an hour each.

    Args:
        smoke: Whether 60 pulls will do.
    """

    repetitions = 10

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.horizon = 60 if smoke else 10_000

    def pulled(
        self, choices: Choices, problem: FiniteArmProblem, seed: int
    ) -> tuple[FiniteArmBandit, pd.DataFrame]:
        """Return a bandit at the end of its run, and a row per batch."""
        bandit = choices.new_bandit(problem.arms, self.horizon, seed)
        rounds = play(bandit, problem, self.horizon, seed=seed, max_seconds=MAX_SECONDS)
        return bandit, rounds


class Player(Protocol):
    """What takes part: our bandits, and the authors'."""

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""

    @property
    def inducing_indices(self) -> Tensor:
        """The inducing arms."""

    def ask(self, max_size: int) -> Tensor:
        """Choose the next batch."""

    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        """Bring its rewards."""


# From a seed.
PlayerFactory = Callable[[int], Player]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--data", choices=DATA_SETS, default="abalone")
    parser.add_argument("--data-path", type=Path, metavar="FILE")
    parser.add_argument("--setting", choices=SETTINGS, default="practical")
    parser.add_argument(
        "--norm-bound", type=float, metavar="F", help="in place of the setting's"
    )
    parser.add_argument(
        "--resampling",
        choices=RESAMPLINGS,
        help="both with --batch-bkb, independent otherwise",
    )
    parser.add_argument("--horizon", type=int, default=10_000, metavar="T")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--bandits",
        nargs="+",
        choices=BANDITS,
        help="BBKB with --batch-bkb, the paper's otherwise",
    )
    parser.add_argument("--batch-bkb", type=Path, metavar="PATH", help="a checkout")
    parser.add_argument("--seconds-per-run", type=float, default=600.0)


def run(args: argparse.Namespace) -> None:
    """Run every bandit on every seed, in alternation; write and print the outcome."""
    if args.batch_bkb is not None and args.setting == "paper":
        raise SystemExit(
            "Expected --setting practical with --batch-bkb, but got paper: the "
            "authors' code has no other width. Set F by --norm-bound."
        )
    horizon, repetitions = args.horizon, args.repetitions
    if args.smoke:
        horizon, repetitions = min(horizon, 60), min(repetitions, 2)
    record = Record(args.output, args.device)
    problem = load_problem(args.data, args.data_path, args.smoke)
    players = new_players(args, problem, horizon)
    made_up = args.smoke and args.data != "hartmann"
    data = "made up" if made_up else args.data
    origin = {"data": data, "setting": args.setting, "horizon": horizon}
    print(caption(record.origin))
    print(f"{data}: {problem.num_arms:,} arms, {args.setting} setting, T {horizon}")
    for new_player in players.values():
        play(new_player(0), problem, min(horizon, NUM_WARM_UP_PULLS), seed=0)
    runs = []
    for seed in range(repetitions):
        for name, new_player in players.items():
            rounds = play(
                new_player(seed),
                problem,
                horizon,
                seed=seed,
                max_seconds=args.seconds_per_run,
            )
            for column in ("seed", "repetition", "bandit"):
                rounds.insert(0, column, name if column == "bandit" else seed)
            runs.append(rounds)
            print(_run_line(runs[-1]), flush=True)
            # After every run: a program that is stopped leaves what it has.
            table = pd.concat(runs, ignore_index=True)
            record.write_table(table.assign(**origin), "rounds")
    summary = summarize(table)
    record.write_table(summary, "summary")
    print()
    print_table(summary)
    if args.batch_bkb is not None:
        print_ratios(summary)
    record.write_figure(figure(table, f"{data}, {args.setting} setting"), "regret")
    print(f"\nWrote rounds.csv, summary.csv and regret.png to {record.folder}")


def new_players(
    args: argparse.Namespace, problem: FiniteArmProblem, horizon: int
) -> dict[str, PlayerFactory]:
    """Return what makes a player from a seed, by its name, the authors' code first."""
    norm_bound = args.norm_bound or SETTINGS[args.setting].norm_bound
    compared = args.batch_bkb is not None
    bandits = args.bandits or (["BBKB"] if compared else PAPER_BANDITS)
    resampling = args.resampling or ("both" if compared else "independent")
    players: dict[str, PlayerFactory] = {}
    if compared:
        library = load_library(args.batch_bkb)

        def new_authors(seed: int) -> Player:
            return AuthorsBBKB(
                library,
                problem.arms,
                noise_variance=NOISE_VARIANCE,
                norm_bound=norm_bound,
                failure_probability=1 / horizon,
                oversampling=OVERSAMPLING,
                ratio_threshold=RATIO_THRESHOLD,
                seed=seed,
            )

        players[AUTHORS] = new_authors
    for name in bandits:
        for law in RESAMPLINGS[resampling if name in SPARSE_BANDITS else "independent"]:
            choices = Choices(name, args.setting, norm_bound, resampling=law)
            label = name if law == "independent" else f"{name}, {law}"
            players[label] = partial(
                choices.new_bandit, problem.arms, horizon, device=args.device
            )
    return players


def play(
    player: Player,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    seed: int,
    max_seconds: float = float("inf"),
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls, or until the time is used up.

    Args:
        player: A bandit that was told nothing yet.
        problem: Draws the rewards and knows the regret.
        horizon: The number of pulls.
        seed: Of the rewards' noise.
        max_seconds: The player's own time, after which it is asked no more.

    Returns:
        One row per batch. ``num_pulls``, ``cumulative_regret`` and ``seconds`` count
        from the start; ``truncated`` says whether the run stopped short of the horizon.
    """
    noise = torch.Generator().manual_seed(100 + seed)
    rows: list[dict[str, float]] = []
    seconds = regret = 0.0
    while player.num_pulls < horizon and seconds < max_seconds:
        start = time.perf_counter()
        # On an accelerator, to have the indices is to have waited for them.
        indices = player.ask(max_size=horizon - player.num_pulls).cpu()
        seconds += time.perf_counter() - start
        rewards = problem.sample(indices, generator=noise)
        start = time.perf_counter()
        player.tell(indices, rewards)
        seconds += time.perf_counter() - start
        regret += problem.regret(indices).sum().item()
        rows.append(
            {
                "batch": len(rows) + 1,
                "batch_size": len(indices),
                "num_pulls": player.num_pulls,
                "num_inducing_points": len(player.inducing_indices),
                "cumulative_regret": regret,
                "uniform_cumulative_regret": problem.uniform_cumulative_regret(
                    player.num_pulls
                ),
                "seconds": seconds,
            }
        )
    return pd.DataFrame(rows).assign(truncated=player.num_pulls < horizon)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bandit: medians of time, mean and deviation of regret.

    Regrets are those of the last round of each run; where runs were ``truncated``, at
    fewer pulls than the horizon. ``share_of_uniform`` is their mean, each as a share of
    what uniform choice expects at as many pulls.
    """
    rows = []
    for name, runs in table.groupby("bandit", sort=False):
        last = runs.groupby("repetition").tail(1)
        share = last["cumulative_regret"] / last["uniform_cumulative_regret"]
        rows.append(
            {
                "bandit": name,
                "runs": len(last),
                "truncated": int(last["truncated"].sum()),
                "least_pulls": last["num_pulls"].min(),
                "median_seconds": last["seconds"].median(),
                "mean_regret": last["cumulative_regret"].mean(),
                "std_regret": last["cumulative_regret"].std(),
                "share_of_uniform": share.mean(),
                "median_batches": last["batch"].median(),
                "largest_batch": runs["batch_size"].max(),
                "median_inducing": last["num_inducing_points"].median(),
            }
        )
    return pd.DataFrame(rows)


def print_ratios(summary: pd.DataFrame) -> None:
    """Print what the authors' code takes over what ours takes, from complete runs."""
    by_name = summary.set_index("bandit")
    authors = by_name.loc[AUTHORS]
    print()
    for name, ours in by_name.drop(index=AUTHORS).iterrows():
        if authors["truncated"] or ours["truncated"]:
            print(f"{name}: no ratio, runs were truncated; raise --seconds-per-run")
            continue
        speed = authors["median_seconds"] / ours["median_seconds"]
        regret = ours["mean_regret"] / authors["mean_regret"]
        print(
            f"{name}: {speed:.1f} times as fast as the authors' code (medians), "
            f"{regret:.3f} of its regret (means)"
        )


def figure(table: pd.DataFrame, title: str) -> Any:
    """Return the three panels of the paper's figures."""
    runs = {}
    for name, rounds in table.groupby("bandit", sort=False):
        label = f"{name} (stopped)" if rounds["truncated"].any() else str(name)
        runs[label] = [run for _, run in rounds.groupby("repetition")]
    return plot_repetitions(runs, title=title, reward_unit="standard deviations")


def _run_line(rounds: pd.DataFrame) -> str:
    last = rounds.iloc[-1]
    note = f", stopped at {last['num_pulls']:,} pulls" if last["truncated"] else ""
    return (
        f"seed {last['seed']} {last['bandit']:20s} {last['seconds']:8.2f} s, "
        f"regret {last['cumulative_regret']:9,.1f}, {last['batch']:,} batches, "
        f"{last['num_inducing_points']} inducing points{note}"
    )
