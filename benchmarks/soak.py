"""A long campaign: late and failed pulls, saving and loading, and memory.

BBKB with coupled resampling on the Hartmann-6 function over 10,000 Sobol points, until
`--pulls` rewards have been told. Of every batch, 5 % of the pulls fail and 5 % are told
up to ten batches later, by pull id, in any order. Half way the bandit is saved, and
another one that loads the file continues; its next batch must be the same. Fails if a
pull is lost or counted twice. Needs psutil. Writes `soak.csv`, a row per hundredth of
the run, with pulls per second and the resident memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch
from torch import Tensor

from benchmarks.measure import MEBIBYTE
from benchmarks.problems import load_problem, new_kernel
from benchmarks.record import Record
from botorch_bkb import BBKB
from botorch_bkb.test_functions import FiniteArmProblem


FAILED, LATE, MOST_BATCHES_LATE = 0.05, 0.05, 10
BATCH_SIZE = 500
MARKS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--pulls", type=int, default=100_000)


class Laboratory:
    """Measures; some results are late, and some pulls fail."""

    def __init__(self, problem: FiniteArmProblem) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(0)
        self.stream = torch.Generator().manual_seed(0)
        # By the number of a batch, the pull ids that are told before the next.
        self.late: dict[int, list[int]] = {}
        self.batches = self.asked = self.failed = 0

    def receive(self, bandit: BBKB, indices: Tensor) -> None:
        """Settle what is due before the next batch, and check what is pending."""
        ids = np.array(list(bandit.pending)[-len(indices) :])
        luck = self.rng.random(len(ids))
        self.batches += 1
        self.asked += len(ids)
        failed = ids[luck < FAILED].tolist()
        self.failed += len(failed)
        for key in ids[(luck >= FAILED) & (luck < FAILED + LATE)].tolist():
            batch = self.batches + int(self.rng.integers(1, MOST_BATCHES_LATE + 1))
            self.late.setdefault(batch, []).append(key)
        due = [*ids[luck >= FAILED + LATE].tolist(), *self.late.pop(self.batches, [])]
        self.rng.shuffle(due)
        pending = bandit.pending
        arms = torch.tensor([pending[key] for key in due], dtype=torch.long)
        bandit.fail([pending[key] for key in failed], pull_ids=failed)
        bandit.tell(arms, self.problem.sample(arms, self.stream), pull_ids=due)
        late = sorted(key for keys in self.late.values() for key in keys)
        settled = bandit.num_pulls + self.failed
        if late != sorted(bandit.pending) or settled + len(late) != self.asked:
            raise RuntimeError(
                "Expected every pull once, but some are lost or doubled."
            )


def new_bandit(arms: Tensor, seed: int) -> BBKB:
    """Return the bandit, at its start."""
    generator = torch.Generator().manual_seed(seed)
    return BBKB(arms, new_kernel(), 0.1, resampling="coupled", generator=generator)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run the campaign; write and print."""
    pulls = 1500 if args.smoke else args.pulls
    problem = load_problem("hartmann", args.smoke)
    bandit, laboratory = new_bandit(problem.arms, 0), Laboratory(problem)
    rows: list[dict[str, float]] = []
    is_saved, start = False, time.perf_counter()
    while bandit.num_pulls < pulls:
        laboratory.receive(bandit, bandit.ask(max_size=BATCH_SIZE))
        if bandit.num_pulls >= (len(rows) + 1) * pulls / MARKS:
            rows.append(
                {
                    "pulls": bandit.num_pulls,
                    "pulls_per_second": bandit.num_pulls
                    / (time.perf_counter() - start),
                    "mib": psutil.Process().memory_info().rss / MEBIBYTE,
                    "inducing": len(bandit.inducing_indices),
                    "pending": len(bandit.pending),
                    "failed": laboratory.failed,
                }
            )
        if not is_saved and bandit.num_pulls >= pulls / 2:
            bandit, is_saved = loaded(bandit, record.folder / "state"), True
    record.show(pd.DataFrame(rows), "soak")


def loaded(bandit: BBKB, path: Path) -> BBKB:
    """Return a bandit that loaded what this one saved, and check its next batch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bandit.save(path)
    other = new_bandit(bandit.arms, 1)
    other.load(path)
    expected, found = (one.ask(max_size=BATCH_SIZE) for one in (bandit, other))
    if not torch.equal(found, expected):
        raise RuntimeError("Expected the batch of the saved bandit, but got another.")
    other.load(path)
    return other
