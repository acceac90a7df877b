"""Figures 3, 4, 5 and 7 of the Thompson sampling paper: the error decays exponentially.

Section 5 of K. Basu and S. Ghosh, "Analysis of Thompson sampling for Gaussian process
optimization in the bandit setting": f1 (bimodal, on [0, 7]), f2 (bimodal, on [0, 7]^2)
with noise of standard deviation 0.1 to 5, and f_beta (flatter and flatter) with 0.1;
one uniform point, then thirty points a round, kernel RBF with hyper-parameters by
maximum a posteriori in every round. The paper leaves open the box of f_beta ([0, 10]
here), xi (0.05 here: the share of uniform points, which the theorem needs) and the
number of rounds.

After every round x_t is the mode of 64 draws from the distribution of the maximizer,
and its error is 2 log10(max(|x_t - x*| / |x*|, 1e-6)) with the true x*, which is not
exactly 5 in f1 and f2. Once the modes agree, the error falls no faster than one over
the square root of the number of points: so a line is fitted by least squares to the
rounds before, the first 8 (f1 and f_beta), 10 (f2), or all 40 with much noise (5, or 1
and more for f2). These numbers were fixed on other seeds. The slope has a 95 % interval
by a moving block bootstrap of the residuals (blocks of five rounds, 2,000 resamples).

Writes `thompson_summary.csv`, `thompson_3.png`, `thompson_4.png` and `thompson_7.png`,
and for figure 5 `thompson_maximizer.csv`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.record import Report
from botorch_bkb.bandits import BoxBandit, BoxThompsonSampling
from botorch_bkb.plotting import blank_figure, tidy_axes


NOISE_STDS = (0.1, 0.5, 1.0, 2.0, 5.0)
BETAS = (4.0, 2.0, 1.0, 0.5, 0.25)
FLAT_NOISE_STD = 0.1
BATCH_SIZE = 30
UNIFORM_PROBABILITY = 0.05  # the paper's xi
NUM_DRAWS = 64
ERROR_FLOOR = 1e-6
BLOCK_LENGTH = 5
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Bumps:
    """A sum of Gaussian bumps of one width, the highest last, on a ``2 x d`` box."""

    name: str
    bounds: Tensor
    centers: Tensor
    heights: Tensor
    squared_width: float = 1.0

    def __call__(self, points: Tensor) -> Tensor:
        """Return the ``...`` values of ``... x d`` points."""
        return self._bumps(points).sum(dim=-1)

    @property
    def maximizer(self) -> Tensor:
        """The global maximizer, a ``d``-dim tensor.

        Near the center of the highest bump, but not on it: the others pull. A fixed
        point of the mean shift, to which the iteration contracts.
        """
        point = self.centers[-1]
        for _ in range(200):
            weights = self._bumps(point)
            point = (weights.unsqueeze(-1) * self.centers).sum(dim=0) / weights.sum()
        return point

    def relative_error(self, points: Tensor) -> Tensor:
        """Return ``|x - x*| / |x*|`` of ``... x d`` points."""
        best = self.maximizer
        return (points - best).norm(dim=-1) / best.norm()

    def _bumps(self, points: Tensor) -> Tensor:
        squared = (points.unsqueeze(-2) - self.centers).square().sum(dim=-1)
        return self.heights * (-squared / (2 * self.squared_width)).exp()


def box(high: float, dimension: int) -> Tensor:
    """Return ``[0, high]^d``."""
    return torch.tensor([[0.0], [high]], dtype=torch.double).repeat(1, dimension)


def bimodal(dimension: int) -> Bumps:
    """Return f1 (one dimension) or f2 (two): bumps at 2 and 5, one twice as high."""
    ends = torch.tensor([[2.0], [5.0]], dtype=torch.double).repeat(1, dimension)
    scale = (2 * math.pi) ** (-dimension / 2)
    heights = torch.tensor([5.0, 10.0], dtype=torch.double) * scale
    return Bumps(f"f{dimension}", box(7.0, dimension), ends, heights)


def flat(beta: float) -> Bumps:
    """Return f_beta: one bump at 5 of height beta, on [0, 10]."""
    center = torch.tensor([[5.0]], dtype=torch.double)
    height = torch.tensor([beta], dtype=torch.double)
    return Bumps(f"f_beta, beta = {beta:g}", box(10.0, 1), center, height, 4.0)


class ThompsonDecay:
    """Figures 3, 4 and 7 of the Thompson sampling paper."""

    keys = ("function", "noise_std", "seed")
    seeds = range(200, 203)

    def __init__(self, smoke: bool) -> None:
        self.rounds = 4 if smoke else 40
        noise_stds = (0.1, 5.0) if smoke else NOISE_STDS
        betas = (4.0, 0.25) if smoke else BETAS
        self.tasks = [(bimodal(d), std) for d in (1, 2) for std in noise_stds]
        self.tasks += [(flat(beta), FLAT_NOISE_STD) for beta in betas]

    def runs(self, seed: int) -> list[tuple[str, float, int]]:
        """Return the runs of a seed."""
        return [(function.name, noise_std, seed) for function, noise_std in self.tasks]

    def play(self, name: str, noise_std: float, seed: int) -> pd.DataFrame:
        """Return one row per round."""
        functions = {function.name: function for function, _ in self.tasks}
        return play(functions[name], noise_std, self.rounds, seed)

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the slopes and the pictures."""
        slopes = fit_slopes(rows)
        return {"thompson_summary": summarize(slopes)}, draw_figures(rows, slopes)


class ThompsonMaximizer:
    """Figure 5: how the distribution of the maximizer of f1 closes in, noise 5."""

    keys = ("seed",)
    seeds = range(1)

    def __init__(self, smoke: bool) -> None:
        self.rounds = 4 if smoke else 40
        self.num_draws = NUM_DRAWS if smoke else 400

    def runs(self, seed: int) -> list[tuple[int]]:
        """Return the only run of a seed."""
        return [(seed,)]

    def play(self, seed: int) -> pd.DataFrame:
        """Return the draws of the maximizer after some rounds."""
        draws = torch.Generator().manual_seed(2000 + seed)
        shown = {0, *np.linspace(1, self.rounds, 5).round().astype(int).tolist()}
        tables = []
        for number, _, bandit in campaign(bimodal(1), 5.0, self.rounds, seed):
            if number in shown:
                best = bandit.maximizer_distribution(self.num_draws, draws).maximizers
                table = pd.DataFrame({"maximizer": best.squeeze(-1).numpy()})
                tables.append(table.assign(round=number))
        return pd.concat(tables, ignore_index=True)

    def report(self, rows: pd.DataFrame) -> Report:
        """Return how near the draws are."""
        distance = (rows["maximizer"] - bimodal(1).maximizer.item()).abs()
        groups = distance.groupby(rows["round"])
        columns = {
            "median_distance": groups.median(),
            "largest_distance": groups.max(),
        }
        return {"thompson_maximizer": pd.DataFrame(columns).reset_index()}, {}


def campaign(
    function: Bumps, noise_std: float, rounds: int, seed: int
) -> Iterator[tuple[int, Tensor, BoxBandit]]:
    """Yield the number of each round, its points, and the bandit; round 0 is empty.

    The first round is one uniform point, as in the paper's algorithm.
    """
    bandit = BoxThompsonSampling(
        function.bounds,
        uniform_probability=UNIFORM_PROBABILITY,
        batch_size=BATCH_SIZE,
        oversampling=2.0,
        raw_samples=256,
        num_restarts=2,
        generator=torch.Generator().manual_seed(seed),
    )
    noises = torch.Generator().manual_seed(1000 + seed)
    yield 0, function.bounds[:0], bandit
    for number in range(1, rounds + 1):
        points = bandit.ask(1 if number == 1 else BATCH_SIZE)
        noise = torch.randn(len(points), generator=noises, dtype=torch.double)
        bandit.tell(points, function(points) + noise_std * noise)
        yield number, points, bandit


def play(function: Bumps, noise_std: float, rounds: int, seed: int) -> pd.DataFrame:
    """Return one row per round: errors of x_t and of one point of the batch."""
    draws = torch.Generator().manual_seed(2000 + seed)
    rows = []
    for number, points, bandit in campaign(function, noise_std, rounds, seed):
        if number:
            distribution = bandit.maximizer_distribution(NUM_DRAWS, draws)
            rows.append(
                {
                    "round": number,
                    "error": log_error(function, distribution.mode),
                    "point_error": log_error(function, points[0]),
                    "deviation": distribution.variance.sum().sqrt().item(),
                }
            )
    return pd.DataFrame(rows)


def log_error(function: Bumps, point: torch.Tensor) -> float:
    """Return twice the decimal logarithm of the relative error, floored."""
    error = function.relative_error(point).clamp_min(ERROR_FLOOR)
    return 2 * error.log10().item()


def fit_slope(errors: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the least-squares slope per round, and whether it is surely negative.

    It is if its whole 95 % interval is, by a moving block bootstrap of the residuals.
    """
    n = len(errors)
    x = np.arange(n) - (n - 1) / 2
    line = np.polyfit(x, errors, deg=1)
    residuals = errors - np.polyval(line, x)
    rng = np.random.default_rng(0)
    length = min(BLOCK_LENGTH, n)
    starts = rng.integers(0, n - length + 1, (NUM_RESAMPLES, -(-n // length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(NUM_RESAMPLES, -1)[:, :n]
    moves = residuals[rows] @ x / (x @ x)
    # Blocks at the ends are drawn less often: the moves do not average to zero.
    high = line[0] + np.quantile(moves - moves.mean(), 0.975)
    return float(line[0]), bool(high < 0)


def straight_rounds(function: str, noise_std: float) -> int:
    """Return how many rounds the line is fitted to."""
    if function == "f2":
        return 10 if noise_std < 1 else 40
    return 8 if noise_std < 5 else 40


def fit_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run."""
    keys = ["function", "noise_std", "seed"]
    rows = []
    for key, one in table.groupby(keys, sort=False):
        function, noise_std, _ = cast(tuple[str, float, int], key)
        errors = one["error"].to_numpy()
        straight = errors[: straight_rounds(function, noise_std)]
        last = float(np.median(errors[-5:]))
        rows.append((*key, *fit_slope(straight), last))
    return pd.DataFrame(rows, columns=[*keys, "slope", "is_negative", "last_error"])


def summarize(slopes: pd.DataFrame) -> pd.DataFrame:
    """Return one row per function and noise: means over the seeds."""
    groups = slopes.groupby(["function", "noise_std"], sort=False)
    return groups.agg(
        runs=("slope", "size"),
        slope=("slope", "mean"),
        share_negative=("is_negative", "mean"),
        last_error=("last_error", "median"),
    ).reset_index()


def draw_figures(table: pd.DataFrame, slopes: pd.DataFrame) -> dict[str, Figure]:
    """Return the figures, named by their number in the paper."""
    noise_stds = sorted(table.loc[table["function"] == "f1", "noise_std"].unique())
    flat_names = [name for name in table["function"].unique() if "beta" in name]
    curves = {
        "3: f1 by noise": {f"noise {std:g}": ("f1", std) for std in noise_stds},
        "4: f2 by noise": {f"noise {std:g}": ("f2", std) for std in noise_stds},
        "7: flatter functions": {name: (name, FLAT_NOISE_STD) for name in flat_names},
    }
    return {
        f"thompson_{title[0]}": draw_decay(table, slopes, panels, f"Figure {title}")
        for title, panels in curves.items()
    }


def draw_decay(
    table: pd.DataFrame,
    slopes: pd.DataFrame,
    curves: Mapping[str, tuple[str, float]],
    title: str,
) -> Figure:
    """Draw errors over rounds, a panel for each curve: medians, runs and the fit."""
    figure = blank_figure(2.6 * len(curves), 3.4)
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (label, curve) in zip(panels, curves.items(), strict=True):
        one = _select(table, *curve)
        errors = one.pivot(index="round", columns="seed", values="error")
        axes.plot(errors, color="C0", alpha=0.2, linewidth=0.8)
        median = errors.median(axis=1)
        axes.plot(median, color="C0", linewidth=1.8, label="mode, median")
        straight = median.iloc[: straight_rounds(*curve)]
        fit = np.polyval(np.polyfit(straight.index, straight, deg=1), straight.index)
        axes.plot(straight.index, fit, "k--", linewidth=1, label="fit")
        fits = _select(slopes, *curve)
        axes.set_title(
            f"{label}\nslope {fits['slope'].mean():.3f}; surely negative "
            f"{fits['is_negative'].mean():.0%}",
            fontsize="small",
        )
        axes.set_xlabel("round")
        tidy_axes(axes)
    panels[0].set_ylabel("2 log10 relative error")
    panels[0].legend(frameon=False, fontsize="x-small", loc="lower left")
    figure.suptitle(title, fontsize="medium")
    return figure


def _select(table: pd.DataFrame, function: str, noise_std: float) -> pd.DataFrame:
    return table[(table["function"] == function) & (table["noise_std"] == noise_std)]
