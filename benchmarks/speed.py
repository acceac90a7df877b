"""Seconds and memory of single tasks, beside stock BoTorch or another checkout.

- `argmax ...`: the arm of the largest `mean + sqrt(2 var)` among 200,000, d = 8, after
  500 observations. `cold`: from nothing, 200 inducing arms; `cached`: after ten more
  pulls; `exact`: `optimize_acqf_finite`; `stock`: `optimize_acqf_discrete` on
  `SingleTaskGP`.
- `rebuild ...`: the posterior of 200,000 arms from nothing, 200 inducing arms, d = 16,
  with a Matern-5/2 kernel or the kernel that is learned by default.
- `likelihood`: the marginal likelihood and its gradient, 32,000 rows, 200 inducing.
- `pulls ...`: a bandit on Abalone with kernel and noise given; BKB and GPUCB pull one
  arm at a time. Without BOTORCH_BKB_DATA, on a random table of the same size.
- `ask ...`: one ask of 5 among 30,000 candidates with kernel and noise learned, after
  100 results; of stock BoTorch too.

A task runs in a process of its own, `--repeats` times, all tasks in turn. Seconds are
medians. Memory is the peak beyond what the process held before. `stock / ours` compares
with the task of stock BoTorch; with `--other PATH`, `other / this` compares with the
package `botorch_bkb` of another checkout. `--profile` runs the tasks in this process
instead and prints where the time goes. Writes `speed.csv`.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.bbkb import new_bandit, play
from benchmarks.measure import in_own_process, Outcome, peak_memory, seconds_of
from benchmarks.problems import load_problem, NOISE_STD
from benchmarks.record import Record
from botorch_bkb.bandits import composite_to_learn
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import ArmPosterior, optimize_acqf_finite
from botorch_bkb.test_functions import FiniteArmProblem


NOISE_VARIANCE = 0.1
BETA = 2.0
# Enough for the features and the kernel rows of every task.
MAX_FEATURE_BYTES = 12 * 2**30

# What is timed; returns what was reached, in words.
Call = Callable[[], str]


class Task(NamedTuple):
    """Something to time.

    Attributes:
        prepare: Takes the device and sizes, does what is not timed, returns the call.
        sizes: The sizes.
        small: Sizes that warm up, and those of `--smoke`.
        calls: How many calls a process times.
        stock: The task of stock BoTorch to compare with; empty for none.
    """

    prepare: Callable[..., Call]
    sizes: tuple[Any, ...]
    small: tuple[Any, ...]
    calls: int = 1
    stock: str = ""


class Measured(NamedTuple):
    """What a task took."""

    seconds: float
    mib: float
    reached: str


# Tasks


def uniform_arms(num_arms: int, dim: int) -> Tensor:
    """Return arms drawn uniformly from the unit cube."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num_arms, dim, generator=generator, dtype=torch.double)


def noisy_rewards(arms: Tensor) -> Tensor:
    """Return a smooth function of arms with noise, standardized."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(arms), generator=generator, dtype=torch.double)
    rewards = (3 * arms).sin().sum(dim=-1) + NOISE_VARIANCE**0.5 * noise
    return (rewards - rewards.mean()) / rewards.std()


def rbf_kernel(like: Tensor, lengthscale: float) -> RBFKernel:
    """Return an RBF kernel on the device of a tensor."""
    kernel = RBFKernel().to(like)
    kernel.lengthscale = lengthscale
    return kernel.requires_grad_(False)


def argmax_sparse(
    device: str, num_arms: int, num_observed: int, num_inducing: int, cached: bool
) -> Call:
    """Update an ``ArmPosterior`` and search its bounds."""
    arms = uniform_arms(num_arms, 8).to(device)
    rewards = noisy_rewards(arms[:num_observed].cpu()).to(device)
    kernel, pulled = rbf_kernel(arms, 0.5), torch.arange(num_observed, device=device)
    counts = torch.ones_like(rewards)

    def new_posterior() -> ArmPosterior:
        posterior = ArmPosterior(arms, kernel, NOISE_VARIANCE, MAX_FEATURE_BYTES)
        posterior.update(pulled[:num_inducing], pulled, counts, counts * rewards)
        return posterior

    kept = new_posterior() if cached else None

    def choose() -> str:
        posterior = new_posterior() if kept is None else kept
        if kept is not None:
            counts[torch.randint(num_observed, (10,), device=device)] += 1
            kept.update(pulled[:num_inducing], pulled, counts, counts * rewards)
        bounds = posterior.mean + (BETA * posterior.variance).sqrt()
        return f"arm {int(bounds.argmax())}"

    return choose


def argmax_exact(device: str, num_arms: int, num_observed: int, stock: bool) -> Call:
    """Search an acquisition function over finite choices, ours or BoTorch's."""
    arms = uniform_arms(num_arms, 8).to(device)
    X = arms[:num_observed]
    Y = noisy_rewards(X.cpu()).to(device).unsqueeze(-1)
    kernel = rbf_kernel(arms, 0.5)
    new_model = SingleTaskGP if stock else SingleTaskDTCGP

    def choose() -> str:
        model = new_model(X, Y, covar_module=kernel, outcome_transform=None)
        model.likelihood.noise = NOISE_VARIANCE
        acqf = UpperConfidenceBound(model, beta=BETA)
        if not stock:
            return f"arm {int(optimize_acqf_finite(acqf, arms)[0])}"
        with torch.no_grad():
            point, _ = optimize_acqf_discrete(acqf, q=1, choices=arms)
        return f"arm {int((arms == point).all(dim=-1).nonzero()[0])}"

    return choose


def rebuild(
    device: str,
    num_arms: int,
    num_inducing: int,
    kernel_name: str,
    dtype: str = "float64",
    rows_kept: bool = False,
) -> Call:
    """Rebuild the posterior of all arms, from nothing or with kernel rows in memory.

    In memory, two disjoint sets of inducing arms take turns, so that no update is
    incremental.
    """
    arms = uniform_arms(num_arms, 16).to(device, getattr(torch, dtype))
    kernel: Kernel = MaternKernel(nu=2.5)
    kernel.lengthscale = 1.0
    if kernel_name == "default":
        kernel = composite_to_learn(arms)
    kernel = kernel.to(arms).requires_grad_(False)
    pulled = torch.arange(2 * num_inducing, device=device)
    rewards = noisy_rewards(arms[pulled].double().cpu()).to(arms)
    data = pulled, torch.ones_like(rewards), rewards
    halves = list(pulled.split(num_inducing))

    def new_posterior() -> ArmPosterior:
        return ArmPosterior(arms, kernel, NOISE_VARIANCE, MAX_FEATURE_BYTES)

    kept = new_posterior()

    def call() -> str:
        posterior = kept if rows_kept else new_posterior()
        posterior.update(halves[0], *data)
        halves.reverse()
        largest = posterior.variance.max().item()
        return f"m {len(posterior.inducing_indices)}, largest variance {largest:.3g}"

    if rows_kept:
        call()
        call()
    return call


def likelihood(device: str, num_rows: int, num_inducing: int) -> Call:
    """Evaluate a marginal likelihood and its gradient."""
    X = uniform_arms(num_rows, 4)
    Y = noisy_rewards(X).unsqueeze(-1).to(device)
    X = X.to(device)
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:num_inducing])
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()

    def evaluate() -> str:
        loss = -mll(model(*model.train_inputs), model.train_targets)
        loss.backward()
        return f"loss {loss.item():.4g}"

    return evaluate


def pulls(device: str, bandit: str, num_arms: int, horizon: int) -> Call:
    """Run a bandit of the BBKB paper's practical setting on a table."""
    try:
        problem, table = load_problem("abalone", smoke=False), "Abalone"
    except FileNotFoundError:
        arms = uniform_arms(num_arms, 8) * 12**0.5
        problem = FiniteArmProblem(arms, arms.sum(dim=-1).sin(), noise_std=NOISE_STD)
        table = "random table"
    name, _, law = bandit.partition(", ")
    options = {"resampling": law} if law else {}

    def run_bandit() -> str:
        one = new_bandit(name, problem.arms.to(device), horizon, seed=0, **options)
        last = play(one, problem, horizon, seed=0).iloc[-1]
        share = last["cumulative_regret"] / last["uniform_cumulative_regret"]
        return (
            f"{table}, {last['batch']:g} batches, regret {share:.3f} of uniform choice"
        )

    return run_bandit


def learned_ask(
    device: str, method: str, num_arms: int, dim: int, num_results: int, size: int
) -> Call:
    """Ask for a batch with kernel and noise learned, after some results."""
    # Only this task needs what the peers and `suggest` import.
    from benchmarks.practice_methods import METHODS

    arms = uniform_arms(num_arms, dim).to(device)
    measured = torch.arange(num_results, device=device)
    rewards = noisy_rewards(arms[:num_results].cpu()).to(device)

    def ask() -> str:
        player = METHODS[method](arms, torch.Generator().manual_seed(0))
        player.tell(measured, rewards)
        return f"{len(player.ask(size))} arms asked for"

    return ask


ARGMAX, SMALL_ARGMAX = (200_000, 500), (1000, 50)
STOCK = "argmax stock"
TASKS: dict[str, Task] = {
    "argmax cold": Task(
        argmax_sparse,
        (*ARGMAX, 200, False),
        (*SMALL_ARGMAX, 20, False),
        1,
        "argmax stock",
    ),
    "argmax cached": Task(
        argmax_sparse,
        (*ARGMAX, 200, True),
        (*SMALL_ARGMAX, 20, True),
        21,
        "argmax stock",
    ),
    "argmax exact": Task(
        argmax_exact, (*ARGMAX, False), (*SMALL_ARGMAX, False), 1, STOCK
    ),
    STOCK: Task(argmax_exact, (*ARGMAX, True), (*SMALL_ARGMAX, True)),
    "likelihood": Task(likelihood, (32_000, 200), (500, 20), 5),
    "rebuild Matern": Task(rebuild, (200_000, 200, "Matern"), (1000, 20, "Matern")),
    "rebuild default": Task(rebuild, (200_000, 200, "default"), (1000, 20, "default")),
}
for name, horizon in {
    "BBKB": 10_000,
    "BBKB, coupled": 10_000,
    "BKB": 2_000,
    "GPUCB": 2_000,
}.items():
    TASKS[f"pulls {name}"] = Task(pulls, (name, 4177, horizon), (name, 300, 30))
for name, stock in {
    "suggest": "ask qLogEI",
    "GPBandit": "ask qLogEI",
    "GPBandit, Thompson": "ask Thompson",
    "qLogEI": "",
    "Thompson": "",
}.items():
    TASKS[f"ask {name}"] = Task(
        learned_ask, (name, 30_000, 5, 100, 5), (name, 200, 5, 20, 2), 1, stock
    )


# The table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--other", type=Path, metavar="PATH", help="another checkout")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of a process")


def run(args: argparse.Namespace, record: Record) -> None:
    """Time the tasks, or profile them."""
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.profile:
        for name, task in tasks.items():
            print(f"\n{name}")
            task.prepare(args.device, *task.small)()
            sizes = task.small if args.smoke else task.sizes
            profiler = cProfile.Profile()
            profiler.runcall(task.prepare(args.device, *sizes))
            stats = pstats.Stats(profiler).strip_dirs()
            stats.sort_stats("cumulative").print_stats(30)
        return
    table = compare(tasks, args, args.other)
    record.show(table, "speed")


def compare(
    tasks: Mapping[str, Task], args: argparse.Namespace, other: Path | None = None
) -> pd.DataFrame:
    """Return a row per task: medians of seconds, ratios, or how it failed."""
    checkouts = (None,) if other is None else (None, other)
    outcomes: dict[tuple[Path | None, str], list[Outcome]] = {}
    for _ in range(1 if args.smoke else args.repeats):
        for name, task in tasks.items():
            one = task._replace(sizes=task.small) if args.smoke else task
            for checkout in checkouts:
                with package_of(checkout):
                    outcome = in_own_process(
                        measure,
                        one,
                        args.device,
                        args.threads,
                        max_seconds=args.max_seconds,
                    )
                outcomes.setdefault((checkout, name), []).append(outcome)
    rows = {key: _summary(found) for key, found in outcomes.items()}
    for name, task in tasks.items():
        row = rows[None, name]
        for column, key in {
            "stock / ours": (None, task.stock),
            "other / this": (other, name),
        }.items():
            if key in rows and rows[key] is not row:
                row[column] = rows[key]["seconds"] / row["seconds"]
    return pd.DataFrame([{"task": name, **rows[None, name]} for name in tasks])


def _summary(outcomes: list[Outcome]) -> dict[str, Any]:
    values: list[Measured] = [one.value for one in outcomes if one.failure is None]
    if not values:
        return {"seconds": float("nan"), "reached": outcomes[-1].failure}
    return {
        "seconds": median(one.seconds for one in values),
        "MiB": max(one.mib for one in values),
        "reached": values[-1].reached,
    }


@contextmanager
def package_of(checkout: Path | None) -> Iterator[None]:
    """Let new processes import `botorch_bkb`, and that alone, from another checkout."""
    if checkout is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        package = checkout.resolve(strict=True) / "botorch_bkb"
        (Path(folder) / "botorch_bkb").symlink_to(package)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def measure(task: Task, device: str, threads: int) -> Measured:
    """Measure a task in this process, after a small one that warms up."""
    torch.set_num_threads(threads)
    task.prepare(device, *task.small)()
    before = peak_memory(device)
    call = task.prepare(device, *task.sizes)
    reached: list[str] = []
    seconds = [
        seconds_of(lambda: reached.append(call()), device) for _ in range(task.calls)
    ]
    return Measured(median(seconds), peak_memory(device) - before, reached[-1])
