"""What users of `ax.Client` do: everything is honoured, or refused by name."""

import inspect
import itertools
import math
import warnings
from dataclasses import fields
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import RBFKernel
from typing_extensions import override

from botorch_bkb import BBKB, BKB, TVGPUCB
from botorch_bkb.optim import optimize_acqf_finite


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ax.api.client import Client
    from ax.api.configs import (
        ChoiceParameterConfig,
        DerivedParameterConfig,
        RangeParameterConfig,
    )
    from ax.generation_strategy.generation_strategy import GenerationStrategy

    from botorch_bkb.integrations.ax import (
        ArmFile,
        BanditNode,
        ChoiceGrid,
        find_bandit_node,
        modular_strategy,
        register_bandit,
        register_folder,
    )
    from botorch_bkb.integrations.ax.node import _FACTORIES as FACTORIES


pytestmark = pytest.mark.filterwarnings("ignore")  # Ax and what it imports warn a lot
TEMPERATURES = [20.0, 40.0, 60.0, 80.0, 110.0]
SOLVENTS = ["A", "B", "C", "D", "E"]


@register_bandit
def users_bkb(arms, maximize, generator):
    kernel = RBFKernel().double()
    kernel.lengthscale = 20.0
    return BKB(arms, kernel, 0.01, maximize=maximize, generator=generator)


@register_bandit
def stored(arms, maximize, generator):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.8
    return BBKB(arms, kernel, 0.01, maximize=maximize, generator=generator)


@register_bandit
def users_drifting(arms, maximize, generator):
    kernel = RBFKernel().double()
    return TVGPUCB(
        arms, kernel, 0.01, forgetting_rate=0.01, maximize=maximize, generator=generator
    )


def choices(name, values, kind="float", **options):
    return ChoiceParameterConfig(
        name=name, values=values, parameter_type=kind, **options
    )


def two_parameters():
    return [
        choices("T", TEMPERATURES, is_ordered=True),
        choices("solvent", SOLVENTS, "str", is_ordered=False),
    ]


def new_client(
    node=None, parameters=None, objective="y", goal=None, name="e", **options
):
    """Return a client, and the node or strategy that drives it."""
    client = Client(random_seed=0)
    if parameters is None:
        parameters = two_parameters()
    client.configure_experiment(parameters=parameters, name=name, **options)
    client.configure_optimization(objective=objective, **(goal or {}))
    if node is None:
        node = BanditNode(ChoiceGrid(), factory="users_bkb")
    if isinstance(node, BanditNode):
        node = GenerationStrategy(name="s", nodes=[node])
    client.set_generation_strategy(node)
    return client


def reward(parameters):
    return -(((parameters["T"] - 60) / 50) ** 2) + 0.5 * (parameters["solvent"] == "C")


def play(client, num_trials, **options):
    """Run trials one by one; return their parameters."""
    chosen = []
    for _ in range(num_trials):
        for number, parameters in client.get_next_trials(
            max_trials=1, **options
        ).items():
            client.complete_trial(number, raw_data={"y": reward(parameters)})
            chosen.append(parameters)
    return chosen


# What limits the arms -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixed", "constraints"),
    [
        ({"solvent": "C"}, None),
        (None, ["T <= 60"]),
        ({"solvent": "B"}, ["T >= 40", "2*T <= 160"]),
    ],
)
def test_fixed_parameters_and_constraints_are_a_mask_over_the_arms(fixed, constraints):
    """As the bandit outside, asked with the arms that plain Python lets through."""
    node = BanditNode(ChoiceGrid(), factory="users_bkb", seed=3)
    client = new_client(node, parameter_constraints=constraints)
    chosen = play(client, 6, fixed_parameters=fixed)
    everything = list(itertools.product(TEMPERATURES, SOLVENTS))
    allowed = [
        (fixed is None or solvent == fixed["solvent"])
        and (constraints is None or t <= 60 or "T >= 40" in constraints)
        and (constraints is None or t >= 40 or "T <= 60" in constraints)
        and (constraints is None or t <= 80)
        for t, solvent in everything
    ]
    arms = torch.tensor(
        [[t, *(float(s == solvent) for solvent in SOLVENTS)] for t, s in everything],
        dtype=torch.float64,
    )
    alone = users_bkb(arms, True, torch.Generator().manual_seed(3))
    for parameters in chosen:
        index = int(alone.ask(1, available=torch.tensor(allowed)))
        assert (parameters["T"], parameters["solvent"]) == everything[index]
        alone.tell([index], [reward(parameters)])


def test_constraints_of_integers_and_equality(tmp_path):
    np.save(tmp_path / "arms.npy", np.linspace(0, 1, 20)[:, None])
    arm = RangeParameterConfig(name="arm", bounds=(0, 19), parameter_type="int")
    node = BanditNode(ArmFile(tmp_path / "arms.npy"), factory="users_bkb")
    client = new_client(node, [arm], parameter_constraints=["arm >= 7", "arm <= 8"])
    assert {
        client.get_next_trials(max_trials=1).popitem()[1]["arm"] for _ in range(6)
    } <= {7, 8}


def test_limits_that_leave_nothing_are_named():
    client = new_client(parameter_constraints=["T <= 60"])
    with pytest.raises(InputDataError, match=r"'solvent' among A.*E, but got 'Z'"):
        client.get_next_trials(1, fixed_parameters={"solvent": "Z"})
    with pytest.raises(InputDataError, match=r"fixed_parameters.* but got 'pH'"):
        client.get_next_trials(1, fixed_parameters={"pH": 7.0})
    with pytest.raises(InputDataError, match=r"'T': 80.0.* there is none"):
        client.get_next_trials(1, fixed_parameters={"T": 80.0})
    assert client.get_next_trials(1)  # and goes on


# Trials and results -------------------------------------------------------------------


def test_a_second_experiment_needs_a_second_node(tmp_path):
    node = BanditNode(ChoiceGrid(), factory="users_bkb")
    client = new_client(node, name="first")
    play(client, 2)
    client.save_to_json_file(str(tmp_path / "e.json"))
    again = find_bandit_node(Client.load_from_json_file(str(tmp_path / "e.json")))
    for known in (node, again):
        with pytest.raises(UnsupportedError, match=r"'first'.* but got 'second'"):
            new_client(known, name="second").get_next_trials(1)
    grid = ChoiceGrid()
    play(new_client(BanditNode(grid, factory="users_bkb")), 1)
    other = [choices("pH", [1.0, 2.0, 3.0], is_ordered=True)]
    with pytest.raises(UnsupportedError, match="Use a new one"):
        new_client(BanditNode(grid, factory="users_bkb"), other).get_next_trials(1)


@pytest.mark.parametrize("objective", ["-y", "z"])
def test_an_objective_that_changes_is_refused(objective):
    client = new_client()
    play(client, 2)
    client.configure_optimization(objective=objective)
    with pytest.raises(UnsupportedError, match=f"objective .*, y, but got {objective}"):
        client.get_next_trials(1)


def test_choices_that_change_are_refused():
    client = new_client()
    play(client, 2)
    client._experiment.search_space.parameters["T"].add_values([130.0])
    with pytest.raises(UnsupportedError, match=r"parameters that the bandit .*130"):
        client.get_next_trials(1)


def test_a_result_is_of_the_pull_that_its_trial_asked_for(tmp_path):
    """Two trials of one arm, the later completed first: also after a reload."""
    node = BanditNode(ChoiceGrid(), factory="users_drifting")
    client = new_client(node, [choices("T", [1.0, 2.0, 3.0], is_ordered=True)])
    for _ in range(3):  # of times 1, 2 and 3
        client.get_next_trials(1, fixed_parameters={"T": 2.0})
    client.save_to_json_file(str(tmp_path / "e.json"))
    for each in (client, Client.load_from_json_file(str(tmp_path / "e.json"))):
        each.complete_trial(2, raw_data={"y": 0.5})
        node = find_bandit_node(each)
        assert node.update().state_dict()["observations"]["told_times"] == [3.0]
        each.complete_trial(0, raw_data={"y": 0.1})
        each.mark_trial_failed(1)
        bandit = node.update()
        assert bandit.state_dict()["observations"]["told_times"] == [3.0, 1.0]
        assert not bandit.pending


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e200])
def test_a_result_that_no_bandit_can_use_blocks_nothing(value):
    client = new_client()
    node = find_bandit_node(client)
    (number,) = client.get_next_trials(1)
    client.complete_trial(number, raw_data={"y": value})
    with pytest.warns(InputDataWarning, match=f"Trial {number} counts as pending"):
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
    play(client, 2)
    number = client.attach_trial(parameters={"T": 25.0, "solvent": "C"})
    client.complete_trial(number, raw_data={"y": 0.4})
    with pytest.warns(
        InputDataWarning, match=rf"Trial {number} is none.*'T' among 20.*got 25"
    ):
        node.update()
    play(client, 2)
    assert node.update().num_pulls == 4


def test_a_trial_that_stopped_early_is_named():
    client = new_client()
    node = find_bandit_node(client)
    (number,) = client.get_next_trials(1)
    client.attach_data(number, raw_data={"y": 0.1}, progression=1)
    client.mark_trial_early_stopped(number)
    with pytest.warns(InputDataWarning, match=f"Trial {number} was stopped early: 0.1"):
        node.update()
    assert node.bandit.num_pulls == 0
    assert not node.bandit.pending


def test_a_result_that_is_corrected_replaces_the_one_before(tmp_path):
    """As if it had been told right at once, in the same pull; after a reload too."""
    client = new_client(BanditNode(ChoiceGrid(), factory="users_drifting"))
    play(client, 3)
    find_bandit_node(client).update()
    client.attach_data(1, raw_data={"y": 0.75})
    bandit = find_bandit_node(client).update()
    assert bandit.num_pulls == 3
    assert not bandit.pending
    state = bandit.state_dict()
    assert sorted(state["observations"]["told_times"]) == [1.0, 2.0, 3.0]
    assert state["observations"]["told_rewards"][-1] == 0.75
    assert state["observations"]["told_times"][-1] == 2.0
    client.save_to_json_file(str(tmp_path / "e.json"))
    client = Client.load_from_json_file(str(tmp_path / "e.json"))
    client.attach_data(0, raw_data={"y": 0.25})
    state = find_bandit_node(client).update().state_dict()
    assert state["observations"]["told_rewards"][-1] == 0.25
    assert state["observations"]["told_times"][-1] == 1.0
    client.attach_data(0, raw_data={"y": (0.5, 0.1)})
    with pytest.raises(UnsupportedError, match="without a standard error"):
        client.get_next_trials(1)
    assert find_bandit_node(client).bandit.num_pulls == 3  # nothing has changed


def test_a_known_standard_error_is_refused_until_it_is_gone():
    client = new_client()
    node = find_bandit_node(client)
    (number,) = client.get_next_trials(1)
    client.complete_trial(number, raw_data={"y": (0.25, 0.1)})
    with pytest.raises(UnsupportedError, match=r"trial 0 has \(0.25, 0.1\)"):
        client.get_next_trials(1)
    client.attach_data(number, raw_data={"y": 0.25})  # as the error says
    play(client, 1)
    assert node.update().num_pulls == 2


# The end of a campaign ----------------------------------------------------------------


def test_the_last_results_count():
    client = new_client()
    node = find_bandit_node(client)
    play(client, 5)
    assert node.bandit.num_pulls == 4
    assert node.update().num_pulls == 5
    assert not node.bandit.pending
    assert node.update().num_pulls == 5  # again does no harm


def test_the_best_arm_is_that_of_the_mean_not_of_one_lucky_value():
    client = new_client()
    node = find_bandit_node(client)
    lucky = {"T": 20.0, "solvent": "A"}
    good = {"T": 60.0, "solvent": "C"}
    results = [(lucky, 1.0), *[(lucky, -1.0)] * 4, *[(good, 0.8)] * 4]
    for parameters, value in results:
        number = client.attach_trial(parameters=parameters)
        client.complete_trial(number, raw_data={"y": value})
    parameters, prediction, number, name = node.best_parameterization()
    assert parameters == good
    assert number == len(results) - 1
    assert name == client._experiment.trials[number].arm.name
    # The posterior of independent arms: 4 rewards of 0.8, kernel 1, noise 0.01.
    mean, variance = prediction["y"]
    assert mean == pytest.approx(4 * 0.8 / 4.01, abs=0.05)
    ((predicted, deviation),) = (point["y"] for point in node.predict([good]))
    assert (predicted, deviation**2) == pytest.approx((mean, variance))
    client.get_next_trials(1)
    assert client.get_best_parameterization()[0] == good  # was the lucky one


def test_what_there_is_not_yet_is_said():
    node = BanditNode(ChoiceGrid(), factory="users_bkb")
    with pytest.raises(UnsupportedError, match="part of an experiment"):
        node.update()
    client = new_client(node)
    with pytest.raises(UnsupportedError, match="Expected a result"):
        node.best_parameterization()
    with pytest.raises(InputDataError, match=r"BanditNode 'other'.*\['Bandit'\]"):
        find_bandit_node(client, "other")
    with pytest.raises(InputDataError, match=r"one BanditNode.*\[\]"):
        find_bandit_node(Client())


# Storage ------------------------------------------------------------------------------


def arm_parameter(num_arms):
    return [
        RangeParameterConfig(name="arm", bounds=(0, num_arms - 1), parameter_type="int")
    ]


def test_a_relative_path_outlives_a_change_of_folder_and_a_move(tmp_path, monkeypatch):
    for name in ("here", "there", "moved"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.save("my_arms.npy", np.linspace(0, 1, 20)[:, None])
    client = new_client(
        BanditNode(ArmFile("my_arms.npy"), factory="users_bkb"), arm_parameter(20)
    )
    client.get_next_trials(1)
    file = str(tmp_path / "e.json")
    client.save_to_json_file(file)
    monkeypatch.chdir(tmp_path / "there")
    assert Client.load_from_json_file(file).get_next_trials(1)
    (tmp_path / "here" / "my_arms.npy").rename(tmp_path / "moved" / "my_arms.npy")
    with pytest.raises(FileNotFoundError, match=r"my_arms.npy.*`register_folder`"):
        Client.load_from_json_file(file)
    register_folder(tmp_path / "moved")
    assert Client.load_from_json_file(file).get_next_trials(1)
    np.save(tmp_path / "moved" / "my_arms.npy", np.zeros((20, 1)))
    with pytest.raises(InputDataError, match="has changed"):
        Client.load_from_json_file(file)


def test_a_factory_that_this_process_does_not_know_is_named(tmp_path, monkeypatch):
    client = new_client()
    client.save_to_json_file(str(tmp_path / "e.json"))
    monkeypatch.delitem(FACTORIES, "users_bkb")
    with pytest.raises(InputDataError, match=r"'users_bkb' is not among.*`register_"):
        Client.load_from_json_file(str(tmp_path / "e.json"))


# Times --------------------------------------------------------------------------------


def test_real_times_are_those_of_ax_or_of_the_trial(monkeypatch):
    """An hour is the unit; the lab writes down when one trial was measured."""
    node = BanditNode(ChoiceGrid(), factory="users_drifting", time_unit=3600.0)
    client = new_client(node, [choices("T", [1.0, 2.0, 3.0], is_ordered=True)])
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
    assert node.update().state_dict()["observations"]["told_times"] == pytest.approx(
        [3.0, 7.0]
    )
    (number,) = client.get_next_trials(1)
    client.complete_trial(number, raw_data={"y": 0.1})
    for wrong in ("yesterday", 3.5):
        trials[number].update_run_metadata({"time": wrong})
        with pytest.raises(InputDataError, match=f"of trial {number} to be a datetime"):
            node.update()
    trials[number].update_run_metadata({"time": start + timedelta(hours=4)})
    assert node.update().state_dict()["observations"]["told_times"] == pytest.approx(
        [3.0, 7.0, 4.0]
    )
    Clock.hours = 6.0  # in autumn
    client.get_next_trials(1)
    Clock.hours = 9.0
    client.get_next_trials(1)
    pulls = node.bandit.state_dict()["observations"]["pending"].values()
    assert [pull[2] for pull in pulls] == pytest.approx([7.0, 9.0])


def test_a_long_pause_is_no_typing_error(monkeypatch):
    node = BanditNode(ChoiceGrid(), factory="users_drifting", time_unit=1.0)
    client = new_client(node, [choices("T", [1.0, 2.0, 3.0], is_ordered=True)])
    for _ in range(9):
        for number in client.get_next_trials(1):
            client.complete_trial(number, raw_data={"y": 0.0})
    node.update()
    started = client._experiment.time_created - timedelta(days=30)
    monkeypatch.setattr(node, "_created", started)
    assert client.get_next_trials(1)


def test_times_are_of_bandits_that_drift(tmp_path):
    with pytest.raises(InputDataError, match=r"`time_unit` .* but got 0"):
        BanditNode(ChoiceGrid(), factory="users_drifting", time_unit=0)
    node = BanditNode(ChoiceGrid(), factory="users_bkb", time_unit=60.0)
    with pytest.raises(InputDataError, match="'users_bkb' makes a BKB"):
        new_client(node).get_next_trials(1)
    node = BanditNode(ChoiceGrid(), factory="users_drifting", time_unit=60.0)
    client = new_client(node)
    client.get_next_trials(1)
    client.save_to_json_file(str(tmp_path / "e.json"))
    again = Client.load_from_json_file(str(tmp_path / "e.json"))
    assert find_bandit_node(again).time_unit == 60.0


# A table with names -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx"])
def test_a_pandas_table_whose_arms_have_names(tmp_path, suffix):
    table = pd.DataFrame(
        {
            "compound": ["007", "008", "abc"],
            "mass": [0.1, 0.2, 0.9],
            "charge": [1.0, -1.0, 2.0],
        }
    )
    path = tmp_path / f"arms{suffix}"
    write = {
        ".csv": table.to_csv,
        ".parquet": table.to_parquet,
        ".xlsx": table.to_excel,
    }
    write[suffix](path, index=False)
    arms = ArmFile(path, id="compound")
    assert arms.ids == ["007", "008", "abc"]
    node = BanditNode(arms, factory="users_bkb")
    client = new_client(node, arm_parameter(3))
    client.attach_trial(parameters={"arm": 3})
    with pytest.warns(InputDataWarning, match="Trial 0 is none.*'arm' among 0.*got 3"):
        client.get_next_trials(1)
    np.testing.assert_array_equal(node.bandit.arms, table[["mass", "charge"]])
    client.save_to_json_file(str(tmp_path / "e.json"))
    again = find_bandit_node(Client.load_from_json_file(str(tmp_path / "e.json")))
    assert again.arms.ids == arms.ids


def test_ids_that_are_none_are_named(tmp_path):
    table = pd.DataFrame({"id": [4, 9, 9], "a": [0.1, 0.2, 0.9], "n": [0, 1, 2]})
    table.to_csv(tmp_path / "arms.csv", index=False)
    named = tmp_path / "named.csv"
    table.assign(name=["x", "y", "z"]).to_csv(named, index=False)
    client = new_client(
        BanditNode(ArmFile(tmp_path / "arms.csv"), factory="users_bkb"),
        arm_parameter(3),
    )
    with pytest.warns(InputDataWarning) as caught:
        client.get_next_trials(1)
    text = " ".join(str(warning.message) for warning in caught)
    assert "'id' of" in text
    assert "'n' of" in text
    assert "'a' of" not in text
    with pytest.raises(
        InputDataError, match="the id '9' more than once, again in row 3"
    ):
        _ = ArmFile(tmp_path / "arms.csv", id="id").ids
    with pytest.raises(
        InputDataError, match=r"no column 'b'.*\['id', 'a', 'n'\].*`id`"
    ):
        _ = ArmFile(tmp_path / "arms.csv", id="b").ids
    with pytest.raises(
        InputDataError, match=r"numbers only, but column 'name' has 'x'"
    ):
        play(
            new_client(
                BanditNode(ArmFile(named), factory="users_bkb"), arm_parameter(3)
            ),
            1,
        )
    np.save(tmp_path / "arms.npy", np.zeros((3, 2)))
    with pytest.raises(InputDataError, match="is an array"):
        _ = ArmFile(tmp_path / "arms.npy", id="id").ids


# Order --------------------------------------------------------------------------------


def test_the_order_of_choices_counts():
    """Ordered text is a number; numbers without order have a column each."""
    parameters = [
        choices("a", [1, 5, 7], "int", is_ordered=False),
        choices("b", ["low", "mid", "high"], "str", is_ordered=True),
        choices("c", ["x", "y"], "str"),
        choices("d", [False, True], "bool"),
    ]
    node = BanditNode(ChoiceGrid(), factory="users_bkb")
    client = new_client(node, parameters)
    client.get_next_trials(1)
    arms = node.bandit.arms
    for index in range(3 * 3 * 2 * 2):
        p = node.arms.parameters(index)
        assert arms[index].tolist() == [
            *(float(p["a"] == value) for value in (1, 5, 7)),
            ["low", "mid", "high"].index(p["b"]),
            *(float(p["c"] == value) for value in ("x", "y")),
            float(p["d"]),
        ]
        assert node.arms.index(p) == index


# The modular route --------------------------------------------------------------------


def mixed():
    return [
        *two_parameters(),
        choices("level", ["low", "mid", "high"], "str", is_ordered=True),
        RangeParameterConfig(name="n", bounds=(1, 2), parameter_type="int"),
    ]


def test_the_modular_route_searches_all_mixed_choices(monkeypatch):
    """One column per solvent; all combinations, or those that are left."""
    seen = []

    def spy(acq_function, choices, **options):
        seen.append(choices)
        return optimize_acqf_finite(acq_function, choices, **options)

    monkeypatch.setattr("botorch_bkb.integrations.ax.modular.optimize_acqf_finite", spy)
    client = new_client(modular_strategy(num_initial=3, seed=0), mixed())
    play(client, 5)
    (chosen,) = play(client, 1, fixed_parameters={"solvent": "D", "level": "mid"})
    assert (chosen["solvent"], chosen["level"]) == ("D", "mid")
    one_hot = {s: [float(s == other) for other in SOLVENTS] for s in SOLVENTS}
    for points, solvents, levels in (
        (seen[0], SOLVENTS, (0.0, 1.0, 2.0)),
        (seen[-1], ["D"], (1.0,)),
    ):
        expected = {
            (t, *one_hot[solvent], level, n)
            for t in TEMPERATURES
            for solvent in solvents
            for level in levels
            for n in (1.0, 2.0)
        }
        assert len(points) == len(expected)
        assert set(map(tuple, points.tolist())) == expected
    (best,) = client.predict([chosen])
    assert set(best) == {"y"}


@pytest.mark.parametrize(
    ("more", "options", "match"),
    [
        ([], {"parameter_constraints": ["T <= 60"]}, "`parameter_constraints`"),
        ([], {"goal": {"outcome_constraints": ["z >= 1"]}}, "`outcome_constraints`"),
        ([], {"objective": "y, z"}, "one objective"),
        ([("float", (0, 1))], {}, "'a' is a RangeParameter of type FLOAT"),
        ([("int", (1, 2000))] * 2, {}, "parameters have 600,000,000"),
    ],
)
def test_the_modular_route_refuses_before_the_first_trial(more, options, match):
    ranges = [
        RangeParameterConfig(name=name, bounds=bounds, parameter_type=kind)
        for name, (kind, bounds) in zip("ab", more, strict=False)
    ]
    client = new_client(modular_strategy(seed=0), [*mixed(), *ranges], **options)
    with pytest.raises(UnsupportedError, match=match):
        client.get_next_trials(1)
    assert not client._experiment.trials
    with pytest.raises(InputDataError, match="num_initial"):
        modular_strategy(num_initial=0)


def test_the_modular_route_sees_what_changes_on_the_way(tmp_path):
    """The direction is followed, and a constraint refused, in a loaded strategy too."""
    client = new_client(modular_strategy(num_initial=3, seed=0))
    play(client, 4)
    client.configure_optimization(objective="-y")
    (worst,) = play(client, 1)
    again = new_client(modular_strategy(num_initial=3, seed=0), objective="-y")
    for trial in list(client._experiment.trials.values())[:4]:
        number = again.attach_trial(trial.arm.parameters)
        again.complete_trial(number, raw_data={"y": reward(trial.arm.parameters)})
    assert play(again, 1) == [worst]  # of a strategy that began so
    client.save_to_json_file(str(tmp_path / "e.json"))
    for each in (client, Client.load_from_json_file(str(tmp_path / "e.json"))):
        each.configure_optimization(objective="y", outcome_constraints=["z >= 1"])
        with pytest.raises(UnsupportedError, match="`outcome_constraints`"):
            each.get_next_trials(1)


def test_the_modular_strategy_is_stored(tmp_path):
    client = new_client(modular_strategy(num_initial=3, seed=0), mixed())
    play(client, 2)
    client.save_to_json_file(str(tmp_path / "e.json"))
    again = Client.load_from_json_file(str(tmp_path / "e.json"))
    assert again.get_next_trials(1) == client.get_next_trials(1)


# Every argument of Ax -----------------------------------------------------------------


def honours(**options):
    """Return a walk that leads to trials."""

    def walk():
        assert play(new_client(**options), 2)

    return walk


def refuses(match, parameters=None, **options):
    """Return a walk that ends before the first trial, by name."""

    def walk():
        client = new_client(parameters=parameters, **options)
        with pytest.raises((UnsupportedError, InputDataError), match=match):
            client.get_next_trials(1)
        assert not client._experiment.trials

    return walk


def row(**options):
    """Return the parameter of an ArmFile of 20 arms, with something else."""
    bounds = options.pop("bounds", (0, 19))
    config = {"bounds": bounds, "name": "arm", "parameter_type": "int", **options}
    return [RangeParameterConfig(**config)]


def refuses_row(match, *others, **options):
    """Return a walk with a table of 20 arms that ends before the first trial."""

    def walk(tmp_path):
        np.save(tmp_path / "arms.npy", np.linspace(0, 1, 20)[:, None])
        node = BanditNode(ArmFile(tmp_path / "arms.npy"), factory="users_bkb")
        client = new_client(node, [*row(**options), *others])
        with pytest.raises((UnsupportedError, InputDataError), match=match):
            client.get_next_trials(1)

    return walk


def honours_row(*others, **options):
    """Return a walk with a table of 20 arms that leads to a trial."""

    def walk(tmp_path):
        np.save(tmp_path / "arms.npy", np.linspace(0, 1, 20)[:, None])
        node = BanditNode(ArmFile(tmp_path / "arms.npy"), factory="users_bkb")
        client = new_client(node, [*row(**options), *others])
        assert client.get_next_trials(1)[0]["arm"] in range(20)

    return walk


def minimizes():
    node = BanditNode(ChoiceGrid(), factory="users_bkb")
    client = new_client(node, objective="-y")
    for value, parameters in ((0.0, {"T": 20.0}), (1.0, {"T": 60.0})):
        number = client.attach_trial({**parameters, "solvent": "A"})
        client.complete_trial(number, raw_data={"y": value})
    assert node.best_parameterization()[0]["T"] == 20.0


def gives_so_many():
    assert len(new_client().get_next_trials(max_trials=3)) == 3


def attaches():
    client = new_client()
    number = client.attach_trial({"T": 60.0, "solvent": "C"}, arm_name="standard")
    client.get_next_trials(1)
    node = find_bandit_node(client)
    index = node.arms.index({"T": 60.0, "solvent": "C"})
    assert index in node.bandit.pending.values()
    client.complete_trial(number, raw_data={"y": 1.0})
    assert node.update().counts[index] == 1
    assert node.best_parameterization()[3] == "standard"


def takes_the_objective_of_several_metrics():
    client = new_client()
    number = client.attach_trial({"T": 60.0, "solvent": "C"})
    client.complete_trial(number, raw_data={"cost": 7.0, "y": 0.25})
    bandit = find_bandit_node(client).update()
    assert bandit.state_dict()["observations"]["told_rewards"] == [0.25]


def takes_the_last_step():
    client = new_client()
    number = client.attach_trial({"T": 60.0, "solvent": "C"})
    client.attach_data(number, raw_data={"y": 0.5}, progression=2)
    client.attach_data(number, raw_data={"y": 0.1}, progression=1)
    client.complete_trial(number)
    bandit = find_bandit_node(client).update()
    assert bandit.state_dict()["observations"]["told_rewards"] == [0.5]


HIERARCHY = [
    choices("a", ["x", "y"], "str", dependent_parameters={"x": ["T"]}),
    choices("T", TEMPERATURES, is_ordered=True),
]
DERIVED = DerivedParameterConfig(
    name="double", expression_str="2 * T", parameter_type="float"
)
EXTRA = RangeParameterConfig(name="x", bounds=(0, 1), parameter_type="float")
WALKS = {
    "configure_experiment": {
        "parameters": [
            honours(),
            refuses("'x' is a RangeParameter", parameters=[EXTRA]),
            refuses_row("'x' is a RangeParameter", EXTRA),
            honours_row(choices("where", ["here"], "str")),
        ],
        "parameter_constraints": [
            test_constraints_of_integers_and_equality,
            honours(parameter_constraints=["T <= 60"]),
        ],
        "name": [honours(name="campaign")],
        "description": [honours(description="what for")],
        "experiment_type": [honours(experiment_type="wet")],
        "owner": [honours(owner="lab")],
    },
    "configure_optimization": {
        "objective": [
            honours(objective="y"),
            honours(objective="2 * y"),
            minimizes,
            refuses("one objective", objective="y, z"),
            refuses("one objective", objective="y + 2 * z"),
            honours(objective="y / 2"),
            honours(objective="y,"),
            refuses(r"'y\*\*2', which is not linear", objective="y**2"),
            refuses("'1/y', which is not linear", objective="1/y"),
            refuses(r"'max\(y, 0\)', which is not linear", objective="max(y, 0)"),
        ],
        "outcome_constraints": [
            refuses("`outcome_constraints`", goal={"outcome_constraints": ["z >= 1"]}),
            refuses(
                "`outcome_constraints`",
                goal={"outcome_constraints": ["z >= 0.9 * baseline"]},
            ),
        ],
        "pruning_target_parameterization": [
            refuses(
                "`pruning_target_parameterization`",
                goal={"pruning_target_parameterization": {"T": 20.0, "solvent": "A"}},
            )
        ],
    },
    "get_next_trials": {
        "max_trials": [gives_so_many],
        "fixed_parameters": [test_limits_that_leave_nothing_are_named],
    },
    "attach_trial": {
        "parameters": [attaches, test_a_trial_off_the_grid_blocks_nothing],
        "arm_name": [attaches],
    },
    "attach_data": {
        "trial_index": [takes_the_last_step],
        "raw_data": [
            takes_the_objective_of_several_metrics,
            test_a_known_standard_error_is_refused_until_it_is_gone,
        ],
        "progression": [takes_the_last_step],
    },
    "RangeParameterConfig": {
        "name": [honours_row(), refuses_row("Expected 'arm', the row", name="n")],
        "bounds": [refuses_row("from 0 to 19", bounds=(0, 9))],
        "parameter_type": [refuses_row("an integer parameter", parameter_type="float")],
        "step_size": [refuses_row("without `step_size`", step_size=1)],
        "scaling": [
            honours_row(scaling="linear"),
            refuses(
                "'n' is a RangeParameter", row(name="n", bounds=(1, 19), scaling="log")
            ),
        ],
    },
    "ChoiceParameterConfig": {
        "name": [honours()],
        "values": [honours()],
        "parameter_type": [test_the_order_of_choices_counts],
        "is_ordered": [test_the_order_of_choices_counts],
        "dependent_parameters": [refuses("'a' is hierarchical", HIERARCHY)],
    },
    "DerivedParameterConfig": {
        name: [refuses("'double' is a DerivedParameter", [*two_parameters(), DERIVED])]
        for name in ("name", "expression_str", "parameter_type")
    },
}


def test_no_argument_is_left_out():
    """Of Ax as it is installed: one that is new fails here."""
    found = {
        name: set(inspect.signature(getattr(Client, name)).parameters) - {"self"}
        for name in (
            "configure_experiment",
            "configure_optimization",
            "get_next_trials",
            "attach_trial",
            "attach_data",
        )
    }
    for config in (RangeParameterConfig, ChoiceParameterConfig, DerivedParameterConfig):
        found[config.__name__] = {field.name for field in fields(config)}
    assert {name: set(walks) for name, walks in WALKS.items()} == found


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, walks in WALKS.items() for argument in walks],
)
def test_every_argument_is_honoured_or_refused(name, argument, tmp_path):
    for walk in WALKS[name][argument]:
        walk(tmp_path) if inspect.signature(walk).parameters else walk()


@pytest.mark.parametrize(
    ("attribute", "role"), [("_is_fidelity", "a fidelity"), ("_is_task", "a task")]
)
def test_roles_that_only_ax_below_the_client_gives_are_refused(attribute, role):
    client = new_client()
    setattr(client._experiment.search_space.parameters["T"], attribute, True)
    with pytest.raises(UnsupportedError, match=f"'T' is {role}"):
        client.get_next_trials(1)
    client = new_client()
    client._experiment.search_space.disable_parameters({"T": 20.0})
    with pytest.raises(UnsupportedError, match="'T' is disabled"):
        client.get_next_trials(1)
