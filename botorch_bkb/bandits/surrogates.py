"""Surrogates: what is learned of the rewards of all arms from the observations.

A surrogate has a small state, :class:`SurrogateState`, and a posterior, which is large
and computed from state and observations. An update changes both; an error restores the
state, and the posterior is computed anew when it is next needed.
:class:`PosteriorSurrogate` models a function that stays as it is, or starts afresh with
every block of time; :class:`~botorch_bkb.bandits.drifting.FilterSurrogate` one that
drifts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ArmObservations, ConfidenceState
from botorch_bkb.arms import PullLimits
from botorch_bkb.bandits.fitting import Hyperparameters, MIN_PULLS_TO_FIT
from botorch_bkb.bandits.inducing import (
    in_stable_order,
    is_bulk,
    LeverageScoreSampling,
    warn_of_ceiling,
)
from botorch_bkb.bandits.observations import Observations, Pull, Totals
from botorch_bkb.checks import (
    as_number,
    check_count,
    check_indices,
    check_max_feature_bytes,
    check_number,
)
from botorch_bkb.posteriors import ArmPosterior, ArmSampler, DrawCovariance, Moments
from botorch_bkb.posteriors.kernel_rows import positions_in
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
        pending: Pulls without reward, those that count.
    """

    moments: Moments
    num_told: int
    pending: Sequence[Pull]

    @abstractmethod
    def pending_scores(self) -> list[float]:
        """Return the leverage scores of pending pulls, as batch rules count them."""

    @abstractmethod
    def upper_bounds(self, scale: float, grow: bool, limits: PullLimits) -> Choices:
        """Return the arms in order of their upper bounds, as pulls are added.

        Args:
            scale: The number of standard deviations.
            grow: Whether chosen arms join the inducing ones. They always do where the
                GP is exact.
            limits: How many pulls arms still allow; kept up to date.
        """

    @abstractmethod
    def sampler(
        self, covariance: DrawCovariance = "full", scale: float = 1.0
    ) -> Sampler:
        """Return draws from the posterior, whose variances count pending pulls.

        Args:
            covariance: What draws do beside the inducing arms, see
                :mod:`~botorch_bkb.posteriors.arm_sampler`. None: the joint law, as far
                as this posterior has it.
            scale: How far draws go from the mean, see there.
        """


@dataclass(frozen=True)
class SurrogateState:
    """What a surrogate keeps between updates, beside its posterior.

    Attributes:
        hyperparameters: Kernel, noise and units.
        inducing_indices: The inducing arms of the last update.
        num_told: How many told pulls it knows, the first ones.
        num_updates: The number of updates so far.
        restart: How many told pulls the last fit of hyperparameters knew, and the log
            determinant then: frozen sums go on from there.
        block: Which block of time this is of.
        is_capped: Whether a ceiling of inducing arms has ever taken effect.
    """

    hyperparameters: Hyperparameters
    inducing_indices: Tensor
    num_told: int = 0
    num_updates: int = 0
    restart: tuple[int, float] = (0, 0.0)
    block: int = 0
    is_capped: bool = False


class Surrogate(ABC):
    """A state and a posterior, learned from observations, over arms or over a box.

    Args:
        hyperparameters: Kernel, noise and units.

    Attributes:
        state: What a file keeps.
        seed: What all random numbers are a function of.
    """

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        device = hyperparameters.features.device
        none = torch.empty(0, dtype=torch.long, device=device)
        self.state = SurrogateState(hyperparameters, none)
        self.seed = 0

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Kernel, noise and units."""
        return self.state.hyperparameters

    @abstractmethod
    def is_current(self, observations: Any, time: float) -> bool:
        """Whether an update would change nothing."""

    @abstractmethod
    def update(self, observations: Any, time: float) -> None:
        """Learn from all told pulls: fit what is due, choose the inducing points."""

    @abstractmethod
    def preview(self, observations: Any, time: float) -> Self:
        """Return a copy that has learned from all told pulls; this one stays."""

    @abstractmethod
    def refresh(self, observations: Any) -> None:
        """Compute the posterior from the state, unless it is there."""

    @abstractmethod
    def mark_stale(self) -> None:
        """Forget the posterior, which is computed anew when it is next needed."""

    def restore(self, state: SurrogateState) -> None:
        """Go back to an earlier state."""
        self.state = state
        self.mark_stale()

    def state_dict(self) -> dict[str, Any]:
        """Return what a saved bandit has of its surrogate."""
        state = self.state
        return {
            "seed": self.seed,
            "num_updates": state.num_updates,
            "prior": deepcopy(state.hyperparameters.state_dict()),
            "inducing_indices": state.inducing_indices.clone(),
            "num_processed": state.num_told,
            "restart": state.restart,
            "block": state.block,
        }

    def loaded(
        self, state: dict[str, Any], observations: Observations, rows: Tensor
    ) -> Self:
        """Return a copy in the state that :meth:`state_dict` returned.

        Args:
            state: The state.
            observations: Those that were saved with it.
            rows: What inducing indices count, in the user's units: the ``A x d`` arms,
                those that were added among them, or the told points.
        """
        num_pulls = observations.num_pulls
        hyperparameters = deepcopy(self.hyperparameters)
        hyperparameters.load_state_dict(state["prior"])
        hyperparameters.features = hyperparameters.to_features(rows)
        inducing = check_indices(state["inducing_indices"], len(rows))
        start, log_det = state["restart"]
        other = copy(self)
        other.seed = check_count("seed", state["seed"], 2**64 - 1)
        other.restore(
            SurrogateState(
                hyperparameters,
                torch.tensor(inducing, dtype=torch.long, device=rows.device),
                check_count("num_processed", state["num_processed"], num_pulls),
                check_count("num_updates", state["num_updates"]),
                (
                    check_count("restart", start, num_pulls),
                    check_number("restart", log_det, least=-1e-6),
                ),
                int(state["block"]),
                self.state.is_capped,
            )
        )
        other.refresh(observations)
        return other


class ArmSurrogate(Surrogate):
    """Learns the rewards of all arms.

    Args:
        hyperparameters: Kernel, noise and units, with the features of the arms.
        max_feature_bytes: The byte budget of what is cached for all arms.

    Attributes:
        drifts: Whether pulls have times, on which the posterior depends.
    """

    drifts = False

    def __init__(
        self, hyperparameters: Hyperparameters, max_feature_bytes: int
    ) -> None:
        check_max_feature_bytes(max_feature_bytes)
        super().__init__(hyperparameters)
        self.max_feature_bytes = max_feature_bytes
        self._last_fit: tuple[Hyperparameters, int, Hyperparameters] | None = None

    @property
    def feature_bytes(self) -> int:
        """How much data a choice passes over."""
        return 0

    @abstractmethod
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> PosteriorAt:
        """Return the posterior of the state at a time, given pending pulls."""

    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms, after the others; ``rows`` in user's units."""
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

        The next :meth:`Surrogate.update` uses a fit of :meth:`Surrogate.preview`.
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
        """Forget told pulls at these places, which ``observations`` has already."""
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
        time: float,
        ratio_threshold: float,
        opening_score: float,
        num_pending: int,
    ) -> ConfidenceState:
        """Return what schedules of confidence widths see.

        Args:
            observations: All of them.
            moments: Means and variances at the time of the decision.
            time: That time.
            ratio_threshold: That of the batch rule.
            opening_score: The leverage score of the uniform draw that opened the run.
            num_pending: How many pulls are pending.
        """
        hyperparameters = self.hyperparameters
        pulled, counts, sums = self.totals(observations)
        sample_means = (sums / counts - hyperparameters.offset) / hyperparameters.scale
        start, log_det_start = self.state.restart
        in_sum = observations.first_is_told and start == 0
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
            opening_score=opening_score if in_sum else 0.0,
            ratio_threshold=ratio_threshold,
            decision_time=time if self.drifts else None,
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
    """A posterior of a function that stays as it is.

    Attributes:
        grows: Whether every chosen arm joins the inducing ones.
    """

    moments: ArmPosterior
    grows: bool

    @override
    def pending_scores(self) -> list[float]:
        return [pull.score for pull in self.pending]

    @override
    def upper_bounds(self, scale: float, grow: bool, limits: PullLimits) -> UpperBounds:
        grow |= self.grows
        return UpperBounds(self.moments, scale, grow, self._pending_arms(), limits)

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
            at time 1 (at 0 for what was told before the first decision), and blocks
            before it have negative times. Only the rewards and pending pulls of a
            decision's own block count; hyperparameters are fitted to all rewards.

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
    def feature_bytes(self) -> int:
        return 0 if self._posterior is None else self._posterior.feature_bytes

    @override
    def is_current(self, observations: Observations, time: float) -> bool:
        state = self.state
        is_known = state.num_told == observations.num_pulls
        return is_known and state.block == self._block(time)

    @override
    def update(self, observations: Observations, time: float) -> None:
        was_capped = self.state.is_capped
        self._learn(observations, time, in_place=True)
        if self.state.is_capped and not was_capped:
            num_pulled = len(self.totals(observations).arms)
            warn_of_ceiling(len(self.state.inducing_indices), num_pulled)

    @override
    def preview(self, observations: Observations, time: float) -> Self:
        self.refresh(observations)
        self.fitted(observations)  # which the next update finds
        other = copy(self)
        other._learn(observations, time, in_place=False)
        return other

    @override
    def refresh(self, observations: Observations) -> None:
        self._known(observations)

    @override
    def mark_stale(self) -> None:
        self._posterior = None

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> StaticPosteriorAt:
        pending = [pull for pull in pending if pull.time >= self._since]
        return StaticPosteriorAt(
            self._known(observations),
            observations.num_pulls,
            pending,
            self.sampling is None,
        )

    @override
    def totals(self, observations: Observations, num_told: int | None = None) -> Totals:
        return observations.totals(num_told, self._since)

    def _known(self, observations: Observations) -> ArmPosterior:
        """Return the posterior of the state."""
        if self._posterior is None:
            state = self.state
            posterior = self._empty(state.hyperparameters)
            if state.num_told:
                self._bring_up_to_date(posterior, state, observations)
            self._posterior = posterior
        return self._posterior

    @property
    def _since(self) -> float:
        """Pulls of earlier times do not count."""
        if self.block_size is None:
            return -math.inf
        # What was known before the first decision is of time 0.
        block = self.state.block
        return 1.0 + block * self.block_size if block else 0.0

    def _block(self, time: float) -> int:
        """Return the block of a decision."""
        if self.block_size is None:
            return 0
        return math.floor((time - 1) / self.block_size)

    def _learn(self, observations: Observations, time: float, in_place: bool) -> None:
        self.refresh(observations)
        if (block := self._block(time)) != self.state.block:
            # Nothing of earlier blocks counts, and scores are those of the prior.
            none = self.state.inducing_indices[:0]
            self.state = replace(
                self.state, block=block, num_told=0, inducing_indices=none
            )
            self._posterior = self._empty(self.hyperparameters)
        if self.state.num_told == observations.num_pulls:
            return
        state, num_told = self.state, observations.num_pulls
        hyperparameters = self.fitted(observations)
        posterior = self._known(observations)
        is_refitted = hyperparameters is not state.hyperparameters
        inducing, is_capped = self._choose_inducing(hyperparameters, observations)
        if not in_place:
            posterior = self._empty(hyperparameters, max_feature_bytes=0)
        elif is_refitted:
            posterior = self._empty(hyperparameters)
        state = replace(
            state,
            hyperparameters=hyperparameters,
            inducing_indices=inducing,
            num_told=num_told,
            num_updates=state.num_updates + 1,
            is_capped=state.is_capped or is_capped,
        )
        self._bring_up_to_date(posterior, state, observations)
        if is_refitted:
            state = replace(state, restart=(num_told, posterior.log_det))
        self.state, self._posterior = state, posterior

    def _choose_inducing(
        self, hyperparameters: Hyperparameters, observations: Observations
    ) -> tuple[Tensor, bool]:
        """Choose inducing arms among the pulled ones.

        Args:
            hyperparameters: Those that the posterior will have.
            observations: The told pulls.

        Returns:
            The arms, and whether a ceiling took effect.
        """
        before, sampling = self.state.inducing_indices, self.sampling
        arms, counts, _ = self.totals(observations)
        num_arms = len(arms)
        if sampling is None or not num_arms or sampling.keeps_all(num_arms):
            return in_stable_order(before, arms), False
        posterior = self._known(observations)
        new = positions_in(posterior.pulled_indices, arms) < 0
        scores = None if is_bulk(int(new.sum())) else posterior.leverage_scores_of(arms)
        rows, is_capped = sampling.draw(
            hyperparameters,
            hyperparameters.features[arms],
            counts,
            arms,
            scores,
            self.seed,
            self.state.num_updates,
            self.max_feature_bytes,
        )
        return in_stable_order(before, arms[rows]), is_capped

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

    def _bring_up_to_date(
        self, posterior: ArmPosterior, state: SurrogateState, observations: Observations
    ) -> None:
        """Let a posterior have the told pulls and inducing arms of a state."""
        hyperparameters = state.hyperparameters
        arms, counts, sums = self.totals(observations, state.num_told)
        counts = counts.to(sums)
        centered = (sums - hyperparameters.offset * counts) / hyperparameters.scale
        posterior.update(state.inducing_indices, arms, counts, centered)
