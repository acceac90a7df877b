"""Objectives, thresholds and constraints of the node's route."""

import math

import numpy as np
import pytest
import torch
from ax.analysis.plotly.cross_validation import CrossValidationPlot
from ax.core.objective import MultiObjective, Objective
from ax.core.optimization_config import MultiObjectiveOptimizationConfig
from ax.core.outcome_constraint import ObjectiveThreshold
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb import AtLeast, AtMost, Maximize, Minimize, OutcomesBandit
from botorch_bkb.integrations.ax import ArmFile, BanditNode, find_bandit_node
from tests.integrations.ax_clients import (
    grid_node,
    new_client,
    OF_AX,
    reload,
    rows,
    told,
)


pytestmark = OF_AX

ARMS = np.random.default_rng(0).uniform(size=(60, 2))
FRONT = {"outcome_constraints": ["cost <= 1.5", "gain >= -0.5", "-purity <= -0.2"]}
CASES = [
    (
        {"objective": "gain, -cost", "goal": FRONT},
        {"cost": Minimize(), "gain": Maximize(), "purity": AtLeast(0.2)},
        {"cost": 1.5, "gain": -0.5},
    ),
    (
        {
            "objective": "-2 * cost",
            "goal": {"outcome_constraints": ["2 * gain >= 1", "gain <= 0.9"]},
        },
        {"cost": Minimize(), "gain": [AtLeast(0.5), AtMost(0.9)]},
        None,
    ),
]


def results_of(arm):
    first, second = ARMS[arm].tolist()
    gain = math.sin(4 * first) * second
    return {"gain": gain, "cost": first + second, "purity": 1 - first * second}


@pytest.mark.parametrize(("options", "outcomes", "reference"), CASES)
def test_trials_are_those_of_the_bandit_outside(options, outcomes, reference, tmp_path):
    """Results of one metric at first, a failure, known noise, and a reload."""
    np.save(tmp_path / "arms.npy", ARMS)
    node = BanditNode(ArmFile(tmp_path / "arms.npy"), seed=3)
    client = new_client(node, [rows(len(ARMS))], **options)
    alone = OutcomesBandit(
        torch.as_tensor(ARMS), outcomes, reference_point=reference, seed=3
    )
    late = []
    for step in range(5):
        asked = []
        for number, parameters in client.get_next_trials(max_trials=3).items():
            (arm,) = alone.ask().tolist()
            assert parameters == {"arm": arm}
            asked.append((number, arm))
        news = [(*late.pop(), ["gain"])] if late else []
        (first, arm), (second, other), (third, failed) = asked
        client.complete_trial(first, {"cost": (results_of(arm)["cost"], 0.1)})
        news.append((first, arm, ["cost"]))
        if step < 3:
            client.complete_trial(second, results_of(other))
            news.append((second, other, [*outcomes]))
        client.mark_trial_failed(third)
        alone.fail([failed], [third])
        late.append((first, arm))
        for number, arm, metrics in news:
            found = {metric: results_of(arm)[metric] for metric in metrics}
            noise = {"cost": 0.1**2} if metrics == ["cost"] else None
            if metrics == ["gain"]:
                client.attach_data(number, found)
            found = {metric: [value] for metric, value in found.items()}
            alone.tell([arm], found, [number], noise_variance=noise)
        if step == 2:
            client = reload(client, tmp_path)
            node = find_bandit_node(client)
    bandit = node.update()
    assert bandit.pending == alone.pending
    assert told(bandit.outcomes["cost"], "noise").count(0.1**2) == 5
    expected = alone.predictions([4, 7])
    points = client.predict([{"arm": 4}, {"arm": 7}])
    for metric in outcomes:
        found = [point[metric] for point in points]
        columns = expected[f"{metric}_mean"], expected[f"{metric}_std"]
        np.testing.assert_allclose(found, torch.stack(columns, dim=-1), rtol=1e-6)
    cards = client.compute_analyses([CrossValidationPlot()], display=False)
    titles = str([card.title for card in cards[0].children])
    assert all(f"Cross Validation for {metric}" in titles for metric in outcomes)
    if reference is None:
        best = alone.best_arm()
        client.get_next_trials(1)
        for known in (node.best_parameterization(), client.get_best_parameterization()):
            assert known[0] == {"arm": best.arm}
            assert known[1].keys() == outcomes.keys()
    else:
        assert torch.equal(bandit.pareto_front(), alone.pareto_front())
        with pytest.raises(UnsupportedError, match=r"Use `pareto_front\(\)`"):
            node.best_parameterization()


def test_a_metric_that_is_missing_stays_pending_and_a_corrected_one_is_replaced():
    client = new_client(
        grid_node("GPBandit"),
        objective="gain",
        goal={"outcome_constraints": ["cost <= 70"]},
    )
    node = find_bandit_node(client)
    ((number, parameters),) = client.get_next_trials(1).items()
    client.complete_trial(number, {"gain": 0.0, "cost": parameters["T"]})
    client.complete_trial(*client.get_next_trials(1), {"gain": -5.0})
    bandit = node.update()
    assert list(bandit.pending) == [1]
    client.attach_data(1, {"gain": -4.0})
    client.attach_data(0, {"cost": (3.0, 0.5)})
    node.update()
    assert told(bandit.outcomes["gain"])[-1] == -4.0
    assert told(bandit.outcomes["cost"]) == [3.0]
    assert told(bandit.outcomes["cost"], "noise") == [0.25]
    client.attach_data(1, {"cost": 2.0})
    assert not node.update().pending
    client.configure_optimization("gain", outcome_constraints=["cost <= 60"])
    said = r"objective of the first choice, AtMost\(limit=70.0\) for cost, gain, but"
    with pytest.raises(UnsupportedError, match=said):
        client.get_next_trials(1)


def test_the_best_arm_needs_a_result_of_each_metric():
    goal = {"outcome_constraints": ["cost <= 70"]}
    client = new_client(grid_node("GPBandit"), objective="gain", goal=goal)
    client.complete_trial(*client.get_next_trials(1), {"gain": -5.0})
    client.get_next_trials(1)
    node = find_bandit_node(client)
    with pytest.raises(UnsupportedError, match="with a result of each metric"):
        node.best_parameterization()
    client.attach_data(0, {"cost": 50.0})
    assert node.best_parameterization()[1].keys() == {"cost", "gain"}


@pytest.mark.parametrize(
    ("objective", "constraints", "match"),
    [
        ("y + z", [], "'y . z', which is not linear, or is a sum. Complete trials"),
        ("y, x + z", [], "'y, x . z', which is not linear, or is a sum"),
        ("y, x**2", [], r"'y, x\*\*2', which is not linear"),
        ("y", ["z <= 0.9 * baseline"], "but got 'z <= 0.9 . baseline'. Write a number"),
        ("y", ["x + z <= 1"], "but got 'x . z <= 1'.*the value of a sum, as a metric"),
        ("a, b, c, d, e", [], "Expected one to 4 outcomes to be maximized"),
    ],
)
def test_what_a_bandit_does_not_support_is_refused(objective, constraints, match):
    goal = {"outcome_constraints": constraints}
    client = new_client(grid_node("GPBandit"), objective=objective, goal=goal)
    with pytest.raises((UnsupportedError, InputDataError), match=match):
        client.get_next_trials(1)
    assert not client._experiment.trials


def test_a_relative_threshold_is_refused_until_it_is_absolute():
    client = new_client(grid_node("GPBandit"), objective="y, z")
    experiment = client._experiment
    objectives = [Objective(metric=experiment.metrics[name]) for name in "yz"]
    for relative in (True, False):
        thresholds = [
            ObjectiveThreshold(
                metric=experiment.metrics["y"], bound=1.0, relative=relative
            )
        ]
        experiment.optimization_config = MultiObjectiveOptimizationConfig(
            MultiObjective(objectives), objective_thresholds=thresholds
        )
        if relative:
            with pytest.raises(UnsupportedError, match="with `relative=False`"):
                client.get_next_trials(1)
    client.get_next_trials(1)
    assert find_bandit_node(client).bandit.reference_point == {"y": 1.0}


def test_a_factory_of_one_objective_is_refused_until_it_is_left_out():
    options = {"objective": "y, z", "goal": None}
    said = "one objective for the bandits of 'BKB'.*Leave out `factory`"
    with pytest.raises(UnsupportedError, match=said):
        new_client(grid_node("BKB"), **options).get_next_trials(1)
    assert new_client(grid_node("GPBandit"), **options).get_next_trials(1)
