"""Bandits on a table, by name: regret, seconds and batch size over pulls.

The paper's setting (`--setting paper`), section 4 of "Near-linear time Gaussian process
optimization with adaptive batching and resparsification": Gaussian kernel with sigma^2
= 5, F = 20, delta = 1 / T, q-bar = 2, lambda = 0.2, T = 10^4, 10 repetitions;
EpsilonGreedy, GP-UCB, BKB and BBKB with the same parameters and the widths as printed
(Theorem 2 of each paper; equation (7) of the BKB paper for GP-UCB). The paper leaves
open what follows, so these are our choices: features and rewards standardized, sigma
the lengthscale in exp(-r^2 / (2 sigma^2)), reward noise of standard deviation 0.1, xi =
sqrt(lambda), C~ = 2, EpsilonGreedy uniform with probability 0.1 on the model of BKB.
`released` is F = 20 with the widths of the authors' released code, `practical` the same
with F = 1.

Data: `abalone` (A = 4,177) and `cadata` (A = 20,640) are the paper's tables, read from
the folder that BOTORCH_BKB_DATA names; `hartmann` is BoTorch's Hartmann function in six
dimensions on 10,000 scrambled Sobol points. `--smoke` makes up a small table instead.

A run that has used `--seconds-per-run` is stopped: its rows say so (`truncated`). Only
the bandit's own seconds count. `--batch-bkb` runs the authors' code too: same arms,
kernel, width and threads, the same reward noise and opening arm per seed, in
alternation with ours. Writes `rounds.csv`, `summary.csv` and `regret.png`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from benchmarks.batch_bkb import AuthorsBBKB, load_library
from benchmarks.problems import DATA_SETS, load_problem, new_kernel
from benchmarks.record import Record, write_page_figure
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
from botorch_bkb.models.utils.leverage_scores import Resampling
from botorch_bkb.optim import SumRule
from botorch_bkb.plotting import plot_repetitions
from botorch_bkb.test_functions import FiniteArmProblem


NOISE_VARIANCE = 0.2
OVERSAMPLING = 2.0
RATIO_THRESHOLD = 2.0
BANDITS: dict[str, type[FiniteArmBandit]] = {
    "EpsilonGreedy": EpsilonGreedy,
    "GPUCB": GPUCB,
    "BKB": BKB,
    "BBKB": BBKB,
    "GPThompsonSampling": GPThompsonSampling,
}
PAPER_BANDITS = ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
# F, and the widths of BKB (and of bandits that do not use it to choose) and of BBKB.
SETTINGS: dict[str, tuple[float, type[NormBoundedWidth], type[NormBoundedWidth]]] = {
    "paper": (20.0, BKBWidth, BBKBWidth),
    "practical": (1.0, PracticalBKBWidth, PracticalBBKBWidth),
    "released": (20.0, PracticalBKBWidth, PracticalBBKBWidth),
}
AUTHORS = "BBKB, authors' code"
NUM_WARM_UP_PULLS = 20


class Choices(NamedTuple):
    """A bandit, one of ``SETTINGS``, and how it draws inducing arms."""

    bandit: str = "BBKB"
    setting: str = "practical"
    resampling: Resampling = "independent"

    def new_bandit(
        self, arms: Tensor, horizon: int, seed: int, device: str = "cpu"
    ) -> FiniteArmBandit:
        """Return a bandit without observations."""
        norm_bound, bkb_width, bbkb_width = SETTINGS[self.setting]
        widths: dict[str, type[NormBoundedWidth]] = {
            "GPUCB": ChowdhuryGopalanWidth,
            "BBKB": bbkb_width,
        }
        width = widths.get(self.bandit, bkb_width)
        options: dict[str, Any] = {
            "covar_module": new_kernel().to(device),
            "noise_variance": NOISE_VARIANCE,
            "confidence": width(norm_bound, failure_probability=1 / horizon),
            "generator": torch.Generator().manual_seed(seed),
        }
        if self.bandit == "BBKB":
            options["batch_rule"] = SumRule(RATIO_THRESHOLD)
        if self.bandit == "EpsilonGreedy":
            options["uniform_probability"] = 0.1
        if self.bandit != "GPUCB":
            options |= {"oversampling": OVERSAMPLING, "resampling": self.resampling}
        return BANDITS[self.bandit](arms.to(device), **options)


# What takes part.
Player = FiniteArmBandit | AuthorsBBKB
# From a seed.
PlayerFactory = Callable[[int], Player]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--data", choices=DATA_SETS, default="abalone")
    parser.add_argument("--setting", choices=SETTINGS, default="practical")
    parser.add_argument("--horizon", type=int, default=10_000, metavar="T")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--bandits",
        nargs="+",
        choices=BANDITS,
        help="the paper's if omitted; with --batch-bkb BBKB, coupled too",
    )
    parser.add_argument("--batch-bkb", type=Path, metavar="PATH", help="a checkout")
    parser.add_argument("--seconds-per-run", type=float, default=600.0)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run every bandit on every seed, in alternation; write and print the outcome."""
    if args.batch_bkb is not None and args.setting == "paper":
        raise SystemExit(
            "Expected --setting practical or released with --batch-bkb, but got paper: "
            "the authors' code has no other width."
        )
    horizon, repetitions = args.horizon, args.repetitions
    if args.smoke:
        horizon, repetitions = min(horizon, 60), min(repetitions, 2)
    problem = load_problem(args.data, args.smoke)
    players = new_players(args, problem, horizon)
    origin = {"data": args.data, "setting": args.setting, "horizon": horizon}
    print(origin)
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
            runs.append(rounds.assign(seed=seed, bandit=name, **origin))
            last = rounds.iloc[-1]
            print(f"{name}, seed {seed}: {last['seconds']:.2f} s", flush=True)
            # After every run: a program that is stopped leaves what it has.
            table = pd.concat(runs, ignore_index=True)
            record.write_table(table, "rounds")
    summary = summarize(table)
    record.show(summary, "summary")
    curves = {
        str(name): [one for _, one in rounds.groupby("seed")]
        for name, rounds in table.groupby("bandit", sort=False)
    }
    title = f"{args.data}, {args.setting} setting"
    figure = plot_repetitions(curves, title=title, reward_unit="standard deviations")
    write_page_figure(figure, record.folder, "regret")


def new_players(
    args: argparse.Namespace, problem: FiniteArmProblem, horizon: int
) -> dict[str, PlayerFactory]:
    """Return what makes a player from a seed, by its name, the authors' code first."""
    players: dict[str, PlayerFactory] = {}
    bandits = args.bandits or PAPER_BANDITS
    choices = {name: Choices(name, args.setting) for name in bandits}
    if args.batch_bkb is not None:
        library = load_library(args.batch_bkb)
        players[AUTHORS] = lambda seed: AuthorsBBKB(
            library,
            problem.arms,
            seed,
            lam=NOISE_VARIANCE,
            fnorm=SETTINGS[args.setting][0],
            noise_variance=NOISE_VARIANCE,
            delta=1 / horizon,
            qbar=OVERSAMPLING,
            ratio_threshold=RATIO_THRESHOLD,
        )
        if args.bandits is None:
            coupled = Choices("BBKB", args.setting, "coupled")
            choices = {"BBKB": Choices("BBKB", args.setting), "BBKB, coupled": coupled}
    for name, one in choices.items():
        make = partial(one.new_bandit, problem.arms, horizon, device=args.device)
        players[name] = make
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
        player: A bandit that was without observations.
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
        last = runs.groupby("seed").tail(1)
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
