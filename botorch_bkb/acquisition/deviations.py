"""Widths in posterior deviations: what practice uses where anything is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError, UnsupportedError
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule, ConfidenceState
from botorch_bkb.checks import as_number


@dataclass(frozen=True)
class DeviationWidth(ConfidenceSchedule):
    r"""A number of posterior deviations, more of them where rewards are noisy.

    Arms are scored ``mean + c sqrt(var)``, ``c = num_deviations + noise_deviations s``,
    that is ``w = c sqrt(lambda)``. Here ``s = sqrt(lambda / (kappa^2 + lambda))`` is
    the noise's share of a reward's deviation, 0 without noise and 1 where all is noise.

    What practice uses where hyper-parameters are learned: the papers' widths grow with
    ``log det(I + K / lambda)``, which a small fitted noise makes ten to thirty
    deviations wide. Under noise the best mean is often that of a lucky measurement, and
    a fit is less sure than it says: there a wider bound looks further. No theorem
    covers it.

    Attributes:
        num_deviations: At least zero. A plain number in the place of a schedule is
            this one.
        noise_deviations: At least zero; 0 for the same number whatever the noise.
    """

    num_deviations: float = 1.0
    noise_deviations: float = 0.0

    def __post_init__(self) -> None:
        _check_num_deviations("num_deviations", self.num_deviations)
        _check_num_deviations("noise_deviations", self.noise_deviations)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        variance = state.noise_variance
        if variance == 0:
            return 0.0
        share = math.sqrt(variance / (state.max_prior_variance + variance))
        num_deviations = self.num_deviations + self.noise_deviations * share
        return num_deviations * math.sqrt(variance)


@dataclass
class RandomDeviationWidth(ConfidenceSchedule):
    r"""An exponentially distributed number of posterior deviations, anew each decision.

    Arms are scored ``mean + z_t sqrt(var)`` with ``z_t ~ Exp(mean = mean_deviations)``,
    drawn from the seed and the number of the decision: asking twice at one state gives
    one width, and so does another process. Decisions take turns at improving on the
    best mean and at looking elsewhere, and a model that is too sure of itself holds
    none of them for long, which a constant width, however chosen, does not give.

    After IRGP-UCB of [takeno2023irgpucb]_, whose ``beta_t = z_t^2`` is a shifted
    exponential. The shift ``2 log(A / 2)``, which its Bayesian regret bound needs, is
    what makes a bound too wide to find anything in a hundred pulls; here there is none,
    and no theorem.

    Attributes:
        mean_deviations: The mean of ``z_t``, at least zero.
        seed: At least zero.
    """

    mean_deviations: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_num_deviations("mean_deviations", self.mean_deviations)
        self._check_seed(self.seed)

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
        """Restore the seed.

        Raises:
            InputDataError: If ``state_dict`` is that of a schedule of another kind.
        """
        if set(state_dict) != {"seed"}:
            raise InputDataError(
                "Expected the key `seed` in the state of RandomDeviationWidth, but got "
                f"{sorted(state_dict)}. Load it into a schedule of the kind that was "
                "saved."
            )
        self._check_seed(state_dict["seed"])
        self.seed = state_dict["seed"]

    @staticmethod
    def _check_seed(seed: Any) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise InputDataError(
                f"Expected `seed` to be an integer of at least 0, but got {seed!r}."
            )


def as_schedule(confidence: ConfidenceSchedule | float) -> ConfidenceSchedule:
    """Return ``confidence``, a number being one of posterior standard deviations.

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


def _check_num_deviations(name: str, value: float) -> None:
    if not 0 <= as_number(value) < math.inf:
        raise InputDataError(
            f"Expected `{name}` to be finite and not negative, but got {value!r}. "
            "Minimize with `maximize=False`, not with a negative width."
        )
