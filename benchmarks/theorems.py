r"""Do the papers' statements hold in whole runs, and what happens at q-bar = 2?

Part 1, leverage scores. BBKB on a linear kernel, 20,000 arms in an ellipsoid whose axes
halve from one to the next, each pulled once, lambda = 1. Theorem 1 and Lemma 3 of the
BBKB paper: with q-bar = 8 log(4 T / delta), with probability 1 - delta, at every batch,

    var(x) / 3 <= var~(x) <= 3 var(x)                          for all arms,
    |S| <= 9 C~ (1 + kappa^2 / lambda) q-bar d_eff.

q-bar is above 100, so the pulls must be many for ``|S|`` to be a small part of them.
The exact variances come from the d x d matrix of the weights. The same rates are
reported at q-bar = 2 under both inclusion and both resampling laws, which no theorem
covers. (Theorem 1 of BKB asks six times the q-bar and a draw at every step: with as
many inducing arms as it keeps, a run takes too long to repeat.)

Part 2, regret. Functions of known norm F = 1 in the RKHS of an RBF kernel, noise of
known deviation 0.1, the theorems' widths and q-bar: the band mean +- w sqrt(var /
lambda) covers the function at all arms and batches with probability 1 - delta (Theorem
2 of either paper); the cumulative regret grows with an exponent below one; batches and
inducing arms stay within a multiple of the effective dimension.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from torch import Tensor

from benchmarks.measure import fitted_exponent
from benchmarks.record import caption, print_table, Record
from botorch_bkb import BBKB, BKB
from botorch_bkb.acquisition.confidence import (
    bbkb_oversampling,
    BBKBWidth,
    bkb_oversampling,
    BKBWidth,
)
from botorch_bkb.models.utils.leverage_scores import Inclusion, Resampling


# Small, so that two failures in a handful of runs already refute a theorem.
FAILURE_PROBABILITY = 1e-3
RATIO_THRESHOLD = 2.0
ACCURACY = 3.0  # of Lemma 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--num-arms", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=12)
    parser.add_argument("--runs", type=int, default=10)


@dataclass(frozen=True)
class Sampling:
    """How inducing arms are drawn; ``oversampling`` None for the theorem's."""

    oversampling: float | None = None
    inclusion: Inclusion = "per_pull"
    resampling: Resampling = "independent"


SAMPLINGS = (
    Sampling(),
    Sampling(2.0),
    Sampling(2.0, "merged"),
    Sampling(2.0, "per_pull", "coupled"),
    Sampling(2.0, "merged", "coupled"),
)


def ellipsoid(num_arms: int, dim: int, generator: torch.Generator) -> Tensor:
    """Return normal arms of norm at most one; each deviation is half the last."""
    draw = torch.randn(num_arms, dim, generator=generator, dtype=torch.double)
    arms = draw * 2.0 ** -torch.arange(dim)
    return arms / arms.norm(dim=-1).max()


def exact_linear_variances(arms: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``x^T (I + sum_i n_i x_i x_i^T)^{-1} x``: the GP's, at lambda = 1."""
    precision = np.eye(arms.shape[1]) + (arms * counts[:, None]).T @ arms
    return np.einsum("ij,ji->i", arms, np.linalg.solve(precision, arms.T))


def leverage_run(
    num_arms: int, dim: int, sampling: Sampling, seed: int
) -> dict[str, float]:
    """Pull every arm once; return the worst of each statement over all batches."""
    generator = torch.Generator().manual_seed(seed)
    arms = ellipsoid(num_arms, dim, generator)
    kernel = LinearKernel().double()
    kernel.variance = 1.0
    oversampling = sampling.oversampling
    if oversampling is None:
        oversampling = bbkb_oversampling(num_arms, FAILURE_PROBABILITY)
    bandit = BBKB(
        arms,
        covar_module=kernel,
        noise_variance=1.0,
        oversampling=oversampling,
        inclusion=sampling.inclusion,
        resampling=sampling.resampling,
        max_repeats=1,
        generator=generator,
    )
    rewards = arms @ torch.randn(dim, generator=generator, dtype=torch.double)
    worst_ratio, worst_size, size = 1.0, 0.0, 0
    while bandit.num_pulls < num_arms:
        indices = bandit.ask(max_size=num_arms // 20)
        if bandit.num_pulls:
            counts = bandit.counts.numpy()
            exact = exact_linear_variances(arms.numpy(), counts)
            ratio = bandit.predict()[1].numpy() / exact
            worst_ratio = max(worst_ratio, ratio.max(), 1 / ratio.min())
            d_eff = (counts * exact).sum()
            size = bandit.inducing_indices.numel()
            bound = 9 * RATIO_THRESHOLD * (1 + 1.0) * oversampling * d_eff
            worst_size = max(worst_size, size / bound)
        bandit.tell(indices, rewards[indices])
    return {
        "worst_ratio": worst_ratio,
        "size_over_bound": worst_size,
        "inducing_share": size / bandit.num_pulls,
        "batches": bandit.num_batches,
        "failed": float(worst_ratio > ACCURACY or worst_size > 1),
    }


def regret_run(name: str, horizon: int, seed: int) -> dict[str, float]:
    """Optimize a function of known norm; return coverage, regret and sizes."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(200, 2, generator=generator, dtype=torch.double)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    with torch.no_grad():
        gram = kernel(arms).to_dense()
    weights = torch.zeros(200, dtype=torch.double)
    weights[:10] = torch.randn(10, generator=generator, dtype=torch.double)
    norm = (weights @ gram @ weights).sqrt()
    function, norm_bound, noise_std = gram @ weights / norm, 1.0, 0.1
    bandit_class, noise_variance = (BKB, 0.1) if name == "BKB" else (BBKB, 1.0)
    width_class = BKBWidth if name == "BKB" else BBKBWidth
    delta = FAILURE_PROBABILITY
    oversampling = (
        bkb_oversampling(horizon, delta)
        if name == "BKB"
        else bbkb_oversampling(horizon, delta, RATIO_THRESHOLD)
    )
    schedule = width_class(norm_bound, noise_std, delta)
    bandit = bandit_class(
        arms,
        covar_module=kernel,
        noise_variance=noise_variance,
        confidence=schedule,
        oversampling=oversampling,
        generator=generator,
    )
    gaps = function.max() - function
    regret: list[Tensor] = []
    covered, worst_size = True, 0.0
    while bandit.num_pulls < horizon:
        indices = bandit.ask(max_size=horizon - bandit.num_pulls)
        if bandit.num_pulls:
            mean, _ = bandit.predict()
            band = bandit.confidence_bound() - mean
            covered &= bool(((function - mean).abs() <= band + 1e-9).all())
            worst_size = max(
                worst_size,
                bandit.inducing_indices.numel()
                / effective_dimension(gram, bandit.counts, noise_variance),
            )
        bandit.tell(
            indices,
            function[indices]
            + noise_std
            * torch.randn(len(indices), generator=generator, dtype=torch.double),
        )
        regret.append(gaps[indices])
    cumulative = torch.cat(regret).cumsum(0).numpy()
    steps = np.arange(1, horizon + 1)
    late = slice(horizon // 2, None)
    d_eff = effective_dimension(gram, bandit.counts, noise_variance)
    return {
        "failed": float(not covered),
        "exponent": fitted_exponent(steps[late], cumulative[late]),
        "regret": cumulative[-1],
        "uniform_regret": horizon * gaps.mean().item(),
        "batches_over_d_eff": bandit.num_batches / d_eff,
        "inducing_over_d_eff": worst_size,
        "d_eff": d_eff,
    }


def effective_dimension(gram: Tensor, counts: Tensor, noise_variance: float) -> float:
    """Return ``Tr(K (K + lambda I)^{-1})`` of all pulls, from the dense Gram matrix."""
    pulled = counts.nonzero().squeeze(-1)
    roots = counts[pulled].to(gram).sqrt()
    K = roots.unsqueeze(-1) * gram[pulled][:, pulled] * roots
    eigenvalues = torch.linalg.eigvalsh(K).clamp_min(0.0)
    return (eigenvalues / (eigenvalues + noise_variance)).sum().item()


def run(args: argparse.Namespace) -> None:
    """Run both parts; print shares of failed runs and means of the rest."""
    num_arms, runs = args.num_arms, args.runs
    horizons = {"BKB": 1000, "BBKB": 10_000}
    if args.smoke:
        num_arms, runs, horizons = 1000, 2, {"BKB": 60, "BBKB": 200}
    record = Record(args.output, args.device)
    print(caption(record.origin))
    scores = pd.DataFrame(
        asdict(sampling)
        | {"seed": seed}
        | leverage_run(num_arms, args.dim, sampling, seed)
        for sampling in SAMPLINGS
        for seed in range(runs)
    )
    scores["oversampling"] = scores["oversampling"].fillna(
        bbkb_oversampling(num_arms, FAILURE_PROBABILITY)
    )
    record.write_table(scores, "leverage_scores")
    print(f"\n{num_arms:,} distinct pulls, d = {args.dim}: means of {runs} runs")
    laws = ["oversampling", "inclusion", "resampling"]
    print_table(scores.groupby(laws, as_index=False).mean().drop(columns="seed"))
    regrets = pd.DataFrame(
        {"bandit": name, "horizon": horizon, "seed": seed}
        | regret_run(name, horizon, seed)
        for name, horizon in horizons.items()
        for seed in range(runs)
    )
    record.write_table(regrets, "regret")
    print(f"\nfunctions of norm 1: means of {runs} runs")
    means = regrets.groupby(["bandit", "horizon"], as_index=False).mean()
    print_table(means.drop(columns="seed"))
