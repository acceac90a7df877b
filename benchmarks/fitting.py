"""One likelihood and gradient at 32,000 rows against 8,000, m = 200 inducing points.

The cost is O(n m^2): the ratio should be near 4.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.record import provenance
from botorch_bkb.models import SingleTaskDTCGP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--repeats", type=int, default=7)


def evaluation(num_rows: int, num_inducing: int) -> ExactMarginalLogLikelihood:
    """Return a marginal likelihood over random data in four dimensions."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, 4, generator=generator, dtype=torch.double)
    noise = torch.randn(num_rows, 1, generator=generator, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True).sin() + 0.1 * noise
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:num_inducing])
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def run(args: argparse.Namespace) -> None:
    """Time both sizes in alternation; print medians and their ratio."""
    sizes = (800, 3200) if args.smoke else (8000, 32000)
    mlls = {size: evaluation(size, 50 if args.smoke else 200) for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(args.repeats + 1):
        for size, mll in mlls.items():
            start = time.perf_counter()
            model = mll.model
            (-mll(model(*model.train_inputs), model.train_targets)).backward()
            seconds[size].append(time.perf_counter() - start)
    # The first evaluation of each warms up.
    medians = {size: statistics.median(times[1:]) for size, times in seconds.items()}
    print(provenance())
    for size, median in medians.items():
        print(f"n = {size:6,d}: {median:.3f} s")
    print(f"ratio {medians[sizes[1]] / medians[sizes[0]]:.2f}")
