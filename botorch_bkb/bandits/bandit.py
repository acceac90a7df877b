"""Ask and tell over a finite set of arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch import settings
from gpytorch.means import ZeroMean
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.schedules import (
    as_schedule,
    ConfidenceSchedule,
    DeviationWidth,
)
from botorch_bkb.arms import ArmTable, PullLimits
from botorch_bkb.arms.product_table import table_of
from botorch_bkb.bandits.base import Array, Bandit, locked, Values
from botorch_bkb.bandits.diagnostics import Diagnostics
from botorch_bkb.bandits.groups import GroupedModel
from botorch_bkb.bandits.observations import NO_ARM, Observations, Pull
from botorch_bkb.bandits.policies import as_policy, Decision, Policy, ThompsonPolicy
from botorch_bkb.bandits.surrogates import ArmSurrogate
from botorch_bkb.checks import (
    check_count,
    check_indices,
    check_size,
    check_truth,
)
from botorch_bkb.generation.maximizer import MaximizerDistribution
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import (
    as_generator,
    ASKS,
    opening_number,
    seed_of,
    seeded_generator,
)
from botorch_bkb.models.utils.rows import as_dense
from botorch_bkb.optim.batch_rules import (
    BatchRule,
    check_batch_rule,
    fill_batch,
    FixedSize,
    MAX_BATCH_SIZE,
)
from botorch_bkb.posteriors import Posterior, StaticPosterior
from botorch_bkb.posteriors.shards import threads_for


class FiniteArmBandit(Bandit):
    r"""Ask and tell over ``A`` arms, with late, repeated and failed pulls.

    ``ask`` returns arms to pull, and ``tell`` brings their rewards, in any order and in
    any parts. A pull without reward stays pending, and lowers the variance, until it is
    told or fails. One ask takes four steps: which arms may be pulled; the *surrogate*
    learns from new rewards; the *policy* chooses a batch; its pulls become pending.
    :class:`~botorch_bkb.GPBandit` and the papers' algorithms are subclasses.

    An arm is its row number in ``arms``, which never changes; new arms get the next
    numbers. A *retired* arm is not pulled any more, but the posterior still uses its
    rewards, as in Appendix A of [calandriello2019bkb]_. A pull has an id, counted from
    zero. ``tell`` and ``fail`` settle the pulls of ``pull_ids``, or else the oldest
    pending pulls of the arms: pass ids if a result may come twice. Hold the lock to see
    the ids of one's own ask, ``with bandit.lock:``.

    If the objective drifts, pulls have times, which never decrease from ask to ask. The
    default is one step after the last time known, starting at 1; a reward is of the
    time at which its pull was asked for. Predictions are for the next decision time.

    Device and dtype follow ``arms``. Memory is that of
    :class:`~botorch_bkb.posteriors.ArmPosterior`, four bytes an arm in an ask, and 8
    bytes of each row during construction.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm (a DataFrame of numbers
            will do), or arms that are stored elsewhere, :mod:`botorch_bkb.arms`. Of
            arms with identical rows the one of the lowest index is pulled, unless the
            batch needs the others.
        surrogate: Learns from the observations, :mod:`botorch_bkb.bandits.surrogates`.
        policy: Chooses, :mod:`botorch_bkb.bandits.policies`.
        confidence: The width of confidence bounds: a schedule of
            ``botorch_bkb.acquisition.confidence``, or a number of posterior standard
            deviations. None: the default of the class.
        batch_rule: When a batch closes, a rule of ``botorch_bkb.optim.batch_rules``.
            None: the default of the class.
        maximize: Whether large rewards are good.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: Gives the seed of all random numbers, and stays in its state. None: a
            random seed.
        seed: An integer in place of ``generator``.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.
    """

    _surrogate: ArmSurrogate
    default_confidence: ConfidenceSchedule = DeviationWidth(1.0)
    default_batch_rule: BatchRule = FixedSize(1)

    def __init__(
        self,
        arms: Array,
        surrogate: ArmSurrogate,
        policy: Policy | None = None,
        *,
        confidence: ConfidenceSchedule | float | None = None,
        batch_rule: BatchRule | None = None,
        maximize: bool = True,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        if max_repeats is not None:
            check_size("max_repeats", max_repeats)
        check_batch_rule(batch_rule)
        self.policy = as_policy(policy)
        if confidence is None:
            confidence = self.default_confidence
        self.confidence = as_schedule(confidence)
        self.batch_rule = self.default_batch_rule if batch_rule is None else batch_rule
        self.maximize = check_truth("maximize", maximize)
        self.max_repeats = max_repeats
        self.num_batches = 0
        self._surrogate = surrogate
        surrogate.seed = seed_of(as_generator(generator, seed))
        self._table = table_of(arms)
        sign = 1.0 if maximize else -1.0
        self._observations = Observations(len(self.arms), self.arms, sign)
        if isinstance(self.policy, ThompsonPolicy):  # not all draws exist everywhere
            posterior = surrogate.at(self._observations, self.decision_time)
            posterior.sampler(self.policy.covariance)

    @property
    def arms(self) -> Tensor:
        """The ``A x d`` arms, one per row."""
        return self._table.rows

    @property
    def is_retired(self) -> Tensor:
        """An ``A``-dim boolean tensor of the retired arms."""
        return self._table.is_retired

    @property
    @locked
    def counts(self) -> Tensor:
        """The ``A`` numbers of observations."""
        totals = self._observations.totals()
        counts = torch.zeros_like(self._table.indices)
        counts[totals.arms] = totals.counts
        return counts

    @property
    @locked
    def observed_arms(self) -> Tensor:
        """The arms with observations, ascending."""
        return self._observations.totals().arms

    @property
    @locked
    def pending(self) -> dict[int, int]:
        """The arms of pending pulls by pull id, in order of asking."""
        return {key: pull.arm for key, pull in self._observations.pending.items()}

    @property
    def inducing_indices(self) -> Tensor:
        """The inducing arms of the last ask."""
        return self._surrogate.state.inducing_indices

    @locked
    def ask(
        self,
        max_size: int | None = None,
        *,
        available: Values | None = None,
        arms: Array | None = None,
        time: float | None = None,
    ) -> Tensor:
        r"""Choose the next batch, closed by the batch rule; its pulls become pending.

        At least one arm is returned. The very first one (of each block, if the
        posterior restarts) is drawn uniformly; afterwards ties go to the lowest index.

        If the candidates differ from round to round (contexts), pass those of this
        round as ``arms``. The chosen ones join the table as retired arms. That costs
        two rebuilds of the posterior, ``O((A + k) m^2)``.

        Args:
            max_size: A cap on the size of this batch; 10,000 if None.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            arms: A ``k x d`` tensor of the arms of this round, in place of all arms of
                the table. Rows that the table has are those arms.
            time: When the pulls will be made, if the objective drifts;
                ``decision_time`` if None.

        Returns:
            A long tensor of arm indices in order of choice, repeats included. Their
            pull ids are the last of ``pending``.

        Raises:
            BotorchTensorDimensionError: If ``arms`` is not ``k x d``.
            InputDataError: If an argument does not fit, no arm may be pulled, the
                kernel is not positive semi-definite, or ``time`` is before that of the
                last ask or of a reward. Nothing has changed then.
            UnsupportedError: If there is a ``time``, but the objective does not drift.
        """
        fixed = self.batch_rule.size
        if max_size is None:
            max_size = MAX_BATCH_SIZE if fixed is None else fixed
        check_size("max_size", max_size)
        size = max_size if fixed is None else min(max_size, fixed)
        return self._ask(self._select, size, available, arms, time)

    def _ask(
        self,
        select: Callable[[Decision, int, PullLimits, torch.Generator], Tensor],
        size: int,
        available: Values | None,
        arms: Array | None,
        time: float | None,
    ) -> Tensor:
        """Choose a batch by :meth:`_select` or another method; it becomes pending."""
        observations = self._observations
        time = self._checked_time(time, earliest=observations.earliest)
        now = self.decision_time if time is None else time
        on_offer, new = self._table.offered(available, arms)
        limits = self._pull_limits(on_offer, size)
        with self._threads():
            surrogate = self._update(now)
            if len(new):
                surrogate = surrogate.extended(new, observations)
            generator = seeded_generator(surrogate.seed, ASKS, self.num_batches)
            posterior = self._decide(surrogate, now)
            indices = select(posterior, size, limits, generator)
            scores = posterior.moments.leverage_scores_of(indices)
            if len(new):
                indices = self._keep_chosen(new, indices)
        observations.ask(indices.tolist(), scores.tolist(), now)
        self.num_batches += 1
        return indices

    def _threads(self) -> AbstractContextManager[None]:
        """Return the threads for an ask, see :func:`threads_for`."""
        self._surrogate.posterior(self._observations)
        num_pulls = self._observations.num_pulls
        return threads_for(self._surrogate.feature_bytes(num_pulls))

    def _update(self, time: float) -> ArmSurrogate:
        """Learn from all observations; return the surrogate."""
        # After an error, the earlier surrogate computes its posterior again.
        self._surrogate = self._surrogate.taken_over()
        self._surrogate.update(self._observations, time)
        return self._surrogate

    def _decide(
        self, surrogate: ArmSurrogate, time: float, chosen: Sequence[int] = ()
    ) -> Decision:
        """Return the posterior given pending pulls, and those of chosen arms.

        The chosen arms have no leverage scores, which only batch rules need.
        """
        pulls = [*self._observations.pending.values()]
        for arm in chosen:
            pulls.append(Pull(arm, 0.0, time))
        return surrogate.at(self._observations, time, pulls)

    def _pull_limits(self, available: Tensor | None, size: int) -> PullLimits:
        """Return how many pulls each arm allows, in a batch of at most ``size``."""
        min_size = 1 if self.batch_rule.size is None else size
        used = self._observations.used()
        return self._table.pull_limits(available, self.max_repeats, used, min_size)

    def _select(
        self,
        posterior: Decision,
        size: int,
        limits: PullLimits,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the batch that the policy chooses, given all observations."""
        first = self._opening_arm(posterior, limits, generator)
        if first is not None and self.batch_rule.opens_with_one_pull:
            size = 1
        return self._select_from(posterior, size, limits, first, generator)

    def _select_from(
        self,
        posterior: Decision,
        size: int,
        limits: PullLimits,
        first: int | None,
        generator: torch.Generator,
    ) -> Tensor:
        """Return a batch of at most ``size``, whose first arm may be chosen already."""
        moments, rule, limits = posterior.moments, self.batch_rule, limits.copy()
        width = partial(self._batch_width, posterior, limits)
        choices = self.policy.choices(posterior, rule, limits, width, generator)
        batch = rule.open(moments, moments.like.new_tensor(posterior.given_scores))
        return self._indices(fill_batch(choices, batch, size, first))

    def _batch_width(self, posterior: Decision, limits: PullLimits) -> float:
        """Return the confidence width of a batch of the arms that are open."""
        num_pending = len(self._observations.pending)
        return self._width(posterior.surrogate, posterior.moments, num_pending)

    def _width(
        self, surrogate: ArmSurrogate, moments: Posterior, num_pending: int = 0
    ) -> float:
        """Return the confidence width, in the units of the surrogate."""
        threshold = self.batch_rule.ratio_threshold
        state = surrogate.confidence_state(
            self._observations, moments, threshold, num_pending
        )
        return self.confidence(state)

    def _opening_arm(
        self, posterior: Decision, limits: PullLimits, generator: torch.Generator
    ) -> int | None:
        """Return a uniformly drawn arm if no pull counts yet, else None."""
        if len(posterior.moments.pulled_indices) or posterior.given_scores:
            return None
        if self._observations.num_used:  # in an earlier block
            return limits.draw(generator)
        number = opening_number(self._surrogate.seed, self.num_batches)
        return limits.numbered(number % limits.num_open)

    def _keep_chosen(self, new: Tensor, indices: Tensor) -> Tensor:
        """Add the new arms that were chosen to the table; return the indices in it."""
        num_arms = self.arms.shape[0]
        chosen = indices[indices >= num_arms].unique()
        self._append(new[chosen - num_arms], is_retired=True)
        kept = num_arms + torch.searchsorted(chosen, indices)
        return torch.where(indices < num_arms, indices, kept)

    @locked
    def withdraw(
        self,
        indices: Values | None,
        pull_ids: Values | None = None,
        *,
        campaign: str | None = None,
        control: str | None = None,
    ) -> None:
        """Take back told results, such as a mistyped reward.

        Pulls that were asked for are pending again; results that were added are gone.
        The next ask fits learned hyperparameters again, and rebuilds the posterior.

        Args:
            indices: The ``q`` arms; None with ``control``.
            pull_ids: Which pulls these are. If None, the last results of those arms.
            campaign: The earlier campaign of these results; None for this campaign.
            control: The control whose last result is taken back; None for arms.

        Raises:
            InputDataError: If an arm is unknown, or no such result was told. Nothing
                has changed then.
        """
        places = self._observations.withdraw(indices, pull_ids, campaign, control)
        self._surrogate = copy(self._surrogate)
        self._surrogate.withdraw(self._observations, places)

    @locked
    def add_pending(self, indices: Values) -> None:
        """Count evaluations that were started elsewhere as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        arms = check_indices(indices, len(self.arms))
        self._observations.ask(arms, self._scores(self._indices(arms)).tolist())

    @locked
    def add_arms(self, arms: Array) -> Tensor:
        """Add arms, which can be pulled from now on.

        Args:
            arms: A ``k x d`` tensor. A row of the table is that arm, which is no longer
                retired.

        Returns:
            The ``k`` arm indices of its rows.

        Raises:
            BotorchTensorDimensionError: If it is not ``k x d``.
            InputDataError: If a number is not finite, or the kernel is not positive
                semi-definite on all arms. Nothing has changed then.
            UnsupportedError: If a row is new and the arms are on Ray's workers
                (``arms.on_ray()``). Nothing has changed then.
        """
        indices, new = self._table.find(arms)
        self._append(new, is_retired=False)
        self._table = self._table.retire(indices, False)
        return indices

    @locked
    def retire_arms(self, indices: Values) -> None:
        """Retire arms: they are not pulled any more. ``add_arms`` takes them back.

        Their results still train the model, and their pending pulls can be told.

        Raises:
            InputDataError: If an arm is unknown. Nothing has changed then.
        """
        arms = check_indices(indices, self.arms.shape[0])
        self._table = self._table.retire(self._indices(arms))

    def _append(self, new: Tensor, is_retired: bool) -> None:
        """Append arms to the table."""
        if len(new):
            # A product space has no arms beside its own.
            self._table = cast(ArmTable, self._table).appended(new, is_retired)
            self._observations.num_arms = len(self.arms)
            self._surrogate = self._surrogate.extended(new, self._observations)

    @override
    def _joined(self, arms: Array) -> Tensor:
        indices, new = self._table.find(arms)
        self._append(new, is_retired=True)
        return indices

    @override
    def _scores(self, indices: Tensor) -> Tensor:
        observations = self._observations
        moments = self._surrogate.at(observations, observations.last_time).moments
        return moments.leverage_scores_of(indices.to(self.arms.device))

    def _indices(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.arms.device)

    def _rows(self, indices: Values | None) -> Tensor:
        """Return the arms of a user's argument, or all."""
        if indices is None:
            return self._table.indices
        return self._indices(check_indices(indices, len(self.arms)))

    @locked
    def predict(self, indices: Values | None = None) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances of the arms, in the original scale.

        Given all observations, with the hyperparameters and inducing arms that the next
        ``ask`` will have. Pending pulls do not count, and no later pick changes.

        Args:
            indices: The arms; all if None.
        """
        rows = self._rows(indices)
        _, moments = self._present()
        return self._unscaled(moments.means(rows), moments.variances(rows))

    @locked
    def model(self) -> SingleTaskDTCGP:
        """Return the posterior as a BoTorch model of original features and rewards.

        For acquisition functions, plots, and ``model.posterior(X)``, whose mean and
        variance are those of :meth:`predict` without ``bounds``. Pending pulls do not
        count; acquisition functions take them as ``X_pending =
        bandit.arms[[*bandit.pending.values()]]``. If rewards are warped, the posterior
        is not Gaussian. Features of a product space are positions
        (``arms.components``), those of fingerprints are dense. GPyTorch's ``variance``
        is never below 1e-10 (1e-6 in single precision), so tell rewards in a unit in
        which their variances are larger.

        The model is independent of the bandit. Its hyperparameters are fixed;
        ``model.requires_grad_(True)`` lets ``fit_gpytorch_mll`` fit them.

        Raises:
            InputDataError: If there are no observations.
            UnsupportedError: If the objective drifts.
        """
        self._check_observed()
        observations, (surrogate, moments) = self._observations, self._present()
        fit, told = surrogate.fit, observations.history()
        told = told.rows(told.indices != NO_ARM)
        X = as_dense(self.arms[told.indices])
        # In double: rewards may differ by little.
        rewards = observations.sign * told.rewards.unsqueeze(-1)
        outcome = fit.units.outcome_transform(observations.sign, rewards)
        targets = outcome(rewards)[0].to(X)
        options: dict[str, Any] = {}
        grouped = moments.grouped if isinstance(moments, StaticPosterior) else None
        if told.noise.any() and grouped is None:
            noises = fit.noise_variance / told.warped(fit.units).weights(fit)
            options["train_Yvar"] = noises.to(X).unsqueeze(-1)
        else:
            options["likelihood"] = fit.likelihood_of(X)
        with settings.min_fixed_noise(0.0, 0.0, 0.0):  # known noise is not rounded up
            model = (SingleTaskDTCGP if grouped is None else GroupedModel)(
                X,
                targets,
                inducing_points=as_dense(self.arms[moments.inducing_indices]),
                covar_module=deepcopy(fit.covar_module),
                mean_module=ZeroMean(),
                input_transform=surrogate.fitter.input_transform(),
                outcome_transform=None,
                **options,
            )
        model.outcome_transform = outcome.to(X)  # the constructor would train it
        if isinstance(model, GroupedModel) and grouped is not None:
            model.grouped = replace(grouped, sums=observations.sign * grouped.sums)
            model.pulled = as_dense(self.arms[moments.pulled_indices])
        return model.eval()

    @locked
    def diagnostics(self) -> Diagnostics:
        """Return what the papers plot of a run, given all results.

        Call it after ``ask`` and before ``tell``: then it describes the posterior that
        has chosen the batch. After ``tell``, the posterior of the next ask is computed
        first. Pending pulls do not count.
        """
        observations, time = self._observations, self.decision_time
        if self._surrogate.is_current(observations, observations.last_time):
            time = observations.last_time  # that of the ask
        surrogate: ArmSurrogate = self._surrogate.preview(observations, time)
        moments = surrogate.at(observations, time).moments
        history, observed = observations.history(), observations.totals().arms
        ids = {*history.ids.tolist(), *observations.pending}
        own = history.rows(history.is_own_arm)
        return Diagnostics(
            effective_dimension=moments.effective_dimension,
            log_det=moments.log_det,
            inducing_indices=moments.inducing_indices,
            observed_arms=observed,
            leverage_scores=moments.leverage_scores_of(observed),
            confidence_width=self._width(surrogate, moments) * surrogate.fit.units.std,
            batch_size=len(ids.intersection(observations.last_ask)),
            arms=own.indices,
            rewards=observations.sign * own.rewards,
            times=own.times,
        )

    def _check_observed(self) -> None:
        """Raise unless there are observations of an objective that does not drift."""
        if self.drifts:
            raise UnsupportedError(
                "Expected an objective that does not change, but this one drifts. Use "
                "`predict`, or fit a TimeVaryingGP to the arms and times of results."
            )
        if not self._observations.arms:
            raise InputDataError(
                "Expected observations of arms, but there are none yet. Call `tell` "
                "first."
            )

    def _unscaled(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of the present model in the original scale."""
        units = self._predictor().fit.units
        mean, variance = units.original_moments(mean, variance)
        return (mean if self.maximize else -mean), variance

    @property
    @locked
    def confidence_width(self) -> float:
        """The width ``w`` of ``confidence_bound``, in the original scale.

        A bound is ``w sqrt(variance / lambda)`` from the mean, of warped rewards.
        """
        return self._width(*self._present()) * self._predictor().fit.units.std

    @locked
    def confidence_bound(self, indices: Values | None = None) -> Tensor:
        """Return the optimistic confidence bounds of the arms, in the original scale.

        The upper bound if ``maximize``, else the lower one.

        Args:
            indices: The arms; all if None.
        """
        surrogate, moments = self._present()
        rows, fit = self._rows(indices), surrogate.fit
        # In the kernel's units: in the original scale, both variances may underflow.
        scores = moments.variances(rows) / fit.noise_variance
        width = self.confidence_width / fit.units.std
        bounds = fit.units.original(moments.means(rows) + width * scores.sqrt())
        return bounds if self.maximize else -bounds

    @locked
    def best_arm(self, among_pulled: bool = True) -> int:
        """Return the arm of the best posterior mean, the lowest index among ties.

        Of arms with equal features, a measured one is returned if there is one.
        Retired arms do not count, unless all are retired.

        Args:
            among_pulled: Whether only arms with observations count, if there are some.
        """
        among_pulled = check_truth("among_pulled", among_pulled)
        measured = self._observations.totals().arms
        competing = self._table.competing(measured if among_pulled else None, measured)
        return self._present()[1].best_mean(competing)

    @locked
    def maximizer_distribution(
        self, num_draws: int = 256, generator: torch.Generator | None = None
    ) -> MaximizerDistribution:
        """Return how likely each arm is the best, from draws of the posterior.

        Given all observations; uniform before the first. Retired arms do not compete,
        unless all are retired. The draws have the covariance of the bandit's own draws,
        ``"full"`` if it draws none, and the scale 1. See
        :mod:`botorch_bkb.posteriors.arm_sampler`.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness. None: a new one with a random seed.
        """
        check_size("num_draws", num_draws)
        generator = as_generator(generator)
        competing = self._table.competing(also=self._observations.totals().arms)
        if self.num_pulls == 0:
            best = self._table.draw_competing(num_draws, generator)
        else:
            posterior = self._predictor().at(self._observations, self.decision_time)
            sampler = posterior.sampler(self.policy.covariance)
            best = sampler.draw_best_arms(num_draws, generator, competing)
        return MaximizerDistribution(self.arms, best.to(self.arms.device))

    def _present(self) -> tuple[ArmSurrogate, Posterior]:
        """Return the surrogate and moments of the next decision."""
        surrogate: ArmSurrogate = self._predictor()
        return surrogate, surrogate.at(self._observations, self.decision_time).moments

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "table": self._table.state_dict(),
            "confidence": self.confidence.state_dict(),
        }

    @override
    def _load(self, state: dict[str, Any]) -> None:
        self._table = self._table.loaded(state["table"])
        sign = self._observations.sign
        self._observations = Observations(len(self.arms), self.arms, sign)
        self._observations.load_state_dict(state["observations"])
        self._surrogate = self._surrogate.loaded(state, self._observations, self.arms)
        self.num_batches = check_count("num_batches", state["num_batches"])
        self.confidence = copy(self.confidence)  # which other bandits may have
        self.confidence.load_state_dict(state["confidence"])
