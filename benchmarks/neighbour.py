"""Two threads against one, while another program takes half of a core.

Threads that wait for each other wait for the slower one, and on a core that is shared
that one is slow. BBKB plays the same run with one thread and with two, in turn, alone
and beside a process that computes and sleeps 5 ms each, on arms that are too few for
two threads, many enough, and many. Of each number of arms the median of the seconds by
either, and of the ratios of runs that followed each other: above 1 two are slower.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.synchronize import Event

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.measure import seconds_of
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB


DIM = 8
PERIOD = 0.005
# Numbers of arms, and the pulls that take some seconds.
SIZES = {4_000: 1_000, 20_000: 300, 200_000: 50}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--repetitions", type=int, default=10)


def _compute_and_sleep(is_ready: Event) -> None:
    is_ready.set()
    parent = multiprocessing.parent_process()
    # Until who asked for it is gone, killed or not.
    while parent is not None and parent.is_alive():
        start = time.perf_counter()
        while time.perf_counter() - start < PERIOD:
            pass
        time.sleep(PERIOD)


@contextmanager
def neighbour() -> Iterator[None]:
    """Let a process take half of a core for a while."""
    context = multiprocessing.get_context("spawn")
    is_ready = context.Event()  # it imports first
    process = context.Process(target=_compute_and_sleep, args=(is_ready,), daemon=True)
    process.start()
    if not is_ready.wait(timeout=60):
        raise RuntimeError(
            "Expected a neighbour within a minute, but it has not begun."
        )
    try:
        yield
    finally:
        process.kill()
        process.join()


def campaign(num_arms: int, horizon: int) -> None:
    """Run BBKB."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(num_arms, DIM, generator=generator, dtype=torch.double)
    rewards = (4 * arms[:, :3]).sin().sum(dim=-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    bandit = BBKB(arms, covar_module=kernel, noise_variance=0.1, generator=generator)
    while bandit.num_pulls < horizon:
        indices = bandit.ask(max_size=horizon - bandit.num_pulls)
        noise = torch.randn(len(indices), generator=generator, dtype=torch.double)
        bandit.tell(indices, rewards[indices] + 0.3 * noise)


def compare(num_arms: int, horizon: int, repetitions: int) -> dict[str, float]:
    """Return the seconds of runs with one and two threads, and their ratio."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repetitions):
        for threads, found in seconds.items():
            torch.set_num_threads(threads)
            found.append(seconds_of(lambda: campaign(num_arms, horizon)))
    ratios = [two / one for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "one_thread": statistics.median(seconds[1]),
        "two_threads": statistics.median(seconds[2]),
        "ratio": statistics.median(ratios),
        "largest_ratio": max(ratios),
    }


def run(args: argparse.Namespace) -> None:
    """Compare alone and beside a neighbour; print a row for each number of arms."""
    record = Record(args.output)
    sizes = {400: 20} if args.smoke else SIZES
    repetitions = 1 if args.smoke else args.repetitions
    print(caption(record.origin))
    rows = []
    for num_arms, horizon in sizes.items():
        for is_beside in (False, True):
            with neighbour() if is_beside else nullcontext():
                found = compare(num_arms, horizon, repetitions)
            names = {"num_arms": num_arms, "pulls": horizon, "neighbour": is_beside}
            rows.append({**names, **found})
            # After every row: a program that is stopped leaves what it has.
            record.write_table(pd.DataFrame(rows), "neighbour")
    print_table(pd.DataFrame(rows))
