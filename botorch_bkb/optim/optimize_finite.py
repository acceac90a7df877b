"""Exact optimization of any acquisition function over a finite set of choices."""

from __future__ import annotations

import torch
from botorch.acquisition.acquisition import (
    AcquisitionFunction,
    OneShotAcquisitionFunction,
)
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from torch import Tensor

from botorch_bkb.checks import check_available, check_size, check_tensors
from botorch_bkb.models.utils.rows import Duplicates, find_duplicates


@torch.no_grad()
def optimize_acqf_finite(
    acq_function: AcquisitionFunction,
    choices: Tensor,
    q: int = 1,
    *,
    unique: bool = True,
    available: Tensor | None = None,
    chunk_size: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Pick the best of ``A`` choices, or ``q`` of them by sequential greedy choice.

    With ``q > 1`` every pick is added to the function's ``X_pending`` before the next;
    afterwards they are as before, also after an error. Equal values, those of identical
    rows among them, go to the lowest index. The function is evaluated ``q`` times on
    all available choices, without gradients. Memory: ``O(A)`` numbers and one chunk.

    Args:
        acq_function: Any BoTorch acquisition function that takes ``q = 1``, except a
            one-shot one. For ``q > 1`` it must account for ``X_pending``.
        choices: An ``A x d`` tensor of choices.
        q: How many to pick.
        unique: Whether no choice may be picked twice.
        available: An ``A``-dim boolean tensor of the choices on offer; None for all.
        chunk_size: How many choices to evaluate at a time.

    Returns:
        The ``q`` row indices in picking order, and their values at the time.

    Raises:
        BotorchTensorDimensionError: If choices or values have the wrong shape.
        InputDataError: If another argument is wrong, or a value is NaN.
        UnsupportedError: If the function is one-shot, or for ``q > 1`` ignores pending
            points.
    """
    check_size("q", q)
    _check_acquisition(acq_function, q)
    candidates = _available_indices(choices, available, chunk_size)
    if unique:
        _check_number("q", q, len(candidates))
    duplicates = find_duplicates(choices)
    picks: list[tuple[Tensor, Tensor]] = []
    X_pending = getattr(acq_function, "X_pending", None)
    pending = choices[:0] if X_pending is None else X_pending
    try:
        for step in range(q):
            if step > 0:
                acq_function.set_X_pending(pending)
            values = _evaluate(acq_function, choices, candidates, chunk_size)
            _tie_duplicates(values, candidates, duplicates)
            best = values.argmax()
            index = candidates[best]
            picks.append((index, values[best]))
            pending = torch.cat([pending, choices[index].unsqueeze(0)])
            if unique:
                candidates = candidates[candidates != index]
    finally:
        if q > 1:
            acq_function.set_X_pending(X_pending)
    indices, found = zip(*picks, strict=True)
    return torch.stack(indices), torch.stack(found)


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
    check_size("k", k)
    _check_acquisition(acq_function, q=1)
    candidates = _available_indices(choices, available, chunk_size)
    _check_number("k", k, len(candidates))
    values = _evaluate(acq_function, choices, candidates, chunk_size)
    _tie_duplicates(values, candidates, find_duplicates(choices))
    values, order = values.sort(descending=True, stable=True)
    return candidates[order[:k]], values[:k]


def _evaluate(
    acq_function: AcquisitionFunction,
    choices: Tensor,  # A x d
    candidates: Tensor,  # c, long
    chunk_size: int,
) -> Tensor:  # c
    """Return the values of the candidates, none of them NaN."""
    # One vector for all: results kept between large temporaries fragment the heap, by
    # 1.8 GB at a million choices.
    values = choices.new_empty(len(candidates))
    for start in range(0, len(candidates), chunk_size):
        X = choices[candidates[start : start + chunk_size]]
        found = acq_function(X.unsqueeze(-2))
        if found.shape != X.shape[:1]:
            raise BotorchTensorDimensionError(
                f"Expected {type(acq_function).__name__} to give values of shape "
                f"{tuple(X.shape[:1])} for as many choices, but got "
                f"{tuple(found.shape)}. Use a model without batch dimensions."
            )
        values[start : start + chunk_size] = found
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
    group = duplicates.first[torch.searchsorted(duplicates.rows, candidates[position])]
    group, inverse = group.unique(return_inverse=True)
    first = torch.full_like(group, len(candidates))
    first = first.scatter_reduce(0, inverse, position, reduce="amin")
    values[position] = values[first[inverse]]


def _available_indices(
    choices: Tensor, available: Tensor | None, chunk_size: int
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
        mask = check_available(available, len(choices))
        indices = mask.nonzero().squeeze(-1).to(choices.device)
    if indices.shape[0] == 0:
        raise InputDataError(
            "Expected at least one of `choices` to be available, but got none of "
            f"{len(choices)}. Add choices, or set some of `available` to True."
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
