"""How the cost of a round grows: exponents beside those of the papers' bounds.

BKB, BBKB and exact TV-GP-UCB (forgetting rate 0.01, an objective that does not drift).
Arms are uniform in a cube, three dimensions; RBF kernel, noise variance 0.2. The edge
is 1.8 lengthscales (5.4 for TV-GP-UCB, whose pulls then have an inducing arm each).
Costs are seconds of the processor, which other programs disturb less than a clock.

- `rebuild`, against `A` and `m`: the posterior of all arms from nothing, 16 dimensions,
  Matern-5/2 kernel. Against `m` there are 10,000 arms, here and below.
- `round`, against `A` and `m`: the median round (of BBKB, batch) after observations of
  random arms: 1,000 with several oversamplings, or for TV-GP-UCB several numbers.
- `pull`, against `t`: the mean pull in a run among 10,000 arms, from one number of
  pulls to twice as many. `t` is their geometric mean.
- `run`, against `T`: the first `T` pulls of the same run.

Seconds are medians over `--seeds`. An exponent is the slope of their logarithms by
least squares. That of a bound uses the numbers of inducing arms that are measured.
`--page` makes the docs' table from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks import bbkb
from benchmarks.measure import seconds_of
from benchmarks.problems import new_kernel, NOISE_STD
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from benchmarks.speed import rebuild, uniform_arms
from botorch_bkb import BBKB, BKB, TVGPUCB
from botorch_bkb.test_functions import FiniteArmProblem


COLUMNS = ["cost", "against", "size", "m", "seconds"]
NUM_OBSERVED, NUM_FIRST, ARMS = 1000, 100, (5000, 10_000, 20_000, 40_000)


class Player(NamedTuple):
    """An algorithm, and how long it plays."""

    new: Any  # takes arms, kernel, noise variance and options
    sizes: tuple[int, ...]  # make `m` vary; the second is that against `A`
    edge: float  # of the cube
    num_pulls: int  # in rounds
    doublings: int  # of the number of pulls in a run


BOTH, TV = "BKB, BBKB", "TV-GP-UCB"
# The limit is for a filter with all arms, most of which are not pulled here.
EXACT = partial(TVGPUCB, forgetting_rate=0.01, max_feature_bytes=2**40)
PLAYERS = {
    BOTH: Player(rebuild, (100, 200, 400, 800), 1.0, 0, 0),
    "BKB": Player(BKB, (2, 4, 8, 16), 4.0, 9, 3),
    "BBKB": Player(BBKB, (2, 4, 8, 16), 4.0, 100, 6),
    TV: Player(EXACT, (64, 128, 256, 512), 12.0, 9, 4),
}
EMBEDDING = "BKB, section 3.2; BBKB, appendix B.1"
UPDATE = "section 3, Computational Complexity"
# The cost of what, against what: a bound up to logarithms, its exponents of the size
# and of `m`, and where the paper has it. BKB's section 3.2 also has `T A m^3`.
BOUNDS = {
    (BOTH, "rebuild", "A"): ("A m^2", 1, 2, EMBEDDING),
    (BOTH, "rebuild", "m"): ("A m^2", 2, 0, EMBEDDING),
    ("BKB", "round", "A"): ("A m^2", 1, 2, "section 3.2"),
    ("BKB", "round", "m"): ("A m^2", 2, 0, "section 3.2"),
    ("BKB", "pull", "t"): ("A m^2", 0, 2, "section 3.2, t below A"),
    ("BKB", "run", "T"): ("T A m^2", 1, 2, "abstract"),
    ("BBKB", "round", "A"): ("A m^2", 1, 2, "appendix B.1"),
    ("BBKB", "round", "m"): ("A m^2", 2, 0, "appendix B.1"),
    ("BBKB", "pull", "t"): ("constant", 0, 0, "abstract, amortized"),
    ("BBKB", "run", "T"): ("T A m^2", 1, 2, "theorem 1, part 3"),
    (TV, "round", "A"): ("none", np.nan, 0, ""),
    (TV, "round", "m"): ("none", np.nan, 0, ""),
    (TV, "pull", "t"): ("t^2", 2, 0, UPDATE),
    (TV, "run", "T"): ("T^3", 3, 0, f"{UPDATE}: T updates"),
}


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    algorithm: str
    task: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    add_run_arguments(parser, 3)


def run(args: argparse.Namespace, record: Record) -> None:
    """Play what is left; print exponents beside those of the bounds."""
    tasks = dict.fromkeys(key[:2] for key in BOUNDS if key[1] != "pull")
    wanted = [Run(*task, seed) for seed in range(args.seeds) for task in tasks]
    part = 16 if args.smoke else 1
    what = "growth.csv.gz", Run._fields, wanted, lambda one: play(one, part)
    table = exponents(finished_rows(args, record, *what))
    show_for_page(table, "growth", is_page=args.page)


def play(one: Run, part: int) -> pd.DataFrame:
    """Return rows of ``COLUMNS``; ``part`` divides numbers of arms and of pulls."""
    player, arms = PLAYERS[one.algorithm], [size // part for size in ARMS]
    rows: list[tuple[Any, ...]] = []
    if one.task == "run":
        sizes = NUM_FIRST // part * 2 ** np.arange(player.doublings + 1)
        rounds = timed(one, arms[1], 0, int(sizes[-1]))
        pulls, names = rounds["num_pulls"], ("num_inducing_points", "seconds")
        m, total = (np.interp(sizes, pulls, rounds[name]) for name in names)
        rows += [("run", "T", *row) for row in zip(sizes, m, total, strict=True)]
        mean, middle = np.diff(total) / np.diff(sizes), sizes[1:] / 2**0.5
        rows += [("pull", "t", *row) for row in zip(middle, m[1:], mean, strict=True)]
    else:
        for n in arms:
            rows.append((one.task, "A", n, *cost_of(one, n, player.sizes[1], part)))
        for size in player.sizes:
            m, seconds = cost_of(one, arms[1], size, part)
            rows.append((one.task, "m", m, m, seconds))
    return pd.DataFrame(rows, columns=COLUMNS)


def cost_of(one: Run, num_arms: int, size: int, part: int) -> tuple[float, float]:
    """Return the inducing arms and seconds of a rebuild, or medians of rounds."""
    if one.task == "rebuild":
        call = rebuild("cpu", num_arms, size // part, "Matern")
        return size // part, seconds_of(call, clock=time.process_time)
    is_tv, pulls = one.algorithm == TV, PLAYERS[one.algorithm].num_pulls
    number = (size if is_tv else NUM_OBSERVED) // part
    options = {} if is_tv else {"oversampling": size}
    rounds = timed(one, num_arms, number, number + pulls, **options)
    # The first round has the rebuild of the observations.
    return rounds["num_inducing_points"].median(), rounds["seconds"].diff().median()


def timed(one: Run, num_arms: int, observed: int, pulls: int, **how: Any) -> Any:
    """Observe some random arms; play until there are so many pulls."""
    arms, stream = uniform_arms(num_arms, 3), torch.Generator().manual_seed(one.seed)
    player, rewards = PLAYERS[one.algorithm], (3 * arms).sin().sum(dim=-1)
    problem = FiniteArmProblem(player.edge * arms, rewards, NOISE_STD)
    model = problem.arms, new_kernel(), bbkb.NOISE_VARIANCE
    bandit = player.new(*model, seed=one.seed, **how)
    if observed:
        first = torch.randperm(num_arms, generator=stream)[:observed]
        bandit.add_observations(first, problem.sample(first, stream))
    clock = time.process_time
    return bbkb.play(bandit, problem, pulls, seed=one.seed, clock=clock)


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """Return slopes of logarithms of medians, beside those of the bounds."""
    keys = ["algorithm", "cost", "against"]
    place, shown = rows.groupby([*keys, "seed"]).cumcount(), []
    medians = rows.groupby([*keys, place])[COLUMNS[2:]].median()
    for key, (bound, of_size, of_m, where) in BOUNDS.items():
        size, m, seconds = medians.xs(key).to_numpy().T
        slopes = [np.polyfit(np.log(size), np.log(y), 1)[0] for y in (seconds, m)]
        measured, limit = np.round([slopes[0], of_size + of_m * slopes[1]], 1) + 0.0
        sizes = int(size[0]), int(size[-1]), f"{m[0]:.0f} to {m[-1]:.0f}"
        shown.append((*key, *sizes, measured, limit, bound, where))
    names = ["from", "to", "m", "exponent", "of the bound", "bound", "claimed in"]
    return pd.DataFrame(shown, columns=[*keys, *names])
