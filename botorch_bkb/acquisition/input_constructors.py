"""Input constructors, by which Ax builds the acquisition functions.

Importing this module registers them, which `botorch_bkb.integrations.ax` does. It is
apart because BoTorch's own registry takes half a second to import.
"""

from __future__ import annotations

import inspect
from typing import Any

from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.input_constructors import (
    acqf_input_constructor,
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from torch import Tensor

from botorch_bkb.acquisition.analytic import (
    BatchUpperConfidenceBound,
    DiscreteKnowledgeGradient,
    ScheduledUpperConfidenceBound,
    TimeVaryingUpperConfidenceBound,
)
from botorch_bkb.acquisition.confidence import (
    PracticalBBKBWidth,
    PracticalBKBWidth,
    TVWidth,
)
from botorch_bkb.acquisition.schedules import ConfidenceSchedule


def _register(
    acqf_class: type[AnalyticAcquisitionFunction],
    width: type[ConfidenceSchedule] | None = None,
) -> None:
    """Register the input constructor of a class.

    Args:
        acqf_class: The class.
        width: The schedule in place of a ``confidence`` of None; None for none.
    """
    accepted = inspect.signature(acqf_class).parameters
    # BoTorch refuses to register a class twice, which a reload of this module does.
    ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(acqf_class, None)

    @acqf_input_constructor(acqf_class)
    def construct_inputs(
        model: Model,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
        confidence: ConfidenceSchedule | float | Tensor | None = None,
        num_arms: int | None = None,
        maximize: bool = True,
        decision_time: float | None = None,
        ratio_threshold: float = 1.0,
        choices: Tensor | None = None,
    ) -> dict[str, Any]:
        has_pending = X_pending is not None and X_pending.shape[-2] > 0
        if has_pending and "X_pending" not in accepted:
            raise UnsupportedError(
                f"Expected no `X_pending` for {acqf_class.__name__}, which would "
                "suggest pending points again, but got some. Use "
                "BatchUpperConfidenceBound."
            )
        if confidence is None and width is not None:
            confidence = width()
        inputs = locals()
        return {name: inputs[name] for name in accepted if name in inputs}


_register(ScheduledUpperConfidenceBound, PracticalBKBWidth)
_register(BatchUpperConfidenceBound, PracticalBBKBWidth)
_register(TimeVaryingUpperConfidenceBound, TVWidth)
_register(DiscreteKnowledgeGradient)
