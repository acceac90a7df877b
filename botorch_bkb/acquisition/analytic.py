"""The upper confidence bound of GP-UCB and BKB."""

from __future__ import annotations

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_bkb.acquisition.confidence import (
    beta_from_confidence_width,
    ConfidenceSchedule,
)
from botorch_bkb.acquisition.deviations import as_schedule
from botorch_bkb.acquisition.model_state import confidence_state_from_model


class ScheduledUpperConfidenceBound(UpperConfidenceBound):
    r"""Upper confidence bound whose width comes from a confidence schedule.

    ``mean(x) + w * sqrt(var(x) / lambda)``: equation (4) of [calandriello2019bkb]_. The
    width is computed once, at construction. The model is any that
    ``confidence_state_from_model`` can describe; a sparse one makes this BKB's score,
    an exact one GP-UCB's. Only supports ``q = 1`` and no pending points; see
    ``BatchUpperConfidenceBound``.

    Example:
        >>> model = SingleTaskDTCGP(train_X, train_Y)
        >>> acqf = ScheduledUpperConfidenceBound(model, confidence=PracticalBKBWidth())
        >>> index, value = optimize_acqf_finite(acqf, choices=arms)

    Attributes:
        confidence_width: ``w``, in the papers' scaling.
        beta: ``w^2 / lambda``, BoTorch's.
    """

    beta: Tensor

    def __init__(
        self,
        model: Model,
        confidence: ConfidenceSchedule | float,
        num_arms: int | None = None,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        num_pending: int = 0,
    ) -> None:
        r"""Construct the acquisition function.

        Args:
            model: A fitted single-output GP with one noise variance.
            confidence: A schedule, or a number of posterior standard deviations. Norm
                bound and noise of a schedule are in the model's (outcome-transformed)
                units.
            num_arms: The number of arms, for schedules that depend on it.
            posterior_transform: As in BoTorch's ``UpperConfidenceBound``.
            maximize: If False, score ``-mean + w * sqrt(var / lambda)``.
            num_pending: The number of pulls that were chosen and have no reward yet,
                for schedules that depend on the number of the decision.

        Raises:
            UnsupportedError: If the model or the schedule is not supported.
            InputDataError: If ``confidence`` is a negative or infinite number.
        """
        schedule = as_schedule(confidence)
        state = confidence_state_from_model(
            model, num_arms=num_arms, num_pending=num_pending
        )
        width = schedule(state)
        beta = beta_from_confidence_width(width, state.noise_variance)
        # BoTorch would round a Python number to the default dtype.
        super().__init__(
            model=model,
            beta=torch.tensor(beta, dtype=torch.float64),
            posterior_transform=posterior_transform,
            maximize=maximize,
        )
        self.confidence_width = width
