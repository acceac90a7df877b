"""Pictures of a bandit's run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_rounds(
    runs: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    reward_unit: str | None = None,
) -> Figure:
    r"""Draw cumulative regret, beside uniform choice, and batch size over pulls.

    Args:
        runs: A table of rounds by the name of its bandit, with the columns
            ``num_pulls`` (after the round), ``batch_size``, ``cumulative_regret`` and
            ``uniform_cumulative_regret``, as in the command line's ``rounds.csv``.
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
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib, which is not installed. Install it with "
            'pip install "botorch_bkb[cli]".'
        ) from error
    layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
    figure = Figure(figsize=(7.0, 5.6), dpi=150, layout=layout)
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


def _draw_regret(axes: Axes, runs: Mapping[str, pd.DataFrame]) -> None:
    longest = max(runs.values(), key=lambda rounds: rounds["num_pulls"].iloc[-1])
    axes.plot(
        longest["num_pulls"],
        longest["uniform_cumulative_regret"],
        color="0.45",
        linestyle="--",
        linewidth=1.4,
        label="uniform choice (expected)",
    )
    for name, rounds in runs.items():
        axes.plot(
            rounds["num_pulls"], rounds["cumulative_regret"], linewidth=1.8, label=name
        )
    # Logarithmic on both axes: uniform choice has slope 1, a sublinear regret less.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, loc="upper left")
    _tidy(axes)


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
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
