"""What a ceiling of inducing arms (`max_inducing`) costs and saves under little noise.

Arms drawn uniformly from the unit cube, a function drawn from the prior (Matern kernel
with nu = 2.5 and unit variance, by 2,000 random Fourier features), noise variance 1e-4:
so little that leverage scores keep nearly every arm that was measured.

speed: BBKB with a ceiling, told so many results of distinct arms from outside, then
batches of distinct arms; seconds per ask once the first has sampled what was told.
Columns: the median of a few asks, by the clock and of the processor (which others on
the machine do not lengthen, where there is one thread), and the memory of the process.

accuracy: means and variances of all arms after a few draws by leverage scores, against
the exact GP: pivots as the bandits choose them, beside what a smaller q-bar would have
kept by the same uniform numbers. Of arms measured once, and of arms measured many times
(geometric counts, 20 in the mean). Columns: the variance over the exact one, its median
and largest over arms and its mean over measured ones, and the root mean square
difference of the means, in deviations of the function.

regret: whole runs with and without a ceiling from the same 200 results, batches of
distinct arms. Columns: regret per pull after the start, regret of the arm of the best
mean at the end, inducing arms, seconds of the processor.

Fails if more arms are inducing than the ceiling allows.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import pandas as pd
import torch
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor

from benchmarks.measure import in_own_process, peak_memory
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB
from botorch_bkb.models.utils.leverage_scores import leverage_pivots
from botorch_bkb.posteriors import ArmPosterior


NOISE_VARIANCE = 1e-4
NUM_FEATURES = 2000
OVERSAMPLING = 2.0
MEAN_REPEATS = 20
START = 200
# Draws by leverage scores one after the other: each knows the one before.
NUM_DRAWS = 4
PARTS = ("speed", "accuracy", "regret")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--num-arms", type=int, default=200_000, help="of speed")
    parser.add_argument("--results", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--max-inducing", type=int, default=1000, help="of speed")
    parser.add_argument("--asks", type=int, default=3, help="of speed, per size")
    parser.add_argument("--max-feature-bytes", type=int, default=4 * 2**30)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--dimension", type=int, default=4)
    parser.add_argument("--lengthscale", type=float, default=0.5)
    parser.add_argument("--regret-arms", type=int, default=4000)
    parser.add_argument("--horizon", type=int, default=1200, help="of regret")
    parser.add_argument("--repetitions", type=int, default=1, help="of regret")


class Problem:
    """Arms, a function drawn from the prior, and noise."""

    def __init__(
        self, num_arms: int, dimension: int, lengthscale: float, seed: int
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.arms = self._uniform(num_arms, dimension)
        self.kernel: Kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
        self.kernel.lengthscale = lengthscale
        # The spectrum of a Matern kernel is a t distribution, 2 nu degrees of freedom.
        chi = self._normal(5, NUM_FEATURES).square().mean(dim=0)
        omega = self._normal(dimension, NUM_FEATURES) / chi.sqrt() / lengthscale
        phase = 2 * torch.pi * self._uniform(1, NUM_FEATURES).squeeze(0)
        weights = self._normal(NUM_FEATURES, 1).squeeze(-1)
        chunks = [
            (arms @ omega + phase).cos_() @ weights for arms in self.arms.split(10_000)
        ]
        self.values = torch.cat(chunks) * (2 / NUM_FEATURES) ** 0.5

    def measure(self, indices: Tensor) -> Tensor:
        """Return noisy values."""
        noise = self._normal(len(indices), 1).squeeze(-1)
        return self.values[indices] + NOISE_VARIANCE**0.5 * noise

    def bandit(self, max_inducing: int | None, max_feature_bytes: int = 2**31) -> BBKB:
        """Return a bandit that looks for the best arm."""
        return BBKB(
            self.arms,
            self.kernel,
            NOISE_VARIANCE,
            max_inducing=max_inducing,
            goal="best_arm",
            generator=torch.Generator().manual_seed(0),
            max_feature_bytes=max_feature_bytes,
        )

    def _normal(self, rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=self.generator, dtype=torch.double)

    def _uniform(self, rows: int, columns: int) -> Tensor:
        return torch.rand(rows, columns, generator=self.generator, dtype=torch.double)


class Player:
    """Asks, tells, and remembers what that took.

    Attributes:
        seconds: Those of each ask, by the clock.
        processor_seconds: And of the processor.
        indices: The arms of each ask.
    """

    def __init__(self, bandit: BBKB, problem: Problem, most: int | None) -> None:
        self.bandit, self.problem, self.most = bandit, problem, most
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []
        self.indices: list[Tensor] = []

    def play(self, batch_size: int) -> None:
        """Ask for a batch and tell its results."""
        start, busy = time.perf_counter(), time.process_time()
        indices = self.bandit.ask(size=batch_size)
        self.processor_seconds.append(time.process_time() - busy)
        self.seconds.append(time.perf_counter() - start)
        found = len(self.bandit.inducing_indices)
        if self.most is not None and found > self.most:
            raise RuntimeError(
                f"Expected {self.most} inducing arms at most, but got {found}."
            )
        self.bandit.tell(indices, self.problem.measure(indices))
        self.indices.append(indices)


def speed(args: argparse.Namespace) -> list[dict[str, float]]:
    """Return one row per number of results."""
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", "`max_inducing` took", BotorchWarning)
    before = peak_memory("cpu")
    problem = Problem(args.num_arms, args.dimension, args.lengthscale, seed=0)
    bandit = problem.bandit(args.max_inducing, args.max_feature_bytes)
    order = torch.randperm(args.num_arms, generator=problem.generator)
    rows = []
    for size in args.results:
        new = order[~torch.isin(order, bandit.counts.nonzero().squeeze(-1))]
        new = new[: size - bandit.num_pulls]
        bandit.tell(new, problem.measure(new), external=True)
        player = Player(bandit, problem, args.max_inducing)
        for _ in range(1 + args.asks):
            player.play(args.batch_size)
        rows.append(
            {
                "results": size,
                "inducing": len(bandit.inducing_indices),
                "first_seconds": player.seconds[0],
                "seconds": statistics.median(player.seconds[1:]),
                "processor_seconds": statistics.median(player.processor_seconds[1:]),
                "peak_mib": peak_memory("cpu") - before,
            }
        )
        print(rows[-1], flush=True)
    return rows


def accuracy(
    num_arms: int, num_results: int, ceilings: list[int], args: argparse.Namespace
) -> list[dict[str, float | str]]:
    """Return one row for each design, ceiling and way of keeping to it."""
    rows: list[dict[str, float | str]] = []
    problem = Problem(num_arms, args.dimension, args.lengthscale, seed=0)
    pulled = torch.randperm(num_arms, generator=problem.generator)[:num_results]
    once = torch.ones(num_results, dtype=torch.double)
    chance = torch.rand(num_results, generator=problem.generator, dtype=torch.double)
    many = (chance.log() / torch.tensor(1 - 1 / MEAN_REPEATS).log()).ceil()
    for design, counts in (("once", once), ("many", many)):
        sums = counts * problem.values[pulled] + counts.sqrt() * (
            problem.measure(pulled) - problem.values[pulled]
        )
        exact = _posterior(problem, pulled, pulled, counts, sums)
        for ceiling in ceilings:
            for way in ("pivots", "smaller q-bar"):
                generator = torch.Generator().manual_seed(1)
                S = pulled[:ceiling]
                for _ in range(NUM_DRAWS):
                    found = _posterior(problem, S, pulled, counts, sums)
                    scores = counts * found.leverage_scores_of(pulled)
                    uniforms = torch.rand(
                        num_results, generator=generator, dtype=torch.double
                    )
                    kept = (uniforms < OVERSAMPLING * scores).nonzero().squeeze(-1)
                    if len(kept) > ceiling and way == "pivots":
                        points = problem.arms[pulled[kept]]
                        best = leverage_pivots(
                            problem.kernel, points, counts[kept], ceiling
                        )
                        kept = kept[best]
                    elif len(kept) > ceiling:
                        # The least q-bar at which its own number keeps an arm.
                        least = (uniforms / scores)[kept]
                        kept = kept[least.argsort()[:ceiling]]
                    S = pulled[kept]
                found = _posterior(problem, S, pulled, counts, sums)
                ratio = found.variance / exact.variance
                error = (found.mean - exact.mean).square().mean().sqrt()
                rows.append(
                    {
                        "measured": design,
                        "ceiling": ceiling,
                        "way": way,
                        "inducing": len(S),
                        "median_ratio": ratio.median().item(),
                        "largest_ratio": ratio.max().item(),
                        "measured_ratio": ratio[pulled].mean().item(),
                        "mean_error": (error / problem.values.std()).item(),
                    }
                )
    return rows


def _posterior(
    problem: Problem, inducing: Tensor, pulled: Tensor, counts: Tensor, sums: Tensor
) -> ArmPosterior:
    posterior = ArmPosterior(problem.arms, problem.kernel, NOISE_VARIANCE)
    posterior.update(inducing, pulled, counts, sums)
    return posterior


def regret(
    num_arms: int,
    horizon: int,
    ceilings: list[int | None],
    seed: int,
    args: argparse.Namespace,
) -> list[dict[str, float]]:
    """Return one row per ceiling, of one seed."""
    rows = []
    for ceiling in ceilings:
        problem = Problem(num_arms, args.dimension, args.lengthscale, seed)
        bandit = problem.bandit(ceiling)
        start = torch.randperm(num_arms, generator=problem.generator)[:START]
        bandit.tell(start, problem.measure(start), external=True)
        player = Player(bandit, problem, ceiling)
        while bandit.num_pulls < horizon:
            player.play(args.batch_size)
        best, pulled = problem.values.max(), torch.cat(player.indices)
        rows.append(
            {
                "ceiling": float("inf") if ceiling is None else ceiling,
                "seed": seed,
                "regret_per_pull": (best - problem.values[pulled]).mean().item(),
                "regret_at_end": (best - problem.values[bandit.best_arm()]).item(),
                "inducing": len(bandit.inducing_indices),
                "processor_seconds": sum(player.processor_seconds),
            }
        )
        print(rows[-1], flush=True)
    return rows


def run(args: argparse.Namespace) -> None:
    """Run the parts, one table each."""
    record = Record(args.output, args.device)
    print(caption(record.origin))
    sizes = (4000, 2000, [100, 200, 400, 800, 1600])
    ceilings: list[int | None] = [None, 500, 250, 120]
    num_arms, horizon, repetitions = args.regret_arms, args.horizon, args.repetitions
    if args.smoke:
        args.num_arms, args.results, args.max_inducing = 3000, [300, 600], 50
        args.asks = 1
        sizes, ceilings = (400, 200, [50, 100]), [None, 50]
        num_arms, horizon, repetitions = 500, 400, 1
    tables: dict[str, list[dict[str, float]] | list[dict[str, float | str]]] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`max_inducing` took", BotorchWarning)
        for part in args.parts:
            if part == "speed":
                tables[part] = in_own_process(speed, args).value or []
            elif part == "accuracy":
                tables[part] = accuracy(*sizes, args)
            else:
                tables[part] = [
                    row
                    for seed in range(repetitions)
                    for row in regret(num_arms, horizon, ceilings, seed, args)
                ]
            table = pd.DataFrame(tables[part])
            record.write_table(table, part)
            print_table(table)
