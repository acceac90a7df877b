"""Exact optimization of any acquisition function over a finite set of choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from botorch.acquisition.acquisition import (
    AcquisitionFunction,
    OneShotAcquisitionFunction,
)
from botorch.acquisition.analytic import (
    ExpectedImprovement,
    LogExpectedImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.optim.parameter_constraints import evaluate_feasibility
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_bkb.checks import (
    check_available,
    check_indices,
    check_size,
    check_tensors,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.nystrom import dense_covariance, explaining_rows
from botorch_bkb.models.utils.prediction import DTCPredictionStrategy, KernelFeatures
from botorch_bkb.models.utils.rows import (
    Duplicates,
    find_duplicates,
    find_replicates,
    first_equal,
    row_hashes,
    rows_of_hashes,
)
from botorch_bkb.optim.shared_samples import can_share, pending_points, SharedSamples


# Analytic functions that rise with the mean or fall with it, and rise with the
# variance, so that an upper bound of the variance bounds their value.
RISING = ExpectedImprovement, LogExpectedImprovement, UpperConfidenceBound
# The rows that bound variances: more take longer, fewer bound less.
NUM_BOUND_ROWS = 16
# Bounds pay for more choices than a few chunks.
MIN_CHUNKS_TO_BOUND = 4
# How much smaller than the value a bound may be by rounding: this share of the value,
# of its range and of the unit. With larger rounding errors there are no bounds.
BOUND_MARGIN = 1e-6


@torch.no_grad()
def optimize_acqf_finite(
    acq_function: AcquisitionFunction,
    choices: Tensor,
    q: int = 1,
    *,
    unique: bool = True,
    available: Tensor | None = None,
    chunk_size: int = 2048,
    X_avoid: Tensor | None = None,
    inequality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Pick the best of ``A`` choices, or ``q`` of them by sequential greedy choice.

    With ``q > 1`` every pick is added to the function's ``X_pending`` before the next;
    afterwards they are as before, also after an error. Equal values, those of identical
    rows among them, go to the lowest index. Values have no gradients.

    For Monte Carlo functions, the model predicts the choices once, and all picks share
    their samples: see :mod:`botorch_bkb.optim.shared_samples`, which also says what a
    function of your own must do for that. The base samples are drawn once for all
    ``q`` picks, so values differ by Monte Carlo error from those that the function has
    with other base samples. Other functions are evaluated ``q`` times on all available
    choices. Of analytic functions that rise with the variance, the first pick evaluates
    those choices only whose upper bound may be the largest value, if the model is a
    :class:`~botorch_bkb.models.SingleTaskDTCGP`.

    Memory: ``O(A)`` numbers and one chunk. Shared samples take a number for each choice
    and pick, and each point of a baseline, up to two GiB; beyond, none are shared.

    Args:
        acq_function: Any BoTorch acquisition function that takes ``q = 1``, except a
            one-shot one. For ``q > 1`` it must account for ``X_pending``.
        choices: An ``A x d`` tensor of choices.
        q: How many to pick.
        unique: Whether no choice may be picked twice.
        available: The choices on offer, as an ``A``-dim boolean tensor or as a long
            tensor of their indices; None for all.
        chunk_size: How many choices to evaluate at a time.
        X_avoid: An ``n x d`` tensor of rows that may not be picked.
        inequality_constraints: As in BoTorch's ``optimize_acqf_discrete``: ``(indices,
            coefficients, rhs)``, each for ``sum_i coefficients_i x_indices_i >= rhs``.

    Returns:
        The ``q`` row indices in picking order, and their values at the time.

    Raises:
        BotorchTensorDimensionError: If `choices`, `X_avoid` or values have a wrong
            shape.
        InputDataError: If another argument is wrong, or a value is NaN.
        UnsupportedError: If the function is one-shot, or for ``q > 1`` ignores pending
            points.
    """
    _check_order(choices, q)
    check_size("q", q)
    _check_acquisition(acq_function, q)
    candidates = _available_indices(
        choices, available, chunk_size, X_avoid, inequality_constraints
    )
    if unique:
        _check_number("q", q, len(candidates))
    duplicates = find_duplicates(choices)
    while isinstance(acq_function, FixedFeatureAcquisitionFunction):
        # Its pending points have all columns.
        choices = acq_function._construct_X_full(choices)
        acq_function = acq_function.acq_func
    pool = choices if len(candidates) == len(choices) else choices[candidates]
    function: Any = acq_function
    shared, bound = None, None
    if q > 1 and can_share(function, pool, q):
        shared = SharedSamples(function, pool, q, chunk_size)
        function = shared.function
    else:
        bound = _variance_bound(function, pool, chunk_size)
    X_pending = pending_points(acq_function)
    pending = choices[:0] if X_pending is None else X_pending
    picks: list[Tensor] = []
    found: list[Tensor] = []
    free = torch.ones_like(candidates, dtype=torch.bool)
    try:
        for step in range(q):
            if step > 0:
                function.set_X_pending(pending)
            if step == 0 and bound is not None:
                values = _largest_values(function, bound, pool, candidates, chunk_size)
            else:
                slices = shared.slices() if shared else _slices(pool, chunk_size)
                values = _evaluate(function, pool, candidates, slices)
            _tie_duplicates(values, candidates, duplicates)
            # Values may be minus infinity, so that picked ones cannot be marked by it.
            found.append(values[free].max())
            picks.append((free & (values == found[-1])).nonzero()[0, 0])
            free[picks[-1]] = not unique
            picked = pool[picks[-1]].unsqueeze(0)
            pending = torch.cat([pending, picked])
            if shared is not None:
                shared.add(picked)
    finally:
        if q > 1 and shared is None:
            function.set_X_pending(X_pending)
    return candidates[torch.stack(picks)], torch.stack(found)


@torch.no_grad()
def top_k_choices(
    acq_function: AcquisitionFunction,
    choices: Tensor,
    k: int,
    *,
    available: Tensor | None = None,
    chunk_size: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Return the ``k`` choices of largest value, each on its own, best first.

    Unlike ``optimize_acqf_finite`` with ``q = k``, no choice accounts for the others.
    Arguments, memory and errors are those of ``optimize_acqf_finite``.

    Returns:
        The ``k`` row indices into ``choices``, and the ``k`` values, which never rise.
        Equal values are in the order of their indices.
    """
    _check_order(choices, k, "k")
    check_size("k", k)
    _check_acquisition(acq_function, q=1)
    candidates = _available_indices(choices, available, chunk_size)
    _check_number("k", k, len(candidates))
    pool = choices[candidates]
    values = _evaluate(acq_function, pool, candidates, _slices(pool, chunk_size))
    _tie_duplicates(values, candidates, find_duplicates(choices))
    values, order = values.sort(descending=True, stable=True)
    return candidates[order[:k]], values[:k]


def _slices(pool: Tensor, chunk_size: int) -> Iterator[slice]:
    for start in range(0, len(pool), chunk_size):
        yield slice(start, start + chunk_size)


def _largest_values(
    acq_function: Any,
    bound: VarianceBound,
    pool: Tensor,
    candidates: Tensor,
    chunk_size: int,
) -> Tensor:
    """Return values of a pool, minus infinity where a bound excludes the largest."""
    spread = slice(None, None, -(-len(pool) // chunk_size))
    found = _evaluate(acq_function, pool[spread], candidates[spread])
    floor, usual = found.max(), found.median()
    values = torch.full_like(pool[:, 0], -torch.inf)
    for rows in _slices(pool, chunk_size):
        part, indices = pool[rows], candidates[rows]
        acq_function.model.prediction_strategy = bound
        try:
            bounds = _evaluate(acq_function, part, indices)
        finally:
            acq_function.model.prediction_strategy = bound.exact
        least = floor - BOUND_MARGIN * (1 + floor.abs() + floor - usual)
        kept = (bounds >= least).nonzero().squeeze(-1)
        if len(kept):
            found = _evaluate(acq_function, part[kept], indices[kept])
            values[rows.start + kept] = found
            floor = floor.maximum(found.max())
    return values


class VarianceBound:
    r"""Exact means and upper bounds of variances, in ``O(m r)`` for a point.

    A variance is ``k(x, x) - z^T B z``, with ``B = I - V^{-1}``, or ``I`` for the exact
    GP, of which ``r`` rows give a part. It stands in for the factors of a model.

    Args:
        factors: The posterior, whose features are a :class:`KernelFeatures`.
        points: A ``k x d`` tensor of points like those to be bounded, transformed.

    Attributes:
        rounding: The rounding error of a mean or a root of a variance's part, in prior
            standard deviations.
    """

    def __init__(self, factors: DTCPredictionStrategy, points: Tensor) -> None:
        features, L_v = cast(KernelFeatures, factors.features), factors.L_v

        def B(Z: Tensor) -> Tensor:
            return Z if L_v is None else Z - torch.cholesky_solve(Z, L_v)

        rows = explaining_rows(features(points), B, NUM_BOUND_ROWS)
        weights = factors.weights.unsqueeze(-1)
        if L_v is not None:
            weights = torch.linalg.solve_triangular(L_v.mT, weights, upper=True)
        rows = torch.cat([weights.mT, rows])
        self.rows = torch.linalg.solve_triangular(features.L.mT, rows.mT, upper=True).mT
        self.points, self.weights = features.points, factors.weights
        self.exact, self.covar_module = factors, factors.covar_module
        # Rounding errors add up as random ones do.
        prior = factors.covar_module(points, diag=True).max()
        sums = self.rows.square().sum(dim=-1).sqrt().max() * prior.sqrt()
        self.rounding = torch.finfo(prior.dtype).eps * sums.item()

    def __call__(self, X: Tensor) -> MultivariateNormal:
        """Return means and bounds of ``... x 1 x d`` points, exact ones of others."""
        if X.shape[-2] != 1:
            return self.exact(X)
        shape, flat = X.shape[:-1], X.reshape(-1, X.shape[-1])
        mean, *parts = self.rows @ dense_covariance(
            self.covar_module, self.points, flat
        )
        variance = self.covar_module(flat, diag=True)
        for part in parts:
            variance = variance - part.square()
        variance = variance.clamp_min(0.0).reshape(shape)
        return MultivariateNormal(mean.reshape(shape), DiagLinearOperator(variance))


def _variance_bound(
    acq_function: AcquisitionFunction, pool: Tensor, chunk_size: int
) -> VarianceBound | None:
    """Return bounds of the model's variances; None if there are none, or pay little."""
    model = getattr(acq_function, "model", None)
    if not isinstance(acq_function, RISING) or not isinstance(model, SingleTaskDTCGP):
        return None
    if pool.shape[-1] != model._raw_train_X.shape[-1]:  # such as without its time
        return None
    transform = getattr(acq_function, "posterior_transform", None)
    acq_function.to(pool)  # as BoTorch does when it evaluates
    trial = model.posterior(pool[:1], posterior_transform=transform)
    if type(trial) is not GPyTorchPosterior:  # a mean may rise with the variance
        return None
    factors = model.factors()
    # Points that a model was conditioned on have features of another form.
    is_plain = isinstance(factors.features, KernelFeatures)
    if not is_plain or len(pool) < MIN_CHUNKS_TO_BOUND * chunk_size:
        return None
    bound = VarianceBound(factors, model.train_inputs[0][:chunk_size])
    return bound if bound.rounding <= BOUND_MARGIN / 10 else None


def _evaluate(
    acq_function: AcquisitionFunction,
    pool: Tensor,  # c x d
    candidates: Tensor,  # c, long
    slices: Iterable[slice] = (slice(None),),
) -> Tensor:  # c
    """Return the values of a pool of choices, none of them NaN, slice by slice."""
    # One vector for all: results kept between large temporaries fragment the heap, by
    # 1.8 GB at a million choices.
    values = pool.new_empty(len(pool))
    for rows in slices:
        X = pool[rows]
        found = acq_function(X.unsqueeze(-2))
        if found.shape != X.shape[:1]:
            raise BotorchTensorDimensionError(
                f"Expected {type(acq_function).__name__} to give values of shape "
                f"{tuple(X.shape[:1])} for as many choices, but got "
                f"{tuple(found.shape)}. Use a model without batch dimensions."
            )
        values[rows] = found
    invalid = values.isnan()
    if invalid.any():
        raise InputDataError(
            f"Expected {type(acq_function).__name__} to be a number for every choice, "
            f"but got NaN for {int(invalid.sum())}, the first of them choice "
            f"{int(candidates[invalid][0])}. Check `choices` and the model's training "
            "data for NaN or infinite entries."
        )
    return values


def _tie_duplicates(values: Tensor, candidates: Tensor, duplicates: Duplicates) -> None:
    """Give candidates of identical rows the value of the first of them.

    Rounding depends on the place of a row in its chunk.
    """
    position = torch.isin(candidates, duplicates.rows).nonzero().squeeze(-1)
    inverse, first = find_replicates(first_equal(duplicates, candidates[position]))
    values[position] = values[position[first[inverse]]]


def _check_order(choices: Any, number: Any, name: str = "q") -> None:
    """Raise if the arguments are in the order of BoTorch's function."""
    if isinstance(number, Tensor) and not isinstance(choices, Tensor):
        raise InputDataError(
            f"Expected `choices` before `{name}`, but got {choices!r} as `choices` and "
            f"a tensor of shape {tuple(number.shape)} as `{name}`. Pass "
            f"`(acq_function, choices, {name}={choices!r})`."
        )


def _available_indices(
    choices: Tensor,
    available: Tensor | None,
    chunk_size: int,
    X_avoid: Tensor | None = None,
    inequality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
) -> Tensor:
    """Check the set of choices; return the long indices that may be picked."""
    check_tensors(choices=choices)
    if choices.dim() != 2:
        raise BotorchTensorDimensionError(
            f"Expected `choices` of shape A x d, but got {tuple(choices.shape)}. "
            "Flatten batch dimensions, or add a feature dimension with "
            "`unsqueeze(-1)`."
        )
    check_size("chunk_size", chunk_size)
    indices = torch.arange(len(choices), device=choices.device)
    if available is not None:
        mask = torch.zeros_like(indices, dtype=torch.bool)
        if isinstance(available, Tensor) and available.dtype == torch.long:
            mask[check_indices(available, len(choices))] = True
        else:
            mask |= check_available(available, len(choices)).to(choices.device)
        indices = indices[mask]
    if X_avoid is not None:
        check_tensors(X_avoid=X_avoid)
        if X_avoid.shape[1:] != choices.shape[1:]:
            raise BotorchTensorDimensionError(
                "Expected `X_avoid` to be rows of `choices`, of shape n x "
                f"{choices.shape[-1]}, but got {tuple(X_avoid.shape)}."
            )
        avoided = rows_of_hashes(choices, row_hashes(X_avoid.to(choices)))
        indices = indices[~torch.isin(indices, avoided)]
    if inequality_constraints is not None:
        parts = [
            evaluate_feasibility(
                choices[part].unsqueeze(-2),
                inequality_constraints=inequality_constraints,
            )
            for part in indices.split(chunk_size)
        ]
        indices = indices[torch.cat([*parts, indices.new_empty(0).bool()])]
    if indices.shape[0] == 0:
        raise InputDataError(
            "Expected at least one of `choices` to be available, but got none of "
            f"{len(choices)}. Add choices, set some of `available` to True, or loosen "
            "`X_avoid` and `inequality_constraints`."
        )
    return indices


def _check_number(name: str, number: int, num_available: int) -> None:
    if number > num_available:
        raise InputDataError(
            f"Expected `{name}` to be at most the number of available choices, "
            f"{num_available}, but got {number}. Ask for fewer, or allow repeats with "
            "`optimize_acqf_finite(..., unique=False)`."
        )


def _check_acquisition(acq_function: AcquisitionFunction, q: int) -> None:
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise UnsupportedError(
            "Expected `acq_function` to score single choices, but got the one-shot "
            f"{type(acq_function).__name__}. Optimize it with `optimize_acqf`."
        )
    if q > 1 and not hasattr(acq_function, "X_pending"):
        raise UnsupportedError(
            f"Expected `acq_function` to account for `X_pending` with q = {q}, but "
            f"{type(acq_function).__name__} does not. Use BatchUpperConfidenceBound or "
            "a Monte Carlo acquisition function, or `top_k_choices` for the best "
            "choices one by one."
        )
