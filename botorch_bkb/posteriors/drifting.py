"""The posterior of a drifting function over a finite set of arms, filtered in time.

The function forgets at rate ``eps`` per unit of time: ``f_{t+1} = sqrt(1 - eps) f_t +
sqrt(eps) g_{t+1}``, every ``g`` an independent draw from the GP with covariance ``K``
over the arms. That is a linear state-space model, so equations (7) and (8) of
[bogunovic2016tvgpucb]_ are a Kalman filter: over a gap of ``D``,

    mean <- (1 - eps)^(D / 2) mean
    C    <- (1 - eps)^D C + (1 - (1 - eps)^D) K

and every observation is an update of rank one.
:class:`~botorch_bkb.posteriors.ArmFilter` does this for all arms,
:class:`~botorch_bkb.posteriors.SparseArmFilter` for a few inducing arms, whose values
determine what data on them say of all others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_bkb.checks import as_number, check_time
from botorch_bkb.models.utils.nystrom import (
    check_largest_variance,
    check_prior_variance,
    check_residual,
)
from botorch_bkb.models.utils.rounding import RoundingReport


class DriftingPosterior(ABC):
    r"""The posterior over arms that drift, moved on from observation to observation.

    Attributes:
        prior_variance: The ``A`` prior variances.
        noise_variance: lambda.
        forgetting_rate: ``eps``, per unit of time.
        time: The time of the moments; None before the first observation.
        mean: The ``A`` posterior means at that time.
        log_det: ``log det(I + K / lambda)`` of all observations with the covariances of
            the drifting function, twice the mutual information (14).
    """

    def __init__(
        self, prior_variance: Tensor, noise_variance: float, forgetting_rate: float
    ) -> None:
        if not 0 < as_number(noise_variance) < math.inf:
            raise InputDataError(
                "Expected `noise_variance` to be a positive number, but got "
                f"{noise_variance!r}. For exact rewards, use a small one."
            )
        check_forgetting_rate(forgetting_rate)
        check_prior_variance(prior_variance)
        check_largest_variance(prior_variance.max().item())
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance
        self.forgetting_rate = forgetting_rate
        self.time: float | None = None
        self.mean = torch.zeros_like(prior_variance)
        self.log_det = 0.0
        self._rounding_report = RoundingReport(prior_variance.dtype)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The ``A`` posterior variances at ``time``."""

    @abstractmethod
    def draw_values(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Return a ``num_draws x A`` tensor of joint draws of the arms at ``time``."""

    @abstractmethod
    def _decay(self, retained: float) -> None:
        """Move on to where ``retained`` of the variance is remembered."""

    @abstractmethod
    def _condition(self, index: int, reward: float) -> None:
        """Take in one reward."""

    @abstractmethod
    def _rounding(self, index: int) -> float:
        """Return the relative rounding error of the variance of an arm.

        Args:
            index: The arm of the last reward.
        """

    @abstractmethod
    def copy(self) -> Self:
        """Return a copy whose later observations do not change this one."""

    @abstractmethod
    def extended(self, arms: Tensor, covariance: Tensor) -> Self:
        r"""Return one over more arms, after the others, that has the same observations.

        Given the arms that were observed, what was observed says nothing more about any
        other arm, now or before. So nothing is replayed.

        Args:
            arms: The ``k x d`` new arms.
            covariance: The ``k x (A + k)`` prior covariances of the new arms with all.

        Raises:
            InputDataError: If the prior covariance turns out not to be positive
                semi-definite.
        """

    def _widened(self, prior_variance: Tensor, mean: Tensor, variance: Tensor) -> Self:
        """Return a shallow copy with ``k`` more moments, after checks."""
        check_prior_variance(prior_variance)
        check_residual(variance, prior_variance)
        other = copy(self)
        other.prior_variance = torch.cat([self.prior_variance, prior_variance])
        other.mean = torch.cat([self.mean, mean])
        return other

    @torch.no_grad()
    def observe(self, indices: Tensor, rewards: Tensor, time: float) -> None:
        """Take in rewards of one time.

        Args:
            indices: A ``q``-dim long tensor of arms, repeats allowed; may be empty.
            rewards: Their ``q`` rewards.
            time: When; not before an earlier observation.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or the time
                goes back. Nothing has changed then. Or if the prior covariance turns
                out not to be positive semi-definite, which ends this posterior.
        """
        if indices.dim() != 1 or rewards.shape != indices.shape:
            raise BotorchTensorDimensionError(
                "Expected one reward per arm, but got `indices` of shape "
                f"{tuple(indices.shape)} and `rewards` of shape {tuple(rewards.shape)}."
            )
        num_arms = self.mean.shape[0]
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < (
            num_arms
        ):
            raise InputDataError(
                f"Expected `indices` from 0 to {num_arms - 1}, but got "
                f"{indices.tolist()}."
            )
        if not rewards.isfinite().all():
            raise InputDataError(
                f"Expected finite `rewards`, but got {rewards.tolist()}. Leave failed "
                "measurements out."
            )
        self.advance(time)
        for index, reward in zip(indices.tolist(), rewards.tolist(), strict=True):
            self._condition(index, reward)
            self._rounding_report.note(self._rounding(index), index)

    @torch.no_grad()
    def advance(self, time: float) -> None:
        """Move on to a time without an observation.

        Raises:
            InputDataError: If the time goes back or is not finite.
        """
        retained = self._retained(time)
        if retained < 1:
            self._decay(retained)
        self.time = time

    @torch.no_grad()
    def predict(self, time: float) -> tuple[Tensor, Tensor]:
        """Return the ``A`` means and variances at a time, given what was observed.

        ``O(A)``: the decision at a time needs only its variances.

        Args:
            time: When; not before the last observation.

        Raises:
            InputDataError: If the time is before the last observation.
        """
        retained = self._retained(time)
        variance = retained * self.variance + (1 - retained) * self.prior_variance
        return math.sqrt(retained) * self.mean, variance.clamp_min(0.0)

    def _retained(self, time: float) -> float:
        """Return ``(1 - eps)^D`` for the gap since the last observation."""
        check_time(time)
        if self.time is None:
            return 1.0
        if time < self.time:
            raise InputDataError(
                f"Expected `time` not before {self.time:g}, the time of the last "
                f"observation, but got {time:g}. Bring observations in order of time."
            )
        return float((1 - self.forgetting_rate) ** (time - self.time))


def check_forgetting_rate(forgetting_rate: float) -> None:
    """Raise an ``InputDataError`` unless this is a forgetting rate."""
    if not 0 <= as_number(forgetting_rate) <= 1:
        raise InputDataError(
            "Expected `forgetting_rate` between 0 (nothing drifts) and 1 (nothing "
            f"is remembered), but got {forgetting_rate!r}."
        )
