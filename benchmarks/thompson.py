"""The best arms of 64 Thompson draws over 200,000 arms, beside BoTorch's paths.

d = 8, RBF kernel of lengthscale 0.5 on the unit cube, noise variance 0.1, 500 pulls.

- `ours`: `ArmSampler` on an `ArmPosterior` of 300 inducing arms, its features cached.
- `stock paths`: `draw_matheron_paths` of BoTorch on `SingleTaskGP` with 1,024 random
  Fourier features, evaluated 4,096 arms at a time.

What is timed is drawing from a posterior that is there. The benchmark `speed` says how
tasks are measured. Writes `thompson.csv`.
"""

from __future__ import annotations

import argparse

import torch
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed
from gpytorch.means import ZeroMean
from torch import Tensor

from benchmarks.record import Record
from benchmarks.speed import (
    Call,
    compare,
    NOISE_VARIANCE,
    noisy_rewards,
    rbf_kernel,
    Task,
    uniform_arms,
)
from botorch_bkb.generation import ArmSampler
from botorch_bkb.optim import ArmPosterior


NUM_DRAWS = 64
NUM_PULLS = 500
NUM_INDUCING = 300
PATH_CHUNK = 4096


def draw_ours(device: str, num_arms: int) -> Call:
    """Draw with cached features."""
    arms, rewards = _observed(device, num_arms)
    pulled = torch.arange(len(rewards), device=device)
    posterior = ArmPosterior(arms, rbf_kernel(arms, 0.5), NOISE_VARIANCE)
    inducing = pulled[:NUM_INDUCING]
    posterior.update(inducing, pulled, torch.ones_like(rewards), rewards)
    generator = torch.Generator(device=device).manual_seed(1)
    return lambda: _distinct(
        ArmSampler(posterior).draw_best_arms(NUM_DRAWS, generator).unique()
    )


def draw_paths(device: str, num_arms: int) -> Call:
    """Draw BoTorch's paths, and maximize them chunk by chunk."""
    arms, rewards = _observed(device, num_arms)
    model = _stock_model(arms, rewards)

    @torch.no_grad()
    def draw() -> str:
        with manual_seed(1):
            paths = draw_matheron_paths(model, torch.Size([NUM_DRAWS]))
        best = arms.new_full((NUM_DRAWS,), -torch.inf)
        indices = torch.zeros(NUM_DRAWS, dtype=torch.long, device=device)
        for start in range(0, num_arms, PATH_CHUNK):
            values, positions = paths(arms[start : start + PATH_CHUNK]).max(dim=-1)
            indices = torch.where(values > best, positions + start, indices)
            best = torch.maximum(best, values)
        return _distinct(indices.unique())

    return draw


def _observed(device: str, num_arms: int) -> tuple[Tensor, Tensor]:
    arms = uniform_arms(num_arms, 8)
    return arms.to(device), noisy_rewards(arms[:NUM_PULLS]).to(device)


def _stock_model(arms: Tensor, rewards: Tensor) -> SingleTaskGP:
    targets = rewards.unsqueeze(-1)
    model = SingleTaskGP(
        arms[: len(rewards)],
        targets,
        torch.full_like(targets, NOISE_VARIANCE),
        covar_module=rbf_kernel(arms, 0.5),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    return model.eval()


def _distinct(arms: Tensor) -> str:
    return f"{len(arms)} distinct arms"


TASKS = {
    "ours": Task(draw_ours, (200_000,), (1000,), 1, "stock paths"),
    "stock paths": Task(draw_paths, (200_000,), (1000,)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of a process")


def run(args: argparse.Namespace, record: Record) -> None:
    """Compare; write and print."""
    table = compare(TASKS, args)
    record.show(table, "thompson")
