"""Trials that fail or are abandoned, and experiments that differ by a moment."""

import warnings
from datetime import timedelta
from itertools import pairwise

import pytest
from botorch.exceptions.errors import UnsupportedError


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig
    from ax.generation_strategy.generation_strategy import GenerationStrategy

    from botorch_bkb.integrations.ax import BanditNode, ChoiceGrid

pytestmark = pytest.mark.filterwarnings("ignore")


def new_client(node):
    client = Client(random_seed=0)
    values = [float(value) for value in range(9)]
    parameter = ChoiceParameterConfig(
        name="t", values=values, parameter_type="float", is_ordered=True
    )
    client.configure_experiment(parameters=[parameter], name="e")
    client.configure_optimization(objective="y")
    client.set_generation_strategy(GenerationStrategy(name="s", nodes=[node]))
    return client


def next_trial(client):
    ((number, parameters),) = client.get_next_trials(max_trials=1).items()
    return number, parameters["t"]


def update(node, client):
    experiment = client._experiment
    node.update_generator_state(experiment, experiment.lookup_data())


def test_a_setting_that_fails_is_not_the_next_trial_and_one_abandoned_never_is_again():
    node = BanditNode(ChoiceGrid())
    client = new_client(node)
    for _ in range(3):
        number, setting = next_trial(client)
        client.complete_trial(number, raw_data={"y": -abs(setting - 4.0)})
    failed = []
    for _ in range(4):
        number, setting = next_trial(client)
        client.mark_trial_failed(number)
        failed.append(setting)
    assert all(first != second for first, second in pairwise(failed))
    number, abandoned = next_trial(client)
    client.mark_trial_abandoned(number)
    rest = []
    for _ in range(4):
        number, setting = next_trial(client)
        client.complete_trial(number, raw_data={"y": 0.0})
        rest.append(setting)
    assert abandoned not in rest
    bandit = node.update()
    assert bandit.is_retired[node.arms.index({"t": abandoned})]


def test_experiments_of_one_name_and_second_are_told_apart():
    node = BanditNode(ChoiceGrid())
    first, second = new_client(node), new_client(BanditNode(ChoiceGrid()))
    next_trial(first)
    created = first._experiment.time_created.replace(microsecond=200_000)
    node._origin["experiment"] = f"'e' of {created.isoformat()}"
    second._experiment._time_created = created + timedelta(microseconds=300_000)
    with pytest.raises(UnsupportedError, match="Make a new BanditNode"):
        node.update_generator_state(
            second._experiment, second._experiment.lookup_data()
        )
    # What comes from a database has no fractions of a second.
    first._experiment._time_created = created.replace(microsecond=0)
    update(node, first)
