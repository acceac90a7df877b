"""Combinations of reagents: how many of the best are found, and what an ask costs.

`docking`: scores against thrombin of 499,720 products of an acid and two amino acids,
from the package `chem-tactics` 1.2.0, without noise. 200 random products, then batches
of 100. `hits` are those of the true best 100 that were found, `seconds` those of all
asks. Needs the extra `chem`.

`grid_1e6` and `grid_1e9`: three lists of 100 or 1,000 points of the unit square, 200
results, and the seconds of one ask of 96 with its fit. `evaluated_share` is the share
of products whose exact variance the last ask computed.

- `wide`: `GPBandit` with 4 posterior standard deviations, which the docs recommend for
  large spaces without noise; `default`: with its own width; `greedy`: with none.
- `reagents`: Thompson sampling per reagent, [klarich2024thompson]_. Every reagent has a
  normal posterior of the scores of its products, and the first products give the prior.
  Each pick draws a value for every reagent and takes the best one of each list.
- `random`: products at random.

Every run has a process of its own; `peak_mb` is without imports and data. Finished runs
are not run again. `--page` makes the docs' table from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import print_table, Record, write_page_table
from benchmarks.rows import RowFile
from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.test_functions.datasets import DATA_VARIABLE


FILE = "products.csv"
RESULTS = Path(__file__).with_name("results")
PAGE = RESULTS.parents[1] / "docs" / "benchmarks"
NUM_FIRST, NUM_BEST = 200, 100
# Batch size, and numbers of evaluations at which hits are counted.
PROTOCOLS = {"docking": (100, range(1000, 5001, 1000)), "smoke": (20, (220, 240))}
GRID_SIZES = {"grid_smoke": 20, "grid_1e6": 100, "grid_1e9": 1000}
PROBLEMS = ("docking", "grid_1e6", "grid_1e9")
WIDTHS = {"wide": 4.0, "default": None, "greedy": 0.0}
METHODS = (*WIDTHS, "reagents", "random")
COLUMNS = ["hits", "seconds", "peak_mb", "evaluated_share"]
Row = tuple[float, ...]


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    problem: str
    method: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    for name, values in {"problems": PROBLEMS, "methods": METHODS}.items():
        parser.add_argument(f"--{name}", nargs="+", choices=values, default=values)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(5))
    parser.add_argument("--evaluations", type=int, default=5000, help="of a library")
    parser.add_argument("--data", type=Path, help=f"else ${DATA_VARIABLE}/products")
    parser.add_argument("--page", action="store_true", help="only the docs' table")


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left; print means over seeds."""
    wanted = [
        Run(problem, method, seed)
        for problem in (("smoke", "grid_smoke") if args.smoke else args.problems)
        for method in args.methods
        for seed in (args.seeds[:1] if args.smoke else args.seeds)
        if problem not in GRID_SIZES or method in ("wide", "default")
    ]
    data = args.data or Path(os.environ.get(DATA_VARIABLE, "")) / "products"
    rows = RowFile((RESULTS if args.page else record.folder) / FILE, Run._fields)
    rows.play_missing(
        [] if args.page else wanted,
        lambda one: (
            play(one, data, args.threads, args.evaluations)
            if args.smoke
            else in_own_process(
                play, one, data, args.threads, args.evaluations
            ).result()
        ),
        record.origin,
    )
    groups = rows.table().groupby(["problem", "method", "evaluations"], sort=False)
    seeds = groups.agg(seeds=("seed", "nunique"), worst_hits=("hits", "min"))
    table = seeds.join(groups[COLUMNS].mean()).reset_index()
    print_table(table)
    if args.page:
        shown = table[table["evaluations"].isin((NUM_FIRST, 3000, 5000))]
        write_page_table(shown, PAGE, "products")


def play(one: Run, data: Path, threads: int, evaluations: int) -> pd.DataFrame:
    """Return the rows of one run."""
    torch.set_num_threads(threads)
    g, is_grid = Generator().manual_seed(one.seed), one.problem in GRID_SIZES
    rows = [_play_grid(one, g)] if is_grid else _play_library(one, data, g, evaluations)
    return pd.DataFrame(rows, columns=["evaluations", *COLUMNS])


def load_docking(folder: Path) -> tuple[ProductArms, Tensor]:
    """Return the products as counts of their reagents, and the scores with a minus."""
    from botorch_bkb.integrations.chem import read_molecules

    reagents = {}
    for name in ("acids", "amino_acids"):
        table = pd.read_csv(folder / f"thrombin_{name}.csv")
        molecules = read_molecules(table["smiles"].tolist(), counts=True)
        # The scores have a row for every reagent, also for one that is there twice.
        first = [molecules.duplicates.get(row, row) for row in range(len(table))]
        codes = molecules.codes[np.searchsorted(molecules.rows, first)]
        reagents[name] = BitArms.of(torch.from_numpy(codes))
    acids, amino_acids = reagents.values()
    with gzip.open(folder / "thrombin_scores.npy.gz") as file:
        scores = torch.from_numpy(np.load(file)).double()
    lists = {"acid": acids, "b": amino_acids, "c": amino_acids}
    return ProductArms(lists), -scores.flatten()


def smoke_library() -> tuple[ProductArms, Tensor]:
    """Make up products whose rewards are of pairs of reagents."""
    generator = Generator().manual_seed(0)
    counts = [torch.randint(3, (n, 32), generator=generator) for n in (12, 10, 8)]
    arms = ProductArms(dict(zip("abc", counts, strict=True)))
    at = arms.components(range(len(arms))).mT
    a, b, c = (rows[i].double() for rows, i in zip(counts, at, strict=True))
    return arms, (a * b + b * c).sum(dim=-1)


def _play_library(one: Run, data: Path, g: Generator, evaluations: int) -> list[Row]:
    size, checkpoints = PROTOCOLS[one.problem]
    checkpoints = [number for number in checkpoints if number <= evaluations]
    arms, rewards = load_docking(data) if one.problem == "docking" else smoke_library()
    best = rewards.topk(min(NUM_BEST, len(rewards) // 20)).indices
    found = torch.randperm(len(arms), generator=g)[:NUM_FIRST]
    before, seconds, share, rows = peak_memory(), 0.0, math.nan, list[Row]()
    bandit = GPBandit(arms, confidence=WIDTHS.get(one.method), generator=g)
    bandit.add_observations(found, rewards[found])
    while len(found) < checkpoints[-1]:
        start = time.perf_counter()
        if one.method in WIDTHS:
            batch, share = bandit.ask(size), bandit.evaluated_share
            bandit.tell(batch, rewards[batch])
        else:
            results = None if one.method == "random" else rewards[found]
            batch = draw_new(arms, found, results, size, g)
        seconds += time.perf_counter() - start
        found = torch.cat([found, batch])
        if len(found) in checkpoints:
            hits = int(torch.isin(best, found).sum())
            rows.append((len(found), hits, seconds, peak_memory() - before, share))
    return rows


def draw_new(
    arms: ProductArms, found: Tensor, results: Tensor | None, size: int, g: Generator
) -> Tensor:
    """Return products that are not `found` yet: by reagent; at random if no results."""
    moments = []
    if results is not None:
        prior = results[:NUM_FIRST]
        for at, size_i in zip(arms.components(found).mT, arms.sizes, strict=True):
            # The prior counts as one result of every reagent.
            counts = 1.0 + at.bincount(minlength=size_i)
            sums = prior.mean() + at.bincount(results, minlength=size_i)
            moments.append((sums / counts, prior.std() / counts.sqrt()))
    known, new, num_draws = set(found.tolist()), dict[int, None](), 10 * size
    while len(new) < size:
        drawn = torch.randint(len(arms), (num_draws,), generator=g)
        if moments:
            noises = (torch.randn(num_draws, n, generator=g) for n in arms.sizes)
            values = (m + s * e for (m, s), e in zip(moments, noises, strict=True))
            drawn = arms.numbers(torch.stack([v.argmax(dim=-1) for v in values], -1))
        new.update((number, None) for number in drawn.tolist() if number not in known)
    return torch.tensor(list(new)[:size])


def _play_grid(one: Run, g: Generator) -> Row:
    size = GRID_SIZES[one.problem]
    lists = [torch.rand(size, 2, generator=g).double() for _ in range(3)]
    arms = ProductArms(dict(zip("abc", lists, strict=True)))
    indices = torch.randint(len(arms), (NUM_FIRST,), generator=g)
    at = arms.components(indices).mT
    x, y, z = (rows[i] for rows, i in zip(lists, at, strict=True))
    before = peak_memory()
    bandit = GPBandit(arms, confidence=WIDTHS[one.method], generator=g)
    bandit.add_observations(indices, (3 * x * y + 5 * z).sin().sum(dim=-1))
    start = time.perf_counter()
    bandit.ask(96)
    seconds, memory = time.perf_counter() - start, peak_memory() - before
    return (NUM_FIRST, math.nan, seconds, memory, bandit.evaluated_share)
