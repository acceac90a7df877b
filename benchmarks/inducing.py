"""Which training inputs should be the inducing points of `SingleTaskDTCGP`?

Of five tables, up to 4,000 rows train (two thirds of small tables), 2,000 others test.
All choices have the hyperparameters that `fit_gpytorch_mll` learns with a number.
`number` is `inducing_points=300`; in the row `fit, number` seconds are also of the fit.
`pivots` are those of Cholesky without weights, `random` is uniform, `leverage` draws by
the scores that the random ones give, and `exact` has all points.

`rmse` is in standard deviations of the target, `coverage` the share of targets in their
95 % intervals, `log_density` their mean, `seconds` the time to choose and to predict.
`--page` makes the docs' table, means over seeds, from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.distributions import Normal

from benchmarks.pools import as_pool, Pool, REWARD, smoke_pools, SOURCES
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.leverage_scores import leverage_pivots
from botorch_bkb.test_functions import datasets


FILE = "inducing.csv"
NUM_TRAIN, NUM_TEST, SIZE = 4000, 2000, 300


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    data: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    add_run_arguments(parser, 2)


def run(args: argparse.Namespace, record: Record) -> None:
    """Play what is left; print means over seeds."""
    pools = {} if args.page else smoke_pools() if args.smoke else load_tables()
    wanted = [Run(name, seed) for name in pools for seed in range(args.seeds)]
    what = FILE, Run._fields, wanted, lambda one: play(pools[one.data], one)
    rows = finished_rows(args, record, *what)
    measures = ["rmse", "coverage", "log_density", "seconds"]
    table = rows.groupby(["data", "points"], sort=False)[measures].mean()
    table = table.reset_index()
    show_for_page(table, "inducing", is_page=args.page)


def load_tables() -> dict[str, Pool]:
    """Load the tables; the features of a temperature are its place and time."""
    folder = Path(os.environ.get(datasets.DATA_VARIABLE, ""))
    table = datasets.load_intel_temperature().reset_index()
    table = table.melt(["day", "hour"], var_name="sensor", value_name=REWARD)
    table["sensor"] = table["sensor"].astype(int)
    place = pd.read_csv(folder / "intel_locations.csv")[["sensor", "x_m", "y_m"]]
    tables = {
        "abalone": datasets.load_abalone().rename(columns={"rings": REWARD}),
        "cadata": datasets.load_cadata().rename(columns={"median_house_value": REWARD}),
        "temperatures": table.merge(place).drop(columns="sensor"),
        **{name: SOURCES[name].load() for name in ("hplc", "hpobench_segment")},
    }
    return {name: as_pool(name, table) for name, table in tables.items()}


def play(pool: Pool, one: Run) -> pd.DataFrame:
    """Return errors and seconds of each way to choose points."""
    torch.manual_seed(one.seed)
    low, high = pool.arms.aminmax(dim=0)
    order = torch.randperm(pool.num_arms)
    X, y = ((pool.arms - low) / (high - low))[order], pool.rewards[order]
    num_train = min(NUM_TRAIN, 2 * len(order) // 3)
    y = (y - y[:num_train].mean()) / y[:num_train].std()
    test, target = X[num_train:][:NUM_TEST, None], y[num_train:][:NUM_TEST]
    X, size = X[:num_train], min(SIZE, num_train // 4)
    model = SingleTaskDTCGP(X, y[:num_train, None], inducing_points=size)

    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    kernel, weights = model.covar_module, torch.ones(num_train)
    choices: dict[str, Callable[[], Any]] = {
        "fit, number": lambda: fit_gpytorch_mll(mll) and size,
        "number": lambda: size,
        "pivots": lambda: X[leverage_pivots(kernel, X, weights, size)],
        "random": lambda: X[:size],
        "leverage": lambda: X[model.leverage_scores().multinomial(size)],  # of random
        "exact": lambda: None,
    }
    rows = []
    for name, choose in choices.items():
        start = time.perf_counter()
        model.set_inducing_points(choose())
        with torch.no_grad():
            said = model.posterior(test, observation_noise=True)
            density = Normal(said.mean.flatten(), said.variance.flatten().sqrt())
        seconds = time.perf_counter() - start
        error = (target - density.mean).abs()
        measures = {
            "rmse": error.square().mean().sqrt(),
            "coverage": (error < 1.96 * density.stddev).double().mean(),
            "log_density": density.log_prob(target).mean(),
        }
        numbers = {key: value.item() for key, value in measures.items()}
        rows.append({"points": name, **numbers, "seconds": seconds})
    return pd.DataFrame(rows)
