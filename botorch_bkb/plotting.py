"""Plots of bandits: functions that draw on matplotlib axes.

They need matplotlib (extra ``plot``). ``runs`` are tables of rounds, one per
repetition, by the name of their bandit. A table has one row per batch and the columns
``num_pulls`` (after the round), ``batch_size`` and ``cumulative_regret``, as in the
command line's ``rounds.csv``. The column ``uniform_cumulative_regret`` is drawn if
it exists. :func:`plot_repetitions` also needs ``seconds`` from the start. A
``ValueError`` is raised if there is no run, or a run without rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from botorch_bkb.generation import MaximizerDistribution


# More marks make a vector picture large and slow.
MAX_VECTOR_MARKS = 1_000
# Of names beside an axis.
MAX_LETTERS = 20


def plot_repetitions(
    runs: Mapping[str, Sequence[pd.DataFrame]],
    *,
    title: str | None = None,
    reward_unit: str | None = None,
) -> Figure:
    """Draw regret, seconds and batch size over pulls, as means of runs.

    The panels of figures 1 and 2 of the BBKB paper, as :func:`plot_regret` and
    :func:`plot_batch_sizes` draw them.

    Args:
        runs: Tables of rounds, one per repetition, by the name of their bandit.
        title: A title over the picture.
        reward_unit: The unit of the rewards, and so of the regret.

    Returns:
        A figure outside matplotlib's global state; save it by ``savefig``.
    """
    figure = blank_figure(12.0, 4.0)
    regret_axes, seconds_axes, batch_axes = figure.subplots(1, 3)
    plot_regret(regret_axes, runs, reward_unit=reward_unit)
    _draw_runs(seconds_axes, runs, "seconds", "time (seconds)", scale="log")
    plot_batch_sizes(batch_axes, runs)
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def plot_regret(
    axes: Axes,
    runs: Mapping[str, Sequence[pd.DataFrame]],
    *,
    reward_unit: str | None = None,
) -> Axes:
    """Draw cumulative regret over pulls, and that of uniform choice.

    A line is the mean over the runs of a bandit and ends with the shortest of them; the
    band is one standard deviation on either side. Between rounds, regret is read by
    linear interpolation.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.
        reward_unit: The unit of the rewards, and so of the regret.
    """
    label = "cumulative regret" + (f"\n({reward_unit})" if reward_unit else "")
    _draw_runs(axes, runs, "cumulative_regret", label)
    axes.legend(frameon=False, loc="upper left", fontsize="small")
    return axes


def plot_found(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Axes:
    """Draw how many of the best 1 % of the arms were pulled, and uniform choice.

    Lines and bands are those of :func:`plot_regret`; the tables also need the column
    ``num_best_found`` of the command line.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.
    """
    label = "found of the best 1 % (arms)"
    _draw_runs(axes, runs, "num_best_found", label)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    return axes


def plot_batch_sizes(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Axes:
    """Draw the size of the batch that each pull belongs to.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.
    """
    _draw_runs(axes, runs, "batch_size", "batch size (pulls)", scale="log")
    # A batch has at least one pull; the band may reach below.
    axes.set_ylim(bottom=0.8)
    return axes


def plot_posterior(
    axes: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    *,
    function: np.ndarray | None = None,
    inducing: np.ndarray | None = None,
    num_deviations: float = 3.0,
) -> Axes:
    """Draw a posterior over a line: mean, band, and inducing points.

    Args:
        axes: The axes to draw on.
        x: The ``n`` positions, ascending.
        mean: The ``n`` posterior means.
        variance: The ``n`` posterior variances.
        function: The ``n`` true values, if they are known.
        inducing: The positions of the inducing points, drawn as ticks at the bottom.
        num_deviations: Half the height of the band, in standard deviations.
    """
    half = num_deviations * np.sqrt(variance)
    label = f"mean and {num_deviations:g} deviations"
    axes.fill_between(x, mean - half, mean + half, alpha=0.25, linewidth=0)
    axes.plot(x, mean, label=label)
    if function is not None:
        axes.plot(x, function, "k--", linewidth=1, label="function")
    if inducing is not None:
        height, transform = np.full(len(inducing), 0.02), axes.get_xaxis_transform()
        label = "inducing points"
        axes.plot(inducing, height, "C3|", label=label, transform=transform)
    return tidy_axes(axes)


def plot_arm_values(
    axes: Axes,
    arms: np.ndarray,
    values: np.ndarray,
    *,
    counts: np.ndarray | None = None,
    inducing: np.ndarray | None = None,
    label: str | None = None,
) -> Axes:
    """Draw arms in the plane, colored by values such as a posterior mean.

    Args:
        axes: The axes to draw on.
        arms: The ``A x 2`` arms.
        values: The ``A`` numbers that color them.
        counts: The ``A`` numbers of pulls; circles, whose area grows with them.
        inducing: The indices of the inducing arms, drawn as crosses.
        label: What the colors mean, for the color bar; without it there is none.
    """
    x, y = arms.T
    order = np.argsort(values)  # the largest are drawn last, on top
    shown = axes.scatter(x[order], y[order], c=values[order], s=8, linewidths=0)
    if counts is not None:
        pulled = np.flatnonzero(counts)
        circles = axes.scatter(x[pulled], y[pulled], s=14 * counts[pulled])
        circles.set(facecolor="none", edgecolor="C3", label="pulls")
    if inducing is not None:
        axes.plot(x[inducing], y[inducing], "kx", markersize=5, label="inducing arms")
    if label is not None:
        axes.figure.colorbar(shown, ax=axes, label=label)
    axes.set_aspect("equal")
    return tidy_axes(axes)


def plot_maximizer_distribution(
    axes: Axes, distribution: MaximizerDistribution, *, max_arms: int = 20
) -> Axes:
    """Draw the probabilities of being the best arm, with their standard errors.

    Arms with one coordinate are drawn there; others in order of probability, with their
    index.

    Args:
        axes: The axes to draw on.
        distribution: The distribution of the maximizer.
        max_arms: How many arms of more than one coordinate are shown at most.
    """
    arms = distribution.credible_set(1.0)
    on_line = distribution.maximizers.shape[-1] == 1
    if on_line:
        first = [int((distribution.indices == arm).nonzero()[0]) for arm in arms]
        x = distribution.maximizers[first, 0].tolist()
        axes.set_xlabel("arm")
    else:
        arms = arms[:max_arms]
        x = list(range(len(arms)))
        axes.set_xticks(x, [str(int(arm)) for arm in arms], rotation=90)
        axes.set_xlabel("arm (index)")
    height = distribution.probabilities[arms].tolist()
    error = distribution.standard_errors[arms].tolist()
    axes.vlines(x, 0, height, linewidth=2.5)
    axes.errorbar(x, height, error, fmt="none", ecolor="0.4", elinewidth=0.8)
    axes.set_ylabel("probability of being best")
    axes.set_ylim(bottom=0)
    return tidy_axes(axes)


def plot_inducing_points(
    axes: Axes, num_pulls: Sequence[int], inducing: Sequence[np.ndarray]
) -> Axes:
    """Draw the inducing points over time, one mark each.

    Args:
        axes: The axes to draw on.
        num_pulls: The number of pulls at each time that is shown.
        inducing: The inducing points at that time: their positions on a line, or the
            indices of the arms.

    Raises:
        ValueError: If the two do not have the same length.
    """
    times = np.repeat(num_pulls, [len(points) for points in inducing])
    axes.plot(times, np.concatenate(inducing), "C3_", markersize=3)
    axes.set(xlabel="pulls", ylabel="inducing points")
    return tidy_axes(axes)


def plot_progress(
    axes: Axes,
    rounds: Sequence[np.ndarray],
    *,
    maximize: bool = True,
    target: float | None = None,
    limits: Sequence[float] = (),
    reward: str = "reward",
    numbers: Sequence[float] | None = None,
) -> Axes:
    """Draw rewards by round: single rewards, their mean, and the best so far.

    Args:
        axes: The axes to draw on.
        rounds: The rewards of each round, at least one of each.
        maximize: Whether large rewards are good.
        target: The best reward, in place of ``maximize``, drawn as a line.
        limits: Limits of the rewards, drawn as lines.
        reward: The name of the rewards.
        numbers: The numbers of the rounds; 1, 2, ... if None.
    """
    best = _best_so_far(rounds, maximize, target)
    numbers = range(1, len(rounds) + 1) if numbers is None else numbers
    places = np.repeat(numbers, [len(rewards) for rewards in rounds])
    (marks,) = axes.plot(
        places, np.concatenate(rounds), ".", color="0.5", label="single measurements"
    )
    marks.set(markersize=4, rasterized=len(places) > MAX_VECTOR_MARKS)
    axes.plot(numbers, best, "C2-^", label="best so far")
    means = [rewards.mean() for rewards in rounds]
    axes.plot(numbers, means, "C0--o", label="mean of the round")
    if target is not None:
        axes.axhline(target, color="C1", linestyle=":", label="target")
    for limit in limits:
        axes.axhline(limit, color="C3", linestyle="--", linewidth=1, label="limit")
    axes.set(xlabel="round", ylabel=_shortened(reward))
    axes.set(xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    return tidy_axes(axes)


def _best_so_far(
    rounds: Sequence[np.ndarray], maximize: bool = True, target: float | None = None
) -> np.ndarray:
    """Return the best reward up to each round, or the nearest to a target."""
    best = np.empty(0)
    for rewards in rounds:
        seen = np.append(best[-1:], rewards)
        value = seen if maximize else -seen
        value = value if target is None else -np.abs(seen - target)
        best = np.append(best, seen[value.argmax()])
    return best


def plot_front(
    axes: Axes,
    measured: np.ndarray,
    front: np.ndarray,
    batch: np.ndarray,
    names: Sequence[str],
) -> Axes:
    """Draw two outcomes: measured candidates, the Pareto front, and the next batch.

    Args:
        axes: The axes to draw on.
        measured: The ``n x 2`` measured outcomes.
        front: The predicted means of the ``m`` candidates of the front, ``m x 2``.
        batch: Those of the next batch, ``q x 2``.
        names: The names of the two outcomes.
    """
    axes.plot(*measured.T, ".", color="0.5", markersize=4, label="measured")
    axes.plot(*front.T, "C0o", fillstyle="none", label="predicted front")
    axes.plot(*batch.T, "C3x", label="next batch, predicted")
    for marks in axes.lines:
        marks.set_rasterized(np.size(marks.get_xdata()) > MAX_VECTOR_MARKS)
    axes.set(xlabel=_shortened(names[0]), ylabel=_shortened(names[1]))
    return tidy_axes(axes)


def plot_predicted(
    axes: Axes,
    measured: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    reward: str = "reward",
) -> Axes:
    """Draw predicted against measured rewards, with intervals and the diagonal.

    Measurements outside their interval, whose bar does not reach the diagonal, are
    crosses.

    Args:
        axes: The axes to draw on.
        measured: The ``n`` rewards.
        mean: The ``n`` predictions of them.
        low: The lower ends of the ``n`` intervals.
        high: Their upper ends.
        reward: The name of the rewards.
    """
    rasterized = len(measured) > MAX_VECTOR_MARKS
    axes.vlines(measured, low, high, color="0.6", linewidth=0.8, rasterized=rasterized)
    inside = (low <= measured) & (measured <= high)
    for which, word, marker, size in (
        (inside, "inside", "C0o", 4),
        (~inside, "outside", "C3x", 6),
    ):
        label = f"{word} its interval ({which.sum():,})"
        (line,) = axes.plot(measured[which], mean[which], marker, label=label)
        line.set(markersize=size, rasterized=rasterized)
    ends = [measured.min(), measured.max()]
    axes.plot(ends, ends, "k--", linewidth=1, label="prediction = measurement")
    axes.set(xlabel=f"measured {_shortened(reward)}")
    axes.set(ylabel=f"predicted {_shortened(reward)}")
    return tidy_axes(axes)


def plot_importance(axes: Axes, shares: pd.DataFrame) -> Axes:
    """Draw how much columns explain, ``alone`` and ``together``, the first on top."""
    alone, together = 100 * shares[["alone", "together"]].to_numpy().T
    places, label = range(len(shares)), "with other columns"
    axes.barh(places, alone, color="C0", label="by itself")
    axes.barh(places, together, left=alone, color="C0", alpha=0.4, label=label)
    axes.set_yticks(places, [*map(_shortened, shares.index)])
    axes.invert_yaxis()
    axes.set(xlabel="% of the predicted differences")
    return tidy_axes(axes)


def plot_effect(
    axes: Axes,
    effects: pd.DataFrame,
    *,
    column: str,
    reward: str,
    limits: tuple[float, float],
) -> Axes:
    """Draw each ``value`` of a column, words or numbers, over a range of the reward.

    With its ``mean`` and interval, ``low`` to ``high``.
    """
    values, *moments = (effects[n] for n in ("value", "mean", "low", "high"))
    mean, low, high = moments
    if isinstance(values.iloc[0], str):
        places = range(len(values))
        half = np.stack([mean - low, high - mean])
        axes.errorbar(mean, places, xerr=half, fmt="C0o", ecolor="0.6", capsize=2)
        axes.set_yticks(places, [*map(_shortened, values)])
        axes.set(xlabel=_shortened(reward), xlim=limits, ylim=(len(values) - 0.5, -0.5))
    else:
        axes.fill_between(values, low, high, color="0.85", linewidth=0)
        axes.plot(values, mean, "C0-o", markersize=3)
        axes.set(ylabel=_shortened(reward), ylim=limits)
    axes.set_title(_shortened(column))
    return tidy_axes(axes)


def plot_places(
    axes: Axes, places: Sequence[pd.DataFrame], words: Mapping[str, Sequence[str]]
) -> Axes:
    """Draw other, measured and chosen candidates over two columns.

    ``words`` are those at 0, 1, ... of both columns, none of numbers.
    """
    x, y = words
    marks = (".", "0.8", 3), ("o", "C0", 4), ("X", "C3", 7)
    labels = "others", "measured", "next batch"
    for cells, (mark, color, size), label in zip(places, marks, labels, strict=True):
        (line,) = axes.plot(cells[x], cells[y], mark, color=color, label=label)
        line.set(markersize=size, rasterized=len(cells) > MAX_VECTOR_MARKS // 2)
    axes.set(xlabel=_shortened(x), ylabel=_shortened(y))
    if words[x]:
        names = [*map(_shortened, words[x])]
        axes.set_xticks(range(len(names)), names, rotation=90)
    if words[y]:
        axes.set_yticks(range(len(words[y])), [*map(_shortened, words[y])])
        axes.invert_yaxis()
    return tidy_axes(axes)


def _shortened(name: str) -> str:
    """Return a name that leaves room for the picture, and is no formula to it."""
    name = name if len(name) <= MAX_LETTERS else f"{name[: MAX_LETTERS - 1]}\u2026"
    return name.replace("$", r"\$")


def blank_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, outside matplotlib's global state.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib, which is not installed. Install it with "
            'pip install "botorch_bkb[plot]".'
        ) from error
    layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
    return Figure(figsize=(width, height), dpi=150, layout=layout)


def tidy_axes(axes: Axes) -> Axes:
    """Draw a light grid behind the data, without a frame at the top and right."""
    axes.grid(which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _draw_runs(
    axes: Axes,
    runs: Mapping[str, Sequence[pd.DataFrame]],
    column: str,
    label: str,
    scale: str = "linear",
) -> None:
    """Draw a column over pulls: means of runs, and uniform choice."""
    lengths = {name: list(map(len, tables)) for name, tables in runs.items()}
    if not lengths or not all(counts and all(counts) for counts in lengths.values()):
        raise ValueError(
            "Expected `runs` to hold at least one table per bandit, and each at least "
            f"one round, but got numbers of rounds {lengths}."
        )
    _draw_uniform(axes, list(chain(*runs.values())), f"uniform_{column}")
    is_step = column == "batch_size"
    style = "steps" if is_step else "default"
    for name, tables in runs.items():
        # As far as all runs reach.
        last = min(int(rounds["num_pulls"].iloc[-1]) for rounds in tables)
        pulls = np.unique(np.linspace(1, last, 1000).round().astype(int))
        values = [_values_at(pulls, rounds, column) for rounds in tables]
        mean = np.mean(values, axis=0)
        std = np.std(values, axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
        (line,) = axes.plot(pulls, mean, linewidth=1.8, label=name, drawstyle=style)
        # On a logarithmic axis a band cannot reach to zero.
        low, high = np.maximum(mean - std, 1e-3 * mean), mean + std
        band = axes.fill_between(pulls, low, high, step="pre" if is_step else None)
        band.set(color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="pulls", ylabel=label, yscale=scale)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,g}")
    tidy_axes(axes)


def _draw_uniform(axes: Axes, tables: Sequence[pd.DataFrame], column: str) -> None:
    """Draw the expected values of uniform choice, if the tables have that column."""
    expected = {0: 0.0}
    for rounds in tables:
        if column in rounds:
            expected |= dict(zip(rounds["num_pulls"], rounds[column], strict=True))
    if len(expected) > 1:
        pulls = np.array(sorted(expected))
        shown = pulls.clip(min=1)  # a logarithmic axis has no zero
        values = np.interp(shown, pulls, [expected[n] for n in pulls])
        (line,) = axes.plot(shown, values, "--", color="0.45")
        line.set(linewidth=1.4, label="uniform choice (expected)")


def _values_at(pulls: np.ndarray, rounds: pd.DataFrame, column: str) -> np.ndarray:
    if column == "batch_size":
        batches = np.searchsorted(rounds["num_pulls"].to_numpy(), pulls)
        return rounds[column].to_numpy(dtype="float64")[batches]
    known_pulls = np.concatenate([[0], rounds["num_pulls"]])
    return np.interp(pulls, known_pulls, np.concatenate([[0.0], rounds[column]]))
