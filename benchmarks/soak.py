"""A long campaign: many pulls, of which some are late and some bring nothing.

BBKB (coupled resampling) on the Hartmann-6 function over 10,000 Sobol points, until
`--pulls` rewards have been told. Of every batch, 5 % of the pulls fail and 5 % are told
up to ten batches later, by pull id, in any order. Half way the bandit is saved, and
another one that loads the file goes on; its next batch must be the same. Prints the
bandit's own pulls per second, and the resident memory at the end over that at a tenth
of the run. Writes `soak.csv`, a row per hundredth of the run, and `soak.png`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.measure import MEBIBYTE
from benchmarks.problems import load_problem, new_kernel
from benchmarks.record import caption, print_table, Record
from benchmarks.ways import NOISE_VARIANCE
from botorch_bkb import BBKB
from botorch_bkb.test_functions import FiniteArmProblem


LOST, LATE, MOST_BATCHES_LATE = 0.05, 0.05, 10
BATCH_SIZE = 500
MARKS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--pulls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)


@dataclass
class Laboratory:
    """Who measures; results come when they come.

    Attributes:
        drawers: The pull ids that are told before a coming batch, by its number.
        batches: The number of batches received.
        asked: The number of pulls received.
        lost: How many of them failed.
        late: How many of them came after their batch.
    """

    problem: FiniteArmProblem
    seed: int
    drawers: dict[int, list[int]] = field(default_factory=dict)
    batches: int = 0
    asked: int = 0
    lost: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        """Make the streams of luck and noise."""
        self.rng = np.random.default_rng(self.seed)
        self.stream = torch.Generator().manual_seed(self.seed)

    def receive(self, bandit: BBKB, indices: Tensor) -> float:
        """Settle what is to be settled before the next batch; return the seconds."""
        ids = list(bandit.pending)[-len(indices) :]
        luck = self.rng.random(len(ids))
        self.batches += 1
        self.asked += len(ids)
        failed = [key for key, u in zip(ids, luck, strict=True) if u < LOST]
        for key, u in zip(ids, luck, strict=True):
            if u >= LOST:
                delay = self.rng.integers(1, MOST_BATCHES_LATE + 1)
                wait = int(delay) if u < LOST + LATE else 0
                self.drawers.setdefault(self.batches + wait, []).append(key)
                self.late += wait > 0
        self.lost += len(failed)
        told = self.drawers.pop(self.batches, [])
        self.rng.shuffle(told)
        pending = bandit.pending
        arms = [pending[key] for key in told]
        rewards = self.problem.sample(torch.tensor(arms, dtype=torch.long), self.stream)
        start = time.perf_counter()
        bandit.fail([pending[key] for key in failed], pull_ids=failed)
        bandit.tell(arms, rewards, pull_ids=told)
        return time.perf_counter() - start


def new_bandit(arms: Tensor, seed: int) -> BBKB:
    """Return the bandit, at its start."""
    return BBKB(
        arms,
        new_kernel(),
        NOISE_VARIANCE,
        resampling="coupled",
        generator=torch.Generator().manual_seed(seed),
    )


def run(args: argparse.Namespace) -> None:
    """Run the campaign; write, draw and print."""
    pulls = 1500 if args.smoke else args.pulls
    record = Record(args.output, args.device)
    print(caption(record.origin))
    problem = load_problem("hartmann", None, args.smoke)
    bandit = new_bandit(problem.arms, args.seed)
    laboratory = Laboratory(problem, args.seed)
    marks: list[tuple[float, ...]] = []
    seconds, regret, is_saved = 0.0, 0.0, False
    while bandit.num_pulls < pulls:
        start = time.perf_counter()
        indices = bandit.ask(max_size=BATCH_SIZE)
        seconds += time.perf_counter() - start
        regret += problem.regret(indices).sum().item()
        seconds += laboratory.receive(bandit, indices)
        if bandit.num_pulls >= (len(marks) + 1) * pulls / MARKS:
            resident = psutil.Process().memory_info().rss / MEBIBYTE
            marks.append(
                (
                    bandit.num_pulls,
                    seconds,
                    resident,
                    len(bandit.inducing_indices),
                    len(bandit.pending),
                    regret,
                )
            )
        if not is_saved and bandit.num_pulls >= pulls / 2:
            bandit, is_saved = go_on_from_a_file(bandit, args.seed + 1), True
    columns = ["pulls", "seconds", "mebibytes", "inducing", "pending", "regret"]
    table = pd.DataFrame(marks, columns=columns)
    record.write_table(table, "soak")
    record.write_figure(draw(table), "soak")
    print_table(table.iloc[[len(table) // 10, len(table) // 2, -1]])
    report(bandit, laboratory, table)


def go_on_from_a_file(bandit: BBKB, seed: int) -> BBKB:
    """Return a bandit that loaded what this one saved, and check its next batch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        start = time.perf_counter()
        bandit.save(path)
        saved = time.perf_counter() - start
        size = path.stat().st_size / MEBIBYTE
        other = new_bandit(bandit.arms, seed)
        start = time.perf_counter()
        other.load(path)
        loaded = time.perf_counter() - start
        expected = bandit.ask(max_size=BATCH_SIZE)
        found = other.ask(max_size=BATCH_SIZE)
        other.load(path)
    if not torch.equal(found, expected):
        raise RuntimeError("A bandit that was loaded chose another batch.")
    print(
        f"saved {bandit.num_pulls:,} pulls in {saved:.2f} s, {size:.1f} MiB; loaded in "
        f"{loaded:.2f} s; the next batch is the same"
    )
    return other


def report(bandit: BBKB, laboratory: Laboratory, table: pd.DataFrame) -> None:
    """Check that nothing was lost or counted twice, and print the figures."""
    out = sum(len(keys) for keys in laboratory.drawers.values())
    if bandit.num_pulls + laboratory.lost + out != laboratory.asked:
        raise RuntimeError("Pulls were lost, or counted twice.")
    early = table["mebibytes"].iloc[len(table) // 10]
    ratio = table["mebibytes"].iloc[-1] / early
    speed = table["pulls"].iloc[-1] / table["seconds"].iloc[-1]
    print(
        f"\n{laboratory.asked:,} pulls asked in {laboratory.batches:,} batches, "
        f"{bandit.num_pulls:,} told, {laboratory.late:,} of them late, "
        f"{laboratory.lost:,} lost, {out:,} still out\n"
        f"{speed:,.0f} pulls per second\n"
        f"memory at the end over that at a tenth of the run: {ratio:.3f} (bar: 1.1)"
    )


def draw(table: pd.DataFrame) -> Figure:
    """Draw memory and seconds over the run."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    axes[0].plot(table["pulls"], table["mebibytes"])
    axes[0].set(xlabel="pulls", ylabel="resident memory, MiB", ylim=(0, None))
    axes[1].plot(table["pulls"], table["seconds"])
    axes[1].set(xlabel="pulls", ylabel="seconds in the bandit", ylim=(0, None))
    return figure
