"""A learner that forgets smoothly, by a filter over time."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.acquisition.time_varying import TVWidth
from botorch_bkb.arms import Capacity, StoredArms
from botorch_bkb.bandits.drift_hyperparameters import DriftHyperparameters
from botorch_bkb.bandits.learners import Belief, Learner
from botorch_bkb.bandits.ledger import Pulls
from botorch_bkb.posteriors import (
    ArmMoments,
    Moments,
    ReplayedFilter,
    ResidualPart,
    SparseArmFilter,
)
from botorch_bkb.posteriors.replay import FilterSampler, Observation
from botorch_bkb.posteriors.sparse_arm_filter import check_forgetting_rate
from botorch_bkb.posteriors.upper_bounds import DriftingUpperBounds


@dataclass(frozen=True, kw_only=True)
class FilterBelief(Belief):
    """A filter that has observed the told pulls.

    Attributes:
        replayed: The filter.
    """

    hyperparameters: DriftHyperparameters
    replayed: ReplayedFilter

    @override
    def moments(self, pulls: Pulls) -> ArmMoments:
        drifting = self.replayed.filter
        mean, variance = drifting.predict(self.hyperparameters.steps(pulls.now))
        pulled, like = pulls.totals().arms, self.hyperparameters.features
        return ArmMoments(
            mean=mean.to(like.dtype),
            all_variances=variance.to(like.dtype),
            prior_variance=drifting.prior_variance.to(like.dtype),
            noise_variance=self.hyperparameters.noise_variance,
            pulled_indices=pulled,
            inducing_indices=drifting.inducing_indices,
            log_det=drifting.log_det,
            effective_dimension=sum(pulls.ledger.told_scores),
        )

    @override
    def pending_scores(self, pulls: Pulls) -> list[float]:
        """A pending pull informs about its own time, and now by what is retained."""
        hyperparameters = self.hyperparameters
        now, retained = hyperparameters.steps(pulls.now), 1 - hyperparameters.step_rate
        return [
            pull.score * retained ** (now - hyperparameters.steps(pull.time))
            for pull in pulls.pending
        ]

    @override
    def upper_bounds(
        self, moments: Moments, scale: float, grow: bool, pulls: Pulls, left: Capacity
    ) -> DriftingUpperBounds:
        now = self.hyperparameters.steps(pulls.now)
        out = self._pending(pulls)
        return DriftingUpperBounds(moments, scale, self.replayed, out, now, left)

    @override
    def sampler(
        self, pulls: Pulls, residual: ResidualPart | None, spread: float = 1.0
    ) -> FilterSampler:
        if residual is not None:
            raise UnsupportedError(
                "Expected `residual` to be None where the objective drifts by a "
                f"filter, whose draws have one law, but got {residual!r}."
            )
        now = self.hyperparameters.steps(pulls.now)
        return FilterSampler(self.replayed, self._pending(pulls), now, spread)

    def _pending(self, pulls: Pulls) -> list[tuple[float, int]]:
        """Return times, in those of the filter, and arms of pending pulls."""
        steps = self.hyperparameters.steps
        return [(steps(pull.time), pull.arm) for pull in pulls.pending]


@dataclass(frozen=True)
class ForgettingLearner(Learner[FilterBelief]):
    r"""Forgets smoothly: ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``.

    Equations (7) and (8) of [bogunovic2016tvgpucb]_, filtered from step to step.

    Args:
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time. None: learned.
        sparse: Whether arms of little leverage are inducing no longer.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``; fewer, two at least, where
            ``max_feature_bytes`` does not hold their features.

    Raises:
        InputDataError: If an option is out of range; in a bandit, if
            ``max_feature_bytes`` does not hold the covariances of an exact filter.
        UnsupportedError: In a bandit, if the arms are on Ray's workers: this process
            filters.
    """

    forgetting_rate: float | None = None
    sparse: bool = False
    tolerance: float = 1e-3
    max_inducing: int = 512
    drifts = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.forgetting_rate is not None:
            check_forgetting_rate(self.forgetting_rate)
        if not isinstance(self.sparse, bool):
            raise InputDataError(
                f"Expected `sparse` to be True or False, but got {self.sparse!r}."
            )

    @property
    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return TVWidth()

    @override
    def begin(
        self,
        arms: Tensor,
        covar_module: Kernel | None,
        noise_variance: float | None,
        max_feature_bytes: int,
    ) -> FilterBelief:
        if isinstance(arms, StoredArms) and arms.workers is not None:
            raise UnsupportedError(
                "Expected arms for whom this process computes, as a filter over time "
                "does, but got arms on Ray's workers. Leave out `on_ray`, or take a "
                "`BlockLearner` (`RGPUCB`), which computes there."
            )
        hyperparameters = DriftHyperparameters(
            arms, covar_module, noise_variance, self.forgetting_rate
        )
        return FilterBelief(
            hyperparameters=hyperparameters,
            inducing_indices=torch.empty(0, dtype=torch.long, device=arms.device),
            max_feature_bytes=max_feature_bytes,
            grows=True,
            replayed=ReplayedFilter(self._empty(hyperparameters, max_feature_bytes)),
        )

    @override
    def learn(self, belief: FilterBelief, pulls: Pulls) -> FilterBelief:
        return self._learned(belief, pulls, in_place=True)

    @override
    def preview(self, belief: FilterBelief, pulls: Pulls) -> FilterBelief:
        return self._learned(belief, pulls, in_place=False)

    def _learned(
        self, belief: FilterBelief, pulls: Pulls, in_place: bool
    ) -> FilterBelief:
        num_told = pulls.num_told
        refit = belief.hyperparameters.is_due(num_told)
        if refit:
            hyperparameters = belief.hyperparameters.refitted(*pulls.history())
            belief = replace(belief, hyperparameters=hyperparameters)
        new = _observations(belief, pulls, belief.num_told, num_told)
        if refit or not belief.replayed.reaches(new):
            belief = self.rebuild(replace(belief, num_told=num_told), pulls)
        elif in_place:
            belief.replayed.observe(new, _oldest_pending(belief, pulls))
        else:
            replayed = ReplayedFilter(belief.replayed.with_observations(new))
            belief = replace(belief, replayed=replayed)
        drifting = belief.replayed.filter
        return replace(
            belief,
            num_told=num_told,
            num_updates=belief.num_updates + 1,
            restart=(num_told, drifting.log_det) if refit else belief.restart,
            inducing_indices=drifting.inducing_indices,
        )

    @override
    def rebuild(self, belief: FilterBelief, pulls: Pulls) -> FilterBelief:
        """Observe the first told pulls anew."""
        empty = self._empty(belief.hyperparameters, belief.max_feature_bytes)
        replayed = ReplayedFilter(empty)
        told = _observations(belief, pulls, 0, belief.num_told)
        replayed.observe(told, _oldest_pending(belief, pulls))
        return replace(belief, replayed=replayed)

    @override
    def extended(
        self, belief: FilterBelief, rows: Tensor, pulls: Pulls
    ) -> FilterBelief:
        """Return a belief of more arms; nothing is replayed."""
        hyperparameters, features = belief.hyperparameters.extended(rows)
        if not self.sparse:
            _check_room(hyperparameters.features, belief.max_feature_bytes)
        return replace(
            belief,
            hyperparameters=hyperparameters,
            replayed=belief.replayed.extended(features),
        )

    def _empty(
        self, hyperparameters: DriftHyperparameters, max_feature_bytes: int
    ) -> SparseArmFilter:
        """Return a filter that has observed nothing."""
        features, kernel = hyperparameters.features, hyperparameters.covar_module
        noise, rate = hyperparameters.noise_variance, hyperparameters.step_rate
        if not self.sparse:
            _check_room(features, max_feature_bytes)
            # In double: of similar arms, single precision would leave some out.
            kernel = deepcopy(kernel).double()
            return SparseArmFilter(
                features.double(), kernel, noise, rate, 0.0, max(len(features), 2)
            )
        sparse = SparseArmFilter(
            features, kernel, noise, rate, self.tolerance, self.max_inducing
        )
        room = max_feature_bytes // (len(features) * features.element_size())
        sparse.max_inducing = max(2, min(sparse.max_inducing, room))
        return sparse


def _check_room(features: Tensor, max_feature_bytes: int) -> None:
    """Raise unless the features of all arms fit a byte budget."""
    num_arms = len(features)
    num_bytes = 8 * num_arms**2
    if num_bytes > max_feature_bytes:
        raise InputDataError(
            f"Expected `max_feature_bytes` to hold an exact filter over {num_arms:,} "
            f"arms, whose features take up to {num_bytes:,} bytes, but got "
            f"{max_feature_bytes:,}. Pass `sparse=True`, or allow more."
        )


def _observations(
    belief: FilterBelief, pulls: Pulls, start: int, stop: int
) -> list[Observation]:
    """Return told pulls in the units of the hyper-parameters."""
    ledger, prior = pulls.ledger, belief.hyperparameters
    return [
        Observation(
            prior.steps(ledger.told_times[pull]),
            ledger.told_indices[pull],
            (pulls.sign * ledger.told_rewards[pull] - prior.offset) / prior.scale,
        )
        for pull in range(start, stop)
    ]


def _oldest_pending(belief: FilterBelief, pulls: Pulls) -> float:
    times = [pull.time for pull in pulls.ledger.pending.values()]
    return belief.hyperparameters.steps(min(times, default=math.inf))
