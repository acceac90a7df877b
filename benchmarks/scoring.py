"""One UCB argmax over A arms against n observations: seconds, peak memory, growth.

Four ways to find the arm of the largest `mean + sqrt(2 var)`; d = 8, RBF kernel of
lengthscale 0.5 on the unit cube, noise variance 0.1, standardized rewards:

- `ours, cold`: `ArmPosterior` from nothing, m inducing arms among the n observed.
- `ours, cached`: its features cached and its inducing arms unchanged, ten more pulls of
  random arms told; the median of many such updates.
- `ours, exact`: `optimize_acqf_finite` on `SingleTaskDTCGP`, every input inducing.
- `stock`: BoTorch's `optimize_acqf_discrete` on `SingleTaskGP`, from scratch.

Each repeat runs in a process of its own, in alternation, after a small one of its kind
to warm up; memory is the peak above what the process held before. The numbers of arms
rise; a way that meets `--max-seconds` or `--max-gib` is not tried on more arms, and the
table says what it met.

Then growth: the exponent p of `seconds = c size^p`, by least squares on logarithms,
beside the orders that the papers print (`exponents.csv` says where).

Writes `scoring.csv`, `scoring.png`, `growth.csv`, `exponents.csv` and `growth.png`.
"""

from __future__ import annotations

import argparse
from statistics import median

import pandas as pd
import torch
from matplotlib.figure import Figure

from benchmarks.growth import (
    exponents,
    growth_figure,
    growths,
    mark_sizes,
    measure_growth,
)
from benchmarks.measure import in_own_process, peak_memory, seconds_of
from benchmarks.record import caption, print_table, Record
from benchmarks.ways import Sizes, Task, WAYS
from botorch_bkb.plotting import blank_figure


# A small task that loads what a way needs.
WARM_UP = Sizes.unrepeated(1000, 50, 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument(
        "--num-arms", type=int, nargs="+", default=[10_000, 200_000, 1_000_000]
    )
    parser.add_argument("--num-observations", type=int, default=500)
    parser.add_argument("--num-inducing", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cached-updates", type=int, default=21)
    parser.add_argument("--max-seconds", type=float, default=600.0)
    parser.add_argument("--max-gib", type=float, default=12.0)


def run(args: argparse.Namespace) -> None:
    """Measure every way on every number of arms, then the growth; write and print."""
    record = Record(args.output, args.device)
    print(caption(record.origin))
    num_arms, num_observations = sorted(args.num_arms), args.num_observations
    repeats = args.repeats
    if args.smoke:
        num_arms, num_observations, repeats = [2000], 50, 1
    tasks = [
        Sizes.unrepeated(size, num_observations, args.num_inducing) for size in num_arms
    ]
    table = measure_ways(tasks, repeats, args)
    record.write_table(table, "scoring")
    summary = summarize(table)
    print_table(summary)
    print_ratios(summary)
    record.write_figure(figure(summary), "scoring")
    base = Sizes(400, 50, 20, 50) if args.smoke else Sizes(40_000, 500, 200, 500)
    measured = growths(base)
    growth = pd.concat(
        [measure_growth(one, args.device, repeats) for one in measured],
        ignore_index=True,
    )
    fits = exponents(growth, measured)
    record.write_table(growth, "growth")
    record.write_table(fits, "exponents")
    print()
    print_table(fits)
    record.write_figure(growth_figure(growth, fits), "growth")
    print(f"\nWrote scoring, growth and exponents to {record.folder}")


def measure_ways(
    tasks: list[Sizes], repeats: int, args: argparse.Namespace
) -> pd.DataFrame:
    """Return one row per way, task and repeat; ``failure`` names a limit that was met.

    A way that failed has no more rows.
    """
    # On an accelerator its own memory is the limit.
    on_cpu = torch.device(args.device).type == "cpu"
    max_bytes = int(args.max_gib * 2**30) if on_cpu else None
    rows = []
    failed: set[str] = set()
    for sizes in tasks:
        for repeat in range(repeats):
            for way in WAYS:
                if way in failed:
                    continue
                num_calls = args.cached_updates if way == "ours, cached" else 1
                outcome = in_own_process(
                    measure,
                    way,
                    sizes,
                    num_calls,
                    args.device,
                    args.threads,
                    max_seconds=args.max_seconds,
                    max_bytes=max_bytes,
                )
                if outcome.failure is not None:
                    failed.add(way)
                rows.append(
                    {
                        "way": way,
                        "num_arms": sizes.num_arms,
                        "num_observations": sizes.num_observed,
                        "num_inducing": sizes.num_inducing,
                        "repeat": repeat,
                        **(outcome.value or {}),
                        "failure": outcome.failure,
                    }
                )
    return pd.DataFrame(rows)


def measure(
    way: str, sizes: Sizes, num_calls: int, device: str, threads: int
) -> dict[str, float]:
    """Return the median seconds of some calls, the peak in MiB, and the last arm."""
    torch.set_num_threads(threads)
    WAYS[way](Task(WARM_UP, device))()
    task = Task(sizes, device)
    before = peak_memory(device)
    choose = WAYS[way](task)
    arms: list[int] = []
    seconds = [
        seconds_of(lambda: arms.append(choose()), device) for _ in range(num_calls)
    ]
    return {
        "seconds": median(seconds),
        "peak_mib": peak_memory(device) - before,
        "arm": arms[-1],
    }


def summarize(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per number of arms and way: medians, and what failed."""
    grouped = table.groupby(["num_arms", "way"], sort=False)
    return grouped.agg(
        repeats=("repeat", "size"),
        seconds=("seconds", "median"),
        peak_mib=("peak_mib", "max"),
        arm=("arm", "last"),
        failure=("failure", "last"),
    ).reset_index()


def print_ratios(summary: pd.DataFrame) -> None:
    """Print, where both ran, what stock BoTorch takes over what ours takes."""
    complete = summary[summary["failure"].isna()]
    for num_arms, rows in complete.groupby("num_arms"):
        seconds = rows.set_index("way")["seconds"]
        if "stock" not in seconds:
            continue
        ratios = (seconds["stock"] / seconds.drop("stock")).items()
        text = ", ".join(f"{way} {ratio:,.1f}" for way, ratio in ratios)
        print(f"{num_arms:,} arms, times as fast as stock BoTorch: {text}")


def figure(summary: pd.DataFrame) -> Figure:
    """Draw seconds and peak memory against the number of arms."""
    picture = blank_figure(9.0, 3.8)
    panels = picture.subplots(1, 2)
    for way, rows in summary.groupby("way", sort=False):
        complete = rows[rows["failure"].isna()]
        failures = rows["failure"].dropna()
        label = f"{way} ({failures.iloc[0]})" if len(failures) else str(way)
        # A peak that did not rise above what was held has no logarithm.
        for axes, values in zip(
            panels,
            (complete["seconds"], complete["peak_mib"].clip(lower=1)),
            strict=True,
        ):
            axes.plot(
                complete["num_arms"], values, marker="o", linewidth=1.8, label=label
            )
    for axes, unit in zip(panels, ("seconds", "peak memory (MiB)"), strict=True):
        mark_sizes(axes, summary["num_arms"])
        axes.set_xlabel("arms")
        axes.set_ylabel(unit)
    panels[0].legend(frameon=False, fontsize="small")
    return picture
