"""Clients of Ax for the tests, and the factories of their bandits."""

import math

import numpy as np
import pytest
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig, StorageConfig
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.storage.sqa_store.db import (
    create_all_tables,
    get_engine,
    init_engine_and_session_factory,
)

from botorch_bkb import BBKB, BKB, GPUCB, TVGPUCB
from botorch_bkb.integrations.ax import ArmFile, BanditNode, ChoiceGrid, register_bandit
from tests.bandits import rbf


OF_AX = [
    pytest.mark.filterwarnings("ignore"),  # Ax and what it imports warn a lot
    pytest.mark.usefixtures("short_fits"),
]
TEMPERATURES = [20.0, 40.0, 60.0, 80.0, 110.0]
SOLVENTS = ["A", "B", "C", "D", "E"]
BANDITS = {
    "BBKB": (BBKB, 0.3, {}),
    "BKB": (BKB, 20.0, {}),
    "GPUCB": (GPUCB, 20.0, {}),
    "drifting": (TVGPUCB, 0.7, {"forgetting_rate": 0.01, "sparse": True}),
}


def make(name, arms, maximize, generator):
    bandit_class, lengthscale, options = BANDITS[name]
    kernel = rbf(lengthscale)
    return bandit_class(
        arms, kernel, 0.01, maximize=maximize, generator=generator, **options
    )


for _name in BANDITS:
    register_bandit(lambda name=_name, **options: make(name, **options), _name)


def choices(name, values, kind="float", **options):
    return ChoiceParameterConfig(
        name=name, values=values, parameter_type=kind, **options
    )


def rows(num_arms=20, **options):
    """Return the parameter of an ArmFile."""
    config = {"name": "arm", "bounds": (0, num_arms - 1), "parameter_type": "int"}
    return RangeParameterConfig(**{**config, **options})


def two_parameters():
    return [
        choices("T", TEMPERATURES, is_ordered=True),
        choices("solvent", SOLVENTS, "str", is_ordered=False),
    ]


def three_temperatures():
    return [choices("T", [1.0, 2.0, 3.0], is_ordered=True)]


def grid_node(factory="BKB", **options):
    return BanditNode(ChoiceGrid(), factory=factory, **options)


def file_node(folder, num_arms=20, factory="BKB"):
    np.save(folder / "arms.npy", np.linspace(0, 1, num_arms)[:, None])
    return BanditNode(ArmFile(folder / "arms.npy"), factory=factory)


def new_client(
    nodes=None, parameters=None, objective="y", goal=None, storage=None, **options
):
    """Return a client of a strategy, a node or several."""
    client = Client(storage, random_seed=0)
    options = {"name": "e", "parameters": parameters or two_parameters(), **options}
    client.configure_experiment(**options)
    client.configure_optimization(objective=objective, **(goal or {}))
    nodes = grid_node() if nodes is None else nodes
    if not isinstance(nodes, GenerationStrategy):
        nodes = nodes if isinstance(nodes, list) else [nodes]
        nodes = GenerationStrategy(name="s", nodes=nodes)
    client.set_generation_strategy(nodes)
    return client


def database(folder):
    """Return the configuration of a new database."""
    config = StorageConfig(url=f"sqlite:///{folder / 'ax.db'}")
    init_engine_and_session_factory(url=config.url, force_init=True)
    create_all_tables(get_engine())
    return config


def reload(client, folder):
    client.save_to_json_file(str(folder / "e.json"))
    return Client.load_from_json_file(str(folder / "e.json"))


def reward(parameters):
    if "solvent" not in parameters:
        return math.sin(sum(parameters.values()))
    return -(((parameters["T"] - 60) / 50) ** 2) + 0.5 * (parameters["solvent"] == "C")


def play(client, num_trials, **options):
    """Run trials one by one; return their parameters."""
    chosen = []
    for _ in range(num_trials):
        for number, parameters in client.get_next_trials(1, **options).items():
            client.complete_trial(number, raw_data={"y": reward(parameters)})
            chosen.append(parameters)
    return chosen


def told(bandit, what="rewards"):
    return bandit.state_dict()["observations"][f"told_{what}"]
