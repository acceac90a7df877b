"""Every figure of the papers that is reproduced here, at the paper's size.

`--figures` names some (all otherwise): `starvation` is figure 2 of the BKB paper,
`theorems` the statements of both BKB papers, `bbkb` figures 1 and 2 of the BBKB paper,
`drift` and `drift_real` figures 2 and 3 of the TV-GP-UCB paper, `thompson` and
`thompson_maximizer` figures 1 to 7 of the Thompson sampling paper; `ablations` changes
one option of BBKB at a time, which no paper shows. `benchmarks/bbkb.py`, `drift.py` and
so on say what each is made of.

Beforehand a table says what is left to do and how long that takes: by the median of the
rows that are there, those of a busy machine left out, or else by a rough number for one
thread.
`--plan` ends there. Rows are kept in `benchmarks/results`, one compressed file a
figure, each with commit, versions, threads, seed, the seconds of its run and the load
of the machine; one process at a time may add to them. What stands there is not run
again, and a killed run goes on; `--again` forgets it first. The cheapest runs come
first. `--budget` leaves out what would end later, `--seeds` takes the first few
repetitions only, and `--seeds 0` runs nothing. In any case tables and pictures are then
made of all rows; `--page` makes those of the page "Figures" of the docs, and runs
nothing.

Tables that come as files are read from the folder that BOTORCH_BKB_DATA names.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pandas as pd

from benchmarks.ablations import Ablations
from benchmarks.bbkb import BBKBFigures
from benchmarks.drift import Drift
from benchmarks.drift_real import RealDrift
from benchmarks.practice_rows import RowFile
from benchmarks.record import caption, PageRecord, print_table, Record
from benchmarks.starvation import Starvation
from benchmarks.theorems import Theorems
from benchmarks.thompson_decay import ThompsonDecay, ThompsonMaximizer


RESULTS = Path(__file__).parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "figures"


class PaperFigure(Protocol):
    """What a figure is made of."""

    @property
    def keys(self) -> Sequence[str]:
        """The columns that name a run, `seed` last."""

    @property
    def repetitions(self) -> int:
        """The number of seeds, the paper's where it says one."""

    def runs(self, repetitions: int) -> Sequence[Any]:
        """Return the keys of all runs of some seeds."""

    def seconds(self, run: Any, /) -> float:
        """Return about how long a run takes."""

    def play(self, run: Any, /) -> pd.DataFrame:
        """Return the rows of a run, without its keys."""

    def report(self, rows: pd.DataFrame, record: Record) -> None:
        """Write tables and pictures of all rows, and print."""


# From whether it is to be small.
FIGURES: dict[str, Callable[[bool], PaperFigure]] = {
    "starvation": Starvation,
    "theorems": Theorems,
    "bbkb": BBKBFigures,
    "drift": Drift,
    "drift_real": RealDrift,
    "thompson": ThompsonDecay,
    "thompson_maximizer": ThompsonMaximizer,
    "ablations": Ablations,
}


# What docs/figures.rst shows. No seconds: rows may come from a busy machine.
PAGE_TABLES = {
    "starvation": {
        "evaluations": "evaluations",
        "posterior": "posterior",
        "runs": "functions",
        "least_far_variance": "smallest variance beyond 0.7",
        "median_inducing": "inducing points",
    },
    "theorems": {
        "statement": "statement",
        "oversampling": "q-bar",
        "runs": "runs",
        "failed": "share that fails",
        "worst_ratio": "variances, largest ratio",
        "inducing_share": "inducing, share of pulls",
        "error_over_band": "error, share of the band",
        "exponent": "exponent of the regret",
    },
    "bbkb": {
        "data": "table",
        "setting": "setting",
        "bandit": "bandit",
        "runs": "runs",
        "least_pulls": "pulls, at least",
        "mean_regret": "regret",
        "std_regret": "deviation",
        "share_of_uniform": "share of uniform choice's",
        "exponent": "exponent",
        "median_batches": "batches",
        "largest_batch": "largest batch",
        "median_inducing": "inducing",
    },
    "drift_matched": {
        "kernel": "kernel",
        "eps": "eps",
        "bandit": "bandit",
        "trials": "trials",
        "average_regret": "average regret",
        "over_tv": "over TV-GP-UCB's",
        "standard_error": "standard error",
    },
    "drift_mismatched": {
        "bandit": "the bandit's",
        "size": "trials",
        "mean": "average regret",
        "std": "deviation",
    },
    "drift_real": {
        "data": "data",
        "stretch": "stretch",
        "bandit": "bandit",
        "starts": "starts",
        "average_regret": "average regret",
        "standard_error": "standard error of the gap to TV-GP-UCB",
    },
    "thompson_summary": {
        "function": "function",
        "noise_std": "noise",
        "runs": "runs",
        "slope": "slope",
        "share_negative": "surely negative",
        "last_error": "last error",
    },
    "thompson_maximizer": {
        "round": "rounds",
        "median": "median distance",
        "max": "largest",
    },
    "ablations": {
        "changed": "changed",
        "runs": "runs",
        "regret": "regret",
        "regret_error": "standard error",
        "batches": "batches",
        "largest_batch": "largest batch",
        "inducing": "inducing",
        "distinct": "distinct arms",
        "variance_ratio": "variances, largest ratio",
        "mean_error": "means, largest error",
    },
}
PAGE_PICTURES = (
    "ablations",
    "bbkb_abalone",
    "bbkb_cadata",
    "drift",
    "drift_real_intel",
    "starvation",
    "thompson_3",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="at most so many repetitions"
    )
    parser.add_argument(
        "--only", metavar="TEXT", help="runs whose name has this text, `abalone, paper`"
    )
    parser.add_argument("--budget", type=float, metavar="MINUTES")
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FOLDER",
        help="benchmarks/results if omitted, or with --smoke --output",
    )
    parser.add_argument(
        "--again", action="store_true", help="drop the rows of these runs first"
    )
    parser.add_argument("--plan", action="store_true", help="only say what is left")
    parser.add_argument("--page", action="store_true", help="only make docs/figures")


class Job:
    """A figure, its rows, and what is left of it to do.

    Args:
        name: One of ``FIGURES``.
        folder: Of the rows.
        smoke: Whether it is to be small.
    """

    def __init__(self, name: str, folder: Path, smoke: bool) -> None:
        self.name = name
        self.figure = FIGURES[name](smoke)
        self.rows = RowFile(folder / f"{name}.csv.gz", self.figure.keys)
        self.missing: list[Any] = []
        self._measured = self._medians()

    def choose(self, seeds: int | None, only: str | None, again: bool) -> None:
        """Choose what is to be done, the cheapest first."""
        repetitions = self.figure.repetitions
        if seeds is not None:
            repetitions = min(seeds, repetitions)
        wanted = self.figure.runs(repetitions)
        wanted = [run for run in wanted if only is None or only in describe(run)]
        if again:
            self.rows.drop(wanted)
        done = self.rows.runs()
        self.missing = [run for run in wanted if tuple(run) not in done]
        self.missing.sort(key=self.seconds)

    def seconds(self, run: Any) -> float:
        """Return how long a run of these keys took, or how long it is said to take."""
        return self._measured.get(tuple(run)[:-1]) or self.figure.seconds(run)

    def summary(self) -> dict[str, object]:
        """Return a row of the plan."""
        measured = sum(tuple(run)[:-1] in self._measured for run in self.missing)
        return {
            "figure": self.name,
            "runs there": len(self.rows.runs()),
            "left": len(self.missing),
            "minutes": sum(map(self.seconds, self.missing)) / 60,
            "of these by rows": measured,
        }

    def play(self, run: Any, origin: dict[str, Any]) -> None:
        """Do one run and keep its rows."""
        start = time.perf_counter()
        played = self.figure.play(run)
        seconds = time.perf_counter() - start
        played = played.assign(
            run_seconds=seconds, load=os.getloadavg()[0], rows=len(played), **origin
        )
        for position, (name, key) in enumerate(run._asdict().items()):
            played.insert(position, name, key)
        self.rows.append(rounded(played))

    def _medians(self) -> dict[tuple[Any, ...], float]:
        table = self.rows.table()
        if table.empty:
            return {}
        keys = list(self.figure.keys)
        # A machine that was busier than it has cores tells nothing of seconds.
        runs = table[table["load"] <= (os.cpu_count() or 1)].drop_duplicates(keys)
        seconds: dict[tuple[Any, ...], list[float]] = {}
        for *names, _, one in runs[[*keys, "run_seconds"]].itertuples(index=False):
            seconds.setdefault(tuple(names), []).append(one)
        return {names: median(each) for names, each in seconds.items()}


def run(args: argparse.Namespace) -> None:
    """Say what is left and how long it takes; do it; make tables and pictures."""
    if args.device != "cpu":
        raise SystemExit(f"Expected --device cpu, but got {args.device}.")
    record = Record(args.output)
    folder = args.rows or (args.output if args.smoke else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    seeds = 1 if args.smoke and args.seeds is None else args.seeds
    if args.page:
        record, seeds = PageRecord(PAGE, PAGE_TABLES, PAGE_PICTURES), 0
    print(caption(record.origin))
    jobs = [Job(name, folder, args.smoke) for name in args.figures]
    for job in jobs:
        job.choose(seeds, args.only, args.again)
    plan = pd.DataFrame([job.summary() for job in jobs])
    print_table(plan)
    print(f"{plan['minutes'].sum():,.0f} minutes in all\n", flush=True)
    if args.plan:
        return
    failures = play_all(jobs, args.budget, dict(record.origin))
    for job in jobs:
        rows = job.rows.table()
        if not rows.empty:
            print(f"\n{job.name}")
            job.figure.report(rows, record)
    print(f"\nRows in {folder}, tables and pictures in {record.folder}")
    if failures:
        raise SystemExit("These failed:\n" + "\n".join(failures))


def play_all(
    jobs: Sequence[Job], budget: float | None, origin: dict[str, Any]
) -> list[str]:
    """Do what is left, as far as the budget in minutes goes; return what failed."""
    start = time.monotonic()
    failures, left_out = [], 0
    for job in jobs:
        for run in job.missing:
            spent = time.monotonic() - start
            if budget is not None and spent + job.seconds(run) > 60 * budget:
                left_out += 1
                continue
            name = f"{job.name}: {describe(run)}"
            try:
                job.play(run, origin)
            except FileNotFoundError as error:
                # The same file is missing for many runs.
                if str(error) not in failures:
                    failures.append(str(error))
                continue
            except Exception as error:
                # One run's trouble must not cost the others a night.
                traceback.print_exc()
                failures.append(f"{name}: {type(error).__name__}: {error}")
                continue
            print(f"{name}, {time.monotonic() - start - spent:.1f} s", flush=True)
    if left_out:
        print(f"{left_out:,} runs did not fit the budget")
    return failures


def describe(run: Any) -> str:
    """Return the keys of a run in words."""
    *names, seed = run
    return ", ".join([*map(str, names), f"seed {seed}"])


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Return numbers to six digits, which is what a file needs to hold."""
    numbers = table.select_dtypes("float").columns
    return table.assign(
        **{name: table[name].map(lambda x: float(f"{x:.6g}")) for name in numbers}
    )
