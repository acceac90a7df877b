r"""The posterior of a drifting function over a finite set of arms, filtered in time.

The function forgets at rate ``eps`` per unit of time: ``f_{t+1} = sqrt(1 - eps) f_t +
sqrt(eps) g_{t+1}``, every ``g`` an independent draw from the GP with covariance ``K``
over the arms. That is a linear state-space model, so equations (7) and (8) of
[bogunovic2016tvgpucb]_ are a Kalman filter: over a gap of ``D``,

    mean <- (1 - eps)^(D / 2) mean
    C    <- (1 - eps)^D C + (1 - (1 - eps)^D) K

and every observation is an update of rank one.

References:
    [bogunovic2016tvgpucb] I. Bogunovic, J. Scarlett, V. Cevher. Time-varying Gaussian
    process bandit optimization. AISTATS 2016.
"""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


class ArmFilter:
    r"""The exact posterior over ``A`` arms that drift; equations (7) and (8).

    ``O(A^2)`` time for every observation and every change of time, ``O(A^2)`` memory,
    both independent of how much was observed before. Times are real numbers; several
    observations at one time, or none for long, are fine.

    Args:
        prior_covariance: The ``A x A`` covariance ``K`` of the function at one time.
        noise_variance: lambda.
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time.

    Attributes:
        time: The time of ``mean`` and ``covariance``; None before the first
            observation.
        mean: The ``A`` posterior means at that time.
        covariance: The ``A x A`` posterior covariance at that time.

    Raises:
        BotorchTensorDimensionError: If ``prior_covariance`` is not square.
        InputDataError: If ``noise_variance`` or ``forgetting_rate`` is out of range.
    """

    def __init__(
        self, prior_covariance: Tensor, noise_variance: float, forgetting_rate: float
    ) -> None:
        shape = tuple(prior_covariance.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise BotorchTensorDimensionError(
                f"Expected `prior_covariance` of shape A x A, but got {shape}."
            )
        if not 0 < noise_variance < math.inf:
            raise InputDataError(
                "Expected `noise_variance` to be positive, but got "
                f"{noise_variance}. For exact rewards, use a small one."
            )
        if not 0 <= forgetting_rate <= 1:
            raise InputDataError(
                "Expected `forgetting_rate` between 0 (nothing drifts) and 1 (nothing "
                f"is remembered), but got {forgetting_rate}."
            )
        self.prior_covariance = prior_covariance
        self.noise_variance = noise_variance
        self.forgetting_rate = forgetting_rate
        self.time: float | None = None
        self.mean = prior_covariance.new_zeros(shape[0])
        self.covariance = prior_covariance.clone()

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
                goes back. Nothing has changed then.
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
        self.mean, self.covariance = self._moments(time)
        self.time = time
        for index, reward in zip(indices.tolist(), rewards.tolist(), strict=True):
            column = self.covariance[:, index].clone()
            total = column[index] + self.noise_variance
            self.mean = self.mean + column * ((reward - self.mean[index]) / total)
            self.covariance.addr_(column, column, alpha=-1 / total.item())

    @torch.no_grad()
    def predict(self, time: float) -> tuple[Tensor, Tensor]:
        """Return the ``A`` means and variances at a time, given what was observed.

        ``O(A)``: the decision at a time needs only its variances.

        Args:
            time: When; not before the last observation.

        Raises:
            InputDataError: If the time is before the last observation.
        """
        kept = self._remembered(time)
        prior, variance = self.prior_covariance.diagonal(), self.covariance.diagonal()
        variance = (kept * variance + (1 - kept) * prior).clamp_min(0.0)
        return math.sqrt(kept) * self.mean, variance

    def _moments(self, time: float) -> tuple[Tensor, Tensor]:
        """Return mean and covariance, decayed to a time."""
        kept = self._remembered(time)
        covariance = kept * self.covariance + (1 - kept) * self.prior_covariance
        return math.sqrt(kept) * self.mean, covariance

    def _remembered(self, time: float) -> float:
        """Return ``(1 - eps)^D`` for the gap since the last observation."""
        if not math.isfinite(time):
            raise InputDataError(f"Expected a finite `time`, but got {time}.")
        if self.time is None:
            return 1.0
        if time < self.time:
            raise InputDataError(
                f"Expected `time` not before {self.time:g}, the time of the last "
                f"observation, but got {time:g}. Bring observations in order of time."
            )
        return float((1 - self.forgetting_rate) ** (time - self.time))
