"""Guess and double: a width for a function whose norm nobody knows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ConfidenceSchedule,
    ConfidenceState,
    NormBoundedWidth,
)
from botorch_bkb.checks import check_count


# Of a norm bound, by 3e150: what is larger overflows where widths are squared.
MAX_DOUBLINGS = 500


@dataclass
class NormDoubling(ConfidenceSchedule):
    r"""Guess and double an unknown norm bound, as section 4 of [calandriello2019bkb]_.

    Starts at the norm bound of ``schedule`` and doubles it, for good, while the data
    contradict the band, that is while for some pulled arm ``i``, with ``n_i`` pulls,
    sample mean ``ybar_i``, posterior mean ``mu_i`` and leverage score ``tau_i``, ::

        |ybar_i - mu_i| > w sqrt(tau_i) + xi sqrt( 2 log(pi^2 n_i^2 P/(3 delta)) / n_i )

    where ``P`` is the number of pulled arms. The first term on the right bounds
    ``|f_i - mu_i|`` if the norm bound holds. The second bounds ``|ybar_i - f_i|``: by a
    union over ``P`` arms and all ``n`` (``sum_n 6 / (pi^2 n^2) = 1``) it fails for some
    arm at some ``n`` with probability at most ``delta``. So a bound that holds is
    doubled with probability at most ``2 delta``, for a given set of ``P`` arms. Widths
    are valid only once the bound has grown enough, which no test on data can tell.

    Asking twice at one state changes nothing more. After 500 doublings it gives up.

    Attributes:
        schedule: A width with a norm bound; its ``noise_std`` and
            ``failure_probability`` are those of the test.
        num_doublings: How often the bound has been doubled.
    """

    schedule: NormBoundedWidth
    num_doublings: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, NormBoundedWidth):
            raise UnsupportedError(
                "Expected `schedule` to have a norm bound, such as BBKBWidth, but got "
                f"{type(self.schedule).__name__}, whose width has none to double."
            )

    @property
    def norm_bound(self) -> float:
        """The present guess of the norm bound."""
        return self.schedule.norm_bound * 2.0**self.num_doublings

    @override
    def __call__(self, state: ConfidenceState) -> float:
        """Return the width ``w`` at ``state``, after any doublings it calls for.

        Raises:
            UnsupportedError: If ``state.observations`` is missing.
        """
        observed = state.observations
        if observed is None:
            raise UnsupportedError(
                "Expected `state.observations`, the summary of each pulled arm, for "
                "NormDoubling, but got None. Pass an `ArmObservations`."
            )
        n = observed.counts.to(observed.sample_means)
        xi = self.schedule.resolve_noise_std(state)
        union = math.pi**2 * n.numel() / (3 * self.schedule.failure_probability)
        noise = xi * (2 * torch.log(union * n.square()) / n).sqrt()
        # What noise does not explain of the distance between the two means.
        slack = (observed.sample_means - observed.posterior_means).abs() - noise
        deviations = observed.leverage_scores.sqrt()
        # An arm without variance cannot be explained by any norm bound.
        slack, deviations = slack[deviations > 0], deviations[deviations > 0]
        width = self._present_width(state)
        while self.num_doublings < MAX_DOUBLINGS and (slack > width * deviations).any():
            self.num_doublings += 1
            width = self._present_width(state)
        return width

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the number of doublings."""
        return {"num_doublings": self.num_doublings}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the number of doublings."""
        super().load_state_dict(state_dict)
        count = state_dict["num_doublings"]
        self.num_doublings = check_count("num_doublings", count, MAX_DOUBLINGS)

    def _present_width(self, state: ConfidenceState) -> float:
        return dataclasses.replace(self.schedule, norm_bound=self.norm_bound)(state)
