"""One exact UCB argmax over 200,000 arms given 500 observations, from scratch.

Ours is ``optimize_acqf_finite`` on ``SingleTaskDTCGP`` with every input inducing, the
exact GP; stock BoTorch is ``optimize_acqf_discrete`` on ``SingleTaskGP``. Each runs in
a process of its own, which reports its own peak memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete

from benchmarks.record import provenance
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.optim import optimize_acqf_finite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, default=200_000)
    parser.add_argument("--num-observations", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)


def measure(
    name: str, num_arms: int, num_observations: int, threads: int
) -> tuple[float, float, int]:
    """Return seconds, added peak memory in MiB and the arm of one argmax."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_observations, 8, generator=generator, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True).sin()
    arms = torch.rand(num_arms, 8, generator=generator, dtype=torch.double)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if name == "ours":
        acqf = UpperConfidenceBound(SingleTaskDTCGP(X, Y), beta=2.0)
        index = int(optimize_acqf_finite(acqf, arms)[0])
    else:
        acqf = UpperConfidenceBound(SingleTaskGP(X, Y), beta=2.0)
        with torch.no_grad():
            point, _ = optimize_acqf_discrete(acqf, q=1, choices=arms)
        index = int((arms == point).all(dim=-1).nonzero()[0])
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return seconds, (after - before) / 1024, index


def run(args: argparse.Namespace) -> None:
    """Measure both in alternation; print medians."""
    num_arms = 2000 if args.smoke else args.num_arms
    rows: dict[str, list[tuple[float, float, int]]] = {"ours": [], "stock": []}
    context = multiprocessing.get_context("spawn")
    for _ in range(1 if args.smoke else args.repeats):
        for name, results in rows.items():
            # A fresh process each: peak memory never falls within one.
            with context.Pool(1) as pool:
                arguments = (name, num_arms, args.num_observations, args.threads)
                results.append(pool.apply(measure, arguments))
    print(provenance())
    print(f"{num_arms:,} arms, {args.num_observations} observations, d = 8")
    for name, results in rows.items():
        seconds, memory, index = sorted(results)[len(results) // 2]
        print(f"{name:6s} {seconds:7.2f} s  {memory:8.0f} MiB more  arm {index}")
