"""BBKB over arms in memory, in Parquet files and on Ray's workers: seconds and memory.

Arms are drawn uniformly from the unit cube in 32 dimensions, float32, and written to a
temporary folder in row groups of 131,072. RBF kernel of lengthscale 1, lambda = 0.1. A
bandit is constructed, told 200 results, and asked for batches; each batch is told
before the next ask. `first` are the seconds of constructing and the first ask, `later`
the median of the other asks. Each place is measured in a process of its own, whose peak
of resident memory, imports included, stands beside: on Ray it is the coordinator's.

Fails if two places pick other arms. With `--lengthscale 2` a pull lowers the bounds of
so many arms that most batches need passes over all of them. Needs the extra `parquet`,
and `ray` for Ray. Writes `scale.csv`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import Record
from botorch_bkb import BBKB
from botorch_bkb.arms import ParquetArms
from botorch_bkb.optim import FixedSize


DIM = 32
ROWS_PER_FILE = 2**20
ROW_GROUP_SIZE = 2**17
NUM_RESULTS = 200
PLACES = ("memory", "Parquet", "Ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--asks", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="of Ray, a thread each")
    parser.add_argument("--lengthscale", type=float, default=1.0)
    parser.add_argument("--max-feature-bytes", type=int, default=2**31)


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


def arms_at(place: str, folder: Path, workers: int) -> Any:
    """Return the arms of the files: read into memory, stored, or on Ray's workers."""
    arms = ParquetArms(folder / "*.parquet", quiet=True)
    if place == "Ray":
        return arms.on_ray(workers, timeout=3600)
    return arms if place == "Parquet" else arms[torch.arange(len(arms))]


def ask(place: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Construct a bandit, tell and ask it; return seconds, memory and picks."""
    torch.set_num_threads(1 if place == "Ray" else args.threads)
    arms = arms_at(place, folder, args.workers)
    kernel = RBFKernel()
    kernel.lengthscale = args.lengthscale
    indices = torch.arange(NUM_RESULTS) * (len(arms) // NUM_RESULTS)
    seconds, picks = [], []
    start = time.perf_counter()
    bandit = BBKB(
        arms,
        kernel,
        0.1,
        batch_rule=FixedSize(args.batch_size),
        max_feature_bytes=args.max_feature_bytes,
        generator=torch.Generator().manual_seed(0),
    )
    for number in range(args.asks):
        rewards = (3 * arms[indices][:, :4]).sin().sum(dim=-1)
        if number == 0:
            bandit.add_observations(indices, rewards)
        else:
            bandit.tell(indices, rewards)
        indices = bandit.ask()
        seconds.append(time.perf_counter() - start)
        picks += indices.tolist()
        start = time.perf_counter()
    if place == "Ray":
        arms.workers.close()
    return {
        "first": seconds[0],
        "later": median(seconds[1:]) if len(seconds) > 1 else float("nan"),
        "inducing": len(bandit.inducing_indices),
        "peak_mib": peak_memory(),
        "picks": picks,
    }


def run(args: argparse.Namespace, record: Record) -> None:
    """Write libraries, measure, compare picks; print a row per place.

    Raises:
        RuntimeError: If picks differ.
    """
    places = args.places
    if args.smoke:
        args.num_arms, args.asks, args.batch_size, args.workers = [2000], 2, 5, 1
    if importlib.util.find_spec("ray") is None:
        places = [place for place in places if place != "Ray"]
    rows = []
    for number in args.num_arms:
        picks = []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_library(folder, number)
            for place in places:
                row = in_own_process(ask, place, folder, args)
                picks.append(row.pop("picks"))
                load = os.getloadavg()[0]
                rows.append({"arms": number, "place": place, **row, "load": load})
        if any(one != picks[0] for one in picks):
            raise RuntimeError("Expected the same picks at all places.")
    record.show(pd.DataFrame(rows), "scale")
