"""Tables and the picture of the benchmark ``practice``.

They hold no seconds: rows may come from a busy machine. They depend on the rows alone:
not on their order in the file, nor on the last bits of a sum.

- `runs`: how far the rows go, and their commits.
- `shares`: the mean share of the best 1 % found at the end of `batches`, by kind and
  part of pools. Pools of which a method that is `needed` lacks seeds are left out, and
  so are pools on which all with enough seeds find everything. The cell of another
  method is empty where it lacks seeds; *of PHYSBO* are the pools that it has played.
  *best peer* finds most over all these pools; *ratio* is the share of `suggest` over
  that of this one peer, with a 95 % interval by resampling pools.
- `found`: the best 1 % found, a row a pool: means and standard errors over seeds.
- `regret`: the cumulative regret over the least of stock BoTorch and uniform choice on
  that pool, whether it goes on to the end, or stops after 50 or 100 measurements
  and repeats what it recommends there.
- `practice.png`: the share of the best 1 % found by the number of measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.pools import SOURCES
from benchmarks.record import write_page_figure, write_page_table
from botorch_bkb.plotting import blank_figure, tidy_axes


CELL = ["protocol", "noise"]
KINDS = ("numbers", "words", "molecules", "functions")
PARTS = ("choosing", "held-out", "further", "later", "last", "other")
# Stock BoTorch.
STOCK = ("qLogEI", "qLogNEI", "Thompson")
NUM_RESAMPLED = 10_000
# Of the table of what was found in each pool.
FOUND_PROTOCOL, FOUND_NOISE = "batches", 0.05
# Of the page of the docs.
SHOWN = "suggest"
IN_FIGURE = ("uniform", "forest, UCB", "BayBE", SHOWN)
FOR_REGRET = "GPBandit, regret"
# Methods without whose seeds a pool is not reported.
NEEDED = (SHOWN, "BayBE")
NUM_SEEDS = 5
# Of cumulative regret; and when peers may stop their search.
REGRET_PROTOCOLS = ("batches", "long")
HORIZONS = (100, 500)
STOPS = (50, 100)
# The peers; dashed.
COLORS = {
    "uniform": "0.45",
    "qLogEI": "C0",
    "qLogNEI": "C9",
    "Thompson": "C2",
    "forest, mean": "C8",
    "forest, UCB": "darkgreen",
    "forest, EI": "peru",
    "BayBE": "plum",
    "PHYSBO": "rosybrown",
}
# Without C7, which is as grey as uniform choice.
OTHER_COLORS = ("C1", "C3", "C4", "C5", "C6", "black", "navy")


def write_tables(
    table: pd.DataFrame,
    protocols: Sequence[str],
    folder: Path,
    ours: Sequence[str],
) -> dict[str, pd.DataFrame]:
    """Write the tables and the picture; return the tables.

    Args:
        table: The rows of finished runs.
        protocols: The order of the protocols.
        folder: Where to.
        ours: Which methods are compared with the peers.
    """
    orders = {
        "protocol": protocols,
        "part": PARTS,
        "pool": tuple(SOURCES),
        "method": (*COLORS, *ours),
    }
    ends = table.groupby("protocol")["num_measured"].transform("max")
    table = table.assign(part=part_of(table["pool"]), measurements=ends)
    table = in_order(table, [*CELL, "pool", "method", "seed", "num_measured"], orders)
    is_found = (table["protocol"] == FOUND_PROTOCOL) & (table["noise"] == FOUND_NOISE)
    tables = {
        "runs": runs(table, ours),
        "shares": shares_by_kind(table, ours),
        "found": found_by_pool(table[is_found]),
        "regret": regret_over_peers(table, ours),
    }
    sort = {*CELL, "measurements", "part", "pool", "method", "whose"}
    tables = {name: one for name, one in tables.items() if len(one)}
    for name, one in tables.items():
        one = in_order(one, [key for key in one if key in sort], orders)
        if "noise" in one:
            one["noise"] = one["noise"].map(percent)
        write_page_table(one, folder, name)
        tables[name] = one
    write_page_figure(draw_shares(table), folder, "practice")
    return tables


def write_summary(
    table: pd.DataFrame, tables: Mapping[str, pd.DataFrame], folder: Path
) -> None:
    """Write what the page "Benchmarks" shows: tables and a picture.

    Args:
        table: The rows of finished runs.
        tables: What :func:`write_tables` returned for them.
        folder: Where to.
    """
    write_page_table(tables["shares"], folder, "shares")
    regret = tables["regret"]
    regret = regret[regret["method"] == FOR_REGRET].drop(columns="method")
    write_page_table(regret, folder, "cumulative_regret")
    is_shown = table["method"].isin(IN_FIGURE) & (table["noise"] > 0)
    is_found = table["protocol"] == FOUND_PROTOCOL
    figure = draw_shares(table[is_shown & is_found], is_for_page=True)
    write_page_figure(figure, folder, "best_found", dpi=130)


def in_order(
    table: pd.DataFrame, by: Sequence[str], orders: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Sort by some columns; names that have an order by it, and others behind them."""

    def rank(column: pd.Series) -> pd.Series:
        known = orders.get(str(column.name), [])
        names = [*known, *sorted(set(column) - set(known))]
        return column.map({name: place for place, name in enumerate(names)})

    return table.sort_values(list(by), key=rank, kind="stable", ignore_index=True)


def part_of(pools: pd.Series) -> pd.Series:
    """Return which part each pool stands in."""
    return pools.map(lambda pool: SOURCES[pool].part if pool in SOURCES else "other")


def kind_of(pools: pd.Series) -> pd.Series:
    """Return which kind of table each pool is."""
    return pools.map(lambda pool: SOURCES[pool].kind if pool in SOURCES else "other")


def runs(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return how far the rows go, and the commits of ours and of the peers."""
    whose = np.where(table["method"].isin(ours), "ours", "peers")
    by = [*CELL, "part", "whose"]
    rows = []
    for key, one in table.assign(whose=whose).groupby(by, sort=False):
        counts = one.groupby(["pool", "method"])["seed"].nunique()
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "pools": one["pool"].nunique(),
                "methods": one["method"].nunique(),
                "seeds": span(counts),
                "commits": " ".join(sorted(one["commit"].unique())),
            }
        )
    return pd.DataFrame(rows)


def shares_by_kind(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return mean shares of the best 1 % found, and the ratio to the best peer."""
    is_shown = ~table["method"].isin(ours) | (table["method"] == SHOWN)
    table = table[is_shown & (table["protocol"] == FOUND_PROTOCOL)]
    last = table.groupby(["noise", "pool", "method", "seed"], sort=False).tail(1)
    last = last.assign(share=last["found"] / last["num_best"])
    rows = []
    for noise, one in last.groupby("noise", sort=False):
        runs_of = one.groupby(["pool", "method"], sort=False)["share"]
        wide = runs_of.mean().where(runs_of.size() >= NUM_SEEDS).unstack()
        if not set(NEEDED) <= set(wide):
            continue
        others = wide.drop(columns="uniform", errors="ignore")
        wide = wide[others.notna()[list(NEEDED)].all(axis=1) & (others.min(axis=1) < 1)]
        kinds, parts = kind_of(wide.index.to_series()), part_of(wide.index.to_series())
        peers = [name for name in wide if name not in ours]
        means = wide[peers].mean(skipna=False)
        best = str(means.idxmax()) if means.notna().any() else ""
        groups = {"all": kinds.notna()}
        groups |= {name: kinds == name for name in KINDS}
        groups |= {name: parts == name for name in PARTS}
        if "PHYSBO" in wide:
            groups["of PHYSBO"] = wide["PHYSBO"].notna()
        for name, is_in in groups.items():
            there = wide[is_in]
            if len(there):
                cell = {"noise": noise, "pools": name, "number": len(there)}
                means = there.mean(skipna=False).map(shown_percent)
                ratio = ratio_of_means(there[SHOWN], there[best]) if best else {}
                rows.append(cell | means.to_dict() | {"best_peer": best} | ratio)
    shares = pd.DataFrame(rows)
    return shares.loc[:, (shares != "").any()]


def ratio_of_means(ours: pd.Series, theirs: pd.Series) -> dict[str, str]:
    """Return a ratio of means over pools, with an interval by resampling them."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(ours), size=(NUM_RESAMPLED, len(ours)))
    means = (one.to_numpy()[drawn].mean(axis=1) for one in (ours, theirs))
    low, high = np.quantile(np.divide(*means), [0.025, 0.975])
    ends = f"{fixed(2)(low)} to {fixed(2)(high)}"
    return {"ratio": fixed(2)(ours.mean() / theirs.mean()), "95_%_interval": ends}


def found_by_pool(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best 1 % found at the end, a row a pool and a column a method.

    The cell of a method with fewer seeds than others is empty.
    """
    if table.empty:
        return table
    last = table.groupby(["pool", "method", "seed"], sort=False).tail(1)
    groups = last.groupby(["pool", "method"], sort=False)["found"]
    means, errors = groups.mean().map(fixed(1)), groups.sem().map(fixed(1))
    cells = means + errors.map(lambda error: error and f" +- {error}")
    counts = groups.size()
    cells = cells[counts == counts.max()]
    wide = cells.unstack("method").reindex(columns=last["method"].unique()).fillna("")
    by_pool = last.groupby("pool")
    wide.insert(0, "part", part_of(wide.index.to_series()))
    wide.insert(1, "best 1 %", by_pool["num_best"].first())
    return wide.reset_index()


def regret_by_policy(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean cumulative regrets of going on, and of stopping to search."""
    parts = []
    by = ["noise", "part", "pool", "method"]
    table = table[table["protocol"].isin(REGRET_PROTOCOLS)]
    # Where both protocols were run, they are the same up to 100.
    table = table.drop_duplicates([*by, "seed", "num_measured"])
    for horizon in HORIZONS:
        for stop in (*(stop for stop in STOPS if stop < horizon), horizon):
            there = table[table["num_measured"] == stop]
            regret = (horizon - stop) * there["simple_regret"]
            regret += there["cumulative_regret"]
            means = regret.groupby([there[key] for key in by], sort=False).mean()
            part = means.rename("regret").reset_index()
            parts.append(part.assign(measurements=horizon, goes_on=stop == horizon))
    return pd.concat(parts, ignore_index=True)


def regret_over_peers(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return the regret of ours over the least of stock or uniform choice, by part."""
    regret = regret_by_policy(table)
    is_ours = regret["method"].isin(ours)
    is_peer = regret["method"].isin(["uniform", *STOCK])
    by = ["noise", "measurements", "pool"]
    least = regret[is_peer].groupby(by)["regret"].min().rename("least")
    played = regret[is_ours & regret["goes_on"]].join(least, on=by)
    played["ratio"] = played["regret"] / played["least"]
    cell = ["noise", "measurements", "part", "method"]
    ratios = played.dropna(subset="ratio").groupby(cell, sort=False)["ratio"]
    columns = {
        "pools": ratios.size(),
        "mean_ratio": ratios.mean().map(fixed(2)),
        "largest": ratios.max().map(fixed(2)),
        "pools_below_1": ratios.agg(lambda ratio: int((ratio < 1).sum())),
    }
    return pd.DataFrame(columns).reset_index()


def shares_found(one: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the share of the best 1 % found by the number of measurements, and pools.

    Means over seeds, then over the pools of which all methods have rows; the error is
    that of the seeds. A pool that ends before the others stays at its last share.
    """
    shares = one.assign(share=one["found"] / one["num_best"])
    keys = ["method", "pool", "seed"]
    wide = shares.pivot(index=keys, columns="num_measured", values="share")
    is_longest = wide[wide.columns[-1]].notna()
    grid = wide.columns[wide[is_longest].notna().any().to_numpy()]
    groups = wide.ffill(axis="columns")[grid].groupby(keys[:2])
    means, errors = groups.mean(), groups.sem().fillna(0.0)
    counts = means.groupby("pool").size()
    common = counts.index[counts == one["method"].nunique()]
    is_common = means.index.get_level_values("pool").isin(common)
    over_pools = means[is_common].groupby("method").mean()
    variances = errors[is_common].pow(2).groupby("method").sum()
    error = variances.pow(0.5) / max(len(common), 1)
    table = pd.DataFrame({"share": over_pools.stack(), "error": error.stack()})
    return table.reset_index(), len(common)


def draw_shares(table: pd.DataFrame, is_for_page: bool = False) -> Figure:
    """Draw the shares found, a panel a protocol and noise.

    On a page all panels are of one protocol, in a picture that a telephone can show.
    """
    table = table[table["method"] != "PHYSBO"]  # it has rows of ten pools only
    cells = list(table.groupby(CELL, sort=False))
    across = min(3, len(cells))
    down = -(-len(cells) // across)
    size = (2.5, 3.0, 0.0) if is_for_page else (4.0, 3.3, 2.0)
    figure = blank_figure(size[0] * across + size[2], size[1] * down + 0.4)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
    others = (name for name in table["method"].unique() if name not in COLORS)
    colors = COLORS | dict(zip(others, OTHER_COLORS * len(table), strict=False))
    lines: dict[str, Any] = {}
    for axes, (key, one) in zip(panels, cells, strict=False):
        protocol, noise = cast(tuple[str, float], key)
        shares, num_pools = shares_found(one)
        for name, line in shares.groupby("method"):
            x, share, error = (
                line[name] for name in ("num_measured", "share", "error")
            )
            style, color = "--" if name in COLORS else "-", colors[str(name)]
            (lines[str(name)],) = axes.plot(x, share, style, color=color, linewidth=1.6)
            low, high = share - error, share + error
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        pools = "1 pool" if num_pools == 1 else f"{num_pools} pools"
        title = f"noise {percent(noise)}, {pools}"
        title = title if is_for_page else f"{protocol}, {title}"
        axes.set_title(title, fontsize="medium")
        tidy_axes(axes)
    # Not before all are drawn: a limit that is set no longer grows.
    panels[0].set_ylim(bottom=0)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    names = [name for name in colors if name in lines]
    handles = [lines[name] for name in names]
    if is_for_page:
        figure.legend(
            handles, names, loc="outside upper center", ncols=4, frameon=False
        )
    else:
        figure.legend(handles, names, loc="outside right upper", frameon=False)
    figure.supxlabel("measurements", fontsize="medium")
    figure.supylabel("share of the best 1 % found", fontsize="medium")
    return figure


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:g} %"


def shown_percent(share: float) -> str:
    """Return a share to a tenth of a percent, NaN as nothing."""
    return "" if math.isnan(share) else percent(round(share, 3))


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
