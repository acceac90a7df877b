"""Input constructors, by which Ax and BoTorch build the acquisition functions.

Importing this module registers them; importing it again does so anew.
"""

from __future__ import annotations

from typing import Any

from botorch.acquisition.input_constructors import (
    acqf_input_constructor,
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from torch import Tensor

from botorch_bkb.acquisition.analytic import BudgetedUpperConfidenceBound
from botorch_bkb.acquisition.batch import BatchUpperConfidenceBound
from botorch_bkb.acquisition.confidence import (
    ConfidenceSchedule,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.acquisition.time_varying import (
    TimeVaryingUpperConfidenceBound,
    TVWidth,
)


# BoTorch refuses to register a class twice, which a reload of this module does.
for _acqf_class in (
    BudgetedUpperConfidenceBound,
    BatchUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
):
    ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(_acqf_class, None)


@acqf_input_constructor(BudgetedUpperConfidenceBound)
def construct_inputs_budgeted_ucb(
    model: Model,
    posterior_transform: PosteriorTransform | None = None,
    X_pending: Tensor | None = None,
    confidence: ConfidenceSchedule | float | None = None,
    num_arms: int | None = None,
    maximize: bool = True,
) -> dict[str, Any]:
    r"""Construct the arguments of ``BudgetedUpperConfidenceBound``.

    Args:
        model: The model, as the acquisition function takes it.
        posterior_transform: Ax minimizes by one with weight -1.
        X_pending: Must be None or empty.
        confidence: A schedule or a constant width; None for ``PracticalBKBWidth``.
        num_arms: The number of arms, for schedules that depend on it.
        maximize: As the acquisition function takes it.

    Returns:
        The keyword arguments of the acquisition function.

    Raises:
        UnsupportedError: If there are pending points.
    """
    if X_pending is not None and X_pending.shape[-2] > 0:
        raise UnsupportedError(
            "Expected no `X_pending` for BudgetedUpperConfidenceBound, which would "
            f"suggest pending points again, but got {X_pending.shape[-2]}. Use "
            "BatchUpperConfidenceBound."
        )
    return {
        "model": model,
        "confidence": PracticalBKBWidth() if confidence is None else confidence,
        "num_arms": num_arms,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
    }


@acqf_input_constructor(BatchUpperConfidenceBound)
def construct_inputs_batch_ucb(
    model: Model,
    posterior_transform: PosteriorTransform | None = None,
    X_pending: Tensor | None = None,
    confidence: ConfidenceSchedule | float | None = None,
    num_arms: int | None = None,
    maximize: bool = True,
) -> dict[str, Any]:
    r"""Construct the arguments of ``BatchUpperConfidenceBound``.

    Arguments and returns are those of :func:`construct_inputs_budgeted_ucb`, but for
    ``X_pending``, an ``n x d`` tensor of pending points, from which Ax removes repeats,
    and a ``confidence`` of None, which is ``PracticalBBKBWidth``.
    """
    return {
        "model": model,
        "confidence": PracticalBBKBWidth() if confidence is None else confidence,
        "X_pending": X_pending,
        "num_arms": num_arms,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
    }


@acqf_input_constructor(TimeVaryingUpperConfidenceBound)
def construct_inputs_time_varying_ucb(
    model: Model,
    decision_time: float,
    posterior_transform: PosteriorTransform | None = None,
    confidence: ConfidenceSchedule | float | None = None,
    num_arms: int | None = None,
    maximize: bool = True,
) -> dict[str, Any]:
    r"""Construct the arguments of ``TimeVaryingUpperConfidenceBound``.

    Arguments and returns are those of :func:`construct_inputs_budgeted_ucb`, but for
    ``decision_time``, when the candidate will be evaluated, and a ``confidence`` of
    None, which is ``TVWidth``.
    """
    return {
        "model": model,
        "confidence": TVWidth() if confidence is None else confidence,
        "decision_time": decision_time,
        "num_arms": num_arms,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
    }
