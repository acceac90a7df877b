r"""Figure 2 of the TV-GP-UCB paper: average regret on functions that drift.

A grid of 50 x 50 arms on the unit square, functions of the paper's model with a squared
exponential or Matern-5/2 kernel of lengthscale 0.2, noise variance 0.01, beta_t = 0.8
log(4 t), T = 200; eps of 0.001, 0.01 and 0.03. TV-GP-UCB (exact and sparse) with the
true eps, R-GP-UCB with the paper's N, GP-UCB, and a uniform choice. Trials are paired:
all bandits of a trial see the same function and the same noise, of streams apart.

(a), (b): matched, either kernel. (c), (d): squared exponential, eps = 0.01, and another
eps or N in the algorithm; the band is one standard deviation. The paper has 200
trials.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.record import Report
from botorch_bkb import GPUCB, RGPUCB, TVGPUCB, UniformRandom
from botorch_bkb.acquisition import LogWidth
from botorch_bkb.bandits import FiniteArmBandit, matern_block_size, rbf_block_size
from botorch_bkb.plotting import blank_figure, tidy_axes
from botorch_bkb.test_functions import MarkovGPProblem
from botorch_bkb.test_functions.drifting import DriftingProblem


NOISE_VARIANCE = 0.01
RATES = (0.001, 0.01, 0.03)
MISMATCHED_RATE = 0.01
WRONG_RATES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
WRONG_BLOCKS = (5, 10, 20, 38, 60, 100, 200)
WIDTH = LogWidth(0.8, 4.0)


def new_kernel(name: str) -> Kernel:
    """Return one of the paper's kernels."""
    kernel = (RBFKernel() if name == "SE" else MaternKernel(nu=2.5)).double()
    kernel.lengthscale = 0.2
    return kernel.requires_grad_(False)


def new_bandit(
    name: str,
    model: tuple[Tensor, Kernel, float],
    width: LogWidth,
    seed: int,
    *,
    rate: float = 0.0,
    block_size: int = 0,
) -> FiniteArmBandit:
    """Return a bandit by its name; ``model`` is arms, kernel and noise variance."""
    stream = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"confidence": width, "generator": stream}
    if name.startswith("TV-GP-UCB"):
        is_sparse = name.endswith("sparse")
        return TVGPUCB(*model, forgetting_rate=rate, sparse=is_sparse, **options)
    if name == "R-GP-UCB":
        return RGPUCB(*model, block_size=block_size, **options)
    if name == "GP-UCB":
        return GPUCB(*model, **options)
    return UniformRandom(*model, **options)


def play(
    problem: DriftingProblem,
    bandits: dict[str, FiniteArmBandit],
    horizon: int,
    seed: int,
    start: int | None = None,
) -> pd.DataFrame:
    """Let all bandits pull one arm a step; return average regrets up to each step.

    Args:
        problem: At its first step.
        bandits: Without observations, by name.
        horizon: The number of steps.
        seed: Of the noise.
        start: The first arm of all bandits; None if they choose.
    """
    streams = {name: torch.Generator().manual_seed(seed) for name in bandits}
    regrets: dict[str, list[float]] = {name: [] for name in bandits}
    for step in range(horizon):
        available = None
        if step:
            problem.advance()
        elif start is not None:
            available = torch.arange(len(problem.arms)) == start
        for name, bandit in bandits.items():
            indices = bandit.ask(available=available)
            regrets[name].append(problem.regret(indices).item())
            bandit.tell(indices, problem.sample(indices, streams[name]))
    table = pd.DataFrame(regrets, index=pd.RangeIndex(1, horizon + 1, name="step"))
    average = table.cumsum().div(table.index, axis="index")
    table = average.reset_index().melt("step", None, "bandit", "average_regret")
    return table[["bandit", "step", "average_regret"]]


class Drift:
    """Figure 2 of the TV-GP-UCB paper."""

    keys = ("part", "kernel", "eps", "seed")
    seeds = range(100, 300)

    def __init__(self, smoke: bool) -> None:
        self.horizon, side = (20, 8) if smoke else (200, 50)
        self.wrong_rates = (0.0, 0.01) if smoke else WRONG_RATES
        self.wrong_blocks = (5, 20) if smoke else WRONG_BLOCKS
        line = torch.linspace(0, 1, side, dtype=torch.double)
        self.arms = torch.cartesian_prod(line, line)

    def runs(self, seed: int) -> list[tuple[str, str, float, int]]:
        """Return the trials of a seed: a function, and the bandits that see it."""
        kernels = ("SE", "Matern-5/2")
        matched = [("matched", name, rate, seed) for name in kernels for rate in RATES]
        return [*matched, ("mismatched", "SE", MISMATCHED_RATE, seed)]

    def play(self, part: str, kernel: str, rate: float, seed: int) -> pd.DataFrame:
        """Return average regrets up to every tenth step."""
        model = (self.arms, new_kernel(kernel), NOISE_VARIANCE)
        if part == "matched":
            if kernel == "SE":
                size = rbf_block_size(rate, self.horizon)
            else:
                size = matern_block_size(rate, self.horizon, nu=2.5, dimension=2)
            names = ("TV-GP-UCB", "TV-GP-UCB, sparse", "R-GP-UCB", "GP-UCB", "uniform")
            algorithms = {name: (name, rate, size) for name in names}
        else:
            algorithms = {
                f"eps = {other:g}": ("TV-GP-UCB", other, 0)
                for other in self.wrong_rates
            }
            for other in self.wrong_blocks:
                algorithms[f"N = {other}"] = ("R-GP-UCB", 0.0, other)
        bandits = {
            label: new_bandit(
                name, model, WIDTH, 2000 + seed, rate=rate, block_size=size
            )
            for label, (name, rate, size) in algorithms.items()
        }
        stream = torch.Generator().manual_seed(seed)
        problem = MarkovGPProblem(*model[:2], rate, NOISE_VARIANCE**0.5, stream)
        # Not the seed of the function: its draws would come again as noise.
        table = play(problem, bandits, self.horizon, 1000 + seed)
        return table[table["step"] % 10 == 0]

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the tables and the picture."""
        matched = rows[rows["part"] == "matched"]
        tables = {
            "drift_matched": paired(matched, ["kernel", "eps"]),
            "drift_mismatched": summarize_mismatch(rows),
        }
        return tables, {"drift": draw(rows)}


def paired(steps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return average regrets at the end, and the paired differences to TV-GP-UCB."""
    last = steps[steps["step"] == steps.groupby(keys)["step"].transform("max")]
    tables = {}
    for key, one in last.groupby(keys):
        wide = one.pivot(index="seed", columns="bandit", values="average_regret")
        wide = wide[one["bandit"].unique()]
        gaps = wide.sub(wide["TV-GP-UCB"], axis="index")
        columns = {
            "trials": wide.count(),
            "average_regret": wide.mean(),
            "over_TV-GP-UCB": gaps.mean(),
            "standard_error": gaps.sem(),
        }
        tables[key] = pd.DataFrame(columns)
    return pd.concat(tables, names=keys).reset_index()


def summarize_mismatch(steps: pd.DataFrame) -> pd.DataFrame:
    """Return mean and deviation of R_T / T by the eps or N of the algorithm."""
    is_last = steps["step"] == steps["step"].max()
    last = steps[(steps["part"] == "mismatched") & is_last]
    groups = last.groupby("bandit", sort=False)["average_regret"]
    columns = {
        "trials": groups.size(),
        "average_regret": groups.mean(),
        "deviation": groups.std(),
    }
    return pd.DataFrame(columns).reset_index()


def draw(steps: pd.DataFrame) -> Figure:
    """Draw the four panels."""
    figure = blank_figure(11.0, 8.0)
    (a, b), (c, d) = figure.subplots(2, 2)
    for axes, name, letter in ((a, "SE", "a"), (b, "Matern-5/2", "b")):
        one = steps[(steps["part"] == "matched") & (steps["kernel"] == name)]
        for color, rate in enumerate(RATES):
            for bandit, style in (("TV-GP-UCB", "-"), ("R-GP-UCB", "--")):
                chosen = one[(one["eps"] == rate) & (one["bandit"] == bandit)]
                mean = chosen.groupby("step")["average_regret"].mean()
                label = f"{bandit}, eps = {rate:g}"
                axes.plot(mean.index, mean, style, color=f"C{color}", label=label)
        axes.set(title=f"({letter}) {name} kernel, matched", xlabel="time")
        axes.set_ylabel("average regret R_T / T")
        axes.legend(fontsize="x-small", ncols=2)
        tidy_axes(axes)
    summary = summarize_mismatch(steps).set_index("bandit")
    _draw_mismatch(c, summary, "eps = ", f"(c) TV-GP-UCB, true eps {MISMATCHED_RATE:g}")
    _draw_mismatch(d, summary, "N = ", "(d) R-GP-UCB, the same functions")
    return figure


def _draw_mismatch(axes: Axes, summary: pd.DataFrame, key: str, title: str) -> None:
    chosen = summary[summary.index.str.startswith(key)].fillna(0.0)
    places = np.arange(len(chosen))
    mean, std = chosen["average_regret"].to_numpy(), chosen["deviation"].to_numpy()
    axes.fill_between(places, mean - std, mean + std, alpha=0.2, linewidth=0)
    axes.plot(places, mean, "o-")
    axes.set_xticks(places, [label.removeprefix(key) for label in chosen.index])
    axes.set(title=title, xlabel=key.strip(" ="), ylabel="average regret R_T / T")
    tidy_axes(axes)
