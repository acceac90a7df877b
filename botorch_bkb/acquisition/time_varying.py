"""Upper confidence bounds on a function that drifts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.analytic import ScheduledUpperConfidenceBound
from botorch_bkb.acquisition.confidence import (
    confidence_width_from_beta,
    ConfidenceSchedule,
    ConfidenceState,
)
from botorch_bkb.checks import (
    check_fraction,
    check_number,
    check_positive,
    check_size,
)


class TimeVaryingUpperConfidenceBound(ScheduledUpperConfidenceBound):
    r"""Upper confidence bound at a decision time: line 3 of TV-GP-UCB.

    Algorithm 2 of [bogunovic2016tvgpucb]_. The candidates are points of space; the
    model's inputs have time as one more, last column, as those of
    :class:`~botorch_bkb.models.TimeVaryingGP`.

    Arguments and errors are those of ``ScheduledUpperConfidenceBound``, and
    ``decision_time``, a finite number: when the candidate will be evaluated.

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
