"""Confidence widths of the papers, as small schedule objects.

In all formulas ``lambda`` is the noise
variance, ``F`` the norm bound, ``xi`` the noise standard deviation, ``delta`` the
failure probability, ``kappa^2`` the largest prior variance, and ``tau`` a ridge
leverage score ``var / lambda`` (the papers' ``sigma-tilde^2``). ``t`` is what each
paper counts by it: the observations in the widths of BKB, whose ``beta_t`` chooses
``x_{t+1}``, and the number of the decision in those of [srinivas2010]_ and
[bogunovic2016tvgpucb]_, whose ``beta_t`` chooses ``x_t``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from botorch.exceptions.errors import UnsupportedError
from typing_extensions import override

from botorch_bkb.acquisition.schedules import ConfidenceSchedule, ConfidenceState
from botorch_bkb.checks import (
    check_fraction,
    check_not_negative,
    check_positive,
    check_size,
)


# Of a norm bound, by 3e150: what is larger overflows where widths are squared.
MAX_DOUBLINGS = 500


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

    With ``alpha = (1 + eps) / (1 - eps)`` and the sum over the ``t`` observations,

        w = sqrt(2) xi sqrt( alpha g(t) sum_s var_t(x_s)/lambda + log(1/delta) )
            + (1 + 1/sqrt(1 - eps)) sqrt(lambda) F

    with ``g(t) = 1 + log(1 + kappa^2 t / lambda)``, by which equation (6) bounds the
    log determinant in the proof (appendix D.1). The theorem prints ``2 xi`` and ``g(t)
    = log(kappa^2 t)``, since ``1 + log(1 + kappa^2 t) <= 2 log(kappa^2 t)`` once ``t``
    is large; for small ``t`` it is negative and bounds nothing.

    Attributes:
        accuracy: ``eps``, the accuracy of the inducing points (``bkb_oversampling``).
        printed: Whether to use ``2 xi`` and ``g(t)`` as printed, at least 0.
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
        constant = math.sqrt(2)
        log_factor = 1 + math.log1p(total_variance / state.noise_variance)
        if self.printed:
            constant, log_factor = 2.0, math.log(max(1.0, total_variance))
        information = alpha * log_factor * state.effective_dimension
        bias = (1 + 1 / math.sqrt(1 - eps)) * self._norm_term(state)
        return constant * self._noise_term(state, information) + bias


@dataclass(frozen=True)
class BBKBWidth(NormBoundedWidth):
    r"""Width of BBKB, Theorem 2 of [calandriello2020bbkb]_.

    With ``tau_s`` the leverage score of pull ``s`` at the start of its batch,

        w = C~ ( 2 xi sqrt( sum_s log(1 + 3 tau_s) + log(1/delta) )
                 + (1 + sqrt(2)) sqrt(lambda) F )

    The theorem asks ``lambda >= 1`` and ``bbkb_oversampling``. Its proof needs only
    ``sqrt(2) xi``, and ``sqrt(C~)`` for batches closed on squared deviations, as here.
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

    with ``t`` observations. No theorem covers it. Compare Theorem 2 of
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
    that opens a run (``opening_score``). No theorem covers it. Compare Theorem 2 of
    [calandriello2020bbkb]_ (``BBKBWidth``).
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
        return math.sqrt(2 * math.log(ratio) * state.noise_variance)


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
        return math.sqrt(beta * state.noise_variance)


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
        return math.sqrt(beta * state.noise_variance)


class RTVWidth(TVWidth):
    r"""Width of R-GP-UCB, equation (16) of [bogunovic2016tvgpucb]_.

        beta_t = 2 log(2 pi^2 t^2 / (3 delta))
                 + 2 d log( r d b t^2 sqrt(log(2 d a pi^2 t^2 / (3 delta))) )

    on a box, otherwise as :class:`TVWidth`.
    """

    _factor = 2 / 3


@dataclass(frozen=True)
class NormDoubling(ConfidenceSchedule):
    r"""Guess and double an unknown norm bound, as section 4 of [calandriello2019bkb]_.

    Starts at the norm bound of ``schedule`` and doubles it while the data contradict
    the band, that is while for some pulled arm ``i``, with ``n_i`` pulls, sample mean
    ``ybar_i``, posterior mean ``mu_i`` and leverage score ``tau_i``, ::

        |ybar_i - mu_i| > w sqrt(tau_i) + xi sqrt( 2 log(pi^2 n_i^2 P/(3 delta)) / n_i )

    where ``P`` is the number of pulled arms. The first term on the right bounds
    ``|f_i - mu_i|`` if the norm bound holds. The second bounds ``|ybar_i - f_i|``: by a
    union over ``P`` arms and all ``n`` (``sum_n 6 / (pi^2 n^2) = 1``) it fails for some
    arm at some ``n`` with probability at most ``delta``. So a bound that holds is
    doubled with probability at most ``2 delta``, for a given set of ``P`` arms. Widths
    are valid only once the bound has grown enough, which no test on data can tell.

    Every state is tested from the start. After 500 doublings the test gives up.

    Attributes:
        schedule: A width with a norm bound; its ``noise_std`` and
            ``failure_probability`` are those of the test.
    """

    schedule: NormBoundedWidth

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, NormBoundedWidth):
            raise UnsupportedError(
                "Expected `schedule` to have a norm bound, such as BBKBWidth, but got "
                f"{type(self.schedule).__name__}, whose width has none to double."
            )

    @override
    def __call__(self, state: ConfidenceState) -> float:
        """Return the width ``w`` at ``state``; raises as :meth:`doubled` does."""
        return self.doubled(state)(state)

    def doubled(self, state: ConfidenceState) -> NormBoundedWidth:
        """Return the schedule with the norm bound that ``state`` calls for.

        Raises:
            UnsupportedError: If ``state.observations`` is missing.
        """
        observed = state.observations
        if observed is None:
            raise UnsupportedError(
                "Expected `state.observations`, the summary of each pulled arm, for "
                "NormDoubling, but got None. Pass an `ArmObservations`."
            )
        schedule = self.schedule
        n = observed.counts.to(observed.sample_means)
        xi = schedule.resolve_noise_std(state)
        union = math.pi**2 * n.numel() / (3 * schedule.failure_probability)
        noise = xi * (2 * torch.log(union * n.square()) / n).sqrt()
        # What noise does not explain of the distance between the two means.
        slack = (observed.sample_means - observed.posterior_means).abs() - noise
        deviations = observed.leverage_scores.sqrt()
        # An arm without variance cannot be explained by any norm bound.
        slack, deviations = slack[deviations > 0], deviations[deviations > 0]
        for _ in range(MAX_DOUBLINGS):
            if not (slack > schedule(state) * deviations).any():
                break
            schedule = replace(schedule, norm_bound=2 * schedule.norm_bound)
        return schedule

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        # Version 1.0 saved a number of doublings, which follows from the observations.
        super().load_state_dict(
            {k: v for k, v in state_dict.items() if k != "num_doublings"}
        )
