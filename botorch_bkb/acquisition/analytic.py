"""Upper confidence bounds of GP-UCB and BKB, inside batches, and at a decision time."""

from __future__ import annotations

from typing import Any, cast, TypeVar

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    PosteriorStandardDeviation,
    UpperConfidenceBound,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.model_state import confidence_state_from_model
from botorch_bkb.acquisition.schedules import (
    as_schedule,
    beta_from_confidence_width,
    ConfidenceSchedule,
)
from botorch_bkb.checks import check_number, check_tensors, check_truth
from botorch_bkb.models import SingleTaskDTCGP


AnyModel = TypeVar("AnyModel", bound=Model)


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
        ratio_threshold: float = 1.0,
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
            ratio_threshold: ``C~`` of the batch rule, for the widths of BBKB.

        Raises:
            UnsupportedError: If the model or the schedule is not supported.
            InputDataError: If a number is out of range.
        """
        check_truth("maximize", maximize)
        schedule = as_schedule(confidence)
        state = confidence_state_from_model(
            model, num_arms, num_pending, ratio_threshold
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


class BatchUpperConfidenceBound(ScheduledUpperConfidenceBound):
    r"""Upper confidence bound that accounts for pending pulls by hallucination.

    ``mean(x) + w * sqrt(var(x | pending) / lambda)``: mean and width are frozen at
    construction, while the variance falls with every pending pull, as if its reward had
    been the posterior mean. A point pending ``n`` times counts ``n`` times. This is the
    score of GP-BUCB [desautels2014gpbucb]_. With a sparse model it differs from BBKB's
    [calandriello2020bbkb]_ in two things: pending points also lower the variance that
    the inducing points do not explain, and an upper bound of the log determinant takes
    the place of the sums over batches in the width. Only supports ``q = 1``;
    ``optimize_acqf_finite`` builds batches greedily, of the size that you give.

    Example:
        >>> model = SingleTaskGP(train_X, train_Y)
        >>> acqf = BatchUpperConfidenceBound(model, confidence=PracticalBBKBWidth())
        >>> indices, values = optimize_acqf_finite(acqf, arms, q=96, unique=False)

    Attributes:
        X_pending: The ``n x d`` pending points; None if there are none.
    """

    def __init__(
        self,
        model: Model,
        confidence: ConfidenceSchedule | float,
        X_pending: Tensor | None = None,
        num_arms: int | None = None,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        ratio_threshold: float = 1.0,
    ) -> None:
        r"""Construct the acquisition function.

        Arguments and errors are those of ``ScheduledUpperConfidenceBound`` and of
        :meth:`set_X_pending`, but ``model`` must support ``condition_on_observations``.
        A width that depends on the number of the decision is that of the decision after
        the pending ones.
        """
        check_tensors(X_pending=X_pending)
        super().__init__(
            model=model,
            confidence=confidence,
            num_arms=num_arms,
            posterior_transform=posterior_transform,
            maximize=maximize,
            num_pending=0 if X_pending is None else X_pending.shape[:1].numel(),
            ratio_threshold=ratio_threshold,
        )
        self.set_X_pending(X_pending)

    @override
    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        r"""Condition the variance on pending points; the mean and width stay.

        Args:
            X_pending: An ``n x d`` tensor of pending points; rows may repeat. None, or
                no rows, for no pending points.

        Raises:
            BotorchTensorDimensionError: If ``X_pending`` is not ``n x d``.
            InputDataError: If it is no tensor of floats. After an error the pending
                points are as before.
        """
        check_tensors(X_pending=X_pending)
        if X_pending is not None and X_pending.dim() != 2:
            raise BotorchTensorDimensionError(
                "Expected `X_pending` of shape n x d, but got "
                f"{tuple(X_pending.shape)}. Pass `arms[indices]`, with one row for "
                "every pending pull."
            )
        deviation: PosteriorStandardDeviation | None = None
        if X_pending is None or len(X_pending) == 0:
            X_pending = None
        else:
            deviation = PosteriorStandardDeviation(
                model=condition_on_means(self.model, X_pending.detach()),
                posterior_transform=self.posterior_transform,
            )
        AcquisitionFunction.set_X_pending(self, X_pending)
        self._pending_deviation = deviation

    @override
    def _mean_and_sigma(
        self, X: Tensor, compute_sigma: bool = True, min_var: float = 1e-12
    ) -> tuple[Tensor, Tensor | None]:
        """Return the model's mean and the conditioned model's standard deviation."""
        if self._pending_deviation is None or not compute_sigma:
            return super()._mean_and_sigma(X, compute_sigma, min_var)
        mean, _ = super()._mean_and_sigma(X, compute_sigma=False)
        _, sigma = self._pending_deviation._mean_and_sigma(X, min_var=min_var)
        return mean, sigma


@torch.no_grad()
def condition_on_means(model: AnyModel, X: Tensor) -> AnyModel:
    """Return ``model`` after observing its own posterior mean at each row of ``X``."""
    # Evaluating the posterior also fills the caches that conditioning needs.
    Y = cast(GPyTorchPosterior, model.posterior(X)).mean  # n x 1
    options: dict[str, Any] = {}
    if isinstance(model, SingleTaskDTCGP):
        options["reproject"] = False  # Bayes' rule: means stay, variances only fall
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        # As in BoTorch's `fantasize`: the average training noise, in outcome space.
        options["noise"] = model.likelihood.noise.mean().expand(Y.shape)
    # Of the same class.
    return cast(AnyModel, model.condition_on_observations(X=X, Y=Y, **options))


class TimeVaryingUpperConfidenceBound(ScheduledUpperConfidenceBound):
    r"""Upper confidence bound at a decision time: line 3 of TV-GP-UCB.

    Algorithm 2 of [bogunovic2016tvgpucb]_. The candidates are points of space; the
    model's inputs have time as one more, last column, as those of
    :class:`~botorch_bkb.models.TimeVaryingGP`.

    Arguments and errors are those of ``ScheduledUpperConfidenceBound`` (``num_pending``
    is 0), and ``decision_time``, a finite number: when the candidate will be evaluated.

    Example:
        >>> acqf = TimeVaryingUpperConfidenceBound(model, LogWidth(0.8, 4.0), 17.0)
        >>> index, value = optimize_acqf_finite(acqf, choices=arms)
    """

    def __init__(
        self,
        model: Model,
        confidence: ConfidenceSchedule | float,
        decision_time: float,
        num_arms: int | None = None,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
    ) -> None:
        """Take the arguments that the class describes."""
        check_number("decision_time", decision_time)
        super().__init__(model, confidence, num_arms, posterior_transform, maximize)
        self.decision_time = decision_time

    @override
    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Return the ``b`` scores of a ``b x 1 x d`` tensor of points of space."""
        time = X.new_full((*X.shape[:-1], 1), self.decision_time)
        score: Tensor = super().forward(torch.cat([X, time], dim=-1))
        return score
