"""The page "Practice" of the docs: small tables and a picture of the rows kept.

Tables are of the end of each protocol. They hold no seconds: rows may come from a busy
machine. What they say depends on the rows alone: not on their order in the file, nor on
which peers are installed, nor on the last bits of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.pools import SOURCES
from benchmarks.practice_report import (
    add_legend,
    CELL,
    COLORS,
    colors_of,
    compare,
    ratios_over_pools,
    regret_against_each_peer,
    regret_against_peers,
    regret_by_policy,
    summarize,
)
from benchmarks.record import PageRecord
from botorch_bkb.plotting import blank_figure, tidy_axes


PARTS = ("choosing", "held-out", "further", "later", "made up", "all")
# Ours that collects reward.
COLLECTOR = "BBKB, regret"
# Of the table of what was found in each pool.
FOUND_PROTOCOL = "batches"
FOUND_NOISE = 0.05
NUM_PANELS_ACROSS = 3
ROW_ORDER = ("protocol", "noise", "pool", "method", "seed", "num_measured")
TABLE_ORDER = (
    "protocol",
    "checkpoint",
    "noise",
    "horizon",
    "part",
    "pool",
    "method",
    "who",
)

# What docs/practice.rst shows; `found` has a column a method besides.
PAGE_TABLES = {
    "runs": {
        "protocol": "protocol",
        "noise": "noise",
        "part": "part",
        "who": "whose",
        "pools": "pools",
        "methods": "methods",
        "seeds": "seeds",
        "commits": "commits",
    },
    "ratios": {
        "protocol": "protocol",
        "checkpoint": "measurements",
        "noise": "noise",
        "part": "part",
        "method": "method",
        "pools": "pools",
        "seeds": "seeds",
        "mean_ratio": "to the best stock method",
        "least_ratio": "least",
        "least_in": "in",
        "mean_to_choice": "to the choice",
        "mean_to_thompson": "to stock Thompson",
        "over_thompson": "regret over stock Thompson's",
    },
    "found": {
        "pool": "pool",
        "part": "part",
        "num_best": "best 1 %",
        "seeds": "seeds",
    },
    "regret": {
        "noise": "noise",
        "horizon": "measurements",
        "part": "part",
        "method": "method",
        "pools": "pools",
        "mean_ratio": "mean ratio",
        "largest_ratio": "largest",
        "num_below": "pools below 1",
    },
    "regret_by_peer": {
        "noise": "noise",
        "horizon": "measurements",
        "method": "peer",
        "policy": "policy",
        "pools": "pools",
        "mean_ratio": "mean ratio",
        "largest_ratio": "largest",
        "num_below": "pools below 1",
    },
}


def write_page(
    table: pd.DataFrame,
    checkpoints: Mapping[str, Sequence[int]],
    folder: Path,
    *,
    ours: Sequence[str],
) -> None:
    """Write the tables and the picture.

    A table of which there are no rows is left out.

    Args:
        table: The rows of finished runs.
        checkpoints: After how many measurements ours are compared, by protocol;
            the last is the end.
        folder: Where to.
        ours: Which methods are held against the peers.
    """
    orders = {
        "protocol": tuple(checkpoints),
        "part": PARTS,
        "pool": tuple(SOURCES),
        "method": (*COLORS, *ours),
        "who": ("ours", "peers"),
    }
    table = in_order(table, ROW_ORDER, orders)
    methods = list(in_order(table, ["method"], orders)["method"].unique())
    ends = {name: counts[-1:] for name, counts in checkpoints.items()}
    is_found = (table["protocol"] == FOUND_PROTOCOL) & (table["noise"] == FOUND_NOISE)
    tables = {
        "runs": runs_table(table, ours),
        "ratios": ratios_table(compare(table, checkpoints, ours)),
        "found": found_by_pool(table[is_found], ends, methods),
        "regret": regret_table(table, ours),
        "regret_by_peer": regret_by_peer_table(table, ours),
    }
    tables = {name: one for name, one in tables.items() if not one.empty}
    headings = {
        name: {column: PAGE_TABLES[name].get(column, column) for column in one.columns}
        for name, one in tables.items()
    }
    record = PageRecord(folder, headings, ["practice"])
    for name, one in tables.items():
        by = [column for column in TABLE_ORDER if column in one.columns]
        one = in_order(one, by, orders)
        if "noise" in by:
            one = one.assign(noise=one["noise"].map(percent))
        record.write_table(one, name)
    record.write_figure(draw_shares(table, methods), "practice")


def in_order(
    table: pd.DataFrame, by: Sequence[str], orders: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Sort by some columns; names that have an order by it, and others behind them."""

    def rank(column: pd.Series) -> pd.Series:
        known = orders.get(str(column.name))
        if known is None:
            return column
        names = [*known, *sorted(set(column) - set(known))]
        return column.map({name: place for place, name in enumerate(names)})

    return table.sort_values(list(by), key=rank, kind="stable", ignore_index=True)


def parts_of(pools: pd.Series) -> pd.Series:
    """Return which part each pool stands in."""
    return pools.map(lambda pool: SOURCES[pool].part if pool in SOURCES else "made up")


def runs_table(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return how far the rows go, and the commits of ours and of the peers."""
    is_ours = table["method"].isin(ours)
    named = table.assign(part=parts_of(table["pool"]), who="peers")
    named["who"] = named["who"].mask(is_ours, "ours")
    rows = []
    by = [*CELL, "part", "who"]
    for key, one in named.groupby(by, sort=False):
        seeds = one.groupby(["pool", "method"])["seed"].nunique()
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "pools": one["pool"].nunique(),
                "methods": one["method"].nunique(),
                "seeds": span(seeds),
                "commits": " ".join(sorted(one["commit"].unique())),
            }
        )
    return pd.DataFrame(rows)


def ratios_table(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the ratios over pools, in two decimals."""
    if compared.empty:
        return compared
    # Where there is one part only, all pools are of that part.
    by = [*CELL, "checkpoint"]
    parts = compared.groupby(by)["part"].nunique().rename("num_parts")
    over = ratios_over_pools(compared).join(parts, on=by)
    over = over[(over["part"] != "all") | (over["num_parts"] > 1)]
    ratios = ["mean_ratio", "least_ratio", "mean_to_choice", "mean_to_thompson"]
    decimals = {**dict.fromkeys(ratios, 2), "over_thompson": 3}
    over = over.assign(
        least_in=over["least_in"].where(over["least_ratio"].notna(), ""),
        **{name: over[name].map(fixed(places)) for name, places in decimals.items()},
    )
    return over[list(PAGE_TABLES["ratios"])]


def found_by_pool(
    table: pd.DataFrame, ends: Mapping[str, Sequence[int]], methods: Sequence[str]
) -> pd.DataFrame:
    """Return the best 1 % found at the end, a row a pool and a column a method."""
    if table.empty:
        return table
    summary = summarize(table, ends)
    means, errors = summary["found"].map(fixed(1)), summary["found_se"].map(fixed(1))
    cells = means + errors.map(lambda error: error and f" +- {error}")
    wide = summary.assign(cell=cells).pivot(
        index="pool", columns="method", values="cell"
    )
    pools, columns = summary["pool"].unique(), [one for one in methods if one in wide]
    wide = wide.reindex(index=pools, columns=columns).fillna("").reset_index()
    by_pool = summary.groupby("pool")
    wide.insert(1, "part", parts_of(wide["pool"]))
    wide.insert(2, "num_best", wide["pool"].map(by_pool["num_best"].first()))
    wide.insert(3, "seeds", wide["pool"].map(by_pool["seeds"].agg(span)))
    return wide


def regret_table(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return the cumulative regret of ours over the least of any peer, by part."""
    regret = regret_by_policy(table)
    if regret.empty:
        return regret
    tables = []
    for part, one in regret.groupby(parts_of(regret["pool"]), sort=False):
        tables.append(regret_against_peers(one, ours).assign(part=part))
    return _rounded(pd.concat(tables))[list(PAGE_TABLES["regret"])]


def regret_by_peer_table(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return the regret of ours that collects reward over that of each peer."""
    regret = regret_by_policy(table)
    if regret.empty:
        return regret
    peers = [name for name in table["method"].unique() if name not in ours]
    against = regret_against_each_peer(regret, COLLECTOR, peers)
    against = against.rename(columns={"peer_method": "method"})
    return _rounded(against)[list(PAGE_TABLES["regret_by_peer"])]


def _rounded(against: pd.DataFrame) -> pd.DataFrame:
    columns = ("mean_ratio", "largest_ratio")
    return against.assign(**{name: against[name].map(fixed(2)) for name in columns})


def shares_found(one: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the share of the best 1 % found, by method and number of measurements.

    Means over seeds, then over the pools of which all methods have rows; the error is
    that of the seeds, the pools being what they are. A pool that ends before the others
    stays at its last share.

    Args:
        one: The rows of one protocol and noise.

    Returns:
        A row a method and number of measurements, and the number of pools.
    """
    shares = one.assign(share=one["found"] / one["num_best"])
    runs = ["method", "pool", "seed"]
    wide = shares.pivot(index=runs, columns="num_measured", values="share")
    is_longest = wide[wide.columns[-1]].notna()
    grid = wide.columns[wide[is_longest].notna().any().to_numpy()]
    groups = wide.ffill(axis="columns")[grid].groupby(runs[:2])
    means, errors = groups.mean(), groups.sem().fillna(0.0)
    counts = means.groupby("pool").size()
    common = counts.index[counts == one["method"].nunique()]
    is_common = means.index.get_level_values("pool").isin(common)
    over_pools = means[is_common].groupby("method").mean()
    variances = errors[is_common].pow(2).groupby("method").sum()
    error = variances.pow(0.5) / max(len(common), 1)
    table = pd.DataFrame({"share": over_pools.stack(), "error": error.stack()})
    return table.reset_index(), len(common)


def draw_shares(table: pd.DataFrame, methods: Sequence[str]) -> Figure:
    """Draw the shares found, a panel a protocol and noise; peers are dashed."""
    cells = list(table.groupby(CELL, sort=False))
    across = min(NUM_PANELS_ACROSS, len(cells))
    down = -(-len(cells) // across)
    figure = blank_figure(4.0 * across + 2.0, 3.3 * down + 0.4)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
    colors = colors_of(methods)
    for axes, (key, one) in zip(panels, cells, strict=False):
        protocol, noise = cast(tuple[str, float], key)
        shares, num_pools = shares_found(one)
        for name in (name for name in methods if name in set(shares["method"])):
            line = shares[shares["method"] == name]
            x, share, error = (
                line[column].to_numpy() for column in ("num_measured", "share", "error")
            )
            style, color = "--" if name in COLORS else "-", colors[name]
            axes.plot(x, share, style, color=color, linewidth=1.6, label=name)
            axes.fill_between(
                x, share - error, share + error, color=color, alpha=0.15, linewidth=0
            )
        pools = "1 pool" if num_pools == 1 else f"{num_pools} pools"
        axes.set_title(
            f"{protocol}, noise {percent(noise)}, {pools}", fontsize="medium"
        )
        tidy_axes(axes)
    # Not before all are drawn: a limit that is set no longer grows.
    panels[0].set_ylim(bottom=0)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    add_legend(figure)
    figure.supxlabel("measurements", fontsize="medium")
    figure.supylabel("share of the best 1 % found", fontsize="medium")
    return figure


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:g} %"


def fixed(places: int) -> Callable[[float], str]:
    """Return what prints a number, NaN as nothing, whatever its last bits are."""

    def in_words(number: float) -> str:
        if math.isnan(number):
            return ""
        # First what is a tie but for last bits becomes one; zero has no sign.
        rounded = round(round(number, 9), places) + 0.0
        return f"{rounded:.{places}f}"

    return in_words


def span(numbers: pd.Series) -> str:
    """Return a number, or the least and the largest of several."""
    least, largest = numbers.min(), numbers.max()
    return f"{least}" if least == largest else f"{least} to {largest}"
