"""Tables and the picture of the benchmark ``practice``.

They hold no seconds: rows may come from a busy machine. They depend on the rows alone:
not on their order in the file, nor on the last bits of a sum.

- `runs`: how far the rows go, and their commits.
- `ratios`: the best 1 % found over what stock BoTorch found. `to best stock` is the
  ratio to the stock method with the largest mean on that pool. It is selected on the
  seeds that are compared, which favours stock BoTorch, the more the fewer seeds there
  are. `regret over stock Thompson` is the mean difference of simple regrets, in
  standard deviations. Pools without it are left out.
- `peers`: the same ratio to the best of all peers, random forests included, and BayBE
  where it has played; each pair on the seeds that both have; its mean over pools with a
  95 % interval by resampling pools, and the share of pools where it is at least one.
  `to chosen peer` is the ratio to the peer that the other seeds of a pool choose.
- `shares`: the mean share of the best 1 % found at the end of `batches`, on the pools
  and seeds that ours and all peers have in common; without the part `last`.
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
PARTS = ("choosing", "held-out", "further", "later", "last", "other", "all")
# Stock BoTorch: the best of them is what ours are compared with.
STOCK = ("qLogEI", "qLogNEI", "Thompson")
BASE = "Thompson"
FORESTS = ("forest, mean", "forest, UCB", "forest, EI")
NUM_RESAMPLED = 10_000
# Of the table of what was found in each pool.
FOUND_PROTOCOL, FOUND_NOISE = "batches", 0.05
# Of the page of the docs.
SHOWN = ("suggest", "GPBandit", "GPBandit, Thompson")
FOR_REGRET = "GPBandit, regret"
# Measured yields in tables with words, and the loops that ours are compared with there.
REACTIONS = ("borylation", "cernak", "amidation", "buchwald", "suzuki")
LOOPS = ("forest, mean", "forest, UCB", "qLogEI", "BayBE")
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
        "ratios": over_pools(compare(beside_stock(table), ours)),
        "peers": over_best_peer(table, ours),
        "shares": common_shares(table),
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
    ratios = tables["ratios"]
    ratios = ratios[ratios["protocol"] == FOUND_PROTOCOL]
    by = ["noise", "part", "pools", "seeds"]
    wide = ratios.pivot(index=by, columns="method", values="to_best_stock")
    rows = ratios[ratios["method"] == SHOWN[0]].set_index(by).index
    write_page_table(wide.loc[rows, list(SHOWN)].reset_index(), folder, "best_found")
    peers = tables["peers"]
    is_shown = (peers["protocol"] == FOUND_PROTOCOL) & peers["method"].isin(SHOWN)
    write_page_table(peers[is_shown].drop(columns="protocol"), folder, "best_peers")
    write_page_table(tables["shares"].fillna(""), folder, "shares")
    write_page_table(shares_of_reactions(table), folder, "reactions")
    regret = tables["regret"]
    regret = regret[regret["method"] == FOR_REGRET].drop(columns="method")
    write_page_table(regret, folder, "cumulative_regret")
    is_shown = table["method"].isin(["uniform", *STOCK, *SHOWN])
    is_known = part_of(table["pool"]) != "last"
    is_found = table["protocol"] == FOUND_PROTOCOL
    figure = draw_shares(table[is_shown & is_known & is_found], is_for_page=True)
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


def beside_stock(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of pools that stock Thompson has played, if it played any."""
    is_base = table["method"] == BASE
    cell = [table[key] for key in CELL]
    has_any = is_base.groupby(cell).transform("any")
    return table[~has_any | is_base.groupby([*cell, table["pool"]]).transform("any")]


def compare(
    table: pd.DataFrame, ours: Sequence[str], peers: Sequence[str] = STOCK
) -> pd.DataFrame:
    """Return, for each pool, what ours found over what some peers found at the end.

    Each pair of methods is compared on the seeds that both have; ``seeds`` is the
    number that all of them have. A ratio to a peer that found none is NaN.
    """
    by = ["protocol", "measurements", "noise", "part", "pool"]
    rows: list[dict[str, Any]] = []
    last = table.groupby([*CELL, "pool", "method", "seed"], sort=False).tail(1)
    for key, one in last.groupby(by, sort=False):
        found = one.pivot(index="seed", columns="method", values="found")
        regret = one.pivot(index="seed", columns="method", values="simple_regret")
        stock = [peer for peer in peers if peer in found]
        for name in (name for name in ours if name in found):
            ratios = {}
            for peer in stock:
                sums = found[[name, peer]].dropna().sum()
                ratios[peer] = sums[name] / sums[peer] if sums[peer] > 0 else math.nan
            if ratios:
                over = (
                    regret[name] - regret[BASE] if BASE in regret else found[name][:0]
                )
                rows.append(
                    {
                        **dict(zip(by, key, strict=True)),
                        "method": name,
                        "seeds": len(found[[name, *stock]].dropna()),
                        "ratio": pd.Series(ratios).min(),
                        "to_chosen": ratio_to_chosen(found, name, stock),
                        "to_thompson": ratios.get(BASE, math.nan),
                        "over_thompson": over.mean(),
                    }
                )
    return pd.DataFrame(rows)


def ratio_to_chosen(found: pd.DataFrame, name: str, peers: list[str]) -> float:
    """Return what a method found over what the peer that the other seeds choose found.

    Args:
        found: How many each method found in one pool, a row a seed.
        name: The method.
        peers: The peers, of which some lack seeds.
    """
    found, sums = found.dropna(subset=name), np.zeros(2)
    for seed, here in found.iterrows():
        others = found.drop(index=seed)[peers].mean()
        others = others[here[peers].notna()].dropna()
        if len(others):
            sums += [here[name], here[str(others.idxmax())]]
    return float(sums[0] / sums[1]) if sums[1] > 0 else math.nan


def over_pools(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and the least of the ratios, for each part and for all pools.

    ``seeds`` is the least number of any pool. The part `last`, which was played once,
    stands apart from all.
    """
    if ratios.empty:
        return ratios
    cell = ["protocol", "measurements", "noise"]
    known = ratios[ratios["part"] != "last"]
    several = known.groupby(cell)["part"].transform("nunique") > 1
    both = pd.concat([ratios, known[several].assign(part="all")])
    rows = []
    for key, one in both.groupby([*cell, "part", "method"], sort=False):
        # The first of equals, also of those that only last bits tell apart.
        worst = one.iloc[one["ratio"].round(9).fillna(math.inf).argmin()]
        rows.append(
            {
                **dict(zip([*cell, "part", "method"], key, strict=True)),
                "pools": len(one),
                "seeds": one["seeds"].min(),
                "to_best_stock": fixed(2)(one["ratio"].mean()),
                "least": fixed(2)(worst["ratio"]),
                "in": worst["pool"] if worst["ratio"] == worst["ratio"] else "",
                "to_stock_Thompson": fixed(2)(one["to_thompson"].mean()),
                "regret_over_stock_Thompson": fixed(3)(one["over_thompson"].mean()),
            }
        )
    return pd.DataFrame(rows)


def over_best_peer(table: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return means of the ratios to the best peer, in pools that all peers have played.

    BayBE counts where it has played.
    The part `last`, which was played once, stands apart from all others.
    """
    needed = (*STOCK, *FORESTS)
    cell = [*CELL, "pool"]
    counts = table[table["method"].isin(needed)].groupby(cell)["method"].nunique()
    complete = counts.index[counts == len(needed)]
    table = table[pd.MultiIndex.from_frame(table[cell]).isin(complete)]
    if table.empty:
        return table
    peers = (*needed, "BayBE")
    ratios = compare(table, ours, peers).dropna(subset="ratio")
    generator = np.random.default_rng(0)
    rows = []
    ratios["part"] = ratios["part"].where(ratios["part"] == "last", "all")
    by = [*CELL, "part", "method"]
    for key, one in ratios.groupby(by, sort=False):
        ratio = one["ratio"].to_numpy()
        means = generator.choice(ratio, (NUM_RESAMPLED, len(ratio))).mean(axis=1)
        low, high = map(fixed(2), np.quantile(means, [0.025, 0.975]))
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "pools": len(one),
                "seeds": one["seeds"].min(),
                "to_best_peer": fixed(2)(ratio.mean()),
                "95_%_interval": f"{low} to {high}",
                "least": fixed(2)(ratio.min()),
                "to_chosen_peer": fixed(2)(one["to_chosen"].mean()),
                "pools_with_at_least_1": percent(round((ratio >= 1).mean(), 2)),
            }
        )
    return pd.DataFrame(rows)


def common_shares(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean shares of the best 1 % found, on runs that all methods have.

    BayBE is left out where it has not played.
    """
    table = table[(table["protocol"] == FOUND_PROTOCOL) & (table["part"] != "last")]
    last = table.groupby(["noise", "pool", "seed", "method"], sort=False).tail(1)
    last = last.assign(share=last["found"] / last["num_best"])
    rows = []
    for noise, one in last.groupby("noise", sort=False):
        wide = one.pivot(index=["pool", "seed"], columns="method", values="share")
        needed = [*SHOWN, *STOCK, *FORESTS]
        if not set(needed) <= set(wide):
            continue
        names = [name for name in (*needed, "BayBE") if name in wide]
        common = wide[names].dropna()
        pools = common.index.get_level_values("pool").nunique()
        means = common.groupby("pool").mean().mean().map(lambda x: percent(round(x, 3)))
        cell = {"noise": noise, "pools": pools, "runs": len(common)}
        rows.append(cell | means.to_dict())
    return pd.DataFrame(rows)


def shares_of_reactions(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean shares of the best 1 % found in each table of reactions.

    The last row is the mean over the tables. ``to best`` is the share of the second of
    ``SHOWN`` over the best one of ``LOOPS`` in that row.
    """
    is_shown = (table["protocol"] == FOUND_PROTOCOL) & (table["noise"] == FOUND_NOISE)
    is_shown &= table["pool"].isin(REACTIONS) & table["method"].isin([*SHOWN, *LOOPS])
    last = table[is_shown].groupby(["pool", "method", "seed"]).tail(1)
    last = last.assign(share=last["found"] / last["num_best"])
    groups = last.groupby(["pool", "method"])["share"]
    wide = groups.mean().unstack().reindex(REACTIONS, columns=[*SHOWN, *LOOPS])
    wide.loc["mean"] = wide.mean(skipna=False)
    to_best = wide[SHOWN[1]] / wide[list(LOOPS)].max(axis="columns")
    words = wide.map(fixed(3)).assign(to_best=to_best.map(fixed(2)))
    words.insert(0, "seeds", groups.size().groupby("pool").agg(span))
    return words.fillna("").rename_axis("pool").reset_index()


def found_by_pool(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best 1 % found at the end, a row a pool and a column a method."""
    if table.empty:
        return table
    last = table.groupby(["pool", "method", "seed"], sort=False).tail(1)
    groups = last.groupby(["pool", "method"], sort=False)["found"]
    means, errors = groups.mean().map(fixed(1)), groups.sem().map(fixed(1))
    cells = means + errors.map(lambda error: error and f" +- {error}")
    wide = cells.unstack("method")[list(last["method"].unique())].fillna("")
    by_pool = last.groupby("pool")
    wide.insert(0, "part", part_of(wide.index.to_series()))
    wide.insert(1, "best 1 %", by_pool["num_best"].first())
    counts = last.groupby(["pool", "method"])["seed"].nunique()
    wide.insert(2, "seeds", counts.groupby("pool").agg(span))
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
