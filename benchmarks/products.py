"""Combinations of reagents: how many of the best are found, and what an ask costs.

`docking`: scores against thrombin of 499,720 products of an acid and two amino acids,
from the package `chem-tactics` 1.2.0, without noise. 200 random products, then batches
of 100. `hits` are those of the true best 100 that were found, `seconds` those of all
asks. Needs the extra `chem`.

`buchwald`: the same with 3,955 measured yields of Buchwald-Hartwig reactions, of four
ligands, 22 additives, three bases and 15 halides (`DreherDoyle.csv` in the source of
the package `gauche` 0.1.6, copied to the folder `--data`). 20 first, then batches of
10.

`grid_1e6` and `grid_1e9`: three lists of 100 or 1,000 points of the unit square, 200
results, and the seconds of one ask of 96 with its fit. `evaluated_share` is the share
of products whose exact variance the last ask computed.

- `matern_0.3`, `matern_0.6`, `matern_1.2`, on the grids: `GPBandit` with its own width
  and a product of Matern-5/2 kernels of that lengthscale given, and noise variance .01.
- `wide`: `GPBandit` with 4 posterior standard deviations, which the docs recommend for
  large spaces without noise; `default`: with its own width; `greedy`: with none.
- `reagents`: Thompson sampling per reagent, [klarich2024thompson]_. Every reagent has a
  normal posterior of the scores of its products, and the first products give the prior.
  Each pick draws a value for every reagent and takes the best one of each list.
- `tactics`: TACTICS, if `chem-tactics` is installed, on `docking`; see
  `benchmarks/tactics.py`. Its first products are its own.
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
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import MaternKernel, ProductKernel
from torch import Generator, Tensor

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import PAGE, print_table, Record, write_page_table
from benchmarks.rows import add_run_arguments, finished_rows
from benchmarks.tactics import order_of_tactics
from botorch_bkb import GPBandit
from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.test_functions.datasets import DATA_VARIABLE


FILE = "products.csv"
NUM_FIRST, NUM_BEST = 200, 100
# Numbers of first products, of a batch, and of evaluations when hits are counted.
PROTOCOLS = {
    "docking": (NUM_FIRST, 100, range(1000, 5001, 1000)),
    "buchwald": (20, 10, (100, 200)),
    "smoke": (NUM_FIRST, 20, (220, 240)),
}
GRID_SIZES = {"grid_smoke": 20, "grid_1e6": 100, "grid_1e9": 1000}
PROBLEMS = ("docking", "buchwald", "grid_1e6", "grid_1e9")
WIDTHS = {"wide": 4.0, "default": None, "greedy": 0.0}
LENGTHSCALES = {f"matern_{value}": value for value in (0.3, 0.6, 1.2)}
GRID_METHODS = "wide", "default", *LENGTHSCALES
LIBRARY_METHODS = *WIDTHS, "reagents", "tactics", "random"
METHODS = tuple(dict.fromkeys(LIBRARY_METHODS + GRID_METHODS))
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
    add_run_arguments(parser, 5)
    parser.add_argument("--evaluations", type=int, default=5000, help="of a library")
    parser.add_argument("--data", type=Path, help=f"else ${DATA_VARIABLE}/products")


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left; print means over seeds."""
    wanted = [
        Run(problem, method, seed)
        for problem in (("smoke", "grid_smoke") if args.smoke else args.problems)
        for method in args.methods
        for seed in range(args.seeds)
        if method in (GRID_METHODS if problem in GRID_SIZES else LIBRARY_METHODS)
        if method != "tactics" or (problem == "docking" and find_spec("TACTICS"))
    ]
    data = args.data or Path(os.environ.get(DATA_VARIABLE, "")) / "products"
    how = data, args.threads, args.evaluations
    rows = finished_rows(
        args,
        record,
        FILE,
        Run._fields,
        wanted,
        lambda one: in_own_process(play, one, *how),
    )
    groups = rows.groupby(["problem", "method", "evaluations"], sort=False)
    seeds = groups.agg(seeds=("seed", "nunique"), worst_hits=("hits", "min"))
    table = seeds.join(groups[COLUMNS].mean()).reset_index()
    print_table(table)
    if args.page:
        shown = table[table["evaluations"].isin((100, NUM_FIRST, 3000, 5000))]
        write_page_table(shown, PAGE, "products")


def play(one: Run, data: Path, threads: int, evaluations: int) -> pd.DataFrame:
    """Return the rows of one run."""
    torch.set_num_threads(threads)
    g, is_grid = Generator().manual_seed(one.seed), one.problem in GRID_SIZES
    rows = [_play_grid(one, g)] if is_grid else _play_library(one, data, g, evaluations)
    return pd.DataFrame(rows, columns=["evaluations", *COLUMNS])


def load_docking(folder: Path) -> tuple[ProductArms, Tensor]:
    """Return the products as counts of their reagents, and the scores with a minus."""
    acids, amino_acids = map(counts_of, read_reagents(folder)[:2])
    with gzip.open(folder / "thrombin_scores.npy.gz") as file:
        scores = torch.from_numpy(np.load(file)).double()
    lists = {"acid": acids, "b": amino_acids, "c": amino_acids}
    return ProductArms(lists), -scores.flatten()


def read_reagents(folder: Path) -> list[list[str]]:
    """Return the SMILES of the three lists of `docking`."""
    names = "acids", "amino_acids", "amino_acids"
    files = [folder / f"thrombin_{name}.csv" for name in names]
    return [pd.read_csv(path)["smiles"].to_list() for path in files]


def load_buchwald(folder: Path) -> tuple[ProductArms, Tensor]:
    """Return the reactions and their yields; those without one are forbidden."""
    table = pd.read_csv(folder / "DreherDoyle.csv")
    names = ["ligand", "additive", "base", "aryl halide"]
    lists, positions = {}, []
    for name in names:
        place, smiles = pd.factorize(table[name], sort=True)
        lists[name] = counts_of(smiles)
        positions.append(torch.from_numpy(place))
    space = ProductArms(lists)
    yields = torch.full((len(space),), -math.inf, dtype=torch.double)
    measured = space.numbers(torch.stack(positions, dim=-1))
    yields[measured] = torch.tensor(table["yield"].to_list(), dtype=torch.double)
    missing = space.components((yields == -math.inf).nonzero().squeeze(-1))
    forbidden = [dict(zip(names, row, strict=True)) for row in missing.tolist()]
    return ProductArms(lists, forbidden), yields


def counts_of(smiles: Iterable[str]) -> BitArms:
    """Return the counts of molecules, also of one that is there twice."""
    from botorch_bkb.integrations.chem import read_molecules

    texts = list(smiles)
    found = read_molecules(texts, counts=True)
    first = [found.duplicates.get(row, row) for row in range(len(texts))]
    codes = found.codes[np.searchsorted(found.rows, first)]
    return BitArms.of(torch.from_numpy(codes))


def smoke_library(_: Path) -> tuple[ProductArms, Tensor]:
    """Make up products whose rewards are of pairs of reagents."""
    generator = Generator().manual_seed(0)
    counts = [torch.randint(3, (n, 32), generator=generator) for n in (12, 10, 8)]
    arms = ProductArms(dict(zip("abc", counts, strict=True)))
    at = arms.components(range(len(arms))).mT
    a, b, c = (rows[i].double() for rows, i in zip(counts, at, strict=True))
    return arms, (a * b + b * c).sum(dim=-1)


LIBRARIES = {
    "docking": load_docking,
    "buchwald": load_buchwald,
    "smoke": smoke_library,
}


def _play_library(one: Run, data: Path, g: Generator, evaluations: int) -> list[Row]:
    num_first, size, checkpoints = PROTOCOLS[one.problem]
    checkpoints = [number for number in checkpoints if number <= evaluations]
    arms, rewards = LIBRARIES[one.problem](data)
    best = rewards.topk(min(NUM_BEST, len(rewards) // 20)).indices
    possible = arms.is_allowed(torch.arange(len(arms))).nonzero().squeeze(-1)
    found = possible[torch.randperm(len(possible), generator=g)[:num_first]]
    before, seconds, share, rows = peak_memory(), 0.0, math.nan, list[Row]()
    if one.method == "tactics":
        args = read_reagents(data), rewards.numpy(), checkpoints[-1], one.seed
        order = torch.from_numpy(order_of_tactics(*args))
        for number in checkpoints:
            hits = int(torch.isin(best, order[:number]).sum())
            rows.append((number, hits, math.nan, math.nan, math.nan))
        return rows
    bandit = GPBandit(arms, confidence=WIDTHS.get(one.method), generator=g)
    bandit.add_observations(found, rewards[found])
    while len(found) < checkpoints[-1]:
        start = time.perf_counter()
        if one.method in WIDTHS:
            batch, share = bandit.ask(size), bandit.evaluated_share
            bandit.tell(batch, rewards[batch])
        else:
            results = None if one.method == "random" else rewards[found]
            batch = draw_new(arms, found, results, num_first, size, g)
        seconds += time.perf_counter() - start
        found = torch.cat([found, batch])
        if len(found) in checkpoints:
            hits = int(torch.isin(best, found).sum())
            rows.append((len(found), hits, seconds, peak_memory() - before, share))
    return rows


def draw_new(
    arms: ProductArms,
    found: Tensor,
    results: Tensor | None,
    num_first: int,
    size: int,
    g: Generator,
) -> Tensor:
    """Return products that are not `found` yet: by reagent; at random if no results."""
    moments = []
    if results is not None:
        prior = results[:num_first]
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
        drawn = drawn[arms.is_allowed(drawn)]
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
    options: dict[str, Any] = {"confidence": WIDTHS.get(one.method), "generator": g}
    if one.method in LENGTHSCALES:
        parts = [MaternKernel(active_dims=(i, i + 1)) for i in (0, 2, 4)]
        for part in parts:
            part.lengthscale = LENGTHSCALES[one.method]
        options |= {"covar_module": ProductKernel(*parts), "noise_variance": 0.01}
    bandit = GPBandit(arms, **options)
    bandit.add_observations(indices, (3 * x * y + 5 * z).sin().sum(dim=-1))
    start = time.perf_counter()
    bandit.ask(96)
    seconds, memory = time.perf_counter() - start, peak_memory() - before
    return (NUM_FIRST, math.nan, seconds, memory, bandit.evaluated_share)
