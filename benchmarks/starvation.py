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

import argparse
from dataclasses import dataclass

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.record import caption, print_table, Record
from botorch_bkb import BKB, GPUCB
from botorch_bkb.plotting import blank_figure, plot_posterior


NOISE_VARIANCE = 0.01
NUM_EVALUATIONS = (6, 63, 215)
FAR = 0.7  # beyond the reach of the kernel from [0, 0.5]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--seed", type=int, default=0)


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


def draw(line: Line, columns: dict[int, list[Posterior]]) -> Figure:
    """Return the figure."""
    figure = blank_figure(9.0, 6.4)
    grid = figure.subplots(3, len(columns), sharex=True, sharey=True)
    x = line.points.numpy()
    for column, (num_evaluations, posteriors) in enumerate(columns.items()):
        for row, posterior in enumerate(posteriors):
            axes = plot_posterior(
                grid[row, column],
                x,
                posterior.mean.numpy(),
                posterior.variance.numpy(),
                function=line.function.numpy(),
                inducing=x[posterior.inducing.numpy()],
            )
            if row == 0:
                axes.set_title(f"{num_evaluations} evaluations", fontsize="medium")
            if column == 0:
                axes.set_ylabel(posterior.name)
    for axes in grid[-1]:
        axes.set_xlabel("x")
    grid[2, 0].legend(loc="upper left", fontsize="x-small")
    return figure


def run(args: argparse.Namespace) -> None:
    """Draw the figure; print the smallest variances where nothing was evaluated."""
    record = Record(args.output, args.device)
    line = Line(101 if args.smoke else 401, args.seed)
    columns = {size: line.posteriors(size, args.seed) for size in NUM_EVALUATIONS}
    far = line.points > FAR
    table = pd.DataFrame(
        {
            "evaluations": size,
            "posterior": posterior.name,
            "inducing": posterior.inducing.numel(),
            "least_far_variance": posterior.variance[far].min().item(),
        }
        for size, posteriors in columns.items()
        for posterior in posteriors
    )
    record.write_table(table, "starvation")
    record.write_figure(draw(line, columns), "starvation")
    print(caption(record.origin))
    print(f"prior variance 1; smallest variance beyond x = {FAR}")
    print_table(table)
    least = table.groupby("posterior").least_far_variance
    if least.min()["BKB (DTC)"] < 0.9 or least.max()["SoR"] > 0.5:
        raise RuntimeError("Expected SoR to starve and BKB not to; see the table.")
