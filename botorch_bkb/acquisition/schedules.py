"""Confidence schedules, and widths in posterior standard deviations.

A schedule maps a ``ConfidenceState`` to a width ``w`` in the papers' scaling: arms are
scored ``mean + w * sqrt(var / lambda)``. BoTorch scores ``mean + sqrt(beta * var)``;
``beta_from_confidence_width`` converts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_count, check_not_negative


MINIMIZE = "Minimize with `maximize=False`, not with a negative width."


@dataclass(frozen=True, eq=False)
class ArmObservations:
    """A summary of the observations of each of the ``P`` pulled arms.

    Attributes:
        counts: A ``P``-dim tensor of pull counts, each at least one.
        sample_means: A ``P``-dim tensor of mean rewards, in the posterior's units.
        posterior_means: A ``P``-dim tensor of posterior means.
        leverage_scores: A ``P``-dim tensor of posterior variances over ``lambda``.
    """

    counts: Tensor
    sample_means: Tensor
    posterior_means: Tensor
    leverage_scores: Tensor


@dataclass(frozen=True, eq=False)
class ConfidenceState:
    """The arguments of a confidence schedule.

    Attributes:
        num_pulls: The number of observations.
        num_arms: The number of arms; None if unknown, as on a box.
        noise_variance: ``lambda``.
        max_prior_variance: ``kappa^2``.
        effective_dimension: The sum of ``var_t(x_s) / lambda`` over observations; of an
            objective that drifts, of ``var / lambda`` at the ask of each.
        log_det: ``log det(I + K_t / lambda)``, by the model's factors.
        frozen_leverage_scores: A tensor with, for each observation since the last
            restart, its ``var / lambda`` at the start of its batch.
        log_det_start: ``log det(I + K / lambda)`` at the last restart, that is a refit
            of hyperparameters; frozen sums continue from it.
        ratio_threshold: ``C~`` of the batch rule, 1 without delay.
        opening_score: The entry of ``frozen_leverage_scores`` that belongs to the
            uniform draw which opened the run, 0 if there is none.
        observations: Per-arm summaries, for ``NormDoubling``.
        num_pending: The number of pulls that were chosen and have no reward yet.
    """

    num_pulls: int
    num_arms: int | None
    noise_variance: float
    max_prior_variance: float
    effective_dimension: float
    log_det: float
    frozen_leverage_scores: Tensor
    log_det_start: float = 0.0
    ratio_threshold: float = 1.0
    opening_score: float = 0.0
    observations: ArmObservations | None = None
    num_pending: int = 0

    @property
    def decision_number(self) -> int:
        """The number of the decision, one more than pulls told and pending.

        Pulls that failed do not count. That of a batch is the number of its first pull.
        """
        return self.num_pulls + self.num_pending + 1

    def frozen_log_det(self, factor: float) -> float:
        """Return ``log_det_start + sum_s log(1 + factor * tau_s)``, frozen ``tau_s``.

        Pull ``s`` counts once, with its leverage score at the start of its batch.
        """
        increments = torch.log1p(factor * self.frozen_leverage_scores)
        return self.log_det_start + increments.sum().item()


class ConfidenceSchedule(ABC):
    """A rule for the confidence width ``w``, in the papers' scaling."""

    @abstractmethod
    def __call__(self, state: ConfidenceState) -> float:
        """Return the width ``w`` at ``state``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule has learned; empty for a stateless one."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            InputDataError: If it is the state of a schedule of another kind, or a value
                is out of range. Nothing has changed then.
        """
        expected = self.state_dict().keys()
        if state_dict.keys() != expected:
            raise InputDataError(
                f"Expected the keys {sorted(expected)} in the state of "
                f"{type(self).__name__}, but got {sorted(state_dict)}. Load it into a "
                "schedule of the kind that was saved."
            )


@dataclass(frozen=True)
class ConstantWidth(ConfidenceSchedule):
    """The same width at every step.

    Attributes:
        width: ``w``, at least zero.
    """

    width: float

    def __post_init__(self) -> None:
        check_not_negative("width", self.width, MINIMIZE)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        return self.width


@dataclass(frozen=True)
class DeviationWidth(ConfidenceSchedule):
    r"""A number of posterior standard deviations, more of them if rewards are noisy.

    Arms are scored ``mean + c sqrt(var)``, ``c = num_deviations + noise_deviations s``,
    that is ``w = c sqrt(lambda)``. Here ``s = sqrt(lambda / (kappa^2 + lambda))`` is
    the noise's share of a reward's standard deviation, between 0 and 1.

    For learned hyperparameters: the papers' widths grow with ``log det(I + K /
    lambda)``, and a small fitted noise makes them ten to thirty standard deviations
    wide. Under noise the best mean is often that of a lucky measurement, so the bound
    is wider. No theorem covers it.

    Attributes:
        num_deviations: At least zero. A plain number in the place of a schedule is
            this one.
        noise_deviations: At least zero; 0 for the same number whatever the noise.
    """

    num_deviations: float = 1.0
    noise_deviations: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("num_deviations", self.num_deviations, MINIMIZE)
        check_not_negative("noise_deviations", self.noise_deviations, MINIMIZE)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        variance = state.noise_variance
        share = math.sqrt(variance / (state.max_prior_variance + variance))
        num_deviations = self.num_deviations + self.noise_deviations * share
        return num_deviations * math.sqrt(variance)


@dataclass
class RandomDeviationWidth(ConfidenceSchedule):
    r"""A random number of posterior standard deviations, exponentially distributed.

    Arms are scored ``mean + z_t sqrt(var)`` with ``z_t ~ Exp(mean = mean_deviations)``,
    drawn from the seed and the number of the decision: one state gives one width.
    Decisions take turns at improving on the best mean and at looking elsewhere, which
    helps where a model is too sure of itself.

    After IRGP-UCB of [takeno2023irgpucb]_, whose ``beta_t = z_t^2`` is a shifted
    exponential. Its Bayesian regret bound needs the shift ``2 log(A / 2)``, which makes
    bounds too wide for a hundred pulls; here there is none, and no theorem.

    Attributes:
        mean_deviations: The mean of ``z_t``, at least zero.
        seed: At least zero.
    """

    mean_deviations: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("mean_deviations", self.mean_deviations, MINIMIZE)
        check_count("seed", self.seed)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        stream = np.random.default_rng([self.seed, state.decision_number])
        num_deviations = self.mean_deviations * stream.exponential()
        return num_deviations * math.sqrt(state.noise_variance)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the seed."""
        return {"seed": self.seed}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the seed."""
        super().load_state_dict(state_dict)
        self.seed = check_count("seed", state_dict["seed"])


def as_schedule(confidence: ConfidenceSchedule | float) -> ConfidenceSchedule:
    """Return a schedule; a number is one of posterior standard deviations.

    Raises:
        UnsupportedError: If it is neither a schedule nor a number.
        InputDataError: If it is a negative or infinite number.
    """
    if isinstance(confidence, ConfidenceSchedule):
        return confidence
    if isinstance(confidence, Real):
        return DeviationWidth(float(confidence))
    raise UnsupportedError(
        "Expected `confidence` to be a number or a ConfidenceSchedule, but got "
        f"{type(confidence).__name__}. Subclass ConfidenceSchedule for a rule of your "
        "own."
    )


def beta_from_confidence_width(confidence_width: float, noise: float) -> float:
    """Convert the papers' width ``w`` to BoTorch's ``beta = w^2 / noise``."""
    return confidence_width**2 / noise
