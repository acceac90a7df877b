r"""Figure 3 of the TV-GP-UCB paper: temperatures of a lab, speeds on a freeway.

Temperatures (`intel`): 50 sensors of the Intel lab, half hours of five days; find the
hottest. The first three days give the covariance of the sensors and eps, by marginal
likelihood; N of R-GP-UCB is the best of a few on the third day. The last two days, one
pull a step. The paper has 46 sensors at 10 minutes, eps = 0.03 and N = 15; its c1 =
0.8, c2 = 0.4 and a noise variance of 0.5.

Speeds (`traffic`): stations with at least 75 % of measured readings, 50 of them drawn
at random; find the fastest. Two thirds of the 14 days give covariance and eps, with
days independent; the last days one by one, c1 = 0.2, c2 = 0.4, a noise variance of 5 %
of the signal's (the paper's 5.0 for its own freeway), without R-GP-UCB as in the paper.

The covariance is about the mean of all readings of the training days, one number,
which is subtracted everywhere: the bandits' prior mean is zero. (A mean per sensor
would leave the differences between sensors out of the covariance.) Readings are used
without noise on top. Every bandit starts from each of 20 first sensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from torch import Tensor

from benchmarks import drift
from benchmarks.drift import new_bandit, paired
from benchmarks.record import Report
from botorch_bkb.acquisition import LogWidth
from botorch_bkb.models.kernels import nearest_covariance, PrecomputedKernel
from botorch_bkb.plotting import blank_figure, tidy_axes
from botorch_bkb.test_functions import (
    load_intel_temperature,
    load_traffic_speed,
    TimeSeriesProblem,
)


NUM_STARTS = 20
BLOCK_SIZES = (5, 10, 15, 24, 48)
COLORS = {"TV-GP-UCB": "C0", "R-GP-UCB": "C1", "GP-UCB": "C2", "random": "0.5"}


class Series:
    """Training days and test days of a data set, about the mean of the training days.

    Args:
        train: The ``T x A`` readings of each training day.
        test: Those of each stretch of time on which bandits are run.
        noise_variance: lambda.
        width: The confidence width.
    """

    def __init__(
        self,
        train: list[Tensor],
        test: dict[str, Tensor],
        noise_variance: float | None,
        width: LogWidth,
    ) -> None:
        readings = torch.cat(train)
        self.mean = readings.mean().item()
        self.train = [day - self.mean for day in train]
        self.test = {name: day - self.mean for name, day in test.items()}
        about = torch.cat(self.train)
        self.covariance = nearest_covariance(about.mT @ about / len(about))
        signal = self.covariance.diagonal().mean().item()
        self.noise_variance = (
            0.05 * signal if noise_variance is None else noise_variance
        )
        self.width = width
        self.forgetting_rate = learn_rate(
            self.train, self.covariance, self.noise_variance
        )


def learn_rate(days: list[Tensor], covariance: Tensor, noise_variance: float) -> float:
    """Return the eps of the largest marginal likelihood, equation (24).

    With all arms read at every time, the covariance is a Kronecker product.
    """
    k, U = torch.linalg.eigh(covariance)

    def loss(log_rate: float) -> float:
        total = 0.0
        for day in days:
            steps = torch.arange(len(day)).to(day)
            gaps = (steps.unsqueeze(-1) - steps).abs()
            d, R = torch.linalg.eigh((1 - math.exp(log_rate)) ** (gaps / 2))
            spectrum = torch.outer(d, k).clamp_min(0.0) + noise_variance
            rotated = R.mT @ day @ U
            total += (spectrum.log() + rotated.square() / spectrum).sum().item()
        return total

    return math.exp(minimize_scalar(loss, bounds=(-12.0, -0.01), method="bounded").x)


def intel_series(table: pd.DataFrame) -> Series:
    """Return the temperatures: three days, then two."""
    days = [
        torch.from_numpy(day.to_numpy(dtype="float64", copy=True))
        for _, day in table.groupby(level="day")
    ]
    test = {"days 4 and 5": torch.cat(days[3:])}
    # Consecutive days are one stretch of time.
    return Series([torch.cat(days[:3])], test, 0.5, LogWidth(0.8, 0.4))


def traffic_series(table: pd.DataFrame, num_stations: int = 50) -> Series:
    """Return the speeds of some stations: two thirds of the days, then the others."""
    stream = np.random.default_rng(0)
    size = min(num_stations, table.shape[1])
    chosen = stream.choice(table.shape[1], size=size, replace=False)
    days = {
        str(day): torch.from_numpy(one.to_numpy(dtype="float64", copy=True))
        for day, one in table.iloc[:, np.sort(chosen)].groupby(level="day")
    }
    names = list(days)
    split = math.ceil(2 * len(names) / 3)
    train = [days[name] for name in names[:split]]
    test = {name: days[name] for name in names[split:]}
    return Series(train, test, None, LogWidth(0.2, 0.4))


def made_up_table(data: str) -> pd.DataFrame:
    """Return a small table of the same form."""
    rng = np.random.default_rng(0)
    days, slots, arms = 5, 12, 6
    walk = rng.normal(size=(days * slots, arms)).cumsum(axis=0) / 3
    day = np.repeat(np.arange(1, days + 1), slots)
    second = np.tile(np.arange(slots), days)
    names = ["day", "hour" if data == "intel" else "slot"]
    index = pd.MultiIndex.from_arrays([day, second], names=names)
    return pd.DataFrame(20 + walk, index=index)


def play(
    series: Series, values: Tensor, names: Sequence[str], block_size: int, start: int
) -> pd.DataFrame:
    """Let bandits go over a stretch of time on the training days' covariance."""
    arms = torch.arange(len(series.covariance)).double().unsqueeze(-1)
    model = (arms, PrecomputedKernel(series.covariance), series.noise_variance)
    rate = series.forgetting_rate
    bandits = {
        name: new_bandit(
            name, model, series.width, start, rate=rate, block_size=block_size
        )
        for name in names
    }
    # Readings have no noise on top, so its seed does not matter.
    return drift.play(TimeSeriesProblem(values), bandits, len(values), 0, start)


def best_block(series: Series, starts: list[int]) -> int:
    """Return the N of the least regret on the last third of the training days."""
    values = torch.cat(series.train)
    values = values[2 * len(values) // 3 :]

    def regret(size: int) -> float:
        runs = [play(series, values, ["R-GP-UCB"], size, start) for start in starts]
        return float(np.mean([run["average_regret"].iloc[-1] for run in runs]))

    return min(BLOCK_SIZES, key=regret)


class RealDrift:
    """Figure 3 of the TV-GP-UCB paper."""

    keys = ("data", "seed")
    seeds = range(NUM_STARTS)

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke

    def runs(self, seed: int) -> list[tuple[str, int]]:
        """Return a start of either data set."""
        return [("intel", seed), ("traffic", seed)]

    def play(self, data: str, seed: int) -> pd.DataFrame:
        """Let all bandits of a data set go over all its test stretches."""
        series, starts, block_size = _learned(data, self.smoke)
        names = ["TV-GP-UCB", "GP-UCB", "random"]
        if block_size:
            names.insert(1, "R-GP-UCB")
        tables = []
        for stretch, values in series.test.items():
            table = play(series, values, names, block_size, starts[seed])
            table.insert(0, "stretch", stretch)
            tables.append(table)
        return pd.concat(tables, ignore_index=True).assign(
            eps=series.forgetting_rate, block_size=block_size
        )

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the average regret at the end, and a picture per data set."""
        table = paired(rows, ["data", "stretch"])
        pictures = {
            f"drift_real_{data}": draw(one, str(data))
            for data, one in rows.groupby("data", sort=False)
        }
        return {"drift_real": table}, pictures


@functools.cache
def _learned(data: str, smoke: bool) -> tuple[Series, list[int], int]:
    """Return the series, the first sensors, and the N of R-GP-UCB, 0 without it."""
    if smoke:
        table = made_up_table(data)
    else:
        table = load_intel_temperature() if data == "intel" else load_traffic_speed()
    series = intel_series(table) if data == "intel" else traffic_series(table)
    num_arms = len(series.covariance)
    stream = np.random.default_rng(1)
    size = min(NUM_STARTS, num_arms)
    starts = [int(arm) for arm in stream.choice(num_arms, size, replace=False)]
    return series, starts, best_block(series, starts) if data == "intel" else 0


def draw(runs: pd.DataFrame, data: str) -> Figure:
    """Draw average regret over time, a panel for each stretch."""
    stretches = list(runs["stretch"].unique())
    figure = blank_figure(min(4.6 * len(stretches), 14.0), 3.8)
    panels = figure.subplots(1, len(stretches), squeeze=False, sharey=True)[0]
    for axes, stretch in zip(panels, stretches, strict=True):
        one = runs[runs["stretch"] == stretch]
        for name in one["bandit"].unique():
            chosen = one[one["bandit"] == name]
            mean = chosen.groupby("step")["average_regret"].mean()
            axes.plot(mean.index, mean, color=COLORS[name], label=name)
        axes.set(title=stretch, xlabel="time (steps)")
        tidy_axes(axes)
    unit = "degrees" if data == "intel" else "miles per hour"
    panels[0].set_ylabel(f"average regret ({unit})")
    panels[0].legend(fontsize="small")
    return figure
