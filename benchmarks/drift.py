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

from typing import Any, NamedTuple

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


NOISE_VARIANCE = 0.01
RATES = (0.001, 0.01, 0.03)
MISMATCHED_RATE = 0.01
WRONG_RATES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
WRONG_BLOCKS = (5, 10, 20, 38, 60, 100, 200)
FIRST_SEED = 100


def new_kernel(name: str) -> Kernel:
    """Return one of the paper's kernels."""
    kernel = (RBFKernel() if name == "SE" else MaternKernel(nu=2.5)).double()
    kernel.lengthscale = 0.2
    return kernel.requires_grad_(False)


def matched_bandits(
    arms: Tensor, name: str, rate: float, horizon: int, seed: int
) -> dict[str, FiniteArmBandit]:
    """Return the bandits of figures (a) and (b)."""
    if name == "SE":
        block_size = rbf_block_size(rate, horizon)
    else:
        block_size = matern_block_size(rate, horizon, nu=2.5, dimension=2)
    model = (arms, new_kernel(name), NOISE_VARIANCE)
    return {
        "TV-GP-UCB": TVGPUCB(*model, forgetting_rate=rate, **_options(seed)),
        "TV-GP-UCB, sparse": TVGPUCB(
            *model, forgetting_rate=rate, sparse=True, **_options(seed)
        ),
        "R-GP-UCB": RGPUCB(*model, block_size=block_size, **_options(seed)),
        "GP-UCB": GPUCB(*model, **_options(seed)),
        "uniform": UniformRandom(*model, **_options(seed)),
    }


def mismatched_bandits(
    arms: Tensor, rates: tuple[float, ...], blocks: tuple[int, ...], seed: int
) -> dict[str, FiniteArmBandit]:
    """Return the bandits of figures (c) and (d)."""
    model = (arms, new_kernel("SE"), NOISE_VARIANCE)
    bandits: dict[str, FiniteArmBandit] = {
        f"eps = {rate:g}": TVGPUCB(*model, forgetting_rate=rate, **_options(seed))
        for rate in rates
    }
    for size in blocks:
        bandits[f"N = {size}"] = RGPUCB(*model, block_size=size, **_options(seed))
    return bandits


def _options(seed: int) -> dict[str, Any]:
    stream = torch.Generator().manual_seed(2000 + seed)
    return {"confidence": LogWidth(0.8, 4.0), "generator": stream}


def play(
    problem: MarkovGPProblem,
    bandits: dict[str, FiniteArmBandit],
    horizon: int,
    seed: int,
) -> dict[str, list[float]]:
    """Let all bandits pull one arm a step; return their regrets."""
    # Not the seed of the function: its draws would come again as noise.
    streams = {name: torch.Generator().manual_seed(1000 + seed) for name in bandits}
    regrets: dict[str, list[float]] = {name: [] for name in bandits}
    for step in range(horizon):
        if step:
            problem.advance()
        for name, bandit in bandits.items():
            indices = bandit.ask()
            regrets[name].append(problem.regret(indices).item())
            bandit.tell(indices, problem.sample(indices, streams[name]))
    return regrets


class Trial(NamedTuple):
    """A function, and the bandits that see it."""

    part: str
    kernel: str
    eps: float
    seed: int


class Drift:
    """Figure 2 of the TV-GP-UCB paper."""

    keys = Trial._fields
    repetitions = 200

    def __init__(self, smoke: bool) -> None:
        self.horizon, side = (20, 8) if smoke else (200, 50)
        self.rates = (0.0, 0.01) if smoke else WRONG_RATES
        self.blocks = (5, 20) if smoke else WRONG_BLOCKS
        line = torch.linspace(0, 1, side, dtype=torch.double)
        self.arms = torch.cartesian_prod(line, line)

    def runs(self, repetitions: int) -> list[Trial]:
        """Return the trials of some seeds."""
        return [
            trial
            for seed in range(FIRST_SEED, FIRST_SEED + repetitions)
            for trial in (
                *(
                    Trial("matched", name, rate, seed)
                    for name in ("SE", "Matern-5/2")
                    for rate in RATES
                ),
                Trial("mismatched", "SE", MISMATCHED_RATE, seed),
            )
        ]

    def play(self, trial: Trial) -> pd.DataFrame:
        """Return average regrets up to every tenth step."""
        part, name, rate, seed = trial
        problem = new_problem(self.arms, name, rate, seed)
        if part == "matched":
            bandits = matched_bandits(self.arms, name, rate, self.horizon, seed)
        else:
            bandits = mismatched_bandits(self.arms, self.rates, self.blocks, seed)
        regrets = play(problem, bandits, self.horizon, seed)
        rows = []
        for bandit, values in regrets.items():
            average = np.cumsum(values) / np.arange(1, len(values) + 1)
            for step in range(10, len(values) + 1, 10):
                rows.append((bandit, step, average[step - 1]))
        return pd.DataFrame(rows, columns=["bandit", "step", "average_regret"])

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the tables and the picture."""
        tables = {
            "drift_matched": compare(rows),
            "drift_mismatched": summarize_mismatch(rows),
        }
        return tables, {"drift": draw(rows)}


def new_problem(arms: Tensor, name: str, rate: float, seed: int) -> MarkovGPProblem:
    """Return a function of the paper's model."""
    stream = torch.Generator().manual_seed(seed)
    return MarkovGPProblem(arms, new_kernel(name), rate, NOISE_VARIANCE**0.5, stream)


def _last(steps: pd.DataFrame, part: str) -> pd.DataFrame:
    chosen = steps[(steps["part"] == part) & (steps["step"] == steps["step"].max())]
    return chosen.drop(columns=["part", "step"])


def compare(steps: pd.DataFrame) -> pd.DataFrame:
    """Return R_T / T by kernel, eps and bandit."""
    keys = ["kernel", "eps"]
    groups = _last(steps, "matched").groupby(keys)
    table = pd.concat({key: paired(one) for key, one in groups}, names=keys)
    return table.reset_index(keys).reset_index(drop=True)


def paired(one: pd.DataFrame) -> pd.DataFrame:
    """Return mean regrets by bandit, and of the paired differences to TV-GP-UCB."""
    wide = one.pivot(index="seed", columns="bandit", values="average_regret")
    wide = wide[one["bandit"].unique()]
    gaps = wide.sub(wide["TV-GP-UCB"], axis="index")
    columns = {
        "trials": wide.count(),
        "average_regret": wide.mean(),
        "over_TV-GP-UCB": gaps.mean(),
        "standard_error": gaps.sem(),
    }
    return pd.DataFrame(columns).reset_index()


def summarize_mismatch(steps: pd.DataFrame) -> pd.DataFrame:
    """Return mean and deviation of R_T / T by the eps or N of the algorithm."""
    groups = _last(steps, "mismatched").groupby("bandit", sort=False)["average_regret"]
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
