"""Ask and tell over a finite set of arms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule
from botorch_bkb.acquisition.deviations import as_schedule, DeviationWidth
from botorch_bkb.arms import ArmTable, PullLimits
from botorch_bkb.arms.table import as_arms, checksum, has_checksum
from botorch_bkb.bandits.base import Bandit, locked
from botorch_bkb.bandits.observations import Observations
from botorch_bkb.bandits.policies import check_policy, Policy, UCBPolicy
from botorch_bkb.bandits.surrogates import ArmSurrogate, PosteriorAt
from botorch_bkb.checks import (
    check_available,
    check_count,
    check_generator,
    check_indices,
    check_number,
    check_size,
    check_time,
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
from botorch_bkb.optim.batch_rules import BatchRule, Capped, check_batch_rule, FixedSize
from botorch_bkb.posteriors import Moments
from botorch_bkb.posteriors.threads import threads_for


# The default cap of a batch whose rule sets no size.
MAX_BATCH_SIZE = 10_000


class FiniteArmBandit(Bandit):
    r"""Ask and tell over ``A`` arms, with delayed, repeated and failed pulls.

    ``ask`` returns arms to pull; ``tell`` brings rewards, in any order and any part of
    what was asked; what is neither told nor failed stays pending and keeps shrinking
    the variance. One ask takes four steps: which arms may be pulled; the *surrogate*
    learns from new rewards; the *policy* chooses a batch; its pulls become pending.
    :class:`~botorch_bkb.GPBandit` and the papers' algorithms are subclasses.

    An arm is identified by its row number in ``arms``, which never changes. New arms
    get the next numbers. An arm that can no longer be pulled is *retired*: it keeps its
    number, and the posterior still uses its rewards, as in Appendix A of
    [calandriello2019bkb]_ on arm sets that change.

    Every pull asked for has an id, counted from zero; ``pending`` lists those that are
    out. A pull is settled once: ``tell`` and ``fail`` by ``pull_ids`` refuse a result
    that was told before, and a pull that was never asked. Without ids a result goes to
    the oldest pending pull of its arm, so one that is told twice would settle another
    pull of that arm: pass ids where results may come twice.

    Several threads may ask and tell: a lock of the bandit lets one in at a time. Who
    needs the ids of what it asked for holds it for both, ``with bandit.lock:``.

    Pulls have times if the objective drifts. Times are real numbers, and those of asks
    never go back. Without them, every ``ask`` is one step later than the last time
    known, starting at 1, and a reward is of the time at which its pull was asked for,
    however late it is told; one from outside of that of the last ``ask``. ``predict``,
    ``confidence_bound`` and ``best_arm`` speak of the next decision time.

    Device and dtype follow ``arms``: all tensors of a bandit are on their device, and
    so is every answer. Arguments may come from any device; a given kernel is copied to
    that of the arms. Hyperparameters are fitted on the CPU in double precision.

    Memory is that of :class:`~botorch_bkb.posteriors.ArmPosterior`: ``O(A)`` and the
    ``m x A`` features within a byte budget, on Ray's workers if the arms are there.
    Beside it are a byte or two for every arm (which are retired, offered or may still
    be pulled), ``O(P)`` for ``P`` pulled arms, and 8 bytes of each row while the bandit
    is made, to find equal ones.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm (a DataFrame of numbers
            will do), or arms that are stored elsewhere, :mod:`botorch_bkb.arms`. Of
            arms with identical rows the one of the lowest index is pulled, as long as
            it may be and the others suffice for the batch.
        surrogate: Learns from the observations, :mod:`botorch_bkb.bandits.surrogates`.
        policy: Chooses, :mod:`botorch_bkb.bandits.policies`.
        confidence: The width of confidence bounds: a schedule of
            ``botorch_bkb.acquisition.confidence``, or a number of posterior standard
            deviations. None: the default of the class.
        batch_rule: When a batch closes, a rule of ``botorch_bkb.optim.batch_rules``.
            None: the default of the class, one pull if it names none.
        maximize: Whether large rewards are good.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: Gives the seed of all random numbers, and stays in its state. None: a
            random seed.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.
    """

    default_confidence: ConfidenceSchedule = DeviationWidth(1.0)
    default_batch_rule: BatchRule = FixedSize(1)

    def __init__(
        self,
        arms: Tensor,
        surrogate: ArmSurrogate,
        policy: Policy | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        batch_rule: BatchRule | None = None,
        maximize: bool = True,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        check_generator(generator)
        check_batch_rule(batch_rule)
        check_policy(policy)
        self.policy = UCBPolicy() if policy is None else policy
        if confidence is None:
            confidence = self.default_confidence
        self.confidence = as_schedule(confidence)
        self.batch_rule = self.default_batch_rule if batch_rule is None else batch_rule
        self.maximize = maximize
        self.max_repeats = max_repeats
        self.num_batches = 0
        self._surrogate: ArmSurrogate = surrogate
        surrogate.seed = seed_of(as_generator(generator))
        self._table = ArmTable.of(as_arms(arms))
        self._num_given = self._table.num_arms  # the arms of the constructor
        sign = 1.0 if maximize else -1.0
        self._observations = Observations(self._num_given, self.arms, sign)
        self._now: float | None = None  # the last time, if pulls have times
        # The leverage score of the uniform draw that opened the run.
        self._opening_score = 0.0

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
        return self._observations.counts

    @property
    @locked
    def pending(self) -> dict[int, int]:
        """The arms of pending pulls by pull id, in order of asking."""
        return {key: pull.arm for key, pull in self._observations.pending.items()}

    @property
    def inducing_indices(self) -> Tensor:
        """The inducing arms of the last ask."""
        return self._surrogate.state.inducing_indices

    @property
    def drifts(self) -> bool:
        """Whether pulls have times."""
        return self._surrogate.drifts

    @property
    def decision_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        return self._next_time

    @property
    @override
    def _next_time(self) -> float:
        return 1.0 if self._now is None else self._now + 1.0

    @property
    def _last_time(self) -> float:
        """The time of pulls that become pending now."""
        return 0.0 if self._now is None else self._now

    @locked
    def ask(
        self,
        max_size: int | None = None,
        *,
        available: Tensor | None = None,
        arms: Tensor | None = None,
        time: float | None = None,
    ) -> Tensor:
        r"""Choose the next batch; its pulls become pending.

        The batch rule closes the batch. The very first arm is drawn uniformly;
        afterwards ties go to the lowest index. The first ask after new rewards updates
        the surrogate. With pulls pending, the batch rule starts from what they have
        used up; at least one arm is returned.

        Where arms come and go, as contexts do, pass those of this round. What is chosen
        of them joins the table (retired: a plain ``ask`` does not offer it), the rest
        is forgotten; the returned indices are rows of the table, as always. That costs
        two rebuilds of the posterior, ``O((A + k) m^2)``.

        Args:
            max_size: A cap on the size of this batch. If omitted, 10,000 for rules that
                close by themselves: on an arm that is all but known they may take more
                pulls than anybody can use.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            arms: A ``k x d`` tensor of the arms of this round, in place of all that are
                not retired. Rows that the table has are those arms.
            time: When the pulls will be made, if the objective drifts;
                ``decision_time`` if None.

        Returns:
            A long tensor of arm indices in order of choice, repeats included. Their
            pull ids are the last of ``pending``.

        Raises:
            BotorchTensorDimensionError: If ``arms`` is not ``k x d``.
            InputDataError: If an argument does not fit, no arm may be pulled, or
                ``time`` is before that of the last ask or of a reward; or if the kernel
                turns out not to be positive semi-definite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.

        Example:
            >>> indices = bandit.ask(arms=torch.cat([context.expand(k, -1), X], dim=-1))
            >>> pulled = bandit.arms[indices]
        """
        if max_size is None:
            max_size = max(MAX_BATCH_SIZE, self.batch_rule.min_size)
        rule = Capped(self.batch_rule, max_size)
        return self._ask(rule, available, arms, time)

    def _ask(
        self,
        rule: BatchRule,
        available: Tensor | None,
        arms: Tensor | None,
        time: float | None,
    ) -> Tensor:
        """Choose the next batch under a rule; its pulls become pending."""
        now = self._time_of_ask(time)
        offered, new = self._offered(available, arms)
        limits = self._pull_limits(offered, rule)
        self._surrogate.refresh(self._observations)
        with (
            threads_for(self._surrogate.feature_bytes),
            self._restored_after_errors(),
        ):
            self._surrogate.update(self._observations, now)
            surrogate = self._surrogate
            if len(new):
                surrogate = surrogate.extended(new, self._observations)
            generator = seeded_generator(surrogate.seed, ASKS, self.num_batches)
            is_first = self.num_pulls == 0 and not self._observations.pending
            indices = self._select(surrogate, rule, limits, now, generator)
            indices = self._keep_chosen(new, indices)
            moments = self._surrogate.at(self._observations, now).moments
            scores = moments.leverage_scores_of(indices.to(self.arms.device)).tolist()
            if is_first:
                self._opening_score = scores[0]
            self._observations.ask(indices.tolist(), scores, now)
            self._observations.failed_lately = frozenset()
            self.num_batches += 1
            if self.drifts:
                self._now = now
        return indices

    def _select(
        self,
        surrogate: ArmSurrogate,
        rule: BatchRule,
        limits: PullLimits,
        time: float,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the batch that the policy chooses at a time.

        Args:
            surrogate: The surrogate of all arms on offer, updated.
            rule: When the batch closes.
            limits: How many pulls each arm allows.
            time: The time of the decision.
            generator: The source of randomness.
        """
        first = self._opening_arm(limits)
        if first is not None and rule.opens_with_one_pull:
            rule = FixedSize(1)
        pending = list(self._observations.pending.values())
        posterior = surrogate.at(self._observations, time, pending)
        return self._select_from(posterior, rule, limits, first, time, generator)

    def _select_from(
        self,
        posterior: PosteriorAt,
        rule: BatchRule,
        limits: PullLimits,
        first: int | None,
        time: float,
        generator: torch.Generator,
    ) -> Tensor:
        def width() -> float:
            return self._width(self._surrogate, posterior.moments, time)

        return self.policy.select(
            posterior, rule, limits.copy(), first, width, generator
        )

    def _width(
        self,
        surrogate: ArmSurrogate,
        moments: Moments,
        time: float,
        *,
        is_asked: bool = True,
    ) -> float:
        """Return the width of confidence bounds at a time, in the kernel's units.

        A question between two asks (``is_asked=False``) counts no pull as pending, and
        does not advance a schedule that remembers.
        """
        schedule = self.confidence if is_asked else deepcopy(self.confidence)
        return schedule(
            surrogate.confidence_state(
                self._observations,
                moments,
                time,
                ratio_threshold=self.batch_rule.ratio_threshold,
                opening_score=self._opening_score,
                num_pending=len(self._observations.pending) if is_asked else 0,
            )
        )

    def _opening_arm(self, limits: PullLimits) -> int | None:
        """Return a uniformly drawn arm if this ask opens the run, else None."""
        if self.num_pulls or self._observations.pending:
            return None
        number = opening_number(self._surrogate.seed, self.num_batches)
        return limits.numbered(number % limits.num_open)

    @contextmanager
    def _restored_after_errors(self) -> Iterator[None]:
        """Undo what an error, or an interrupt, would leave half done."""
        surrogate, state = self._surrogate, self._surrogate.state
        before = vars(self).copy()
        observed = vars(self._observations).copy()
        width_state = self.confidence.state_dict()
        try:
            yield
        except BaseException:
            vars(self).update(before)
            vars(self._observations).update(observed)
            self.confidence.load_state_dict(width_state)
            surrogate.restore(state)
            raise

    def _time_of_ask(self, time: float | None) -> float:
        """Return the time of a decision."""
        if not self.drifts:
            self._check_no_time(time)
            return 0.0
        last = -math.inf if self._now is None else self._now
        return check_time(self._next_time if time is None else time, last)

    def _check_no_time(self, time: float | None) -> None:
        if time is not None:
            raise UnsupportedError(
                "Expected no `time`, since the objective of this "
                f"{type(self).__name__} does not drift. Leave it out, or pass "
                "`forgetting_rate` to a GPBandit."
            )

    def _offered(
        self, available: Tensor | None, arms: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """Return which arms can be pulled now (None for all), and new rows among them.

        New arms are counted from the end of the table.
        """
        if arms is None:
            if available is not None:
                available = check_available(available, self._table.num_arms)
            return self._table.offered(available), self.arms[:0]
        if available is not None:
            raise InputDataError(
                "Expected `available` or `arms`, but got both. Leave arms that cannot "
                "be pulled out of `arms`."
            )
        indices, new = self._match(arms)
        return self._table.offered_rows(indices, len(new)), new

    def _pull_limits(self, offered: Tensor | None, rule: BatchRule) -> PullLimits:
        """Return how many pulls each arm allows; raise if none does."""
        used = self._observations.used()
        limits = self._table.pull_limits(offered, self.max_repeats, used)
        if limits.is_used_up:
            raise InputDataError(
                "Expected an arm that may be pulled, but all are unavailable, retired "
                "or have had their repeats. Allow more repeats, or add arms."
            )
        return self._table.merged_duplicates(limits, rule.min_size)

    def _keep_chosen(self, new: Tensor, indices: Tensor) -> Tensor:
        """Add the new arms that were chosen to the table; return their indices in it.

        Args:
            new: The new arms of this round.
            indices: What was chosen, new arms counted from the end of the table.
        """
        if not len(new):
            return indices
        num_arms = self.arms.shape[0]
        chosen = indices[indices >= num_arms].unique()
        self._append(new[chosen - num_arms], is_retired=True)
        kept = num_arms + torch.searchsorted(chosen, indices)
        return torch.where(indices < num_arms, indices, kept)

    @locked
    def tell(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        pull_ids: Tensor | Sequence[int] | None = None,
        *,
        time: float | None = None,
    ) -> None:
        """Bring rewards of pending pulls, in any order and any part of what was asked.

        Args:
            indices: The ``q`` arms.
            rewards: Their ``q`` rewards (or ``q x 1``).
            pull_ids: Which pulls these are, see ``pending``. If None, the oldest
                pending pulls of those arms.
            time: When they were measured, if the objective drifts; if None, when they
                were asked for. Rewards may come in any order of their times.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, a pull is not
                pending, or ``time`` is not finite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.
        """
        num_before = self.num_pulls
        time = self._time_of_results(time)
        self._observations.tell(indices, rewards, pull_ids, time)
        self._advance_clock(num_before)

    @locked
    def add_observations(
        self,
        indices: Tensor | Sequence[int],
        rewards: Tensor | Sequence[float],
        *,
        time: float | None = None,
    ) -> None:
        """Bring results that were never asked for, such as historical data.

        They settle no pending pull.

        Args:
            indices: The ``q`` arms, repeats included.
            rewards: Their ``q`` rewards (or ``q x 1``).
            time: When they were measured, if the objective drifts; if None, at the time
                of the last ask.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or ``time`` is
                not finite. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.
        """
        num_before = self.num_pulls
        time = self._time_of_results(time)
        time = self._last_time if time is None else time
        self._observations.add(indices, rewards, self._scores_now, time)
        self._advance_clock(num_before)

    def _time_of_results(self, time: float | None) -> float | None:
        if not self.drifts:
            self._check_no_time(time)
            return None
        return None if time is None else check_time(time)

    def _advance_clock(self, num_before: int) -> None:
        """Let the clock be no earlier than the results after the first ones."""
        if self.drifts:
            last = [] if self._now is None else [self._now]
            new = self._observations.told_times[num_before:]
            self._now = max([*last, *new], default=None)

    @locked
    def fail(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Release pending pulls that will bring no reward; arguments as in ``tell``."""
        self._observations.fail(indices, pull_ids)

    @locked
    def withdraw(
        self,
        indices: Tensor | Sequence[int],
        pull_ids: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Take told results back, such as one with a mistyped reward or time.

        As if they had not been told: pulls that were asked are pending again, to be
        told anew or failed; results from outside are gone. Picks that were made since
        stay, and so do doublings of ``NormDoubling``; hyperparameters that are learned
        are fitted anew by the next ask. That costs a rebuild of the posterior. Where
        pulls have times, the clock goes back to the last time of results and pending
        pulls, so fail before it what was asked for by a wrong clock.

        Args:
            indices: The ``q`` arms.
            pull_ids: Which pulls these are. If None, the results of those arms that
                were told last.

        Raises:
            InputDataError: If an arm is unknown, or no such result was told. Nothing
                has changed then.
        """
        places = self._observations.find_told(indices, pull_ids)
        self._observations.withdraw(places)
        self._surrogate.withdraw(self._observations, places)
        self._preview = None
        if self.drifts:
            pending = [pull.time for pull in self._observations.pending.values()]
            times = [*self._observations.told_times, *pending]
            self._now = max(times, default=None)

    @locked
    def add_pending(self, indices: Tensor | Sequence[int]) -> None:
        """Count pulls that somebody else has started as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        arms = check_indices(indices, self.arms.shape[0])
        scores = self._scores_now(self._indices(arms))
        self._observations.ask(arms, scores.tolist(), self._last_time)

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

    def _append(self, arms: Tensor, is_retired: bool) -> None:
        """Let arms follow those of the table, in all that is known."""
        if len(arms):
            surrogate = self._surrogate.extended(arms, self._observations)
            self._table = self._table.appended(arms, is_retired)
            self._observations.num_arms = self._table.num_arms
            self._surrogate, self._preview = surrogate, None

    def _scores_now(self, indices: Tensor) -> Tensor:
        """Return leverage scores at the time of pulls that become pending now."""
        posterior = self._surrogate.at(self._observations, self._last_time)
        return posterior.moments.leverage_scores_of(indices.to(self.arms.device))

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

        All told pulls count, with the hyperparameters and inducing arms that the next
        ``ask`` will have; no later pick changes, and pending pulls do not count.

        Where kernel or noise are learned, variances are first those that are assumed:
        of rewards that do not differ in a unit of one, then in the unit of the rewards'
        deviation, from four pulls on by the fit.

        Args:
            indices: The arms; all if None.
        """
        rows = self._rows(indices)
        surrogate, moments = self._present()
        hyperparameters = surrogate.hyperparameters
        mean = moments.means(rows) * hyperparameters.scale + hyperparameters.offset
        variance = moments.variances(rows) * hyperparameters.scale**2
        return (mean if self.maximize else -mean), variance

    @property
    @locked
    def confidence_width(self) -> float:
        """The width ``w`` of ``confidence_bound``, in the user's units.

        A bound is ``w sqrt(variance / lambda)`` away from the mean.
        """
        surrogate, moments = self._present()
        width = self._width(surrogate, moments, self._next_time, is_asked=False)
        return width * surrogate.hyperparameters.scale

    @locked
    def confidence_bound(self, indices: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the optimistic confidence bounds of the arms, in the user's units.

        The upper bound if ``maximize``, else the lower one, of what ``predict`` says:
        the next decision's, were no pulls pending.

        Args:
            indices: The arms; all if None.
        """
        surrogate, moments = self._present()
        mean, _ = self.predict(indices)
        # In the kernel's units: in the user's, both variances may underflow.
        variance = moments.variances(self._rows(indices))
        scores = variance / surrogate.hyperparameters.noise_variance
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
        pulled = self._observations.totals().arms if among_pulled else None
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
        competing = self._table.competing()
        if self.num_pulls == 0:
            arms = competing.nonzero().squeeze(-1)
            best = draw_integers(len(arms), num_draws, generator)
            best = arms[best.to(arms.device)]
        else:
            posterior = self._predictor().at(self._observations, self._next_time)
            sampler = posterior.sampler()
            best = sampler.draw_best_arms(num_draws, generator, competing)
        return MaximizerDistribution(self.arms, best.to(self.arms.device))

    def _present(self) -> tuple[ArmSurrogate, Moments]:
        """Return what is known after all told pulls, at the next decision."""
        surrogate = self._predictor()
        return surrogate, surrogate.at(self._observations, self._next_time).moments

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        return {
            "bandit": type(self).__name__,
            "num_arms": self._num_given,
            "checksum": checksum(self.arms[: self._num_given]),
            "maximize": self.maximize,
            "added_arms": as_dense(self.arms[self._num_given :]).clone(),
            "retired": self._table.retired,
            "observations": self._observations.state_dict(),
            "now": self._now,
            "num_batches": self.num_batches,
            "confidence": self.confidence.state_dict(),
            "opening_score": self._opening_score,
            **self._surrogate.state_dict(),
        }

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
        if not has_checksum(given, state["checksum"], tolerance):
            raise InputDataError(
                "Expected the state of a bandit over these arms, but it is that of one "
                "over others, or in another order: its results would go to wrong arms. "
                "Construct the bandit with the arms of the saved one."
            )

    @override
    def _load(self, state: dict[str, Any]) -> None:
        added = state["added_arms"].to(self.arms)
        arms = as_arms(torch.cat([self.arms[: self._num_given], added]))
        is_retired = arms.new_zeros(len(arms), dtype=torch.bool)
        is_retired[self._indices(check_indices(state["retired"], len(arms)))] = True
        observations = Observations(len(arms), arms, self._observations.sign)
        observations.load_state_dict(state["observations"])
        now = None if state["now"] is None else check_time(state["now"])
        surrogate = self._surrogate.loaded(state, observations, arms)
        opening_score = check_number("opening_score", state["opening_score"], least=0.0)
        num_batches = check_count("num_batches", state["num_batches"])
        self.confidence.load_state_dict(state["confidence"])
        self._table = replace(self._table, rows=arms, is_retired=is_retired)
        self._observations, self._now = observations, now
        self._opening_score, self.num_batches = opening_score, num_batches
        self._surrogate = surrogate
