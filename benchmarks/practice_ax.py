"""With every option left alone: a bandit's node in Ax beside Ax's own default.

Four parameters of 10, 12, 8 and 5 evenly spaced values, 4,800 choices in all, and 60
trials, one at a time, whose results carry Gaussian noise of standard deviation 0.1. The
node drives a `GPBandit` with its defaults; `centered` is the same node after Ax's own
of one trial at the center, where `ax` begins as well: Ax chooses by itself what
`get_next_trials` does without a generation strategy. Parameters are ordered choices of
floats for all.

Functions of BoTorch, to be minimized over [0, 1]^4, are scaled to a standard deviation
of 1 over the choices: `hartmann4`, and `levy4`, whose valleys the grid samples poorly.

Recorded after 30 and 60 trials: by how much the best choice so far, without noise, is
worse than the best of all (`loss`), and the mean seconds of `get_next_trials` since the
checkpoint before.

Every finished run, one of a function, method and seed, is appended to `rows.csv` and
not run again; `--again` drops the rows first. `summary.csv` has means over seeds and
standard errors. Needs the extra `ax`.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, cast, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch.test_functions import Hartmann, Levy
from botorch.utils.transforms import unnormalize
from torch import Tensor

from benchmarks.record import Record
from benchmarks.rows import add_run_arguments, finished_rows


NUM_LEVELS = (10, 12, 8, 5)
NOISE_STD = 0.1
CHECKPOINTS = (30, 60)


def levy4(points: Tensor) -> Tensor:
    """Return BoTorch's Levy function over its own box."""
    problem = Levy(dim=4, dtype=torch.double)
    return problem.evaluate_true(unnormalize(points, cast(Tensor, problem.bounds)))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "hartmann4": Hartmann(dim=4, dtype=torch.double).evaluate_true,
    "levy4": levy4,
}


def configure(method: str, seed: int) -> Any:
    """Return a client of Ax with the experiment and, but for `ax`, a strategy."""
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig
    from ax.generation_strategy.center_generation_node import CenterGenerationNode
    from ax.generation_strategy.generation_node import GenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy

    from botorch_bkb.integrations.ax import BanditNode, ChoiceGrid

    client = Client(random_seed=seed)
    parameters = [
        ChoiceParameterConfig(
            name=f"x{number}",
            values=np.linspace(0, 1, num_levels).tolist(),
            parameter_type="float",
            is_ordered=True,
        )
        for number, num_levels in enumerate(NUM_LEVELS)
    ]
    client.configure_experiment(name="practice", parameters=parameters)
    client.configure_optimization(objective="-loss")
    if method != "ax":
        node = BanditNode(ChoiceGrid(), seed=seed)
        nodes: list[GenerationNode] = [node]
        if method == "centered":
            nodes.insert(0, CenterGenerationNode(next_node_name=node.name))
        client.set_generation_strategy(GenerationStrategy(name=method, nodes=nodes))
    return client


METHODS = ("ax", "node", "centered")


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    function: str
    method: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument(
        "--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS)
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add_run_arguments(parser, 5, has_page=False)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left, then write and print."""
    functions = args.functions[:1] if args.smoke else args.functions
    methods = ["centered"] if args.smoke else args.methods
    wanted = [
        Run(function, method, seed)
        for seed in range(args.seeds)
        for function in functions
        for method in methods
    ]
    checkpoints = (6, 8) if args.smoke else CHECKPOINTS
    what = "rows.csv", Run._fields, wanted, lambda one: play(one, checkpoints)
    record.show(summarize(finished_rows(args, record, *what)), "summary")


def losses_of(function: str) -> Tensor:
    """Return the losses of all choices, in the order of the grid, the best zero."""
    levels = [torch.linspace(0, 1, count).double() for count in NUM_LEVELS]
    values = FUNCTIONS[function](torch.cartesian_prod(*levels))
    return (values - values.min()) / values.std()


def play(one: Run, checkpoints: tuple[int, ...]) -> pd.DataFrame:
    """Run one experiment to the last checkpoint; return a row for each."""
    losses = losses_of(one.function).reshape(NUM_LEVELS)
    noises = np.random.default_rng(one.seed).normal(0, NOISE_STD, checkpoints[-1])
    seconds, best = 0.0, np.inf
    rows: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ax and what it imports warn a lot
        logging.disable(logging.WARNING)
        client = configure(one.method, one.seed)
        for number, noise in enumerate(noises, start=1):
            start = time.perf_counter()
            ((trial, parameters),) = client.get_next_trials(max_trials=1).items()
            seconds += time.perf_counter() - start
            place = tuple(
                round(parameters[f"x{axis}"] * (count - 1))
                for axis, count in enumerate(NUM_LEVELS)
            )
            loss = losses[place].item()
            best = min(best, loss)
            client.complete_trial(trial, raw_data={"loss": (loss + noise, None)})
            if number in checkpoints:
                asks = number - (rows[-1]["trials"] if rows else 0)
                rows.append({"trials": number, "loss": best, "seconds": seconds / asks})
                seconds = 0.0
        logging.disable(logging.NOTSET)
    return pd.DataFrame(rows)


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds and their standard errors."""
    groups = table.groupby(["function", "trials", "method"], sort=False)
    return groups.agg(
        seeds=("seed", "nunique"),
        loss=("loss", "mean"),
        error=("loss", "sem"),
        seconds=("seconds", "mean"),
    ).reset_index()
