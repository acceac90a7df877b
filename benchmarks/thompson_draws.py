"""Thompson draws over arms: moments, seconds and peak memory.

Moments: 20,000 draws on random problems (`--problems`, 25 arms in two dimensions, 8 of
them pulled) against the exact posterior of the weights. The largest of all standardized
errors of means and covariances is printed beside what the largest of as many standard
normal numbers exceeds with a probability of one in a thousand. With all arms inducing
the reference is the exact GP; with half of the pulled arms inducing it is `N(DTC mean,
z^T V^{-1} z')`, and the largest difference of its covariance to the exact GP's, over
the prior variance, is reported beside it.

Cost: the best arms of 64 draws; d = 8, RBF kernel of lengthscale 0.5 on the unit cube,
noise variance 0.1, 500 pulls.

- `ours`: `ArmSampler` on an `ArmPosterior` of 300 inducing arms, its features cached.
- `paths`: `draw_matheron_paths` of BoTorch on `SingleTaskGP` with 1,024 random Fourier
  features, evaluated 4,096 arms at a time.
- `joint`: `MaxPosteriorSampling` on `SingleTaskGP`, which draws all arms jointly.

`ours` and `paths` on 200,000 arms, `ours` and `joint` on 20,000; where `joint` meets
`--max-seconds` or `--max-gib`, on the next smaller of the sizes it is given, and the
table says what it met. What is timed is drawing from a posterior that is there;
building it is `posterior_seconds`. Each repeat runs in a process of its own, after a
small task to warm up; memory is the peak above what the process held before the draws.

Writes `moments.csv` and `draws.csv`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pandas as pd
import torch
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.means import ZeroMean
from scipy.stats import norm
from torch import Tensor

from benchmarks.measure import in_own_process, peak_memory, seconds_of, synchronize
from benchmarks.record import caption, print_table, Record
from botorch_bkb.generation import ArmSampler
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


NUM_DRAWS = 64
NUM_MOMENT_DRAWS = 20_000
NOISE_VARIANCE = 0.1
NUM_INDUCING = 300
NUM_PULLS = 500
DIMENSION = 8
PATH_CHUNK = 4096
WARM_UP_ARMS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--num-arms", type=int, default=200_000)
    parser.add_argument(
        "--joint-arms", type=int, nargs="+", default=[20_000, 10_000, 5_000, 2_000]
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=300.0)
    parser.add_argument("--max-gib", type=float, default=12.0)


def run(args: argparse.Namespace) -> None:
    """Compare moments, then costs; write and print."""
    record = Record(args.output, args.device)
    print(caption(record.origin))
    num_problems = 1 if args.smoke else args.problems
    moments = pd.DataFrame([compare_moments(seed) for seed in range(num_problems)])
    record.write_table(moments, "moments")
    print_table(moments)
    print()
    table = measure_costs(args)
    record.write_table(table, "draws")
    summary = summarize(table)
    print_table(summary)
    print_ratio(summary)
    print(f"\nWrote moments and draws to {record.folder}")


# Moments


def compare_moments(seed: int) -> dict[str, float]:
    """Return the largest standardized errors of one random problem."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(25, 2, generator=generator, dtype=torch.double)
    kernel = _kernel(0.3)
    K = kernel(arms).to_dense()
    pulled = torch.randperm(25, generator=generator)[:8]
    counts = torch.randint(1, 5, (8,), generator=generator).double()
    means = torch.randn(8, generator=generator, dtype=torch.double)
    row: dict[str, float] = {"seed": seed}
    covariances = []
    for name, S in {"all arms": torch.arange(25), "half": pulled[:4]}.items():
        posterior = ArmPosterior(arms, kernel, NOISE_VARIANCE)
        posterior.update(S, pulled, counts, counts * means)
        draws = ArmSampler(posterior).draw_values(NUM_MOMENT_DRAWS, generator)
        # The dense weight posterior, on the pseudo-inverse's features.
        mean, covariance = _dense_weights(K, S, pulled, counts, means)
        row[f"{name}: largest z"] = _largest_z(draws, mean, covariance)
        covariances.append(covariance)
    # With all arms inducing this is the exact GP.
    short = (covariances[0] - covariances[1]).abs().max().item()
    row["half: covariance short of the exact GP's by"] = short
    num_moments = 25 + 25 * 26 / 2
    row["z of 1 in 1,000"] = norm.isf(1e-3 / (2 * num_moments))
    return row


def _dense_weights(
    K: Tensor, S: Tensor, pulled: Tensor, counts: Tensor, means: Tensor
) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(K[S][:, S])
    kept = values > 1e-12 * values.max()
    Z = (vectors[:, kept] / values[kept].sqrt()).mT @ K[S]
    W, Z_p = counts / NOISE_VARIANCE, Z[:, pulled]
    V = torch.eye(len(Z)).to(Z) + (Z_p * W) @ Z_p.mT
    mean = Z.mT @ torch.linalg.solve(V, Z_p @ (W * means))
    return mean, Z.mT @ torch.linalg.solve(V, Z)


def _largest_z(draws: Tensor, mean: Tensor, covariance: Tensor) -> float:
    n = len(draws)
    centered = draws - mean
    scale = covariance.diagonal()
    error = (scale / n).sqrt() + 1e-9
    z_mean = (centered.mean(dim=0).abs() / error).max()
    error = ((torch.outer(scale, scale) + covariance.square()) / n).sqrt() + 1e-9
    z_covariance = ((centered.mT @ centered / n - covariance).abs() / error).max()
    return max(z_mean.item(), z_covariance.item())


# Costs


def measure_costs(args: argparse.Namespace) -> pd.DataFrame:
    """Return one row per way, number of arms and repeat."""
    num_arms, joint_arms = args.num_arms, sorted(args.joint_arms, reverse=True)
    repeats = args.repeats
    if args.smoke:
        num_arms, joint_arms, repeats = 4000, [1000], 1
    rows: list[dict[str, object]] = []
    for _ in range(repeats):
        for way in ("ours", "paths"):
            rows.append(_measured(way, num_arms, args))
        rows.append(_measured("ours", joint_arms[0], args))
        for size in joint_arms:
            rows.append(_measured("joint", size, args))
            if not rows[-1]["failure"]:
                break
    return pd.DataFrame(rows)


def _measured(way: str, num_arms: int, args: argparse.Namespace) -> dict[str, object]:
    on_cpu = torch.device(args.device).type == "cpu"
    outcome = in_own_process(
        measure,
        way,
        num_arms,
        args.device,
        args.threads,
        max_seconds=args.max_seconds,
        max_bytes=int(args.max_gib * 2**30) if on_cpu else None,
    )
    row: dict[str, object] = {"way": way, "num_arms": num_arms}
    return {**row, **(outcome.value or {}), "failure": outcome.failure}


def measure(way: str, num_arms: int, device: str, threads: int) -> dict[str, float]:
    """Return seconds and memory of 64 draws, in this process."""
    torch.set_num_threads(threads)
    WAYS[way](WARM_UP_ARMS, device)()
    synchronize(device)
    start = time.perf_counter()
    draw = WAYS[way](num_arms, device)
    synchronize(device)
    built = time.perf_counter() - start
    before = peak_memory(device)
    seconds = seconds_of(draw, device)
    return {
        "seconds": seconds,
        "peak_mib": peak_memory(device) - before,
        "posterior_seconds": built,
    }


def _task(num_arms: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(num_arms, DIMENSION, generator=generator, dtype=torch.double)
    noise = torch.randn(NUM_PULLS, generator=generator, dtype=torch.double)
    rewards = (3 * arms[:NUM_PULLS].sum(dim=-1)).sin() + NOISE_VARIANCE**0.5 * noise
    return arms.to(device), rewards.to(device)


def _kernel(lengthscale: float = 0.5) -> Kernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel.requires_grad_(False)


def draw_ours(num_arms: int, device: str) -> Callable[[], Tensor]:
    """Return our draws, from a posterior with cached features."""
    arms, rewards = _task(num_arms, device)
    posterior = ArmPosterior(arms, _kernel().to(device), NOISE_VARIANCE)
    pulled = torch.arange(NUM_PULLS, device=device)
    inducing = torch.arange(NUM_INDUCING, device=device)
    posterior.update(inducing, pulled, torch.ones_like(rewards), rewards)
    generator = torch.Generator(device=device).manual_seed(1)
    return lambda: ArmSampler(posterior).draw_best_arms(NUM_DRAWS, generator)


def _stock_model(arms: Tensor, rewards: Tensor) -> SingleTaskGP:
    targets = rewards.unsqueeze(-1)
    model = SingleTaskGP(
        arms[:NUM_PULLS],
        targets,
        torch.full_like(targets, NOISE_VARIANCE),
        covar_module=_kernel().to(arms.device),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    return model.eval()


def draw_paths(num_arms: int, device: str) -> Callable[[], Tensor]:
    """Return BoTorch's path draws, maximized chunk by chunk."""
    arms, rewards = _task(num_arms, device)
    model = _stock_model(arms, rewards)

    @torch.no_grad()
    def draw() -> Tensor:
        with manual_seed(1):
            paths = draw_matheron_paths(model, torch.Size([NUM_DRAWS]))
        best = arms.new_full((NUM_DRAWS,), -torch.inf)
        indices = torch.zeros(NUM_DRAWS, dtype=torch.long, device=device)
        for start in range(0, num_arms, PATH_CHUNK):
            values, positions = paths(arms[start : start + PATH_CHUNK]).max(dim=-1)
            better = values > best
            best = torch.where(better, values, best)
            indices = torch.where(better, positions + start, indices)
        return indices

    return draw


def draw_joint(num_arms: int, device: str) -> Callable[[], Tensor]:
    """Return BoTorch's joint draws."""
    arms, rewards = _task(num_arms, device)
    model = _stock_model(arms, rewards)
    strategy = MaxPosteriorSampling(model, replacement=True)

    @torch.no_grad()
    def draw() -> Tensor:
        with manual_seed(1):
            chosen: Tensor = strategy(arms, num_samples=NUM_DRAWS)
        return chosen

    return draw


WAYS = {"ours": draw_ours, "paths": draw_paths, "joint": draw_joint}


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return medians per way and number of arms, and what was met."""
    rows = []
    for (way, num_arms), runs in table.groupby(["way", "num_arms"], sort=False):
        failures = runs["failure"].dropna()
        row = {"way": way, "num_arms": num_arms}
        for column in ("seconds", "peak_mib", "posterior_seconds"):
            values = runs[column].dropna() if column in runs else runs.iloc[:0, 0]
            row[column] = median(values) if len(values) else np.nan
        rows.append({**row, "failure": failures.iloc[0] if len(failures) else ""})
    return pd.DataFrame(rows)


def print_ratio(summary: pd.DataFrame) -> None:
    """Print how many times as fast ours is as the paths on the same arms."""
    seconds = summary.set_index(["way", "num_arms"])["seconds"]
    size = summary.loc[summary["way"] == "paths", "num_arms"].iloc[0]
    print(
        f"\n{size:,} arms: {seconds['paths', size] / seconds['ours', size]:.1f} times "
        "as fast as BoTorch's paths (bar: 3)"
    )
