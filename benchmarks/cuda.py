"""The package on a GPU: one table of seconds, in under eight minutes.

Each step runs in a process of its own. A step that fails is a row with its error, and
the others go on. `cpu_seconds` are those of the same step on the processor, with
`--threads` threads; `ratio` is `cpu_seconds / seconds`.

- `product`: a square matrix product.
- `rebuild`: the posterior of all arms from nothing, d = 16, Matern-5/2 kernel. Its rate
  counts 2 A m^2 operations. `rows kept`: the kernel rows are in memory.
- `million`: BBKB, d = 16, RBF kernel of lengthscale 4, `resampling="coupled"`, at most
  6 GB of features and kernel rows.
- `learned ask`: 300 results and `ask(96)` of `GPBandit(arms)`, d = 16.
  `cpu_seconds` are those over the measured arms and 96 more, which is little more than
  the fit of kernel and noise.
- `abalone`, `argmax`, `draws`: the tasks `pulls BBKB` (to 2,000 pulls) and `argmax ...`
  of the benchmark `speed`, and those of `thompson`, of the sizes in the table.

It needs torch, BoTorch, GPyTorch, NumPy, pandas and matplotlib only. `--device cpu`
runs the steps on the processor. The exit code is 1 if a step failed. Writes `cuda.csv`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import pandas as pd
import torch

from benchmarks.bbkb import play
from benchmarks.measure import in_own_process
from benchmarks.record import Record
from benchmarks.speed import (
    argmax_exact,
    argmax_sparse,
    Call,
    MAX_FEATURE_BYTES,
    measure,
    noisy_rewards,
    pulls,
    rbf_kernel,
    rebuild,
    Task,
    uniform_arms,
)
from benchmarks.thompson import draw_ours, draw_paths
from botorch_bkb import BBKB, GPBandit
from botorch_bkb.test_functions import FiniteArmProblem


def product(device: str, size: int, dtype: str) -> Call:
    """Multiply two square matrices."""
    matrix = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))

    def multiply() -> str:
        return f"norm {torch.linalg.vector_norm(matrix @ matrix).item():.3g}"

    return multiply


def million(device: str, num_arms: int, horizon: int) -> Call:
    """Run BBKB within a byte budget."""
    arms = uniform_arms(num_arms, 16)
    rewards = (3 * arms[:, :4]).sin().sum(dim=-1) - arms[:, 4:].square().mean(dim=-1)
    problem = FiniteArmProblem(arms, rewards, noise_std=0.1)
    there = arms.to(device)
    kernel = rbf_kernel(there, 4.0)

    def run_bandit() -> str:
        bandit = BBKB(
            there,
            covar_module=kernel,
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


def learned_ask(device: str, num_arms: int, num_results: int, size: int) -> Call:
    """Add results, and ask for a batch with kernel and noise learned."""
    arms = uniform_arms(num_arms, 16).to(device)
    measured = torch.arange(num_results)
    rewards = noisy_rewards(arms[:num_results].cpu())

    def ask() -> str:
        bandit = GPBandit(
            arms,
            max_feature_bytes=MAX_FEATURE_BYTES,
            generator=torch.Generator().manual_seed(0),
        )
        bandit.add_observations(measured, rewards)
        return f"{len(bandit.ask(size))} arms"

    return ask


class Step(NamedTuple):
    """A row of the table; no comparison without sizes, no rate without operations."""

    name: str
    task: Task
    on_cpu: tuple[Any, ...] | None = None
    operations: float = 0.0


def _steps() -> list[Step]:
    size = 4096
    steps = [
        Step(f"product {d}", Task(product, (size, d), (64, d), 5), None, 2.0 * size**3)
        for d in ("float64", "float32")
    ]
    for num_arms, dtype, rows_kept in (
        (20_640, "float64", True),
        (20_640, "float64", False),
        (200_000, "float64", True),
        (200_000, "float64", False),
        (200_000, "float32", False),
    ):
        how = ("Matern", dtype, rows_kept)
        task = Task(rebuild, (num_arms, 512, *how), (1000, 64, *how), 5)
        name = f"rebuild {dtype}" + ", rows kept" * rows_kept
        on_cpu = None if rows_kept else task.sizes
        steps.append(Step(name, task, on_cpu, 2.0 * num_arms * 512**2))
    steps.append(Step("million", Task(million, (1_000_000, 2000), (2000, 30))))
    for num_arms in (200_000, 1_000_000):
        task = Task(learned_ask, (num_arms, 300, 96), (200, 30, 8))
        steps.append(Step("learned ask", task, (396, 300, 96)))
    for name, task in {
        "abalone": Task(pulls, ("BBKB", 4177, 2000), ("BBKB", 300, 30)),
        "argmax cold": Task(
            argmax_sparse, (1_000_000, 500, 200, False), (1000, 50, 20, False), 3
        ),
        "argmax exact": Task(
            argmax_exact, (1_000_000, 500, False), (1000, 50, False), 3
        ),
        "argmax stock": Task(argmax_exact, (1_000_000, 500, True), (1000, 50, True)),
        "draws ours": Task(draw_ours, (200_000,), (1000,), 3),
        "draws stock": Task(draw_paths, (200_000,), (1000,)),
    }.items():
        steps.append(Step(name, task, task.sizes if name == "abalone" else None))
    return steps


STEPS = _steps()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.set_defaults(device="cuda")
    names = list(dict.fromkeys(step.name for step in STEPS))
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="of all steps together"
    )
    parser.add_argument("--seconds-per-step", type=float, default=120.0)


def run(args: argparse.Namespace, record: Record) -> None:
    """Run the steps; print and write the table."""
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "Expected a GPU that torch can use, but found none. Run the steps on the "
            "processor with --device cpu."
        )
    end = time.monotonic() + args.seconds
    rows = []
    for step in STEPS:
        if step.name in args.steps:
            print(f"{step.name} ...", flush=True)
            rows.append(row_of(step, args, end))
    table = pd.DataFrame(rows)
    table["ratio"] = table["cpu_seconds"] / table["seconds"]
    record.show(table, "cuda")
    if table["failed"].any():
        raise SystemExit(1)


def row_of(step: Step, args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Run a step, on the processor too if it is compared; return its row."""
    sizes = step.task.small if args.smoke else step.task.sizes
    runs = {"seconds": (args.device, sizes)}
    if step.on_cpu and torch.device(args.device).type != "cpu":
        runs["cpu_seconds"] = ("cpu", step.task.small if args.smoke else step.on_cpu)
    numbers = [f"{size:,}" for size in sizes if type(size) is int]
    row: dict[str, Any] = {"step": step.name, "sizes": " ".join(numbers)}
    row |= dict.fromkeys(("seconds", "cpu_seconds", "Tflop/s"), float("nan"))
    row |= {"reached": "", "failed": False}
    for column, (device, sizes_there) in runs.items():
        calls = 1 if device == "cpu" else step.task.calls
        task = step.task._replace(sizes=sizes_there, calls=calls)
        limit = max(min(args.seconds_per_step, end - time.monotonic()), 0.0)
        outcome = in_own_process(measure, task, device, args.threads, max_seconds=limit)
        if outcome.failure is not None:
            row["failed"] = True
            row["reached"] += f"{device}: {outcome.failure} "
        else:
            row[column] = outcome.value.seconds
            row["reached"] = row["reached"] or outcome.value.reached
    if not args.smoke and step.operations:
        row["Tflop/s"] = step.operations / row["seconds"] / 1e12
    return row
