"""How often what `GPBandit.progress` says comes true, on the pools of `practice`.

A campaign is over a pool, or over 50 or 200 candidates drawn from it. Ten uniformly
drawn ones are measured first, then ten batches of five, with noise of 5 % of the
rewards' standard deviation. Before each batch, as long as at most half of the
candidates are measured, the bandit says

- with which probability a candidate without measurement is better than all measured
  ones, noise apart (`better`);
- with which probability the candidate that is most likely the best is it (`best`);
- with which probability the best one is among the candidates that are it in 95 % of the
  draws (`held`);
- by how much the batch raises the best posterior mean, in standard deviations of the
  rewards over the pool (`rise`);
- the 95 % intervals of the candidates without measurement (`inside`), of the measured
  ones (`inside_measured`), and of that with the best mean among these (`inside_best`).

In a second campaign every batch is a plate: its offset has a standard deviation of half
of the rewards' one, and the bandit gets `group=`. What is true is that of the average
plate.

The table fits the numbers of Platt scaling, which `bandits/progress.py` has, and
compares what they say of each pool, fitted to all others, with how often it came true.
`--page` makes the docs' table from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logit

from benchmarks.pools import (
    for_bandits,
    Laboratory,
    load_pools,
    names_of,
    Pool,
    smoke_pools,
)
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb import GPBandit
from botorch_bkb.bandits.progress import ARMS, MEASURED, NUM_DRAWS, Platt, SHARES


FILE = "progress.csv.gz"
NUM_FIRST, BATCH_SIZE, NUM_BATCHES, NOISE = 10, 5, 10, 0.05
SMALL_SIZES = 50, 200
# The features that do not help a statement in cross-validation: the odds of draws, 1,
# the numbers of measured candidates, 2, and of candidates, 3.
UNUSED = {"better": [], "best": [2, 3], "held": [1, 2]}
OFFSETS = 0.0, 0.5  # their standard deviation, in that of the rewards


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    pool: str
    seed: int
    candidates: int
    offsets: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    add_run_arguments(parser, 1)


def run(args: argparse.Namespace, record: Record) -> None:
    """Play what is left; print how often statements came true."""
    pools = {} if args.page else smoke_pools()
    if not (args.page or args.smoke):
        pools = load_pools(names_of("all"))
    wanted = [
        Run(pool.name, seed, size, offsets)
        for seed in range(args.seeds)
        for offsets in OFFSETS
        for pool in pools.values()
        for size in (*SMALL_SIZES, pool.num_arms)
    ]
    what = FILE, Run._fields, wanted, lambda one: play(pools[one.pool], *one[1:])
    table = calibration(finished_rows(args, record, *what))
    show_for_page(table, "progress", is_page=args.page)


def play(pool: Pool, seed: int, num_candidates: int, offsets: float) -> pd.DataFrame:
    """Return what was said before each batch of a campaign, and what was true."""
    generator = torch.Generator().manual_seed(seed)
    pool = some_of(pool, num_candidates, seed)
    laboratory = Laboratory(pool, NOISE, seed)
    stream = np.random.default_rng([seed, crc32(pool.name.encode()), num_candidates])
    shifts = offsets * pool.deviation * stream.standard_normal(NUM_BATCHES + 1)
    sizes = [NUM_FIRST] + [BATCH_SIZE] * NUM_BATCHES
    # The average of the plates so far, by results.
    levels = np.cumsum(shifts * sizes) / np.cumsum(sizes)
    plates = [f"plate {k}" if offsets else None for k in range(NUM_BATCHES + 1)]
    bandit = GPBandit(for_bandits(pool.candidates), generator=generator)
    batch = torch.randperm(pool.num_arms, generator=generator)[:NUM_FIRST]
    results = laboratory.measure(batch) + shifts[0]
    bandit.add_observations(batch, results, group=plates[0])
    best, rows = pool.rewards == pool.rewards.max(), []
    for k in range(1, min(NUM_BATCHES + 1, pool.num_arms // (2 * BATCH_SIZE))):
        said = bandit.progress(BATCH_SIZE)
        draws = bandit.maximizer_distribution(NUM_DRAWS, generator)
        is_new = torch.ones(pool.num_arms, dtype=torch.bool)
        is_new[bandit.observed_arms] = False
        table = bandit.predictions(num_draws=1, generator=generator)
        truth = pool.rewards + levels[k - 1]
        inside = (truth >= table["low"]) & (truth <= table["high"])
        before = table["mean"].max() - levels[k - 1]
        leader = bandit.best_arm()
        batch = bandit.ask(BATCH_SIZE)
        bandit.tell(batch, laboratory.measure(batch) + shifts[k], group=plates[k])
        rise = bandit.predict()[0].max() - levels[k] - before
        top = draws.probabilities.max()
        rows.append(
            {
                "measured": len(bandit.observed_arms),
                "better_share": is_new[draws.indices].double().mean(),
                "better": pool.rewards[is_new].max() > pool.rewards[~is_new].max(),
                "best_share": top,
                "best": best[draws.mode],
                "held_share": top,
                "held": best[said.best_arms].any(),
                "rise_said": said.expected_rise / pool.deviation,
                "rise": rise / pool.deviation,
                "inside_said": 0.95,
                "inside": inside[is_new].double().mean(),
                "inside_measured_said": 0.95,
                "inside_measured": inside[~is_new].double().mean(),
                "inside_best_said": 0.95,
                "inside_best": inside[leader],
            }
        )
    return pd.DataFrame(rows).map(float)


def some_of(pool: Pool, num_candidates: int, seed: int) -> Pool:
    """Return a pool of some candidates of a pool."""
    if num_candidates >= pool.num_arms:
        return pool
    rows = np.random.default_rng(seed).permutation(pool.num_arms)[:num_candidates]
    frame = None if pool.frame is None else pool.frame.iloc[rows]
    return Pool(pool.name, pool.arms[rows], pool.rewards[rows], frame)


def calibration(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means of what was said and of what was true, in five bins.

    Platt scaling is fitted to all other pools, and its numbers are those of all pools.
    """
    tables = []
    for name in ("better", "best", "held"):
        said = pd.Series(np.nan, index=rows.index)
        for pool in rows["pool"].unique():
            own = rows["pool"] == pool
            said[own] = scaled(name, fit_platt(name, rows[~own]), rows[own])
        bins = [rows["offsets"], (said // 0.2).clip(upper=4)]
        fitted = fit_platt(name, rows)._asdict()
        table = binned(said, rows[name] > 0, bins)
        tables.append(table.assign(statement=name, **fitted))
    for name in ("rise", "inside", "inside_measured", "inside_best"):
        table = binned(rows[f"{name}_said"], rows[name], [rows["offsets"]])
        tables.append(table.assign(statement=name))
    table = pd.concat(tables, ignore_index=True)
    return table[["statement", "offsets", "cases", "said", "true", *Platt._fields]]


def fit_platt(name: str, rows: pd.DataFrame) -> Platt:
    """Fit Platt scaling of a statement, with the targets of [platt1999]."""
    share, true = rows[f"{name}_share"], rows[name] > 0
    odds = logit(share.clip(*SHARES))
    sizes = rows["measured"].clip(*MEASURED), rows["candidates"].clip(*ARMS)
    features = np.stack([np.ones_like(odds), odds, *np.log(sizes)])
    features[UNUSED[name]] = 0
    targets = (true * true.sum() + 1) / (np.where(true, true.sum(), (~true).sum()) + 2)

    def loss(numbers: NDArray[np.float64]) -> float:
        z = numbers @ features
        return float((np.logaddexp(0, z) - targets * z).mean())

    return Platt(*minimize(loss, np.zeros(4)).x)


def scaled(name: str, platt: Platt, rows: pd.DataFrame) -> pd.Series:
    """Return what the bandit says, given its numbers."""
    share = rows[f"{name}_share"]
    own = zip(share, rows["measured"], rows["candidates"], strict=True)
    said = pd.Series([platt(*each) for each in own], rows.index)
    return said.clip(upper=share) if name == "best" else said


def binned(said: pd.Series, true: pd.Series, bins: list[pd.Series]) -> pd.DataFrame:
    """Return means of what was said and of what was true."""
    groups = pd.DataFrame({"said": said, "true": true}).groupby(bins)
    table = groups.agg(cases=("said", "size"), said=("said", "mean"))
    return table.assign(true=groups["true"].mean()).reset_index("offsets")
