"""Confidence widths of the papers, as small schedule objects.

A schedule maps a ``ConfidenceState`` to a width ``w`` in the papers' scaling: arms are
scored ``mean + w * sqrt(var / lambda)``. BoTorch scores ``mean + sqrt(beta * var)``;
``beta_from_confidence_width`` converts. In all formulas ``lambda`` is the noise
variance, ``F`` the norm bound, ``xi`` the noise standard deviation, ``delta`` the
failure probability, ``kappa^2`` the largest prior variance, and ``tau`` a ridge
leverage score ``var / lambda`` (the papers' ``sigma-tilde^2``). ``t`` is what each
paper counts by it: the told pulls in the widths of BKB, whose ``beta_t`` chooses
``x_{t+1}``, and the number of the decision in those of [srinivas2010]_ and
[bogunovic2016tvgpucb]_, whose ``beta_t`` chooses ``x_t``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import (
    check_fraction,
    check_not_negative,
    check_positive,
    check_size,
)


FloatOrTensor = TypeVar("FloatOrTensor", float, Tensor)

MINIMIZE = "Minimize with `maximize=False`, not with a negative width."


@dataclass(frozen=True, eq=False)
class ArmObservations:
    """What the told pulls say about each of the ``P`` pulled arms.

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
    """All that a confidence schedule may depend on.

    Attributes:
        num_pulls: The number of told pulls.
        num_arms: The number of arms; None if unknown, as on a box.
        noise_variance: ``lambda``.
        max_prior_variance: ``kappa^2``.
        effective_dimension: The sum of ``var_t(x_s) / lambda`` over told pulls.
        log_det: ``log det(I + K_t / lambda)``, by the model's factors.
        frozen_leverage_scores: A tensor with, for each told pull since the last
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
class NormBoundedWidth(ConfidenceSchedule):
    """Base of the widths for a function whose RKHS norm is bounded.

    Attributes:
        norm_bound: ``F``, a bound on the RKHS norm.
        noise_std: ``xi``, the sub-Gaussian scale of the noise; None for
            ``sqrt(lambda)``.
        failure_probability: ``delta``, how likely the band may be left.
    """

    norm_bound: float = 1.0
    noise_std: float | None = None
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        check_positive("norm_bound", self.norm_bound)
        if self.noise_std is not None:
            remedy = "Pass None for the square root of the noise variance."
            check_not_negative("noise_std", self.noise_std, remedy)
        check_fraction("failure_probability", self.failure_probability)

    def resolve_noise_std(self, state: ConfidenceState) -> float:
        """Return ``xi``."""
        if self.noise_std is None:
            return math.sqrt(state.noise_variance)
        return self.noise_std

    def _norm_term(self, state: ConfidenceState) -> float:
        """Return ``sqrt(lambda) F``."""
        return math.sqrt(state.noise_variance) * self.norm_bound

    def _noise_term(self, state: ConfidenceState, information: float) -> float:
        """Return ``xi sqrt(information + log(1 / delta))``."""
        inside = information - math.log(self.failure_probability)
        return self.resolve_noise_std(state) * math.sqrt(inside)


@dataclass(frozen=True)
class BKBWidth(NormBoundedWidth):
    r"""Width of BKB, Theorem 2 of [calandriello2019bkb]_.

    With ``alpha = (1 + eps) / (1 - eps)`` and the sum over the ``t`` told pulls,

        w = 2 xi sqrt( alpha g(t) sum_s var_t(x_s)/lambda + log(1/delta) )
            + (1 + 1/sqrt(1 - eps)) sqrt(lambda) F

    The paper prints ``g(t) = log(kappa^2 t)``, which is negative for small ``t`` and
    then does not bound the log determinant. The default is ``g(t) = 1 + log(1 +
    kappa^2 t / lambda)``, from equation (6) of the paper, which does.

    Attributes:
        accuracy: ``eps``, the accuracy of the inducing points (``bkb_oversampling``).
        printed: Whether to use ``g(t)`` as printed, with negative values taken as 0.
    """

    accuracy: float = 0.5
    printed: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("accuracy", self.accuracy)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        eps = self.accuracy
        alpha = (1 + eps) / (1 - eps)
        total_variance = state.max_prior_variance * state.num_pulls
        log_factor = 1 + math.log1p(total_variance / state.noise_variance)
        if self.printed:
            log_factor = math.log(max(1.0, total_variance))
        information = alpha * log_factor * state.effective_dimension
        bias = (1 + 1 / math.sqrt(1 - eps)) * self._norm_term(state)
        return 2 * self._noise_term(state, information) + bias


@dataclass(frozen=True)
class BBKBWidth(NormBoundedWidth):
    r"""Width of BBKB, Theorem 2 of [calandriello2020bbkb]_.

    With ``tau_s`` the leverage score of pull ``s`` at the start of its batch,

        w = C~ ( 2 xi sqrt( sum_s log(1 + 3 tau_s) + log(1/delta) )
                 + (1 + sqrt(2)) sqrt(lambda) F )

    The theorem asks ``lambda >= 1`` and ``bbkb_oversampling``. Batches closed on the
    sum of squared deviations, as here, need ``sqrt(C~)`` only.
    """

    @override
    def __call__(self, state: ConfidenceState) -> float:
        width = 2 * self._noise_term(state, state.frozen_log_det(3.0))
        width += (1 + math.sqrt(2)) * self._norm_term(state)
        return state.ratio_threshold * width


@dataclass(frozen=True)
class PracticalBKBWidth(NormBoundedWidth):
    r"""Width of BKB in the authors' released code, without the proof's constants.

        w = sqrt(lambda) F + xi sqrt( log(t) sum_s var_t(x_s)/lambda + log(1/delta) )

    with ``t`` told pulls. No theorem covers it. Compare Theorem 2 of
    [calandriello2019bkb]_ (``BKBWidth``).
    """

    @override
    def __call__(self, state: ConfidenceState) -> float:
        information = math.log(max(1, state.num_pulls)) * state.effective_dimension
        return self._norm_term(state) + self._noise_term(state, information)


@dataclass(frozen=True)
class PracticalBBKBWidth(NormBoundedWidth):
    r"""Width of BBKB in the authors' released code, without the proof's constants.

        w = sqrt(lambda) F + xi sqrt( C~ sum_s log(1 + tau_s) + log(1/delta) )

    with ``tau_s`` the leverage score of pull ``s`` at the start of its batch. As in
    that code, the sum runs over the pulls that were chosen: not over the uniform draw
    that opens a run (``opening_score``), which on Abalone raises the regret by 5 %. No
    theorem covers it. Compare Theorem 2 of [calandriello2020bbkb]_ (``BBKBWidth``).
    """

    @override
    def __call__(self, state: ConfidenceState) -> float:
        chosen = state.frozen_log_det(1.0) - math.log1p(state.opening_score)
        information = state.ratio_threshold * chosen
        return self._norm_term(state) + self._noise_term(state, information)


@dataclass(frozen=True)
class ChowdhuryGopalanWidth(NormBoundedWidth):
    r"""Width of GP-UCB by [chowdhury2017]_, equation (7) of [calandriello2019bkb]_.

    w = sqrt(lambda) F + xi sqrt( 2 (log det(I + K_t/lambda) + log(1/delta)) )
    """

    @override
    def __call__(self, state: ConfidenceState) -> float:
        noise_term = math.sqrt(2) * self._noise_term(state, state.log_det)
        return self._norm_term(state) + noise_term


@dataclass(frozen=True)
class SrinivasWidth(ConfidenceSchedule):
    r"""Width of GP-UCB on ``A`` arms under a GP prior, Theorem 1 of [srinivas2010]_.

        beta_t = 2 log(A t^2 pi^2 / (6 delta)),   w = sqrt(beta_t lambda)

    with ``t`` the number of the decision.

    Attributes:
        failure_probability: ``delta``.
    """

    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        check_fraction("failure_probability", self.failure_probability)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        """Return the width ``w`` at ``state``.

        Raises:
            UnsupportedError: If the number of arms is unknown.
        """
        if state.num_arms is None:
            raise UnsupportedError(
                "Expected `num_arms` for SrinivasWidth, whose theorem is about a "
                "finite set of arms, but got None. Pass `num_arms`, or use another "
                "schedule."
            )
        t = state.decision_number
        ratio = state.num_arms * t**2 * math.pi**2 / (6 * self.failure_probability)
        return confidence_width_from_beta(2 * math.log(ratio), state.noise_variance)


@dataclass(frozen=True)
class LogWidth(ConfidenceSchedule):
    r"""The practical schedule of [bogunovic2016tvgpucb]_, section 5.

        beta_t = max(0, c1 log(c2 t)),   w = sqrt(beta_t lambda)

    with ``t`` the number of the decision. The paper takes ``(c1, c2) = (0.8, 4)`` on
    synthetic data, ``(0.8, 0.4)`` on temperatures and ``(0.2, 0.4)`` on traffic.

    Attributes:
        c1: The positive factor outside the logarithm.
        c2: The positive factor inside the logarithm.
    """

    c1: float
    c2: float

    def __post_init__(self) -> None:
        check_positive("c1", self.c1)
        check_positive("c2", self.c2)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        beta = max(0.0, self.c1 * math.log(self.c2 * state.decision_number))
        return confidence_width_from_beta(beta, state.noise_variance)


@dataclass(frozen=True)
class SmoothBox:
    r"""A box with bounds on derivatives of draws, (10) of [bogunovic2016tvgpucb]_.

    For every derivative ::

        P( sup_x |df / dx_j| > L ) <= a exp(-(L / b)^2)    for all L >= 0 and all j.

    Attributes:
        dimension: ``d``.
        side_length: ``r``, of the box ``[0, r]^d``.
        a: ``a_1``.
        b: ``b_1``.
    """

    dimension: int
    side_length: float
    a: float
    b: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_size("dimension", self.dimension)
        for name in ("side_length", "a", "b"):
            check_positive(name, getattr(self, name))


@dataclass(frozen=True)
class TVWidth(ConfidenceSchedule):
    r"""Width of TV-GP-UCB, equation (19) of [bogunovic2016tvgpucb]_.

        beta_t = 2 log(pi^2 t^2 / (2 delta))
                 + 2 d log( r d b t^2 sqrt(log(d a pi^2 t^2 / (2 delta))) )

    on a box, with ``t`` the number of the decision, at least 1 in the place of the
    argument of the second logarithm, and ``w = sqrt(beta_t lambda)``; on ``A`` arms ``2
    log(A pi^2 t^2 / (6 delta))``, where no derivative is needed.

    Attributes:
        failure_probability: ``delta``.
        box: The box and its bounds; None for a finite set of arms.
    """

    failure_probability: float = 0.05
    box: SmoothBox | None = None
    # The union bound on a box multiplies pi^2 t^2 / delta by it.
    _factor: ClassVar[float] = 1 / 2

    def __post_init__(self) -> None:
        """Check the probability."""
        check_fraction("failure_probability", self.failure_probability)

    @override
    def __call__(self, state: ConfidenceState) -> float:
        """Return the width ``w`` at ``state``.

        Raises:
            UnsupportedError: If there is no box and the number of arms is unknown.
        """
        t = state.decision_number
        union = math.pi**2 * t**2 / self.failure_probability
        if self.box is not None:
            union *= self._factor
            box, d = self.box, self.box.dimension
            lipschitz = math.sqrt(max(math.log(d * box.a * union), 0.0))
            cells = box.side_length * d * box.b * t**2 * lipschitz
            beta = 2 * math.log(union) + 2 * d * math.log(max(cells, 1.0))
        elif state.num_arms is not None:
            beta = 2 * math.log(state.num_arms * union / 6)
        else:
            raise UnsupportedError(
                f"Expected `box` or the number of arms for {type(self).__name__}, but "
                "got neither. Pass `num_arms`, or a `SmoothBox`."
            )
        return confidence_width_from_beta(beta, state.noise_variance)


class RTVWidth(TVWidth):
    r"""Width of R-GP-UCB, equation (16) of [bogunovic2016tvgpucb]_.

        beta_t = 2 log(2 pi^2 t^2 / (3 delta))
                 + 2 d log( r d b t^2 sqrt(log(2 d a pi^2 t^2 / (3 delta))) )

    on a box, otherwise as :class:`TVWidth`.
    """

    _factor = 2 / 3


def beta_from_confidence_width(
    confidence_width: FloatOrTensor, noise: FloatOrTensor
) -> FloatOrTensor:
    r"""Convert the papers' width ``w`` to BoTorch's ``beta = w^2 / noise``.

    The papers score ``mean + w * sqrt(var / noise)``; BoTorch scores ``mean +
    sqrt(beta * var)``.
    """
    return confidence_width**2 / noise


def confidence_width_from_beta(beta: float, noise: float) -> float:
    """Convert a ``beta`` in true units to the papers' width ``sqrt(beta * noise)``."""
    return math.sqrt(beta * noise)
