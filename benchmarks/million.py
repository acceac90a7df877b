"""BBKB over a million arms within a byte budget: seconds per batch and peak memory.

Arms drawn uniformly from the unit cube in 16 dimensions, the reward a smooth function
of them plus noise of deviation 0.1; RBF kernel of lengthscale 4, lambda = 0.1, default
rule and width, features and kernel rows within 6 GB. In a process of its own, which
reports its own peak memory.

With `--lengthscale 2` almost every pull is of a new arm and stays inducing: past 375
inducing arms their features no longer fit half the budget, every update becomes a full
rebuild, and a run takes hours.
"""

from __future__ import annotations

import argparse
import statistics
import time

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB
from botorch_bkb.models.utils.leverage_scores import Resampling


DIM = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, default=1_000_000)
    parser.add_argument("--horizon", type=int, default=2000)
    parser.add_argument("--lengthscale", type=float, default=4.0)
    parser.add_argument("--max-feature-bytes", type=int, default=6_000_000_000)
    parser.add_argument("--resampling", default="coupled")


def campaign(
    num_arms: int,
    horizon: int,
    lengthscale: float,
    max_feature_bytes: int,
    resampling: Resampling,
    threads: int,
    device: str,
) -> dict[str, float]:
    """Run BBKB; return its times, sizes and memory."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(num_arms, DIM, generator=generator, dtype=torch.double)
    rewards = (3 * arms[:, :4]).sin().sum(dim=-1) - arms[:, 4:].square().mean(dim=-1)
    kernel = RBFKernel().double().to(device)
    kernel.lengthscale = lengthscale
    before = peak_memory(device)
    bandit = BBKB(
        arms.to(device),
        covar_module=kernel,
        noise_variance=0.1,
        resampling=resampling,
        max_feature_bytes=max_feature_bytes,
        generator=torch.Generator().manual_seed(1),
    )
    seconds: list[float] = []
    while bandit.num_pulls < horizon:
        start = time.perf_counter()
        indices = bandit.ask(max_size=horizon - bandit.num_pulls).cpu()
        seconds.append(time.perf_counter() - start)
        noise = torch.randn(len(indices), generator=generator, dtype=torch.double)
        bandit.tell(indices, rewards[indices] + 0.1 * noise)
    return {
        "batches": len(seconds),
        "inducing": bandit.inducing_indices.numel(),
        "seconds": sum(seconds),
        "median_batch_seconds": statistics.median(seconds),
        "longest_batch_seconds": max(seconds),
        "peak_mib": peak_memory(device) - before,
        "share_of_best": rewards[bandit.best_arm()].item() / rewards.max().item(),
    }


def run(args: argparse.Namespace) -> None:
    """Run once; print one row."""
    num_arms, horizon = args.num_arms, args.horizon
    if args.smoke:
        num_arms, horizon = 5000, 40
    record = Record(args.output, args.device)
    outcome = in_own_process(
        campaign,
        num_arms,
        horizon,
        args.lengthscale,
        args.max_feature_bytes,
        args.resampling,
        args.threads,
        args.device,
    )
    table = pd.DataFrame(
        [{"num_arms": num_arms, "pulls": horizon, **(outcome.value or {})}]
    )
    record.write_table(table, "million")
    print(caption(record.origin))
    print_table(table.T.reset_index())
