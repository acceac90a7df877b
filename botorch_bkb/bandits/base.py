"""The bandit over a finite set of arms: arms and a ledger, a learner and a policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.exceptions.warnings import InputDataWarning
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
from botorch_bkb.arms import ArmTable, Capacity, PullCounts
from botorch_bkb.arms.table import as_arms, fingerprint, has_fingerprint
from botorch_bkb.bandits.bandit import Bandit, locked
from botorch_bkb.bandits.goal import check_goal, Goal, new_arm_is_due
from botorch_bkb.bandits.learners import Belief, Learner, SparseLearner
from botorch_bkb.bandits.ledger import Pull, PullLedger, Pulls
from botorch_bkb.bandits.policies import Decision, Policy, UCBPolicy
from botorch_bkb.checks import (
    check_available,
    check_count,
    check_generator,
    check_indices,
    check_max_feature_bytes,
    check_number,
    check_size,
)
from botorch_bkb.generation.maximizer import MaximizerDistribution
from botorch_bkb.models.utils.draws import (
    as_generator,
    ASKS,
    draw_integers,
    opening_number,
    seed_of,
    seeded_generator,
)
from botorch_bkb.models.utils.lazy_rows import as_dense
from botorch_bkb.optim.batch_rules import (
    BatchRule,
    Capped,
    check_batch_rule,
    FixedSize,
)
from botorch_bkb.posteriors import ArmPosterior, Moments
from botorch_bkb.posteriors.knowledge_gain import best_arm_capacity
from botorch_bkb.posteriors.threads import threads_for


# The default cap of a batch whose rule sets no size.
MAX_BATCH_SIZE = 10_000
# So many failures in a row retire an arm, where anything is learned.
MOST_FAILURES = 2
# The default width where anything is learned.
PRACTICAL_WIDTH = DeviationWidth(1.0, noise_deviations=1.0)
# Rough detail adds the same variance to every arm that is not measured, which leaves
# bounds less to tell arms apart by.
DETAIL_WIDTH = DeviationWidth(1.25, noise_deviations=1.0)


class FiniteArmBandit(Bandit):
    r"""A GP bandit over ``A`` arms with delayed, repeated and failed pulls.

    ``ask`` returns arms to pull; ``tell`` brings rewards, in any order and any part of
    what was asked; what is neither told nor failed stays pending and keeps shrinking
    the variance. What is believed is learned once, in the first ``ask`` after new
    rewards: by the *learner*; what is pulled then is chosen by the *policy*. The named
    bandits are classes that fix both.

    An arm is its row number in ``arms``, for good: rows are added at the end, and arms
    that can no longer be pulled are *retired* where they are. What was told of them
    keeps informing about the others, as Appendix A of [calandriello2019bkb]_ says of
    arm sets that change.

    Every pull asked for has an id, counted from zero; ``pending`` lists those that are
    out. A pull is settled once: ``tell`` and ``fail`` by ``pull_ids`` refuse a result
    that was told before, and a pull that was never asked. Without ids a result goes to
    the oldest pending pull of its arm, so one that is told twice would settle another
    pull of that arm: pass ids where results may come twice.

    Several threads may ask and tell: a lock of the bandit lets one in at a time. Who
    needs the ids of what it asked for holds it for both, ``with bandit.lock:``.

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

    Device and dtype follow ``arms``: all tensors of a bandit are on their device, and
    so is every answer. Arguments may come from any device; a given kernel is copied to
    that of the arms. Hyperparameters are fitted on the CPU in double precision.

    Memory is that of :class:`~botorch_bkb.posteriors.ArmPosterior`: ``O(A)`` and the
    ``m x A`` features within a byte budget, on Ray's workers if the arms are there.
    Beside it are a byte or two for every arm (which are retired, offered or may still
    be pulled), ``O(P)`` for ``P`` pulled arms, and 8 bytes of each row while the bandit
    is made, to find equal ones.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm, or arms that are stored
            elsewhere, :mod:`botorch_bkb.arms`. Of arms with identical rows the one of
            the lowest index is pulled, as long as it may be and the others suffice for
            the batch.
        covar_module: Any GPyTorch kernel, used as it is. None: a trend with rough
            detail, :func:`~botorch_bkb.bandits.composite_to_learn`, fitted as data
            arrive.
        noise_variance: lambda, the variance of the rewards' noise. None: learned.
        learner: What is believed, :mod:`botorch_bkb.bandits.learners`. None: the sparse
            posterior of BKB.
        policy: What is pulled, :mod:`botorch_bkb.bandits.policies`. None: the arm of
            the largest upper confidence bound.
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number:
            a constant width ``w`` in the papers' scaling, the score ``mean + w
            sqrt(var / lambda)``. ``DeviationWidth(c)`` counts posterior deviations
            instead. None: the default of bandit or learner.
        batch_rule: A rule of ``botorch_bkb.optim.batch_rules``. None: the default.
        goal: ``"regret"`` collects reward: what looks best is pulled again and again;
            where anything is learned and bounds choose, a batch opens with an arm that
            was never pulled if the last eighth of all pulls, five at least, had none.
            ``"best_arm"`` finds the best arm: the arms of a batch are distinct, and one
            that was pulled or is pending is pulled again only where that gains more
            knowledge of the best arm than any new one (``bandits.goal``). None:
            ``"best_arm"`` where anything is learned and nothing drifts, else
            ``"regret"``. Pulls with times have no other.
        maximize: Whether large rewards are good.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: Gives the seed of all random numbers, and stays in its state. None: a
            random seed.
        max_feature_bytes: The byte budget of the cached features.

    There are two regimes. **Kernel and noise given**: features and rewards are used as
    they come, and every default is the papers'. **Anything learned**: features are
    scaled to the unit cube (but for the columns of a given ``TanimotoKernel``) and
    rewards standardized inside; what is None is fitted by marginal likelihood at every
    update up to 128 told pulls, then when their number reaches 256, 512, ...; the
    default width is 1.25 posterior deviations and, with noise, up to one more,
    ``DeviationWidth(1.25, noise_deviations=1.0)``, and 1.0 in the place of 1.25 where
    another kernel is given or learned; the default goal is the best arm; sparse
    learners sample from 257 pulled arms on; every answer is in the user's units.
    **Fitted hyper-parameters void the regret guarantees**, and the papers' widths,
    which grow with the log determinant of ``I + K / lambda``, are ten to thirty
    deviations where the fitted noise is small.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.
    """

    learner: Learner[Any]
    default_learner: Learner[Any] = SparseLearner()
    # What a named bandit has in the place of the learner's width, and of single pulls.
    default_confidence: ConfidenceSchedule | None = None
    default_batch_rule: BatchRule = FixedSize(1)
    # Whether pulls have times.
    _has_times = False

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        learner: Learner[Any] | None = None,
        policy: Policy | None = None,
        confidence: ConfidenceSchedule | float | None = None,
        batch_rule: BatchRule | None = None,
        goal: Goal | None = None,
        maximize: bool = True,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        max_feature_bytes: int = 2**31,
    ) -> None:
        check_goal(goal)
        arms = as_arms(arms)
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        check_generator(generator)
        check_batch_rule(batch_rule)
        check_max_feature_bytes(max_feature_bytes)
        self.learner = self.default_learner if learner is None else learner
        self.policy = UCBPolicy() if policy is None else policy
        if self.learner.drifts != self._has_times:
            word = "with" if self._has_times else "without"
            raise UnsupportedError(
                f"Expected a `learner` for pulls {word} times, but got "
                f"{self.learner!r}. Only a DriftingBandit has times."
            )
        if goal == "best_arm" and self._has_times:
            raise UnsupportedError(
                "Expected `goal` to be 'regret' of a bandit whose pulls have times, "
                "since the best arm changes, but got 'best_arm'. Leave out `goal`."
            )
        practical = covar_module is None or noise_variance is None
        practical &= not self.learner.drifts  # the best arm changes
        if goal is None:
            goal = "best_arm" if practical else "regret"
        self.goal: Goal = goal
        self._may_settle = practical and self.policy.may_settle
        self._remembers_failures = practical
        belief: Belief = self.learner.begin(
            arms, covar_module, noise_variance, max_feature_bytes
        )
        belief = replace(belief, seed=seed_of(as_generator(generator)))
        if confidence is None and practical:
            has_detail = belief.hyperparameters.has_detail
            confidence = DETAIL_WIDTH if has_detail else PRACTICAL_WIDTH
        elif confidence is None:
            confidence = self.default_confidence or self.learner.default_confidence
        self.confidence = as_schedule(confidence)
        self.batch_rule = self.default_batch_rule if batch_rule is None else batch_rule
        self.maximize = maximize
        self.max_repeats = max_repeats
        self.max_feature_bytes = max_feature_bytes
        self.num_batches = 0
        self._table = ArmTable.of(arms)
        self._num_given = arms.shape[0]  # the arms of the constructor
        self._ledger = PullLedger(arms.shape[0], like=arms)
        self._now: float | None = None  # the last time, if pulls have times
        self._opening_score = 0.0
        self._believe(belief)

    def _believe(self, belief: Belief, time: float | None = None) -> None:
        """Go on from a belief, with its moments at a time, the next if None."""
        self._belief: Belief = belief
        self._moments = belief.moments(self._pulls(time))
        self._is_stale, self._preview = False, None

    def _refresh(self) -> None:
        """Compute the posterior anew, where a save or an error made it stale."""
        if self._is_stale:
            self._believe(self.learner.rebuild(self._belief, self._pulls()))

    @override
    def _pulls(self, now: float | None = None, pending: Sequence[Pull] = ()) -> Pulls:
        """Return the pulls at the time of a decision, the next one if None."""
        now = self._next_time if now is None else now
        return Pulls(self._ledger, self._sign, now, pending)

    @property
    def _next_time(self) -> float:
        return 1.0 if self._now is None else self._now + 1.0

    @property
    def _last_time(self) -> float:
        """The time of pulls that become pending now."""
        return 0.0 if self._now is None else self._now

    @property
    def arms(self) -> Tensor:
        """The ``A x d`` arms, one per row."""
        return self._table.rows

    @property
    def is_retired(self) -> Tensor:
        """An ``A``-dim boolean tensor: which arms can no longer be pulled."""
        return self._table.is_retired

    @property
    @locked
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        return self._ledger.counts

    @property
    @locked
    def pending(self) -> dict[int, int]:
        """The arms of pending pulls by pull id, in order of asking."""
        return {key: pull.arm for key, pull in self._ledger.pending.items()}

    @property
    def inducing_indices(self) -> Tensor:
        """The inducing arms of the last ask."""
        return self._belief.inducing_indices

    @locked
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
        two rebuilds of the posterior, ``O((A + k) m^2)``.

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
        return self._ask_at(self._last_time, max_size, available, size, arms)

    def _ask_at(
        self,
        time: float,
        max_size: int | None,
        available: Tensor | None,
        size: int | None,
        arms: Tensor | None,
    ) -> Tensor:
        """Choose the next batch for a time; the arguments are those of :meth:`ask`."""
        if arms is None:
            offered, new = self._offered(available), self.arms[:0]
        else:
            offered, new = self._offered_of(arms, available)
        used = self._ledger.used()
        capacity = self._table.capacity(offered, self.max_repeats, used)
        if self._remembers_failures:
            failed = self._indices(sorted(self._ledger.failed_lately))
            others = capacity.with_listed(failed, torch.zeros_like(failed))
            capacity = capacity if others.is_used_up else others
        rule, size = self._rule_of(size, max_size, capacity)
        capacity = self._table.merged_twins(capacity, max(rule.min_size, size))
        _check_left(rule, capacity)
        with threads_for(self._moments.feature_bytes), self._all_or_nothing():
            self._learn(time)
            belief, moments = self._belief, self._moments
            if len(new):
                belief = self._extended(new)
                moments = belief.moments(self._pulls(time))
            least = max(rule.min_size, size)
            left = self._open_for_goal(moments, capacity, least)
            is_first = self.num_pulls == 0 and not self._ledger.pending
            first = self._opening_arm(left) if is_first else None
            if is_first and rule.opens_with_one_pull:
                rule = FixedSize(1)
            generator = seeded_generator(belief.seed, ASKS, self.num_batches)
            choose = partial(self._choose, belief, moments, time, generator)
            if self._new_arm_is_due():
                first = self._new_arm(choose, left)
            more = indices = choose(rule, left, first)
            while (missing := least - len(indices)) > 0:
                left = left.without(more)
                if left.total(1) == 0:  # every arm came once
                    left = capacity.without(indices)
                    left = self._open_for_goal(moments, left, missing, indices)
                rest = FixedSize(missing)
                more = choose(rest, left, None, indices)
                indices = torch.cat([indices, more])
            indices = self._keep_chosen(new, indices, time)
            if is_first:
                self._opening_score = self._moments.leverage_score(int(indices[0]))
            self._add_pending(indices, time)
            self._ledger.failed_lately = frozenset()
            self.num_batches += 1
        return indices

    def _open_for_goal(
        self,
        moments: Moments,
        capacity: Capacity,
        size: int,
        chosen: Tensor | None = None,
    ) -> Capacity:
        """Return how often a batch may pull each arm, where the goal allows fewer.

        Args:
            moments: Those of all arms.
            capacity: How many pulls each arm allows.
            size: How many are wanted.
            chosen: What the batch has already; as if pending.
        """
        if self.goal == "regret":
            return capacity
        used, pending = self._ledger.used(), self._ledger.pending_arms()
        if chosen is not None:
            arms = torch.cat([used.arms, chosen])
            counts = torch.cat([used.counts, torch.ones_like(chosen)])
            used = PullCounts(arms, counts)
            pending = torch.cat([pending, chosen])
        posterior = cast(ArmPosterior, moments)  # other moments drift
        return best_arm_capacity(posterior, capacity, used, pending, size)

    def _opening_arm(self, left: Capacity) -> int:
        """Return a uniformly drawn arm."""
        number = opening_number(self._belief.seed, self.num_batches)
        return left.numbered(number % left.num_open)

    def _new_arm_is_due(self) -> bool:
        """Whether this batch opens with an arm that was never pulled."""
        if self.goal != "regret" or not self._may_settle:
            return False
        ledger = self._ledger
        num_pulls = ledger.num_pulls + len(ledger.pending)
        return new_arm_is_due(ledger.num_since_new, num_pulls)

    def _new_arm(self, choose: Callable[..., Tensor], capacity: Capacity) -> int | None:
        """Return what is chosen of the arms that nobody tried; None if none is left."""
        tried = self._indices(sorted(self._ledger.tried))
        new = capacity.with_listed(tried, torch.zeros_like(tried))
        if new.is_used_up:
            return None
        return int(choose(FixedSize(1), new, None))

    @override
    def _undo(self) -> Callable[[], None]:
        restore, width_state = super()._undo(), self.confidence.state_dict()

        def undo() -> None:
            restore()
            self._ledger.num_arms = self._table.num_arms
            self.confidence.load_state_dict(width_state)
            # Learning takes the posterior over, whatever becomes of it.
            self._is_stale, self._preview = True, None

        return undo

    def _learn(self, time: float) -> None:
        """Take the rewards told since the last ask into what is believed."""
        self._refresh()
        pulls, belief = self._pulls(time), self._belief
        if not self.learner.is_current(belief, pulls):
            belief = self.learner.learn(belief, pulls)
        self._believe(belief, time)

    def _choose(
        self,
        belief: Belief,
        moments: Moments,
        time: float,
        generator: torch.Generator,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Choose a batch by the policy, as if arms chosen before were pending."""
        pending = list(self._ledger.pending.values())
        if chosen is not None:
            scores = moments.leverage_scores_of(chosen).tolist()
            arms = zip(chosen.tolist(), scores, strict=True)
            pending += [Pull(arm, score, time) for arm, score in arms]
        pulls = self._pulls(time, pending)

        def width() -> float:
            state = self._confidence_state(belief, moments, time)
            return self.confidence(state)

        decision = Decision(
            belief=belief,
            moments=moments,
            pulls=self.learner.counting(belief, pulls),
            left=capacity.copy(),
            rule=rule,
            first=first,
            width=width,
            generator=generator,
        )
        return self.policy.choose(decision)

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

    def _keep_chosen(self, new: Tensor, indices: Tensor, time: float) -> Tensor:
        """Add the new arms that were chosen to the table; return their indices in it.

        Args:
            new: The new arms of this round.
            indices: What was chosen, new arms counted from the end of the table.
            time: The time of the decision.
        """
        if not len(new):
            return indices
        num_arms = self.arms.shape[0]
        chosen = indices[indices >= num_arms].unique()
        self._append(new[chosen - num_arms], is_retired=True, time=time)
        kept = num_arms + torch.searchsorted(chosen, indices)
        return torch.where(indices < num_arms, indices, kept)

    @locked
    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        external: bool = False,
    ) -> None:
        """Bring rewards, in any order and any part of what was asked.

        Args:
            indices: The ``q`` arms.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those arms.
            external: Whether rewards of arms without a pending pull are welcome:
                historical or outside data. Pending pulls are settled first.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or a pull is
                not pending. Nothing has changed then.
        """
        self._tell_at(None, indices, rewards, pull_ids, external)

    def _tell_at(
        self,
        time: float | None,
        indices: Any,
        rewards: Any,
        pull_ids: Any,
        external: bool,
    ) -> None:
        """Bring rewards of a time; if None, of when they were asked for."""
        scores = self._scores_now if external else None
        now = self._last_time
        self._ledger.tell(indices, rewards, pull_ids, scores, time, now)

    @locked
    def fail(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``.

        Where anything is learned, the next ask leaves these arms out, if there are
        others, and an arm that fails a second time without a reward in between is
        retired, with a warning; ``add_arms`` takes it back.
        """
        self._ledger.fail(indices, pull_ids)
        failures = self._ledger.failures
        again = [arm for arm, count in failures.items() if count >= MOST_FAILURES]
        if again and self._remembers_failures:
            self._ledger.failures = {
                arm: count for arm, count in failures.items() if arm not in again
            }
            self.retire_arms(again)
            warnings.warn(
                f"Pulls of the arms {again} have failed twice, so they are retired. "
                f"To allow them again, call `add_arms(bandit.arms[{again}])`.",
                InputDataWarning,
                stacklevel=3,
            )

    @locked
    def withdraw(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Take told results back, such as one with a mistyped reward or time.

        As if they had not been told: pulls that were asked are pending again, to be
        told anew or failed; results from outside are gone. Picks that were made since
        stay, and so do doublings of ``NormDoubling``; hyper-parameters that are learned
        are fitted anew by the next ask. That costs a rebuild of the posterior.

        Args:
            indices: The ``q`` arms.
            pull_ids: Which pulls these are. If None, the results of those arms that
                were told last.

        Raises:
            InputDataError: If an arm is unknown, or no such result was told. Nothing
                has changed then.
        """
        places = self._ledger.find_told(indices, pull_ids)
        self._ledger.withdraw(places)
        self._forget(places)

    def _forget(self, places: list[int]) -> None:
        """Update what is known after told pulls at these places were withdrawn."""
        belief, num_pulls = self._belief, self.num_pulls
        known = min([belief.num_told, *places])
        if known < belief.num_told:
            # Refit at the next ask: the fit may have used the withdrawn results.
            prior = belief.hyperparameters
            prior.next_fit = min(prior.next_fit, num_pulls)
            # At least one less than was told, so that the next ask learns.
            known = max(0, min(known, num_pulls - 1))
            self._believe(self.learner.withdrawn(belief, known, self._pulls()))
        self._preview = None

    @locked
    def add_pending(self, indices: Tensor | Sequence[int]) -> None:
        """Count pulls that somebody else has started as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        arms = check_indices(indices, self.arms.shape[0])
        scores = self._scores_now(self._indices(arms))
        self._ledger.ask(arms, scores.tolist(), self._last_time)

    @locked
    def add_arms(self, arms: Tensor) -> Tensor:
        """Let more arms be pulled from now on.

        A row that the table has already is that arm, which is no longer retired.

        Args:
            arms: A ``k x d`` tensor.

        Returns:
            The ``k`` arm indices of its rows.

        Raises:
            BotorchTensorDimensionError: If it is not ``k x d``.
            InputDataError: If a number is not finite, or the kernel is not positive
                semi-definite on all arms. Nothing has changed then.
            UnsupportedError: If a row is new and the arms are on Ray's workers
                (``arms.on_ray()``). Nothing has changed then.
        """
        indices, new = self._match(arms)
        self._append(new, is_retired=False)
        self._table = self._table.retire(indices, False)
        return indices

    @locked
    def retire_arms(self, indices: Tensor | Sequence[int]) -> None:
        """Let arms not be pulled any more; ``add_arms`` takes them back.

        Their results keep informing, and pulls that are pending can still be told.

        Raises:
            InputDataError: If an arm is unknown. Nothing has changed then.
        """
        arms = check_indices(indices, self.arms.shape[0])
        self._table = self._table.retire(self._indices(arms))

    def _match(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of ``k x d`` arms, new ones at the end, and the new."""
        arms = as_arms(arms)
        if arms.shape[-1] != self.arms.shape[-1]:
            raise BotorchTensorDimensionError(
                f"Expected `arms` of {self.arms.shape[-1]} features, like those that "
                f"are there, but got {arms.shape[-1]}."
            )
        if arms.dtype != self.arms.dtype:
            # A row that is rounded would not be found in the table.
            raise InputDataError(
                f"Expected `arms` of dtype {self.arms.dtype}, like those that are "
                f"there, but got {arms.dtype}."
            )
        return self._table.find(arms.to(self.arms.device))

    def _append(
        self, arms: Tensor, is_retired: bool, time: float | None = None
    ) -> None:
        """Let arms follow those of the table, in all that is known."""
        if len(arms):
            belief, table = self._extended(arms), self._table.appended(arms, is_retired)
            self._table, self._ledger.num_arms = table, table.num_arms
            self._believe(belief, time)

    def _extended(self, arms: Tensor) -> Belief:
        """Return a belief of more arms as well."""
        self._refresh()
        return self.learner.extended(self._belief, arms, self._pulls())

    def _offered(self, available: Tensor | None) -> Tensor | None:
        """Return which arms can be pulled now; None for all."""
        if available is not None:
            available = check_available(available, self._table.num_arms)
        return self._table.offered(available)

    def _add_pending(self, indices: Tensor, time: float) -> None:
        scores = self._moments.leverage_scores_of(indices.to(self.arms.device))
        self._ledger.ask(indices.tolist(), scores.tolist(), time)

    def _scores_now(self, indices: Tensor) -> Tensor:
        """Return leverage scores at the time of pulls that become pending now."""
        self._refresh()
        moments = self._belief.moments(self._pulls(self._last_time))
        return moments.leverage_scores_of(indices.to(self.arms.device))

    def _indices(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.arms.device)

    def _rows(self, indices: Tensor | Sequence[int] | None) -> Tensor:
        """Return arms that a user names, or all."""
        num_arms = self.arms.shape[0]
        if indices is None:
            return torch.arange(num_arms, device=self.arms.device)
        return self._indices(check_indices(indices, num_arms))

    @locked
    def predict(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances of the arms, in the user's units.

        All told pulls count, with the inducing arms of the last ``ask``, or, where
        kernel or noise are learned, those of the next; nothing is drawn, and pending
        pulls do not count.

        Where kernel or noise are learned, variances are first those that are assumed:
        of rewards that do not differ in a unit of one, then in the unit of the rewards'
        deviation, from four pulls on by the fit.

        Args:
            indices: The arms; all if None.
        """
        rows = self._rows(indices)
        belief, moments = self._present()
        hyperparameters = belief.hyperparameters
        mean = moments.means(rows) * hyperparameters.scale + hyperparameters.offset
        variance = moments.variances(rows) * hyperparameters.scale**2
        return (mean if self.maximize else -mean), variance

    @property
    @locked
    def confidence_width(self) -> float:
        """The width ``w`` of ``confidence_bound``, in the user's units.

        A bound is ``w sqrt(variance / lambda)`` away from the mean.
        """
        belief, moments = self._present()
        state = self._confidence_state(belief, moments, self._next_time, num_pending=0)
        # A copy: asking for a width must not advance a schedule that remembers.
        width = deepcopy(self.confidence)(state)
        # The schedule's width is in the kernel's units.
        return width * belief.hyperparameters.scale

    @locked
    def confidence_bound(self, indices: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the optimistic confidence bounds of the arms, in the user's units.

        The upper bound if ``maximize``, else the lower one, of what ``predict`` says:
        the next decision's, were no pulls pending.

        Args:
            indices: The arms; all if None.
        """
        belief, moments = self._present()
        mean, _ = self.predict(indices)
        # In the kernel's units: in the user's, both variances may underflow.
        variance = moments.variances(self._rows(indices))
        scores = variance / belief.hyperparameters.noise_variance
        bonus = self.confidence_width * scores.sqrt()
        return mean + bonus if self.maximize else mean - bonus

    @locked
    def best_arm(self, among_pulled: bool = True) -> int:
        """Return the arm of the best posterior mean, the lowest index among ties.

        Retired arms do not count, unless all are retired.

        Args:
            among_pulled: Whether only arms with told pulls count (all arms count before
                the first).
        """
        pulled = self._ledger.totals(self.num_pulls).arms if among_pulled else None
        return self._present()[1].best_mean(self._table.competing(pulled))

    @locked
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
            generator: Their source of randomness. None: a new one with a random seed.
        """
        generator = as_generator(generator)
        if self.num_pulls == 0:
            arms = self._table.competing().nonzero().squeeze(-1)
            best = draw_integers(len(arms), num_draws, generator)
            best = arms[best.to(arms.device)]
        else:
            belief, _ = self._present()
            sampler = belief.sampler(self._pulls(), None)
            competing = self._table.competing()
            best = sampler.draw_best_arms(num_draws, generator, competing)
        return MaximizerDistribution(self.arms, best.to(self.arms.device))

    def _present(self) -> tuple[Belief, Moments]:
        """Return what is believed after all told pulls, at the next decision."""
        self._refresh()
        belief: Belief = self._believed_now()
        return belief, belief.moments(self._pulls())

    def _confidence_state(
        self,
        belief: Belief,
        moments: Moments,
        time: float,
        num_pending: int | None = None,
    ) -> ConfidenceState:
        """Return what schedules see; all pulls without reward are pending if None."""
        hyperparameters, ledger = belief.hyperparameters, self._ledger
        pulls = self.learner.counting(belief, self._pulls(time))
        pulled, counts, sums = pulls.totals()
        counts = counts.to(sums)
        sample_means = (sums / counts - hyperparameters.offset) / hyperparameters.scale
        start, log_det_start = belief.restart
        frozen = ledger.told_scores[start:]
        in_sum = ledger.first_is_told and start == 0
        return ConfidenceState(
            num_pulls=self.num_pulls,
            num_arms=moments.num_arms,
            noise_variance=moments.noise_variance,
            max_prior_variance=moments.max_prior_variance,
            effective_dimension=moments.effective_dimension,
            log_det=moments.log_det,
            frozen_leverage_scores=torch.from_numpy(np.array(frozen)),
            log_det_start=log_det_start,
            opening_score=self._opening_score if in_sum else 0.0,
            ratio_threshold=self.batch_rule.ratio_threshold,
            decision_time=time if self._has_times else None,
            observations=ArmObservations(
                counts=counts.to(moments.like),
                sample_means=sample_means.to(moments.like),
                posterior_means=moments.means(pulled),
                leverage_scores=moments.leverage_scores_of(pulled),
            ),
            num_pending=len(ledger.pending) if num_pending is None else num_pending,
        )

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        belief = self._belief
        return {
            "bandit": type(self).__name__,
            "num_arms": self._num_given,
            "fingerprint": fingerprint(self.arms[: self._num_given]),
            "maximize": self.maximize,
            "added_arms": as_dense(self.arms[self._num_given :]).clone(),
            "retired": self._table.retired,
            "ledger": self._ledger.state_dict(),
            "seed": belief.seed,
            "num_updates": belief.num_updates,
            "num_batches": self.num_batches,
            "prior": deepcopy(belief.hyperparameters.state_dict()),
            "confidence": self.confidence.state_dict(),
            "inducing_indices": belief.inducing_indices.clone(),
            "num_processed": belief.num_told,
            "restart": belief.restart,
            "opening_score": self._opening_score,
            **self._clock_state(),
            **self.learner.state_dict(belief),
        }

    def _clock_state(self) -> dict[str, Any]:
        """Return what a state knows of time."""
        return {}

    def _load_clock(self, ledger: PullLedger, state: dict[str, Any]) -> float | None:
        """Fill in the times of told pulls; return the last time."""
        return None

    @override
    def _check_state(self, state: dict[str, Any]) -> None:
        expected = (type(self).__name__, self._num_given)
        found = (state.get("bandit"), state.get("num_arms"))
        if found != expected:
            raise InputDataError(
                f"Expected the state of a {expected[0]} over {expected[1]} arms, but "
                f"got that of a {found[0]} over {found[1]}. Construct the bandit with "
                "the arms and options of the saved one."
            )
        super()._check_state(state)
        given, saved = self.arms[: self._num_given], state["added_arms"]
        # Rounding to float32 changes a number by 6e-8 of itself.
        tolerance = 1e-12 if saved.dtype == given.dtype else 1.2e-7
        if not has_fingerprint(given, state["fingerprint"], tolerance):
            raise InputDataError(
                "Expected the state of a bandit over these arms, but it is that of one "
                "over others, or in another order: its results would go to wrong arms. "
                "Construct the bandit with the arms of the saved one."
            )

    @override
    def _load(self, state: dict[str, Any]) -> None:
        """Restore a state: everything is read before anything changes."""
        added = state["added_arms"].to(self.arms)
        arms = as_arms(torch.cat([self.arms[: self._num_given], added]))
        is_retired = arms.new_zeros(len(arms), dtype=torch.bool)
        is_retired[self._indices(check_indices(state["retired"], len(arms)))] = True
        ledger = PullLedger(len(arms), like=arms)
        ledger.load_state_dict(state["ledger"])
        now = self._load_clock(ledger, state)
        hyperparameters = deepcopy(self._belief.hyperparameters)
        hyperparameters.load_state_dict(state["prior"])
        hyperparameters.features = hyperparameters.to_features(arms)
        inducing = check_indices(state["inducing_indices"], len(arms))
        start, log_det = state["restart"]
        belief = replace(
            self._belief,
            hyperparameters=hyperparameters,
            inducing_indices=self._indices(inducing),
            seed=check_count("seed", state["seed"], 2**64 - 1),
            num_updates=check_count("num_updates", state["num_updates"]),
            num_told=check_count(
                "num_processed", state["num_processed"], ledger.num_pulls
            ),
            restart=(
                check_count("restart", start, ledger.num_pulls),
                check_number("restart", log_det, least=-1e-6),
            ),
        )
        belief = self.learner.load(belief, state)
        opening_score = check_number("opening_score", state["opening_score"], least=0.0)
        num_batches = check_count("num_batches", state["num_batches"])
        confidence = deepcopy(self.confidence)
        confidence.load_state_dict(state["confidence"])
        now_or_next = 1.0 if now is None else now + 1.0
        belief = self.learner.rebuild(belief, Pulls(ledger, self._sign, now_or_next))
        self._table = replace(self._table, rows=arms, is_retired=is_retired)
        self._ledger, self._now, self.confidence = ledger, now, confidence
        self._opening_score, self.num_batches = opening_score, num_batches
        self._believe(belief)


def _check_left(rule: BatchRule, capacity: Capacity) -> None:
    left = capacity.total(rule.min_size)
    if left < rule.min_size:
        advice = "Allow more repeats, or add arms."
        if left:
            advice = "Ask for a smaller batch, allow more repeats, or add arms."
        raise InputDataError(
            f"Expected at least {rule.min_size} more pulls to be allowed, the size of "
            f"the batch, but {left} are left: all other arms are unavailable, retired "
            f"or have had their repeats. {advice}"
        )
