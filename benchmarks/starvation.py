"""Figure 2 of the COLT paper: BKB's variance does not starve, that of SoR does.

A function drawn from a GP on [0, 1] with a Gaussian kernel, the paper's sigma^2 = 100
read as k(x, x') = exp(-100 (x - x')^2), and 6, 63 and 215 evaluations drawn uniformly
from [0, 0.5], one BKB step each (q-bar = 2; noise of variance lambda = 0.01, which the
paper does not print). Columns are the numbers of evaluations; rows the exact GP, BKB's
DTC posterior, and the subset of regressors (SoR), which drops what the inducing points
cannot explain. Bands are three deviations, as in the paper.

Fails if BKB's smallest variance beyond 0.7 is not the prior's, or that of SoR is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.record import print_table, Record
from botorch_bkb import BKB, GPUCB
from botorch_bkb.plotting import blank_figure, plot_posterior


NOISE_VARIANCE = 0.01
NUM_EVALUATIONS = (6, 63, 215)
FAR = 0.7  # beyond the reach of the kernel from [0, 0.5]


@dataclass
class Posterior:
    """A posterior over the line after some evaluations."""

    name: str
    mean: Tensor
    variance: Tensor
    inducing: Tensor


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

    def posteriors(self, num_evaluations: int, seed: int) -> list[Posterior]:
        """Return the three posteriors after the first evaluations."""
        results = []
        for name, bandit_class in (("exact GP", GPUCB), ("BKB (DTC)", BKB)):
            bandit = bandit_class(
                self.points.unsqueeze(-1),
                covar_module=self.kernel,
                noise_variance=NOISE_VARIANCE,
                generator=torch.Generator().manual_seed(seed),
            )
            for step in range(num_evaluations):
                now = slice(step, step + 1)
                bandit.tell(self.evaluated[now], self.rewards[now], external=True)
                bandit.fail(bandit.ask())  # a step: resample, then choose otherwise
            results.append(
                Posterior(name, *bandit.predict(), inducing=bandit.inducing_indices)
            )
        sparse = results[-1]
        K_s = self.gram[sparse.inducing]
        K_ss = K_s[:, sparse.inducing]
        explained = (K_s * (torch.linalg.pinv(K_ss, hermitian=True) @ K_s)).sum(dim=0)
        degenerate = (sparse.variance - (1 - explained)).clamp_min(0.0)
        results.append(Posterior("SoR", sparse.mean, degenerate, sparse.inducing))
        return results


class Seed(NamedTuple):
    """Of the function, its evaluations and BKB's draws."""

    seed: int


class Starvation:
    """Figure 2 of the BKB paper."""

    keys = Seed._fields
    repetitions = 10

    def __init__(self, smoke: bool) -> None:
        self.num_points = 101 if smoke else 401

    def runs(self, repetitions: int) -> list[Seed]:
        """Return the runs of some seeds."""
        return [Seed(seed) for seed in range(repetitions)]

    def seconds(self, run: Seed) -> float:
        """Return about how long a run takes."""
        return 3.0

    def play(self, run: Seed) -> pd.DataFrame:
        """Return all posteriors, one row per point of the line."""
        line = Line(self.num_points, run.seed)
        is_inducing = np.zeros(self.num_points, dtype=bool)
        tables = []
        for size in NUM_EVALUATIONS:
            for posterior in line.posteriors(size, run.seed):
                is_inducing[:] = False
                is_inducing[posterior.inducing.numpy()] = True
                tables.append(
                    pd.DataFrame(
                        {
                            "evaluations": size,
                            "posterior": posterior.name,
                            "x": line.points.numpy(),
                            "function": line.function.numpy(),
                            "mean": posterior.mean.numpy(),
                            "variance": posterior.variance.numpy(),
                            "is_inducing": is_inducing.copy(),
                        }
                    )
                )
        return pd.concat(tables, ignore_index=True)

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Draw the first seed; print the smallest variances where nothing was told."""
        far = rows[rows["x"] > FAR]
        keys = ["evaluations", "posterior"]
        table = far.groupby(keys, sort=False)["variance"].min().reset_index()
        table = table.rename(columns={"variance": "least_far_variance"})
        sizes = rows.groupby([*keys, "seed"])["is_inducing"].sum()
        inducing = sizes.groupby(keys).median().rename("median_inducing")
        table = table.merge(inducing, on=keys)
        record.write_table(table.assign(runs=rows["seed"].nunique()), "starvation")
        first = rows[rows["seed"] == rows["seed"].min()]
        record.write_figure(draw(first), "starvation")
        print(f"prior variance 1; smallest variance beyond x = {FAR}")
        print_table(table)
        least = table.groupby("posterior").least_far_variance
        if least.min()["BKB (DTC)"] < 0.9 or least.max()["SoR"] > 0.5:
            raise RuntimeError("Expected SoR to starve and BKB not to; see the table.")


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
