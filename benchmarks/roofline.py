"""What share of the machine's rates the full rebuild and the incremental update reach.

The machine's rates are measured in the same run: a square matrix product, and the sum
of a vector too large for any cache. The full rebuild at m inducing arms counts 2 A m^2
operations for its two triangular solves, and is timed whole: kernel rows gathered (they
are in memory, as in a run), features and moments of all arms. Two triangular solves of
PyTorch of the same sizes and nothing else are the most that it could reach. The
incremental update of
a few arms counts the bytes of the A x m features, which its one pass reads once; the
small matrices before the pass are timed apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.measure import seconds_of
from benchmarks.record import caption, print_table, Record
from botorch_bkb.optim import ArmPosterior
from botorch_bkb.posteriors.arm_posterior import Told
from botorch_bkb.posteriors.arm_shard import ACCELERATOR_CHUNK_BYTES, CHUNK_BYTES


NOISE_VARIANCE = 0.2
NUM_FEATURES = 8
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, default=20_640)
    parser.add_argument("--num-inducing", type=int, default=512)
    parser.add_argument("--num-new", type=int, default=4, help="arms pulled per update")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", choices=DTYPES, default="float64")


class Updates:
    """A posterior whose inducing arms are all pulled arms, and updates of it."""

    def __init__(
        self, num_arms: int, num_inducing: int, device: str, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        arms = torch.randn(
            num_arms, NUM_FEATURES, generator=generator, dtype=torch.double
        ).to(device, dtype)
        kernel = RBFKernel().to(arms)
        kernel.lengthscale = 5**0.5
        self.posterior = ArmPosterior(arms, kernel, NOISE_VARIANCE)
        self.order = torch.randperm(num_arms, generator=generator).to(device)
        self.rewards = torch.randn(num_arms, generator=generator).to(arms)
        self.num_pulled = num_inducing
        self.counts = torch.ones_like(self.rewards)
        self.update()

    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the arguments of ``ArmPosterior.update``."""
        pulled = self.order[: self.num_pulled]
        counts = self.counts[pulled]
        return pulled, pulled, counts, counts * self.rewards[pulled]

    def update(self) -> None:
        """Update by whatever is cheaper."""
        self.posterior.update(*self.data())

    def rebuild(self) -> None:
        """Rebuild, the kernel rows in memory."""
        self.posterior._factorize(self.posterior.inducing_indices)
        self.posterior._fill(has_means=False)

    def increment(self, num_new: int, device: str) -> tuple[float, float]:
        """Pull new arms, which become inducing; return seconds of the two parts."""
        posterior = self.posterior
        self.num_pulled += num_new
        inducing, pulled, counts, sums = self.data()
        told = Told.of(pulled, torch.stack([counts, sums]) / NOISE_VARIANCE)
        changes = []
        small = seconds_of(
            lambda: changes.append(posterior._increment(inducing, told)), device
        )
        change = changes[0]
        if change is None:
            raise RuntimeError("Expected an incremental update, but a rebuild is due.")
        one_pass = seconds_of(lambda: posterior._advance(inducing, change), device)
        self.update()  # leaves the posterior as an update would
        return small, one_pass


def median_seconds(function: Callable[[], object], repeats: int, device: str) -> float:
    """Return the median of some calls, after one that warms up."""
    function()
    return statistics.median(seconds_of(function, device) for _ in range(repeats))


def machine_rates(
    size: int, repeats: int, device: str, dtype: torch.dtype
) -> tuple[float, float]:
    """Return operations a second of a matrix product, and bytes read a second."""
    matrix = torch.randn(size, size, dtype=dtype, device=device)
    product = median_seconds(lambda: matrix @ matrix, repeats, device)
    vector = torch.randn(20 * size * size, dtype=dtype, device=device)
    total = median_seconds(vector.sum, repeats, device)
    return 2 * size**3 / product, vector.nbytes / total


def solve_twice(factor: Tensor, chunks: Sequence[Tensor]) -> None:
    """Solve a triangular system for all arms, and one for the solutions."""
    for columns in chunks:
        solved = torch.linalg.solve_triangular(factor, columns, upper=False)
        torch.linalg.solve_triangular(factor, solved, upper=False)


def run(args: argparse.Namespace) -> None:
    """Measure the machine and both updates in one run; print the shares."""
    num_arms, m = args.num_arms, args.num_inducing
    repeats, size = args.repeats, 1500
    if args.smoke:
        num_arms, m, repeats, size = 2000, 64, 3, 200
    record = Record(args.output, args.device)
    dtype = DTYPES[args.dtype]
    rate, bandwidth = machine_rates(size, repeats, args.device, dtype)
    updates = Updates(num_arms, m, args.device, dtype)
    rebuild = median_seconds(updates.rebuild, repeats, args.device)
    factor = updates.posterior.L_v
    num_bytes = CHUNK_BYTES if args.device == "cpu" else ACCELERATOR_CHUNK_BYTES
    columns = factor.new_ones(m, num_arms)
    split = columns.split(num_bytes // (m * dtype.itemsize), dim=1)
    chunks = [chunk.contiguous() for chunk in split]
    solves = median_seconds(lambda: solve_twice(factor, chunks), repeats, args.device)
    parts = [updates.increment(args.num_new, args.device) for _ in range(4)]
    small, one_pass = (statistics.median(part) for part in zip(*parts, strict=True))
    num_bytes = float(dtype.itemsize) * num_arms * updates.posterior.L_v.shape[0]
    operations = 2 * num_arms * m**2
    rows = [
        ("matrix product", 1.0, rate / 1e9, "Gflop/s", 1.0),
        ("reading", 1.0, bandwidth / 1e9, "GB/s", 1.0),
        ("triangular solves", solves, operations / solves / 1e9, "Gflop/s", 0.0),
        ("full rebuild", rebuild, operations / rebuild / 1e9, "Gflop/s", 0.0),
        ("increment: pass", one_pass, num_bytes / one_pass / 1e9, "GB/s", 0.0),
        ("increment: small matrices", small, float("nan"), "", float("nan")),
    ]
    table = pd.DataFrame(rows, columns=["what", "seconds", "rate", "unit", "share"])
    table.loc[2:3, "share"] = table.rate.loc[2:3] * 1e9 / rate
    table.loc[4, "share"] = table.rate[4] * 1e9 / bandwidth
    print(caption(record.origin))
    print(
        f"{num_arms:,} arms, m = {m}, {args.num_new} arms pulled per increment, "
        f"{args.dtype}"
    )
    print_table(table)
    sizes = {"num_arms": num_arms, "num_inducing": m, "dtype": args.dtype}
    record.write_table(table.assign(**sizes), "roofline")
