"""One ask of each method of the benchmark ``practice`` among 30,000 candidates."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence

import pandas as pd
import torch

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.pools import Laboratory, load_pool, smoke_pools
from benchmarks.practice_methods import METHODS
from benchmarks.record import print_table, Record


POOL = "hpobench_segment_all"
NUM_TOLD = 100
BATCH_SIZE = 5
MAX_SECONDS = 600.0


def compare_speed(record: Record, methods: Sequence[str], smoke: bool) -> None:
    """Measure one ask of each method, in a process of its own."""
    rows = []
    for method in methods:
        outcome = in_own_process(
            measure_ask,
            method,
            "" if smoke else POOL,
            torch.get_num_threads(),
            max_seconds=MAX_SECONDS,
        )
        value = outcome.value or dict.fromkeys(("seconds", "mib", "picks"), math.nan)
        rows.append({"method": method, **value, "failure": outcome.failure})
        print(
            f"{method}: {value['seconds']:.3g} s, {value['mib']:,.0f} MiB", flush=True
        )
    table = pd.DataFrame(rows)
    record.write_table(table, "speed")
    print()
    print_table(table)


def measure_ask(method: str, pool_name: str, num_threads: int) -> dict[str, float]:
    """Return the seconds of one ask of five, and MiB beyond what importing takes.

    Both are of telling 100 measurements, fitting, and choosing; ``picks`` is how many
    came back.

    Args:
        method: One of ``METHODS``.
        pool_name: One of the pools; empty for a made-up one.
        num_threads: How many threads torch may use.
    """
    torch.set_num_threads(num_threads)
    imported = peak_memory()
    pool = load_pool(pool_name) if pool_name else next(iter(smoke_pools().values()))
    num_told = min(NUM_TOLD, pool.num_arms // 2)
    draws = torch.Generator().manual_seed(0)
    first = torch.randperm(pool.num_arms, generator=draws)[:num_told]
    rewards = Laboratory(pool, 0.05, seed=0).measure(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        player = METHODS[method](pool.arms, torch.Generator().manual_seed(0))
        player.tell(first, rewards)
        picks = player.ask(BATCH_SIZE)
        seconds = time.perf_counter() - start
    mib = peak_memory() - imported
    return {"seconds": seconds, "mib": mib, "picks": len(picks)}
