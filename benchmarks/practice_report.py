"""Tables and pictures of the benchmark ``practice``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.pools import SOURCES
from benchmarks.record import print_table, Record
from botorch_bkb.plotting import blank_figure, tidy_axes


CELL = ["protocol", "noise"]
# Stock BoTorch: the best of them is what ours are compared with.
STOCK = ("qLogEI", "qLogNEI", "Thompson")
BASE = "Thompson"
# Of cumulative regret.
REGRET_PROTOCOLS = ("batches", "long")
HORIZONS = (100, 500)
# When those that repeat what they recommend might stop their search.
STOPS = (50, 100)
NUM_PANELS_ACROSS = 4
COLORS = {
    "uniform": "0.45",
    "qLogEI": "C0",
    "qLogNEI": "C9",
    "Thompson": "C2",
    "BayBE": "C8",
}
# Without C7, which is as grey as uniform choice.
OTHER_COLORS = ("C1", "C3", "C4", "C5", "C6", "black", "navy")


def report(
    table: pd.DataFrame,
    checkpoints: Mapping[str, Sequence[int]],
    record: Record,
    *,
    ours: Sequence[str],
) -> None:
    """Write and print what the rows say, and draw them.

    Args:
        table: The rows of finished runs.
        checkpoints: The numbers of measurements that the tables are of, by protocol.
        record: The folder, whose tables say where they come from.
        ours: Which methods are held against the peers.
    """
    summary = summarize(table, checkpoints)
    record.write_table(summary, "summary")
    ratios = compare(table, checkpoints, ours)
    record.write_table(ratios, "ratios")
    regret = regret_by_policy(table)
    record.write_table(regret, "regret")
    by = [*CELL, "checkpoint"]
    texts = []
    for key, one in summary.groupby(by, sort=False):
        cell = ratios
        for column, value in zip(by, key, strict=True):
            cell = cell[cell[column] == value] if not cell.empty else cell
        texts.append(print_cell(one, cell))
    (record.folder / "tables.md").write_text("".join(texts))
    if not ratios.empty:
        print("\nOurs against the best of stock BoTorch: ratios of the best 1 % found")
        print_table(ratios_over_pools(ratios))
    against = regret_against_peers(regret, ours) if not regret.empty else regret
    if not against.empty:
        print("\nCumulative regret: ours as played, against the least of any peer")
        print_table(against)
    for (protocol, noise), one in table.groupby(CELL, sort=False):
        share = f"{100 * cast(float, noise):g} %"
        title = f"{protocol}, noise {share} of the deviation"
        figure = draw(one, title)
        record.write_figure(figure, f"practice_{protocol}_{noise:g}")


def at_checkpoints(
    table: pd.DataFrame, checkpoints: Mapping[str, Sequence[int]]
) -> pd.DataFrame:
    """Return one row per run and checkpoint: the last batch within it.

    ``seconds_per_ask`` is the median over the batches so far. A run in a pool that is
    smaller than the checkpoint has ended before it.
    """
    runs = table.groupby(["pool", *CELL, "method", "seed"], sort=False)
    per_ask = table["seconds"] / table["asks"].where(table["asks"] > 0)
    table = table.assign(
        seconds_per_ask=per_ask.groupby([runs.ngroup()]).transform(
            lambda seconds: seconds.expanding().median()
        ),
        seconds_so_far=runs["seconds"].cumsum(),
    )
    parts = []
    for protocol, one in table.groupby("protocol", sort=False):
        for checkpoint in checkpoints[str(protocol)]:
            within = one[one["num_measured"] <= checkpoint]
            last = within.groupby(["pool", "noise", "method", "seed"], sort=False)
            parts.append(last.tail(1).assign(checkpoint=checkpoint))
    return pd.concat(parts, ignore_index=True)


def summarize(
    table: pd.DataFrame, checkpoints: Mapping[str, Sequence[int]]
) -> pd.DataFrame:
    """Return means over seeds and their standard errors."""
    by = [*CELL, "checkpoint", "pool", "method"]
    groups = at_checkpoints(table, checkpoints).groupby(by, sort=False)
    return groups.agg(
        seeds=("seed", "size"),
        num_best=("num_best", "first"),
        found=("found", "mean"),
        found_se=("found", "sem"),
        simple_regret=("simple_regret", "mean"),
        simple_regret_se=("simple_regret", "sem"),
        cumulative_regret=("cumulative_regret", "mean"),
        cumulative_regret_se=("cumulative_regret", "sem"),
        distinct=("distinct", "mean"),
        least_distinct=("distinct", "min"),
        seconds_per_ask=("seconds_per_ask", "median"),
        seconds_so_far=("seconds_so_far", "mean"),
    ).reset_index()


def compare(
    table: pd.DataFrame,
    checkpoints: Mapping[str, Sequence[int]],
    ours: Sequence[str],
) -> pd.DataFrame:
    """Return, for each pool, ours against the best peer and against Thompson sampling.

    Each pair of methods is compared on the seeds that both have. A ratio to a peer that
    found none is left empty. ``ratio`` is to the peer that is best on the very seeds
    compared, which favours the peers: the largest of noisy means. ``ratio_to_choice``
    is to peers that were chosen without the seed they are compared on, and is of
    ``seeds``, those that all peers have. ``over_thompson`` is the mean of the paired
    differences of simple regret, in standard deviations.
    """
    rows = []
    by = [*CELL, "checkpoint", "pool"]
    for key, one in at_checkpoints(table, checkpoints).groupby(by, sort=False):
        protocol, noise, checkpoint, pool = cast(tuple[str, float, int, str], key)
        runs = {
            str(name): runs.set_index("seed") for name, runs in one.groupby("method")
        }
        for name in (name for name in ours if name in runs):
            seeds, ratio_to_choice = against_choice(runs, name)
            row: dict[str, object] = {
                "protocol": protocol,
                "noise": noise,
                "checkpoint": checkpoint,
                "pool": pool,
                "part": SOURCES[pool].part if pool in SOURCES else "made up",
                "method": name,
                "found": runs[name]["found"].mean(),
                "num_best": runs[name]["num_best"].iloc[0],
                "best_peer": "",
                "peer_found": np.nan,
                "ratio": np.inf,
                "seeds": seeds,
                "ratio_to_choice": ratio_to_choice,
                "ratio_to_thompson": np.nan,
                "over_thompson": np.nan,
                "over_thompson_se": np.nan,
            }
            for peer in (peer for peer in STOCK if peer in runs):
                both = runs[name].merge(
                    runs[peer],
                    left_index=True,
                    right_index=True,
                    suffixes=("", "_peer"),
                )
                if both.empty:
                    continue
                found, peer_found = both["found"].mean(), both["found_peer"].mean()
                ratio = found / peer_found if peer_found > 0 else np.inf
                if not row["best_peer"] or ratio < cast(float, row["ratio"]):
                    row.update(best_peer=peer, peer_found=peer_found, ratio=ratio)
                if peer == BASE:
                    over = both["simple_regret"] - both["simple_regret_peer"]
                    row.update(
                        ratio_to_thompson=ratio,
                        over_thompson=over.mean(),
                        over_thompson_se=over.sem(),
                    )
            if row["best_peer"]:
                rows.append(row)
    return pd.DataFrame(rows).replace(np.inf, np.nan)


def against_choice(runs: Mapping[str, pd.DataFrame], name: str) -> tuple[int, float]:
    """Return what one method found over what peers did that were chosen beforehand.

    On each seed it is held against the stock peer that has the largest mean on the
    other seeds, the first in ``STOCK`` of equals: a peer's luck on a seed has no part
    in its being chosen there.

    Args:
        runs: By method, a row a seed, which is the index.
        name: Which method.

    Returns:
        The number of seeds that all have, and the ratio of the sums over them, NaN for
        less than two seeds or where the chosen peers found none.
    """
    peers = [peer for peer in STOCK if peer in runs]
    columns = {method: runs[method]["found"] for method in (name, *peers)}
    found = pd.concat(columns, axis="columns", join="inner")
    seeds = len(found)
    if seeds < 2 or not peers:
        return seeds, np.nan
    theirs = found[peers].to_numpy()
    # Sums of counts, not means: what is equal is equal to the last bit.
    choices = (theirs.sum(axis=0) - theirs).argmax(axis=1)
    chosen = theirs[np.arange(seeds), choices].sum()
    return seeds, found[name].sum() / chosen if chosen > 0 else np.nan


def ratios_over_pools(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and the least of the ratios, for each part and for all pools.

    ``seeds`` is the least number of any pool.
    """
    both = pd.concat([ratios, ratios.assign(part="all")])
    by = [*CELL, "checkpoint", "method", "part"]
    rows = []
    for key, one in both.groupby(by, sort=False):
        # The first of equals, also of those that only last bits tell apart.
        worst = one.iloc[one["ratio"].round(9).fillna(np.inf).argmin()]
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "pools": len(one),
                "seeds": one["seeds"].min(),
                "mean_ratio": one["ratio"].mean(),
                "least_ratio": worst["ratio"],
                "least_in": worst["pool"],
                "mean_to_choice": one["ratio_to_choice"].mean(),
                "mean_to_thompson": one["ratio_to_thompson"].mean(),
                "over_thompson": one["over_thompson"].mean(),
            }
        )
    return pd.DataFrame(rows)


def regret_by_policy(table: pd.DataFrame) -> pd.DataFrame:
    """Return cumulative regrets of going on, and of repeating what is recommended.

    ``policy`` is "as played", or says after how many measurements the method stops to
    search and from then on only measures what it recommends there.
    """
    rows = []
    by = ["noise", "pool", "method"]
    counts = table["protocol"].isin(REGRET_PROTOCOLS)
    for key, one in table[counts].groupby(by, sort=False):
        names = dict(zip(by, key, strict=True))
        # Where both protocols were run, they are the same up to 100.
        one = one.drop_duplicates(["seed", "num_measured"])
        for horizon in HORIZONS:
            at_end = one[one["num_measured"] == horizon]["cumulative_regret"]
            policies = {"as played": at_end}
            for stop in (stop for stop in STOPS if stop < horizon):
                last = one[one["num_measured"] == stop]
                policies[f"stops at {stop}"] = (
                    last["cumulative_regret"] + (horizon - stop) * last["simple_regret"]
                )
            rows += [
                {
                    **names,
                    "horizon": horizon,
                    "policy": policy,
                    "seeds": len(regrets),
                    "cumulative_regret": regrets.mean(),
                    "cumulative_regret_se": regrets.sem(),
                }
                for policy, regrets in policies.items()
                if len(regrets) > 0
            ]
    return pd.DataFrame(rows)


def regret_against_peers(regret: pd.DataFrame, ours: Sequence[str]) -> pd.DataFrame:
    """Return ours as played over the least of what any peer has by any policy.

    The means over pools of that ratio, the largest, and in how many pools it is below 1
    (``num_below``): uniform choice is a peer too.
    """
    is_ours = regret["method"].isin(ours)
    by = ["noise", "horizon", "pool"]
    least = regret[~is_ours].groupby(by)["cumulative_regret"].min().rename("peer")
    played = regret[is_ours & (regret["policy"] == "as played")].join(least, on=by)
    return _ratios(played, ["noise", "horizon", "method"])


def regret_against_each_peer(
    regret: pd.DataFrame, one_of_ours: str, peers: Sequence[str]
) -> pd.DataFrame:
    """Return one of ours as played over every peer by every policy of that peer's.

    As :func:`regret_against_peers`, with what a user would have who keeps to one peer
    and one policy, whatever the pool.
    """
    by = ["noise", "horizon", "pool"]
    is_played = (regret["method"] == one_of_ours) & (regret["policy"] == "as played")
    played = regret[is_played][[*by, "cumulative_regret"]]
    others = regret[regret["method"].isin(peers)].rename(
        columns={"method": "peer_method", "cumulative_regret": "peer"}
    )
    both = others[[*by, "peer_method", "policy", "peer"]].merge(played, on=by)
    return _ratios(both, ["noise", "horizon", "peer_method", "policy"])


def _ratios(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return what ratios of ``cumulative_regret`` over ``peer`` are over pools."""
    table = table.assign(ratio=table["cumulative_regret"] / table["peer"])
    groups = table.dropna(subset="ratio").groupby(by, sort=False)
    return groups.agg(
        pools=("pool", "size"),
        mean_ratio=("ratio", "mean"),
        largest_ratio=("ratio", "max"),
        num_below=("ratio", lambda ratio: int((ratio < 1).sum())),
    ).reset_index()


def found_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return what was found at one checkpoint, a row a pool and a column a method."""
    cells = summary.assign(cell=summary.apply(_cell, axis="columns"))
    wide = cells.pivot(index="pool", columns="method", values="cell")
    pools, methods = summary["pool"].unique(), summary["method"].unique()
    wide = wide.reindex(index=pools, columns=methods)
    best = summary.groupby("pool")["num_best"].first().rename("best 1 %")
    return wide.join(best).fillna("")


def ratio_table(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return the ratios at one checkpoint, a row a pool and a column a method."""
    wide = ratios.pivot(index="pool", columns="method", values="ratio")
    pools, methods = ratios["pool"].unique(), ratios["method"].unique()
    wide = wide.reindex(index=pools, columns=methods)
    return wide.map(lambda ratio: "" if np.isnan(ratio) else f"{ratio:.2f}")


def markdown(table: pd.DataFrame) -> str:
    """Return a table with its index as Markdown."""
    rows = [[table.index.name, *table.columns], ["---"] * (len(table.columns) + 1)]
    rows += [[str(index), *row] for index, row in table.iterrows()]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)


def print_cell(summary: pd.DataFrame, ratios: pd.DataFrame) -> str:
    """Print what was found at one checkpoint; return it as Markdown."""
    names = summary[[*CELL, "checkpoint"]].iloc[0]
    title = "{}, noise {:g}, {} measurements".format(*names)
    found = "Best 1 % found, mean +- standard error (seeds)"
    print(f"\n{title}\n{found}\n{found_table(summary).to_string()}")
    print_table(over_pools(summary))
    text = f"## {title}\n\n{found}:\n\n{markdown(found_table(summary))}\n"
    if not ratios.empty:
        against = "Ratio to the best of stock BoTorch"
        print(f"{against}\n{ratio_table(ratios).to_string()}")
        text += f"{against}:\n\n{markdown(ratio_table(ratios))}\n"
    return text


def over_pools(summary: pd.DataFrame) -> pd.DataFrame:
    """Return each method's means over the pools that all methods have rows of."""
    wide = summary.pivot(index="pool", columns="method", values="found")
    common = wide.dropna().index
    chosen = summary[summary["pool"].isin(common)]
    chosen = chosen.assign(share_found=chosen["found"] / chosen["num_best"])
    groups = chosen.groupby("method", sort=False)
    return groups.agg(
        pools=("pool", "size"),
        share_found=("share_found", "mean"),
        simple_regret=("simple_regret", "mean"),
        cumulative_regret=("cumulative_regret", "mean"),
        distinct=("distinct", "mean"),
        least_distinct=("least_distinct", "min"),
        seconds_per_ask=("seconds_per_ask", "median"),
    ).reset_index()


def draw(table: pd.DataFrame, title: str) -> Figure:
    """Draw the best 1 % found over measurements: means, and a standard error's band."""
    pools = list(table["pool"].unique())
    methods = list(table["method"].unique())
    across = min(NUM_PANELS_ACROSS, len(pools))
    down = -(-len(pools) // across)
    figure = blank_figure(3.1 * across + 1.2, 2.5 * down + 0.8)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    colors = colors_of(methods)
    for axes, pool in zip(panels, pools, strict=False):
        one = table[table["pool"] == pool]
        for name in methods:
            runs = one[one["method"] == name]
            if not runs.empty:
                _draw_curve(axes, runs, name, colors[name])
        axes.axhline(one["num_best"].iloc[0], color="0.8", linewidth=1)
        part = SOURCES[pool].part if pool in SOURCES else "made up"
        axes.set_title(f"{pool} ({part})", fontsize="small")
        axes.set_ylim(bottom=0)
        tidy_axes(axes)
    for axes in panels[len(pools) :]:
        axes.set_visible(False)
    add_legend(figure)
    figure.supxlabel("measurements", fontsize="small")
    figure.supylabel("best 1 % found", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    return figure


def colors_of(methods: Sequence[str]) -> dict[str, str]:
    """Return a color for each method, the same ones for the peers in any picture."""
    spare = iter(OTHER_COLORS * len(methods))
    return {name: COLORS.get(name) or next(spare) for name in methods}


def add_legend(figure: Figure) -> None:
    """Name the lines of all panels once, beside them."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        lines, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    figure.legend(
        list(handles.values()), list(handles), loc="outside right upper", frameon=False
    )


def _draw_curve(axes: Axes, runs: pd.DataFrame, name: str, color: str) -> None:
    found = runs.groupby("num_measured")["found"]
    mean, error = found.mean(), found.sem().fillna(0.0)
    axes.plot(mean.index, mean, color=color, linewidth=1.6, label=name)
    axes.fill_between(
        mean.index, mean - error, mean + error, color=color, alpha=0.2, linewidth=0
    )


def _cell(row: pd.Series) -> str:
    error = f" +- {row['found_se']:.1f}" if row["seeds"] > 1 else ""
    return f"{row['found']:.1f}{error} ({row['seeds']})"
