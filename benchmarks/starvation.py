"""Figure 2 of the COLT paper: BKB's variance does not starve, that of SoR does.

A function drawn from a GP on [0, 1] with a Gaussian kernel, the paper's sigma^2 = 100
read as k(x, x') = exp(-100 (x - x')^2), and 6, 63 and 215 evaluations drawn uniformly
from [0, 0.5], one BKB step each (q-bar = 2; noise of variance lambda = 0.01, which the
paper does not print). Columns are the numbers of evaluations; rows the exact GP, BKB's
DTC posterior, and the subset of regressors (SoR), which drops what the inducing points
cannot explain. Bands are three deviations, as in the paper.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.record import Report
from botorch_bkb import BKB, GPUCB
from botorch_bkb.plotting import blank_figure, plot_posterior


NOISE_VARIANCE = 0.01
NUM_EVALUATIONS = (6, 63, 215)
FAR = 0.7  # beyond the reach of the kernel from [0, 0.5]


class Line:
    """Points of [0, 1], a function drawn from the prior, and evaluations of it."""

    def __init__(self, num_points: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.linspace(0, 1, num_points, dtype=torch.double)
        self.kernel = RBFKernel().double()
        self.kernel.lengthscale = 200**-0.5
        with torch.no_grad():
            self.gram = self.kernel(self.points.unsqueeze(-1)).to_dense()
        eigenvalues, vectors = torch.linalg.eigh(self.gram)
        draw = torch.randn(num_points, generator=generator, dtype=torch.double)
        self.function = vectors @ (eigenvalues.clamp_min(0.0).sqrt() * draw)
        half = (num_points + 1) // 2
        size = (max(NUM_EVALUATIONS),)
        self.evaluated = torch.randint(half, size, generator=generator)
        noise = torch.randn(size, generator=generator, dtype=torch.double)
        self.rewards = self.function[self.evaluated] + NOISE_VARIANCE**0.5 * noise

    def posteriors(
        self, num_evaluations: int, seed: int
    ) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Return means, variances and inducing points after the first evaluations."""
        found = {}
        for name, bandit_class in (("exact GP", GPUCB), ("BKB (DTC)", BKB)):
            bandit = bandit_class(
                self.points.unsqueeze(-1),
                covar_module=self.kernel,
                noise_variance=NOISE_VARIANCE,
                generator=torch.Generator().manual_seed(seed),
            )
            for step in range(num_evaluations):
                now = slice(step, step + 1)
                bandit.add_observations(self.evaluated[now], self.rewards[now])
                bandit.fail(bandit.ask())  # a step: resample, then choose otherwise
            found[name] = (*bandit.predict(), bandit.inducing_indices)
        mean, variance, inducing = found["BKB (DTC)"]
        K_s = self.gram[inducing]
        K_ss = K_s[:, inducing]
        explained = (K_s * (torch.linalg.pinv(K_ss, hermitian=True) @ K_s)).sum(dim=0)
        degenerate = (variance - (1 - explained)).clamp_min(0.0)
        return {**found, "SoR": (mean, degenerate, inducing)}


class Starvation:
    """Figure 2 of the BKB paper."""

    keys = ("seed",)
    seeds = range(10)

    def __init__(self, smoke: bool) -> None:
        self.num_points = 101 if smoke else 401

    def runs(self, seed: int) -> list[tuple[int]]:
        """Return the only run of a seed."""
        return [(seed,)]

    def play(self, seed: int) -> pd.DataFrame:
        """Return all posteriors, one row per point of the line."""
        line = Line(self.num_points, seed)
        tables = []
        for size in NUM_EVALUATIONS:
            found = line.posteriors(size, seed)
            for name, (mean, variance, inducing) in found.items():
                columns = {
                    "evaluations": size,
                    "posterior": name,
                    "x": line.points.numpy(),
                    "function": line.function.numpy(),
                    "mean": mean.numpy(),
                    "variance": variance.numpy(),
                    "is_inducing": np.isin(range(self.num_points), inducing.numpy()),
                }
                tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    def report(self, rows: pd.DataFrame) -> Report:
        """Return the smallest variances without data near, and draw the first seed."""
        keys = ["evaluations", "posterior"]
        far = rows[rows["x"] > FAR].groupby(keys, sort=False)["variance"].min()
        table = far.rename("least_far_variance").reset_index()
        sizes = rows.groupby([*keys, "seed"])["is_inducing"].sum()
        table = table.join(sizes.groupby(keys).median().rename("inducing"), on=keys)
        table.insert(2, "runs", rows["seed"].nunique())
        first = rows[rows["seed"] == rows["seed"].min()]
        return {"starvation": table}, {"starvation": draw(first)}


def draw(rows: pd.DataFrame) -> Figure:
    """Return the figure from the rows of one seed."""
    names, sizes = rows["posterior"].unique(), rows["evaluations"].unique()
    figure = blank_figure(9.0, 6.4)
    grid = figure.subplots(len(names), len(sizes), sharex=True, sharey=True)
    for (size, name), one in rows.groupby(["evaluations", "posterior"]):
        row, column = list(names).index(name), list(sizes).index(size)
        axes = plot_posterior(
            grid[row, column],
            one["x"].to_numpy(),
            one["mean"].to_numpy(),
            one["variance"].to_numpy(),
            function=one["function"].to_numpy(),
            inducing=one.loc[one["is_inducing"].astype(bool), "x"].to_numpy(),
        )
        if row == 0:
            axes.set_title(f"{size} evaluations", fontsize="medium")
        if column == 0:
            axes.set_ylabel(str(name))
    for axes in grid[-1]:
        axes.set_xlabel("x")
    grid[-1, 0].legend(loc="upper left", fontsize="x-small")
    return figure
