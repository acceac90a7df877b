"""BBKB beside the authors' code: regret, seconds and batch size over pulls.

Widths of the authors' released code with F = 1, and otherwise the parameters of the
BBKB paper (`benchmarks/bbkb.py`). `BBKB, coupled` is the option
`resampling="coupled"`. `--batch-bkb` names a checkout of the authors' code: same arms,
kernel, width and threads, the same reward noise and opening arm per seed, in
alternation with ours. Only the bandits' own seconds count.

Data: `abalone` (A = 4,177) and `cadata` (A = 20,640), read from the folder that
BOTORCH_BKB_DATA names. `--smoke` makes up a small table instead. Writes `rounds.csv`
and `summary.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.batch_bkb import AuthorsBBKB, load_library
from benchmarks.bbkb import (
    new_bandit,
    NOISE_VARIANCE,
    OVERSAMPLING,
    play,
    Player,
    RATIO_THRESHOLD,
    summarize,
)
from benchmarks.problems import DATA_SETS, load_problem
from benchmarks.record import Record


NUM_WARM_UP_PULLS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--data", choices=DATA_SETS, default="abalone")
    parser.add_argument("--horizon", type=int, default=10_000, metavar="T")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--batch-bkb", type=Path, metavar="PATH", help="a checkout")


def run(args: argparse.Namespace, record: Record) -> None:
    """Run every bandit on every seed, in alternation; write and print the outcome."""
    horizon, repetitions = args.horizon, args.repetitions
    if args.smoke:
        horizon, repetitions = min(horizon, 60), min(repetitions, 2)
    problem = load_problem(args.data, args.smoke)
    players: dict[str, Callable[[int], Player]] = {}  # from a seed
    if args.batch_bkb is not None:
        library = load_library(args.batch_bkb)
        players["BBKB, authors' code"] = lambda seed: AuthorsBBKB(
            library,
            problem.arms,
            seed,
            lam=NOISE_VARIANCE,
            fnorm=1.0,
            noise_variance=NOISE_VARIANCE,
            delta=1 / horizon,
            qbar=OVERSAMPLING,
            ratio_threshold=RATIO_THRESHOLD,
        )
    ours = partial(new_bandit, "BBKB", problem.arms, horizon)
    players["BBKB"] = ours
    players["BBKB, coupled"] = partial(ours, resampling="coupled")
    for new_player in players.values():
        play(new_player(0), problem, min(horizon, NUM_WARM_UP_PULLS), seed=0)
    runs = []
    for seed in range(repetitions):
        for name, new_player in players.items():
            rounds = play(new_player(seed), problem, horizon, seed=seed)
            runs.append(rounds.assign(seed=seed, bandit=name, data=args.data))
            print(f"{name}, seed {seed}: {rounds['seconds'].max():.2f} s", flush=True)
            # After every run: a program that is stopped leaves what it has.
            table = pd.concat(runs, ignore_index=True)
            record.write_table(table, "rounds")
    record.show(summarize(table), "summary")
