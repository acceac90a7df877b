r"""Ask and tell over a finite set of arms: what all bandits share.

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
    [calandriello2020bbkb] The same authors. Near-linear time Gaussian process
    optimization with adaptive batching and resparsification. ICML 2020.
    [desautels2014gpbucb] T. Desautels, A. Krause, J. W. Burdick. Parallelizing
    exploration-exploitation tradeoffs in Gaussian process bandit optimization. JMLR
    2014.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ArmObservations,
    as_schedule,
    ConfidenceSchedule,
    ConfidenceState,
)
from botorch_bkb.acquisition.deviations import DeviationWidth
from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.arms import ArmBandit
from botorch_bkb.bandits.goal import (
    check_goal,
    Goal,
)
from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.ledger import Pull, Totals
from botorch_bkb.checks import (
    check_count,
    check_indices,
    check_max_feature_bytes,
    check_number,
    check_size,
)
from botorch_bkb.generation.maximizer import MaximizerDistribution
from botorch_bkb.models.utils.draws import as_generator, draw_integers
from botorch_bkb.optim.batch_rules import (
    BatchRule,
    Capped,
    check_batch_rule,
    FixedSize,
)
from botorch_bkb.posteriors import Moments
from botorch_bkb.posteriors.knowledge_gain import best_arm_capacity
from botorch_bkb.posteriors.threads import threads_for


# The default cap of a batch whose rule sets no size.
MAX_BATCH_SIZE = 10_000


class FiniteArmBandit(ArmBandit):
    r"""A GP bandit over ``A`` arms with delayed, repeated and failed pulls.

    ``ask`` returns arms to pull; ``tell`` brings rewards, in any order and any part of
    what was asked; what is neither told nor failed stays pending and keeps shrinking
    the variance. The posterior is updated once, in the first ``ask`` after new rewards.
    A subclass names its posterior, its confidence schedule and its batch rule.

    Batches may overlap: an ``ask`` while pulls are pending starts its batch rule from
    what they have used up. So a variance given the rewards so far is, on the exact
    posterior, at most ``ratio_threshold`` times the one that counts pending pulls, up
    to the pull that closes a batch and the one arm that every ``ask`` returns. The
    theorems of [calandriello2020bbkb]_ assume that all rewards of a batch come before
    the next batch is asked for, those of [calandriello2019bkb]_ that every reward comes
    before the next pull. [desautels2014gpbucb]_ cover rewards that are late by a
    bounded number of pulls, for the exact posterior and a width multiplied by the
    exponential of what that many pulls can tell. For rewards of the sparse bandits that
    are later than their batch, and for those that never come, there is no theorem.

    Memory is that of :class:`~botorch_bkb.posteriors.ArmPosterior`:
    ``O(A)`` and the ``m x A`` features within a byte budget.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm. Of arms with identical
            rows the one of the lowest index is pulled, as long as it may be and the
            others suffice for the batch.
        covar_module: Any GPyTorch kernel, used as it is. None: BoTorch's default,
            fitted as data arrive.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number:
            a constant width ``w`` in the papers' scaling, the score ``mean + w
            sqrt(var / lambda)``. ``DeviationWidth(c)`` counts posterior deviations
            instead. None: the bandit's default.
        batch_rule: A rule of ``botorch_bkb.optim.batch_rules``. None: the default.
        goal: ``"regret"`` collects reward: what looks best is pulled again and again.
            ``"best_arm"`` finds the best arm: the arms of a batch are distinct, and one
            that was pulled or is pending is pulled again only where that gains more
            knowledge of the best arm than any new one (``bandits.goal``). None:
            ``"best_arm"`` where anything is learned and nothing drifts, else
            ``"regret"``.
        maximize: Whether large rewards are good.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: The source of all randomness. None: a new one with a random seed.
        max_feature_bytes: The byte budget of the cached features.

    There are two regimes. **Kernel and noise given**: features and rewards are used as
    they come, and every default is the papers'. **Anything learned**: features are
    scaled to the unit cube (but for the columns of a given ``TanimotoKernel``) and
    rewards standardized inside; what is None is fitted by
    marginal likelihood at every update up to 128 told pulls, then when their number
    reaches 256, 512, ...; the default width is one posterior deviation and the default
    goal the best arm; every answer is in the user's units. **Fitted hyper-parameters
    void the regret guarantees**, and the papers' widths, which grow with the log
    determinant of ``I + K / lambda``, are ten to thirty deviations where the fitted
    noise is small.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        batch_rule: BatchRule | None = None,
        goal: Goal | None = None,
        maximize: bool = True,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        max_feature_bytes: int = 2**31,
    ) -> None:
        check_goal(goal)
        super().__init__(
            arms, maximize=maximize, max_repeats=max_repeats, generator=generator
        )
        check_batch_rule(batch_rule)
        check_max_feature_bytes(max_feature_bytes)
        learns = covar_module is None or noise_variance is None
        self.goal: Goal = self.default_goal(learns) if goal is None else goal
        if confidence is not None:
            self.confidence = as_schedule(confidence)
        elif learns:
            self.confidence = self.practical_confidence()
        else:
            self.confidence = self.default_confidence()
        self.batch_rule = (
            self.default_batch_rule() if batch_rule is None else batch_rule
        )
        self.max_feature_bytes = max_feature_bytes
        self.inducing_indices = torch.empty(0, dtype=torch.long, device=arms.device)
        self._hyperparameters = self._new_hyperparameters(
            self.arms, covar_module, noise_variance
        )
        # What the posterior of the last `ask` knew: the first told pulls, and where the
        # frozen sums of the confidence schedules restarted.
        self._num_processed = 0
        self._restart = (0, 0.0)
        self._opening_score = 0.0
        # What a subclass keeps of its last prediction between two asks.
        self._prediction: Any = None
        # Whether the posterior has the bits that a load would compute.
        self._is_fresh = True
        self._rebuild_posterior()

    # What is known of the arms since the last ask.
    _posterior: Moments

    @abstractmethod
    def default_confidence(self) -> ConfidenceSchedule:
        """Return the schedule used if none is given, but kernel and noise are."""

    def practical_confidence(self) -> ConfidenceSchedule:
        """Return the schedule used if none is given and something is learned."""
        return DeviationWidth()

    def default_goal(self, learns: bool) -> Goal:
        """Return the goal if none is given.

        Args:
            learns: Whether kernel or noise are learned.
        """
        return "best_arm" if learns else "regret"

    @abstractmethod
    def default_batch_rule(self) -> BatchRule:
        """Return the batch rule used if none is given."""

    def _new_hyperparameters(
        self, arms: Tensor, covar_module: Kernel | None, noise_variance: float | None
    ) -> Hyperparameters:
        return Hyperparameters(arms, covar_module, noise_variance)

    @abstractmethod
    def _extended_posterior(self, features: Tensor) -> Moments:
        """Return the posterior of more arms as well, given their features."""

    @abstractmethod
    def _refresh(self) -> None:
        """Take the rewards told into hyper-parameters, posterior and inducing arms."""

    @abstractmethod
    def _rebuild_posterior(self) -> None:
        """Rebuild the posterior of the last ask from scratch."""

    @abstractmethod
    def _predictive(self) -> tuple[Hyperparameters, Moments]:
        """Return hyper-parameters and posterior of all told pulls, without a draw."""

    @abstractmethod
    def _choose(
        self,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        """Choose a batch by the posterior and the pulls that are pending.

        Args:
            rule: When to close it.
            capacity: How many pulls each arm allows; left as it is.
            first: The first arm, if it is already chosen.
            pending: Pulls without reward.
        """

    @abstractmethod
    def _draw_best_arms(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Return the best arm of each of several draws from the posterior."""

    def _totals(self, num_pulls: int) -> Totals:
        """Return the totals of the first told pulls, of those the posterior uses."""
        return self._ledger.totals(num_pulls)

    @property
    def noise_variance(self) -> float:
        """Lambda, in the user's units."""
        return self._hyperparameters.noise_variance * self._hyperparameters.scale**2

    @property
    def covar_module(self) -> Kernel:
        """The kernel, given or fitted so far."""
        return self._hyperparameters.covar_module

    def ask(
        self,
        max_size: int | None = None,
        available: Tensor | None = None,
        *,
        size: int | None = None,
        arms: Tensor | None = None,
    ) -> Tensor:
        r"""Choose the next batch; its pulls become pending.

        The very first arm is drawn uniformly; afterwards ties go to the lowest index.
        The first ask after new rewards fits hyper-parameters (if they are learned and
        it is time), resamples the inducing arms and refactorizes. With pulls pending,
        the batch rule starts from what they have used up; at least one arm is returned.

        Where arms come and go, as contexts do, pass those of this round. What is chosen
        of them joins the table (retired: a plain ``ask`` does not offer it), the rest
        is forgotten; the returned indices are rows of the table, as always. That costs
        the features of the round's arms, ``O(k m^2)``, and a copy of the cache.

        Args:
            max_size: A cap on the size of this batch. If omitted, 10,000 for rules that
                close by themselves: on an arm that is all but known they may take more
                pulls than anybody can use.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            size: The size of this batch: exactly that many, fewer only where fewer are
                left. The batch rule says how many of them keep the theorem; the rest
                are chosen as if those had been pulled and had brought their means.
            arms: A ``k x d`` tensor of the arms of this round, in place of all that are
                not retired. Rows that the table has are those arms.

        Returns:
            A long tensor of arm indices in order of choice, repeats included. Their
            pull ids are the last of ``pending``.

        Raises:
            BotorchTensorDimensionError: If ``arms`` is not ``k x d``.
            InputDataError: If an argument does not fit, or no arm may be pulled; or if
                the kernel turns out not to be positive semi-definite.

        Example:
            >>> indices = bandit.ask(arms=torch.cat([context.expand(k, -1), X], dim=-1))
            >>> pulled = bandit.arms[indices]
        """
        if arms is None:
            offered, new = self._offered(available), self.arms[:0]
        else:
            offered, new = self._offered_of(arms, available)
        used = self._ledger.used()
        capacity = self._table.capacity(offered, self.max_repeats, used)
        rule, size = self._rule_of(size, max_size, capacity)
        capacity = self._table.merged_twins(capacity, max(rule.min_size, size))
        _check_left(rule, capacity)
        with threads_for(self._posterior.feature_bytes):
            return self._ask(rule, size, offered, capacity, new)

    def _rule_of(
        self, size: int | None, max_size: int | None, capacity: Capacity
    ) -> tuple[BatchRule, int]:
        """Return the rule that closes this batch, and the least size of the batch."""
        if size is None:
            if max_size is None:
                max_size = max(MAX_BATCH_SIZE, self.batch_rule.min_size)
            return Capped(self.batch_rule, max_size), 1
        if max_size is not None:
            raise InputDataError(
                "Expected `size` or `max_size`, but got both. `size` is exact, "
                "`max_size` a cap on what the batch rule gives."
            )
        check_size("size", size)
        size = max(1, min(size, capacity.total(size)))
        return self.batch_rule.sized(size), size

    def _offered_of(
        self, arms: Tensor, available: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return which arms are offered, new ones after the table, and the new rows."""
        if available is not None:
            raise InputDataError(
                "Expected `available` or `arms`, but got both. Leave arms that cannot "
                "be pulled out of `arms`."
            )
        indices, new = self._match(arms)
        return self._table.offered_rows(indices, len(new)), new

    def _ask(
        self,
        rule: BatchRule,
        size: int,
        offered: Tensor | None,
        capacity: Capacity,
        new: Tensor,
    ) -> Tensor:
        self._is_fresh = False
        self._refresh()
        is_first = self.num_pulls == 0 and not self._ledger.pending
        chooser = self
        if new.shape[0]:
            chooser = copy(self)
            chooser._extend(new, is_retired=True)
        generator_state = self.generator.get_state()
        try:
            if self.goal == "best_arm":
                capacity = best_arm_capacity(
                    chooser._posterior,
                    capacity,
                    offered,
                    self._ledger.used(),
                    max(rule.min_size, size),
                )
            first = capacity.draw(self.generator) if is_first else None
            indices = chooser._choose_at_least(size, rule, capacity, first)
        except BaseException:
            self.generator.set_state(generator_state)
            raise
        indices = self._keep_chosen(new, indices)
        if is_first:
            self._opening_score = self._posterior.leverage_score(int(indices[0]))
        self._add_pending(indices)
        self.num_batches += 1
        return indices

    def _choose_at_least(
        self, size: int, rule: BatchRule, capacity: Capacity, first: int | None
    ) -> Tensor:
        """Choose a batch by a rule, and more arms if it closes before ``size``."""
        pending = list(self._ledger.pending.values())
        indices = self._choose(rule, capacity, first, pending)
        if len(indices) < size:
            scores = self._leverage_scores(indices).tolist()
            time = self._time_of_asking
            chosen = zip(indices.tolist(), scores, strict=True)
            pending += [Pull(arm, score, time) for arm, score in chosen]
            rest = FixedSize(size - len(indices))
            more = self._choose(rest, capacity.without(indices), None, pending)
            indices = torch.cat([indices, more])
        return indices

    def _keep_chosen(self, new: Tensor, indices: Tensor) -> Tensor:
        """Add the new arms that were chosen to the table; return their indices in it.

        Args:
            new: The new arms of this round.
            indices: What was chosen, new arms counted from the end of the table.
        """
        num_arms = self.arms.shape[0]
        chosen = indices[indices >= num_arms].unique()
        self._append(new[chosen - num_arms], is_retired=True)
        kept = num_arms + torch.searchsorted(chosen, indices)
        return torch.where(indices < num_arms, indices, kept)

    def predict(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances of the arms, in the user's units.

        All told pulls count, with the inducing arms of the last ``ask``; nothing is
        drawn, and pending pulls do not count.

        Args:
            indices: The arms; all if None.
        """
        rows = self._rows(indices)
        hyperparameters, posterior = self._predictive()
        mean = posterior.mean[rows] * hyperparameters.scale + hyperparameters.offset
        variance = posterior.variances(rows) * hyperparameters.scale**2
        return (mean if self.maximize else -mean), variance

    @property
    def confidence_width(self) -> float:
        """The width ``w`` of ``confidence_bound``, in the user's units.

        A bound is ``w sqrt(variance / lambda)`` away from the mean.
        """
        hyperparameters, posterior = self._predictive()
        # A copy: asking for a width must not advance a schedule that remembers.
        width = deepcopy(self.confidence)(
            self._confidence_state(hyperparameters, posterior)
        )
        # The schedule's width is in the kernel's units.
        return width * hyperparameters.scale

    def confidence_bound(self, indices: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the optimistic confidence bounds of the arms, in the user's units.

        The upper bound if ``maximize``, else the lower one, of what ``predict`` says:
        the next decision's, were no pulls pending.

        Args:
            indices: The arms; all if None.
        """
        hyperparameters, _ = self._predictive()
        mean, variance = self.predict(indices)
        noise = hyperparameters.noise_variance * hyperparameters.scale**2
        bonus = self.confidence_width * (variance / noise).sqrt()
        return mean + bonus if self.maximize else mean - bonus

    def best_arm(self, among_pulled: bool = True) -> int:
        """Return the arm of the best posterior mean, the lowest index among ties.

        Retired arms do not count, unless all are retired.

        Args:
            among_pulled: Whether only arms with told pulls count (all arms count before
                the first).
        """
        pulled = self._ledger.totals(self.num_pulls).arms if among_pulled else None
        return self._predictive()[1].best_mean(self._table.competing(pulled))

    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> MaximizerDistribution:
        """Return how likely each arm is the best, from draws of the posterior.

        Given all told pulls, as in ``predict``; uniform before the first. Retired arms
        do not compete, unless all are retired. The draws have the joint law of the
        posterior among the promising arms (of drifting bandits on a sparse filter, that
        of its weights), see :mod:`botorch_bkb.posteriors.arm_sampler`.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed;
                that of the bandit stays as it is.
        """
        generator = as_generator(generator)
        if self.num_pulls == 0:
            arms = self._table.competing().nonzero().squeeze(-1)
            best = draw_integers(len(arms), num_draws, generator)
            best = arms[best.to(arms.device)]
        else:
            best = self._draw_best_arms(num_draws, generator)
        return MaximizerDistribution(self.arms, best.to(self.arms.device))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "prior": deepcopy(self._hyperparameters.state_dict()),
            "confidence": self.confidence.state_dict(),
            "inducing_indices": self.inducing_indices.clone(),
            "num_processed": self._num_processed,
            "restart": self._restart,
            "opening_score": self._opening_score,
        }

    @override
    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self._hyperparameters.load_state_dict(state["prior"])
        self._hyperparameters.features = self._hyperparameters.to_features(self.arms)
        self.confidence.load_state_dict(state["confidence"])
        inducing = check_indices(state["inducing_indices"], self.arms.shape[0])
        self.inducing_indices = self._indices(inducing)
        num_pulls, (start, log_det) = self.num_pulls, state["restart"]
        self._num_processed = check_count(
            "num_processed", state["num_processed"], num_pulls
        )
        self._restart = (
            check_count("restart", start, num_pulls),
            check_number("restart", log_det, least=-1e-6),
        )
        self._opening_score = check_number(
            "opening_score", state["opening_score"], least=0.0
        )
        self._rebuild_posterior()
        self._is_fresh = True

    @override
    def _forget(self, places: list[int]) -> None:
        self._prediction = None
        known = min([self._num_processed, *places])
        if known == self._num_processed:
            return
        # At least one less than was told, so that the next ask updates the posterior.
        self._num_processed = known = max(0, min(known, self.num_pulls - 1))
        start, log_det = self._restart
        self._restart = (min(start, self.num_pulls), log_det)
        # Refit at the next ask: the fit may have used the withdrawn results.
        self._hyperparameters.next_fit = min(
            self._hyperparameters.next_fit, self.num_pulls
        )
        inducing, pulled = self.inducing_indices, self._totals(known).arms
        self.inducing_indices = inducing[torch.isin(inducing, pulled)]
        self._rebuild_posterior()

    @override
    def _leverage_scores(self, indices: Tensor) -> Tensor:
        return self._posterior.leverage_scores_of(indices)

    @override
    def _extend(self, arms: Tensor, is_retired: bool) -> None:
        before = self._table, self._hyperparameters
        features = self._hyperparameters.to_features(arms)
        self._table = self._table.appended(arms, is_retired)
        self._hyperparameters = copy(self._hyperparameters)
        self._hyperparameters.features = torch.cat(
            [self._hyperparameters.features, features]
        )
        try:
            self._posterior = self._extended_posterior(features)
        except BaseException:
            self._table, self._hyperparameters = before
            raise
        self._prediction, self._is_fresh = None, False

    def _confidence_state(
        self, hyperparameters: Hyperparameters, posterior: Moments, num_pending: int = 0
    ) -> ConfidenceState:
        pulled, counts, sums = self._totals(self.num_pulls)
        counts = counts.to(sums)
        sample_means = (
            self._sign * sums / counts - hyperparameters.offset
        ) / hyperparameters.scale
        start, log_det_start = self._restart
        if hyperparameters is not self._hyperparameters:
            # A fit is due, and will restart the frozen sums.
            start, log_det_start = self.num_pulls, posterior.log_det
        frozen = self._ledger.told_scores[start:]
        in_sum = self._ledger.first_is_told and start == 0
        return ConfidenceState(
            num_pulls=self.num_pulls,
            num_arms=self.arms.shape[0],
            noise_variance=posterior.noise_variance,
            max_prior_variance=posterior.max_prior_variance,
            effective_dimension=posterior.effective_dimension,
            log_det=posterior.log_det,
            frozen_leverage_scores=torch.from_numpy(np.array(frozen)),
            log_det_start=log_det_start,
            opening_score=self._opening_score if in_sum else 0.0,
            ratio_threshold=self.batch_rule.ratio_threshold,
            observations=ArmObservations(
                counts=counts.to(posterior.mean),
                sample_means=sample_means.to(posterior.mean),
                posterior_means=posterior.mean[pulled],
                leverage_scores=posterior.leverage_scores_of(pulled),
            ),
            num_pending=num_pending,
        )


def _check_left(rule: BatchRule, capacity: Capacity) -> None:
    left = capacity.total(rule.min_size)
    if left < rule.min_size:
        raise InputDataError(
            f"Expected at least {rule.min_size} more pulls to be allowed, the size of "
            f"the batch, but {left} are left: all other arms are unavailable, retired "
            "or have had their repeats. Ask for a smaller batch, or allow more repeats."
        )
