"""BBKB on Abalone, 10,000 pulls, in the practical setting.

RBF kernel of lengthscale sqrt 5 on standardized features and reward, lambda = 0.2, F =
1, delta = 1 / T, q-bar = 2, C = 2, reward noise 0.1, practical width with xi =
sqrt(lambda). Needs ``abalone.csv``, by ``--data`` or the variable BOTORCH_BKB_DATA;
``--smoke`` makes up a table instead.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

import torch
from gpytorch.kernels import RBFKernel

from benchmarks.record import provenance
from botorch_bkb import BBKB
from botorch_bkb.acquisition.confidence import PracticalBBKBWidth
from botorch_bkb.models.utils.leverage_scores import Resampling
from botorch_bkb.test_functions import FiniteArmProblem
from botorch_bkb.test_functions.datasets import load_abalone


NOISE_STD = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--data", type=Path, help="path of abalone.csv")
    parser.add_argument("--horizon", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)


def problem(args: argparse.Namespace) -> FiniteArmProblem:
    """Return the table as a problem, or a made-up one in smoke mode."""
    if args.smoke:
        generator = torch.Generator().manual_seed(0)
        arms = torch.randn(300, 8, generator=generator, dtype=torch.double)
        return FiniteArmProblem(arms, arms.sum(dim=-1).sin(), NOISE_STD)
    return FiniteArmProblem.from_table(
        load_abalone(args.data), "rings", noise_std=NOISE_STD, standardize_reward=True
    )


def one_run(
    arms: FiniteArmProblem, horizon: int, resampling: Resampling, seed: int
) -> tuple[float, float, int, int]:
    """Return seconds (asking and telling), regret, batches and inducing points."""
    kernel = RBFKernel().double()
    kernel.lengthscale = math.sqrt(5)
    noises = torch.Generator().manual_seed(100 + seed)
    bandit = BBKB(
        arms.arms,
        covar_module=kernel,
        noise_variance=0.2,
        confidence=PracticalBBKBWidth(norm_bound=1.0, failure_probability=1 / horizon),
        resampling=resampling,
        generator=torch.Generator().manual_seed(seed),
    )
    seconds = regret = 0.0
    while bandit.num_pulls < horizon:
        start = time.perf_counter()
        indices = bandit.ask(max_size=horizon - bandit.num_pulls)
        seconds += time.perf_counter() - start
        rewards = arms.sample(indices, generator=noises)
        regret += arms.regret(indices).sum().item()
        start = time.perf_counter()
        bandit.tell(indices, rewards)
        seconds += time.perf_counter() - start
    return seconds, regret, bandit.num_batches, bandit.inducing_indices.numel()


def run(args: argparse.Namespace) -> None:
    """Run every seed under both laws; print one line each and the medians."""
    arms, horizon = problem(args), 200 if args.smoke else args.horizon
    one_run(arms, 50, "independent", 0)  # warms up
    print(provenance())
    print(f"{arms.num_arms:,} arms, {horizon:,} pulls")
    laws: tuple[Resampling, ...] = ("independent", "coupled")
    for resampling in laws:
        rows = []
        for seed in range(1 if args.smoke else args.seeds):
            rows.append(one_run(arms, horizon, resampling, seed))
            seconds, regret, batches, inducing = rows[-1]
            print(
                f"{resampling:11s} seed {seed}: {seconds:5.2f} s, regret {regret:8.0f},"
                f" {batches} batches, {inducing} inducing points"
            )
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{resampling:11s} median: {medians[0]:5.2f} s, regret {medians[1]:8.0f}")
