"""Pictures of bandits: functions that draw on axes and return them, and two figures.

Everything needs matplotlib, of the extra ``plot``; :func:`plot_rounds` and
:func:`plot_repetitions` put whole figures together. Tables of rounds have one row per
batch and the columns ``num_pulls`` (after the round), ``batch_size``,
``cumulative_regret`` and ``uniform_cumulative_regret``, as in the command line's
``rounds.csv``; :func:`plot_repetitions` also wants ``seconds`` from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from botorch_bkb.generation import MaximizerDistribution


# A vector picture of more is large and slow.
MAX_VECTOR_MARKS = 1_000


def plot_rounds(
    runs: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    reward_unit: str | None = None,
) -> Figure:
    r"""Draw cumulative regret, beside uniform choice, and batch size over pulls.

    Args:
        runs: A table of rounds by the name of its bandit.
        title: A title over the picture.
        reward_unit: The unit of the rewards, and so of the regret.

    Returns:
        A figure that no global state of matplotlib knows; save it by ``savefig``.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no run, or a run without rounds.
    """
    if not runs or any(len(rounds) == 0 for rounds in runs.values()):
        raise ValueError(
            "Expected `runs` to hold at least one table, and each at least one round, "
            f"but got { ({name: len(rounds) for name, rounds in runs.items()}) }."
        )
    figure = blank_figure(7.0, 5.6)
    regret_axes, batch_axes = figure.subplots(
        2, 1, sharex=True, height_ratios=(1.7, 1.0)
    )
    _draw_regret(regret_axes, runs)
    _draw_batch_sizes(batch_axes, runs)
    unit = f"\n({reward_unit})" if reward_unit else ""
    regret_axes.set_ylabel(f"cumulative regret{unit}")
    batch_axes.set_ylabel("batch size (pulls)")
    batch_axes.set_xlabel("pulls")
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def plot_repetitions(
    runs: Mapping[str, Sequence[pd.DataFrame]],
    *,
    title: str | None = None,
    reward_unit: str | None = None,
) -> Figure:
    r"""Draw regret, seconds and batch size over pulls, as mean and deviation of runs.

    The panels of figures 1 and 2 of the BBKB paper, as :func:`plot_regret` and
    :func:`plot_batch_sizes` draw them.

    Args:
        runs: Tables of rounds, one per repetition, by the name of their bandit.
        title: A title over the picture.
        reward_unit: The unit of the rewards, and so of the regret.

    Returns:
        A figure that no global state of matplotlib knows; save it by ``savefig``.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no run, or a run without rounds.
    """
    _check_runs(runs)
    figure = blank_figure(12.0, 4.0)
    regret_axes, seconds_axes, batch_axes = figure.subplots(1, 3)
    plot_regret(regret_axes, runs, reward_unit=reward_unit)
    _plot_column(seconds_axes, runs, "seconds")
    seconds_axes.set_ylabel("time (seconds)")
    seconds_axes.set_yscale("log")
    seconds_axes.yaxis.set_major_formatter("{x:,g}")
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
    """Draw cumulative regret over pulls, beside that of uniform choice.

    A line is the mean over the runs of a bandit and ends with the shortest of them; the
    band is one standard deviation on either side. Between rounds, regret is read by
    linear interpolation.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.
        reward_unit: The unit of the rewards, and so of the regret.

    Returns:
        The axes.

    Raises:
        ValueError: If there is no run, or a run without rounds.
    """
    _check_runs(runs)
    everything = [rounds for tables in runs.values() for rounds in tables]
    _draw_uniform(axes, everything, "uniform_cumulative_regret")
    _plot_column(axes, runs, "cumulative_regret")
    unit = f"\n({reward_unit})" if reward_unit else ""
    axes.set_ylabel(f"cumulative regret{unit}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, loc="upper left", fontsize="small")
    return axes


def plot_found(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Axes:
    """Draw how many of the best 1 % of all arms were pulled, beside uniform choice.

    Lines and bands are those of :func:`plot_regret`; the tables also need the columns
    ``num_best_found`` and ``uniform_num_best_found`` of the command line.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.

    Returns:
        The axes.

    Raises:
        ValueError: If there is no run, or a run without rounds.
    """
    _check_runs(runs)
    everything = [rounds for tables in runs.values() for rounds in tables]
    _draw_uniform(axes, everything, "uniform_num_best_found")
    _plot_column(axes, runs, "num_best_found")
    axes.set_ylabel("found of the best 1 % (arms)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    return axes


def plot_batch_sizes(axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]]) -> Axes:
    """Draw the size of the batch that each pull belongs to.

    Args:
        axes: The axes to draw on.
        runs: Tables of rounds, one per repetition, by the name of their bandit.

    Returns:
        The axes.

    Raises:
        ValueError: If there is no run, or a run without rounds.
    """
    _check_runs(runs)
    for name, tables in runs.items():
        pulls = _common_pulls(tables)
        _draw_band(axes, pulls, [_batch_sizes(run, pulls) for run in tables], name)
    axes.set_yscale("log")
    # Below one pull there is no batch, though a band may reach there.
    axes.set_ylim(bottom=0.8)
    axes.set(xlabel="pulls", ylabel="batch size (pulls)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,g}")
    tidy_axes(axes)
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
    """Draw a posterior over a line: mean, band, and where the inducing points are.

    Args:
        axes: The axes to draw on.
        x: The ``n`` positions, ascending.
        mean: The ``n`` posterior means.
        variance: The ``n`` posterior variances.
        function: The ``n`` true values, if they are known.
        inducing: The positions of the inducing points, drawn as ticks at the bottom.
        num_deviations: Half the height of the band, in deviations.

    Returns:
        The axes.
    """
    half = num_deviations * np.sqrt(variance)
    label = f"mean and {num_deviations:g} deviations"
    axes.fill_between(x, mean - half, mean + half, alpha=0.25, linewidth=0)
    axes.plot(x, mean, label=label)
    if function is not None:
        axes.plot(x, function, "k--", linewidth=1, label="function")
    if inducing is not None:
        bottom = np.full(len(inducing), 0.02)
        axes.plot(
            inducing,
            bottom,
            "|",
            color="C3",
            transform=axes.get_xaxis_transform(),
            label="inducing points",
        )
    tidy_axes(axes)
    return axes


def plot_arm_values(
    axes: Axes,
    arms: np.ndarray,
    values: np.ndarray,
    *,
    counts: np.ndarray | None = None,
    inducing: np.ndarray | None = None,
    label: str | None = None,
) -> Axes:
    """Draw arms in the plane, colored by a posterior's mean, variance or the like.

    Args:
        axes: The axes to draw on.
        arms: The ``A x 2`` arms.
        values: The ``A`` numbers that color them.
        counts: The ``A`` numbers of pulls; circles, whose area grows with them.
        inducing: The indices of the inducing arms, drawn as crosses.
        label: What the colors mean, for the color bar; without it there is none.

    Returns:
        The axes.
    """
    order = np.argsort(values)  # the largest are drawn last, and so seen
    shown = axes.scatter(
        arms[order, 0], arms[order, 1], c=values[order], s=8, linewidths=0
    )
    if counts is not None:
        pulled = np.flatnonzero(counts)
        axes.scatter(
            arms[pulled, 0],
            arms[pulled, 1],
            s=14 * counts[pulled],
            facecolors="none",
            edgecolors="C3",
            label="pulls",
        )
    if inducing is not None:
        x, y = arms[inducing].T
        axes.plot(x, y, "x", color="k", markersize=5, label="inducing arms")
    figure = axes.get_figure(root=True)
    if label is not None and figure is not None:
        figure.colorbar(shown, ax=axes, label=label)
    axes.set_aspect("equal")
    tidy_axes(axes)
    return axes


def plot_maximizer_distribution(
    axes: Axes, distribution: MaximizerDistribution, *, max_arms: int = 20
) -> Axes:
    """Draw the probabilities of being the best arm, with their standard errors.

    Arms of one coordinate stand at their place; others in order of probability, under
    their index.

    Args:
        axes: The axes to draw on.
        distribution: The distribution of the maximizer.
        max_arms: How many arms of more than one coordinate are shown at most.

    Returns:
        The axes.
    """
    arms = distribution.credible_set(1.0)
    on_line = distribution.maximizers.shape[-1] == 1
    if not on_line:
        arms = arms[:max_arms]
    height = distribution.probabilities[arms].tolist()
    error = distribution.standard_errors[arms].tolist()
    if on_line:
        first = [int((distribution.indices == arm).nonzero()[0]) for arm in arms]
        x = distribution.maximizers[first, 0].tolist()
        axes.vlines(x, 0, height, linewidth=2.5)
        axes.errorbar(x, height, error, fmt="none", ecolor="0.4", elinewidth=0.8)
        axes.set_xlabel("arm")
    else:
        places = range(len(arms))
        axes.bar(places, height, yerr=error, error_kw={"ecolor": "0.4"})
        axes.set_xticks(places, [str(int(arm)) for arm in arms], rotation=90)
        axes.set_xlabel("arm (index)")
    axes.set_ylabel("probability of being best")
    axes.set_ylim(bottom=0)
    tidy_axes(axes)
    return axes


def plot_inducing_points(
    axes: Axes, num_pulls: Sequence[int], inducing: Sequence[np.ndarray]
) -> Axes:
    """Draw which inducing points there were over time, a mark for each.

    Args:
        axes: The axes to draw on.
        num_pulls: The number of pulls at each time that is shown.
        inducing: The inducing points at that time: their positions on a line, or the
            indices of the arms.

    Returns:
        The axes.

    Raises:
        ValueError: If the two do not have the same length.
    """
    times = np.concatenate(
        [
            np.full(len(points), pulls)
            for pulls, points in zip(num_pulls, inducing, strict=True)
        ]
    )
    axes.plot(times, np.concatenate(inducing), "_", color="C3", markersize=3)
    axes.set(xlabel="pulls", ylabel="inducing points")
    tidy_axes(axes)
    return axes


def plot_progress(
    axes: Axes, rounds: Sequence[np.ndarray], *, maximize: bool = True
) -> Axes:
    """Draw rewards round after round: single ones, their mean, and the best so far.

    Args:
        axes: The axes to draw on.
        rounds: The rewards of each round, at least one of each.
        maximize: Whether large rewards are good.

    Returns:
        The axes.
    """
    best_of = np.max if maximize else np.min
    best = [best_of(np.concatenate(rounds[: last + 1])) for last in range(len(rounds))]
    numbers = np.arange(1, len(rounds) + 1)
    single = np.repeat(numbers, [len(rewards) for rewards in rounds])
    axes.plot(
        single,
        np.concatenate(rounds),
        ".",
        color="0.5",
        markersize=4,
        label="single measurements",
        rasterized=len(single) > MAX_VECTOR_MARKS,
    )
    axes.plot(numbers, best, "-^", color="C2", label="best so far")
    means = [rewards.mean() for rewards in rounds]
    axes.plot(numbers, means, "--o", color="C0", label="mean of the round")
    axes.set(xlabel="round", ylabel="reward", xlim=(0.5, len(rounds) + 0.5))
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    tidy_axes(axes)
    return axes


def plot_predicted(
    axes: Axes, measured: np.ndarray, mean: np.ndarray, half_width: np.ndarray
) -> Axes:
    """Draw predicted against measured rewards, with intervals and the diagonal.

    Measurements outside their interval, whose bar does not reach the diagonal, are
    crosses.

    Args:
        axes: The axes to draw on.
        measured: The ``n`` rewards.
        mean: The ``n`` predictions of them.
        half_width: Half the ``n`` intervals around those.

    Returns:
        The axes.
    """
    rasterized = len(measured) > MAX_VECTOR_MARKS
    axes.vlines(
        measured,
        mean - half_width,
        mean + half_width,
        color="0.6",
        linewidth=0.8,
        rasterized=rasterized,
    )
    inside = np.abs(measured - mean) <= half_width
    marks = {"inside": (inside, "o", "C0"), "outside": (~inside, "x", "C3")}
    for word, (which, marker, color) in marks.items():
        axes.plot(
            measured[which],
            mean[which],
            marker,
            color=color,
            markersize=4 if marker == "o" else 6,
            label=f"{word} its interval ({which.sum():,})",
            rasterized=rasterized,
        )
    ends = [measured.min(), measured.max()]
    axes.plot(ends, ends, "k--", linewidth=1, label="prediction = measurement")
    axes.set(xlabel="measured reward", ylabel="predicted reward")
    tidy_axes(axes)
    return axes


def blank_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that no global state of matplotlib knows.

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


def tidy_axes(axes: Axes) -> None:
    """Draw a light grid behind the data, and no frame at the top and right."""
    axes.grid(which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _check_runs(runs: Mapping[str, Sequence[pd.DataFrame]]) -> None:
    lengths = {
        name: [len(rounds) for rounds in tables] for name, tables in runs.items()
    }
    if not lengths or not all(counts and all(counts) for counts in lengths.values()):
        raise ValueError(
            "Expected `runs` to hold at least one table per bandit, and each at least "
            f"one round, but got numbers of rounds {lengths}."
        )


def _plot_column(
    axes: Axes, runs: Mapping[str, Sequence[pd.DataFrame]], column: str
) -> None:
    for name, tables in runs.items():
        pulls = _common_pulls(tables)
        values = [_interpolated(run, column, pulls) for run in tables]
        _draw_band(axes, pulls, values, name)
    axes.set_xlabel("pulls")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    tidy_axes(axes)


def _draw_uniform(axes: Axes, runs: Sequence[pd.DataFrame], column: str) -> None:
    """Draw what uniform choice can expect, as far as the longest run."""
    # Of equally long runs the one of most rounds, which has most points.
    longest = max(runs, key=lambda rounds: (rounds["num_pulls"].iloc[-1], len(rounds)))
    pulls = np.union1d([1], longest["num_pulls"])
    axes.plot(
        pulls,
        _interpolated(longest, column, pulls),
        color="0.45",
        linestyle="--",
        linewidth=1.4,
        label="uniform choice (expected)",
    )


def _common_pulls(tables: Sequence[pd.DataFrame]) -> np.ndarray:
    """Return up to 1,000 pull numbers that all runs have reached, from the first on."""
    last = min(int(rounds["num_pulls"].iloc[-1]) for rounds in tables)
    return np.unique(np.linspace(1, last, min(last, 1000)).round().astype(int))


def _interpolated(rounds: pd.DataFrame, column: str, pulls: np.ndarray) -> np.ndarray:
    known_pulls = np.concatenate([[0], rounds["num_pulls"]])
    return np.interp(pulls, known_pulls, np.concatenate([[0.0], rounds[column]]))


def _batch_sizes(rounds: pd.DataFrame, pulls: np.ndarray) -> np.ndarray:
    batches = np.searchsorted(rounds["num_pulls"].to_numpy(), pulls)
    return rounds["batch_size"].to_numpy(dtype="float64")[batches]


def _draw_band(
    axes: Axes, pulls: np.ndarray, runs: Sequence[np.ndarray], name: str
) -> None:
    mean = np.mean(runs, axis=0)
    std = np.std(runs, axis=0, ddof=1) if len(runs) > 1 else np.zeros_like(mean)
    (line,) = axes.plot(pulls, mean, linewidth=1.8, label=name)
    # On a logarithmic axis a band cannot reach to zero.
    lower = np.maximum(mean - std, 1e-3 * mean)
    axes.fill_between(
        pulls, lower, mean + std, color=line.get_color(), alpha=0.2, linewidth=0
    )


def _draw_regret(axes: Axes, runs: Mapping[str, pd.DataFrame]) -> None:
    _draw_uniform(axes, list(runs.values()), "uniform_cumulative_regret")
    for name, rounds in runs.items():
        axes.plot(
            rounds["num_pulls"], rounds["cumulative_regret"], linewidth=1.8, label=name
        )
    # Logarithmic on both axes: uniform choice has slope 1, a sublinear regret less.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, loc="upper left")
    tidy_axes(axes)


def _draw_batch_sizes(axes: Axes, runs: Mapping[str, pd.DataFrame]) -> None:
    for rounds in runs.values():
        sizes = rounds["batch_size"].to_numpy()
        # A batch reaches from its own first pull to the first of the next batch.
        edges = [1, *(rounds["num_pulls"] + 1)]
        axes.stairs(sizes, edges, baseline=None, linewidth=1.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, 1 + max(rounds["num_pulls"].iloc[-1] for rounds in runs.values()))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    tidy_axes(axes)
