"""Figures 1 and 2 of the BBKB paper: regret, seconds and batch sizes over pulls.

The benchmark `regret` says what the paper states, what it leaves open, and what its
settings `paper` and `practical` are. One more thing is left open, and decides most: the
scale of the features, against which the kernel's sigma^2 = 5 is to be read. In
`paper`, `practical` and `released` (F = 20 and the widths of the authors' code) they
have a standard deviation of one; in `unit` (the setting `paper`) and `unit_released`
(the setting `released`) they go from 0 to 1.

A run ends after an hour of the bandit's own time; its rows say so (`truncated`). What
takes more than ten minutes is run once, all else with each of ten seeds. Rows are
thinned to 200 a run, and `batch_size` is the largest since the row before. Writes
`bbkb.csv`, a picture per data set and setting, and one per data set of BBKB alone.
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
from benchmarks.record import print_table, Record
from benchmarks.regret import (
    Choices,
    figure,
    MAX_SECONDS,
    PAPER_BANDITS,
    summarize,
    TenThousandPulls,
)
from botorch_bkb.plotting import blank_figure, plot_batch_sizes, plot_regret
from botorch_bkb.test_functions import FiniteArmProblem


NUM_ROWS = 200
# The setting of `regret`, whether features go from 0 to 1, and who takes part.
SETTINGS = {
    "unit": ("paper", True, PAPER_BANDITS),
    "unit_released": ("released", True, ["BBKB"]),
    "practical": ("practical", False, PAPER_BANDITS),
    "released": ("released", False, ["BBKB"]),
    "paper": ("paper", False, ["BBKB"]),
}
# What takes longer is run with one seed only.
LONG_SECONDS = 600.0
# Of a run, roughly: on Abalone, and on Cadata.
SECONDS = {
    ("unit", "BBKB"): (2.0, 7.0),
    ("unit", "GPUCB"): (20.0, 100.0),
    ("unit", "BKB"): (40.0, 200.0),
    ("unit", "EpsilonGreedy"): (40.0, 200.0),
    ("unit_released", "BBKB"): (0.5, 3.0),
    ("practical", "BBKB"): (2.0, 1200.0),
    ("practical", "GPUCB"): (40.0, MAX_SECONDS),
    ("practical", "BKB"): (60.0, MAX_SECONDS),
    ("practical", "EpsilonGreedy"): (60.0, MAX_SECONDS),
    ("released", "BBKB"): (4.0, 1800.0),
    ("paper", "BBKB"): (300.0, MAX_SECONDS),
}


class Run(NamedTuple):
    """What one run is of."""

    data: str
    setting: str
    bandit: str
    seed: int


class BBKBFigures(TenThousandPulls):
    """Figures 1 and 2 of the BBKB paper."""

    keys = Run._fields

    def runs(self, repetitions: int) -> list[Run]:
        """Return the runs of some seeds; of what takes long, of the first one only."""
        runs = [
            Run(data, setting, bandit, seed)
            for seed in range(repetitions)
            for data in ("abalone", "cadata")
            for setting, (_, _, bandits) in SETTINGS.items()
            for bandit in bandits
        ]
        return [
            run for run in runs if run.seed == 0 or self.seconds(run) <= LONG_SECONDS
        ]

    def seconds(self, run: Run) -> float:
        """Return about how long a run takes."""
        abalone, cadata = SECONDS[run.setting, run.bandit]
        return abalone if run.data == "abalone" else cadata

    def play(self, run: Run) -> pd.DataFrame:
        """Return some 200 rows."""
        setting, unit_features, _ = SETTINGS[run.setting]
        problem = _problem(run.data, self.smoke, unit_features)
        _, rounds = self.pulled(Choices(run.bandit, setting), problem, run.seed)
        return thinned(rounds, self.horizon)

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Write, draw and print."""
        # Whatever was run first.
        rows = rows.sort_values([*self.keys, "num_pulls"], ignore_index=True)
        rows["repetition"] = rows["seed"]
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
            title = f"{data}, {setting} setting"
            record.write_figure(figure(one, title), f"bbkb_{data}_{setting}")
        ours = rows[rows["bandit"] == "BBKB"]
        for name in ours["data"].unique():
            picture = draw_settings(ours[ours["data"] == name], name)
            record.write_figure(picture, f"bbkb_{name}")
        summary = pd.concat(summaries, ignore_index=True)
        record.write_table(summary, "bbkb")
        print_table(summary)


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
    return load_problem(data, None, smoke, unit_features=unit_features)
