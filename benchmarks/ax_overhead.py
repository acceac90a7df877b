"""What a bandit's generation node adds to a trial of an Ax experiment.

The same experiment twice, an integer parameter over `--num-arms` arms, one trial after
the other: a node that always proposes the next arm, and `BanditNode` with a bandit that
chooses uniformly, so that choosing costs nothing. The difference of the seconds of
`get_next_trials`, and what the node itself took to bring its bandit up to date, both
over the last hundred trials. Needs the extra `ax`. Writes `trials.csv`.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.record import caption, print_table, Record
from botorch_bkb import UniformRandom
from botorch_bkb.bandits import FiniteArmBandit


LAST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--num-arms", type=int, default=1000)


def uniform_bandit(
    arms: Tensor, maximize: bool, generator: torch.Generator
) -> FiniteArmBandit:
    """Return a bandit that costs nothing."""
    return UniformRandom(arms, maximize=maximize, generator=generator)


def run(args: argparse.Namespace) -> None:
    """Run both nodes; print what is added to a trial."""
    trials, num_arms = (30, 50) if args.smoke else (args.trials, args.num_arms)
    record = Record(args.output, args.device)
    print(caption(record.origin))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # Ax and what it imports warn a lot
        logging.disable(logging.WARNING)
        path = Path(folder) / "arms.npy"
        np.save(path, np.random.default_rng(0).uniform(size=(num_arms, 2)))
        trivial, _ = time_trials(trivial_node(num_arms), num_arms, trials)
        ours, updates = time_trials(bandit_node(path), num_arms, trials)
        logging.disable(logging.NOTSET)
    table = pd.DataFrame(
        {
            "trial": range(1, trials + 1),
            "trivial": trivial,
            "bandit": ours,
            "update": updates,
        }
    )
    record.write_table(table, "trials")
    milliseconds = 1e3 * table.drop(columns="trial").tail(LAST)
    print_table(milliseconds.median().rename("milliseconds").reset_index())
    added = milliseconds["bandit"].median() - milliseconds["trivial"].median()
    print(
        f"\nadded to a trial at {trials:,} trials: {added:.1f} ms in all (bar: 5), "
        f"{milliseconds['update'].median():.1f} of it to bring the bandit up to date"
    )


def trivial_node(num_arms: int) -> Any:
    """Return a node that proposes one arm after the other."""
    from ax.generation_strategy.external_generation_node import (
        ExternalGenerationNode,
    )

    class NextArm(ExternalGenerationNode):
        def __init__(self) -> None:
            super().__init__(name="next", should_deduplicate=False)
            self.proposed = 0

        @override
        def update_generator_state(self, experiment: Any, data: Any) -> None:
            """Nothing to do."""

        @override
        def get_next_candidate(self, pending_parameters: Any) -> dict[str, Any]:
            """Return the next arm."""
            self.proposed += 1
            return {"arm": self.proposed % num_arms}

    return NextArm()


def bandit_node(path: Path) -> Any:
    """Return the node of a bandit that chooses uniformly."""
    from botorch_bkb.integrations.ax import ArmFile, BanditNode, register_bandit

    register_bandit(uniform_bandit)
    return BanditNode("uniform_bandit", ArmFile(str(path)))


def time_trials(
    node: Any, num_arms: int, trials: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of every `get_next_trials`, and of the node's update."""
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig
    from ax.generation_strategy.generation_strategy import GenerationStrategy

    client = Client(random_seed=0)
    arm = RangeParameterConfig(
        name="arm", bounds=(0, num_arms - 1), parameter_type="int"
    )
    client.configure_experiment(name="overhead", parameters=[arm])
    client.configure_optimization(objective="y")
    client.set_generation_strategy(GenerationStrategy(name="s", nodes=[node]))
    seconds, updates = [], []
    update = node.update_generator_state

    def timed(experiment: Any, data: Any) -> None:
        start = time.perf_counter()
        update(experiment, data)
        updates.append(time.perf_counter() - start)

    node.update_generator_state = timed
    for _ in range(trials):
        start = time.perf_counter()
        (number,) = client.get_next_trials(max_trials=1)
        seconds.append(time.perf_counter() - start)
        client.complete_trial(number, raw_data={"y": 0.0})
    return seconds, updates
