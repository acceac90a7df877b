"""Search spaces, objectives and tables of Ax: honoured, or refused by name."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from ax.api.configs import DerivedParameterConfig, RangeParameterConfig
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb import BKB, GPBandit
from botorch_bkb.acquisition import BatchUpperConfidenceBound
from botorch_bkb.arms import ProductArms, TableArms
from botorch_bkb.integrations.ax import (
    ArmFile,
    BanditNode,
    ChoiceGrid,
    find_bandit_node,
    modular_strategy,
    register_bandit,
    register_folder,
)
from botorch_bkb.optim import optimize_acqf_finite
from tests.integrations.ax_clients import (
    choices,
    file_node,
    grid_node,
    make,
    new_client,
    OF_AX,
    play,
    reload,
    reward,
    rows,
    SOLVENTS,
    TEMPERATURES,
    two_parameters,
)


pytestmark = OF_AX


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
    client = new_client(grid_node(seed=3), parameter_constraints=constraints)
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
    alone = make("BKB", arms, True, torch.Generator().manual_seed(3))
    for parameters in chosen:
        index = int(alone.ask(1, available=torch.tensor(allowed)))
        assert (parameters["T"], parameters["solvent"]) == everything[index]
        alone.tell([index], [reward(parameters)])


def test_constraints_of_rows_and_a_fixed_parameter(tmp_path):
    parameters = [rows(), choices("where", ["here"], "str")]
    client = new_client(
        file_node(tmp_path), parameters, parameter_constraints=["arm >= 7", "arm <= 8"]
    )
    chosen = [client.get_next_trials(1).popitem()[1] for _ in range(6)]
    assert all(p["arm"] in (7, 8) and p["where"] == "here" for p in chosen)


def test_limits_that_leave_nothing_are_named():
    client = new_client(parameter_constraints=["T <= 60"])
    for fixed in ({"solvent": "Z"}, {"solvent": 2.0}, {"pH": 7.0}, {"T": 80.0}):
        with pytest.raises(InputDataError, match=rf"{fixed}.* there is none"):
            client.get_next_trials(1, fixed_parameters=fixed)
    assert client.get_next_trials(1)  # and goes on


def of_all_kinds():
    return [
        choices("a", [1, 5, 7], "int", is_ordered=False),
        choices("b", ["low", "mid", "high"], "str", is_ordered=True),
        choices("c", ["x", "y"], "str"),
        choices("d", [False, True], "bool"),
        choices("e", ["here"], "str"),
    ]


def test_the_order_of_choices_counts():
    """Ordered text is a number. A factory gets a 0/1 column for each category."""
    node = grid_node()
    new_client(node, of_all_kinds()).get_next_trials(1)
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


def test_choices_without_order_are_the_categories_of_a_table(tmp_path):
    """As a GPBandit of the same frame, also in a file, and after a reload."""
    lists = ["1", "5", "7"], ["low", "mid", "high"], ["x", "y"], [False, True]
    table = pd.DataFrame(itertools.product(*lists), columns=[*"abcd"])
    frame = table.assign(b=pd.Categorical(table["b"], lists[1], ordered=True))
    in_file = table.assign(a="n" + table["a"], b=frame["b"].cat.codes, d=1 * table["d"])
    in_file.to_csv(tmp_path / "arms.csv", index_label="id")
    register_bandit(GPBandit, "takes words", takes_words=True)
    factories = ["GPBandit", "takes words"]
    for node, parameters in (
        (BanditNode(ChoiceGrid(), factories[0], seed=4), of_all_kinds()),
        (
            BanditNode(ArmFile(tmp_path / "arms.csv", id="id"), factories[1], 4),
            [rows(36)],
        ),
    ):
        client = new_client(node, parameters)
        alone = GPBandit(frame, seed=4)
        for number in range(6):
            ((trial, chosen),) = client.get_next_trials(1).items()
            (expected,) = alone.ask().tolist()
            assert find_bandit_node(client).arms.index(chosen) == expected
            value = math.sin(expected)
            client.complete_trial(trial, raw_data={"y": value})
            alone.tell([expected], [value])
            client = reload(client, tmp_path) if number == 3 else client
        assert isinstance(node.bandit.arms, TableArms)


# Product spaces -----------------------------------------------------------------------


def grid(num_values):
    """Return three parameters: ordered numbers, numbers without order, and text."""
    numbers = [float(number) for number in range(num_values)]
    return [
        choices("a", numbers, is_ordered=True),
        choices("b", list(range(num_values)), "int", is_ordered=False),
        choices("fixed", ["here"], "str"),
        choices("c", [f"s{number}" for number in range(num_values)], "str"),
    ]


def result(parameters):
    far = abs(parameters["a"] - 30) / 100 + (parameters["b"] != 7)
    return -far + 0.5 * (parameters["c"] == "s1")


def test_more_combinations_are_a_product_space(tmp_path):
    """Results, a failed trial, a pending one, a status quo, a reload: by number."""
    node = BanditNode(ChoiceGrid(), seed=0)
    client = new_client(node, grid(100))
    standard = {"a": 30.0, "b": 7, "fixed": "here", "c": "s1"}
    rows = [{**standard, "a": float(a), "c": f"s{a % 3}"} for a in range(0, 80, 8)]
    for parameters in [standard, *rows]:
        number = client.attach_trial(parameters)
        client.complete_trial(number, raw_data={"y": result(parameters)})
    pending = client.get_next_trials(max_trials=2)
    client.mark_trial_failed(pending.popitem()[0])
    arms = node.bandit.arms
    assert isinstance(arms, ProductArms)
    assert arms.sizes == (100,) * 3
    assert [each is not None for each in arms.categories] == [False, True, True]
    for each in (client, reload(client, tmp_path)):
        loaded = find_bandit_node(each)
        bandit = loaded.update()
        assert bandit.num_pulls == 11
        waiting = [loaded.arms.index(parameters) for parameters in pending.values()]
        assert list(bandit.pending.values()) == waiting
        best, prediction, *_ = loaded.best_parameterization()
        assert best == standard
        assert loaded.predict([best])[0]["y"][0] == pytest.approx(prediction["y"][0])
    assert client.get_next_trials(1) == each.get_next_trials(1)
    index = node.arms.index(standard)
    assert arms[index].tolist() == [30.0, 7.0, 1.0]
    assert node.arms.parameters(index) == standard


@pytest.mark.parametrize("size", [5, 600])
def test_integer_ranges_are_enumerated_as_their_choices_are(tmp_path, size):
    """Also in a product space; with a log scale, the logarithm is the feature."""
    values = range(size)
    others = [choices("m", list(range(200)), "int", is_ordered=True)]
    chosen = []
    for parameter in (
        rows(name="n", bounds=(values[0], values[-1])),
        choices("n", list(values), "int", is_ordered=True),
    ):
        client = new_client(
            BanditNode(ChoiceGrid(), seed=2),
            [parameter, *others],
            parameter_constraints=["n <= 6"],
        )
        for number in range(4):
            ((_, parameters),) = client.get_next_trials(1).items()
            client.complete_trial(number, raw_data={"y": float(parameters["n"])})
            chosen.append(parameters)
            client = reload(client, tmp_path)
    assert chosen[:4] == chosen[4:]
    assert {type(parameters["n"]) for parameters in chosen} == {int}
    node = grid_node()
    logarithms = rows(name="n", bounds=(1, 8), scaling="log")
    new_client(node, [logarithms]).get_next_trials(1)
    expected = np.log(np.arange(1, 9))[:, None]
    np.testing.assert_allclose(node.bandit.arms, expected, rtol=1e-15)


def test_constraints_of_a_product_space_are_forbidden_products():
    constraints = ["a + 2*d <= 60", "a >= 7"]
    node = BanditNode(ChoiceGrid(), seed=0)
    parameters = [
        *grid(100)[2:],
        *(choices(name, list(range(80)), "int", is_ordered=True) for name in "ad"),
    ]
    client = new_client(node, parameters, parameter_constraints=constraints)
    for _ in range(6):
        ((number, chosen),) = client.get_next_trials(1).items()
        assert 7 <= chosen["a"] <= 60 - 2 * chosen["d"]
        client.complete_trial(number, raw_data={"y": chosen["a"] + chosen["d"]})
    with pytest.raises(UnsupportedError, match="no `fixed_parameters`"):
        client.get_next_trials(1, fixed_parameters={"a": 8})
    client._experiment.search_space.set_parameter_constraints([])
    with pytest.raises(UnsupportedError, match=r"that the bandit began with, .*7"):
        client.get_next_trials(1)


# Honoured or refused ------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["y / 2", "y,", "-y"])
def test_linear_objectives_are_honoured(objective):
    client = new_client(objective=objective)
    for value, temperature in ((0.0, 20.0), (1.0, 60.0)):
        number = client.attach_trial({"T": temperature, "solvent": "A"})
        client.complete_trial(number, raw_data={"y": value})
    best, *_ = find_bandit_node(client).best_parameterization()
    assert best["T"] == (20.0 if objective == "-y" else 60.0)


PRUNED = {"pruning_target_parameterization": {"T": 20.0, "solvent": "A"}}
DERIVED = DerivedParameterConfig(
    name="double", expression_str="2 * T", parameter_type="float"
)
WITH_DEPENDENT = choices("a", ["x", "y"], "str", dependent_parameters={"x": ["T"]})
REFUSED = [
    ("one objective", {"objective": "y, z"}),
    (r"'y\*\*2', which is not linear", {"objective": "y**2"}),
    ("`outcome_constraints`", {"goal": {"outcome_constraints": ["z >= 1"]}}),
    ("`pruning_target_parameterization`", {"goal": PRUNED}),
    (
        "'x' is a RangeParameter of type FLOAT. Give a range a `step_size`",
        {"parameters": [rows(name="x", parameter_type="float")]},
    ),
    (
        "of at most 100,000 integers, but 'x' is .*INT. Give a range a `step_",
        {"parameters": [rows(100_001, name="x")]},
    ),
    (
        "'double' is a DerivedParameter of type FLOAT. .*leave out derived",
        {"parameters": [*two_parameters(), DERIVED]},
    ),
    (
        "'a' is a fidelity, a task or disabled, or has `dependent_",
        {"parameters": [WITH_DEPENDENT, *two_parameters()[:1]]},
    ),
]


@pytest.mark.parametrize(("match", "options"), REFUSED)
def test_what_a_bandit_does_not_honour_is_refused(match, options):
    client = new_client(**options)
    with pytest.raises((UnsupportedError, InputDataError), match=match):
        client.get_next_trials(1)
    assert not client._experiment.trials


@pytest.mark.parametrize(
    ("match", "parameters"),
    [
        ("'x' is a RangeParameter", [rows(), rows(name="x")]),
        ("Expected 'arm', the row", [rows(name="n")]),
        ("'arm' from 0 to 19", [rows(bounds=(0, 9))]),
        ("an integer parameter", [rows(parameter_type="float")]),
        ("without `step_size`", [rows(step_size=1)]),
    ],
)
def test_rows_of_a_table_are_one_integer_parameter(match, parameters, tmp_path):
    client = new_client(file_node(tmp_path), parameters)
    with pytest.raises((UnsupportedError, InputDataError), match=match):
        client.get_next_trials(1)


@pytest.mark.parametrize("attribute", ["_is_task", None])
def test_roles_that_only_ax_below_the_client_gives_are_refused(attribute):
    client = new_client()
    space = client._experiment.search_space
    if attribute is None:
        space.disable_parameters({"T": 20.0})
    else:
        setattr(space.parameters["T"], attribute, True)
    with pytest.raises(UnsupportedError, match="'T' is a fidelity, a task or disabled"):
        client.get_next_trials(1)


# Tables -------------------------------------------------------------------------------


def test_a_relative_path_outlives_a_change_of_folder_and_a_move(tmp_path, monkeypatch):
    for name in ("here", "there", "moved"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.save("my_arms.npy", np.linspace(0, 1, 20)[:, None])
    client = new_client(BanditNode(ArmFile("my_arms.npy"), factory="BKB"), [rows()])
    client.get_next_trials(1)
    monkeypatch.chdir(tmp_path / "there")
    assert reload(client, tmp_path).get_next_trials(1)
    (tmp_path / "here" / "my_arms.npy").rename(tmp_path / "moved" / "my_arms.npy")
    with pytest.raises(FileNotFoundError, match=r"my_arms.npy.*register_folder`"):
        reload(client, tmp_path)
    register_folder(tmp_path / "moved")
    assert reload(client, tmp_path).get_next_trials(1)
    np.save(tmp_path / "moved" / "my_arms.npy", np.zeros((20, 1)))
    with pytest.raises(InputDataError, match="has changed"):
        reload(client, tmp_path)


TABLE = pd.DataFrame({"mass": [0.1, 0.2, 0.9], "charge": [1.0, -1.0, 2.0]})


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("arms.csv", pd.DataFrame.to_csv),
        ("arms.parquet", pd.DataFrame.to_parquet),
        ("arms.xlsx", pd.DataFrame.to_excel),
    ],
)
def test_a_pandas_table_whose_arms_have_names(tmp_path, name, write):
    path = tmp_path / name
    write(TABLE.assign(compound=["007", "008", "abc"]), path, index=False)
    arms = ArmFile(path, id="compound")
    assert arms.ids == ["007", "008", "abc"]
    node = BanditNode(arms, factory="BKB")
    client = new_client(node, [rows(3)])
    client.get_next_trials(1)
    np.testing.assert_array_equal(node.bandit.arms, TABLE)
    again = find_bandit_node(reload(client, tmp_path))
    assert again.arms.ids == arms.ids


@pytest.mark.parametrize(
    ("id", "match"),
    [
        ("id", "the id '9' more than once, again in row 4"),
        ("b", r"no column 'b'.*\['id', 'a', 'name'\].*`id`"),
        (None, "numbers and of words .*, but column 'name' has 'x'"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, id, match):
    table = pd.DataFrame({"id": [4, 9, 9], "a": [0.1, 0.2, 0.9], "name": [*"xyz"]})
    table.to_csv(tmp_path / "arms.csv", index=False)
    with pytest.raises(InputDataError, match=match):
        ArmFile(tmp_path / "arms.csv", id=id)


@pytest.mark.parametrize(
    ("array", "match"),
    [(np.zeros(20), "A x d.*got \\(20,\\)"), (np.full((20, 2), np.nan), "row 0")],
)
def test_an_array_that_is_no_table_is_refused_at_once(tmp_path, array, match):
    np.save(tmp_path / "arms.npy", array)
    with pytest.raises(Exception, match=match):
        ArmFile(tmp_path / "arms.npy")


@pytest.mark.parametrize(
    "arms", [TABLE, torch.tensor(TABLE.to_numpy()), TABLE.values.tolist()]
)
def test_arms_that_are_no_file_are_refused_with_the_calls_that_work(
    tmp_path, monkeypatch, arms
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputDataError, match="ArmFile or a `ChoiceGrid") as caught:
        BanditNode(arms)
    save, call, *_ = re.findall("`(.*?)`", str(caught.value).partition("got")[2])
    known = {"pandas": pd, "arms": arms, "BanditNode": BanditNode, "ArmFile": ArmFile}
    exec(save, known)
    node = eval(call, known)
    new_client(node, [rows(3)]).get_next_trials(1)
    np.testing.assert_array_equal(node.bandit.arms, TABLE)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("ArmFile or a .*, but got a str", {"arms": "arms.csv"}),
        ("or a `ChoiceGrid\\(\\)`", {"arms": ChoiceGrid}),
        ("give its `name`", {"factory": BKB}),
        ("`seed` to be an integer", {"seed": None}),
        ("`time_unit` .*a number of seconds", {"time_unit": "1 h"}),
    ],
)
def test_arguments_of_a_node_are_refused_at_once(match, options):
    with pytest.raises(InputDataError, match=match):
        BanditNode(**{"arms": ChoiceGrid(), **options})


# The modular route --------------------------------------------------------------------


def mixed():
    return [
        *two_parameters(),
        choices("level", ["low", "mid", "high"], "str", is_ordered=True),
        RangeParameterConfig(name="n", bounds=(1, 2), parameter_type="int"),
    ]


def test_the_modular_route_searches_all_mixed_choices(monkeypatch, tmp_path):
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
    again = reload(client, tmp_path)
    assert again.get_next_trials(1) == client.get_next_trials(1)


@pytest.mark.parametrize(
    ("more", "options", "match"),
    [
        ([], {"parameter_constraints": ["T <= 60"]}, "`parameter_constraints`"),
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
    for each in (client, reload(client, tmp_path)):
        each.configure_optimization(objective="y", outcome_constraints=["z >= 1"])
        with pytest.raises(UnsupportedError, match="`outcome_constraints`"):
            each.get_next_trials(1)


def test_the_modular_route_repeats_and_counts_pending_points(monkeypatch):
    """More trials than points; a point counts as often as it is pending."""
    seen = []
    original = BatchUpperConfidenceBound.set_X_pending

    def spy(self, X_pending=None):
        seen.append(0 if X_pending is None else len(X_pending))
        original(self, X_pending)

    monkeypatch.setattr(BatchUpperConfidenceBound, "set_X_pending", spy)
    parameters = [choices(name, [0.0, 0.5, 1.0], is_ordered=True) for name in "ab"]
    client = new_client(modular_strategy(num_initial=5, seed=0), parameters)
    play(client, 10)
    for _ in range(3):
        client.attach_trial(parameters={"a": 0.5, "b": 1.0})
    client.get_next_trials(max_trials=1)
    assert max(seen) == 3


def test_a_tracked_metric_makes_no_trial_pending():
    """Whether its name is before the objective's or behind it, without results."""
    chosen = []
    for metric in ("aa", "zz"):
        parameters = [choices(name, [0.0, 0.5, 1.0], is_ordered=True) for name in "ab"]
        client = new_client(modular_strategy(num_initial=3, seed=0), parameters)
        client.configure_tracking_metrics([metric])
        for number in range(7):
            for index, found in client.get_next_trials(1).items():
                data = {"y": reward(found)} | ({} if number else {metric: 0.0})
                client.complete_trial(index, raw_data=data)
                chosen.append(found)
    assert chosen[:7] == chosen[7:]
