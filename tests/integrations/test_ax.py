"""Bandits in Ax experiments: pending pulls, storage, and the traps of Ax."""

import math
import random
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import RBFKernel

from botorch_bkb import (
    BBKB,
    BKB,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
)
from botorch_bkb.acquisition import BatchUpperConfidenceBound
from botorch_bkb.optim import FixedSize


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ax.adapter.registry import Generators
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.generation_strategy.generation_node import GenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generation_strategy.transition_criterion import MinTrials

    from botorch_bkb.integrations.ax import (
        ArmFile,
        BanditNode,
        ChoiceGrid,
        modular_strategy,
        register_bandit,
    )


pytestmark = pytest.mark.filterwarnings("ignore")  # Ax and what it imports warn a lot
NOISE = 0.01
BANDITS = {
    "BKB": (BKB, {}),
    "BBKB": (BBKB, {}),
    "GPUCB": (GPUCB, {}),
    "GPThompsonSampling": (GPThompsonSampling, {"batch_rule": FixedSize(1)}),
    "GPBUCB": (GPBUCB, {}),
    "TVGPUCB": (TVGPUCB, {"forgetting_rate": 0.01}),
    "TVGPUCB, sparse": (TVGPUCB, {"forgetting_rate": 0.01, "sparse": True}),
    "RGPUCB": (RGPUCB, {"block_size": 120}),
}


def rbf():
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return kernel


def factory(name):
    bandit_class, options = BANDITS[name]

    def make(arms, maximize, generator):
        return bandit_class(
            arms, rbf(), NOISE, maximize=maximize, generator=generator, **options
        )

    return make


for _name in BANDITS:
    register_bandit(factory(_name), _name)


@pytest.fixture
def arm_file(tmp_path):
    path = tmp_path / "arms.npy"
    np.save(path, np.random.default_rng(0).uniform(size=(300, 2)))
    return path


def reward(arm, arms):
    return math.sin(5 * arms[arm].sum())


def new_client(nodes, parameters, objective="y"):
    """Return a client of a strategy, or of nodes; of an ArmFile of so many rows."""
    if isinstance(parameters, int):
        bounds = (0, parameters - 1)
        parameters = [
            RangeParameterConfig(name="arm", bounds=bounds, parameter_type="int")
        ]
    if isinstance(nodes, list):
        nodes = GenerationStrategy(name="s", nodes=nodes)
    client = Client(random_seed=0)
    client.configure_experiment(name="e", parameters=parameters)
    client.configure_optimization(objective=objective)
    client.set_generation_strategy(nodes)
    return client


@pytest.mark.parametrize("name", BANDITS)
def test_sixty_trials_are_those_of_the_bandit_outside(name, arm_file):
    """Eight pending, results in any order, 5 % failed, 5 % abandoned; repeats."""
    arms = np.load(arm_file)
    node = BanditNode(ArmFile(arm_file), factory=name, seed=3)
    client = new_client([node], len(arms))
    alone = factory(name)(torch.as_tensor(arms), True, torch.Generator().manual_seed(3))
    rng, out, num_trials = random.Random(0), {}, 0
    completed, told, news, abandoned = Counter(), 0, [], []
    while num_trials < 60:
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
        # The experiment's own records.
        live = Counter(
            trial.arm.parameters["arm"]
            for trial in client._experiment.trials.values()
            if trial.status.is_running or trial.status.is_candidate
        )
        assert live == Counter(out.values())
        assert Counter(node.bandit.pending.values()) == live
        for number in rng.sample(sorted(out), 3):
            arm, chance = out.pop(number), rng.random()
            if chance < 0.05:
                client.mark_trial_failed(number)
                news.append((number, arm, None))
            elif chance < 0.1:
                client.mark_trial_abandoned(number)
                news.append((number, arm, None))
                abandoned.append(arm)
            else:
                value = reward(arm, arms) + 0.1 * rng.gauss(0, 1)
                client.complete_trial(number, raw_data={"y": value})
                news.append((number, arm, value))
                completed[arm] += 1
                told += 1
    client.get_next_trials(max_trials=1)
    assert node.bandit.num_pulls == told  # none lost, none twice
    counts = node.bandit.counts
    assert {arm: int(counts[arm]) for arm in completed} == dict(completed)
    assert max(completed.values()) > 1
    best = max(reward(arm, arms) for arm in range(len(arms)))
    assert reward(node.bandit.best_arm(), arms) > best - 0.2


def test_without_a_factory_a_gpbandit_learns(arm_file):
    arms = np.load(arm_file)
    node = BanditNode(ArmFile(arm_file), seed=1)
    client = new_client([node], len(arms))
    generator = torch.Generator().manual_seed(1)
    alone = GPBandit(torch.as_tensor(arms), generator=generator)
    for _ in range(6):
        ((number, parameters),) = client.get_next_trials(max_trials=1).items()
        (expected,) = alone.ask().tolist()
        assert parameters == {"arm": expected}
        client.complete_trial(number, raw_data={"y": reward(expected, arms)})
        alone.tell([expected], [reward(expected, arms)])


def test_trials_of_others_count(arm_file):
    """A Sobol node first, a trial attached by hand, and one that is pending."""
    sobol = GenerationNode(
        name="Sobol",
        generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})],
        transition_criteria=[
            MinTrials(threshold=3, transition_to="Bandit", use_all_trials_in_exp=True)
        ],
    )
    node = BanditNode(ArmFile(arm_file), factory="BBKB")
    client = new_client([sobol, node], 300)
    for _ in range(3):
        for number in client.get_next_trials(max_trials=1):
            client.complete_trial(number, raw_data={"y": 1.0})
    by_hand = client.attach_trial(parameters={"arm": 7})
    client.get_next_trials(max_trials=1)
    assert node.bandit.num_pulls == 3
    assert 7 in node.bandit.pending.values()
    client.complete_trial(by_hand, raw_data={"y": 2.0})
    client.get_next_trials(max_trials=1)
    assert node.bandit.counts[7] == 1


def test_results_without_a_number_stay_pending(arm_file):
    node = BanditNode(ArmFile(arm_file), factory="BBKB")
    client = new_client([node], 300)
    (number,) = client.get_next_trials(max_trials=1)
    client.complete_trial(number, raw_data={"y": math.nan})
    client.get_next_trials(max_trials=1)
    assert node.bandit.num_pulls == 0
    assert len(node.bandit.pending) == 2


def test_what_does_not_fit_is_refused(tmp_path, arm_file):
    with pytest.raises(InputDataError, match=r"`factory` to be registered, but 'none'"):
        BanditNode(ArmFile(arm_file), factory="none")
    node = BanditNode(ArmFile(arm_file), factory="BKB")
    with pytest.raises(UnsupportedError, match="a trial before the bandit"):
        _ = node.bandit
    with pytest.raises(InputDataError, match=r"'arm' from 0 to 299"):
        new_client([node], 200).get_next_trials(max_trials=1)
    with pytest.raises(UnsupportedError, match=r"'arm' is a RangeParameter"):
        new_client([BanditNode(ChoiceGrid(), factory="BKB")], 300).get_next_trials(1)
    with pytest.raises(FileNotFoundError):
        ArmFile(tmp_path / "none.npy")
    source = ArmFile(arm_file)
    np.save(arm_file, np.zeros((300, 2)))
    with pytest.raises(InputDataError, match="has changed"):
        ArmFile(arm_file, checksum=source.checksum)


# Storage ------------------------------------------------------------------------------

CONTINUE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from ax.api.client import Client
from gpytorch.kernels import RBFKernel
from botorch_bkb import BBKB
from botorch_bkb.integrations.ax import register_all, register_bandit

def BBKB_again(arms, maximize, generator):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return BBKB(arms, kernel, 0.01, maximize=maximize, generator=generator)

register_bandit(BBKB_again, "BBKB")
register_all()  # done by the import; again does no harm
client = Client.load_from_json_file(sys.argv[1])
chosen = []
for _ in range(5):
    for number, parameters in client.get_next_trials(max_trials=2).items():
        chosen.append(parameters["arm"])
        client.complete_trial(number, raw_data={"y": parameters["arm"] / 300})
print(json.dumps(chosen))
"""


def test_without_ax_the_error_names_the_extra():
    code = "import sys; sys.modules['ax'] = None; import botorch_bkb.integrations.ax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "botorch_bkb[ax]"' in done.stderr


def test_another_process_goes_on_with_the_same_arms(tmp_path, arm_file):
    node = BanditNode(ArmFile(arm_file), factory="BBKB", seed=1)
    client = new_client([node], 300)
    for _ in range(12):
        out = client.get_next_trials(max_trials=2)
        for number, parameters in list(out.items())[:1]:
            client.complete_trial(number, raw_data={"y": parameters["arm"] / 300})
    path = tmp_path / "experiment.json"
    client.save_to_json_file(str(path))
    chosen = []
    for _ in range(5):
        for number, parameters in client.get_next_trials(max_trials=2).items():
            chosen.append(parameters["arm"])
            client.complete_trial(number, raw_data={"y": parameters["arm"] / 300})
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().split("\n")[-1] == str(chosen)


# The modular route --------------------------------------------------------------------


def modular_client(**grid):
    parameters = [
        ChoiceParameterConfig(
            name=name,
            values=[i / (size - 1) for i in range(size)],
            parameter_type="float",
            is_ordered=True,
        )
        for name, size in grid.items()
    ]
    return new_client(modular_strategy(num_initial=5, seed=0), parameters, "-y")


def test_the_modular_route_repeats():
    """More trials than points."""
    small = modular_client(a=3, b=2)
    for _ in range(9):
        for number, p in small.get_next_trials(max_trials=1).items():
            small.complete_trial(number, raw_data={"y": p["a"]})


def test_pending_points_count_as_often_as_they_are_pending(monkeypatch):
    seen = []
    original = BatchUpperConfidenceBound.set_X_pending

    def spy(self, X_pending=None):
        seen.append(0 if X_pending is None else len(X_pending))
        original(self, X_pending)

    monkeypatch.setattr(BatchUpperConfidenceBound, "set_X_pending", spy)
    client = modular_client(a=3, b=2)
    for _ in range(5):
        for number, p in client.get_next_trials(max_trials=1).items():
            client.complete_trial(number, raw_data={"y": p["a"]})
    for _ in range(3):
        client.attach_trial(parameters={"a": 0.5, "b": 1.0})
    client.get_next_trials(max_trials=1)
    assert max(seen) == 3
