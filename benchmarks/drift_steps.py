"""Seconds of one step of a drifting posterior, early and late.

- `exact`: `ArmFilter` over a grid of 50 x 50 arms: one observation and the prediction
  for the next time, beside equations (7) and (8) solved densely for all arms (`dense`:
  Cholesky factorization of the t x t covariance), at t = 20 and 2,000.
- `sparse`: `TVGPUCB(sparse=True)` over 100,000 arms of the unit square, one ask and one
  tell, around t = 100 and 10,000; and the number of inducing arms.

RBF kernel of lengthscale 0.2, eps = 0.03, noise variance 0.01. Medians over steps.
Writes `steps.csv`.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.record import caption, print_table, Record
from botorch_bkb import TVGPUCB
from botorch_bkb.acquisition import LogWidth
from botorch_bkb.models import ArmFilter


RATE, NOISE_VARIANCE = 0.03, 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--side", type=int, default=50)
    parser.add_argument("--num-arms", type=int, default=100_000)
    parser.add_argument("--max-inducing", type=int, default=500)


def run(args: argparse.Namespace) -> None:
    """Time both; write and print."""
    torch.set_num_threads(args.threads)
    side, num_arms, exact_times, sparse_times = (
        args.side,
        args.num_arms,
        (20, 2000),
        (100, 10_000),
    )
    if args.smoke:
        side, num_arms, exact_times, sparse_times = 6, 500, (20, 60), (20, 60)
    record = Record(args.output, args.device)
    print(caption(record.origin))
    rows = time_exact(side, exact_times)
    rows += time_sparse(num_arms, sparse_times, args.max_inducing)
    table = pd.DataFrame(rows)
    record.write_table(table, "steps")
    print_table(table)
    seconds = table.set_index(["way", "t"])["seconds"]
    early, late = exact_times
    print(
        f"\nexact: {seconds['dense', late] / seconds['exact', late]:.0f} times as fast "
        f"as the dense update at t = {late:,} (bar: 100), and "
        f"{seconds['exact', late] / seconds['exact', early]:.2f} of the seconds at "
        f"t = {early}"
    )
    early, late = sparse_times
    print(
        f"sparse: {seconds['sparse', late] / seconds['sparse', early]:.2f} of the "
        f"seconds at t = {early} (bar: 1.5)"
    )


def new_kernel() -> RBFKernel:
    """Return the kernel."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    return kernel.requires_grad_(False)


def time_exact(side: int, times: tuple[int, int]) -> list[dict[str, object]]:
    """Time the filter and the dense update at the same steps."""
    stream = torch.Generator().manual_seed(0)
    line = torch.linspace(0, 1, side, dtype=torch.double)
    K = new_kernel()(torch.cartesian_prod(line, line)).to_dense()
    num_arms = K.shape[0]
    pulled = torch.randint(num_arms, (times[-1] + 10,), generator=stream)
    rewards = torch.randn(len(pulled), generator=stream, dtype=torch.double)
    moving = ArmFilter(K, NOISE_VARIANCE, RATE)
    seconds = []
    for t in range(1, len(pulled) + 1):
        start = time.perf_counter()
        moving.observe(pulled[t - 1 : t], rewards[t - 1 : t], float(t))
        mean, variance = moving.predict(t + 1.0)
        seconds.append(time.perf_counter() - start)
    rows: list[dict[str, object]] = []
    for t in times:
        own = median(seconds[t - 10 : t + 10])
        rows.append({"way": "exact", "t": t, "seconds": own, "inducing": num_arms})
        slow = median(_dense(K, pulled[:t], rewards[:t])[0] for _ in range(3))
        rows.append({"way": "dense", "t": t, "seconds": slow, "inducing": t})
    dense_mean, dense_variance = _dense(K, pulled, rewards)[1:]
    error = max(
        (mean - dense_mean).abs().max().item(),
        (variance - dense_variance).abs().max().item(),
    )
    print(f"largest difference to the dense update: {error:.1e}")
    return rows


def _dense(
    K: torch.Tensor, pulled: torch.Tensor, rewards: torch.Tensor
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return the seconds of equations (7) and (8) for all arms, and their answer."""
    start = time.perf_counter()
    t = len(pulled)
    steps = torch.arange(1, t + 1, dtype=torch.double)
    gaps = (steps.unsqueeze(-1) - steps).abs()
    K_t = K[pulled][:, pulled] * (1 - RATE) ** (gaps / 2)
    K_t.diagonal().add_(NOISE_VARIANCE)
    decay = (1 - RATE) ** ((t + 1 - steps) / 2)
    cross = K[pulled] * decay.unsqueeze(-1)
    L = torch.linalg.cholesky(K_t)
    root = torch.linalg.solve_triangular(L, cross, upper=False)
    white = torch.linalg.solve_triangular(L, rewards.unsqueeze(-1), upper=False)
    mean = (root.mT @ white).squeeze(-1)
    variance = K.diagonal() - root.square().sum(dim=0)
    return time.perf_counter() - start, mean, variance


def time_sparse(
    num_arms: int, times: tuple[int, int], max_inducing: int
) -> list[dict[str, object]]:
    """Time asks and tells of the sparse bandit."""
    stream = torch.Generator().manual_seed(0)
    arms = torch.rand(num_arms, 2, generator=stream, dtype=torch.double)
    bandit = TVGPUCB(
        arms,
        new_kernel(),
        NOISE_VARIANCE,
        forgetting_rate=RATE,
        sparse=True,
        max_inducing=max_inducing,
        confidence=LogWidth(0.8, 4.0),
        generator=stream,
    )
    seconds, sizes = [], []
    for t in range(1, times[-1] + 21):
        angle = torch.tensor(t / 150.0)
        center = 0.5 + 0.3 * torch.stack([angle.cos(), angle.sin()]).double()
        start = time.perf_counter()
        indices = bandit.ask()
        asked = time.perf_counter() - start
        value = (-8 * (arms[indices] - center).square().sum(dim=-1)).exp()
        noise = torch.randn(1, generator=stream, dtype=torch.double)
        start = time.perf_counter()
        bandit.tell(indices, value + NOISE_VARIANCE**0.5 * noise)
        seconds.append(asked + time.perf_counter() - start)
        sizes.append(len(bandit.inducing_indices))
    return [
        {
            "way": "sparse",
            "t": t,
            "seconds": median(seconds[t - 20 : t + 20]),
            "mean_seconds": sum(seconds[t - 20 : t + 20]) / 40,
            "inducing": sizes[t],
        }
        for t in times
    ]
