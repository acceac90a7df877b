"""Seconds and memory of single tasks, beside stock BoTorch or another checkout.

- `argmax ...`: the arm of the largest `mean + sqrt(2 var)` among 200,000, d = 8, after
  500 observations. `stock` and `finite`: BoTorch's `optimize_acqf_discrete` and our
  `optimize_acqf_finite`, either with BoTorch's `SingleTaskGP` (`GP`) or with
  `SingleTaskDTCGP` on all observations (`DTC`), whose posterior is the same. `cold`: an
  `ArmPosterior` from nothing, 200 inducing arms; `cached`: after ten more pulls.
- `batch ...`: 16 of 50,000 choices, d = 10, by a Monte Carlo function of 128 samples,
  200 results, with the same searches and models. The value is that of the batch by
  4,096 other samples.
- `rebuild ...`: the posterior of 200,000 arms from nothing, 200 inducing arms, d = 16,
  with a Matern-5/2 kernel or the kernel that is learned by default.
- `likelihood`: the marginal likelihood and its gradient, 32,000 rows, 200 inducing.
- `ask ...`: one ask of 5 among 30,000 candidates with kernel and noise learned, after
  100 results; of stock BoTorch too.
- `draws ...`: the best arms of 64 Thompson draws over 200,000 arms, d = 8, 500 pulls,
  from a posterior that is there. `ours`: `ArmSampler`, 300 inducing arms, features
  cached; `stock`: `draw_matheron_paths` on `SingleTaskGP`, 1,024 random Fourier
  features, 4,096 arms at a time.
- `million ...`: the same among a million arms (`argmax ...`); `pulls`: 2,000 pulls of
  BBKB, d = 16, RBF kernel of lengthscale 4, `resampling="coupled"`, at most 6 GB of
  features; `ask`: one ask of 96 with kernel and noise learned, d = 16,
  after 300 results; `numbers` and `words`: the same with five columns, of numbers or
  of 30 words each; `0/1`: a bandit without an ask, with 0/1 columns for these words.

A task runs in a process of its own, `--repeats` times, all tasks in turn. Seconds are
medians. Memory is the peak beyond what the process held before. `stock / ours` compares
with the task of stock BoTorch. A task that fails is a row with its error; the others go
on, and the exit code is 1. `--device cuda` runs on a GPU. Writes `speed.csv`.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from statistics import median
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.logei import (
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.bbkb import play
from benchmarks.measure import in_own_process, peak_memory, seconds_of
from benchmarks.record import Record
from botorch_bkb import BBKB, GPBandit
from botorch_bkb.bandits import composite_to_learn
from botorch_bkb.generation import ArmSampler
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import ArmPosterior, optimize_acqf_finite
from botorch_bkb.test_functions import FiniteArmProblem


NOISE_VARIANCE = 0.1
BETA = 2.0
NUM_DRAWS, NUM_DRAW_PULLS, PATH_CHUNK = 64, 500, 4096
NUM_WORDS = 30
# Enough for the features of every task.
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


def argmax_exact(
    device: str, num_arms: int, num_observed: int, search: str, model_name: str
) -> Call:
    """Search an exact upper bound over finite choices: either search, either model."""
    arms = uniform_arms(num_arms, 8).to(device)
    X = arms[:num_observed]
    Y = noisy_rewards(X.cpu()).to(device).unsqueeze(-1)
    kernel = rbf_kernel(arms, 0.5)
    new_model = SingleTaskGP if model_name == "GP" else SingleTaskDTCGP

    def choose() -> str:
        model = new_model(X, Y, covar_module=kernel, outcome_transform=None)
        model.likelihood.noise = NOISE_VARIANCE
        acqf = UpperConfidenceBound(model, beta=BETA)
        if search == "finite":
            return f"arm {int(optimize_acqf_finite(acqf, arms)[0])}"
        with torch.no_grad():
            point, _ = optimize_acqf_discrete(acqf, q=1, choices=arms)
        return f"arm {int((arms == point).all(dim=-1).nonzero()[0])}"

    return choose


def greedy_batch(
    device: str,
    num_choices: int,
    num_observed: int,
    q: int,
    function: str,
    search: str,
    model_name: str,
) -> Call:
    """Choose a batch greedily by a Monte Carlo function: either search and model."""
    choices = uniform_arms(num_choices, 10).to(device)
    X = choices[:num_observed]
    Y = noisy_rewards(X.cpu()).to(device).unsqueeze(-1)
    new_model = SingleTaskGP if model_name == "GP" else SingleTaskDTCGP
    model = new_model(X, Y, covar_module=rbf_kernel(X, 0.5), outcome_transform=None)
    model.likelihood.noise = NOISE_VARIANCE

    def new_function(num_samples: int, seed: int) -> AcquisitionFunction:
        sampler = SobolQMCNormalSampler(torch.Size([num_samples]), seed=seed)
        if function == "qUCB":
            return qUpperConfidenceBound(model, beta=BETA, sampler=sampler)
        if function == "qLogEI":
            return qLogExpectedImprovement(model, best_f=Y.max(), sampler=sampler)
        return qLogNoisyExpectedImprovement(model, X, sampler=sampler)

    def choose() -> str:
        with torch.no_grad():
            if search == "finite":
                batch = choices[
                    optimize_acqf_finite(new_function(128, 0), choices, q)[0]
                ]
            else:
                batch, _ = optimize_acqf_discrete(new_function(128, 0), q, choices)
            return f"value {new_function(4096, 1)(batch).item():.4f}"

    return choose


def rebuild(device: str, num_arms: int, num_inducing: int, kernel_name: str) -> Call:
    """Compute the posterior of all arms from nothing."""
    arms = uniform_arms(num_arms, 16).to(device)
    kernel: Kernel = MaternKernel(nu=2.5)
    kernel.lengthscale = 1.0
    if kernel_name == "default":
        kernel = composite_to_learn(arms)
    kernel = kernel.to(arms).requires_grad_(False)
    pulled = torch.arange(2 * num_inducing, device=device)
    rewards = noisy_rewards(arms[pulled].cpu()).to(arms)

    def call() -> str:
        posterior = ArmPosterior(arms, kernel, NOISE_VARIANCE, MAX_FEATURE_BYTES)
        inducing = pulled[:num_inducing]
        posterior.update(inducing, pulled, torch.ones_like(rewards), rewards)
        largest = posterior.variance.max().item()
        return f"m {len(posterior.inducing_indices)}, largest variance {largest:.3g}"

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


def pulls_of_many(device: str, num_arms: int, horizon: int) -> Call:
    """Run BBKB within a byte budget."""
    arms = uniform_arms(num_arms, 16)
    rewards = (3 * arms[:, :4]).sin().sum(dim=-1) - arms[:, 4:].square().mean(dim=-1)
    problem = FiniteArmProblem(arms, rewards, noise_std=0.1)
    there = arms.to(device)

    def run_bandit() -> str:
        bandit = BBKB(
            there,
            covar_module=rbf_kernel(there, 4.0),
            noise_variance=0.1,
            resampling="coupled",
            max_feature_bytes=6_000_000_000,
            generator=torch.Generator().manual_seed(1),
        )
        batches = len(play(bandit, problem, horizon, seed=0))
        share = (rewards[int(bandit.best_arm())] / rewards.max()).item()
        inducing = len(bandit.inducing_indices)
        return f"{batches} batches, m {inducing}, {share:.3f} of the best reward"

    return run_bandit


def ask_of_many(
    device: str,
    num_arms: int,
    num_results: int,
    size: int,
    dim: int = 16,
    kind: str = "numbers",
) -> Call:
    """Add results, and ask for a batch with kernel and noise learned, if it has one."""
    numbers = uniform_arms(num_arms, dim)
    measured = torch.arange(num_results)
    rewards = noisy_rewards(numbers[:num_results])
    codes = numbers.mul_(NUM_WORDS).long() if kind != "numbers" else numbers
    if kind == "words":
        words = np.array([f"word {n}" for n in range(NUM_WORDS)], dtype=object)
        columns = {name: words[each] for name, each in enumerate(codes.mT)}
        arms: Any = pd.DataFrame(columns)
    elif kind == "0/1":
        places = codes + NUM_WORDS * torch.arange(dim)
        zeros = torch.zeros(num_arms, dim * NUM_WORDS, dtype=torch.double)
        arms = zeros.scatter_(1, places, 1.0).to(device)
    else:
        arms = numbers.to(device)

    def ask() -> str:
        bandit = GPBandit(
            arms,
            max_feature_bytes=MAX_FEATURE_BYTES,
            generator=torch.Generator().manual_seed(0),
        )
        bandit.add_observations(measured, rewards)
        return f"{len(bandit.ask(size)) if size else 0} arms asked for"

    return ask


def draws_ours(device: str, num_arms: int) -> Call:
    """Draw with cached features."""
    arms = uniform_arms(num_arms, 8).to(device)
    rewards = noisy_rewards(arms[:NUM_DRAW_PULLS].cpu()).to(device)
    pulled = torch.arange(len(rewards), device=device)
    posterior = ArmPosterior(arms, rbf_kernel(arms, 0.5), NOISE_VARIANCE)
    posterior.update(pulled[:300], pulled, torch.ones_like(rewards), rewards)
    generator = torch.Generator(device=device).manual_seed(1)

    def draw() -> str:
        best = ArmSampler(posterior).draw_best_arms(NUM_DRAWS, generator)
        return f"{len(best.unique())} distinct arms"

    return draw


def draws_stock(device: str, num_arms: int) -> Call:
    """Draw BoTorch's paths, and maximize them chunk by chunk."""
    arms = uniform_arms(num_arms, 8).to(device)
    X = arms[:NUM_DRAW_PULLS]
    Y = noisy_rewards(X.cpu()).to(device).unsqueeze(-1)
    model = SingleTaskGP(
        X,
        Y,
        torch.full_like(Y, NOISE_VARIANCE),
        covar_module=rbf_kernel(arms, 0.5),
        mean_module=ZeroMean(),
        outcome_transform=None,
    ).eval()

    @torch.no_grad()
    def draw() -> str:
        with manual_seed(1):
            paths = draw_matheron_paths(model, torch.Size([NUM_DRAWS]))
        values, rows = zip(
            *(paths(chunk).max(dim=-1) for chunk in arms.split(PATH_CHUNK)), strict=True
        )
        best = torch.stack(values).argmax(dim=0, keepdim=True)
        indices = best * PATH_CHUNK + torch.stack(rows).gather(0, best)
        return f"{len(indices.unique())} distinct arms"

    return draw


TASKS: dict[str, Task] = {
    "likelihood": Task(likelihood, (32_000, 200), (500, 20), 5),
    "rebuild Matern": Task(rebuild, (200_000, 200, "Matern"), (1000, 20, "Matern")),
    "rebuild default": Task(rebuild, (200_000, 200, "default"), (1000, 20, "default")),
    "draws ours": Task(draws_ours, (200_000,), (1000,), 3, "draws stock"),
    "draws stock": Task(draws_stock, (200_000,), (1000,)),
    "million pulls": Task(pulls_of_many, (1_000_000, 2000), (2000, 30)),
    "million ask": Task(ask_of_many, (1_000_000, 300, 96), (200, 30, 8)),
    "million numbers": Task(ask_of_many, (1_000_000, 300, 96, 5), (200, 30, 8, 5)),
}
for kind, size in {"words": 96, "0/1": 0}.items():
    TASKS[f"million {kind}"] = Task(
        ask_of_many, (1_000_000, 300, size, 5, kind), (200, 30, min(size, 8), 5, kind)
    )
for prefix, num_arms in {"": 200_000, "million ": 1_000_000}.items():
    stock = f"{prefix}argmax stock GP"
    for name, prepare, sizes, small, calls in (
        ("cold", argmax_sparse, (500, 200, False), (50, 20, False), 1),
        ("cached", argmax_sparse, (500, 200, True), (50, 20, True), 21),
        ("stock GP", argmax_exact, (500, "stock", "GP"), (50, "stock", "GP"), 1),
        ("finite GP", argmax_exact, (500, "finite", "GP"), (50, "finite", "GP"), 1),
        ("stock DTC", argmax_exact, (500, "stock", "DTC"), (50, "stock", "DTC"), 1),
        ("finite DTC", argmax_exact, (500, "finite", "DTC"), (50, "finite", "DTC"), 1),
    ):
        TASKS[f"{prefix}argmax {name}"] = Task(
            prepare, (num_arms, *sizes), (1000, *small), calls, stock
        )
for function in ("qUCB", "qLogEI", "qLogNEI"):
    for search, model_name in (
        ("stock", "GP"),
        ("finite", "GP"),
        ("stock", "DTC"),
        ("finite", "DTC"),
    ):
        how = function, search, model_name
        TASKS[f"batch {' '.join(how)}"] = Task(
            greedy_batch,
            (50_000, 200, 16, *how),
            (100, 20, 2, *how),
            1,
            f"batch {function} stock {model_name}",
        )
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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of a process")
    parser.add_argument("--device", default="cpu")


def run(args: argparse.Namespace, record: Record) -> None:
    """Time the tasks; write and print a row per task."""
    outcomes: dict[str, list[Measured | str]] = {name: [] for name in args.tasks}
    for _ in range(1 if args.smoke else args.repeats):
        for name, found in outcomes.items():
            task = TASKS[name]
            task = task._replace(sizes=task.small) if args.smoke else task
            how = task, args.device, args.threads
            try:
                one = in_own_process(measure, *how, max_seconds=args.max_seconds)
            except Exception as error:
                traceback.print_exc()
                one = shorten(f"{type(error).__name__}: {error}", 70)
            found.append(one)
    rows = {name: _summary(found) for name, found in outcomes.items()}
    for name, row in rows.items():
        stock = TASKS[name].stock
        if stock in rows and stock != name:
            row["stock / ours"] = rows[stock]["seconds"] / row["seconds"]
    table = pd.DataFrame([{"task": name, **row} for name, row in rows.items()])
    record.show(table, "speed")
    if table["seconds"].isna().any():
        raise SystemExit(1)


def _summary(outcomes: list[Measured | str]) -> dict[str, Any]:
    """Return the row of a task, given what each repeat took, or its error."""
    values = [one for one in outcomes if isinstance(one, Measured)]
    if not values:
        return {"seconds": float("nan"), "reached": outcomes[-1]}
    return {
        "seconds": median(one.seconds for one in values),
        "MiB": max(one.mib for one in values),
        "reached": values[-1].reached,
    }


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
