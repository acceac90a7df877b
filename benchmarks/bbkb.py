"""Figures 1 and 2 of the BBKB paper: regret, seconds and batch sizes over pulls.

The benchmark `regret` describes the settings `paper`, `practical` and `released`. The
paper leaves open the scale of the features, against which the kernel's sigma^2 = 5 is
to be read. In these settings they have a standard deviation of one; in `unit` (`paper`)
and `unit_released` (`released`) they go from 0 to 1.

A run ends after an hour of the bandit's own time; its rows say so (`truncated`).
Standardized Cadata is run once, all else with each of ten seeds. Rows are thinned to
200 a run, and `batch_size` is the largest since the row before. Writes `bbkb.csv`, and
a picture of BBKB per data set.
"""

from __future__ import annotations

import functools
import math
from statistics import mean
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.problems import load_problem
from benchmarks.record import Report
from benchmarks.regret import (
    Choices,
    PAPER_BANDITS,
    play,
    summarize,
)
from botorch_bkb.plotting import blank_figure, plot_batch_sizes, plot_regret
from botorch_bkb.test_functions import FiniteArmProblem


NUM_ROWS = 200
# Of the bandit's own time in a run.
MAX_SECONDS = 3600.0
# The setting of `regret`, whether features go from 0 to 1, and who takes part.
SETTINGS = {
    "unit": ("paper", True, PAPER_BANDITS),
    "unit_released": ("released", True, ["BBKB"]),
    "practical": ("practical", False, PAPER_BANDITS),
    "released": ("released", False, ["BBKB"]),
    "paper": ("paper", False, ["BBKB"]),
}


class Run(NamedTuple):
    """What one run is of."""

    data: str
    setting: str
    bandit: str
    seed: int


class BBKBFigures:
    """Figures 1 and 2 of the BBKB paper."""

    keys = Run._fields
    repetitions = 10

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.horizon = 60 if smoke else 10_000

    def runs(self, repetitions: int) -> list[Run]:
        """Return the runs of some seeds; of what takes long, of the first one only."""
        return [
            Run(data, setting, bandit, seed)
            for seed in range(repetitions)
            for data in ("abalone", "cadata")
            for setting, (_, unit_features, bandits) in SETTINGS.items()
            for bandit in bandits
            if seed == 0 or data == "abalone" or unit_features
        ]

    def play(self, run: Run) -> pd.DataFrame:
        """Return some 200 rows."""
        setting, unit_features, _ = SETTINGS[run.setting]
        problem = _problem(run.data, self.smoke, unit_features)
        choices = Choices(run.bandit, setting)
        bandit = choices.new_bandit(problem.arms, self.horizon, run.seed)
        rounds = play(
            bandit, problem, self.horizon, seed=run.seed, max_seconds=MAX_SECONDS
        )
        return thinned(rounds, self.horizon)

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the table, and a picture of BBKB per data set."""
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
        table = pd.concat(summaries, ignore_index=True)
        table = table.drop(columns=["truncated", "median_seconds"])
        ours = rows[rows["bandit"] == "BBKB"]
        pictures = {
            f"bbkb_{data}": draw_settings(one, str(data))
            for data, one in ours.groupby("data", sort=False)
        }
        return {"bbkb": table}, pictures


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
