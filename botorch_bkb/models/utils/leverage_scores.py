"""Sampling inducing points by ridge leverage scores, ``var(x) / lambda`` of a pull."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.checks import check_fraction, check_number, check_positive
from botorch_bkb.models.utils.nystrom import dense_covariance, SPAN_TOLERANCE
from botorch_bkb.models.utils.rows import find_replicates, sum_replicates


# Rows of the factor that are computed at once, of points that may be the next pivots: a
# product of matrices is several times as fast as that many with vectors.
PIVOTS_AHEAD = 16
# Inducing points by number are chosen among so many times as many random ones.
CANDIDATES = 5
# From this share of the unique inputs on, factorization and prediction take as long as
# those of the exact GP.
MAX_SPARSE_SHARE = 0.4

Resampling = Literal["independent", "coupled"]
Inclusion = Literal["merged", "per_pull"]


RESAMPLING = {
    "independent": "fresh draws, as the theorems assume",
    "coupled": "one uniform number per arm for good",
}
INCLUSION = {
    "merged": "the pulls of an arm are one row",
    "per_pull": "each pull is kept on its own",
}


def check_oversampling(oversampling: float) -> None:
    """Raise unless the oversampling factor is positive."""
    check_positive("oversampling", oversampling, "The BBKB paper uses 2.")


def log_exclusion(leverage_scores: Tensor, oversampling: float) -> Tensor:
    r"""Return the log probability that a single pull is NOT kept.

    A pull is kept with probability ``min(1, oversampling * score)``, algorithm BKB of
    [calandriello2019bkb]_. An arm is dropped if each of its pulls is, so these
    logarithms add over the pulls of an arm.
    """
    check_oversampling(oversampling)
    return torch.log1p(-(oversampling * leverage_scores).clamp(0.0, 1.0))


def inclusion_probabilities(
    leverage_scores: Tensor,
    counts: Tensor,
    oversampling: float,
    inclusion: Inclusion = "merged",
) -> Tensor:
    r"""Return the probabilities with which pulled arms are kept as inducing points.

    ``"per_pull"`` keeps each of the ``n`` pulls of an arm on its own, with probability
    ``p = min(1, oversampling * score)``, as algorithm BKB of [calandriello2019bkb]_
    prints it: the arm is kept with probability ``1 - (1 - p)^n``. ``"merged"`` takes
    the pulls for one row, whose leverage score is ``n * score``, and keeps the arm with
    probability ``min(1, n * oversampling * score)``, as the authors' released code
    does. It is never smaller, so the guarantees for accuracy carry over, and the
    expected number of inducing points has the same bound, ``oversampling`` times the
    effective dimension. Per pull, an arm far from all others is dropped with
    probability ``exp(-oversampling)`` however often it was pulled.

    Args:
        leverage_scores: A ``P``-dim tensor of ridge leverage scores, one per arm.
        counts: A ``P``-dim tensor of numbers of pulls ``n``, all positive.
        oversampling: q-bar, the oversampling factor.
        inclusion: ``"merged"`` or ``"per_pull"``.
    """
    if inclusion == "merged":
        return (oversampling * counts * leverage_scores).clamp(0.0, 1.0)
    # log1p and expm1 keep the small probabilities of well-known arms exact.
    return -torch.expm1(counts * log_exclusion(leverage_scores, oversampling))


def sample_inducing_indices(
    probabilities: Tensor, leverage_scores: Tensor, uniforms: Tensor
) -> Tensor:
    r"""Keep the arms whose uniform number is below their inclusion probability.

    With fresh ``uniforms`` at every call this is the ``independent`` law, which the
    theorems assume. With one number per arm for good it is the ``coupled`` law: the
    same marginals, and a set that changes by a few points from step to step. Its sets
    depend on earlier ones, so no theorem covers it.

    Args:
        probabilities: A ``P``-dim tensor of inclusion probabilities.
        leverage_scores: A ``P``-dim tensor of ridge leverage scores.
        uniforms: A ``P``-dim tensor of numbers in ``[0, 1)``.

    Returns:
        A sorted long tensor of positions, never empty. If no arm is drawn, the one with
        the largest leverage score is kept (an empty set would forget all data).
    """
    kept = (uniforms < probabilities).nonzero().squeeze(-1)
    return kept if kept.numel() else leverage_scores.argmax().unsqueeze(0)


@torch.no_grad()
def leverage_pivots(
    covar_module: Kernel, points: Tensor, counts: Tensor, size: int
) -> Tensor:
    r"""Choose a few points, each in turn the one of the largest leverage that is left.

    Earlier points ``S`` leave ``r(x) = k(x, x) - |z_S(x)|^2`` of a point's prior
    variance. The largest ``n r`` comes next: the pivoted Cholesky factorization of
    ``W^{1/2} K W^{1/2}``. Nothing is drawn. Time ``O(P size^2)``, memory ``O(P size)``.

    Args:
        covar_module: The kernel.
        points: A ``P x d`` tensor.
        counts: Their ``P`` numbers of pulls.
        size: How many, at most ``P``.

    Returns:
        A long tensor of positions in order of choice; fewer than ``size`` where the
        others are in their span.
    """
    prior = covar_module(points, diag=True).to(points)
    least = SPAN_TOLERANCE[prior.dtype] * prior
    residual = prior.clone()
    weights = counts.to(prior)
    factor = prior.new_empty(size, points.shape[0])
    pivots: list[int] = []
    while len(pivots) < size:
        start = len(pivots)
        left = weights * residual.where(residual > least, 0.0)
        ahead = left.sort(descending=True, stable=True).indices
        ahead = ahead[: min(PIVOTS_AHEAD, size - start)]
        if not left[ahead[0]] > 0:
            break
        rows = dense_covariance(covar_module, points[ahead], points).to(prior)
        rows -= factor[:start, ahead].mT @ factor[:start]
        for _ in range(len(ahead)):
            place = int(left[ahead].argmax())
            pivot = int(ahead[place])
            if not 0 < left[pivot] == left.max():
                break  # another point is the next one: rows that were not foreseen
            stop = len(pivots)
            row = rows[place] - factor[start:stop, pivot] @ factor[start:stop]
            factor[stop] = row / residual[pivot].sqrt()
            residual -= factor[stop].square()
            residual[pivot] = 0.0
            left = weights * residual.where(residual > least, 0.0)
            pivots.append(pivot)
    return torch.tensor(pivots, dtype=torch.long, device=points.device)


def random_rows(X: Tensor, size: int) -> Tensor:
    """Return at most ``size`` distinct rows of a table, the same at each call."""
    first = find_replicates(X).first
    stream = torch.Generator().manual_seed(0)
    return first[torch.randperm(len(first), generator=stream)[:size].to(first)]


@torch.no_grad()
def weighted_pivots(model: Any, rows: Tensor, size: int) -> Tensor:
    """Choose ``size`` of some distinct training rows of a ``SingleTaskDTCGP``.

    By pivoted Cholesky. A point matters more where the function is far from the prior
    mean: leverages are multiplied by ``k(x, x) + mean(x)^2``, the mean centered, given
    the first rows as inducing points, which those of the model become.
    """
    model.set_inducing_points(model._raw_train_X[rows[:size]])
    factors, W = model.factors(), 1 / model._train_noise
    X = model.train_inputs[0]
    inverse, first = find_replicates(X)
    W, X = sum_replicates(W, inverse, len(first))[inverse[rows]], X[rows]
    mean = factors(X.unsqueeze(-2)).mean.squeeze(-1)
    W = W * (model.covar_module(X, diag=True) + mean.square())
    return rows[leverage_pivots(model.covar_module, X, W, size).sort().values]


def bkb_oversampling(
    horizon: int, failure_probability: float = 0.05, accuracy: float = 0.5
) -> float:
    r"""Return the least ``qbar`` of Theorem 1 of [calandriello2019bkb]_.

        6 alpha log(4 T / delta) / eps^2,   alpha = (1 + eps) / (1 - eps)

    Args:
        horizon: ``T``, the number of pulls in all.
        failure_probability: ``delta``.
        accuracy: ``eps``.

    Raises:
        InputDataError: If an argument is out of range.
    """
    check_fraction("accuracy", accuracy)
    alpha = (1 + accuracy) / (1 - accuracy)
    return 6 * alpha * _log_union(horizon, failure_probability) / accuracy**2


def bbkb_oversampling(
    horizon: int,
    failure_probability: float = 0.05,
    ratio_threshold: float | None = None,
) -> float:
    r"""Return the least ``qbar`` of the theorems of [calandriello2020bbkb]_.

    ``72 C~ log(4 T / delta)``. Theorem 1 (size and run time) prints ``8 log(4 T /
    delta)``, but its proof needs ``24 log(4 T / delta)`` times the variance, by
    variances that may be three times too small: 72 as well, without ``C~``.

    Args:
        horizon: ``T``, the number of pulls in all.
        failure_probability: ``delta``.
        ratio_threshold: ``C~``, for Theorem 2; None for Theorem 1.

    Raises:
        InputDataError: If an argument is out of range.
    """
    threshold = 1.0 if ratio_threshold is None else ratio_threshold
    check_number("ratio_threshold", threshold, least=1.0)
    return 72 * threshold * _log_union(horizon, failure_probability)


def _log_union(horizon: int, failure_probability: float) -> float:
    """Return ``log(4 T / delta)``."""
    check_positive("horizon", horizon)
    check_fraction("failure_probability", failure_probability)
    return math.log(4 * horizon / failure_probability)
