"""One likelihood and gradient at 32,000 rows against 8,000, m = 200 inducing points.

The cost is O(n m^2): the ratio should be near 4. Writes ``fitting.csv``.
"""

from __future__ import annotations

import argparse

import pandas as pd
import torch
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.measure import seconds_of
from benchmarks.record import caption, Record
from botorch_bkb.models import SingleTaskDTCGP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--repeats", type=int, default=7)


def evaluation(
    num_rows: int, num_inducing: int, device: str
) -> ExactMarginalLogLikelihood:
    """Return a marginal likelihood over random data in four dimensions."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, 4, generator=generator, dtype=torch.double)
    noise = torch.randn(num_rows, 1, generator=generator, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True).sin() + 0.1 * noise
    X, Y = X.to(device), Y.to(device)
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:num_inducing])
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def run(args: argparse.Namespace) -> None:
    """Time both sizes in alternation; print medians and their ratio."""
    record = Record(args.output, args.device)
    sizes = (800, 3200) if args.smoke else (8000, 32000)
    num_inducing = 50 if args.smoke else 200
    mlls = {size: evaluation(size, num_inducing, args.device) for size in sizes}
    rows = []
    for repeat in range(args.repeats + 1):
        for size, mll in mlls.items():

            def evaluate(mll: ExactMarginalLogLikelihood = mll) -> None:
                model = mll.model
                (-mll(model(*model.train_inputs), model.train_targets)).backward()

            seconds = seconds_of(evaluate, args.device)
            rows.append({"num_rows": size, "repeat": repeat, "seconds": seconds})
    # The first evaluation of each warms up.
    table = pd.DataFrame(rows).query("repeat > 0").assign(num_inducing=num_inducing)
    record.write_table(table, "fitting")
    medians = table.groupby("num_rows")["seconds"].median()
    print(caption(record.origin))
    for size in sizes:
        print(f"n = {size:6,d}: {medians[size]:.3f} s")
    print(f"ratio {medians[sizes[1]] / medians[sizes[0]]:.2f}")
