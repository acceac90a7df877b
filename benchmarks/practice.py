"""With every option left alone: our bandits and stock BoTorch on pools of real rewards.

Nothing is known of kernel and noise. Uniformly drawn candidates are measured first,
then batches: `PROTOCOLS` has the sizes. A measurement is the reward of its candidate
plus Gaussian noise of 0, 5 or 50 % of the rewards' standard deviation over the pool. At
a seed, all methods measure the same first candidates, and the r-th measurement of a
candidate brings all of them the same noise. A bandit that returns fewer than were asked
for is asked again until the batch is full.

Recorded after every batch: how many of the best 1 % of the pool were measured
(`found`), the regret of the candidate that is recommended (`simple_regret`) and of all
measurements so far (`cumulative_regret`), in standard deviations over the pool; the
number of distinct candidates; the seconds of asking, telling and recommending since the
batch before, fits included.

Every finished run, one of a pool, protocol, noise, method and seed, is appended to the
rows and not run again, so a run that was killed continues. With another commit's
defaults take another folder, or `--again`. `--seeds 0` only makes the tables and the
picture that `benchmarks/practice_tables.py` describes. `--page` makes those of the
docs from the rows that are kept in `benchmarks/results/practice`, and runs nothing.

`benchmarks/pools.py` names the pools and where they come from,
`benchmarks/practice_methods.py` the methods.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch

from benchmarks.pools import (
    Laboratory,
    load_pools,
    names_of,
    Pool,
    smoke_pools,
    SOURCES,
)
from benchmarks.practice_methods import METHODS, OURS, PEERS, PlayerFactory
from benchmarks.practice_tables import write_summary, write_tables
from benchmarks.record import PAGE, print_table, Record, RESULTS
from benchmarks.rows import add_run_arguments, finished_rows


NOISES = (0.0, 0.05, 0.5)
FILE = "practice/rows.csv.gz"


@dataclass(frozen=True)
class Protocol:
    """How many are measured when.

    Attributes:
        first: The number of uniformly drawn candidates at the start.
        batch: The size of a batch.
        total: The number of measurements; a pool that is smaller ends earlier.
    """

    first: int
    batch: int
    total: int

    def ends(self, num_arms: int) -> list[int]:
        """Return how many are measured after each batch, the first included."""
        total = min(self.total, num_arms)
        ends = range(self.first, total, self.batch)
        return [*ends, total]


PROTOCOLS = {
    "batches": Protocol(10, 5, 100),
    "one_by_one": Protocol(10, 1, 100),
    "plates": Protocol(96, 96, 288),
    "long": Protocol(10, 5, 500),
}
SMOKE_PROTOCOL = Protocol(6, 3, 12)


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    pool: str
    protocol: str
    noise: float
    method: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument(
        "--pools", nargs="+", choices=SOURCES, help="in place of --part"
    )
    parser.add_argument(
        "--part",
        choices=("choosing", "held-out", "further", "later", "last", "all"),
        default="choosing",
    )
    parser.add_argument(
        "--protocols", nargs="+", choices=PROTOCOLS, default=["batches", "plates"]
    )
    parser.add_argument(
        "--noise",
        nargs="+",
        type=float,
        default=list(NOISES),
        metavar="SHARE",
        help="standard deviation of the noise, as a share of the rewards'",
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=[*PEERS, *OURS]
    )
    add_run_arguments(parser, 5)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left, then write and print."""
    pools = {}
    if not args.page:
        names = args.pools or names_of(args.part)
        pools = smoke_pools() if args.smoke else load_pools(names)
    protocols = {
        name: SMOKE_PROTOCOL if args.smoke else PROTOCOLS[name]
        for name in args.protocols
    }
    noises = args.noise[:1] if args.smoke else args.noise
    wanted = [
        Run(pool, protocol, noise, method, seed)
        # Seeds outside: a run that is stopped early has something of every pool.
        for seed in range(args.seeds)
        for protocol in protocols
        for noise in noises
        for pool in pools
        for method in args.methods
    ]

    def play_one(one: Run) -> pd.DataFrame:
        return play(one, pools[one.pool], protocols[one.protocol], METHODS[one.method])

    table = finished_rows(args, record, FILE, Run._fields, wanted, play_one)
    if args.page:
        folder = (RESULTS / FILE).parent
        tables = write_tables(table, tuple(PROTOCOLS), folder, tuple(OURS))
        write_summary(table, tables, PAGE)
        return
    table = table[table["pool"].isin(pools) & table["protocol"].isin(protocols)]
    if len(table):
        ours = [name for name in args.methods if name not in PEERS]
        tables = write_tables(table, tuple(protocols), record.folder, ours)
        for name, shown in tables.items():
            print(f"\n{name}")
            print_table(shown)


def play(
    one: Run, pool: Pool, protocol: Protocol, new_player: PlayerFactory
) -> pd.DataFrame:
    """Measure by one method until the protocol ends.

    Returns:
        One row per batch, the first candidates included. ``asks`` and ``seconds`` count
        since the batch before, all else from the start.
    """
    draws = torch.Generator().manual_seed(1_000_000 + one.seed)
    first = torch.randperm(pool.num_arms, generator=draws)[: protocol.first]
    laboratory = Laboratory(pool, one.noise, one.seed)
    generator = torch.Generator().manual_seed(one.seed)
    ends = protocol.ends(pool.num_arms)
    rows: list[dict[str, Any]] = []
    measured = torch.empty(0, dtype=torch.long)
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on, and of noise near zero.
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        player = new_player(pool.candidates, generator)
        seconds = time.perf_counter() - start
        for end in ends:
            asks = 0
            while len(measured) < end:
                start = time.perf_counter()
                indices = first
                if len(measured) > 0:
                    indices = player.ask(end - len(measured))
                    asks += 1
                seconds += time.perf_counter() - start
                rewards = laboratory.measure(indices)
                start = time.perf_counter()
                player.tell(indices, rewards)
                seconds += time.perf_counter() - start
                measured = torch.cat([measured, indices])
            start = time.perf_counter()
            best = player.best_arm()  # bandits fit when they are asked something
            seconds += time.perf_counter() - start
            distinct = measured.unique()
            rows.append(
                {
                    "num_measured": len(measured),
                    "found": int(pool.is_best[distinct].sum()),
                    "num_best": int(pool.is_best.sum()),
                    "simple_regret": pool.regrets[best].item(),
                    "cumulative_regret": pool.regrets[measured].sum().item(),
                    "distinct": len(distinct),
                    "asks": asks,
                    "seconds": seconds,
                }
            )
            seconds = 0.0
    return pd.DataFrame(rows)
