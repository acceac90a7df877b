"""With every option left alone: our bandits over a box and stock BoTorch.

Test functions, negated, are maximized from 60 evaluations, one at a time. Eight of them
were for choosing defaults. Nothing is known of kernel and noise. An evaluation is the
function's value plus Gaussian noise of 0 or 5 % of the standard deviation of its values
over the box; at a seed the n-th one brings all methods the same noise. All methods
begin with 2 d scrambled Sobol points of their own.

Stock BoTorch is ``SingleTaskGP`` with its defaults on the unit cube and standardized
values, fitted after every evaluation, and one of ``LogExpectedImprovement`` by
``optimize_acqf`` or a Thompson draw by ``get_matheron_path_model``, each maximized from
4 of 512 points by L-BFGS-B.

Measured after 30 and 60 evaluations: the regret, by the function without noise, of the
evaluated point of the largest posterior mean (`simple_regret`); the share of points so
far that lie on the border of the box (`border`); the mean seconds of an ask and its
tell since the checkpoint before, the fit included.

Every finished run, one of a function, noise, method and seed, is appended to `rows.csv`
and not run again, so a run that was killed goes on; `--again` drops the rows first, and
`--seeds 0` only reports. `summary.csv` has medians over seeds, and beside ours
(`ratio`) the factor to the peer's over the seeds that both have.

The rows kept in `results/practice_box` are what `--page` makes the table of the docs'
page "Performance" of.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.test_functions import (
    Ackley,
    Branin,
    Griewank,
    Hartmann,
    Levy,
    Michalewicz,
    Rosenbrock,
    SixHumpCamel,
    StyblinskiTang,
)
from botorch.utils.sampling import (
    draw_sobol_samples,
    manual_seed,
    optimize_posterior_samples,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from benchmarks.practice_page import percent, span
from benchmarks.practice_rows import RowFile
from benchmarks.record import caption, PageRecord, print_table, Record
from botorch_bkb.bandits import BoxBKB, BoxGPUCB, BoxThompsonSampling, rbf_to_learn


ROWS = Path(__file__).parent / "results" / "practice_box" / "rows.csv.gz"
PAGE = Path(__file__).parent.parent / "docs"
NOISES = (0.0, 0.05)
CHECKPOINTS = (30, 60)
NUM_RESTARTS = 4
RAW_SAMPLES = 512
# From which the standard deviation over the box is computed.
NUM_SPREAD_POINTS = 2**14


@dataclass(frozen=True)
class Function:
    """A function to maximize.

    Attributes:
        values: From ``n x d`` points to ``n`` values.
        bounds: The ``2 x d`` corners of the box.
        optimum: The largest value.
        deviation: The standard deviation of the values over the box.
    """

    values: Callable[[Tensor], Tensor]
    bounds: Tensor
    optimum: float
    deviation: float


def as_function(problem: Any) -> Function:
    """Take over one of BoTorch's test functions, made with ``negate=True``."""
    bounds = problem.bounds.double()
    points = draw_sobol_samples(bounds, NUM_SPREAD_POINTS, q=1, seed=0).squeeze(-2)
    deviation = problem.evaluate_true(points).std().item()
    return Function(problem.forward, bounds, float(problem.optimal_value), deviation)


# By these the kernel that is learned and the spread of Thompson draws were chosen.
CHOOSING: dict[str, Callable[[], Any]] = {
    "Six-hump camel": lambda: SixHumpCamel(negate=True, dtype=torch.double),
    "Ackley-2": lambda: Ackley(dim=2, negate=True, dtype=torch.double),
    "Hartmann-3": lambda: Hartmann(dim=3, negate=True, dtype=torch.double),
    "Levy-3": lambda: Levy(dim=3, negate=True, dtype=torch.double),
    "Rosenbrock-3": lambda: Rosenbrock(dim=3, negate=True, dtype=torch.double),
    "Griewank-4": lambda: Griewank(dim=4, negate=True, dtype=torch.double),
    "Styblinski-4": lambda: StyblinskiTang(dim=4, negate=True, dtype=torch.double),
    "Michalewicz-5": lambda: Michalewicz(dim=5, negate=True, dtype=torch.double),
}
# At these we looked once after that.
HELD_OUT: dict[str, Callable[[], Any]] = {
    "Branin": lambda: Branin(negate=True, dtype=torch.double),
    "Hartmann-6": lambda: Hartmann(dim=6, negate=True, dtype=torch.double),
    "Ackley-4": lambda: Ackley(dim=4, negate=True, dtype=torch.double),
    "Levy-4": lambda: Levy(dim=4, negate=True, dtype=torch.double),
}
FUNCTIONS = HELD_OUT | CHOOSING


class Player(Protocol):
    """What takes part; the methods are those of a bandit over a box."""

    def ask(self, size: int) -> Tensor:
        """Choose ``size x d`` points."""

    def tell(self, points: Tensor, rewards: Tensor) -> None:
        """Bring their values."""

    def best_point(self) -> Tensor:
        """Return the ``d`` coordinates of what is recommended."""


class StockPeer(ABC):
    """Stock BoTorch, one point at a time; a subclass chooses by the fitted model."""

    def __init__(self, bounds: Tensor, generator: torch.Generator) -> None:
        self.bounds = bounds
        self.generator = generator
        self.points, self.rewards = bounds[:0], bounds.new_empty(0)
        num_first = 2 * bounds.shape[-1]
        first = draw_sobol_samples(bounds, num_first, q=1, seed=self._seed())
        self.first = first.squeeze(-2)

    def ask(self, size: int) -> Tensor:
        """Choose one point."""
        num_told = len(self.points)
        if num_told < len(self.first):
            return self.first[num_told : num_told + 1]
        with manual_seed(self._seed()):
            return self._choose(self._fitted()).detach()

    def tell(self, points: Tensor, rewards: Tensor) -> None:
        """Append."""
        self.points = torch.cat([self.points, points])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_point(self) -> Tensor:
        """Return the told point of the largest posterior mean."""
        model = self._fitted()
        with torch.no_grad():
            mean = model.posterior(self.points).mean.squeeze(-1)
        return self.points[mean.argmax()]

    @abstractmethod
    def _choose(self, model: SingleTaskGP) -> Tensor:
        """Return a ``1 x d`` point."""

    def _fitted(self) -> SingleTaskGP:
        model = SingleTaskGP(
            self.points,
            self.rewards.unsqueeze(-1),
            input_transform=Normalize(self.bounds.shape[-1], bounds=self.bounds),
            outcome_transform=Standardize(m=1),
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model

    def _seed(self) -> int:
        """Draw a seed: BoTorch's samplers use torch's global generator."""
        return int(torch.randint(2**31 - 1, (1,), generator=self.generator))


class LogEI(StockPeer):
    """Over the largest value so far."""

    @override
    def _choose(self, model: SingleTaskGP) -> Tensor:
        acqf = LogExpectedImprovement(model, best_f=self.rewards.max())
        point, _ = optimize_acqf(
            acqf,
            self.bounds,
            q=1,
            num_restarts=NUM_RESTARTS,
            raw_samples=RAW_SAMPLES,
        )
        return point


class Thompson(StockPeer):
    """Where a draw of the posterior is largest."""

    @override
    def _choose(self, model: SingleTaskGP) -> Tensor:
        paths = get_matheron_path_model(model)
        point, _ = optimize_posterior_samples(
            paths, self.bounds, raw_samples=RAW_SAMPLES, num_restarts=NUM_RESTARTS
        )
        return point.reshape(1, -1)


METHODS: dict[str, Callable[[Tensor, torch.Generator], Player]] = {
    "LogEI": LogEI,
    "Thompson": Thompson,
    "BoxGPUCB": lambda bounds, source: BoxGPUCB(bounds, generator=source),
    "BoxBKB": lambda bounds, source: BoxBKB(bounds, generator=source),
    "BoxThompsonSampling": lambda bounds, source: BoxThompsonSampling(
        bounds, generator=source
    ),
    # What was the default before.
    "BoxGPUCB, RBF": lambda bounds, source: BoxGPUCB(
        bounds, new_kernel=rbf_to_learn, generator=source
    ),
    "BoxThompsonSampling, full draws": lambda bounds, source: BoxThompsonSampling(
        bounds, spread=1.0, generator=source
    ),
    "BoxThompsonSampling, RBF, full draws": lambda bounds, source: BoxThompsonSampling(
        bounds, new_kernel=rbf_to_learn, spread=1.0, generator=source
    ),
}
# Whose regret the bar of ours is of, by the first word of its name.
PEERS = {"BoxGPUCB": "LogEI", "BoxBKB": "LogEI", "BoxThompsonSampling": "Thompson"}


class Run(NamedTuple):
    """What one run is of; the first columns of its rows."""

    function: str
    noise: float
    method: str
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument(
        "--functions",
        nargs="+",
        choices=FUNCTIONS,
        default=list(HELD_OUT),
        help="the held-out ones if omitted",
    )
    parser.add_argument(
        "--noise",
        nargs="+",
        type=float,
        default=list(NOISES),
        metavar="SHARE",
        help="standard deviation of the noise, as a share of the function's",
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="0 to N - 1")
    parser.add_argument(
        "--again", action="store_true", help="drop the rows of these runs first"
    )
    parser.add_argument("--page", action="store_true", help="only the docs' table")


def run(args: argparse.Namespace) -> None:
    """Run what is left, then write and print."""
    if args.device != "cpu":
        raise SystemExit(f"Expected --device cpu, but got {args.device}.")
    if args.page:
        write_page(RowFile(ROWS, keys=Run._fields).table_for_page(), PAGE)
        print(f"Wrote to {PAGE}")
        return
    record = Record(args.output)
    print(caption(record.origin))
    noises = args.noise[:1] if args.smoke else args.noise
    functions = args.functions[:1] if args.smoke else args.functions
    wanted = [
        Run(function, noise, method, seed)
        # Seeds outside: a run that is stopped early has something of every function.
        for seed in range(min(args.seeds, 1) if args.smoke else args.seeds)
        for function in functions
        for noise in noises
        for method in args.methods
    ]
    rows = RowFile(record.folder / "rows.csv", keys=Run._fields)
    missing = rows.missing(wanted, again=args.again)
    functions = {name: as_function(make()) for name, make in FUNCTIONS.items()}
    checkpoints = (5, 7) if args.smoke else CHECKPOINTS
    for one in tqdm(missing, unit="run", disable=not missing):
        played = play(one, functions[one.function], checkpoints)
        rows.append(played.assign(**record.origin))
    table = rows.table()
    if len(table):
        summary = summarize(table)
        record.write_table(summary, "summary")
        print_table(summary)
    print(f"\nWrote to {record.folder}")


def play(one: Run, function: Function, checkpoints: tuple[int, ...]) -> pd.DataFrame:
    """Evaluate by one method until the last checkpoint; return a row for each."""
    stream = torch.Generator().manual_seed(2_000_000 + one.seed)
    noises = torch.randn(checkpoints[-1], generator=stream, dtype=torch.double)
    noises *= one.noise * function.deviation
    seconds, evaluated = 0.0, []
    rows: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(one.seed)
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on, and of noise near zero.
        warnings.simplefilter("ignore")
        player = METHODS[one.method](function.bounds, generator)
        for number in range(checkpoints[-1]):
            start = time.perf_counter()
            points = player.ask(1)
            seconds += time.perf_counter() - start
            values = function.values(points) + noises[number]
            start = time.perf_counter()
            player.tell(points, values)
            seconds += time.perf_counter() - start
            evaluated.append(points)
            if number + 1 in checkpoints:
                asks = number + 1 - (rows[-1]["evaluations"] if rows else 0)
                best = player.best_point().unsqueeze(0)
                regret = function.optimum - function.values(best).item()
                rows.append(
                    {
                        "evaluations": number + 1,
                        "simple_regret": regret,
                        "border": border_share(torch.cat(evaluated), function.bounds),
                        "seconds": seconds / asks,
                    }
                )
                seconds = 0.0
    table = pd.DataFrame(rows).assign(rows=len(checkpoints))
    for column, value in reversed(list(one._asdict().items())):
        table.insert(0, column, value)
    return table


def border_share(points: Tensor, bounds: Tensor) -> float:
    """Return the share of points with a coordinate at an end of its range."""
    near = 1e-6 * (bounds[1] - bounds[0])
    is_near = (points < bounds[0] + near) | (points > bounds[1] - near)
    return is_near.any(dim=-1).double().mean().item()


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return medians over seeds, and ours as multiples of the peers'."""
    keys = ["function", "noise", "method", "evaluations"]
    summary = (
        table.groupby(keys, sort=False)
        .agg(
            seeds=("seed", "nunique"),
            simple_regret=("simple_regret", "median"),
            border=("border", "mean"),
            seconds=("seconds", "mean"),
        )
        .reset_index()
    )
    summary["ratio"] = [
        ratio(table, row) for row in summary[keys].to_dict(orient="records")
    ]
    return summary


def write_page(table: pd.DataFrame, folder: Path) -> None:
    """Write ``practice_box.csv``: medians at the end, and in brackets the ratios.

    Args:
        table: The rows of finished runs.
        folder: Where to.
    """
    is_at_end = table["evaluations"] == table["evaluations"].max()
    summary = summarize(table[is_at_end])
    names = [name for name in FUNCTIONS if name in set(table["function"])]
    summary["function"] = pd.Categorical(summary["function"], names)
    summary["noise"] = summary["noise"].map(percent)
    summary["cell"] = list(map(_cell, summary["simple_regret"], summary["ratio"]))
    by = ["function", "noise"]
    cells = summary.pivot(index=by, columns="method", values="cell")
    cells = cells[[method for method in METHODS if method in cells]]
    seeds = summary.groupby(by, observed=True)["seeds"].agg(span)
    page = cells.assign(seeds=seeds).reset_index()
    headings = {str(column): str(column) for column in page}
    PageRecord(folder, {"practice_box": headings}, []).write_table(page, "practice_box")


def _cell(regret: float, ratio: float) -> str:
    # In decimals, however small.
    text = np.format_float_positional(regret, precision=2, fractional=False, trim="-")
    return text if math.isnan(ratio) else f"{text} ({ratio:.2f})"


def ratio(table: pd.DataFrame, row: dict[Any, Any]) -> float:
    """Return the factor between two medians; NaN for the peers, or without one."""
    for column in ("function", "noise", "evaluations"):
        table = table[table[column] == row[column]]
    columns = table.pivot_table("simple_regret", "seed", "method")
    names = [row["method"], PEERS.get(row["method"].split(",")[0], "")]
    if not set(names) <= set(columns):
        return math.nan
    ours, theirs = columns[names].dropna().median()
    return ours / theirs if theirs > 0 else math.nan
