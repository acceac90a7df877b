"""Trials and results of the node's route: pending pulls, storage, times."""

import math
import random
import runpy
import subprocess
import sys
import warnings
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
import torch
from ax.adapter.registry import Generators
from ax.analysis.healthcheck.predictable_metrics import PredictableMetricsAnalysis
from ax.analysis.overview import OverviewAnalysis
from ax.analysis.plotly.cross_validation import CrossValidationPlot
from ax.analysis.plotly.surface.slice import SlicePlot
from ax.api.client import Client
from ax.core.analysis_card import ErrorAnalysisCard
from ax.core.arm import Arm
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from typing_extensions import override

from botorch_bkb.integrations.ax import ArmFile, BanditNode, find_bandit_node
from botorch_bkb.integrations.ax.node import _FACTORIES as FACTORIES
from tests.integrations.ax_clients import (
    choices,
    database,
    file_node,
    grid_node,
    make,
    new_client,
    OF_AX,
    play,
    reload,
    rows,
    three_temperatures,
    told,
)


pytestmark = OF_AX


@pytest.fixture
def arm_file(tmp_path):
    path = tmp_path / "arms.npy"
    np.save(path, np.random.default_rng(0).uniform(size=(300, 2)))
    return path


@pytest.mark.parametrize("name", ["BBKB", "drifting"])
def test_thirty_trials_are_those_of_the_bandit_outside(name, arm_file):
    """Eight pending, results in any order, 10 % failed, 10 % abandoned."""
    arms = np.load(arm_file)
    node = BanditNode(ArmFile(arm_file), factory=name, seed=3)
    client = new_client(node, [rows(300)])
    generator = torch.Generator().manual_seed(3)
    alone = make(name, torch.as_tensor(arms), True, generator)
    rng, out, num_trials = random.Random(0), {}, 0
    completed, news, abandoned = Counter(), [], []
    while num_trials < 30:
        # What the node does at its next call: results by number, then releases.
        # The node's trials are all there are: their numbers are the pulls'.
        for pull, arm, value in sorted(item for item in news if item[2] is not None):
            alone.tell([arm], [value], pull_ids=[pull])
        for pull, arm, value in news:
            if value is None:
                alone.fail([arm], pull_ids=[pull])
        alone.retire_arms(abandoned)
        news, abandoned = [], []
        new = client.get_next_trials(max_trials=8 - len(out))
        for number, parameters in new.items():
            (expected,) = alone.ask(1).tolist()
            assert parameters == {"arm": expected}
            out[number] = expected
        num_trials += len(new)
        assert Counter(node.bandit.pending.values()) == Counter(out.values())
        for number in rng.sample(sorted(out), 3):
            arm, chance, value = out.pop(number), rng.random(), None
            if chance < 0.1:
                client.mark_trial_failed(number)
            elif chance < 0.2:
                client.mark_trial_abandoned(number)
                abandoned.append(arm)
            else:
                value = math.sin(5 * arms[arm].sum()) + 0.1 * rng.gauss(0, 1)
                client.complete_trial(number, raw_data={"y": value})
                completed[arm] += 1
            news.append((number, arm, value))
    bandit = node.update()
    assert bandit.num_pulls == completed.total()  # none lost, none twice
    assert {arm: int(bandit.counts[arm]) for arm in completed} == dict(completed)


def test_trials_of_others_count(tmp_path):
    """A Sobol node first, a trial attached by hand, and one that is pending."""
    sobol = GenerationNode(
        name="Sobol",
        generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})],
        transition_criteria=[
            MinTrials(threshold=3, transition_to="Bandit", use_all_trials_in_exp=True)
        ],
    )
    node = file_node(tmp_path)
    client = new_client([sobol, node], [rows()])
    play(client, 3)
    by_hand = client.attach_trial({"arm": 7}, arm_name="standard")
    client.get_next_trials(1)
    assert node.bandit.num_pulls == 3
    assert 7 in node.bandit.pending.values()
    client.complete_trial(by_hand, raw_data={"y": 2.0})
    assert node.update().counts[7] == 1
    assert node.best_parameterization()[3] == "standard"


def analyse(client, *analyses):
    """Return the tables of all cards by title; none is of an error."""
    todo = client.compute_analyses(analyses, display=False)
    tables = {}
    while todo:
        card = todo.pop()
        assert not isinstance(card, ErrorAnalysisCard)
        todo += getattr(card, "children", [])
        tables[card.title.split(" (")[0]] = getattr(card, "df", None)
    return tables


@pytest.mark.parametrize("num_trials", [0, 1, 5])
def test_ax_predicts_and_analyses_with_the_bandit(num_trials, tmp_path):
    """From the first trial on; also of a client that was loaded."""
    client = new_client(grid_node("GPBandit"))
    client.configure_tracking_metrics(["cost"])
    if num_trials:
        client.attach_trial({"T": 25.0, "solvent": "C"})  # which is not an arm
        client.attach_data(0, raw_data={"cost": 1.0})
    play(client, num_trials)
    for each in (client, reload(client, tmp_path)):
        node = find_bandit_node(each)
        points = [{"T": 20.0, "solvent": "A"}, {"T": 60.0, "solvent": "C"}]
        expected = node.predict(points)
        for found, one in zip(each.predict(points), expected, strict=True):
            assert found["y"] == pytest.approx(one["y"])
        plots = SlicePlot("T"), CrossValidationPlot()
        tables = analyse(each, OverviewAnalysis(), *plots)
        unready = "CrossValidationPlot -- Not Available Yet"
        assert (unready in tables) is (num_trials < 2)
        if num_trials:
            assert {"Observed Arm Effects on y", "Summary for e"} < tables.keys()
            trials = list(each._experiment.trials.values())[1:]
            expected = node.predict([trial.arm.parameters for trial in trials])
            found = tables["Modeled Arm Effects on y"][["y_mean", "y_sem"]].to_numpy()
            np.testing.assert_allclose(found[:-1], [one["y"] for one in expected])
            assert np.isnan(found[-1]).all()
            best = each.get_best_parameterization()[0]
            means = tables["y vs. T"].groupby("T")["y_mean"].first()
            expected = node.predict([{**best, "T": float(T)} for T in means.index])
            np.testing.assert_allclose(means, [one["y"][0] for one in expected])


def test_cross_validation_is_of_bandits_that_were_not_told_of_an_arm():
    node = grid_node("GPUCB")
    client = new_client(node)
    results = [(20.0, "A", 0.3), (60.0, "B", 0.9), (20.0, "A", 0.5), (80.0, "B", 0.7)]
    for T, solvent, value in results:
        number = client.attach_trial({"T": T, "solvent": solvent})
        client.complete_trial(number, raw_data={"y": value})
    bandit, values = node.update(), [value for *_, value in results]
    arms = [node.arms.index({"T": T, "solvent": solvent}) for T, solvent, _ in results]
    tables = analyse(client, CrossValidationPlot(), PredictableMetricsAnalysis())
    table = tables["Cross Validation for y"].set_index("observed")
    for arm, value in zip(arms, values, strict=True):
        alone = make("GPUCB", bandit.arms, True, torch.Generator())
        others = [place for place, other in enumerate(arms) if other != arm]
        alone.add_observations([arms[i] for i in others], [values[i] for i in others])
        mean, variance = alone.predict([arm])
        expected = mean.item(), 1.96 * variance.sqrt().item()
        found = table.loc[value, ["predicted", "predicted_95_ci"]].tolist()
        assert found == pytest.approx(expected, rel=1e-3)  # of 1.96
    assert "Predictable Metrics Warning" in tables
    drifting = new_client(grid_node("drifting"))
    play(drifting, 3)
    assert "-- Not Available Yet" in str(analyse(drifting, CrossValidationPlot()))


def test_a_client_of_a_database_goes_on(tmp_path):
    config = database(tmp_path)
    node = grid_node("GPBandit")
    client = new_client(node, storage=config)
    play(client, 3)
    analyse(client, OverviewAnalysis())
    loaded = Client.load_from_database("e", config)
    assert loaded.get_best_parameterization() == client.get_best_parameterization()
    assert loaded.get_next_trials(1) == {3: node.get_next_candidate([])}


def test_seconds_of_trials_have_the_type_that_a_database_gives_back():
    """Of several trials at once, all but the first were fitted in no time."""
    client = new_client()
    client.get_next_trials(max_trials=3)
    trials = client._experiment.trials.values()
    times = [trial.generator_run.fit_time for trial in trials]
    assert [type(time) for time in times] == [float] * 3


def test_a_setting_that_fails_is_not_the_next_trial_and_one_abandoned_never_is_again():
    node = grid_node("GPBandit")
    settings = [float(value) for value in range(9)]
    client = new_client(node, [choices("t", settings, is_ordered=True)])
    play(client, 3)
    failed = []
    for _ in range(4):
        ((number, parameters),) = client.get_next_trials(1).items()
        client.mark_trial_failed(number)
        failed.append(parameters)
    assert all(first != second for first, second in pairwise(failed))
    ((number, abandoned),) = client.get_next_trials(1).items()
    client.mark_trial_abandoned(number)
    assert abandoned not in play(client, 4)
    assert node.update().is_retired[node.arms.index(abandoned)]


@pytest.mark.parametrize("goal", [{}, {"outcome_constraints": ["cost <= 9"]}])
def test_the_best_of_abandoned_settings_is_the_best_measured_one(goal):
    settings = [float(value) for value in range(9)]
    node = grid_node("GPBandit")
    client = new_client(node, [choices("t", settings, is_ordered=True)], goal=goal)
    told = {}
    for _ in range(3):
        ((number, parameters),) = client.get_next_trials(1).items()
        told[number] = parameters
        value = parameters["t"]
        client.complete_trial(number, raw_data={"y": value, "cost": 0.1 * value})
    for parameters in told.values():
        client.mark_trial_abandoned(client.attach_trial(parameters))
    client.get_next_trials(1)
    (best, _, number, _) = client.get_best_parameterization()
    assert told[number] == best
    assert best["t"] == max(each["t"] for each in told.values())


# Results ------------------------------------------------------------------------------


def test_a_result_is_of_the_pull_that_its_trial_asked_for(tmp_path):
    """Trials of one arm, the last completed first: also after a reload."""
    client = new_client(grid_node("drifting"), three_temperatures())
    for _ in range(3):  # of times 1, 2 and 3
        client.get_next_trials(1, fixed_parameters={"T": 2.0})
    for each in (client, reload(client, tmp_path)):
        each.complete_trial(2, raw_data={"y": 0.5})
        node = find_bandit_node(each)
        assert told(node.update(), "times") == [3.0]
        each.complete_trial(0, raw_data={"y": 0.1})
        each.mark_trial_failed(1)
        assert told(node.update(), "times") == [3.0, 1.0]
        assert not node.bandit.pending


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_a_result_that_no_bandit_can_use_blocks_nothing(value):
    client = new_client()
    node = find_bandit_node(client)
    (number,) = client.get_next_trials(1)
    client.complete_trial(number, raw_data={"y": value})
    if not math.isnan(value):
        with pytest.warns(InputDataWarning, match=f"{number} stays pending"):
            node.update()
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputDataWarning)  # said once
        play(client, 2)
    assert node.update().num_pulls == 2
    assert len(node.bandit.pending) == 1
    client.attach_data(number, raw_data={"y": 0.3})  # which replaces it
    assert node.update().num_pulls == 3


def test_a_trial_off_the_grid_blocks_nothing():
    client = new_client()
    node = find_bandit_node(client)
    number = client.attach_trial({"T": 25.0, "solvent": "C"})
    client.complete_trial(number, raw_data={"y": (0.4, 0.1)})
    with pytest.warns(
        InputDataWarning,
        match=rf"Trial {number} is not one of the arms.*'T' among 20.*got 25",
    ):
        client.get_next_trials(1)
    play(client, 2)
    assert node.update().num_pulls == 2


def test_a_trial_that_stopped_early_is_named():
    client = new_client()
    node = find_bandit_node(client)
    (number,) = client.get_next_trials(1)
    client.attach_data(number, raw_data={"y": 0.1}, progression=1)
    client.mark_trial_early_stopped(number)
    with pytest.warns(
        InputDataWarning, match=f"Trial {number} was stopped early: its value 0.1"
    ):
        node.update()
    assert node.bandit.num_pulls == 0
    assert not node.bandit.pending


def test_a_result_that_is_corrected_replaces_the_one_before(tmp_path):
    """As if it had been told right at once, in the same pull; after a reload too."""
    client = new_client(grid_node("drifting"))
    play(client, 3)
    find_bandit_node(client).update()
    client.attach_data(1, raw_data={"y": 0.75})
    bandit = find_bandit_node(client).update()
    assert not bandit.pending
    assert told(bandit)[-1] == 0.75
    assert told(bandit, "times") == [1.0, 3.0, 2.0]
    client = reload(client, tmp_path)
    client.attach_data(0, raw_data={"y": 0.25})
    bandit = find_bandit_node(client).update()
    assert told(bandit)[-1] == 0.25
    assert told(bandit, "times") == [3.0, 2.0, 1.0]
    client.attach_data(0, raw_data={"y": (0.5, 0.1)})
    with pytest.raises(UnsupportedError, match=r"trial 0 has \(0.5, 0.1\)"):
        client.get_next_trials(1)
    assert told(bandit)[-1] == 0.25  # nothing has changed
    client.attach_data(0, raw_data={"y": 0.5})  # as the error says
    assert told(find_bandit_node(client).update())[-1] == 0.5
    for value in (5.1e-9, 5.6e-9):  # in a large unit
        client.attach_data(0, raw_data={"y": value})
        assert told(find_bandit_node(client).update())[-1] == value


def test_standard_errors_are_known_noise(tmp_path):
    client = new_client(grid_node("GPBandit"))
    results = [(0.5, 0.2), 0.75, (1.0, 0.0), (0.25, math.nan), (0.1, 0.3)]
    for result in results:
        (number,) = client.get_next_trials(1)
        client.complete_trial(number, raw_data={"y": result})
    bandit = find_bandit_node(client).update()
    assert told(bandit, "noise") == [0.2**2, 0.0, 0.0, 0.0, 0.3**2]
    # Another standard error, or none any more, replaces the result.
    client.attach_data(0, raw_data={"y": (0.5, 0.1)})
    client.attach_data(4, raw_data={"y": 0.1})
    client = reload(client, tmp_path)
    bandit = find_bandit_node(client).update()
    assert told(bandit) == [0.75, 1.0, 0.25, 0.5, 0.1]
    assert told(bandit, "noise") == [0.0, 0.0, 0.0, 0.1**2, 0.0]
    ids = told(bandit, "ids")
    assert told(find_bandit_node(client).update(), "ids") == ids  # nothing is new
    client.get_next_trials(1)
    # What is no standard error: the trial waits for a usable result.
    for number, sem in ((1, 1e200), (2, -0.1)):
        client.attach_data(number, raw_data={"y": (0.7, sem)})
        said = f"Trial {number} stays pending.*noise_variance"
        with pytest.warns(InputDataWarning, match=said):
            bandit = find_bandit_node(client).update()
    assert told(bandit) == [0.25, 0.5, 0.1]


def test_the_last_step_of_the_objective_counts():
    client = new_client()
    number = client.attach_trial({"T": 60.0, "solvent": "C"})
    client.attach_data(number, raw_data={"cost": 7.0, "y": 0.5}, progression=2)
    client.attach_data(number, raw_data={"cost": 7.0, "y": 0.1}, progression=1)
    client.complete_trial(number)
    assert told(find_bandit_node(client).update()) == [0.5]


def test_the_best_arm_is_that_of_the_mean_not_of_one_lucky_value():
    client = new_client()
    node = find_bandit_node(client)
    lucky, good = {"T": 20.0, "solvent": "A"}, {"T": 60.0, "solvent": "C"}
    results = [(lucky, 1.0), *[(lucky, -1.0)] * 4, *[(good, 0.8)] * 4]
    for parameters, value in results:
        number = client.attach_trial(parameters=parameters)
        client.complete_trial(number, raw_data={"y": value})
    parameters, prediction, number, name = node.best_parameterization()
    assert parameters == good
    assert number == len(results) - 1
    assert name == client._experiment.trials[number].arm.name
    assert not node.update().pending  # again does no harm
    # The posterior of independent arms: 4 rewards of 0.8, kernel 1, noise 0.01.
    mean, variance = prediction["y"]
    assert mean == pytest.approx(4 * 0.8 / 4.01, abs=0.05)
    ((predicted, deviation),) = (point["y"] for point in node.predict([good]))
    assert (predicted, deviation**2) == pytest.approx((mean, variance))
    client.get_next_trials(1)
    assert client.get_best_parameterization()[0] == good  # was the lucky one


def test_what_there_is_not_yet_is_said():
    node = grid_node()
    with pytest.raises(UnsupportedError, match="part of an experiment"):
        node.update()
    client = new_client(node)
    with pytest.raises(UnsupportedError, match="with a result"):
        node.best_parameterization()
    with pytest.raises(InputDataError, match=r"one BanditNode 'other'.*\['Bandit'\]"):
        find_bandit_node(client, "other")
    client = Client()
    client.configure_experiment(name="e", parameters=three_temperatures())
    client.set_generation_strategy(GenerationStrategy(name="s", nodes=[grid_node()]))
    with pytest.raises(UnsupportedError, match=r"Use `client.configure_optimization`"):
        find_bandit_node(client).update()


@pytest.mark.parametrize("end", ["mark_running", "mark_abandoned", "mark_completed"])
def test_a_trial_of_several_arms_blocks_nothing(end):
    client = new_client(grid_node(), three_temperatures())
    batch = client._experiment.new_batch_trial()
    batch.add_arms_and_weights([Arm({"T": 1.0}), Arm({"T": 2.0})])
    batch.mark_running(no_runner_required=True)
    if end != "mark_running":
        getattr(batch, end)()
    with pytest.warns(InputDataWarning, match="Trial 0 is .* not used.* 0 has 2"):
        client.get_next_trials(1)
    play(client, 3)
    node = find_bandit_node(client)
    assert node.update().num_pulls == 3
    assert not node.bandit.is_retired.any()


# What must not change -----------------------------------------------------------------


def test_a_second_experiment_needs_a_second_node(tmp_path):
    node = grid_node()
    client = new_client(node, name="first")
    play(client, 3)
    for known in (node, find_bandit_node(reload(client, tmp_path))):
        with pytest.raises(UnsupportedError, match=r"'first'.* but got 'second'"):
            new_client(known, name="second").get_next_trials(1)
        same_name_and_second = new_client(known, name="first")
        same_name_and_second._experiment._time_created = client._experiment.time_created
        with pytest.raises(UnsupportedError, match="without its trials"):
            same_name_and_second.get_next_trials(1)
    with pytest.raises(UnsupportedError, match="Use a new one"):
        new_client(
            BanditNode(node.arms, factory="BKB"), three_temperatures()
        ).get_next_trials(1)


def test_what_changes_on_the_way_is_refused():
    client = new_client()
    play(client, 2)
    for objective in ("-y", "z"):
        client.configure_optimization(objective=objective)
        with pytest.raises(UnsupportedError, match=f"objective .* got {objective}"):
            client.get_next_trials(1)
    client.configure_optimization(objective="y")
    client._experiment.search_space.parameters["T"].add_values([130.0])
    with pytest.raises(UnsupportedError, match=r"parameters of the first choice.*130"):
        client.get_next_trials(1)


# Storage ------------------------------------------------------------------------------

LOAD = """
import logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from ax.api.client import Client
from botorch_bkb.integrations.ax import register_bandit

client = Client.load_from_json_file(sys.argv[1])
"""
CONTINUE = """
chosen = []
for _ in range(2):
    for number, parameters in client.get_next_trials(max_trials=2).items():
        chosen.append(parameters["arm"])
        client.complete_trial(number, raw_data={"y": parameters["arm"] / 300})
print(chosen)
"""


def test_another_process_goes_on_with_the_same_arms(tmp_path, arm_file, monkeypatch):
    monkeypatch.undo()  # the other process has full fits
    client = new_client(BanditNode(ArmFile(arm_file), seed=1), [rows(300)])
    for _ in range(3):
        out = client.get_next_trials(max_trials=2)
        number, parameters = out.popitem()
        client.complete_trial(number, raw_data={"y": parameters["arm"] / 300})
    path = tmp_path / "experiment.json"
    client.save_to_json_file(str(path))
    known = {"client": client}
    exec(CONTINUE, known)
    code = f"{LOAD}{CONTINUE}"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().split("\n")[-1] == str(known["chosen"])


def test_a_factory_that_this_process_does_not_know_is_named(tmp_path, monkeypatch):
    client = new_client()
    monkeypatch.delitem(FACTORIES, "BKB")
    with pytest.raises(InputDataError, match=r"'BKB' is not among.*`register_"):
        reload(client, tmp_path)


def test_without_ax_the_error_names_the_extra(monkeypatch):
    file = sys.modules["botorch_bkb.integrations.ax"].__file__
    monkeypatch.setitem(sys.modules, "ax", None)
    with pytest.raises(ImportError, match=r"botorch_bkb\[ax\]"):
        runpy.run_path(file)


# Times --------------------------------------------------------------------------------


def test_real_times_are_those_of_ax_or_of_the_trial(monkeypatch, tmp_path):
    """An hour is the unit; the lab writes down when one trial was measured."""
    node = grid_node("drifting", time_unit=3600.0)
    client = new_client(node, three_temperatures())
    start = client._experiment.time_created

    class Clock(datetime):
        hours = 0.0

        @classmethod
        @override
        def now(cls, tz=None):
            return start + timedelta(hours=cls.hours)

    monkeypatch.setattr("botorch_bkb.integrations.ax.node.datetime", Clock)
    trials = client._experiment.trials
    for Clock.hours in (2.0, 5.0):
        client.get_next_trials(1)
    for number, hours in ((1, 7.0), (0, 30.0)):
        client.complete_trial(number, raw_data={"y": 0.1})
        trials[number]._time_completed = start + timedelta(hours=hours)
    trials[0].update_run_metadata({"time": (start + timedelta(hours=3)).isoformat()})
    assert told(node.update(), "times") == pytest.approx([3.0, 7.0])
    (number,) = client.get_next_trials(1)
    client.complete_trial(number, raw_data={"y": 0.1})
    for wrong in ("yesterday", 3.5):
        trials[number].update_run_metadata({"time": wrong})
        with pytest.raises(InputDataError, match=f"of trial {number} to be a datetime"):
            node.update()
    trials[number].update_run_metadata({"time": start + timedelta(hours=4)})
    assert told(node.update(), "times") == pytest.approx([3.0, 7.0, 4.0])
    # An hour back in autumn; a long pause is no typing error.
    for Clock.hours in (6.0, 9.0, 9000.0):
        client.get_next_trials(1)
    pulls = node.bandit.state_dict()["observations"]["pending"].values()
    assert [pull[2] for pull in pulls] == pytest.approx([7.0, 9.0, 9000.0])
    assert find_bandit_node(reload(client, tmp_path)).time_unit == 3600.0


def test_times_are_of_bandits_that_drift():
    with pytest.raises(InputDataError, match=r"`time_unit` .* but got 0"):
        grid_node("drifting", time_unit=0)
    with pytest.raises(InputDataError, match="'BKB' makes a BKB"):
        new_client(grid_node("BKB", time_unit=60.0)).get_next_trials(1)
