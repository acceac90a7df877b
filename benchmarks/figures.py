"""Every figure of the papers that is reproduced here, at the paper's size.

`--figures` names some (all if omitted): `starvation` is figure 2 of the BKB paper,
`theorems` the statements of both BKB papers, `regret_bounds` regret and the bounds of
their Theorem 2, `bbkb` figures 1 and 2 of the BBKB paper, `bbkb_time` its figure 1 with
seconds, `drift` and `drift_real` figures 2 and 3 of the TV-GP-UCB paper, `thompson` and
`thompson_maximizer` figures 3 to 5 and 7 of the Thompson sampling paper.
`benchmarks/bbkb.py`, `drift.py` and so on describe each.

Rows are kept in `benchmarks/results`, one compressed file a figure, each with commit,
versions, threads, seed, the seconds of its run and the load of the machine; one process
at a time may add to them. What stands there is not run again, so a killed run
continues; `--again` drops it first. `--seeds` runs the first few repetitions only, and
`--seeds 0` none. Tables and pictures are then made of all rows. `--page` makes those in
`benchmarks/results/figures` and the tables of the page "Benchmarks" of the docs, and
runs nothing.

Tables that come as files are read from the folder that BOTORCH_BKB_DATA names.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pandas as pd

from benchmarks.bbkb import BBKBFigures, BBKBTimes
from benchmarks.drift import Drift
from benchmarks.drift_real import RealDrift
from benchmarks.record import (
    PAGE,
    print_table,
    Record,
    Report,
    RESULTS,
    write_page_figure,
    write_page_table,
)
from benchmarks.rows import add_run_arguments, RowFile
from benchmarks.starvation import Starvation
from benchmarks.theorems import RegretBounds, Theorems
from benchmarks.thompson_decay import ThompsonDecay, ThompsonMaximizer


EVIDENCE = RESULTS / "figures"


class PaperFigure(Protocol):
    """What a figure is made of."""

    @property
    def keys(self) -> Sequence[str]:
        """The columns that name a run, `seed` last."""

    @property
    def seeds(self) -> range:
        """The seeds of its repetitions, as many as the paper's if it names a number."""

    def runs(self, seed: int) -> Sequence[tuple[Any, ...]]:
        """Return the keys of all runs of a seed."""

    @property
    def play(self) -> Callable[..., pd.DataFrame]:
        """Returns the rows of a run, given its keys, without them."""

    def report(self, rows: pd.DataFrame, /) -> Report:
        """Return tables and pictures of all rows; seconds if a machine was quiet."""


def drift_by_bandit(table: pd.DataFrame) -> pd.DataFrame:
    """Return the average regret, one column per bandit."""
    by = ["kernel", "eps"]
    wide = table.pivot(index=by, columns="bandit", values="average_regret")
    return wide[list(table["bandit"].unique())].reset_index()


def figure_1(table: pd.DataFrame) -> pd.DataFrame:
    """Return what figure 1 of the BBKB paper shows, and the sizes of batches."""
    columns = "data bandit runs median_seconds share_of_uniform exponent largest_batch"
    return table[columns.split()]


# Tables that the docs show, in their form there.
PAGE_TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "bbkb_time": figure_1,
    "drift_matched": drift_by_bandit,
    "theorems": lambda table: table,
}
# From whether it is to be small.
FIGURES: dict[str, Callable[[bool], PaperFigure]] = {
    "starvation": Starvation,
    "theorems": Theorems,
    "regret_bounds": RegretBounds,
    "bbkb": BBKBFigures,
    "bbkb_time": BBKBTimes,
    "drift": Drift,
    "drift_real": RealDrift,
    "thompson": ThompsonDecay,
    "thompson_maximizer": ThompsonMaximizer,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES))
    add_run_arguments(parser, None)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left; make tables and pictures."""
    seeds, output = (0, EVIDENCE) if args.page else (args.seeds, args.output)
    folder = args.output if args.smoke else RESULTS
    for name in args.figures:
        print(f"\n{name}")
        figure = FIGURES[name](args.smoke)
        file = RowFile(folder / f"{name}.csv.gz", figure.keys)
        wanted = [one for seed in figure.seeds[:seeds] for one in figure.runs(seed)]

        def play(one: Any, figure: PaperFigure = figure) -> pd.DataFrame:
            start = time.perf_counter()
            played = rounded(figure.play(*one))
            seconds = time.perf_counter() - start
            return played.assign(run_seconds=seconds, load=os.getloadavg()[0])

        file.play_missing(wanted, play, record.origin, again=args.again)
        rows = file.table()
        if not rows.empty:
            tables, pictures = figure.report(rows)
            for title, table in tables.items():
                print_table(table)
                write_page_table(table, output, title)
                if args.page and title in PAGE_TABLES:
                    write_page_table(PAGE_TABLES[title](table), PAGE, title)
            for title, picture in pictures.items():
                write_page_figure(picture, output, title)
    print(f"\nRows in {folder}, tables and pictures in {output}")


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Return numbers to six digits, which is what a file needs to hold."""
    numbers = table.select_dtypes("float").columns
    return table.assign(
        **{name: table[name].map(lambda x: float(f"{x:.6g}")) for name in numbers}
    )
