"""With every option left alone: our bandits over a box and stock BoTorch.

Test functions, negated, are maximized from 60 evaluations, one at a time. Nothing is
known of kernel and noise. An evaluation is the function's value plus Gaussian noise of
0 or 5 % of the standard deviation of its values over the box; at a seed the n-th one
brings all methods the same noise. All methods begin with 2 d scrambled Sobol points of
their own.

Stock BoTorch is ``SingleTaskGP`` with its defaults on the unit cube and standardized
values, fitted after every evaluation, and one of ``LogExpectedImprovement`` by
``optimize_acqf`` or a Thompson draw by ``get_matheron_path_model``, each maximized from
4 of 512 points by L-BFGS-B.

Recorded after 30 and 60 evaluations: the regret, by the function without noise, of the
evaluated point of the largest posterior mean (`simple_regret`), and the mean seconds of
an ask and its tell since the checkpoint before, fits included.

Every finished run, one of a function, noise, method and seed, is appended to the rows
and not run again, so a run that was killed continues; `--again` drops the rows first.
`practice_box.csv` has medians over seeds at the end and, of ours, in brackets the
factor to the peer's over the seeds that both have. `--page` makes that table for the
docs from the rows in `results/practice_box`, and runs nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch import test_functions
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.utils.sampling import (
    draw_sobol_samples,
    manual_seed,
    optimize_posterior_samples,
)
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.practice_tables import percent, span
from benchmarks.record import Record, RESULTS, show_for_page, write_page_table
from benchmarks.rows import add_run_arguments, finished_rows
from botorch_bkb.bandits import BoxBandit, BoxThompsonPolicy, rbf_to_learn


FILE = "practice_box/rows.csv.gz"
PAGE_COLUMNS = (
    *("function", "noise", "LogEI", "Thompson", "BoxBandit", "BoxBandit, Thompson"),
    "seeds",
)
NOISES = (0.0, 0.05)
CHECKPOINTS = (30, 60)
NUM_RESTARTS = 4
RAW_SAMPLES = 512
# From which the standard deviation over the box is computed.
NUM_SPREAD_POINTS = 2**14


class Function(NamedTuple):
    """A function to maximize, and the standard deviation of its values."""

    values: Callable[[Tensor], Tensor]
    bounds: Tensor
    optimum: float
    deviation: float


def load_function(name: str) -> Function:
    """Return one of ``FUNCTIONS``, to be maximized."""
    kind, dim = FUNCTIONS[name]
    options = {} if dim is None else {"dim": dim}
    problem = getattr(test_functions, kind)(negate=True, dtype=torch.double, **options)
    bounds = problem.bounds.double()
    points = draw_sobol_samples(bounds, NUM_SPREAD_POINTS, q=1, seed=0).squeeze(-2)
    deviation = problem.evaluate_true(points).std().item()
    return Function(problem.forward, bounds, float(problem.optimal_value), deviation)


# BoTorch's names and dimensions. The last eight were for choosing the kernel that is
# learned and the spread of Thompson draws.
FUNCTIONS = {
    "Branin": ("Branin", None),
    "Hartmann-6": ("Hartmann", 6),
    "Ackley-4": ("Ackley", 4),
    "Levy-4": ("Levy", 4),
    "Six-hump camel": ("SixHumpCamel", None),
    "Ackley-2": ("Ackley", 2),
    "Hartmann-3": ("Hartmann", 3),
    "Levy-3": ("Levy", 3),
    "Rosenbrock-3": ("Rosenbrock", 3),
    "Griewank-4": ("Griewank", 4),
    "Styblinski-4": ("StyblinskiTang", 4),
    "Michalewicz-5": ("Michalewicz", 5),
}


class StockPeer:
    """Stock BoTorch, one point at a time: ``choose`` returns it by the fitted model."""

    def __init__(
        self,
        choose: Callable[[SingleTaskGP, Tensor, Tensor], Tensor],
        bounds: Tensor,
        generator: torch.Generator,
    ) -> None:
        self.choose = choose
        self.bounds = bounds
        self.generator = generator
        self.points, self.rewards = bounds[:0], bounds.new_empty(0)
        num_first = 2 * bounds.shape[-1]
        first = draw_sobol_samples(bounds, num_first, q=1, seed=self._seed())
        self.first = first.squeeze(-2)

    def ask(self, size: int) -> Tensor:
        """Choose one point."""
        num_observed = len(self.points)
        if num_observed < len(self.first):
            return self.first[num_observed : num_observed + 1]
        with manual_seed(self._seed()):
            point = self.choose(self._fitted(), self.bounds, self.rewards.max())
        return point.detach().reshape(1, -1)

    def tell(self, points: Tensor, rewards: Tensor) -> None:
        """Append."""
        self.points = torch.cat([self.points, points])
        self.rewards = torch.cat([self.rewards, rewards])

    def best_point(self) -> Tensor:
        """Return the observed point of the largest posterior mean."""
        model = self._fitted()
        with torch.no_grad():
            mean = model.posterior(self.points).mean.squeeze(-1)
        return self.points[mean.argmax()]

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


def log_ei(model: SingleTaskGP, bounds: Tensor, largest: Tensor) -> Tensor:
    """Maximize ``LogExpectedImprovement``."""
    acqf = LogExpectedImprovement(model, best_f=largest)
    return optimize_acqf(
        acqf, bounds, q=1, num_restarts=NUM_RESTARTS, raw_samples=RAW_SAMPLES
    )[0]


def thompson(model: SingleTaskGP, bounds: Tensor, largest: Tensor) -> Tensor:
    """Maximize a draw of the posterior."""
    return optimize_posterior_samples(
        get_matheron_path_model(model),
        bounds,
        raw_samples=RAW_SAMPLES,
        num_restarts=NUM_RESTARTS,
    )[0]


# From the corners of the box, and the source of all randomness as `generator`.
METHODS: dict[str, Callable[..., Any]] = {
    "LogEI": partial(StockPeer, log_ei),
    "Thompson": partial(StockPeer, thompson),
    "BoxBandit": BoxBandit,
    "BoxBandit, Thompson": partial(BoxBandit, policy=BoxThompsonPolicy()),
    # Other kernels and spreads than the default.
    "BoxBandit, RBF": partial(BoxBandit, covar_module=rbf_to_learn),
    "BoxBandit, Thompson, full draws": partial(
        BoxBandit, policy=BoxThompsonPolicy(scale=1.0)
    ),
    "BoxBandit, Thompson, RBF, full draws": partial(
        BoxBandit, covar_module=rbf_to_learn, policy=BoxThompsonPolicy(scale=1.0)
    ),
}


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
        default=list(FUNCTIONS)[:4],
        help="the first four if omitted",
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
    add_run_arguments(parser, 10)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run what is left, then write and print."""
    noises = args.noise[:1] if args.smoke else args.noise
    functions = args.functions[:1] if args.smoke else args.functions
    checkpoints = (5, 7) if args.smoke else CHECKPOINTS
    wanted = [
        Run(function, noise, method, seed)
        # Seeds outside: a run that is stopped early has something of every function.
        for seed in range(args.seeds)
        for function in functions
        for noise in noises
        for method in args.methods
    ]

    def play_one(one: Run) -> pd.DataFrame:
        return play(one, load_function(one.function), checkpoints)

    table = summary(finished_rows(args, record, FILE, Run._fields, wanted, play_one))
    folder = (RESULTS / FILE).parent if args.page else record.folder
    write_page_table(table, folder, "practice_box")
    shown = table[list(PAGE_COLUMNS)] if args.page else table
    show_for_page(shown, "practice_box", is_page=args.page)


def play(one: Run, function: Function, checkpoints: tuple[int, ...]) -> pd.DataFrame:
    """Evaluate by one method until the last checkpoint; return a row for each."""
    stream = torch.Generator().manual_seed(2_000_000 + one.seed)
    noises = torch.randn(checkpoints[-1], generator=stream, dtype=torch.double)
    noises *= one.noise * function.deviation
    seconds: list[float] = []
    rows: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(one.seed)
    with warnings.catch_warnings():
        # Of fits that the optimizer gives up on, and of noise near zero.
        warnings.simplefilter("ignore")
        player = METHODS[one.method](function.bounds, generator=generator)
        for number in range(checkpoints[-1]):
            start = time.perf_counter()
            points = player.ask(1)
            asked = time.perf_counter() - start
            values = function.values(points) + noises[number]
            start = time.perf_counter()
            player.tell(points, values)
            seconds.append(asked + time.perf_counter() - start)
            if number + 1 in checkpoints:
                best = player.best_point().unsqueeze(0)
                row = {
                    "evaluations": number + 1,
                    "simple_regret": function.optimum - function.values(best).item(),
                    "seconds": mean(seconds),
                }
                rows.append(row)
                seconds = []
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return medians at the end, and in brackets the ratios."""
    end = table[table["evaluations"] == table["evaluations"].max()]
    rows = []
    for function in (name for name in FUNCTIONS if name in set(end["function"])):
        for noise, one in end[end["function"] == function].groupby("noise"):
            runs = one.pivot(index="seed", columns="method", values="simple_regret")
            row = {"function": function, "noise": percent(float(str(noise)))}
            for method in (name for name in METHODS if name in set(end["method"])):
                row[method] = _cell(runs, method) if method in runs else ""
            rows.append({**row, "seeds": span(runs.count())})
    return pd.DataFrame(rows)


def _cell(runs: pd.DataFrame, method: str) -> str:
    # In decimals, however small.
    text = np.format_float_positional(
        runs[method].median(), precision=2, fractional=False, trim="-"
    )
    peer = "Thompson" if "Thompson" in method else "LogEI"
    if method == peer or peer not in runs:
        return text
    ours, theirs = runs[[method, peer]].dropna().median()
    return f"{text} ({ours / theirs:.2f})" if theirs > 0 else text
