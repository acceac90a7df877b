"""The upper confidence bound of GP-BUCB and BBKB inside a batch."""

from __future__ import annotations

from typing import cast, TypeVar

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import PosteriorStandardDeviation
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.analytic import ScheduledUpperConfidenceBound
from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.checks import check_tensors


AnyModel = TypeVar("AnyModel", bound=Model)


class BatchUpperConfidenceBound(ScheduledUpperConfidenceBound):
    r"""Upper confidence bound that accounts for pending pulls by hallucination.

    ``mean(x) + w * sqrt(var(x | pending) / lambda)``: mean and width are frozen at
    construction, while the variance falls with every pending pull, as if its reward had
    been the posterior mean. A point pending ``n`` times counts ``n`` times. This is the
    score of GP-BUCB [desautels2014gpbucb]_, and with a sparse model that of BBKB
    [calandriello2020bbkb]_ but for one thing: ``SingleTaskDTCGP`` appends pending
    points to its inducing points. Only supports ``q = 1``; ``optimize_acqf_finite``
    builds batches greedily.

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
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return cast(AnyModel, model.condition_on_observations(X=X, Y=Y))
    # As in BoTorch's `fantasize`: the average training noise, in outcome space.
    noise = model.likelihood.noise.mean().expand(Y.shape)
    other = model.condition_on_observations(X=X, Y=Y, noise=noise)
    return cast(AnyModel, other)  # of the same class
