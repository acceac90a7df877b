r"""TV-GP-UCB, exact and sparse.

References:
    [bogunovic2016tvgpucb] I. Bogunovic, J. Scarlett, V. Cevher. Time-varying Gaussian
    process bandit optimization. AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.acquisition.time_varying import TVWidth
from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.drift_hyperparameters import DriftHyperparameters
from botorch_bkb.bandits.drifting import DriftingBandit
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.optim.batch_rules import BatchRule, covariances_needed
from botorch_bkb.optim.batch_ucb import fill_batch
from botorch_bkb.posteriors import (
    ArmFilter,
    ArmMoments,
    DriftingPosterior,
    ReplayedFilter,
    SparseArmFilter,
)
from botorch_bkb.posteriors.drifting import check_forgetting_rate
from botorch_bkb.posteriors.replay import Observation
from botorch_bkb.posteriors.upper_bounds import DriftingUpperBounds


class TVGPUCB(DriftingBandit):
    r"""TV-GP-UCB: forgets smoothly. Algorithm 2 of [bogunovic2016tvgpucb]_.

    The posterior is that of ``f_{t+1} = sqrt(1 - eps) f_t + sqrt(eps) g_{t+1}``,
    equations (7) and (8), filtered from step to step at a cost that does not grow with
    time: :class:`~botorch_bkb.posteriors.ArmFilter` over all arms, ``O(A^2)`` a
    step and in memory, or :class:`~botorch_bkb.posteriors.SparseArmFilter`,
    ``O(A m)``, which says what it approximates. Batches are picked one by one with
    the variance of those before, as if each had brought its mean; so are pulls still
    pending, each as if it had at the time at which it was asked for: a pull that is
    lost is forgotten like any other. A reward of a time before others that were told
    replays what came since the oldest pull that is pending, of which the bandit keeps a
    copy of its filter (and one more that counts pending pulls); only one that is older
    still replays the whole history, and so do the first arms that join an exact filter,
    but none after them. The theorem covers single pulls at times 1, 2, 3, ...

    Args:
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time. None: learned by the
            marginal likelihood, equation (24), when the number of told pulls reaches 4,
            8, 16, ..., from at most the last 512 of them, and per step of about the gap
            between their times, so that the unit of time does not matter.
        sparse: Whether to filter a few inducing arms instead of all arms.
        tolerance: The leverage under which an inducing arm leaves, if ``sparse``.
        max_inducing: The most inducing arms, if ``sparse``.

    All other arguments are those of :class:`~botorch_bkb.bandits.FiniteArmBandit`. The
    default ``confidence`` is :class:`~botorch_bkb.acquisition.TVWidth`, and the paper's
    experiments take ``LogWidth``. A kernel or noise that is None is fitted together
    with ``eps``. Batch rules that need more than variances, the local and the projected
    ones, are refused.

    Raises:
        InputDataError: If ``forgetting_rate`` or another argument is out of range.
        UnsupportedError: If ``batch_rule`` needs covariances.

    Example:
        >>> bandit = TVGPUCB(arms, RBFKernel(), 0.01, forgetting_rate=0.03)
        >>> indices = bandit.ask(time=7.5)
        >>> bandit.tell(indices, measure(indices), time=7.6)
    """

    _hyperparameters: DriftHyperparameters
    _posterior: ArmMoments
    _replayed: ReplayedFilter
    _prediction: tuple[int, DriftHyperparameters, DriftingPosterior] | None

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        forgetting_rate: float | None = None,
        sparse: bool = False,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
        **options: Any,
    ) -> None:
        if forgetting_rate is not None:
            check_forgetting_rate(forgetting_rate)
        if not isinstance(sparse, bool):
            raise InputDataError(
                f"Expected `sparse` to be True or False, but got {sparse!r}."
            )
        self._given_rate = forgetting_rate
        self.sparse = sparse
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        # Set when the first arms join: the exact filter then keeps what that takes.
        self._is_extensible = False
        super().__init__(arms, covar_module, noise_variance, **options)
        if self.batch_rule.needs_covariances:
            raise UnsupportedError(covariances_needed(self.batch_rule))

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return TVWidth()

    @property
    def forgetting_rate(self) -> float:
        """``eps`` per unit of time, given or learned so far.

        One that was learned from steps that are small against the unit is 1 up to
        rounding; what is remembered is counted in those steps.
        """
        return self._hyperparameters.forgetting_rate

    @override
    def _draw_best_arms(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draw the best arms at the next decision time; ``num_draws x A`` numbers."""
        hyperparameters, drifting = self._present()
        drifting = drifting.copy()
        drifting.advance(hyperparameters.steps(self.decision_time))
        competes = self._table.competing()
        return drifting.draw_best_arms(num_draws, generator, competes)

    @override
    def _new_hyperparameters(
        self, arms: Tensor, covar_module: Kernel | None, noise_variance: float | None
    ) -> DriftHyperparameters:
        return DriftHyperparameters(
            arms, covar_module, noise_variance, self._given_rate
        )

    def _new_filter(self, hyperparameters: DriftHyperparameters) -> DriftingPosterior:
        if self.sparse:
            return SparseArmFilter(
                hyperparameters.features,
                hyperparameters.covar_module,
                hyperparameters.noise_variance,
                hyperparameters.step_rate,
                self.tolerance,
                self.max_inducing,
            )
        with torch.no_grad():
            K = dense_covariance(
                hyperparameters.covar_module, hyperparameters.features
            ).to(self.arms)
        return ArmFilter(
            K,
            hyperparameters.noise_variance,
            hyperparameters.step_rate,
            extensible=self._is_extensible,
        )

    @override
    def _extended_posterior(self, features: Tensor) -> ArmMoments:
        """Extend the filters: nothing is replayed."""
        hyperparameters = self._hyperparameters
        with torch.no_grad():
            covariance = dense_covariance(
                hyperparameters.covar_module, features, hyperparameters.features
            )
        replayed = self._replayed.extended(features, covariance.to(self.arms))
        self._replayed, self._is_replay = replayed, False
        return self._moments(hyperparameters, replayed.filter)

    @override
    def _match(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        indices, new = super()._match(arms)
        if len(new) and not self._is_extensible:
            self._is_extensible = True
            if not self.sparse:
                self._rebuild_posterior()
        return indices, new

    @override
    def _renew(self) -> None:
        # A filter that was extended has other bits than a replay over all arms.
        if not self._is_replay:
            self._rebuild_posterior()

    def _refitted_hyperparameters(self) -> DriftHyperparameters:
        hyperparameters = deepcopy(self._hyperparameters)
        indices, rewards = self._ledger.history()
        times = rewards.new_tensor(self._times)
        order = times.argsort(stable=True)
        hyperparameters.fit_over_time(
            indices[order], self._sign * rewards[order], times[order]
        )
        return hyperparameters

    def _observations(
        self, hyperparameters: DriftHyperparameters, start: int, stop: int
    ) -> list[Observation]:
        """Return told pulls in the units of some hyper-parameters."""
        ledger = self._ledger
        return [
            Observation(
                hyperparameters.steps(self._times[pull]),
                ledger.told_indices[pull],
                (self._sign * ledger.told_rewards[pull] - hyperparameters.offset)
                / hyperparameters.scale,
            )
            for pull in range(start, stop)
        ]

    def _replay(
        self, hyperparameters: DriftHyperparameters, stop: int
    ) -> ReplayedFilter:
        """Return a new filter that has observed the first told pulls."""
        replayed = ReplayedFilter(self._new_filter(hyperparameters))
        replayed.observe(
            self._observations(hyperparameters, 0, stop),
            self._oldest_pending(hyperparameters),
        )
        return replayed

    def _oldest_pending(self, hyperparameters: DriftHyperparameters) -> float:
        times = [pull.time for pull in self._ledger.pending.values()]
        return hyperparameters.steps(min(times, default=math.inf))

    @override
    def _refresh(self) -> None:
        if self._num_processed != self.num_pulls:
            hyperparameters, num_pulls = self._hyperparameters, self.num_pulls
            refit = hyperparameters.is_due(num_pulls)
            try:
                if refit:
                    hyperparameters = self._refitted_hyperparameters()
                new = self._observations(
                    hyperparameters, self._num_processed, num_pulls
                )
                if refit or not self._replayed.reaches(new):
                    self._replayed = self._replay(hyperparameters, num_pulls)
                    self._is_replay = True
                else:
                    self._replayed.observe(new, self._oldest_pending(hyperparameters))
            except BaseException:
                self._rebuild_posterior()
                raise
            self._hyperparameters, self._num_processed = hyperparameters, num_pulls
            self._prediction = None
            if refit:
                self._restart = (num_pulls, self._replayed.filter.log_det)
        self._posterior = self._moments(self._hyperparameters, self._replayed.filter)
        self.inducing_indices = self._posterior.inducing_indices

    @override
    def _rebuild_posterior(self) -> None:
        self._prediction = None
        self._replayed = self._replay(self._hyperparameters, self._num_processed)
        self._is_replay = True
        self._posterior = self._moments(self._hyperparameters, self._replayed.filter)

    def _present(self) -> tuple[DriftHyperparameters, DriftingPosterior]:
        """Return hyper-parameters and filter given all told pulls, without a draw."""
        if self._num_processed == self.num_pulls:
            return self._hyperparameters, self._replayed.filter
        if self._prediction is None or self._prediction[0] != self.num_pulls:
            hyperparameters = self._hyperparameters
            refit = hyperparameters.is_due(self.num_pulls)
            if refit:
                hyperparameters = self._refitted_hyperparameters()
            new = self._observations(
                hyperparameters, self._num_processed, self.num_pulls
            )
            if refit or not self._replayed.reaches(new):
                drifting = self._replay(hyperparameters, self.num_pulls).filter
            else:
                drifting = self._replayed.with_observations(new)
            self._prediction = (self.num_pulls, hyperparameters, drifting)
        return self._prediction[1:]

    @override
    def _predictive(self) -> tuple[DriftHyperparameters, ArmMoments]:
        hyperparameters, drifting = self._present()
        return hyperparameters, self._moments(hyperparameters, drifting)

    def _moments(
        self, hyperparameters: DriftHyperparameters, drifting: DriftingPosterior
    ) -> ArmMoments:
        """Return what is known at the next decision time."""
        mean, variance = drifting.predict(hyperparameters.steps(self.decision_time))
        pulled = self._ledger.totals(self.num_pulls).arms
        inducing = pulled
        if isinstance(drifting, SparseArmFilter):
            inducing = drifting.inducing_indices
        return ArmMoments(
            mean=mean,
            all_variances=variance,
            prior_variance=drifting.prior_variance,
            noise_variance=hyperparameters.noise_variance,
            pulled_indices=pulled,
            inducing_indices=inducing,
            log_det=drifting.log_det,
            effective_dimension=sum(self._ledger.told_scores),
        )

    @override
    def _choose(
        self,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        hyperparameters, posterior = self._hyperparameters, self._posterior
        num_pending = len(self._ledger.pending)
        state = self._confidence_state(hyperparameters, posterior, num_pending)
        scale = self.confidence(state) / math.sqrt(hyperparameters.noise_variance)
        now = hyperparameters.steps(self.decision_time)
        out = [(hyperparameters.steps(pull.time), pull.arm) for pull in pending]
        # A pending pull informs about its own time; the share of that which is retained
        # until now is what it counts in the batch rule.
        retained = 1 - hyperparameters.step_rate
        scores = [
            pull.score * retained ** (now - time)
            for pull, (time, _) in zip(pending, out, strict=True)
        ]
        batch = rule.open(posterior, self.arms.new_tensor(scores), projected=False)
        bounds = DriftingUpperBounds(
            posterior, scale, self._replayed, out, now, capacity.copy()
        )
        return fill_batch(bounds, batch, rule, first, posterior.pulled_indices)
