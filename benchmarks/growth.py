"""How the cost of an argmax grows with the size of its task, beside the papers' orders.

Sources, by name: BKB is "Gaussian process optimization with adaptive sketching:
scalable and no regret" (COLT 2019), BBKB is "Near-linear time Gaussian process
optimization with adaptive batching and resparsification".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import fitted_exponent, seconds_of
from benchmarks.ways import Sizes, Task, WAYS
from botorch_bkb.plotting import blank_figure, tidy_axes


@dataclass(frozen=True)
class Growth:
    """One way, one size that grows, and what the papers say.

    Attributes:
        way: A name of ``WAYS``.
        letter: What grows, in the papers' letters.
        tasks: The sizes of the tasks, by the value of what grows.
        order: The papers' power of it, for as long as no other term is larger.
        source: The papers' formula, and where it stands.
    """

    way: str
    letter: str
    tasks: Mapping[int, Sizes]
    order: int
    source: str


_REBUILD = "O(A m^2 + m^3 + t m): BBKB, appendix B.1, a resparsification step"
_GP_UCB = "at least t^2 per arm: BKB, section 2.1, GP-UCB"


def growths(base: Sizes) -> tuple[Growth, ...]:
    """Return what is measured, around some sizes."""
    A, m, n = base.num_arms, base.num_inducing, base.num_observed
    few = replace(base, num_inducing=m // 2)
    arms = {A * k: replace(base, num_arms=A * k) for k in (1, 4, 16)}
    inducing = {m * k // 2: replace(base, num_inducing=m * k // 2) for k in (1, 2, 4)}
    observed = {
        n * k: replace(few, num_observed=n * k, num_pulls=n * k) for k in (1, 2, 4, 8)
    }
    pulls = {n * k: replace(few, num_pulls=n * k) for k in (1, 10, 100, 1000)}
    exact = {n * k // 2: Sizes.unrepeated(A // 4, n * k // 2, m) for k in (1, 2, 4)}
    return (
        Growth("ours, cold", "A", arms, 1, _REBUILD),
        Growth("ours, cold", "m", inducing, 2, _REBUILD),
        Growth("ours, cold", "n (distinct pulls)", observed, 1, _REBUILD),
        Growth("ours, cold", "T (repeated pulls)", pulls, 1, _REBUILD),
        Growth("ours, cached", "A", arms, 1, _REBUILD),
        Growth("ours, cached", "m", inducing, 2, _REBUILD),
        Growth("ours, exact", "n (distinct pulls)", exact, 2, _GP_UCB),
    )


def measure_growth(growth: Growth, device: str, repeats: int) -> pd.DataFrame:
    """Return seconds by size and repeat, all sizes in alternation, after a warm-up."""
    way = WAYS[growth.way]
    choosers = {size: way(Task(sizes, device)) for size, sizes in growth.tasks.items()}
    rows = []
    for repeat in range(repeats + 1):
        for size, choose in choosers.items():
            seconds = seconds_of(choose, device)
            rows.append({"size": size, "repeat": repeat, "seconds": seconds})
    table = pd.DataFrame(rows).query("repeat > 0")
    table.insert(0, "grows", growth.letter)
    table.insert(0, "way", growth.way)
    return table


def exponents(table: pd.DataFrame, measured: tuple[Growth, ...]) -> pd.DataFrame:
    """Return the fitted exponent of each growth, of median seconds, and its order."""
    rows = []
    for growth in measured:
        medians = _medians(table, growth.way, growth.letter)
        rows.append(
            {
                "way": growth.way,
                "grows": growth.letter,
                "from": min(growth.tasks),
                "to": max(growth.tasks),
                "exponent": fitted_exponent(medians.index, medians),
                "papers_order": growth.order,
                "source": growth.source,
            }
        )
    return pd.DataFrame(rows)


def growth_figure(table: pd.DataFrame, fits: pd.DataFrame) -> Figure:
    """Draw median seconds against each size that grew, with the fitted exponents."""
    letters = list(dict.fromkeys(fits["grows"]))
    figure = blank_figure(3.4 * len(letters), 3.6)
    panels = figure.subplots(1, len(letters), sharey=True, squeeze=False)[0]
    for letter, axes in zip(letters, panels, strict=True):
        for _, fit in fits[fits["grows"] == letter].iterrows():
            medians = _medians(table, fit["way"], letter)
            # Zero is added to turn -0.0 into 0.0.
            exponent = round(fit["exponent"], 2) + 0.0
            label = f"{fit['way']}: {exponent} (papers: {fit['papers_order']})"
            axes.plot(medians.index, medians, marker="o", linewidth=1.8, label=label)
        mark_sizes(axes, table.loc[table["grows"] == letter, "size"])
        axes.set_xlabel(letter)
        axes.legend(frameon=False, fontsize="small")
    panels[0].set_ylabel("one argmax (seconds)")
    figure.suptitle("Seconds = c size^p: fitted p beside the papers' order")
    return figure


def mark_sizes(axes: Axes, sizes: pd.Series) -> None:
    """Make both axes logarithmic, with a tick at each size that was measured."""
    ticks = sorted(sizes.unique())
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize="small")
    axes.xaxis.set_minor_formatter("")
    tidy_axes(axes)


def _medians(table: pd.DataFrame, way: str, letter: str) -> pd.Series:
    rows = table[(table["way"] == way) & (table["grows"] == letter)]
    return rows.groupby("size")["seconds"].median()
