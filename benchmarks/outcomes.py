"""Several outcomes: Pareto fronts, a limit, a target, and the seconds of a choice.

- `yield_and_cost`, `suzuki_emulated_i`, `suzuki_emulated_iv`: tables of two outcomes in
  the folder `two_outcomes` of the data. `buchwald` and `suzuki`: the yields of
  `benchmarks/pools.py`, and a made-up cost: each reagent has a number from 0 to 1,
  drawn with a seed made of its name, and a reaction costs the sum. `share` is the
  hypervolume of the measured candidates by their true outcomes, divided by that of the
  table. Outcomes go from 0 to 1, and the reference point is the worst of each.
- `limit`: `yield_and_cost` with the cost at most its 30 % quantile. `share` is the best
  measured yield within the limit, divided by the best of the table. `success` is
  whether the best was measured.
- `viscosity`: 3,000 settings. The log viscosity is linear with two interactions, and
  goes from 20 to 2,000. Each seed draws other coefficients. The noise has a standard
  deviation of 3 % of the viscosity. `success` is whether the true viscosity of the
  recommended candidate is 350 with a tolerance of 5 %. Twelve random candidates first,
  then three batches of eight. On all others but `million`: ten, then batches of five.
- `million`: a batch of eight of a million rows with 16 columns, given 200 results.

`OutcomesBandit` has default options. `BoTorch` has a stock `SingleTaskGP` for each
outcome, with columns of 0 and 1 for words, and `optimize_acqf_discrete` over all
candidates without a measurement: of `qLogNoisyExpectedHypervolumeImprovement` with
`infer_reference_point`, or for one objective of `qLogNoisyExpectedImprovement` with the
limit as a constraint. On `viscosity` its outcome is minus the distance to the target,
beyond the tolerance. `scalarized` has the same models: each pick has random weights,
and is the candidate of the largest upper confidence bound of the weighted sum.

`choice_seconds` and `fit_seconds` are those of the ask before these measurements.
Finished runs are not run again: parts can be run one after the other with the same
`--output`. `--page` makes the docs' table from `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import (
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import GenericMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.multi_objective import infer_reference_point, is_non_dominated
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Generator, Tensor
from typing_extensions import override

from benchmarks.pools import data_file, load_pools
from benchmarks.practice import Protocol
from benchmarks.practice_methods import Peer, QLogEI, Uniform
from benchmarks.record import Record, show_for_page
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb import AtMost, Maximize, Minimize, OutcomesBandit, Target
from botorch_bkb.bandits.roles import Role


FILE = "outcomes.csv.gz"
PROTOCOL, SMOKE_PROTOCOL = Protocol(10, 5, 60), Protocol(6, 3, 12)
POOLS = ("buchwald", "suzuki")
FILES = ("yield_and_cost", "suzuki_emulated_i", "suzuki_emulated_iv")
TABLES = (*FILES, *POOLS, "limit", "viscosity", "million")
FIGURES = ("share", "success", "choice_seconds", "fit_seconds")
ROLES = {"yield": Maximize(), "turnover": Maximize(), "cost": Minimize()}
GRID, TARGET, VISCOSITY_NOISE = (5, 5, 5, 6, 4), Target(350.0, 0.05 * 350.0), 0.03


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    table: str
    noise: float
    method: str
    seed: int


@dataclass(frozen=True)
class Task:
    """Candidates and what is wanted of them.

    Attributes:
        frame: The ``A`` candidates.
        truth: Their ``A x k`` outcomes without noise.
        roles: The role of each outcome, by its name.
        noise_unit: What the noise is a share of.
        protocol: How many are measured when.
        has_limit: Whether the last role is a limit.
    """

    frame: pd.DataFrame
    truth: Tensor
    roles: Mapping[str, Role]
    noise_unit: Tensor
    protocol: Protocol
    has_limit: bool = False

    def utilities(self, outcomes: Tensor) -> Tensor:
        """Return how good outcomes are; not negative within a limit."""
        pairs = zip(self.roles.values(), outcomes.mT, strict=True)
        return torch.stack([role.utility(values) for role, values in pairs], dim=-1)

    def judge(self, measured: Tensor, player: Any) -> tuple[float, float]:
        """Return share and success; NaN if there is none."""
        values = self.utilities(self.truth)
        if values.shape[-1] == 1:
            return np.nan, float(values[player.best_arm()] == 0)
        if self.has_limit:
            feasible = values[:, 0].where(values[:, 1] >= 0, 0.0)
            share = (feasible[measured].max() / feasible.max()).item()
            return share, float(share == 1)
        low, high = values.aminmax(dim=0)
        values = (values - low) / (high - low)
        volume = Hypervolume(torch.zeros_like(low)).compute
        parts = [v[is_non_dominated(v)] for v in (values[measured], values)]
        return volume(parts[0]) / volume(parts[1]), np.nan


# --- tasks


def as_task(table: pd.DataFrame, protocol: Protocol, has_limit: bool = False) -> Task:
    """Return the task of a table whose last two columns are outcomes."""
    truth = torch.tensor(table.iloc[:, -2:].to_numpy(dtype="float64"))
    names = map(str, table.columns[-2:])
    roles: dict[str, Role] = {name: ROLES[name] for name in names}
    if has_limit:
        roles["cost"] = AtMost(float(table["cost"].quantile(0.3)))
    return Task(table.iloc[:, :-2], truth, roles, truth.std(dim=0), protocol, has_limit)


def cost_of(reagent: str) -> float:
    """Make up a cost."""
    return float(np.random.default_rng(zlib.crc32(reagent.encode())).random())


def made_up(num_rows: int, dim: int) -> pd.DataFrame:
    """Make up candidates with two outcomes."""
    x = np.random.default_rng(0).random((num_rows, dim))
    outcomes = {"yield": np.sin(3 * x).sum(1), "cost": (x[:, :3] ** 2).sum(1)}
    return pd.DataFrame(x).add_prefix("x").assign(**outcomes)


def viscosity(seed: int) -> Task:
    """Make up a grid of settings and their viscosity."""
    stream = Generator().manual_seed(seed)
    axes = [torch.linspace(-1, 1, size, dtype=torch.double) for size in GRID]
    x = torch.cartesian_prod(*axes)
    pairs = torch.randperm(len(GRID), generator=stream)[:4].view(2, 2)
    terms = torch.cat([x, x[:, pairs].prod(dim=-1)], dim=-1)
    logs = terms @ torch.randn(7, generator=stream, dtype=torch.double)
    truth = 20 * 100 ** ((logs - logs.min()) / (logs.max() - logs.min()))[:, None]
    frame = pd.DataFrame(x.numpy(), columns=[*"abcde"])
    return Task(frame, truth, {"viscosity": TARGET}, truth, Protocol(12, 8, 36))


def load_task(one: Run, smoke: bool) -> Task:
    """Return what a run plays."""
    protocol, has_limit = SMOKE_PROTOCOL if smoke else PROTOCOL, one.table == "limit"
    if one.table == "viscosity":
        return viscosity(one.seed)
    if smoke:
        table = made_up(60, 3)
        table.insert(0, "base", [*"abc"] * 20)
    elif one.table == "million":
        table, protocol = made_up(1_000_000, 16), Protocol(200, 8, 208)
    elif one.table in POOLS:
        pool = load_pools([one.table])[one.table]
        frame: Any = pool.frame
        costs = frame.map(cost_of).sum(axis="columns")
        table = frame.assign(**{"yield": pool.rewards.numpy()}, cost=costs)
    else:
        name = "yield_and_cost" if has_limit else one.table
        table = data_file(f"{name}.csv", "two_outcomes")
    return as_task(table, protocol, has_limit)


# --- methods


class Ours:
    """An ``OutcomesBandit``, whose ``tell`` also does the fits of the next ask."""

    def __init__(self, task: Task, generator: Generator) -> None:
        self.names = list(task.roles)
        self.bandit = OutcomesBandit(task.frame, task.roles, generator=generator)
        self.ask = self.bandit.ask
        self.best_arm = lambda: self.bandit.best_arm().arm

    def tell(self, indices: Tensor, results: Tensor) -> None:
        """Bring measurements."""
        is_first = not self.bandit.pending
        tell = self.bandit.add_observations if is_first else self.bandit.tell
        tell(indices, dict(zip(self.names, results.mT, strict=True)))
        for each in self.bandit.outcomes.values():
            with each._threads():
                each._surrogate.latest_fit(each._observations)


class Stock(QLogEI):
    """Noisy improvement, of the hypervolume for several objectives; told utilities."""

    def __init__(self, task: Task, generator: Generator) -> None:
        super().__init__(task.frame, generator)
        self.task = task

    @override
    def tell(self, indices: Tensor, rewards: Tensor) -> None:
        Peer.tell(self, indices, self.task.utilities(rewards))
        # Limits stay at zero.
        self.targets = self.rewards / self.rewards.std(dim=0).clamp_min(1e-12)
        X, models = self.points[self.indices], []
        for Y in self.targets.mT:
            model = SingleTaskGP(X, Y[:, None])
            with manual_seed(self._seed()):
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            models.append(model)
        self.model = ModelListGP(*models)

    @override
    def _acquisition(self) -> Any:
        options: dict[str, Any] = {
            "model": self.model,
            "X_baseline": self.points[self.indices],
            "prune_baseline": True,
        }
        if self.task.has_limit or self.targets.shape[-1] == 1:
            # A constraint holds where it is not positive.
            return qLogNoisyExpectedImprovement(
                objective=GenericMCObjective(lambda Y, X: Y[..., 0]),
                constraints=[lambda Y: -Y[..., 1]] if self.task.has_limit else None,
                **options,
            )
        front = self.targets[is_non_dominated(self.targets)]
        return qLogNoisyExpectedHypervolumeImprovement(
            ref_point=infer_reference_point(front), **options
        )


class Scalarized(Stock):
    """Upper confidence bounds, of two standard deviations, of a weighted sum."""

    @override
    def _choose(self, choices: Tensor, size: int) -> Tensor:
        with torch.no_grad():
            posterior = self.model.posterior(choices)
        shape = (size, posterior.mean.shape[-1])
        weights = -torch.rand(shape, dtype=torch.double).log()
        spread = (weights**2 @ posterior.variance.mT).sqrt()
        picks: list[int] = []
        for bounds in weights @ posterior.mean.mT + 2 * spread:  # size x A
            bounds[picks] = -torch.inf
            picks.append(int(bounds.argmax()))
        return torch.tensor(picks)


METHODS: dict[str, Callable[[Task, Generator], Any]] = {
    "OutcomesBandit": Ours,
    "BoTorch": Stock,
    "scalarized": Scalarized,
    "random": lambda task, generator: Uniform(task.frame, generator),
}
# Tables that are not played by all.
SOME = {
    "limit": ["OutcomesBandit", "BoTorch", "random"],
    "viscosity": ["OutcomesBandit", "BoTorch"],
    "million": ["OutcomesBandit"],
}


# --- runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    for name, values in {"tables": TABLES, "methods": METHODS}.items():
        parser.add_argument(f"--{name}", nargs="+", choices=values, default=[*values])
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0])
    add_run_arguments(parser, 5)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left; print means over seeds."""
    tables = ("yield_and_cost", "limit", "viscosity") if args.smoke else args.tables
    tables = () if args.page else tables
    wanted = [
        Run(table, noise, method, seed)
        for table in tables
        if table not in POOLS or load_pools([table])
        for noise in ([VISCOSITY_NOISE] if table == "viscosity" else args.noise)
        for seed in range(args.seeds)
        for method in args.methods
        if method in SOME.get(table, METHODS)
    ]
    what = FILE, Run._fields, wanted, lambda one: play(one, load_task(one, args.smoke))
    table = summary(finished_rows(args, record, *what))
    show_for_page(table, "outcomes", is_page=args.page)


def play(one: Run, task: Task) -> pd.DataFrame:
    """Measure by one method until the protocol ends; return a row per batch."""
    draws = Generator().manual_seed(1_000_000 + one.seed)
    noises = torch.randn(task.truth.shape, generator=draws, dtype=torch.double)
    results = task.truth + one.noise * task.noise_unit * noises
    indices = torch.randperm(len(results), generator=draws)[: task.protocol.first]
    measured, fits, seconds = indices[:0], np.nan, (np.nan, np.nan)
    rows = list[tuple[float, ...]]()
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on, and of noise near zero.
        warnings.simplefilter("ignore")
        player = METHODS[one.method](task, Generator().manual_seed(one.seed))
        for end in task.protocol.ends(len(results)):
            if rows:
                start = time.perf_counter()
                indices = player.ask(end - len(measured))
                seconds = time.perf_counter() - start, fits
            start = time.perf_counter()
            player.tell(indices, results[indices])
            fits = time.perf_counter() - start
            measured = torch.cat([measured, indices])
            rows.append((len(measured), *task.judge(measured, player), *seconds))
    return pd.DataFrame(rows, columns=["num_measured", *FIGURES])


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds at the end, and median seconds of a batch.

    `to_BoTorch` is the ratio of mean shares over the seeds that both have played.
    """
    keys = ["table", "noise", "method"]
    ends = rows.groupby([*keys, "seed"], sort=False).last().reset_index()
    peer = ends[ends["method"] == "BoTorch"].drop(columns="method")
    both = ends.merge(peer, on=["table", "noise", "seed"], suffixes=("", "_peer"))
    sums = both.groupby(keys)[["share", "share_peer"]].sum()
    groups, batches = ends.groupby(keys, sort=False), rows.groupby(keys)
    table = groups.agg(
        seeds=("seed", "size"),
        measured=("num_measured", "max"),
        share=("share", "mean"),
        standard_error=("share", "sem"),
        success=("success", "mean"),
    )
    table.insert(4, "to_BoTorch", sums["share"] / sums["share_peer"])
    return table.join(batches[["choice_seconds", "fit_seconds"]].median()).reset_index()
