import builtins
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.patches import StepPatch

from botorch_bkb.generation import MaximizerDistribution
from botorch_bkb.plotting import (
    blank_figure,
    plot_arm_values,
    plot_batch_sizes,
    plot_found,
    plot_inducing_points,
    plot_maximizer_distribution,
    plot_posterior,
    plot_predicted,
    plot_progress,
    plot_regret,
    plot_repetitions,
    plot_rounds,
)


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


def test_what_was_found_is_drawn_beside_uniform_choice(rounds):
    few = rounds.iloc[[2]].assign(num_best_found=4, uniform_num_best_found=1.6)
    many = rounds.assign(
        num_best_found=[0, 1, 2], uniform_num_best_found=[0.2, 0.6, 1.6]
    )
    axes = plot_found(blank_figure(4, 3).subplots(), {"BKB": [few], "BBKB": [many] * 2})
    uniform, plates, single = axes.lines
    # Of the runs that reach as far, the one of most rounds.
    np.testing.assert_array_equal(uniform.get_data(), [[1, 3, 8], [0.2, 0.6, 1.6]])
    assert plates.get_ydata()[[0, -1]].tolist() == [0.5, 4]
    assert single.get_ydata()[[0, 2, -1]].tolist() == [0, 1, 2]
    assert axes.get_ylabel() == "found of the best 1 % (arms)"
    with pytest.raises(ValueError, match="at least one table per bandit"):
        plot_found(axes, {"BKB": []})


def test_uniform_choice_is_drawn_from_the_first_pull(rounds):
    axes = plot_regret(blank_figure(4, 3).subplots(), {"BBKB": [rounds.iloc[[1]]]})
    np.testing.assert_allclose(axes.lines[0].get_data(), [[1, 3], [1.5, 4.5]])


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
    with pytest.raises(ImportError, match=r'pip install "botorch_bkb\[plot\]"'):
        plot_rounds({"BBKB": rounds})


def repetitions():
    # Two runs; the shorter one ends at 4 pulls.
    columns = ["num_pulls", "batch_size", "cumulative_regret", "seconds"]
    tables = [
        pd.DataFrame([[1, 1, 2.0, 1.0], [5, 4, 10.0, 5.0]], columns=columns),
        pd.DataFrame([[2, 2, 8.0, 2.0], [4, 2, 10.0, 8.0]], columns=columns),
    ]
    return [
        rounds.assign(uniform_cumulative_regret=3.0 * rounds["num_pulls"])
        for rounds in tables
    ]


def test_repetitions_are_drawn_as_mean_and_deviation_as_far_as_all_reach():
    figure = plot_repetitions({"BBKB": repetitions()}, title="Runs", reward_unit="eV")
    regret_axes, seconds_axes, batch_axes = figure.axes
    uniform, regret = regret_axes.lines
    np.testing.assert_array_equal(uniform.get_data(), [[1, 5], [3.0, 15.0]])
    np.testing.assert_allclose(regret.get_data(), [[1, 2, 3, 4], [3.0, 6.0, 7.5, 9.0]])
    (seconds,), (sizes,) = seconds_axes.lines, batch_axes.lines
    np.testing.assert_allclose(seconds.get_ydata(), [1.0, 2.0, 4.0, 6.0])
    np.testing.assert_allclose(sizes.get_ydata(), [1.5, 3.0, 3.0, 3.0])
    band = regret_axes.collections[0].get_paths()[0].vertices
    # At the last pull the regrets are 8 and 10.
    at_end = band[band[:, 0] == 4, 1]
    assert at_end.min() == pytest.approx(9 - np.sqrt(2))
    assert at_end.max() == pytest.approx(9 + np.sqrt(2))
    assert regret_axes.get_ylabel() == "cumulative regret\n(eV)"
    assert figure.get_suptitle() == "Runs"


def test_one_repetition_has_no_deviation():
    figure = plot_repetitions({"BBKB": repetitions()[:1]})
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    at_end = band[band[:, 0] == 5, 1]
    np.testing.assert_allclose(at_end, 10.0)


@pytest.mark.parametrize("runs", [{}, {"BBKB": []}, {"BBKB": ["empty"]}])
def test_no_repetition_to_draw_is_refused(runs):
    empty = repetitions()[0].iloc[:0]
    tables = {name: [empty for _ in tables] for name, tables in runs.items()}
    with pytest.raises(ValueError, match="at least one table per bandit"):
        plot_repetitions(tables)


def test_a_posterior_is_drawn_as_mean_band_function_and_inducing_points():
    x = np.linspace(0, 1, 5)
    axes = blank_figure(4, 3).subplots()
    variance = np.array([0.0, 1.0, 4.0, 1.0, 0.0])
    drawn = plot_posterior(
        axes, x, 2 * x, variance, function=x, inducing=x[1:3], num_deviations=2.0
    )
    assert drawn is axes
    mean, function, inducing = axes.lines
    np.testing.assert_array_equal(mean.get_data(), [x, 2 * x])
    np.testing.assert_array_equal(function.get_data(), [x, x])
    np.testing.assert_array_equal(inducing.get_xdata(), x[1:3])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].max() == 1.0 + 2 * 2.0
    assert corners[:, 1].min() == 1.0 - 2 * 2.0
    assert mean.get_label() == "mean and 2 deviations"


def test_regret_and_batch_sizes_are_drawn_on_the_axes_that_are_given():
    left, right = blank_figure(8, 3).subplots(1, 2)
    runs = {"BBKB": repetitions(), "BKB": repetitions()[:1]}
    assert plot_regret(left, runs, reward_unit="eV") is left
    assert plot_batch_sizes(right, runs) is right
    _, labels = left.get_legend_handles_labels()
    assert labels == ["uniform choice (expected)", "BBKB", "BKB"]
    assert left.get_ylabel() == "cumulative regret\n(eV)"
    sizes = right.lines[1]
    np.testing.assert_array_equal(sizes.get_data(), [[1, 2, 3, 4, 5], [1, 4, 4, 4, 4]])
    assert right.get_yscale() == "log"


@pytest.mark.parametrize("plot", [plot_regret, plot_batch_sizes])
def test_axes_without_a_run_are_refused(plot):
    axes = blank_figure(4, 3).subplots()
    with pytest.raises(ValueError, match="at least one table per bandit"):
        plot(axes, {"BBKB": []})


def test_arm_values_are_drawn_with_pulls_and_inducing_arms():
    axes = blank_figure(4, 3).subplots()
    arms = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    counts, inducing = np.array([0, 3, 1]), np.array([2])
    values = np.array([0.5, 2.0, 1.0])
    drawn = plot_arm_values(
        axes, arms, values, counts=counts, inducing=inducing, label="mean"
    )
    assert drawn is axes
    points, pulls = axes.collections
    np.testing.assert_array_equal(points.get_array(), [0.5, 1.0, 2.0])
    np.testing.assert_array_equal(points.get_offsets(), arms[[0, 2, 1]])
    np.testing.assert_array_equal(pulls.get_offsets(), arms[1:])
    assert pulls.get_sizes()[0] == 3 * pulls.get_sizes()[1]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), arms[[2]])
    assert axes.figure.axes[1].get_ylabel() == "mean"


def test_the_maximizer_on_a_line_stands_at_its_arms():
    arms = torch.tensor([[0.0], [2.0], [5.0]])
    distribution = MaximizerDistribution(arms, torch.tensor([2, 1, 2, 2]))
    axes = blank_figure(4, 3).subplots()
    assert plot_maximizer_distribution(axes, distribution) is axes
    bars = axes.collections[0].get_segments()
    np.testing.assert_allclose(bars, [[[5, 0], [5, 0.75]], [[2, 0], [2, 0.25]]])
    ends = [path[:, 1] for path in axes.collections[1].get_segments()]
    error = np.sqrt(0.75 * 0.25 / 4)
    np.testing.assert_allclose(ends[0], [0.75 - error, 0.75 + error])


def test_the_maximizer_elsewhere_is_drawn_by_probability():
    arms = torch.rand(30, 2)
    indices = torch.tensor([7, 7, 7, 3, 3, 9])
    axes = blank_figure(4, 3).subplots()
    distribution = MaximizerDistribution(arms, indices)
    plot_maximizer_distribution(axes, distribution, max_arms=2)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["7", "3"]
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, [1 / 2, 1 / 3])


def test_inducing_points_are_drawn_where_they_were():
    axes = blank_figure(4, 3).subplots()
    drawn = plot_inducing_points(axes, [5, 9], [np.array([0.5]), np.array([0.2, 0.5])])
    assert drawn is axes
    (marks,) = axes.lines
    np.testing.assert_array_equal(marks.get_data(), [[5, 9, 9], [0.5, 0.2, 0.5]])
    with pytest.raises(ValueError, match="zip"):
        plot_inducing_points(axes, [5], [])


@pytest.mark.parametrize(("maximize", "best"), [(True, [3, 4, 4]), (False, [1, 1, 0])])
def test_progress_is_the_best_so_far_and_the_mean_of_each_round(maximize, best):
    rounds = [np.array([1.0, 3.0]), np.array([2.0, 4.0, 3.0]), np.array([0.0])]
    axes = plot_progress(blank_figure(4, 3).subplots(), rounds, maximize=maximize)
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(
        lines["single measurements"].get_data(),
        [[1, 1, 2, 2, 2, 3], [1, 3, 2, 4, 3, 0]],
    )
    np.testing.assert_array_equal(lines["best so far"].get_data(), [[1, 2, 3], best])
    np.testing.assert_array_equal(
        lines["mean of the round"].get_data(), [[1, 2, 3], [2, 3, 0]]
    )
    # Told apart without colours.
    assert len({line.get_marker() for line in axes.lines}) == 3


def test_predictions_stand_over_measurements_with_their_intervals():
    measured, mean = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 5.0])
    half_width = np.array([1.0, 0.5, 1.5])
    axes = plot_predicted(blank_figure(4, 3).subplots(), measured, mean, half_width)
    (bars,) = axes.collections
    low, high = mean - half_width, mean + half_width
    ends = [np.column_stack([measured, end]) for end in (low, high)]
    np.testing.assert_array_equal(bars.get_segments(), np.stack(ends, axis=1))
    inside, outside, diagonal = axes.lines
    np.testing.assert_array_equal(inside.get_data(), [[1, 2], [1.5, 2]])
    assert inside.get_label() == "inside its interval (2)"
    np.testing.assert_array_equal(outside.get_data(), [[3], [5]])
    assert outside.get_label() == "outside its interval (1)"
    assert inside.get_marker() != outside.get_marker()
    np.testing.assert_array_equal(diagonal.get_data(), [[1, 3], [1, 3]])


def test_pictures_of_many_marks_are_not_drawn_one_by_one():
    many = np.linspace(0.0, 1.0, 1001)
    axes = plot_predicted(blank_figure(4, 3).subplots(), many, many, many)
    assert axes.collections[0].get_rasterized()
    axes = plot_predicted(blank_figure(4, 3).subplots(), many[1:], many[1:], many[1:])
    assert not axes.collections[0].get_rasterized()
