"""Widths in posterior standard deviations, for learned hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from botorch.exceptions.errors import UnsupportedError
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ConfidenceSchedule,
    ConfidenceState,
    MINIMIZE,
)
from botorch_bkb.checks import check_count, check_not_negative


@dataclass(frozen=True)
class DeviationWidth(ConfidenceSchedule):
    r"""A number of posterior deviations, more of them where rewards are noisy.

    Arms are scored ``mean + c sqrt(var)``, ``c = num_deviations + noise_deviations s``,
    that is ``w = c sqrt(lambda)``. Here ``s = sqrt(lambda / (kappa^2 + lambda))`` is
    the noise's share of a reward's deviation, 0 without noise and 1 where all is noise.

    For learned hyperparameters: the papers' widths grow with ``log det(I + K /
    lambda)``, and a small fitted noise makes them ten to thirty deviations wide. Under
    noise the best mean is often that of a lucky measurement, so the bound is wider. No
    theorem covers it.

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
    r"""A random number of posterior deviations, exponentially distributed.

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
