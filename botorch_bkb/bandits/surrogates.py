"""Surrogates: models of the rewards of all arms, given the observations.

:class:`PosteriorSurrogate` models a function that does not change, or restarts with
every block of time; :class:`~botorch_bkb.bandits.drifting.FilterSurrogate` one that
drifts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.schedules import ArmObservations, ConfidenceState
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits.fitting import Fit, Fitter, MIN_PULLS_TO_FIT
from botorch_bkb.bandits.groups import Sharing
from botorch_bkb.bandits.inducing import LeverageScoreSampling
from botorch_bkb.bandits.observations import Observations, Pull, Totals
from botorch_bkb.bandits.policies import Decision
from botorch_bkb.checks import check_count, check_indices, check_number, check_positive
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors import (
    ArmPosterior,
    ArmSampler,
    Posterior,
    ProductPosterior,
    StaticPosterior,
)
from botorch_bkb.posteriors.grouped import GroupedResults


@dataclass(frozen=True)
class SurrogateState:
    """The state of a surrogate, beside its posterior.

    Attributes:
        fit: Kernel, noise and units.
        inducing_indices: The inducing arms of the last update.
        num_told: The number of observations that it knows, the first ones.
        num_updates: The number of updates so far.
        restart: The number of observations at the last fit, and the log determinant
            then. Sums of leverage scores restart at each refit.
        block: The block of time.
    """

    fit: Fit
    inducing_indices: Tensor
    num_told: int = 0
    num_updates: int = 0
    restart: tuple[int, float] = (0, 0.0)
    block: int = 0


class Surrogate(ABC):
    """A state and a posterior, learned from observations, over arms or over a box.

    The posterior is large, and a function of state and observations. An update changes
    both. An error restores the state, and the posterior is computed when it is next
    needed.

    Args:
        hyperparameters: Fits kernel, noise and units.

    Attributes:
        fitter: The same.
        state: The state, which is saved.
        seed: The seed of all random numbers.
        drifts: Whether pulls have times, on which the posterior depends.
        block_size: The length of a block of time, after which it restarts, or None.
    """

    drifts = False
    block_size: float | None = None
    # The posterior of the state; None if it has to be computed.
    _posterior: Any = None
    # A copy that has learned from later observations; copies of this one have none.
    _preview: Self | None = None
    # A fit, a number of observations, and the fit to these that started from it.
    _last_fit: tuple[Fit, int, Fit] | None = None

    def __init__(self, hyperparameters: Fitter) -> None:
        self.fitter = hyperparameters
        device = hyperparameters.features.device
        none = torch.empty(0, dtype=torch.long, device=device)
        self.state = SurrogateState(hyperparameters.start, none)
        self.seed = 0

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self), _preview=None)
        return other

    @property
    def fit(self) -> Fit:
        """Kernel, noise and units."""
        return self.state.fit

    def is_current(self, observations: Any, time: float) -> bool:
        """Whether an update would change nothing."""
        return bool(self.state.num_told == observations.num_pulls)

    @abstractmethod
    def update(self, observations: Any, time: float, in_place: bool = True) -> None:
        """Learn from all observations: fit what is due, choose the inducing points.

        The present posterior may change ``in_place``, or another one is computed.
        """

    @abstractmethod
    def _compute(self, observations: Any) -> Any:
        """Compute the posterior of the state."""

    def posterior(self, observations: Any) -> Any:
        """Return the posterior of the state; compute it unless it is there."""
        if self._posterior is None:
            self._posterior = self._compute(observations)
        return self._posterior

    def preview(self, observations: Any, time: float) -> Self:
        """Return this surrogate, or a copy that has learned from all observations."""
        for known in (self, self._preview):
            if known is not None and known.is_current(observations, time):
                return known
        self.posterior(observations)
        self.latest_fit(observations)  # the next update uses this fit
        other = copy(self)
        other.update(observations, time, in_place=False)
        self._preview = other
        return other

    def latest_fit(self, observations: Any) -> Fit:
        """Return the fit of the next update: another one if it is due."""
        before, num_told = self.fit, observations.num_pulls
        is_due = self.fitter.fits and num_told >= before.next_fit
        if not is_due and not observations.has_new_labels(self.state.num_told):
            return before
        known = self._last_fit
        if known is None or known[0] is not before or known[1] != num_told:
            known = before, num_told, self.fitter.fit(before, observations.history())
            self._last_fit = known
        return known[2]

    def taken_over(self) -> Self:
        """Return a copy that takes the posterior, for an update that may fail."""
        other = copy(self)
        self._posterior = None
        return other

    def restore(self, state: SurrogateState) -> None:
        """Go to a state; its posterior is computed when it is next needed."""
        self.state, self._posterior, self._preview = state, None, None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers."""
        state = self.state
        return {
            "seed": self.seed,
            "num_updates": state.num_updates,
            "prior": deepcopy(self.fitter.state_dict(state.fit)),
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
            rows: The rows that inducing indices count, in the original scale.
        """
        num_pulls = observations.num_pulls
        fit = self.fitter.loaded(state["prior"])
        inducing = check_indices(state["inducing_indices"], len(rows))
        start, log_det = state["restart"]
        other = copy(self)
        other.fitter = self.fitter.over(self.fitter.to_features(rows))
        other.seed = check_count("seed", state["seed"], 2**64 - 1)
        other.restore(
            SurrogateState(
                fit,
                torch.tensor(inducing, dtype=torch.long, device=rows.device),
                check_count("num_processed", state["num_processed"], num_pulls),
                check_count("num_updates", state["num_updates"]),
                (
                    check_count("restart", start, num_pulls),
                    check_number("restart", log_det, least=-1e-6),
                ),
                int(state["block"]),
            )
        )
        other.posterior(observations)
        return other


class ArmSurrogate(Surrogate):
    """A model of the rewards of all arms.

    Args:
        hyperparameters: Fits kernel, noise and units; has the features of the arms.
        max_feature_bytes: The byte budget of what is cached for all arms.
    """

    def __init__(self, hyperparameters: Fitter, max_feature_bytes: int) -> None:
        check_count("max_feature_bytes", max_feature_bytes)
        super().__init__(hyperparameters)
        self.max_feature_bytes = max_feature_bytes

    def feature_bytes(self, num_pulls: int) -> int:
        """Return how much data a choice reads after so many pulls."""
        return 0

    @abstractmethod
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> Decision:
        """Return the posterior of the state at a time, given pending pulls."""

    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms, after the others; ``rows`` not scaled."""
        other = copy(self)
        new = self.fitter.to_features(rows)
        other.fitter = self.fitter.over(torch.cat([self.fitter.features, new]))
        other.restore(self.state)
        other.posterior(observations)
        return other

    def totals(
        self,
        observations: Observations,
        num_told: int | None = None,
        fit: Fit | None = None,
    ) -> Totals:
        """Return the totals of what counts, by warp and noise of the state or a fit."""
        return observations.totals(fit or self.fit, num_told, self._since)

    @property
    def _since(self) -> float:
        """Pulls of earlier times do not count."""
        return -math.inf

    def withdraw(self, observations: Observations, places: list[int]) -> None:
        """Forget observations at these places, which left ``observations`` already."""
        state, num_pulls = self.state, observations.num_pulls
        self._last_fit = None
        start, log_det = state.restart
        start -= sum(place < start for place in places)
        first = min(places, default=state.num_told)
        # After another withdrawal, a fit is due for any results that are left.
        is_due = self.fitter.fits and state.fit.next_fit == 0
        if first >= state.num_told and not is_due:
            self.state = replace(state, restart=(start, log_det))
            return
        fit = state.fit
        if num_pulls < MIN_PULLS_TO_FIT:
            # No fit would replace the one to what was withdrawn.
            fit, start, log_det = self.fitter.start, 0, 0.0
        # The fit may have used the withdrawn results: another is due, from all starts.
        fit = replace(fit, next_fit=0, next_search=min(fit.next_search, 1))
        # At least one less than was told, so that the next update learns.
        num_told = max(0, min(first, state.num_told, num_pulls - 1))
        inducing = state.inducing_indices
        pulled = self.totals(observations, num_told).arms
        self.restore(
            replace(
                state,
                fit=fit,
                inducing_indices=inducing[torch.isin(inducing, pulled)],
                num_told=num_told,
                restart=(start, log_det),
            )
        )

    def confidence_state(
        self,
        observations: Observations,
        moments: Posterior,
        ratio_threshold: float,
        num_pending: int = 0,
    ) -> ConfidenceState:
        """Return the state of confidence schedules at a decision."""
        start, log_det_start = self.state.restart
        in_sum = start == 0 and observations.opening_id in observations.told.ids
        # Without the constructor, which takes every sum. It stays that of its class, so
        # that a schedule may use `dataclasses.replace`.
        state = _DecisionState.__new__(_DecisionState)
        vars(state).update(
            surrogate=self,
            moments=moments,
            told=observations,
            num_pulls=observations.num_pulls,
            num_arms=moments.num_arms,
            noise_variance=moments.noise_variance,
            max_prior_variance=moments.max_prior_variance,
            log_det=moments.log_det,
            log_det_start=log_det_start,
            opening_score=observations.opening_score if in_sum else 0.0,
            ratio_threshold=ratio_threshold,
            num_pending=num_pending,
        )
        return state


class _DecisionState(ConfidenceState):
    """A state whose sums over observations are computed when a schedule reads them."""

    surrogate: ArmSurrogate
    moments: Posterior
    told: Observations

    @cached_property
    @override
    def effective_dimension(self) -> float:
        return self.moments.effective_dimension

    @cached_property
    @override
    def frozen_leverage_scores(self) -> Tensor:
        start, _ = self.surrogate.state.restart
        results = self.told.history(start, units=self.surrogate.fit.units)
        return (results.scores * results.weights(self.surrogate.fit)).cpu()

    @cached_property
    @override
    def observations(self) -> ArmObservations:
        moments, units = self.moments, self.surrogate.fit.units
        pulled, counts, sums = self.surrogate.totals(self.told)
        sample_means = units.standardized(sums, counts) / counts
        return ArmObservations(
            counts=counts.to(moments.like),
            sample_means=sample_means.to(moments.like),
            posterior_means=moments.means(pulled),
            leverage_scores=moments.leverage_scores_of(pulled),
        )


class PosteriorSurrogate(ArmSurrogate):
    r"""A posterior that is exact or sparse, of one function or of one for every block.

    Args:
        hyperparameters: Fits kernel, noise and units; has the features of the arms.
        max_feature_bytes: The byte budget of what is cached for all arms.
        sampling: How inducing arms are drawn. None: the exact GP, every pulled arm is
            inducing, ``O(A P^2)`` an update for ``P`` distinct pulled arms.
        block_size: The length of a block, in units of time, the ``N`` of
            algorithm 1 of [bogunovic2016tvgpucb]_; None for one block. The first starts
            at time 1 (at 0 for rewards before the first decision), and blocks before it
            have negative times. Only the rewards and pending pulls of a decision's own
            block count.
        exact_until: Up to this many pulled arms all are inducing.

    Raises:
        InputDataError: If ``block_size`` is out of range.
    """

    def __init__(
        self,
        hyperparameters: Fitter,
        max_feature_bytes: int = 2**31,
        sampling: LeverageScoreSampling | None = None,
        block_size: float | None = None,
        exact_until: int = 0,
    ) -> None:
        if block_size is not None:
            check_positive("block_size", block_size)
            block_size = float(block_size)
        super().__init__(hyperparameters, max_feature_bytes)
        self.sampling = sampling
        self.block_size = block_size
        self.exact_until = exact_until
        self.drifts = block_size is not None
        self._posterior: StaticPosterior | None = self._empty(max_feature_bytes)

    @override
    def feature_bytes(self, num_pulls: int) -> int:
        posterior = self._posterior
        if posterior is None:
            return 0
        # Before the first update: every pull may be of an inducing arm.
        column_bytes = posterior.num_arms * posterior.like.element_size()
        return posterior.feature_bytes or num_pulls * column_bytes

    @override
    def is_current(self, observations: Observations, time: float) -> bool:
        is_known = super().is_current(observations, time)
        return is_known and self.state.block == self._block(time)

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> Decision:
        pending = [pull for pull in pending if pull.time >= self._since]
        moments: StaticPosterior = self.posterior(observations)
        arms = [pull.arm for pull in pending]
        indices = torch.tensor(arms, dtype=torch.long, device=moments.like.device)
        return Decision(
            moments=moments,
            given=moments.given(Counter(arms)),
            num_told=observations.num_pulls,
            time=time,
            given_scores=[pull.score for pull in pending],
            make_sampler=partial(ArmSampler, moments, indices),
            surrogate=self,
            is_exact=self.sampling is None,
        )

    @property
    @override
    def _since(self) -> float:
        if self.block_size is None:
            return -math.inf
        block = self.state.block
        return self._start(block, self.block_size) if block else 0.0

    def _block(self, time: float) -> int:
        """Return the block of a decision."""
        if self.block_size is None:
            return 0
        block = math.floor((time - 1) / self.block_size)
        # Rounding may put the start of the next block at the time, or its own behind.
        block += self._start(block + 1, self.block_size) <= time
        return block - (self._start(block, self.block_size) > time)

    @staticmethod
    def _start(block: int, size: float) -> float:
        """Return the time at which a block starts."""
        return 1.0 + block * size

    @override
    def update(
        self, observations: Observations, time: float, in_place: bool = True
    ) -> None:
        if (block := self._block(time)) != self.state.block:
            # Nothing of earlier blocks counts, and scores are those of the prior.
            none = self.state.inducing_indices[:0]
            self.restore(
                replace(self.state, block=block, num_told=0, inducing_indices=none)
            )
        posterior: StaticPosterior = self.posterior(observations)
        state, num_told = self.state, observations.num_pulls
        if state.num_told == num_told:
            return
        fit = self.latest_fit(observations)
        is_refitted = fit is not state.fit
        self.state = replace(
            state,
            fit=fit,
            inducing_indices=self._choose_inducing(fit, observations),
            num_told=num_told,
            num_updates=state.num_updates + 1,
        )
        if is_refitted or not in_place:
            posterior = self._empty(self.max_feature_bytes if in_place else 0)
        self._observe(posterior, observations)
        self._posterior = posterior
        if is_refitted:
            self.state = replace(self.state, restart=(num_told, posterior.log_det))

    def _choose_inducing(self, fit: Fit, observations: Observations) -> Tensor:
        """Return inducing arms among the pulled ones, by the posterior before them."""
        before, sampling = self.state.inducing_indices, self.sampling
        arms, counts, _ = self.totals(observations, None, fit)
        if sampling is None or len(arms) <= self.exact_until:
            return in_stable_order(before, arms)
        posterior = self.posterior(observations)
        new = positions_in(posterior.pulled_indices, arms) < 0
        rows = sampling.draw(
            fit,
            self.fitter.features[arms],
            counts,
            arms,
            lambda: posterior.leverage_scores_of(arms),
            int(new.sum()),
            self.seed,
            self.state.num_updates,
            self.max_feature_bytes,
        )
        return in_stable_order(before, arms[rows])

    def _empty(self, max_feature_bytes: int) -> StaticPosterior:
        """Return a posterior without observations."""
        features, kernel = self.fitter.features, self.fit.covar_module
        noise = self.fit.noise_variance
        if isinstance(features, ProductArms):
            return ProductPosterior(features, kernel, noise)
        return ArmPosterior(features, kernel, noise, max_feature_bytes)

    def _observe(self, posterior: StaticPosterior, observations: Observations) -> None:
        """Update a posterior to the observations and inducing arms of the state."""
        arms, counts, sums = self.totals(observations, self.state.num_told)
        sums = self.fit.units.standardized(sums, counts)
        grouped = self._grouped(observations, arms)
        inducing = self.state.inducing_indices
        posterior.update(inducing, arms, counts.to(sums), sums, grouped)

    def _grouped(
        self, observations: Observations, arms: Tensor
    ) -> GroupedResults | None:
        """Return the results that the state knows, if some of them share offsets."""
        if not observations.labels:
            return None
        fit, num_told = self.fit, self.state.num_told
        results = observations.history(stop=num_told, units=fit.units)
        sharing = Sharing.of(results.labels)
        if sharing is None or not len(arms):
            return None
        like = self.fitter.features.new_empty(0)
        return sharing.grouped(
            positions_in(arms, results.indices, is_ascending=True),
            (results.weights(fit) / fit.noise_variance).to(like),
            fit.units.standardized(results.rewards).to(like),
            fit.groups,
            fit.unit,
        )

    @override
    def _compute(self, observations: Observations) -> StaticPosterior:
        posterior = self._empty(self.max_feature_bytes)
        if self.state.num_told:
            self._observe(posterior, observations)
        return posterior


def in_stable_order(before: Tensor, after: Tensor) -> Tensor:
    """Return ascending ``after`` in the order of ``before``, new entries at the end."""
    place = positions_in(after, before, is_ascending=True)
    stays = place >= 0
    if len(before) == len(after) and stays.all():
        return before
    is_new = torch.ones_like(after, dtype=torch.bool)
    is_new[place[stays]] = False
    return torch.cat([before[stays], after[is_new]])
