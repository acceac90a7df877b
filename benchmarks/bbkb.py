"""Figures 1 and 2 of the BBKB paper: regret, seconds and batch sizes over pulls.

Section 4 of "Near-linear time Gaussian process optimization with adaptive batching and
resparsification": Gaussian kernel with sigma^2 = 5, F = 20, delta = 1 / T, q-bar = 2,
lambda = 0.2, T = 10^4, 10 repetitions; EpsilonGreedy, GP-UCB, BKB and BBKB with the
same parameters. The paper leaves open what follows, so these are our choices: rewards
standardized, sigma the lengthscale in exp(-r^2 / (2 sigma^2)), reward noise of standard
deviation 0.1, xi = sqrt(lambda), C~ = 2 (the default of the authors' code),
EpsilonGreedy uniform with probability 0.1 on the model of BKB.

The paper also leaves open the widths, and the scale of the features, against which the
kernel's sigma^2 is to be read. In the settings `paper` (`BBKBWidth` and `BKBWidth`, the
widths of the theorems), `released` (those of the authors' released code) and
`practical` (the same with F = 1) they have a standard deviation of one; in `unit` (as
`paper`) and `unit_released` they go from 0 to 1. `BBKBWidth` is Theorem 2 of its paper
as printed. `BKBWidth` is not: the printed log(kappa^2 t) is negative for small t.
GP-UCB has equation (7) of the BKB paper in all settings.

A run ends after an hour of the bandit's own time; its rows say so (`truncated`).
Standardized Cadata is run once, all else with each of ten seeds. Rows are thinned to
200 a run, and `batch_size` is the largest since the row before. Writes `bbkb.csv`, and
a picture of BBKB per data set.

`bbkb_time` is figure 1 with its seconds: all four algorithms with the features and the
widths of `unit_released`, one after another in each repetition, on one thread of a
machine that does nothing else. Writes `bbkb_time.csv`, and a picture per data set.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from typing_extensions import override

from benchmarks.batch_bkb import AuthorsBBKB
from benchmarks.problems import load_problem, new_kernel
from benchmarks.record import Report
from botorch_bkb import BBKB, BKB, EpsilonGreedy, GPUCB
from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    BKBWidth,
    ChowdhuryGopalanWidth,
    NormBoundedWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.bandits import FiniteArmBandit
from botorch_bkb.optim import SumRule
from botorch_bkb.plotting import (
    blank_figure,
    plot_batch_sizes,
    plot_regret,
    plot_repetitions,
)
from botorch_bkb.test_functions import FiniteArmProblem


NOISE_VARIANCE = 0.2
OVERSAMPLING = 2.0
RATIO_THRESHOLD = 2.0
BANDITS: dict[str, type[FiniteArmBandit]] = {
    "EpsilonGreedy": EpsilonGreedy,
    "GPUCB": GPUCB,
    "BKB": BKB,
    "BBKB": BBKB,
}
# F, and the widths of BKB (and of bandits that do not use it to choose) and of BBKB.
WIDTHS: dict[str, tuple[float, type[NormBoundedWidth], type[NormBoundedWidth]]] = {
    "paper": (20.0, BKBWidth, BBKBWidth),
    "practical": (1.0, PracticalBKBWidth, PracticalBBKBWidth),
    "released": (20.0, PracticalBKBWidth, PracticalBBKBWidth),
}
NUM_ROWS = 200
# Of the bandit's own time in a run.
MAX_SECONDS = 3600.0
# The widths, whether features go from 0 to 1, and who takes part.
SETTINGS = {
    "unit": ("paper", True, list(BANDITS)),
    "unit_released": ("released", True, ["BBKB"]),
    "practical": ("practical", False, list(BANDITS)),
    "released": ("released", False, ["BBKB"]),
    "paper": ("paper", False, ["BBKB"]),
}


# Either may take part.
Player = FiniteArmBandit | AuthorsBBKB


def new_bandit(
    name: str,
    arms: Tensor,
    horizon: int,
    seed: int,
    *,
    widths: str = "practical",
    **options: Any,
) -> FiniteArmBandit:
    """Return one of ``BANDITS`` with one of ``WIDTHS``, without observations."""
    norm_bound, bkb_width, bbkb_width = WIDTHS[widths]
    width: type[NormBoundedWidth] = bkb_width
    if name == "GPUCB":
        width = ChowdhuryGopalanWidth
    else:
        options["oversampling"] = OVERSAMPLING
    if name == "BBKB":
        width = bbkb_width
        options["batch_rule"] = SumRule(RATIO_THRESHOLD)
    if name == "EpsilonGreedy":
        options["uniform_probability"] = 0.1
    options |= {
        "covar_module": new_kernel().to(arms),
        "noise_variance": NOISE_VARIANCE,
        "confidence": width(norm_bound, failure_probability=1 / horizon),
        "generator": torch.Generator().manual_seed(seed),
    }
    return BANDITS[name](arms, **options)


def play(
    player: Player,
    problem: FiniteArmProblem,
    horizon: int,
    *,
    seed: int,
    max_seconds: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> pd.DataFrame:
    """Ask and tell until ``horizon`` pulls, or until the time is used up.

    Args:
        player: A bandit that was without observations.
        problem: Draws the rewards and knows the regret.
        horizon: The number of pulls.
        seed: Of the rewards' noise.
        max_seconds: The player's own time, after which it is asked no more.
        clock: Returns seconds.

    Returns:
        One row per batch. ``num_pulls``, ``cumulative_regret`` and ``seconds`` count
        from the start; ``truncated`` says whether the run stopped short of the horizon.
    """
    noise = torch.Generator().manual_seed(100 + seed)
    regrets = problem.regret(torch.arange(problem.num_arms))
    expected_regret = problem.uniform_cumulative_regret(1)
    rows: list[dict[str, float]] = []
    seconds = regret = 0.0
    while player.num_pulls < horizon and seconds < max_seconds:
        start = clock()
        # On an accelerator, to have the indices is to have waited for them.
        indices = player.ask(max_size=horizon - player.num_pulls).cpu()
        seconds += clock() - start
        rewards = problem.sample(indices, generator=noise)
        start = clock()
        player.tell(indices, rewards)
        seconds += clock() - start
        regret += regrets[indices].sum().item()
        rows.append(
            {
                "batch": len(rows) + 1,
                "batch_size": len(indices),
                "num_pulls": player.num_pulls,
                "num_inducing_points": len(player.inducing_indices),
                "cumulative_regret": regret,
                "uniform_cumulative_regret": player.num_pulls * expected_regret,
                "seconds": seconds,
            }
        )
    return pd.DataFrame(rows).assign(truncated=player.num_pulls < horizon)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bandit: medians of time, mean and deviation of regret.

    Regrets are those of the last round of each run. ``share_of_uniform`` is their mean,
    each as a share of what uniform choice expects at as many pulls.
    """
    rows = []
    for name, runs in table.groupby("bandit", sort=False):
        last = runs.groupby("seed").tail(1)
        share = last["cumulative_regret"] / last["uniform_cumulative_regret"]
        rows.append(
            {
                "bandit": name,
                "runs": len(last),
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


class BBKBFigures:
    """Figures 1 and 2 of the BBKB paper."""

    keys = ("data", "setting", "bandit", "seed")
    seeds = range(10)

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.horizon = 60 if smoke else 10_000

    def runs(self, seed: int) -> list[tuple[str, str, str, int]]:
        """Return the runs of a seed; what takes long is only of the first seed."""
        return [
            (data, setting, bandit, seed)
            for data in ("abalone", "cadata")
            for setting, (_, unit_features, bandits) in SETTINGS.items()
            for bandit in bandits
            if seed == 0 or data == "abalone" or unit_features
        ]

    def play(self, data: str, setting: str, name: str, seed: int) -> pd.DataFrame:
        """Return some 200 rows."""
        widths, unit_features, _ = SETTINGS[setting]
        problem = _problem(data, self.smoke, unit_features)
        bandit = new_bandit(name, problem.arms, self.horizon, seed, widths=widths)
        rounds = play(bandit, problem, self.horizon, seed=seed, max_seconds=MAX_SECONDS)
        return thinned(rounds, self.horizon)

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the table, and a picture of BBKB per data set."""
        rows, table = self._summaries(rows)
        table = table.drop(columns="median_seconds")
        ours = rows[rows["bandit"] == "BBKB"]
        pictures = {
            f"bbkb_{data}": draw_settings(one, str(data))
            for data, one in ours.groupby("data", sort=False)
        }
        return {"bbkb": table}, pictures

    def _summaries(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return rows in order, and one row per data set, setting and bandit."""
        # Whatever was run first.
        rows = rows.sort_values([*self.keys, "num_pulls"], ignore_index=True)
        summaries = []
        for (data, setting), one in rows.groupby(["data", "setting"], sort=False):
            summary = summarize(one)
            summary.insert(0, "data", str(data))
            summary.insert(1, "setting", str(setting))
            summary["exponent"] = [
                mean(growth(run) for _, run in rounds.groupby("seed"))
                for _, rounds in one.groupby("bandit", sort=False)
            ]
            summaries.append(summary)
        return rows, pd.concat(summaries, ignore_index=True)


class BBKBTimes(BBKBFigures):
    """Figure 1 of the BBKB paper with seconds, all bandits in one setting."""

    @override
    def runs(self, seed: int) -> list[tuple[str, str, str, int]]:
        """Return the runs of a seed."""
        return [
            (data, "unit_released", bandit, seed)
            for data in ("abalone", "cadata")
            for bandit in BANDITS
        ]

    @override
    def report(self, rows: pd.DataFrame) -> Report:
        """Return the table with seconds, and a picture of all bandits per data set."""
        rows, table = self._summaries(rows)
        by = rows.groupby(["data", "setting", "bandit"], sort=False)
        table["largest_load"] = by["load"].max().to_numpy()
        pictures = {
            f"bbkb_time_{data}": plot_repetitions(
                {
                    str(name): [run for _, run in runs.groupby("seed")]
                    for name, runs in one.groupby("bandit", sort=False)
                },
                title=f"Figure 1 of the BBKB paper on {data}",
                reward_unit="standard deviations",
            )
            for data, one in rows.groupby("data", sort=False)
        }
        return {"bbkb_time": table}, pictures


def draw_settings(rows: pd.DataFrame, title: str) -> Figure:
    """Draw regret and batch sizes of BBKB by setting."""
    runs = {
        str(setting): [run for _, run in one.groupby("seed")]
        for setting, one in rows.groupby("setting", sort=False)
    }
    picture = blank_figure(9.0, 4.0)
    left, right = picture.subplots(1, 2)
    plot_regret(left, runs, reward_unit="standard deviations")
    plot_batch_sizes(right, runs)
    picture.suptitle(f"BBKB on {title}, by setting", fontsize="medium")
    return picture


def thinned(rounds: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """Keep the last row of each of 200 slices of the horizon, and the largest batch."""
    slices = (rounds["num_pulls"] - 1) * NUM_ROWS // horizon
    largest = rounds.groupby(slices)["batch_size"].transform("max")
    return rounds.assign(batch_size=largest).groupby(slices).tail(1)


def growth(run: pd.DataFrame) -> float:
    """Return the exponent with which regret grew over the last nine tenths of a run."""
    pulls, regret = run["num_pulls"].to_numpy(), run["cumulative_regret"].to_numpy()
    early = np.interp(pulls[-1] / 10, pulls, regret)
    return math.log10(regret[-1] / early)


@functools.cache
def _problem(data: str, smoke: bool, unit_features: bool) -> FiniteArmProblem:
    return load_problem(data, smoke, unit_features=unit_features)
