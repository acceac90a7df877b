"""One ask over arms in Parquet files, beside the same over arms in memory.

Arms drawn uniformly from the unit cube in 32 dimensions, float32, written to a
temporary folder in row groups of 131,072; RBF kernel of lengthscale 1, lambda = 0.1,
200 results, which are the inducing arms. What is timed is all from nothing: the bandit
is constructed, told, and asked for a batch. Each measurement is in a process of its
own, which reports its own peak memory, resident. Beside it: how long it takes to read
all rows once, and the same ask over fewer arms in memory, whose seconds per arm are the
yardstick, by the clock and of the processor. Picks are compared where both fit.

The kernel is so rough that a pull lowers few other bounds: over a million arms the
1,024 of the largest bounds suffice for a batch, and over ten million 32,768 of them.
With `--lengthscale 2` all may be tracked, which is a pass over all features for every
arm that is pulled.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB
from botorch_bkb.arms import ParquetArms
from botorch_bkb.models.utils.lazy_rows import row_blocks


DIM = 32
ROWS_PER_FILE = 2**20
ROW_GROUP_SIZE = 2**17
NUM_TOLD = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, default=10_000_000)
    parser.add_argument(
        "--in-memory", type=int, default=1_000_000, help="arms of the yardstick"
    )
    parser.add_argument("--lengthscale", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--max-feature-bytes", type=int, default=2**31)
    parser.add_argument(
        "--compared", type=int, default=100_000, help="arms over which picks must agree"
    )


def write_library(folder: Path, num_arms: int) -> None:
    """Write the arms to files of about a million rows."""
    generator = np.random.default_rng(0)
    names = [f"x{n}" for n in range(DIM)]
    for start in range(0, num_arms, ROWS_PER_FILE):
        num_rows = min(ROWS_PER_FILE, num_arms - start)
        columns = generator.random((DIM, num_rows), dtype="float32")
        table = pa.table(dict(zip(names, columns, strict=True)))
        path = folder / f"part-{start // ROWS_PER_FILE:05}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_SIZE)


def read_once(folder: Path, threads: int) -> tuple[float, float]:
    """Return the seconds of reading all rows once, by clock and of the processor."""
    torch.set_num_threads(threads)
    ParquetArms(folder / "*.parquet")[:1]  # imports what reads
    arms = ParquetArms(folder / "*.parquet")
    start, busy = time.perf_counter(), time.process_time()
    for _ in row_blocks(arms):
        pass
    return time.perf_counter() - start, time.process_time() - busy


def ask_once(
    folder: Path,
    num_arms: int,
    is_stored: bool,
    threads: int,
    lengthscale: float = 1.0,
    batch_size: int = 100,
    max_feature_bytes: int = 2**31,
) -> Any:
    """Construct a bandit, tell and ask it; return seconds, memory and picks."""
    torch.set_num_threads(threads)
    stored = ParquetArms(folder / "*.parquet")
    arms: Tensor = stored if is_stored else _in_memory(stored, num_arms)
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale
    told = torch.arange(NUM_TOLD) * (num_arms // NUM_TOLD)
    rewards = (3 * arms[told][:, :4]).sin().sum(dim=-1)
    start, busy = time.perf_counter(), time.process_time()
    bandit = BBKB(
        arms,
        kernel,
        0.1,
        max_feature_bytes=max_feature_bytes,
        generator=torch.Generator().manual_seed(0),
    )
    bandit.tell(told, rewards, external=True)
    constructed = time.perf_counter()
    picks = bandit.ask(size=batch_size)
    stop = time.perf_counter()
    return {
        "arms": num_arms,
        "place": "Parquet" if is_stored else "memory",
        "inducing": len(bandit.inducing_indices),
        "constructed_seconds": constructed - start,
        "asked_seconds": stop - constructed,
        "microseconds_per_arm": 1e6 * (stop - start) / num_arms,
        "processor_per_arm": 1e6 * (time.process_time() - busy) / num_arms,
        "peak_mib": peak_memory(),
        "picks": picks.tolist(),
    }


def _in_memory(stored: ParquetArms, num_arms: int) -> Tensor:
    arms = torch.empty(num_arms, DIM)
    for rows, block in row_blocks(stored):
        arms[rows] = block[: max(num_arms - rows.start, 0)]
        if rows.stop >= num_arms:
            break
    return arms


def measured(
    folder: Path, num_arms: int, is_stored: bool, args: argparse.Namespace
) -> Any:
    """Return the outcome of :func:`ask_once` in a process of its own."""
    row = in_own_process(
        ask_once,
        folder,
        num_arms,
        is_stored,
        args.threads,
        args.lengthscale,
        args.batch_size,
        args.max_feature_bytes,
    ).value
    print({name: value for name, value in row.items() if name != "picks"}, flush=True)
    return row


def run(args: argparse.Namespace) -> None:
    """Write libraries, measure, compare, and print one row a measurement.

    Raises:
        RuntimeError: If picks differ.
    """
    compared, in_memory, num_arms = args.compared, args.in_memory, args.num_arms
    if args.smoke:
        compared, in_memory, num_arms = 2_000, 2_000, 5_000
    record = Record(args.output)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_library(folder, compared)
        rows = [measured(folder, compared, kind, args) for kind in (True, False)]
        if rows[0]["picks"] != rows[1]["picks"]:
            raise RuntimeError(f"Expected the same picks, but got {rows}.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_library(folder, num_arms)
        rows.append(measured(folder, in_memory, False, args))
        reading = in_own_process(read_once, folder, args.threads).value
        rows.append(measured(folder, num_arms, True, args))
    table = pd.DataFrame(rows).drop(columns="picks")
    record.write_table(table.assign(reading_seconds=reading[0]), "places")
    print(caption(record.origin))
    print_table(table)
    print(f"The same picks over {compared:,} arms.")
    kinds = ("clock", "microseconds_per_arm"), ("processor", "processor_per_arm")
    for (kind, column), seconds in zip(kinds, reading, strict=True):
        yardstick, found = table[column].iloc[-2:]
        once = 1e6 * seconds / num_arms
        print(
            f"By the {kind}: all rows once {seconds:.3g} s, {once:.3g} microseconds an "
            f"arm. Without that, the ask takes {(found - once) / yardstick:.3g} times "
            "the seconds per arm of that in memory."
        )
