"""The package on a GPU: one table of seconds, in under eight minutes.

Each step runs in a process of its own. A step that fails is a row with its error, and
the others go on. `cpu_seconds` are those of the same step on the processor, with
`--threads` threads; `ratio` is `cpu_seconds / seconds`.

- `rebuild`: the posterior of all arms from nothing, d = 8, RBF kernel. The rate counts
  2 A m^2 operations. `rows kept` is a rebuild whose kernel rows are in memory, and
  `product` the rate of a square matrix product.
- `million`: BBKB, d = 16, `resampling="coupled"`, 2,000 pulls, at most 6 GB of
  features and kernel rows.
- `learned ask`: `ask(size=96)` of BBKB with a learned kernel, after 300 results,
  d = 16. `cpu_seconds` are those of the same ask over the measured arms and 96 more
  on the processor, which is little more than the fit of the hyperparameters.
- `abalone`: 2,000 pulls of BBKB. The table is Abalone if the folder that
  BOTORCH_BKB_DATA names has it, and random of the same size if not.
- `argmax`: the arm of the largest upper confidence bound after 500 observations, the
  posterior from nothing, 200 inducing arms, d = 8. Beside it `optimize_acqf_finite`
  and stock BoTorch on their exact models.
- `draws`: the best arms of 64 Thompson draws, beside BoTorch's pathwise draws.

It needs torch, BoTorch, GPyTorch, NumPy, pandas and matplotlib only. `--device cpu`
runs the steps on the processor. The exit code is 1 if a step failed. Writes `cuda.csv`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from textwrap import shorten
from typing import Any, NamedTuple

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.measure import in_own_process, peak_memory, seconds_of
from benchmarks.problems import load_problem, NOISE_STD
from benchmarks.record import caption, print_table, Record
from benchmarks.regret import Choices, play
from benchmarks.thompson_draws import draw_ours, draw_paths
from benchmarks.ways import Sizes, Task, WAYS
from botorch_bkb import BBKB
from botorch_bkb.optim import ArmPosterior
from botorch_bkb.test_functions import FiniteArmProblem


# Enough for the features and the kernel rows of every step.
MAX_FEATURE_BYTES = 12 * 2**30
NOISE_VARIANCE = 0.2
DIM = 16
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Measured(NamedTuple):
    """What a step measures on one device."""

    seconds: float
    reached: str


def random_arms(num_arms: int, dim: int) -> Tensor:
    """Return arms drawn uniformly from the unit cube."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num_arms, dim, generator=generator, dtype=torch.double)


def smooth_rewards(arms: Tensor) -> Tensor:
    """Return a smooth function of arms, without noise."""
    waves = (3 * arms[:, :4]).sin().sum(dim=-1)
    return waves - arms[:, 4:].square().mean(dim=-1)


def median_seconds(function: Callable[[], object], device: str) -> float:
    """Return the median of five calls on a GPU, of one on a processor, after one."""
    function()
    repeats = 1 if torch.device(device).type == "cpu" else 5
    return median(seconds_of(function, device) for _ in range(repeats))


# Steps


def rebuild(device: str, num_arms: int, num_inducing: int, dtype: str) -> Measured:
    """Rebuild the posterior of all arms."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.randn(num_arms, 8, generator=generator).to(device, DTYPES[dtype])
    kernel = RBFKernel().to(arms)
    kernel.lengthscale = 5**0.5
    pulled = torch.arange(2 * num_inducing, device=device)
    data = pulled, torch.ones_like(arms[pulled, 0]), arms[pulled].sum(dim=-1).sin()
    halves = pulled.split(num_inducing)

    def new_posterior() -> ArmPosterior:
        posterior = ArmPosterior(arms, kernel, NOISE_VARIANCE, MAX_FEATURE_BYTES)
        posterior.update(halves[0], *data)
        return posterior

    def from_nothing() -> Tensor:
        return new_posterior().variance

    seconds = median_seconds(from_nothing, device)
    posterior = new_posterior()
    m = len(posterior.inducing_indices)

    def rows_kept() -> Tensor:
        # The other half of the pulled arms: no update is incremental.
        is_first = bool(posterior.inducing_indices[0] < num_inducing)
        posterior.update(halves[1 if is_first else 0], *data)
        return posterior.variance

    rows_kept()  # computes the rows of the other half
    again = median_seconds(rows_kept, device)
    size = 4096 if torch.device(device).type == "cuda" else min(1500, num_arms)
    matrix = torch.randn(size, size, device=device, dtype=arms.dtype)
    product = median_seconds(lambda: matrix @ matrix, device)
    operations = 2 * num_arms * m**2
    return Measured(
        seconds,
        f"{operations / seconds / 1e12:.3g} Tflop/s (rows kept "
        f"{operations / again / 1e12:.3g}, product {2 * size**3 / product / 1e12:.3g})",
    )


def million(device: str, num_arms: int, horizon: int) -> Measured:
    """Run BBKB with coupled resampling within a byte budget."""
    arms = random_arms(num_arms, DIM)
    rewards = smooth_rewards(arms)
    kernel = RBFKernel().double().to(device)
    kernel.lengthscale = 4.0
    before = peak_memory(device)
    bandit = BBKB(
        arms.to(device),
        covar_module=kernel,
        noise_variance=0.1,
        resampling="coupled",
        max_feature_bytes=6_000_000_000,
        generator=torch.Generator().manual_seed(1),
    )
    rounds = play(bandit, _noisy(arms, rewards), horizon, seed=0)
    best = rewards[int(bandit.best_arm())] / rewards.max()
    return Measured(
        rounds["seconds"].iloc[-1],
        f"{len(rounds)} batches, m {len(bandit.inducing_indices)}, "
        f"{best:.3f} of the best reward, {peak_memory(device) - before:,.0f} MiB",
    )


def learned_ask(device: str, num_arms: int, num_results: int, size: int) -> Measured:
    """Ask for a batch with a learned kernel, after some results."""
    arms = random_arms(num_arms, DIM)
    measured = torch.arange(num_results)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(num_results, generator=generator, dtype=torch.double)
    rewards = smooth_rewards(arms[measured]) + NOISE_STD * noise

    def ask() -> Tensor:
        return bandit.ask(size=size)

    def new_bandit() -> BBKB:
        bandit = BBKB(
            arms.to(device),
            max_feature_bytes=MAX_FEATURE_BYTES,
            generator=torch.Generator().manual_seed(0),
        )
        bandit.tell(measured, rewards, external=True)
        return bandit

    bandit = new_bandit()
    ask()  # warms up
    bandit = new_bandit()
    return Measured(seconds_of(ask, device), f"{size} arms asked for")


def abalone(device: str, num_arms: int, horizon: int) -> Measured:
    """Run BBKB on a table."""
    try:
        problem = load_problem("abalone", None, smoke=False)
        table = "Abalone"
    except FileNotFoundError:
        arms = torch.randn(
            num_arms, 8, generator=torch.Generator().manual_seed(0), dtype=torch.double
        )
        problem, table = _noisy(arms, arms.sum(dim=-1).sin()), "random table"
    bandit = Choices().new_bandit(problem.arms, horizon, seed=0, device=device)
    rounds = play(bandit, problem, horizon, seed=0)
    last = rounds.iloc[-1]
    share = last["cumulative_regret"] / last["uniform_cumulative_regret"]
    return Measured(
        last["seconds"],
        f"{table}, {len(rounds)} batches, regret {share:.3f} of uniform choice's",
    )


def argmax(device: str, num_arms: int, num_observed: int) -> Measured:
    """Find the arm of the largest upper confidence bound."""
    task = Task(Sizes.unrepeated(num_arms, num_observed, 200), device)
    seconds = {
        way: median_seconds(WAYS[way](task), device)
        for way in ("ours, cold", "ours, exact", "stock")
    }
    return Measured(
        seconds["ours, cold"],
        f"optimize_acqf_finite {seconds['ours, exact']:.3g} s, stock BoTorch "
        f"{seconds['stock']:.3g} s",
    )


def draws(device: str, num_arms: int) -> Measured:
    """Find the best arms of 64 draws."""
    ours, paths = (
        median_seconds(draw(num_arms, device), device)
        for draw in (draw_ours, draw_paths)
    )
    return Measured(ours, f"BoTorch's paths {paths:.3g} s")


def _noisy(arms: Tensor, rewards: Tensor) -> FiniteArmProblem:
    return FiniteArmProblem(arms, rewards, noise_std=NOISE_STD)


class Step(NamedTuple):
    """One row of the table.

    Attributes:
        name: The step's name.
        measure: Takes the device and sizes.
        sizes: The sizes.
        on_cpu: The sizes of the comparison on the processor; None for no comparison.
        smoke: The sizes for `--smoke`.
    """

    name: str
    measure: Callable[..., Measured]
    sizes: tuple[Any, ...]
    on_cpu: tuple[Any, ...] | None
    smoke: tuple[Any, ...]


LARGE = (200_000, 512, "float64")
SINGLE = (200_000, 512, "float32")
STEPS = (
    Step("rebuild", rebuild, (20_640, 512, "float64"), None, (2000, 64, "float64")),
    Step("rebuild", rebuild, LARGE, LARGE, (3000, 64, "float64")),
    Step("rebuild", rebuild, SINGLE, SINGLE, (3000, 64, "float32")),
    Step("million", million, (1_000_000, 2000), None, (3000, 40)),
    Step("learned ask", learned_ask, (200_000, 300, 96), (396, 300, 96), (300, 30, 8)),
    Step(
        "learned ask", learned_ask, (1_000_000, 300, 96), (396, 300, 96), (500, 30, 8)
    ),
    Step("abalone", abalone, (4177, 2000), (4177, 2000), (500, 60)),
    Step("argmax", argmax, (1_000_000, 500), None, (2000, 50)),
    Step("draws", draws, (200_000,), None, (2000,)),
)


# The table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.set_defaults(device="cuda")
    names = list(dict.fromkeys(step.name for step in STEPS))
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="of all steps together"
    )
    parser.add_argument("--seconds-per-step", type=float, default=120.0)


def run(args: argparse.Namespace) -> None:
    """Run the steps; print and write the table."""
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "Expected a GPU that torch can use, but found none. Run the steps on the "
            "processor with --device cpu."
        )
    record = Record(args.output, args.device)
    end = time.monotonic() + args.seconds
    rows = []
    for step in STEPS:
        if step.name in args.steps:
            rows.append(row_of(step, args, end))
            print(f"{step.name} done", flush=True)
    table = pd.DataFrame(rows)
    table["ratio"] = table["cpu_seconds"] / table["seconds"]
    record.write_table(table, "cuda")
    print(caption(record.origin))
    print_table(table)
    if table["failed"].any():
        raise SystemExit(1)


def row_of(step: Step, args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Run a step, on the processor too where it is compared; return its row."""
    is_cpu = torch.device(args.device).type == "cpu"
    sizes = step.smoke if args.smoke else step.sizes
    row: dict[str, Any] = {
        "step": step.name,
        "size": ", ".join(f"{n:,}" if isinstance(n, int) else n for n in sizes),
        "seconds": float("nan"),
        "cpu_seconds": float("nan"),
        "reached": "",
        "failed": False,
    }
    runs = {"seconds": (args.device, sizes)}
    if step.on_cpu and not is_cpu:
        runs["cpu_seconds"] = ("cpu", step.smoke if args.smoke else step.on_cpu)
    for column, (device, sizes_there) in runs.items():
        limit = min(args.seconds_per_step, end - time.monotonic())
        measured, failure = _measure(step, device, args.threads, sizes_there, limit)
        if measured is None:
            row["failed"] = True
            row["reached"] += f" {device}: {failure}"
            continue
        row[column] = measured.seconds
        if column == "seconds":
            row["reached"] = measured.reached
    return row


def _measure(
    step: Step, device: str, threads: int, sizes: tuple[Any, ...], limit: float
) -> tuple[Measured | None, str]:
    """Return what a step measured, or how it failed."""
    if limit <= 0:
        return None, "not run, as --seconds were used"
    try:
        outcome = in_own_process(
            _with_threads, threads, step.measure, device, *sizes, max_seconds=limit
        )
    except RuntimeError as error:
        print(error, flush=True)
        return None, shorten(str(error).strip().splitlines()[-1], 70)
    return outcome.value, outcome.failure or ""


def _with_threads(
    threads: int, measure: Callable[..., Measured], device: str, *sizes: Any
) -> Measured:
    torch.set_num_threads(threads)
    return measure(device, *sizes)
