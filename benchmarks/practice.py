"""With every option left alone: our bandits and stock BoTorch on pools of real rewards.

Nothing is known of kernel and noise. In the protocol `batches` ten uniformly drawn
candidates are measured first, then batches of 5 up to 100 measurements; in `one_by_one`
ten, then one at a time; in `plates` 96, then plates of 96 up to 480; `three_plates`
ends at 288, since qLogEI takes many minutes for one of these plates; `long` is
`batches` up to 500. A measurement is the reward of its candidate plus Gaussian noise of
0, 5 or 50 % of the rewards' standard deviation over the pool. At a seed, all methods
measure the same first candidates, and the r-th measurement of a candidate brings all of
them the same noise. A bandit that returns fewer than were asked for is asked again
until the batch is full.

Measured after every batch: how many of the best 1 % of the pool were measured
(`found`), and in standard deviations over the pool the regret of the candidate that is
recommended (`simple_regret`) and of all measurements so far (`cumulative_regret`); how
many candidates are distinct; the seconds in asking and telling since the batch before,
the fit included.

Every finished run, one of a pool, protocol, noise, method and seed, is appended to
`rows.csv`. What stands there is not run again, so a run that was killed goes on; with
another commit's defaults take another folder, or `--again`. `--seeds 0` only reports.

Writes `rows.csv`, `summary.csv` (means over seeds and standard errors), `ratios.csv`
(ours against the peers, over the seeds that both have), `regret.csv`, `tables.md` and a
picture for each protocol and noise.

`ratios.csv` compares the best 1 % found in two ways. `ratio` is to the best of the
stock methods on that pool, known after the fact and from the very seeds that are
compared: the largest of three noisy means, which favours the peers, the more the fewer
seeds there are. `ratio_to_choice` holds ours on each seed against the stock method that
has the largest mean on the other seeds of that pool (the first of equals), and is the
sum of ours over the sum of theirs; it needs two seeds that all of them have.

`--page` runs nothing: it makes the tables and the picture of the page "Practice" of the
docs from the rows that are kept in `benchmarks/results/practice`. `--speed` measures
one ask of each method among 30,000 candidates instead, each in a process of its own:
`speed.csv`.

`benchmarks/pools.py` names the pools and where they come from, `benchmarks/peers.py`
the peers, `benchmarks/practice_methods.py` all who take part; BayBE does where it is
installed.
"""

from __future__ import annotations

import argparse
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.pools import (
    Laboratory,
    load_pool,
    names_of,
    Pool,
    PoolMissingError,
    smoke_pools,
    SOURCES,
)
from benchmarks.practice_methods import METHODS, OURS
from benchmarks.practice_page import write_page
from benchmarks.practice_report import report
from benchmarks.practice_rows import RowFile
from benchmarks.practice_speed import compare_speed
from benchmarks.record import caption, Record


NOISES = (0.0, 0.05, 0.5)
ROWS = Path(__file__).parent / "results" / "practice" / "rows.csv.gz"
PAGE = Path(__file__).parent.parent / "docs" / "practice"


@dataclass(frozen=True)
class Protocol:
    """How many are measured when.

    Attributes:
        first: The number of uniformly drawn candidates at the start.
        batch: The size of a batch.
        total: The number of measurements; a pool that is smaller ends earlier.
        checkpoints: The numbers of measurements that tables are of.
    """

    first: int
    batch: int
    total: int
    checkpoints: tuple[int, ...]

    def ends(self, num_arms: int) -> list[int]:
        """Return how many are measured after each batch, the first included."""
        total = min(self.total, num_arms)
        ends = range(self.first, total, self.batch)
        return [*ends, total]


PROTOCOLS = {
    "batches": Protocol(10, 5, 100, (50, 100)),
    "one_by_one": Protocol(10, 1, 100, (50, 100)),
    "plates": Protocol(96, 96, 480, (192, 288, 480)),
    "three_plates": Protocol(96, 96, 288, (192, 288)),
    "long": Protocol(10, 5, 500, (100, 500)),
}
# After which measurements the page compares.
PAGE_CHECKPOINTS = {
    "batches": (100,),
    "one_by_one": (100,),
    "plates": (288, 480),
    "three_plates": (288,),
    "long": (500,),
}
SMOKE_PROTOCOLS = {
    "batches": Protocol(6, 3, 12, (9, 12)),
    "one_by_one": Protocol(4, 1, 8, (6, 8)),
    "plates": Protocol(8, 8, 16, (16,)),
    "three_plates": Protocol(4, 4, 12, (12,)),
    "long": Protocol(6, 3, 18, (12, 18)),
}


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
        choices=("choosing", "held-out", "further", "later", "all"),
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
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="0 to N - 1")
    parser.add_argument(
        "--again", action="store_true", help="drop the rows of these runs first"
    )
    parser.add_argument("--page", action="store_true", help="only make docs/practice")
    parser.add_argument("--speed", action="store_true", help="only the speed of an ask")


def run(args: argparse.Namespace) -> None:
    """Run what is left, then write, draw and print."""
    if args.device != "cpu":
        raise SystemExit(f"Expected --device cpu, but got {args.device}.")
    if args.page:
        table = RowFile(ROWS, keys=Run._fields).table_for_page()
        write_page(table, PAGE_CHECKPOINTS, PAGE, ours=tuple(OURS))
        print(f"Wrote to {PAGE}")
        return
    record = Record(args.output)
    print(caption(record.origin))
    if args.speed:
        compare_speed(record, args.methods, args.smoke)
        return
    pools = (
        smoke_pools() if args.smoke else load_pools(args.pools or names_of(args.part))
    )
    protocols = SMOKE_PROTOCOLS if args.smoke else PROTOCOLS
    protocols = {name: protocols[name] for name in args.protocols}
    noises = args.noise[:1] if args.smoke else args.noise
    seeds = min(args.seeds, 1) if args.smoke else args.seeds
    wanted = [
        Run(pool, protocol, noise, method, seed)
        # Seeds outside: a run that is stopped early has something of every pool.
        for seed in range(seeds)
        for protocol in protocols
        for noise in noises
        for pool in pools
        for method in args.methods
    ]
    rows = RowFile(record.folder / "rows.csv", keys=Run._fields)
    missing = rows.missing(wanted, again=args.again)
    failures = run_missing(missing, rows, pools, protocols, record)
    table = rows.table()
    is_asked = table["pool"].isin(pools) & table["protocol"].isin(protocols)
    is_asked &= table["noise"].isin(noises)
    if is_asked.any():
        checkpoints = {name: one.checkpoints for name, one in protocols.items()}
        report(table[is_asked], checkpoints, record, ours=tuple(OURS))
    print(f"\nWrote to {record.folder}")
    if failures:
        raise SystemExit("These failed:\n" + "\n".join(failures))


def load_pools(names: Iterable[str]) -> dict[str, Pool]:
    """Load pools; say which are missing, and leave them out."""
    pools = {}
    for name in names:
        try:
            pools[name] = load_pool(name)
        except PoolMissingError as error:
            print(f"Note: left out {name}: {error}.")
    return pools


def run_missing(
    missing: Sequence[Run],
    rows: RowFile,
    pools: dict[str, Pool],
    protocols: dict[str, Protocol],
    record: Record,
) -> list[str]:
    """Run what is left to do; return a line for each run that failed."""
    failures = []
    bar = tqdm(missing, unit="run", disable=not missing, mininterval=1.0)
    for one in bar:
        name = f"{one.pool}, {one.method}, seed {one.seed}"
        bar.set_description(name, refresh=False)
        try:
            played = play(one, pools[one.pool], protocols[one.protocol])
        except Exception as error:
            # One method's numerical trouble must not cost the others a night's run.
            traceback.print_exc()
            failures.append(f"{one}: {type(error).__name__}: {error}")
            continue
        rows.append(played.assign(**record.origin))
    return failures


def play(one: Run, pool: Pool, protocol: Protocol) -> pd.DataFrame:
    """Measure by one method until the protocol ends.

    Returns:
        One row per batch, the first candidates included. ``asks`` and ``seconds`` count
        since the batch before, all else from the start; ``rows`` is their number.
    """
    draws = torch.Generator().manual_seed(1_000_000 + one.seed)
    first = torch.randperm(pool.num_arms, generator=draws)[: protocol.first]
    laboratory = Laboratory(pool, one.noise, one.seed)
    generator = torch.Generator().manual_seed(one.seed)
    ends = protocol.ends(pool.num_arms)
    rows: list[dict[str, float]] = []
    measured = torch.empty(0, dtype=torch.long)
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on, and of noise near zero.
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        player = METHODS[one.method](pool.arms, generator)
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
            rows.append(
                {
                    **score(pool, measured, player.best_arm()),
                    "asks": asks,
                    "seconds": seconds,
                }
            )
            seconds = 0.0
    table = pd.DataFrame(rows).assign(rows=len(ends))
    for column, value in reversed(list(one._asdict().items())):
        table.insert(0, column, value)
    return table


def score(pool: Pool, measured: Tensor, recommended: int) -> dict[str, float]:
    """Return what was reached by measuring some candidates, repeats included."""
    distinct = measured.unique()
    return {
        "num_measured": len(measured),
        "found": int(pool.is_best[distinct].sum()),
        "num_best": int(pool.is_best.sum()),
        "simple_regret": pool.regrets[recommended].item(),
        "cumulative_regret": pool.regrets[measured].sum().item(),
        "distinct": len(distinct),
    }
