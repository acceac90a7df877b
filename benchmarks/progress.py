"""How often what `GPBandit.progress` says comes true, on the pools of `practice`.

Ten uniformly drawn candidates are measured first, then batches of five to 60, with
noise of 5 % of the rewards' standard deviation over the pool. Before each batch the
bandit says

- with which probability a candidate without measurement is better than all measured
  ones, noise apart (`better`);
- with which probability the candidate that is most likely the best is it (`best`);
- which candidates hold the best one with 95 % probability (`held`);
- by how much the batch raises the best posterior mean, in standard deviations of the
  rewards over the pool (`rise`).

`calibration.csv` compares the probabilities with how often they came true, in bins; the
other two are means. `--page` makes the docs' table from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks.pools import Laboratory, load_pools, names_of, Pool, smoke_pools
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb import GPBandit


FILE = "progress.csv"
NUM_FIRST, BATCH_SIZE, NUM_BATCHES, NOISE = 10, 5, 10, 0.05
NUM_DRAWS = 1024


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    pool: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    add_run_arguments(parser, 1)


def run(args: argparse.Namespace, record: Record) -> None:
    """Play what is left; print how often statements came true."""
    pools = {} if args.page else smoke_pools()
    if not (args.page or args.smoke):
        pools = load_pools(names_of("all"))
    wanted = [Run(pool, seed) for seed in range(args.seeds) for pool in pools]
    what = FILE, Run._fields, wanted, lambda one: play(pools[one.pool], one.seed)
    table = calibration(finished_rows(args, record, *what))
    show_for_page(table, "progress", is_page=args.page)


def play(pool: Pool, seed: int) -> pd.DataFrame:
    """Return what was said before each batch of a campaign, and what was true."""
    generator = torch.Generator().manual_seed(seed)
    laboratory = Laboratory(pool, NOISE, seed)
    bandit = GPBandit(pool.arms, generator=generator)
    batch = torch.randperm(pool.num_arms, generator=generator)[:NUM_FIRST]
    bandit.add_observations(batch, laboratory.measure(batch))
    best, rows = pool.rewards == pool.rewards.max(), []
    for _ in range(NUM_BATCHES):
        said = bandit.progress(BATCH_SIZE)
        draws = bandit.maximizer_distribution(NUM_DRAWS, generator)
        is_new = torch.ones(pool.num_arms, dtype=torch.bool)
        is_new[bandit.observed_arms] = False
        before = bandit.predict()[0].max()
        batch = bandit.ask(BATCH_SIZE)
        bandit.tell(batch, laboratory.measure(batch))
        rise = bandit.predict()[0].max() - before
        rows.append(
            {
                "better_said": said.probability_unmeasured,
                "better": pool.rewards[is_new].max() > pool.rewards[~is_new].max(),
                "best_said": draws.probabilities.max(),
                "best": best[draws.mode],
                "held_said": 0.95,
                "held": best[said.best_arms].any(),
                "rise_said": said.expected_rise / pool.deviation,
                "rise": rise / pool.deviation,
            }
        )
    return pd.DataFrame(rows).map(float)


def calibration(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means of what was said and of what was true."""
    tables = []
    for name in ("better", "best", "held", "rise"):
        said, true = rows[f"{name}_said"], rows[name]
        bins = np.minimum(said // 0.2, 4) if name in ("better", "best") else 0 * said
        groups = pd.DataFrame({"said": said, "true": true}).groupby(bins)
        table = groups.agg(cases=("said", "size"), said=("said", "mean"))
        table["true"] = groups["true"].mean()
        tables.append(table.reset_index(drop=True).assign(statement=name))
    table = pd.concat(tables, ignore_index=True)
    return table[["statement", "cases", "said", "true"]]
