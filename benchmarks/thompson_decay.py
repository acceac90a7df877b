"""Figures 1 to 7 of the Thompson sampling paper: the error decays exponentially.

Section 5 of K. Basu and S. Ghosh, "Analysis of Thompson sampling for Gaussian process
optimization in the bandit setting": f1 (bimodal, on [0, 7]), f2 (bimodal, on [0, 7]^2)
with noise of standard deviation 0.1 to 5, and f_beta (flatter and flatter) with 0.1;
one uniform point, then thirty points a round, kernel RBF with hyper-parameters by
maximum a posteriori, here re-estimated on the bandit's own schedule. The paper leaves
open the box of f_beta ([0, 10] here), xi (0 here: no uniform points after the first)
and the number of rounds.

After every round x_t is the mode of 64 draws from the distribution of the maximizer,
and its error is 2 log10(max(|x_t - x*| / |x*|, 1e-6)) with the true x*, which is not
exactly 5 in f1 and f2. Once the modes agree, the error falls no faster than one over
the square root of the number of points, which is no straight line: the line is fitted
by least squares to the rounds before, the first 8 (f1 and f_beta), 10 (f2), or all 40
where noise makes them last longer (noise of 5, or of 1 and more for f2). These numbers
were fixed on the seeds 0 to 9 and 20 to 23, which are not among those that are run
here. The slope has a 95 % interval by a moving block bootstrap of the residuals (blocks
of five rounds, 2,000 resamples), which keeps the rounds as they are and the dependence
between neighbours. Resampling blocks of whole rounds instead (`pairs_high` is the upper
end of that interval) leaves out the first ones in most resamples, and with them the
decay; both shares are printed. The pictures show the errors of single points of the
batches in grey.

The bar: over f1 and f2 with noise of at most 1, the slope is negative beyond its
interval in at least 90 % of the runs.

Writes `thompson_slopes.csv`, `thompson_summary.csv` and `thompson_1.png` to
`thompson_7.png`, without 5; that one is `thompson_maximizer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.record import print_table, Record
from benchmarks.thompson_functions import bimodal, Bumps, flat
from botorch_bkb.bandits import BoxThompsonSampling, rbf_to_learn
from botorch_bkb.plotting import blank_figure


NOISE_STDS = (0.1, 0.5, 1.0, 2.0, 5.0)
BETAS = (4.0, 2.0, 1.0, 0.5, 0.25)
FLAT_NOISE_STD = 0.1
MAX_BAR_NOISE_STD = 1.0
NUM_DRAWS = 64
ERROR_FLOOR = 1e-6
BLOCK_LENGTH = 5
NUM_RESAMPLES = 2000
FIRST_SEED = 200


class Run(NamedTuple):
    """A function, its noise and a seed."""

    function: str
    noise_std: float
    seed: int


class ThompsonDecay:
    """Figures 1 to 4, 6 and 7 of the Thompson sampling paper."""

    keys = Run._fields
    repetitions = 10

    def __init__(self, smoke: bool) -> None:
        self.rounds = 4 if smoke else 40
        noise_stds = (0.1, 5.0) if smoke else NOISE_STDS
        betas = (4.0, 0.25) if smoke else BETAS
        self.tasks = [(bimodal(d), std) for d in (1, 2) for std in noise_stds]
        self.tasks += [(flat(beta), FLAT_NOISE_STD) for beta in betas]

    def runs(self, repetitions: int) -> list[Run]:
        """Return the runs of some seeds."""
        return [
            Run(function.name, noise_std, seed)
            for seed in range(FIRST_SEED, FIRST_SEED + repetitions)
            for function, noise_std in self.tasks
        ]

    def seconds(self, run: Run) -> float:
        """Return about how long a run takes."""
        return 60.0 if run.function == "f2" else 30.0

    def play(self, run: Run) -> pd.DataFrame:
        """Return one row per round."""
        functions = {function.name: function for function, _ in self.tasks}
        return play(functions[run.function], run.noise_std, self.rounds, run.seed)

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Fit, write, draw and print."""
        slopes = fit_slopes(rows)
        record.write_table(slopes, "thompson_slopes")
        summary = summarize(slopes)
        record.write_table(summary, "thompson_summary")
        print_table(summary)
        print_bar(slopes)
        for number, figure in draw_figures(rows, slopes).items():
            record.write_figure(figure, f"thompson_{number}")


class Seed(NamedTuple):
    """The only key of a run that is repeated without a change."""

    seed: int


class ThompsonMaximizer:
    """Figure 5: how the distribution of the maximizer of f1 closes in, noise 5."""

    keys = Seed._fields
    repetitions = 1

    def __init__(self, smoke: bool) -> None:
        self.rounds = 4 if smoke else 40
        self.num_draws = NUM_DRAWS if smoke else 400

    def runs(self, repetitions: int) -> list[Seed]:
        """Return the runs of some seeds."""
        return [Seed(seed) for seed in range(repetitions)]

    def seconds(self, run: Seed) -> float:
        """Return about how long a run takes."""
        return 60.0

    def play(self, run: Seed) -> pd.DataFrame:
        """Return the draws of the maximizer after some rounds."""
        function = bimodal(1)
        bandit = BoxThompsonSampling(
            function.bounds,
            new_kernel=rbf_to_learn,
            uniform_probability=0.0,
            spread=1.0,
            generator=torch.Generator().manual_seed(run.seed),
        )
        noises = torch.Generator().manual_seed(1000 + run.seed)
        draws = torch.Generator().manual_seed(2000 + run.seed)
        shown = {0, *np.linspace(1, self.rounds, 5).round().astype(int).tolist()}
        tables = []
        for number in range(self.rounds + 1):
            if number in shown:
                best = bandit.maximizer_distribution(self.num_draws, draws).maximizers
                table = pd.DataFrame({"maximizer": best.squeeze(-1).numpy()})
                tables.append(table.assign(round=number))
            points = bandit.ask()
            noise = torch.randn(len(points), generator=noises, dtype=torch.double)
            bandit.tell(points, function(points) + 5 * noise)
        return pd.concat(tables, ignore_index=True)

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Draw, and print how near the draws are."""
        best = bimodal(1).maximizer.item()
        distance = (rows["maximizer"] - best).abs().rename("distance")
        groups = pd.concat([rows["round"], distance], axis=1).groupby("round")
        table = groups["distance"].agg(["median", "max"]).reset_index()
        record.write_table(table, "thompson_maximizer")
        print_table(table)
        record.write_figure(draw_distributions(rows), "thompson_5")


def play(
    function: Bumps, noise_std: float, rounds: int, seed: int, batch_size: int = 30
) -> pd.DataFrame:
    """Return one row per round: errors of x_t and of one point of the batch.

    The first round is one uniform point, as in the paper's algorithm.
    """
    bandit = BoxThompsonSampling(
        function.bounds,
        new_kernel=rbf_to_learn,
        uniform_probability=0.0,
        spread=1.0,
        raw_samples=256,
        num_restarts=2,
        generator=torch.Generator().manual_seed(seed),
    )
    noises = torch.Generator().manual_seed(1000 + seed)
    draws = torch.Generator().manual_seed(2000 + seed)
    rows = []
    for number in range(1, rounds + 1):
        points = bandit.ask(1 if number == 1 else batch_size)
        noise = torch.randn(len(points), generator=noises, dtype=torch.double)
        bandit.tell(points, function(points) + noise_std * noise)
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


def slope_interval(
    errors: NDArray[np.float64], seed: int = 0
) -> tuple[float, float, float]:
    """Return the least-squares slope per round, and its 95 % bootstrap interval.

    A moving block bootstrap of the residuals; the percentiles of the resampled slopes.
    """
    x = _centered_rounds(len(errors))
    line = np.polyfit(x, errors, deg=1)
    residuals = errors - np.polyval(line, x)
    moves = residuals[_resampled_rounds(len(errors), seed)] @ x / (x @ x)
    # Blocks at the ends are drawn less often: the moves do not average to zero.
    low, high = np.quantile(moves - moves.mean(), [0.025, 0.975])
    return float(line[0]), float(line[0] + low), float(line[0] + high)


def pairs_high(errors: NDArray[np.float64], seed: int = 0) -> float:
    """Return the 97.5 % point of the slope if blocks of whole rounds are resampled."""
    rows = _resampled_rounds(len(errors), seed)
    x = rows - rows.mean(axis=1, keepdims=True)
    slopes = (x * errors[rows]).sum(axis=1) / (x**2).sum(axis=1).clip(1e-9)
    return float(np.quantile(slopes, 0.975))


def straight_rounds(function: str, noise_std: float) -> int:
    """Return how many rounds the line is fitted to."""
    if function == "f2":
        return 10 if noise_std < 1 else 40
    return 8 if noise_std < 5 else 40


def _centered_rounds(n: int) -> NDArray[np.float64]:
    return np.arange(n, dtype=np.float64) - (n - 1) / 2


def _resampled_rounds(n: int, seed: int) -> NDArray[np.int64]:
    """Return resamples of the rounds, in blocks of neighbours, one a row."""
    rng = np.random.default_rng(seed)
    length = min(BLOCK_LENGTH, n)
    starts = rng.integers(0, n - length + 1, (NUM_RESAMPLES, -(-n // length)))
    rows = starts[:, :, None] + np.arange(length)
    return rows.reshape(NUM_RESAMPLES, -1)[:, :n]


def fit_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run."""
    rows = []
    keys = ["function", "noise_std", "seed"]
    for key, one in table.groupby(keys, sort=False):
        function, noise_std, seed = cast(tuple[str, float, int], key)
        errors = one["error"].to_numpy()[: straight_rounds(function, noise_std)]
        slope, low, high = slope_interval(errors)
        by_pairs = pairs_high(errors)
        rows.append(
            {
                "function": function,
                "noise_std": noise_std,
                "seed": seed,
                "slope": slope,
                "low": low,
                "high": high,
                "pairs_high": by_pairs,
                "is_negative": high < 0,
                "is_negative_by_pairs": by_pairs < 0,
                "last_error": one["error"].iloc[-5:].median(),
            }
        )
    return pd.DataFrame(rows)


def summarize(slopes: pd.DataFrame) -> pd.DataFrame:
    """Return one row per function and noise: means over the seeds."""
    groups = slopes.groupby(["function", "noise_std"], sort=False)
    return groups.agg(
        runs=("slope", "size"),
        slope=("slope", "mean"),
        slope_deviation=("slope", "std"),
        share_negative=("is_negative", "mean"),
        last_error=("last_error", "median"),
    ).reset_index()


def print_bar(slopes: pd.DataFrame) -> None:
    """Print the share of runs in which the error surely decays."""
    inside = slopes["function"].isin(["f1", "f2"])
    inside &= slopes["noise_std"] <= MAX_BAR_NOISE_STD
    share = slopes.loc[inside, "is_negative"].mean()
    by_pairs = slopes.loc[inside, "is_negative_by_pairs"].mean()
    print(
        f"\nslope negative beyond its 95 % interval in {share:.0%} of "
        f"{inside.sum()} runs of f1 and f2 with noise of at most "
        f"{MAX_BAR_NOISE_STD:g} (bar: 90 %); {by_pairs:.0%} if whole rounds are "
        "resampled"
    )


def draw_figures(table: pd.DataFrame, slopes: pd.DataFrame) -> dict[int, Figure]:
    """Return the figures by their number in the paper."""
    noise_stds = sorted(table.loc[table["function"] == "f1", "noise_std"].unique())
    flat_names = [name for name in table["function"].unique() if "beta" in name]
    betas = [float(name.split("= ")[1]) for name in flat_names]
    decays = {
        3: {f"noise {s:g}": ("f1", s) for s in noise_stds},
        4: {f"noise {s:g}": ("f2", s) for s in noise_stds},
        7: {name: (name, FLAT_NOISE_STD) for name in flat_names},
    }
    titles = {
        3: "Figure 3: decay for f1 by noise",
        4: "Figure 4: decay for f2 by noise",
        7: "Figure 7: decay for f_beta, flatter and flatter",
    }
    figures = {
        1: draw_bimodal(noise_stds),
        2: draw_surface(),
        6: draw_flat(betas),
    }
    for number, curves in decays.items():
        figures[number] = draw_decay(table, slopes, curves, titles[number])
    return dict(sorted(figures.items()))


def draw_bimodal(noise_stds: Sequence[float]) -> Figure:
    """Draw f1, its 95 % bands of noise, and thirty observations."""
    function = bimodal(1)
    x = torch.linspace(0, 7, 300, dtype=torch.double).unsqueeze(-1)
    chosen = [noise_stds[0], noise_stds[len(noise_stds) // 2], noise_stds[-1]]
    figure = blank_figure(9.5, 3.2)
    stream = torch.Generator().manual_seed(0)
    for axes, noise_std in zip(figure.subplots(1, 3), chosen, strict=True):
        y = function(x)
        axes.fill_between(
            x.squeeze(-1), y - 1.96 * noise_std, y + 1.96 * noise_std, alpha=0.2
        )
        axes.plot(x, y, linewidth=1.6)
        points = 7 * torch.rand(30, 1, generator=stream, dtype=torch.double)
        noise = torch.randn(30, generator=stream, dtype=torch.double)
        axes.plot(points, function(points) + noise_std * noise, "k.", markersize=4)
        axes.set_title(f"noise {noise_std:g}", fontsize="medium")
        _tidy(axes, "x", "f1(x)")
    figure.suptitle("Figure 1: f1 with 95 % bands and thirty observations")
    return figure


def draw_surface() -> Figure:
    """Draw f2."""
    function = bimodal(2)
    side = torch.linspace(0, 7, 120, dtype=torch.double)
    grid = torch.cartesian_prod(side, side)
    figure = blank_figure(5.2, 4.2)
    axes = figure.subplots()
    shown = axes.pcolormesh(
        side.numpy(), side.numpy(), function(grid).reshape(120, 120).mT.numpy()
    )
    axes.plot(*function.maximizer, "r+", markersize=10, label="maximizer")
    axes.legend(loc="upper left")
    axes.set_aspect("equal")
    axes.set(xlabel="x1", ylabel="x2", title="Figure 2: f2")
    figure.colorbar(shown, ax=axes)
    return figure


def draw_flat(betas: Sequence[float]) -> Figure:
    """Draw f_beta."""
    x = torch.linspace(0, 10, 300, dtype=torch.double).unsqueeze(-1)
    figure = blank_figure(5.2, 3.6)
    axes = figure.subplots()
    for beta in betas:
        axes.plot(x, flat(beta)(x), label=f"beta = {beta:g}")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("Figure 6: f_beta, flatter as beta falls", fontsize="medium")
    _tidy(axes, "x", "f(x)")
    return figure


def draw_decay(
    table: pd.DataFrame,
    slopes: pd.DataFrame,
    curves: Mapping[str, tuple[str, float]],
    title: str,
) -> Figure:
    """Draw errors over rounds, a panel for each curve: medians, runs and the fit."""
    figure = blank_figure(2.6 * len(curves), 3.4)
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (label, (function, noise_std)) in zip(
        panels, curves.items(), strict=True
    ):
        one = _select(table, function, noise_std)
        wide = one.pivot(index="round", columns="seed", values="error")
        points = one.pivot(index="round", columns="seed", values="point_error")
        axes.plot(points.iloc[:, 0], color="0.7", linewidth=0.8, label="one point")
        axes.plot(wide, color="C0", alpha=0.2, linewidth=0.8)
        median = wide.median(axis=1)
        axes.plot(median, color="C0", linewidth=1.8, label="mode, median")
        straight = median.iloc[: straight_rounds(function, noise_std)]
        line = np.polyfit(straight.index, straight, deg=1)
        axes.plot(
            straight.index,
            np.polyval(line, straight.index),
            "k--",
            linewidth=1,
            label="fit",
        )
        fits = _select(slopes, function, noise_std)
        share = fits["is_negative"].mean()
        axes.set_title(
            f"{label}\nslope {fits['slope'].mean():.3f}; surely negative {share:.0%}",
            fontsize="small",
        )
        _tidy(axes, "round", "")
    panels[0].set_ylabel("2 log10 relative error")
    panels[0].legend(frameon=False, fontsize="x-small", loc="lower left")
    figure.suptitle(title, fontsize="medium")
    return figure


def draw_distributions(rows: pd.DataFrame) -> Figure:
    """Draw the draws of the maximizer of f1 after some rounds."""
    shown = sorted(rows["round"].unique())
    figure = blank_figure(2.1 * len(shown), 3.0)
    panels = figure.subplots(1, len(shown), sharex=True)
    for axes, number in zip(panels, shown, strict=True):
        best = rows.loc[rows["round"] == number, "maximizer"]
        axes.hist(best, bins=np.linspace(0, 7, 57).tolist(), density=True)
        axes.axvline(bimodal(1).maximizer.item(), color="r", linewidth=1)
        axes.set_title(f"after round {number}", fontsize="medium")
        _tidy(axes, "x", "density" if number == 0 else "")
    figure.suptitle("Figure 5: the distribution of the maximizer of f1, noise 5")
    return figure


def _select(table: pd.DataFrame, function: str, noise_std: float) -> pd.DataFrame:
    return table[(table["function"] == function) & (table["noise_std"] == noise_std)]


def _tidy(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
