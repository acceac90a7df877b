"""Where the time of asks and tells goes, by part and by the number of arms.

Each bandit plays a short run with kernel and noise given (RBF, lengthscale 2, arms
uniform in the unit cube, d = 8, lambda = 0.1). Timers around the functions of `PARTS`,
put there from outside, say where the time of its asks and tells goes. A moment counts
for the innermost part alone: kernel rows that a full rebuild needs are kernel rows.

- `full rebuild`: features and moments of all arms from nothing, or their means alone
- `change of basis`: the same after a few pulls, in one pass over the cached features
- `kernel rows`: covariances with inducing arms, evaluated, kept and gathered again
- `scoring`: passes over the moments of all arms, for the largest bounds and rounding
- `resampling`: the inducing arms, by the leverage scores of the pulled ones
- `batch`: one pull after the other as if those before were told, until the rule closes
- `draws`: of Thompson sampling, and which arm is best in each
- `the rest`: checks, the ledger of pulls, the width

Seconds are the processor's, which other programs change little; `--clock wall` takes
those of the clock, where threads and accelerators are to count. One small run of each
bandit goes before, unmeasured. Writes `breakdown.csv` and `breakdown.png`.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, ExitStack
from types import ModuleType
from typing import ParamSpec, TypeVar
from unittest.mock import patch

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import synchronize
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPThompsonSampling, GPUCB
from botorch_bkb.bandits import FiniteArmBandit, policies, SparseLearner
from botorch_bkb.plotting import blank_figure, tidy_axes
from botorch_bkb.posteriors import ArmPosterior, ArmSampler
from botorch_bkb.posteriors.arm_shard import ArmShard
from botorch_bkb.posteriors.hallucination import TrackedShard
from botorch_bkb.posteriors.upper_bounds import UpperBounds
from botorch_bkb.test_functions import FiniteArmProblem


# What is timed, by part: who has a function, and its name.
Functions = Sequence[tuple[type | ModuleType, str]]
PARTS: Mapping[str, Functions] = {
    "full rebuild": [
        (ArmPosterior, "_factorize"),
        (ArmPosterior, "_fill"),
        (ArmPosterior, "_weigh"),
    ],
    "change of basis": [(ArmPosterior, "_increment"), (ArmPosterior, "_advance")],
    "kernel rows": [
        (ArmPosterior, "prior_covariance"),
        (ArmPosterior, "_prior_rows"),
        (ArmPosterior, "_hold"),
        (ArmShard, "prior_rows"),
        (ArmShard, "_covariance"),
    ],
    "scoring": [
        (ArmPosterior, "largest_bounds"),
        (TrackedShard, "best"),
        (ArmPosterior, "_rounding"),
    ],
    "resampling": [(SparseLearner, "resample")],
    "batch": [(policies, "fill_batch"), (UpperBounds, "__init__")],
    "draws": [(ArmSampler, "__init__"), (ArmSampler, "draw_best_arms")],
}
REST = "the rest"
COLORS = {part: colormaps["Set2"](place) for place, part in enumerate([*PARTS, REST])}

METHODS: Mapping[str, Callable[..., FiniteArmBandit]] = {
    "BBKB": BBKB,
    "BBKB, coupled": functools.partial(BBKB, resampling="coupled"),
    "GPThompsonSampling": GPThompsonSampling,
    "BKB, one by one": BKB,
    "GPUCB, one by one": GPUCB,
    "EpsilonGreedy, one by one": EpsilonGreedy,
}
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
DIMENSION = 8
LENGTHSCALE = 2.0
NOISE_VARIANCE = 0.1

P = ParamSpec("P")
R = TypeVar("R")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    sizes = [2_000, 20_000, 200_000]
    parser.add_argument("--num-arms", type=int, nargs="+", default=sizes)
    parser.add_argument("--pulls", type=int, default=300)
    parser.add_argument("--clock", choices=CLOCKS, default="processor")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))


class Timers:
    """Seconds by part; a moment counts for the innermost part that runs.

    Args:
        clock: Returns seconds.

    Attributes:
        seconds: What each part took.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys([*PARTS, REST], 0.0)
        self._running: list[str] = []  # the innermost last
        self._last = 0.0

    def timed(self, part: str, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function as one of a part."""

        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            self._settle()
            self._running.append(part)
            try:
                return function(*args, **options)
            finally:
                self._settle()
                self._running.pop()

        return call

    @contextmanager
    def installed(self, parts: Mapping[str, Functions] = PARTS) -> Iterator[None]:
        """Time the functions of all parts for a while.

        Raises:
            AttributeError: If there is no function of a name any more.
        """
        with ExitStack() as stack:
            for part, functions in parts.items():
                for owner, name in functions:
                    timed = self.timed(part, getattr(owner, name))
                    stack.enter_context(patch.object(owner, name, timed))
            yield

    def _settle(self) -> None:
        """Give the time since the last change to the part that ran."""
        now = self.clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._last
        self._last = now


def new_problem(num_arms: int, device: str) -> FiniteArmProblem:
    """Return uniform arms and a smooth function of them."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(num_arms, DIMENSION, generator=generator, dtype=torch.double)
    rewards = (3 * arms[:, :4]).sin().sum(dim=-1) - arms[:, 4:].square().mean(dim=-1)
    noise_std = NOISE_VARIANCE**0.5
    return FiniteArmProblem(arms.to(device), rewards.to(device), noise_std)


def play(
    method: str, problem: FiniteArmProblem, pulls: int, clock: Callable[[], float]
) -> pd.DataFrame:
    """Let a bandit pull; return a row per part."""
    kernel = RBFKernel().to(problem.arms)
    kernel.lengthscale = LENGTHSCALE
    generator = torch.Generator().manual_seed(0)
    make = METHODS[method]
    bandit = make(problem.arms, kernel, NOISE_VARIANCE, generator=generator)
    noise = torch.Generator().manual_seed(1)
    timers = Timers(clock)
    ask, tell = timers.timed(REST, bandit.ask), timers.timed(REST, bandit.tell)
    with timers.installed():
        while bandit.num_pulls < pulls:
            indices = ask(max_size=pulls - bandit.num_pulls)
            tell(indices, problem.sample(indices, noise))
    seconds = pd.Series(timers.seconds)
    return pd.DataFrame(
        {
            "method": method,
            "num_arms": len(problem.arms),
            "pulls": bandit.num_pulls,
            "asks": bandit.num_batches,
            "inducing": len(bandit.inducing_indices),
            "part": seconds.index,
            "seconds": seconds.array,
            "share": (seconds / seconds.sum()).array,
        }
    )


def run(args: argparse.Namespace) -> None:
    """Play everything; write, draw and print."""
    sizes, pulls = args.num_arms, args.pulls
    if args.smoke:
        sizes, pulls = [300, 1000], 60
    record = Record(args.output, args.device)
    print(caption(record.origin))

    def clock() -> float:
        synchronize(args.device)
        return CLOCKS[args.clock]()

    tables = []
    for num_arms in (min(sizes), *sizes):
        problem = new_problem(num_arms, args.device)
        tables += [play(method, problem, pulls, clock) for method in args.methods]
    # The first run over the smallest size has warmed up.
    table = pd.concat(tables[len(args.methods) :], ignore_index=True)
    record.write_table(table.assign(clock=args.clock), "breakdown")
    record.write_figure(draw(table), "breakdown")
    print_table(summary(table))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run: its seconds, and the share of each part in percent."""
    keys = ["num_arms", "method", "pulls", "asks", "inducing"]
    runs = table.groupby(keys, sort=False)
    shares = table.pivot_table(index=keys, columns="part", values="share", sort=False)
    percent = (100 * shares).round(1)
    percent.insert(0, "seconds", runs["seconds"].sum())
    return percent.reset_index()


def draw(table: pd.DataFrame) -> Figure:
    """Draw the shares of each run as a bar, a panel per number of arms."""
    sizes = table["num_arms"].unique()
    figure = blank_figure(9.0, 0.8 + 1.8 * len(sizes))
    panels = figure.subplots(len(sizes), 1, sharex=True, squeeze=False)[:, 0]
    for num_arms, axes in zip(sizes, panels, strict=True):
        draw_bars(axes, table[table["num_arms"] == num_arms])
        axes.set_title(f"{num_arms:,} arms", loc="left", fontsize="medium")
    panels[-1].set_xlabel(
        f"share of asks and tells (%), {table['pulls'].max():,} pulls"
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(labels),
        frameon=False,
        fontsize="small",
        handlelength=1.0,
        columnspacing=1.2,
    )
    return figure


def draw_bars(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a bar per method, with its seconds in all at the end."""
    shares = 100 * table.pivot_table("share", "method", "part", sort=False)
    left = 0 * shares[REST]
    for part, color in COLORS.items():
        share = shares[part]
        bars = axes.barh(shares.index, share, left=left, color=color, label=part)
        shown = [f"{percent:.0f}" if percent >= 4 else "" for percent in share]
        axes.bar_label(bars, shown, label_type="center", fontsize="small")
        left += share
    seconds = table.groupby("method", sort=False)["seconds"].sum()
    for method, total in seconds.items():
        axes.annotate(f" {total:,.2f} s", (100, str(method)), va="center")
    axes.set_xlim(0, 114)
    axes.set_xticks(range(0, 101, 20))
    axes.invert_yaxis()
    tidy_axes(axes)
    axes.grid(visible=False, axis="y")  # it would cross the seconds
