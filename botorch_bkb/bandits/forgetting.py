"""A surrogate of a function that drifts, by a filter over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import cast, Self

from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import PullLimits, StoredArms
from botorch_bkb.bandits.drift_hyperparameters import DriftHyperparameters
from botorch_bkb.bandits.observations import Observations, Pull
from botorch_bkb.bandits.surrogates import ArmSurrogate, PosteriorAt
from botorch_bkb.posteriors import (
    ArmMoments,
    DrawCovariance,
    ReplayedFilter,
    SparseArmFilter,
)
from botorch_bkb.posteriors.replay import FilterSampler, Observation
from botorch_bkb.posteriors.upper_bounds import DriftingUpperBounds


@dataclass(frozen=True)
class FilteredPosteriorAt(PosteriorAt):
    """The posterior of a function that drifts, at one time.

    Attributes:
        hyperparameters: They count time in steps.
        replayed: The filter; it is not changed.
        time: The time.
    """

    hyperparameters: DriftHyperparameters
    replayed: ReplayedFilter
    time: float

    @override
    def pending_scores(self) -> list[float]:
        """A pending pull informs about its own time, and now by what is retained."""
        steps = self.hyperparameters.steps
        now, retained = steps(self.time), 1 - self.hyperparameters.step_rate
        return [
            pull.score * retained ** (now - steps(pull.time)) for pull in self.pending
        ]

    @override
    def upper_bounds(
        self, scale: float, grow: bool, limits: PullLimits
    ) -> DriftingUpperBounds:
        now = self.hyperparameters.steps(self.time)
        return DriftingUpperBounds(
            self.moments, scale, self.replayed, self._pending_steps(), now, limits
        )

    @override
    def sampler(
        self, covariance: DrawCovariance = "full", scale: float = 1.0
    ) -> FilterSampler:
        if covariance != "full":
            raise UnsupportedError(
                "Expected `covariance` to be 'full' where the objective drifts by a "
                f"filter, whose draws have one law, but got {covariance!r}."
            )
        now = self.hyperparameters.steps(self.time)
        return FilterSampler(self.replayed, self._pending_steps(), now, scale)

    def _pending_steps(self) -> list[tuple[float, int]]:
        """Return times, in steps, and arms of pending pulls."""
        steps = self.hyperparameters.steps
        return [(steps(pull.time), pull.arm) for pull in self.pending]


class FilterSurrogate(ArmSurrogate):
    r"""Forgets smoothly: ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``.

    Equations (7) and (8) of [bogunovic2016tvgpucb]_, filtered from step to step.

    Args:
        hyperparameters: Kernel, noise, units and forgetting rate.
        max_feature_bytes: The byte budget of what is cached for all arms.
        sparse: Whether arms of little leverage are inducing no longer.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``; fewer, two at least, where
            ``max_feature_bytes`` does not hold their features.

    Raises:
        InputDataError: If ``max_feature_bytes`` does not hold the covariances of an
            exact filter.
        UnsupportedError: If the arms are on Ray's workers: this process filters.
    """

    drifts = True

    def __init__(
        self,
        hyperparameters: DriftHyperparameters,
        max_feature_bytes: int = 2**31,
        sparse: bool = False,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
    ) -> None:
        if not isinstance(sparse, bool):
            raise InputDataError(
                f"Expected `sparse` to be True or False, but got {sparse!r}."
            )
        features = hyperparameters.features
        if isinstance(features, StoredArms) and features.workers is not None:
            raise UnsupportedError(
                "Expected arms for whom this process computes, as a filter over time "
                "does, but got arms on Ray's workers. Leave out `on_ray`, or take "
                "`RGPUCB`, which computes there."
            )
        super().__init__(hyperparameters, max_feature_bytes)
        self.sparse = sparse
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        self._filter: ReplayedFilter | None = ReplayedFilter(self._empty())

    @property
    @override
    def hyperparameters(self) -> DriftHyperparameters:
        hyperparameters = self.state.hyperparameters
        return cast(DriftHyperparameters, hyperparameters)

    def _known(self, observations: Observations) -> ReplayedFilter:
        """Return the filter of the state; a stale one observes the told pulls anew."""
        if self._filter is None:
            replayed = ReplayedFilter(self._empty())
            told = self._observed(observations, 0)
            replayed.observe(told, self._oldest_pending(observations))
            self._filter = replayed
        return self._filter

    @override
    def is_current(self, observations: Observations, time: float) -> bool:
        return self.state.num_told == observations.num_pulls

    @override
    def update(self, observations: Observations, time: float) -> None:
        self._learn(observations, in_place=True)

    @override
    def preview(self, observations: Observations, time: float) -> Self:
        self.refresh(observations)
        self.fitted(observations)  # which the next update finds
        other = copy(self)
        other._learn(observations, in_place=False)
        return other

    def _learn(self, observations: Observations, in_place: bool) -> None:
        known, before = self._known(observations), self.state
        num_told = observations.num_pulls
        if before.num_told == num_told:
            return
        hyperparameters = self.fitted(observations)
        is_refitted = hyperparameters is not before.hyperparameters
        self.state = replace(before, hyperparameters=hyperparameters, num_told=num_told)
        new = self._observed(observations, before.num_told)
        if is_refitted or not known.reaches(new):
            self.mark_stale()
        elif in_place:
            known.observe(new, self._oldest_pending(observations))
        else:
            self._filter = ReplayedFilter(known.with_observations(new))
        drifting = self._known(observations).filter
        self.state = replace(
            self.state,
            num_updates=before.num_updates + 1,
            restart=(num_told, drifting.log_det) if is_refitted else before.restart,
            inducing_indices=drifting.inducing_indices,
        )

    @override
    def refresh(self, observations: Observations) -> None:
        self._known(observations)

    @override
    def mark_stale(self) -> None:
        self._filter = None

    @override
    def at(
        self, observations: Observations, time: float, pending: Sequence[Pull] = ()
    ) -> FilteredPosteriorAt:
        known, hyperparameters = self._known(observations), self.hyperparameters
        drifting, dtype = known.filter, hyperparameters.features.dtype
        mean, variance = drifting.predict(hyperparameters.steps(time))
        moments = ArmMoments(
            mean=mean.to(dtype),
            all_variances=variance.to(dtype),
            prior_variance=drifting.prior_variance.to(dtype),
            noise_variance=hyperparameters.noise_variance,
            pulled_indices=observations.totals().arms,
            inducing_indices=drifting.inducing_indices,
            log_det=drifting.log_det,
            effective_dimension=sum(observations.told_scores),
        )
        return FilteredPosteriorAt(
            moments,
            observations.num_pulls,
            pending,
            hyperparameters,
            known,
            time,
        )

    @override
    def extended(self, rows: Tensor, observations: Observations) -> Self:
        """Return a copy of more arms; nothing is replayed."""
        hyperparameters = self.hyperparameters.extended(rows)
        if not self.sparse:
            self._check_room(hyperparameters.features)
        features = hyperparameters.features[len(self.hyperparameters.features) :]
        other = copy(self)
        other.state = replace(self.state, hyperparameters=hyperparameters)
        other._filter = self._known(observations).extended(features)
        return other

    def _empty(self) -> SparseArmFilter:
        """Return a filter that has observed nothing."""
        hyperparameters = self.hyperparameters
        features, kernel = hyperparameters.features, hyperparameters.covar_module
        noise, rate = hyperparameters.noise_variance, hyperparameters.step_rate
        if not self.sparse:
            self._check_room(features)
            # In double: of similar arms, single precision would leave some out.
            kernel = deepcopy(kernel).double()
            most = max(len(features), 2)
            return SparseArmFilter(features.double(), kernel, noise, rate, 0.0, most)
        room = self.max_feature_bytes // (len(features) * features.element_size())
        sparse = SparseArmFilter(
            features, kernel, noise, rate, self.tolerance, self.max_inducing
        )
        sparse.max_inducing = max(2, min(sparse.max_inducing, room))
        return sparse

    def _check_room(self, features: Tensor) -> None:
        """Raise unless the features of all arms fit the byte budget."""
        num_bytes = exact_filter_bytes(len(features))
        if num_bytes > self.max_feature_bytes:
            raise InputDataError(
                "Expected `max_feature_bytes` to hold an exact filter over "
                f"{len(features):,} arms, whose features take up to {num_bytes:,} "
                f"bytes, but got {self.max_feature_bytes:,}. Pass `sparse=True`, or "
                "allow more."
            )

    def _observed(self, observations: Observations, start: int) -> list[Observation]:
        """Return the known pulls from one on, in the units of the hyperparameters."""
        prior, sign = self.hyperparameters, observations.sign
        return [
            Observation(
                prior.steps(observations.told_times[pull]),
                observations.told_indices[pull],
                (sign * observations.told_rewards[pull] - prior.offset) / prior.scale,
            )
            for pull in range(start, self.state.num_told)
        ]

    def _oldest_pending(self, observations: Observations) -> float:
        times = [pull.time for pull in observations.pending.values()]
        return self.hyperparameters.steps(min(times, default=math.inf))


def exact_filter_bytes(num_arms: int) -> int:
    """Return the most bytes of a filter on which every pulled arm is inducing."""
    return 8 * num_arms**2
