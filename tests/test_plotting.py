import sys

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb import plotting
from botorch_bkb.generation import MaximizerDistribution


@pytest.fixture
def axes():
    return plotting.blank_figure(4, 3).subplots()


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
    figure = plotting.plot_repetitions({"BBKB": repetitions()}, title="Runs")
    regret_axes, seconds_axes, batch_axes = figure.axes
    uniform, regret = regret_axes.lines
    np.testing.assert_array_equal(uniform.get_data()[0], [1, 1, 2, 4, 5])
    np.testing.assert_array_equal(uniform.get_data()[1], [3, 3, 6, 12, 15])
    np.testing.assert_allclose(regret.get_data(), [[1, 2, 3, 4], [3.0, 6.0, 7.5, 9.0]])
    (seconds,), (sizes,) = seconds_axes.lines, batch_axes.lines
    np.testing.assert_allclose(seconds.get_ydata(), [1.0, 2.0, 4.0, 6.0])
    np.testing.assert_allclose(sizes.get_ydata(), [1.5, 3.0, 3.0, 3.0])
    assert (regret_axes.get_yscale(), seconds_axes.get_yscale()) == ("linear", "log")
    assert figure.get_suptitle() == "Runs"
    _, labels = regret_axes.get_legend_handles_labels()
    assert labels == ["uniform choice (expected)", "BBKB"]
    band = regret_axes.collections[0].get_paths()[0].vertices
    # At the last pull the regrets are 8 and 10.
    at_end = band[band[:, 0] == 4, 1]
    assert [at_end.min(), at_end.max()] == pytest.approx([9 - 2**0.5, 9 + 2**0.5])


def test_uniform_choice_is_drawn_from_the_first_pull_to_the_last_of_all_runs(axes):
    columns = ["num_pulls", "num_best_found", "uniform_num_best_found"]
    many = pd.DataFrame([[2, 0, 0.2], [3, 1, 0.6], [8, 2, 1.6]], columns=columns)
    runs = {"BKB": [many.iloc[[2]]], "BBKB": [many] * 2}
    assert plotting.plot_found(axes, runs) is axes
    expected = [[1, 2, 3, 8], [0.1, 0.2, 0.6, 1.6]]
    np.testing.assert_allclose(axes.lines[0].get_data(), expected)
    assert [line.get_ydata()[-1] for line in axes.lines[1:]] == [2, 2]


@pytest.mark.parametrize("runs", [{}, {"BBKB": []}, {"BBKB": [pd.DataFrame()]}])
@pytest.mark.parametrize("plot", [plotting.plot_regret, plotting.plot_batch_sizes])
def test_axes_without_a_run_are_refused(plot, runs, axes):
    with pytest.raises(ValueError, match="at least one table per bandit"):
        plot(axes, runs)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "botorch_bkb\[plot\]"'):
        plotting.blank_figure(4, 3)


def test_a_posterior_is_drawn_as_mean_band_function_and_inducing_points(axes):
    x, variance = np.linspace(0, 1, 5), np.array([0.0, 1.0, 4.0, 1.0, 0.0])
    options = {"function": x, "inducing": x[1:3], "num_deviations": 2.0}
    assert plotting.plot_posterior(axes, x, 2 * x, variance, **options) is axes
    mean, function, inducing = axes.lines
    np.testing.assert_array_equal(mean.get_data(), [x, 2 * x])
    np.testing.assert_array_equal(function.get_data(), [x, x])
    np.testing.assert_array_equal(inducing.get_xdata(), x[1:3])
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (1.0 - 2 * 2.0, 1.0 + 2 * 2.0)


def test_arm_values_are_drawn_with_pulls_and_inducing_arms(axes):
    arms = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    values = np.array([0.5, 2.0, 1.0])
    counts, inducing = np.array([0, 3, 1]), np.array([2])
    options = {"counts": counts, "inducing": inducing, "label": "mean"}
    assert plotting.plot_arm_values(axes, arms, values, **options) is axes
    points, pulls = axes.collections
    np.testing.assert_array_equal(points.get_array(), [0.5, 1.0, 2.0])
    np.testing.assert_array_equal(points.get_offsets(), arms[[0, 2, 1]])
    np.testing.assert_array_equal(pulls.get_offsets(), arms[1:])
    assert pulls.get_sizes()[0] == 3 * pulls.get_sizes()[1]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), arms[[2]])
    assert axes.figure.axes[1].get_ylabel() == "mean"


def test_the_maximizer_on_a_line_stands_at_its_arms(axes):
    arms = torch.tensor([[0.0], [2.0], [5.0]])
    distribution = MaximizerDistribution(arms, torch.tensor([2, 1, 2, 2]))
    assert plotting.plot_maximizer_distribution(axes, distribution) is axes
    bars, errors = axes.collections
    expected = [[[5, 0], [5, 0.75]], [[2, 0], [2, 0.25]]]
    np.testing.assert_allclose(bars.get_segments(), expected)
    error = np.sqrt(0.75 * 0.25 / 4)
    ends = errors.get_segments()[0][:, 1]
    np.testing.assert_allclose(ends, [0.75 - error, 0.75 + error])


def test_the_maximizer_elsewhere_is_drawn_by_probability(axes):
    indices = torch.tensor([7, 7, 7, 3, 3, 9])
    distribution = MaximizerDistribution(torch.rand(30, 2), indices)
    plotting.plot_maximizer_distribution(axes, distribution, max_arms=2)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["7", "3"]
    tops = [segment[1, 1] for segment in axes.collections[0].get_segments()]
    np.testing.assert_allclose(tops, [1 / 2, 1 / 3])


def test_inducing_points_are_drawn_where_they_were(axes):
    points = [np.array([0.5]), np.array([0.2, 0.5])]
    assert plotting.plot_inducing_points(axes, [5, 9], points) is axes
    expected = [[5, 9, 9], [0.5, 0.2, 0.5]]
    np.testing.assert_array_equal(axes.lines[0].get_data(), expected)
    with pytest.raises(ValueError, match="shape"):
        plotting.plot_inducing_points(axes, [5, 9, 11], points)


@pytest.mark.parametrize(("maximize", "best"), [(True, [3, 4, 4]), (False, [1, 1, 0])])
def test_progress_is_the_best_so_far_and_the_mean_of_each_round(axes, maximize, best):
    rounds = [np.array([1.0, 3.0]), np.array([2.0, 4.0, 3.0]), np.array([0.0])]
    assert plotting.plot_progress(axes, rounds, maximize=maximize) is axes
    single, best_so_far, mean = axes.lines
    places = [[1, 1, 2, 2, 2, 3], [1, 3, 2, 4, 3, 0]]
    np.testing.assert_array_equal(single.get_data(), places)
    np.testing.assert_array_equal(best_so_far.get_data(), [[1, 2, 3], best])
    np.testing.assert_array_equal(mean.get_data(), [[1, 2, 3], [2, 3, 0]])
    # Distinct without colours.
    assert len({line.get_marker() for line in axes.lines}) == 3
    plotting.plot_progress(axes, rounds, numbers=[2, 5, 6])
    assert [*axes.lines[-1].get_xdata()] == [2, 5, 6]


def test_progress_towards_a_target_within_limits(axes):
    rounds = [np.array([1.0, 9.0]), np.array([4.0, 7.0]), np.array([0.0])]
    plotting.plot_progress(axes, rounds, target=5.0, limits=[2.0, 8.0])
    _, best_so_far, _, target, *limits = axes.lines
    np.testing.assert_array_equal(best_so_far.get_ydata(), [1, 4, 4])
    assert [line.get_ydata()[0] for line in (target, *limits)] == [5, 2, 8]


def test_a_front_is_drawn_among_the_measured(axes):
    measured, front, batch = np.arange(8.0).reshape(4, 2), np.eye(2), np.ones((1, 2))
    names = "yield", "margin in $ per $"
    assert plotting.plot_front(axes, measured, front, batch, names) is axes
    for line, points in zip(axes.lines, (measured, front, batch), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), points)
    names = "yield", r"margin in \$ per \$"  # which is no formula
    assert (axes.get_xlabel(), axes.get_ylabel()) == names
    assert len({line.get_marker() for line in axes.lines}) == 3


def test_predictions_stand_over_measurements_with_their_intervals(axes):
    measured, mean = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 5.0])
    low, high = mean - np.array([1.0, 0.5, 1.5]), mean + np.array([0.2, 0.5, 9.0])
    assert plotting.plot_predicted(axes, measured, mean, low, high) is axes
    (bars,) = axes.collections
    ends = [np.column_stack([measured, end]) for end in (low, high)]
    np.testing.assert_array_equal(bars.get_segments(), np.stack(ends, axis=1))
    inside, outside, diagonal = axes.lines
    np.testing.assert_array_equal(inside.get_data(), [[1, 2], [1.5, 2]])
    assert inside.get_label() == "inside its interval (2)"
    np.testing.assert_array_equal(outside.get_data(), [[3], [5]])
    assert inside.get_marker() != outside.get_marker()
    np.testing.assert_array_equal(diagonal.get_data(), [[1, 3], [1, 3]])


def test_importance_is_drawn_as_bars_of_two_parts(axes):
    names = ["ligand", "a name of more than twenty letters"]
    shares = pd.DataFrame({"alone": [0.5, 0.2], "together": [0.1, 0.0]}, names)
    assert plotting.plot_importance(axes, shares) is axes
    alone, together = axes.containers
    assert [bar.get_width() for bar in alone] == [50, 20]
    ends = [bar.get_x() + bar.get_width() for bar in together]
    assert ends == pytest.approx([60, 20])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["ligand", "a name of more than…"]
    assert axes.yaxis_inverted()


@pytest.mark.parametrize("values", [[40.0, 60.0], ["XPhos", "$HBF_4$"]])
def test_an_effect_is_drawn_with_its_intervals(axes, values):
    moments = {"mean": [5.0, 7.0], "low": [4.0, 5.0], "high": [6.5, 9.0]}
    table = pd.DataFrame({"value": values, **moments})
    names = {"column": "x", "reward": "yield", "limits": (0, 10)}
    assert plotting.plot_effect(axes, table, **names) is axes
    is_word = isinstance(values[0], str)
    mean, places = axes.lines[0].get_data()[:: 1 if is_word else -1]
    np.testing.assert_array_equal(mean, [5, 7])
    np.testing.assert_array_equal(places, [0, 1] if is_word else values)
    ends = np.concatenate([path.vertices for path in axes.collections[0].get_paths()])
    assert {*moments["low"], *moments["high"]} <= {*ends[:, 0 if is_word else 1]}
    assert (axes.get_xlim() if is_word else axes.get_ylim()) == (0, 10)
    if is_word:
        assert axes.get_yticklabels()[1].get_text() == r"\$HBF_4\$"


def test_the_batch_is_drawn_over_two_columns(axes):
    tables = [
        pd.DataFrame({"heat": [40.0 + n], "base": [0.1 + n]}, index=[n])
        for n in range(3)
    ]
    words = {"heat": [], "base": ["K3PO4", "Et3N", "KOtBu"]}
    assert plotting.plot_places(axes, tables, words) is axes
    points = [(*line.get_xdata(), *line.get_ydata()) for line in axes.lines]
    assert points == [(40, 0.1), (41, 1.1), (42, 2.1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == words["base"]
    assert [line.get_label() for line in axes.lines][1:] == ["measured", "next batch"]
    turned = plotting.blank_figure(4, 3).subplots()
    plotting.plot_places(turned, tables, dict([*words.items()][::-1]))
    assert [label.get_text() for label in turned.get_xticklabels()] == words["base"]
