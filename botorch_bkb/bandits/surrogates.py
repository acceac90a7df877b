"""Surrogates: models of the rewards of all arms, given the observations.

:class:`PosteriorSurrogate` models a function that does not change, or restarts with
every block of time; :class:`~botorch_bkb.bandits.drifting.FilterSurrogate` one that
drifts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.schedules import ArmObservations, ConfidenceState
from botorch_bkb.arms import PullLimits
from botorch_bkb.bandits.base import Surrogate, SurrogateState
from botorch_bkb.bandits.fitting import Hyperparameters, MIN_PULLS_TO_FIT
from botorch_bkb.bandits.inducing import (
    in_stable_order,
    is_bulk,
    LeverageScoreSampling,
)
from botorch_bkb.bandits.observations import Observations, Pull, Totals
from botorch_bkb.checks import (
    as_number,
    check_count,
)
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors import ArmPosterior, ArmSampler, DrawCovariance, Moments
from botorch_bkb.posteriors.upper_bounds import Choices, UpperBounds


class Sampler(Protocol):
    """Draws from a posterior, for Thompson sampling."""

    def draw_best_arms(
        self,
        num_draws: int,
        generator: torch.Generator,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the best arm, of those allowed, in each of several draws."""


@dataclass(frozen=True)
class PosteriorAt(ABC):
    """The posterior at the time of a decision, given the pulls that are pending.

    Attributes:
        moments: Means and variances given the told pulls alone.
        num_told: The number of told pulls.
        pending: The pending pulls that count.
    """

    moments: Moments
    num_told: int
    pending: Sequence[Pull]

    @abstractmethod
    def pending_scores(self) -> list[float]:
        """Return the leverage scores of pending pulls, as batch rules count them."""

    @abstractmethod
    def upper_bounds(
        self, scale: float, projected: bool, limits: PullLimits
    ) -> Choices:
        """Return the arms in order of their upper bounds, as pulls are added.

        Args:
            scale: The number of standard deviations.
            projected: Whether chosen arms reduce the projected variance only.
            limits: How many pulls arms still allow; kept up to date.
        """

    @abstractmethod
    def sampler(
        self, covariance: DrawCovariance = "full", scale: float = 1.0
    ) -> Sampler:
        """Return draws from the posterior, whose variances count pending pulls.

        The arguments are those of :class:`~botorch_bkb.posteriors.ArmSampler`.
        """


class ArmSurrogate(Surrogate):
    """A model of the rewards of all arms.

    Args:
        hyperparameters: Kernel, noise and units, with the features of the arms.
        max_feature_bytes: The byte budget of what is cached for all arms.

    Attributes:
        feature_bytes: The size of the data that a choice reads.
    """

    feature_bytes = 0

    def __init__(
        self, hyperparameters: Hyperparameters, max_feature_bytes: int
    ) -> None:
        check_count("max_feature_bytes", max_feature_bytes)
        super().__init__(hyperparameters)
        self.max_feature_bytes = max_feature_bytes
        self._last_fit: tuple[Hyperparameters, int, Hyperparameters] | None = None

    @abstractmethod
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> PosteriorAt:
        """Return the posterior of the state at a time, given pending pulls."""

    @abstractmethod
    def _known(self, observations: Observations) -> Any:
        """Return the posterior of the state; compute it if it is not there."""

    @abstractmethod
    def _learn(self, observations: Observations, time: float, in_place: bool) -> None:
        """Learn from all told pulls, in the present posterior or in another one."""

    @override
    def refresh(self, observations: Observations) -> None:
        self._known(observations)

    @override
    def update(self, observations: Observations, time: float) -> None:
        self._learn(observations, time, in_place=True)

    @override
    def preview(self, observations: Observations, time: float) -> Self:
        self.refresh(observations)
        self.fitted(observations)  # the next update uses this fit
        other = copy(self)
        other._learn(observations, time, in_place=False)
        return other

    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms, after the others; ``rows`` not scaled."""
        hyperparameters = self.hyperparameters.extended(rows)
        other = copy(self)
        other.restore(replace(self.state, hyperparameters=hyperparameters))
        other.refresh(observations)
        return other

    def totals(self, observations: Observations, num_told: int | None = None) -> Totals:
        """Return the totals of the told pulls that count."""
        return observations.totals(num_told)

    def fitted(self, observations: Observations) -> Hyperparameters:
        """Return the hyperparameters after all told pulls, fitted if that is due.

        A fit of :meth:`Surrogate.preview` serves the next :meth:`Surrogate.update`.
        """
        before, num_told = self.hyperparameters, observations.num_pulls
        if not before.is_due(num_told):
            return before
        known = self._last_fit
        if known is None or known[0] is not before or known[1] != num_told:
            known = (before, num_told, before.refitted(*observations.history()))
            self._last_fit = known
        return known[2]

    def withdraw(self, observations: Observations, places: list[int]) -> None:
        """Forget told pulls at these places, which left ``observations`` already."""
        state, num_pulls = self.state, observations.num_pulls
        self._last_fit = None
        start, log_det = state.restart
        start -= sum(place < start for place in places)
        known = min([state.num_told, *places])
        if known == state.num_told:
            self.state = replace(state, restart=(start, log_det))
            return
        # The fit may have used the withdrawn results.
        hyperparameters = copy(state.hyperparameters)
        hyperparameters.next_fit = min(hyperparameters.next_fit, num_pulls)
        if num_pulls < MIN_PULLS_TO_FIT:
            # No fit would replace the one to what was withdrawn.
            hyperparameters, start, log_det = hyperparameters.unfitted(), 0, 0.0
        # At least one less than was told, so that the next update learns.
        num_told = max(0, min(known, num_pulls - 1))
        inducing = state.inducing_indices
        pulled = self.totals(observations, num_told).arms
        self.restore(
            replace(
                state,
                hyperparameters=hyperparameters,
                inducing_indices=inducing[torch.isin(inducing, pulled)],
                num_told=num_told,
                restart=(start, log_det),
            )
        )

    def confidence_state(
        self,
        observations: Observations,
        moments: Moments,
        ratio_threshold: float,
        num_pending: int,
    ) -> ConfidenceState:
        """Return what schedules of confidence widths see.

        Args:
            observations: All of them.
            moments: Means and variances at the time of the decision.
            ratio_threshold: That of the batch rule.
            num_pending: The number of pending pulls.
        """
        hyperparameters = self.hyperparameters
        pulled, counts, sums = self.totals(observations)
        sample_means = (sums / counts - hyperparameters.offset) / hyperparameters.scale
        start, log_det_start = self.state.restart
        in_sum = start == 0 and observations.first_is_told
        return ConfidenceState(
            num_pulls=observations.num_pulls,
            num_arms=moments.num_arms,
            noise_variance=moments.noise_variance,
            max_prior_variance=moments.max_prior_variance,
            effective_dimension=moments.effective_dimension,
            log_det=moments.log_det,
            frozen_leverage_scores=torch.from_numpy(
                np.array(observations.told_scores[start:])
            ),
            log_det_start=log_det_start,
            opening_score=observations.opening_score if in_sum else 0.0,
            ratio_threshold=ratio_threshold,
            observations=ArmObservations(
                counts=counts.to(moments.like),
                sample_means=sample_means.to(moments.like),
                posterior_means=moments.means(pulled),
                leverage_scores=moments.leverage_scores_of(pulled),
            ),
            num_pending=num_pending,
        )


@dataclass(frozen=True)
class StaticPosteriorAt(PosteriorAt):
    """A posterior of a function that does not change.

    Attributes:
        is_exact: Whether every pulled arm is inducing.
    """

    moments: ArmPosterior
    is_exact: bool

    @override
    def pending_scores(self) -> list[float]:
        return [pull.score for pull in self.pending]

    @override
    def upper_bounds(
        self, scale: float, projected: bool, limits: PullLimits
    ) -> UpperBounds:
        projected &= not self.is_exact
        pending = self._pending_arms()
        return UpperBounds(self.moments, scale, projected, pending, limits)

    @override
    def sampler(
        self, covariance: DrawCovariance = "full", scale: float = 1.0
    ) -> ArmSampler:
        return ArmSampler(self.moments, self._pending_arms(), covariance, scale)

    def _pending_arms(self) -> Tensor:
        arms = [pull.arm for pull in self.pending]
        device = self.moments.like.device
        return torch.tensor(arms, dtype=torch.long, device=device)


class PosteriorSurrogate(ArmSurrogate):
    r"""A posterior that is exact or sparse, of one function or of one for every block.

    Args:
        hyperparameters: Kernel, noise and units, with the features of the arms.
        max_feature_bytes: The byte budget of what is cached for all arms.
        sampling: How inducing arms are drawn. None: the exact GP, every pulled arm is
            inducing, ``O(A P^2)`` an update for ``P`` distinct pulled arms.
        block_size: The length of a block, in units of time, the ``N`` of
            algorithm 1 of [bogunovic2016tvgpucb]_; None for one block. The first starts
            at time 1 (at 0 for rewards before the first decision), and blocks before it
            have negative times. Only the rewards and pending pulls of a decision's own
            block count.

    Raises:
        InputDataError: If ``block_size`` is out of range.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        max_feature_bytes: int = 2**31,
        sampling: LeverageScoreSampling | None = None,
        block_size: float | None = None,
    ) -> None:
        if block_size is not None and not 0 < as_number(block_size) < math.inf:
            raise InputDataError(
                f"Expected `block_size` to be a positive time, but got {block_size!r}."
            )
        super().__init__(hyperparameters, max_feature_bytes)
        self.sampling = sampling
        self.block_size = block_size
        self.drifts = block_size is not None
        self._posterior: ArmPosterior | None = self._empty(hyperparameters)

    @property
    @override
    def feature_bytes(self) -> int:  # type: ignore[override]
        return 0 if self._posterior is None else self._posterior.feature_bytes

    @override
    def is_current(self, observations: Observations, time: float) -> bool:
        is_known = super().is_current(observations, time)
        return is_known and self.state.block == self._block(time)

    @override
    def mark_stale(self) -> None:
        self._posterior = None

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> StaticPosteriorAt:
        return StaticPosteriorAt(
            self._known(observations),
            observations.num_pulls,
            [pull for pull in pending if pull.time >= self._since],
            self.sampling is None,
        )

    @override
    def totals(self, observations: Observations, num_told: int | None = None) -> Totals:
        return observations.totals(num_told, self._since)

    @override
    def _known(self, observations: Observations) -> ArmPosterior:
        if self._posterior is None:
            posterior = self._empty(self.hyperparameters)
            if self.state.num_told:
                self._observe(posterior, self.state, observations)
            self._posterior = posterior
        return self._posterior

    @property
    def _since(self) -> float:
        """Pulls of earlier times do not count."""
        if self.block_size is None:
            return -math.inf
        block = self.state.block
        return 1.0 + block * self.block_size if block else 0.0

    def _block(self, time: float) -> int:
        """Return the block of a decision."""
        if self.block_size is None:
            return 0
        return math.floor((time - 1) / self.block_size)

    @override
    def _learn(self, observations: Observations, time: float, in_place: bool) -> None:
        if (block := self._block(time)) != self.state.block:
            # Nothing of earlier blocks counts, and scores are those of the prior.
            none = self.state.inducing_indices[:0]
            self.restore(
                replace(self.state, block=block, num_told=0, inducing_indices=none)
            )
        posterior = self._known(observations)
        if self.state.num_told == observations.num_pulls:
            return
        state, num_told = self.state, observations.num_pulls
        hyperparameters = self.fitted(observations)
        is_refitted = hyperparameters is not state.hyperparameters
        state = replace(
            state,
            hyperparameters=hyperparameters,
            inducing_indices=self._choose_inducing(hyperparameters, observations),
            num_told=num_told,
            num_updates=state.num_updates + 1,
        )
        if not in_place:
            posterior = self._empty(hyperparameters, max_feature_bytes=0)
        elif is_refitted:
            posterior = self._empty(hyperparameters)
        self._observe(posterior, state, observations)
        if is_refitted:
            state = replace(state, restart=(num_told, posterior.log_det))
        self.state, self._posterior = state, posterior

    def _choose_inducing(
        self, hyperparameters: Hyperparameters, observations: Observations
    ) -> Tensor:
        """Return inducing arms among the pulled ones, by the posterior before them.

        Args:
            hyperparameters: Those that the next posterior will have.
            observations: The told pulls.
        """
        before, sampling = self.state.inducing_indices, self.sampling
        arms, counts, _ = self.totals(observations)
        if sampling is None or not len(arms) or sampling.keeps_all(len(arms)):
            return in_stable_order(before, arms)
        posterior = self._known(observations)
        new = positions_in(posterior.pulled_indices, arms) < 0
        scores = None if is_bulk(int(new.sum())) else posterior.leverage_scores_of(arms)
        rows = sampling.draw(
            hyperparameters,
            hyperparameters.features[arms],
            counts,
            arms,
            scores,
            self.seed,
            self.state.num_updates,
            self.max_feature_bytes,
        )
        return in_stable_order(before, arms[rows])

    def _empty(
        self, hyperparameters: Hyperparameters, max_feature_bytes: int | None = None
    ) -> ArmPosterior:
        """Return a posterior without observations."""
        if max_feature_bytes is None:
            max_feature_bytes = self.max_feature_bytes
        return ArmPosterior(
            hyperparameters.features,
            hyperparameters.covar_module,
            hyperparameters.noise_variance,
            max_feature_bytes,
        )

    def _observe(
        self, posterior: ArmPosterior, state: SurrogateState, observations: Observations
    ) -> None:
        """Update a posterior to the told pulls and inducing arms of a state."""
        hyperparameters = state.hyperparameters
        arms, counts, sums = self.totals(observations, state.num_told)
        counts = counts.to(sums)
        centered = (sums - hyperparameters.offset * counts) / hyperparameters.scale
        posterior.update(state.inducing_indices, arms, counts, centered)
