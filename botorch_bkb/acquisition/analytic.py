"""Upper confidence bounds of GP-UCB and BKB, and the knowledge gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import (
    AnalyticAcquisitionFunction,
    PosteriorStandardDeviation,
    UpperConfidenceBound,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import ModelListGP
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.probability.utils import ndtr, phi
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.model_state import (
    confidence_state_from_model,
    noise_variance_of,
)
from botorch_bkb.acquisition.schedules import (
    as_schedule,
    beta_from_confidence_width,
    ConfidenceSchedule,
)
from botorch_bkb.checks import check_number, check_tensors, check_truth
from botorch_bkb.models import SingleTaskDTCGP


# Breakpoints of a knowledge gradient that are further out add nothing.
LARGEST_BREAKPOINT = 38.0


class ScheduledUpperConfidenceBound(UpperConfidenceBound):
    r"""Upper confidence bound whose width comes from a confidence schedule.

    ``mean(x) + w * sqrt(var(x) / lambda)``: equation (4) of [calandriello2019bkb]_. The
    width is computed once, at construction. Given a schedule, the model is any that
    ``confidence_state_from_model`` can describe; a sparse one makes this BKB's score,
    an exact one GP-UCB's. Given a number of posterior standard deviations, it is any
    model, with any posterior transform. Only supports ``q = 1`` and no pending points;
    see ``BatchUpperConfidenceBound``.

    Example:
        >>> model = SingleTaskDTCGP(train_X, train_Y)
        >>> acqf = ScheduledUpperConfidenceBound(model, confidence=PracticalBKBWidth())
        >>> index, value = optimize_acqf_finite(acqf, choices=arms)

    Attributes:
        beta: BoTorch's, ``w^2 / lambda``: a number of standard deviations, squared.
    """

    beta: Tensor
    model: Model

    def __init__(
        self,
        model: Model,
        confidence: ConfidenceSchedule | float | Tensor,
        num_arms: int | None = None,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        num_pending: int = 0,
        ratio_threshold: float = 1.0,
    ) -> None:
        r"""Construct the acquisition function.

        Args:
            model: A fitted model; for a schedule, a GP with one noise variance.
            confidence: A schedule, or a number of posterior standard deviations (or a
                tensor of one, or of ``b``). Norm bound and noise of a schedule are in
                the model's (outcome-transformed) units.
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
        check_number("ratio_threshold", ratio_threshold, least=1.0)
        beta: float | Tensor
        if isinstance(confidence, ConfidenceSchedule):
            state = confidence_state_from_model(
                model, num_arms, num_pending, ratio_threshold
            )
            width = confidence(state)
            beta = beta_from_confidence_width(width, state.noise_variance)
        elif isinstance(confidence, Tensor):
            for number in confidence.flatten().tolist():
                as_schedule(number)  # raises if it is negative
            beta = confidence.double().square()
            beta = beta.unsqueeze(-1) if beta.dim() == 1 else beta  # b x 1, as means
        else:
            as_schedule(confidence)
            beta = float(confidence) ** 2
        # BoTorch would round a Python number to the default dtype.
        super().__init__(
            model=model,
            beta=torch.as_tensor(beta, dtype=torch.float64),
            posterior_transform=posterior_transform,
            maximize=maximize,
        )

    @property
    def confidence_width(self) -> float | Tensor:
        """``w = sqrt(beta lambda)``, in the papers' scaling; of a batch, a tensor.

        Raises:
            UnsupportedError: If the model has no single noise variance ``lambda``.
        """
        width = (self.beta * noise_variance_of(self.model)).sqrt()
        return width.squeeze(-1) if width.dim() else width.item()


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
        confidence: ConfidenceSchedule | float | Tensor,
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
                model=condition_on_means(self.model, self._inputs(X_pending.detach())),
                posterior_transform=self.posterior_transform,
            )
        AcquisitionFunction.set_X_pending(self, X_pending)
        self._pending_deviation = deviation

    @override
    def _mean_and_sigma(
        self, X: Tensor, compute_sigma: bool = True, min_var: float = 1e-12
    ) -> tuple[Tensor, Tensor | None]:
        """Return the model's mean and the conditioned model's standard deviation."""
        X = self._inputs(X)
        if self._pending_deviation is None or not compute_sigma:
            return super()._mean_and_sigma(X, compute_sigma, min_var)
        mean, _ = super()._mean_and_sigma(X, compute_sigma=False)
        _, sigma = self._pending_deviation._mean_and_sigma(X, min_var=min_var)
        return mean, sigma

    def _inputs(self, X: Tensor) -> Tensor:
        """Return the model's inputs at points."""
        return X


@torch.no_grad()
def condition_on_means(model: Any, X: Tensor) -> Any:
    """Return ``model`` after observing its own posterior mean at each row of ``X``."""
    if isinstance(model, ModelListGP):
        return ModelListGP(*(condition_on_means(part, X) for part in model.models))
    # Evaluating the posterior also fills the caches that conditioning needs.
    Y = model.posterior(X).mean  # n x 1
    options: dict[str, Any] = {}
    if isinstance(model, SingleTaskDTCGP):
        options["reproject"] = False  # Bayes' rule: means stay, variances only fall
    likelihood = getattr(model, "likelihood", None)
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        # As in BoTorch's `fantasize`: the average training noise, in outcome space.
        options["noise"] = likelihood.noise.mean(dim=-1).expand(Y.shape)
    return model.condition_on_observations(X=X, Y=Y, **options)


class TimeVaryingUpperConfidenceBound(BatchUpperConfidenceBound):
    r"""Upper confidence bound at a decision time: line 3 of TV-GP-UCB.

    Algorithm 2 of [bogunovic2016tvgpucb]_. The candidates are points of space; the
    model's inputs have time as one more, last column, as those of
    :class:`~botorch_bkb.models.TimeVaryingGP`. Pending points are points of space, too;
    they count as pulls at the decision time.

    Arguments and errors are those of ``BatchUpperConfidenceBound``, and
    ``decision_time``, a finite number: when the candidate will be evaluated.

    Example:
        >>> acqf = TimeVaryingUpperConfidenceBound(model, LogWidth(0.8, 4.0), 17.0)
        >>> indices, values = optimize_acqf_finite(acqf, choices=arms, q=4)
    """

    def __init__(
        self,
        model: Model,
        confidence: ConfidenceSchedule | float | Tensor,
        decision_time: float,
        num_arms: int | None = None,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        ratio_threshold: float = 1.0,
    ) -> None:
        """Take the arguments that the class describes."""
        check_number("decision_time", decision_time)
        self.decision_time = decision_time
        options = num_arms, posterior_transform, maximize, ratio_threshold
        super().__init__(model, confidence, X_pending, *options)

    @override
    def _inputs(self, X: Tensor) -> Tensor:
        time = X.new_full((*X.shape[:-1], 1), self.decision_time)
        return torch.cat([X, time], dim=-1)


class DiscreteKnowledgeGradient(AnalyticAcquisitionFunction):
    r"""How much one more measurement is expected to raise the best posterior mean.

    The knowledge gradient of [frazier2009]_ for correlated choices, exactly: ::

        E[max_j (mean(j) + b_j Z)] - max_j mean(j),   Z ~ N(0, 1)

    over ``C`` choices ``j``, with ``b_j = cov(j, x) / sqrt(var(x) + noise)``. Only
    supports ``q = 1`` and no pending points. ``b`` candidates cost a joint posterior of
    ``b + C`` points, and ``O(b C)`` for each choice that may become the best, usually
    some ten. Of a large table, take some thousand choices of the largest upper bounds
    (``top_k_choices``), here and as candidates.

    Args:
        model: A fitted single-output GP, not a batch.
        choices: A ``C x d`` tensor: the points whose best mean counts.
        posterior_transform: As in BoTorch's ``UpperConfidenceBound``.
        maximize: If False, the best mean is the smallest.

    Raises:
        BotorchTensorDimensionError: If ``choices`` is not ``C x d``.
        UnsupportedError: If the model has several outputs and no transform, or, when it
            is evaluated, its posterior is not Gaussian.

    Example:
        >>> acqf = DiscreteKnowledgeGradient(model, choices=arms)
        >>> index, value = optimize_acqf_finite(acqf, choices=arms)
    """

    choices: Tensor

    def __init__(
        self,
        model: Model,
        choices: Tensor,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
    ) -> None:
        """Take the arguments that the class describes."""
        check_tensors(choices=choices)
        if choices.dim() != 2 or len(choices) == 0:
            raise BotorchTensorDimensionError(
                "Expected `choices` of shape C x d with at least one row, but got "
                f"{tuple(choices.shape)}. Pass `arms`, or `arms[indices]`."
            )
        super().__init__(model=model, posterior_transform=posterior_transform)
        self.register_buffer("choices", choices)
        self.maximize = check_truth("maximize", maximize)

    @override
    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Return the ``b`` expected rises of a ``b x 1 x d`` tensor of candidates."""
        self.to(X)
        points, C = X.reshape(-1, X.shape[-1]), len(self.choices)
        transform = self.posterior_transform
        joint = self.model.posterior(
            torch.cat([self.choices, points]), posterior_transform=transform
        )
        if not isinstance(joint, GPyTorchPosterior):
            raise UnsupportedError(
                f"Expected a Gaussian posterior, but got a {type(joint).__name__}. Use "
                "a linear outcome transform such as `Standardize`."
            )
        noisy: Any = self.model.posterior(
            points.unsqueeze(-2), observation_noise=True, posterior_transform=transform
        )
        # GPyTorch's `variance` is at least 1e-10, which is much for small rewards.
        covariance: Any = noisy.distribution.lazy_covariance_matrix
        variance = covariance.diagonal(dim1=-2, dim2=-1).reshape(-1, 1)
        std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        b = joint.distribution.covariance_matrix[C:, :C] / std
        a = joint.mean[:C, 0] if self.maximize else -joint.mean[:C, 0]
        rise = _rise_from_steeper(a, b) + _rise_from_steeper(a, -b)
        return rise.reshape(X.shape[:-2])


def _rise_from_steeper(a: Tensor, b: Tensor) -> Tensor:
    r"""Return what lines steeper than the best add to ``E max_j (a_j + b_j Z)``.

    The upper envelope of ``C`` lines ``a_j + b_j z`` (``b``: ``n x C``) is followed
    from the best ``a`` on, ``z >= 0``. Its next line is the steeper one that is met
    first, at ``c``. It adds its extra slope times ``E max(Z - c, 0) = phi(c) - c
    Phi(-c)``.
    """
    line = a.argmax().expand(len(b), 1)
    rise = torch.zeros_like(b[:, :1])
    while True:
        gap, slope = a[line] - a, b - b.gather(1, line)
        meets = gap / torch.where(slope > 0, slope, 1.0)
        meets = torch.where(slope > 0, meets, math.inf)
        found = meets.argmin(dim=-1, keepdim=True)
        c, extra = meets.gather(1, found), slope.gather(1, found)
        goes_on = c < LARGEST_BREAKPOINT
        if not goes_on.any():
            return rise.squeeze(-1)
        line = torch.where(goes_on, found, line)
        c = c.clamp_max(LARGEST_BREAKPOINT)
        added = extra * (phi(c) - c * ndtr(-c)).clamp_min(0.0)
        rise = rise + torch.where(goes_on, added, 0.0)
