import builtins
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import StepPatch

from botorch_bkb.plotting import plot_rounds


@pytest.fixture
def rounds():
    return pd.DataFrame(
        {
            "num_pulls": [1, 3, 8],
            "batch_size": [1, 2, 5],
            "cumulative_regret": [1.0, 2.5, 3.0],
            "uniform_cumulative_regret": [1.5, 4.5, 12.0],
        }
    )


def test_the_picture_holds_the_numbers_of_the_rounds(rounds):
    figure = plot_rounds({"BBKB": rounds})
    regret_axes, batch_axes = figure.axes
    uniform, bandit = regret_axes.lines
    np.testing.assert_array_equal(uniform.get_data(), [[1, 3, 8], [1.5, 4.5, 12.0]])
    np.testing.assert_array_equal(bandit.get_data(), [[1, 3, 8], [1.0, 2.5, 3.0]])
    (steps,) = batch_axes.patches
    assert isinstance(steps, StepPatch)
    sizes, edges, _ = steps.get_data()
    assert list(sizes) == [1, 2, 5]
    assert list(edges) == [1, 2, 4, 9]


def test_labels_carry_units_and_the_legend_every_run(rounds):
    figure = plot_rounds(
        {"BBKB": rounds, "BKB": rounds.iloc[:2]}, title="A run", reward_unit="grams"
    )
    regret_axes, batch_axes = figure.axes
    assert regret_axes.get_ylabel() == "cumulative regret\n(grams)"
    assert batch_axes.get_ylabel() == "batch size (pulls)"
    assert batch_axes.get_xlabel() == "pulls"
    assert figure.get_suptitle() == "A run"
    _, labels = regret_axes.get_legend_handles_labels()
    assert labels == ["uniform choice (expected)", "BBKB", "BKB"]
    # Uniform choice reaches as far as the longest run.
    assert np.max(regret_axes.lines[0].get_xdata()) == 8


def test_a_run_of_one_round_can_be_saved(rounds, tmp_path):
    path = tmp_path / "regret.png"
    plot_rounds({"BBKB": rounds.iloc[:1]}).savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_drawing_leaves_no_global_figure(rounds):
    plot_rounds({"BBKB": rounds})
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize("names", [[], ["BBKB"]])
def test_nothing_to_draw_is_refused(names, rounds):
    with pytest.raises(ValueError, match="at least one round"):
        plot_rounds(dict.fromkeys(names, rounds.iloc[:0]))


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, rounds):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(ImportError, match=r'pip install "botorch_bkb\[cli\]"'):
        plot_rounds({"BBKB": rounds})
