"""Guess and double: a width for a function whose norm nobody knows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ArmObservations,
    ConfidenceSchedule,
    ConfidenceState,
    NormBoundedWidth,
)


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
        if state.observations is None:
            raise UnsupportedError(
                "Expected `state.observations`, the summary of each pulled arm, for "
                "NormDoubling, but got None. Pass an `ArmObservations`."
            )
        slack = self._unexplained_deviations(state, state.observations)
        deviations = state.observations.leverage_scores.sqrt()
        # An arm without variance cannot be explained by any norm bound.
        slack, deviations = slack[deviations > 0], deviations[deviations > 0]
        width = self._present_width(state)
        while (
            self.num_doublings < MAX_DOUBLINGS
            and (slack > width * deviations).any().item()
        ):
            self.num_doublings += 1
            width = self._present_width(state)
        return width

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the number of doublings."""
        return {"num_doublings": self.num_doublings}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the number of doublings.

        Raises:
            InputDataError: If ``state_dict`` is not that of a ``NormDoubling``. Nothing
                has changed then.
        """
        if set(state_dict) != {"num_doublings"}:
            raise InputDataError(
                "Expected the key `num_doublings` in the state of NormDoubling, but "
                f"got {sorted(state_dict)}. Load it into a schedule of the kind that "
                "was saved."
            )
        count = state_dict["num_doublings"]
        is_count = isinstance(count, int) and not isinstance(count, bool)
        if not is_count or not 0 <= count <= MAX_DOUBLINGS:
            raise InputDataError(
                "Expected `num_doublings` to be an integer from 0 to "
                f"{MAX_DOUBLINGS}, but got {count!r}."
            )
        self.num_doublings = count

    def _present_width(self, state: ConfidenceState) -> float:
        return dataclasses.replace(self.schedule, norm_bound=self.norm_bound)(state)

    def _unexplained_deviations(
        self, state: ConfidenceState, observations: ArmObservations
    ) -> Tensor:
        """Return ``|ybar_i - mu_i|`` less the part that noise explains."""
        n = observations.counts.to(observations.sample_means)
        xi = self.schedule.resolve_noise_std(state)
        union = math.pi**2 * n.numel() / (3 * self.schedule.failure_probability)
        noise = xi * (2 * torch.log(union * n.square()) / n).sqrt()
        return (observations.sample_means - observations.posterior_means).abs() - noise
