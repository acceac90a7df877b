"""The bandit that learns kernel and noise, with defaults chosen by benchmark."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, Literal

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import AdditiveKernel, Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.schedules import ConfidenceSchedule, DeviationWidth
from botorch_bkb.arms import ProductLimits, PullLimits
from botorch_bkb.arms.product_table import table_of
from botorch_bkb.arms.table import ArmTable
from botorch_bkb.bandits.bandit import FiniteArmBandit
from botorch_bkb.bandits.base import Array, locked, Values
from botorch_bkb.bandits.drifting import (
    DriftFitter,
    exact_filter_bytes,
    FilterSurrogate,
)
from botorch_bkb.bandits.effects import main_effects, MainEffects
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.bandits.groups import describe_groups
from botorch_bkb.bandits.inducing import EXACT_UNTIL, LeverageScoreSampling
from botorch_bkb.bandits.plates import (
    checked_columns,
    plate_masks,
    plate_values,
)
from botorch_bkb.bandits.policies import as_policy, Decision, Policy
from botorch_bkb.bandits.progress import (
    BETTER,
    calibrated_best,
    DEVIATIONS_OF_95_PERCENT,
    HELD,
    LEVEL,
    NUM_DRAWS,
    Progress,
)
from botorch_bkb.bandits.surrogates import (
    ArmSurrogate,
    PosteriorSurrogate,
)
from botorch_bkb.checks import check_choice, check_number, check_range, check_size
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.draws import ASKS, PROGRESS, seeded_generator
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors import ArmPosterior, ProductPosterior, StaticPosterior
from botorch_bkb.posteriors.batch_rise import expected_rises
from botorch_bkb.posteriors.upper_bounds import (
    best_arm_limits,
    hopeful_scale,
    MAX_POOL_SIZE,
)


Goal = Literal["best_arm", "regret"]
GOALS = {
    "regret": "collect reward, repeats welcome",
    "best_arm": "find the best, distinct arms in a batch",
}

PRACTICAL_WIDTH = DeviationWidth(1.0, noise_deviations=1.0)
# Rough detail adds the same variance to every arm without measurements.
DETAIL_WIDTH = DeviationWidth(1.25, noise_deviations=1.0)
# The most pulls in a row without a new arm: a share of all pulls, five at least.
NEW_ARM_SHARE = 1 / 8
NEW_ARM_PATIENCE = 5
# An arm is retired when its pulls have failed this often without a reward in between.
MOST_FAILURES = 2
# A new arm is hopeful if it may be among the best tenth of the measured ones.
GOOD_SHARE = 1 / 10
# The first batch of more candidates is chosen among a sample of them.
MOST_COMPARED = 2**15


class GPBandit(FiniteArmBandit):
    r"""Finds the best of many candidates from few, noisy and late measurements.

    A Gaussian process models the rewards of all arms. A kernel or noise that is None is
    fitted by maximum a posteriori: at every update up to 128 observations, then when
    their number reaches 256, 512, ... The posterior is exact up to 256 measured arms
    (or ``max_inducing``), then sparse, on inducing arms drawn by ridge leverage scores.
    **Fitted hyperparameters void the regret guarantees** of the papers; their
    algorithms, such as :class:`~botorch_bkb.BBKB`, take kernel and noise as given.

    Batches may overlap: pending pulls, and the earlier arms of a batch, count as if
    their rewards were their posterior means.

    Args:
        arms: An ``A x d`` tensor of features, one row per arm (a DataFrame of numbers
            will do; columns of later ones are matched by name), or arms that are stored
            elsewhere, :mod:`botorch_bkb.arms`.
        covar_module: None: the default kernel, learned: a trend with rough detail
            (:func:`~botorch_bkb.bandits.composite_to_learn` or
            :func:`~botorch_bkb.bandits.anova_to_learn`), a Tanimoto kernel of
            ``BitArms``, times or plus one of numbers beside them, or the kernels of
            :class:`~botorch_bkb.arms.TableArms` and
            :class:`~botorch_bkb.arms.ProductArms`. A function from ``A x d`` features
            to a kernel: that kernel, learned, on features normalized to the unit cube
            and standardized rewards. A kernel: used as it is, on the features as given,
            its outputscale in squared units of the reward.
        noise_variance: The variance of the rewards' noise, in squared units of the
            reward. None: learned.
        goal: ``"best_arm"``: the arms of a batch are distinct, and an arm is measured
            again only if its knowledge gradient exceeds that of every new arm, or if
            fewer new arms are left (in a product space: if no new product is left).
            ``"regret"``: repeats are allowed; under upper confidence bounds a batch
            opens with a new arm if the last eighth of all pulls, five at least, had
            none. None: ``"best_arm"``, or ``"regret"`` if the objective drifts, which
            is the only goal there.
        policy: How arms are chosen. None: :class:`~botorch_bkb.bandits.UCBPolicy`, the
            largest upper confidence bounds.
        confidence: The width of these bounds: a schedule of
            ``botorch_bkb.acquisition.confidence``, or a number of posterior standard
            deviations. None: 1.25 if the kernel is a sum, as the default kernel with
            its rough detail is, else 1.0, as for ``BitArms``; plus up to one more for
            noise. With ``goal="best_arm"``, an arm that is among the best tenth of the
            measured ones with a probability below 2.3 % gives way to the arm of the
            largest such probability:
            :func:`~botorch_bkb.posteriors.upper_bounds.hopeful_scale`.
        max_inducing: A ceiling for inducing arms, None for none; see
            :class:`~botorch_bkb.bandits.LeverageScoreSampling`.
        forgetting_rate: 0: the objective does not change. A number in ``(0, 1)``:
            ``eps`` per unit of time, as in :class:`~botorch_bkb.TVGPUCB`. ``"learn"``:
            learned.
        maximize: Whether large rewards are good.
        bounds: The least and the largest possible mean reward, such as ``(0, 100)``;
            means, intervals and the expected rise stay inside, except those of
            :meth:`~botorch_bkb.bandits.FiniteArmBandit.model`. None: not known.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: The seed of all random numbers is read from it; it is not advanced.
            None: a random seed.
        seed: An integer in place of ``generator``.
        max_feature_bytes: The byte budget of the cached features.

    Results of known noise, ``tell(..., noise_variance=)``, have their own weights. If
    the noise of all is known, and none is given here, the median of these variances is
    used for future pulls. Results of a plate, day or device, ``tell(..., group=)``,
    share an offset, and those of an earlier campaign inform this one: :meth:`groups`.

    The prior mean is the average of the rewards, or fitted for Thompson sampling. If
    the kernel is learned, poor rewards are put on a logarithmic scale where the
    likelihood prefers it, :class:`~botorch_bkb.bandits.LogWarp`. Every answer is in the
    original scale. After ``fail`` the next ask leaves these arms out,
    if there are others. An arm that fails a second time without a reward in between is
    retired, with a warning; ``add_arms`` takes it back.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If ``arms`` holds NaN or infinity, or an option is out of range.

    Example:
        >>> bandit = GPBandit(arms)
        >>> indices = bandit.ask(96)
        >>> bandit.tell(indices, measure(indices))
    """

    def __init__(
        self,
        arms: Array,
        covar_module: Kernel | Callable[[Tensor], Kernel] | None = None,
        noise_variance: float | None = None,
        *,
        goal: Goal | None = None,
        policy: Policy | None = None,
        confidence: ConfidenceSchedule | float | None = None,
        max_inducing: int | None = None,
        forgetting_rate: float | Literal["learn"] = 0.0,
        maximize: bool = True,
        bounds: tuple[float, float] | None = None,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        max_feature_bytes: int = 2**31,
    ) -> None:
        rate: float | None = None
        if not (isinstance(forgetting_rate, str) and forgetting_rate == "learn"):
            rate = forgetting_rate
            check_number("forgetting_rate", rate, 0.0, 1.0)
        drifts = rate is None or rate > 0
        self.goal = _checked_goal(goal, drifts)
        self.takes_noise = not drifts
        table: Any = table_of(arms)
        policy = as_policy(policy)
        self.bounds = low, high = check_range("bounds", bounds)
        signed = (low, high) if maximize else (-high, -low)
        learned = table.rows, covar_module, noise_variance
        surrogate: ArmSurrogate
        if drifts:
            surrogate = FilterSurrogate(
                DriftFitter(*learned, rate, "average", signed),
                max_feature_bytes,
                sparse=exact_filter_bytes(len(table.rows)) > max_feature_bytes,
            )
        else:
            surrogate = PosteriorSurrogate(
                Fitter(*learned, policy.prior_mean, signed),
                max_feature_bytes,
                LeverageScoreSampling(max_inducing=max_inducing),
                exact_until=min(EXACT_UNTIL, max_inducing or EXACT_UNTIL),
            )
        self._widens = confidence is None and self.goal == "best_arm"
        if confidence is None:
            kernel = surrogate.fit.covar_module
            if isinstance(kernel, ComponentKernel):
                kernel = kernel.covar_module
            is_sum = isinstance(kernel, AdditiveKernel)
            confidence = DETAIL_WIDTH if is_sum else PRACTICAL_WIDTH
        super().__init__(
            table,
            surrogate,
            policy,
            confidence=confidence,
            maximize=maximize,
            max_repeats=max_repeats,
            generator=generator,
            seed=seed,
        )

    @override
    @locked
    def predict(
        self, indices: Values | None = None, *, rows: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Return posterior means and variances, as :meth:`FiniteArmBandit.predict`.

        Args:
            indices: The arms; all if None.
            rows: In their place, a ``k x d`` tensor or frame of the features of
                candidates that need not be in the table; ``O(k m (d + m))`` for ``m``
                inducing arms.

        Raises:
            BotorchTensorDimensionError: If ``rows`` is not ``k x d``.
            InputDataError: If both are given, or a row does not fit the table.
            UnsupportedError: If ``rows`` are given, but the arms are a product space,
                or the objective drifts.
        """
        if rows is None:
            return super().predict(indices)
        if indices is not None:
            raise InputDataError("Expected `indices` or `rows`, but got both.")
        surrogate, moments = self._present()
        table = self._table
        if not (isinstance(table, ArmTable) and isinstance(moments, ArmPosterior)):
            raise UnsupportedError(
                "Expected `indices` instead of `rows`, since every product of a space "
                "is an arm, and filters of a drifting objective hold only arms."
            )
        rows = torch.cat([self.arms[:0], table.checked(rows)])
        points = surrogate.fitter.to_features(rows)
        return self._unscaled(*moments.moments_of_points(points))

    @locked
    def predictions(
        self,
        indices: Values | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
        num_draws: int = 256,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Return predictions of the mean rewards, as columns for ``pandas.DataFrame``.

        Args:
            indices: The arms; all if None.
            top: The number of arms that are returned, those of the best means, the best
                first, without retired arms and copies of others, of which one that was
                measured is kept. None: all.
            threshold: A reward. None: no column for it.
            num_draws: The number of draws of ``maximizer_distribution``.
            generator: Their source of randomness. None: a new one with a random seed.

        Returns:
            ``arm``; ``mean`` and ``std``, as :meth:`predict`; ``low`` and ``high``, the
            95 % interval of the mean reward, 2.78 standard deviations to either side,
            since errors have heavier tails than a normal distribution. That of an arm
            with results of learned noise is wider: few results say little of it, and it
            has its median there, and its mode in ``std``. ``probability_best``, that
            the arm is the best of all, from joint draws, times a factor so that the
            most likely one is calibrated, as in :meth:`progress`, and of equal arms
            that of a measured one; and ``probability_above``, that the mean reward
            exceeds the threshold (``probability_below`` if not ``maximize``), with the
            noise of the interval.

        Raises:
            InputDataError: If an arm is unknown, or a number is out of range.
        """
        surrogate, moments = self._present()
        if top is None:
            rows = self._rows(indices)
        else:
            check_size("top", top)
            among = None if indices is None else self._rows(indices)
            # Measured products that are forbidden stay out.
            is_table = isinstance(self._table, ArmTable)
            measured = self._observations.totals().arms if is_table else None
            competing = self._table.competing(among, measured)
            found = moments.largest_bounds(0.0, top, competing)
            rows = found.arms[found.values > -torch.inf]
            # If all of `indices` are retired, others compete.
            rows = rows if among is None else rows[torch.isin(rows, among)]
        mean, variance = self.predict(rows)
        low, high = self._interval(rows)
        best = self.maximizer_distribution(num_draws, generator).indices
        arms, counts = best.unique(return_counts=True)
        place = positions_in(arms, rows, is_ascending=True)
        share = torch.where(place < 0, 0.0, counts[place].to(mean) / num_draws)
        most = counts.max().item() / num_draws
        if self._table.has_others(arms[counts.argmax()].view(1)):
            share *= calibrated_best(most) / most
        columns = {"arm": rows, "mean": mean, "std": variance.sqrt()}
        columns |= {"low": low, "high": high, "probability_best": share}
        if threshold is not None:
            center, std = moments.means(rows), self._error_variances(rows).sqrt()
            goal = self._observations.sign * check_number("threshold", threshold)
            gap = center - surrogate.fit.units.standardized_value(goal)
            z = gap / std.clamp_min(torch.finfo(std.dtype).tiny)
            name = "probability_above" if self.maximize else "probability_below"
            columns[name] = torch.special.ndtr(z)
        return columns

    def _interval(
        self, rows: Tensor, noise: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of 95 % intervals of rewards with noise variances.

        If poor rewards are warped, these are noise variances of good ones.
        """
        surrogate, moments = self._present()
        units, sign = surrogate.fit.units, self._observations.sign
        center = moments.means(rows)
        std = (self._error_variances(rows) + noise / units.std**2).sqrt()
        ends = (center + sign * k * DEVIATIONS_OF_95_PERCENT * std for k in (-1, 1))
        low, high = (sign * units.original(end) for end in ends)
        return low, high

    def _error_variances(self, rows: Tensor) -> Tensor:
        r"""Return variances of the errors of posterior means, for intervals.

        Few results without repeats say little of their noise :math:`\lambda`, and the
        fit has its mode, which is small. If the noise is its median,
        :math:`r \lambda`, the mean of the ``n`` results of learned noise that an arm
        has in this campaign adds :math:`(r - 1) \lambda w^2 / n` to the posterior
        variance :math:`\sigma^2`. Its weight in the posterior mean is
        :math:`w = \min(1, n \sigma^2 / \lambda)`.
        """
        surrogate, moments = self._present()
        variances, noise = moments.variances(rows), moments.noise_variance
        results, first_equal = self._observations.history(), self._table.first_equal
        is_learned = results.is_own_arm & (results.noise == 0)
        if surrogate.drifts or not is_learned.any():
            return variances
        with self._threads():
            ratio = surrogate.fitter.median_noise(surrogate.fit, results)
        pulled = first_equal(results.indices[is_learned])
        arms, counts = pulled.unique(return_counts=True)
        place = positions_in(arms, first_equal(rows), is_ascending=True)
        own = torch.where(place < 0, 0, counts[place]).to(variances)
        weight = (own * variances / noise).clamp_max(1)
        # The last factor is `w lambda / n`, also without results.
        return variances + (ratio - 1) * weight * variances.minimum(noise / own)

    @locked
    def progress(self, n: int = 1, *, indices: Values | None = None) -> Progress:
        """Return what one more batch may bring, for the decision to stop.

        No later pick changes, and the answer is the same at every call.

        Args:
            n: The size of the batch, whose arms are those that ``ask(n)`` would choose.
            indices: The arms of the batch instead, such as those of the last ask. If
                they are pending, they are not counted twice.

        Raises:
            InputDataError: If there are no observations, an arm is unknown, or no arm
                may be pulled.
            UnsupportedError: If the objective drifts.
        """
        check_size("n", n)
        if indices is not None and not len(self._rows(indices)):
            raise InputDataError(
                "Expected `indices` of one arm at least, but got none."
            )
        self._check_observed()
        surrogate = self._predictor()
        posterior = self._decide(surrogate, self.decision_time)
        if indices is None:
            limits = self._pull_limits(self._table.offered()[0], n)
            generator = seeded_generator(surrogate.seed, ASKS, self.num_batches)
            batch = self._select(posterior, n, limits, generator)
            given = posterior.given
        else:
            batch = self._rows(indices)
            others = Counter(self._observations.pending_arms().tolist()) - Counter(
                batch.tolist()
            )
            given = posterior.moments.given(others)
        generator = seeded_generator(surrogate.seed, PROGRESS, self.num_pulls)
        table, measured = self._table, self.observed_arms
        allowed = table.competing(also=measured)
        (rise,) = expected_rises(given, [batch], allowed, generator)
        best = self.maximizer_distribution(NUM_DRAWS, generator)
        own = table.first_equal(measured)
        is_new = ~torch.isin(table.first_equal(best.indices), own)
        unmeasured, held = 0.0, best.credible_set(LEVEL)
        case = len(measured), len(self.arms)
        if table.has_others(measured):
            unmeasured = BETTER(is_new.double().mean().item(), *case)
        share = (best.indices == held[0]).double().mean().item()
        most_likely = calibrated_best(share)
        most_likely = most_likely if table.has_others(held[:1]) else 1.0
        among = HELD(share, *case) if table.has_others(held) else 1.0
        among = max(among, most_likely)
        # If arms without measurement hold the best one, one of them is better.
        new = ~torch.isin(table.first_equal(held), own)
        for probability, some in (among, new), (most_likely, new[:1]):
            if some.all():
                unmeasured = max(unmeasured, probability)
            elif not some.any():
                unmeasured = min(unmeasured, 1 - probability)
        units, rows = surrogate.fit.units, torch.cat([batch, measured])
        best_mean = units.original(given.means(rows)).max().item()
        return Progress(
            min(rise * units.std, units.bounds[1] - best_mean),
            unmeasured,
            held,
            among,
            most_likely,
        )

    @locked
    def groups(self) -> dict[str, Any]:
        r"""Return the offsets of groups, and what earlier campaigns tell, as columns.

        Result ``r`` of arm ``x`` in group ``g`` is ``f(x) + b_g + noise``, with normal
        offsets ``b_g`` that average to zero over the results. Predictions are of ``f``,
        the average group. An earlier campaign also has an offset as a whole and noise
        of its own, and differs from this one by ``d(x) ~ GP(0, rho^2 k)``. All are
        learned. Offsets act once two groups of a campaign have two results each. Then
        results without a group are one more group.

        Returns:
            For ``pandas.DataFrame``, a row for each group, and one for each earlier
            campaign as a whole: ``campaign``, "" for this one; ``group``, "" for the
            whole, and in this one for results without a group; ``offset`` from the
            average group, in units of the reward, and its standard deviation ``std``,
            both NaN where offsets do not act, the campaign tells nothing, or a
            campaign as a whole has no present result beside it;
            ``num_results``; and ``worth``, of an earlier campaign the number of this
            campaign's results that would tell as much of the arms, else NaN.
        """
        observations, (surrogate, posterior) = self._observations, self._present()
        labels, names = observations.history().labels, observations.labels
        units = surrogate.fit.units
        found = describe_groups(cast(StaticPosterior, posterior), labels, names, units)
        found["offset"] = [observations.sign * offset for offset in found["offset"]]
        return found

    @locked
    def main_effects(self) -> MainEffects:
        """Return which values of each column are good, and which columns matter.

        The main effect of a value averages the posterior mean over 256 candidates (all
        if there are fewer), whose value in this column is replaced by it. So effects
        extrapolate to combinations that are not in the table; an average over the rows
        with this value would confound columns. Values are words and elements of a
        product space, the 256 most frequent if there are more, and numbers: 20
        quantiles if there are more than 20.

        ``first_order`` is the share of the variance of the posterior mean over 16,384
        candidates that the main effects have, and ``total`` that of all changes by this
        column alone; their difference is due to interactions. If poor rewards are
        warped, shares and averages are those of warped rewards, on which the posterior
        is Gaussian, and effects are returned in the original scale as by ``predict``.

        Retired arms count, pending pulls do not, and no later pick changes. Costs are
        ``O((m + 256)^2)`` for each value and ``m`` inducing arms, in memory once.

        Raises:
            InputDataError: If there are no observations.
            UnsupportedError: If the objective drifts, or the arms are fingerprints.
        """
        with warnings.catch_warnings():  # single precision was the user's choice
            warnings.simplefilter("ignore", InputDataWarning)
            model, (surrogate, posterior) = self.model(), self._present()
        units, sign = surrogate.fit.units, self._observations.sign
        return main_effects(model, posterior, self._table, units, sign)

    @property
    def kernel_to_learn(self) -> Callable[[Tensor], Kernel] | None:
        """The function of features whose kernel the last ask learned; None if given."""
        surrogate = self._surrogate
        return surrogate.fit.new_kernel if surrogate.fitter.learns_kernel else None

    @property
    def evaluated_share(self) -> float:
        """The share of products whose variance was computed since the last update.

        1 at most, and 1 for arms that are no product space.
        """
        posterior = self._surrogate.posterior(self._observations)
        if isinstance(posterior, ProductPosterior):
            return min(1.0, posterior.num_evaluated / posterior.num_arms)
        return 1.0

    @property
    def forgetting_rate(self) -> float:
        """``eps`` per unit of time, given or learned so far; 0 if nothing drifts."""
        return self._surrogate.fit.forgetting_rate

    @override
    @locked
    def ask(  # type: ignore[override] # `n` is exact, `max_size` a cap
        self,
        n: int = 1,
        *,
        available: Values | None = None,
        arms: Array | None = None,
        time: float | None = None,
        same: Sequence[int | str] | None = None,
    ) -> Tensor:
        """Choose ``n`` pulls, fewer only if fewer are left; they become pending.

        With ``goal="best_arm"`` they are of distinct arms.

        The very first arm is drawn uniformly; afterwards ties go to the lowest index.
        The other arguments, and what is raised, are those of
        :meth:`FiniteArmBandit.ask`.

        With ``same``, a batch is chosen for every value of these columns, as with an
        ``available`` mask. The batch is returned that is expected to raise the best
        posterior mean most. Only values of 1,024 arms are compared, at most 20 of them:
        of arms that the goal lets be pulled next, those with the largest ``mean + 2
        std``. Ties go to the first. A value with fewer than ``n`` arms gives fewer, or
        repeats with ``goal="regret"``.

        Args:
            n: The number of pulls.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            arms: A ``k x d`` tensor of the arms of this round.
            time: When the pulls will be made, if the objective drifts.
            same: Columns of ``arms``, or components of a product space by name or
                number, of which all arms of the batch have the same values.
        """
        check_size("n", n)
        if same is None:
            return self._ask(self._select, n, available, arms, time)
        if self.drifts or arms is not None:
            raise UnsupportedError(
                "Expected `same` without `arms`, and for an objective that does not "
                "drift. Pass `available` for the arms of this round."
            )
        columns = checked_columns(self._table, same)
        select = partial(self._best_plate, columns)
        return self._ask(select, n, available, None, time)

    @override
    @locked
    def fail(self, indices: Values, pull_ids: Values | None = None) -> None:
        """Release pending pulls that have failed; retire arms that fail twice."""
        super().fail(indices, pull_ids)
        failures = self._observations.failures
        again = [arm for arm, count in failures.items() if count >= MOST_FAILURES]
        if again:
            for arm in again:
                del failures[arm]
            self._table = self._table.retire(self._indices(again))
            warn_retired(again)

    @override
    def _pull_limits(self, available: Tensor | None, size: int) -> PullLimits:
        limits = super()._pull_limits(available, size)
        failed = self._indices(sorted(self._observations.failed_lately))
        others = limits.closed(failed)
        return others if others.num_open else limits

    @override
    def _select(
        self,
        posterior: Decision,
        size: int,
        limits: PullLimits,
        generator: torch.Generator,
    ) -> Tensor:
        is_first = not self.num_pulls and self.kernel_to_learn is not None
        if is_first and limits.num_open > MOST_COMPARED:
            # Nothing tells arms apart yet: every pick would lower the bounds of most
            # arms, and need another pool.
            limits = limits.thinned(max(MAX_POOL_SIZE, 4 * size))
        are_distinct = self.goal == "best_arm"
        size = min(size, limits.num_open if are_distinct else limits.total(size))
        left = self._open_for_goal(posterior, limits, size, self._indices([]))
        first = self._opening_arm(posterior, left, generator)
        if self._new_arm_is_due():
            tried = self._indices(sorted(self._observations.tried))
            new = left.closed(tried)
            if new.num_open:
                first = int(self._select_from(posterior, 1, new, None, generator))
        chosen = self._select_from(posterior, size, left, first, generator)
        while (missing := size - len(chosen)) > 0:
            # All new products are in the batch; measured ones fill it.
            posterior = self._decide(
                posterior.surrogate, posterior.time, chosen.tolist()
            )
            left = limits.closed(chosen)
            left = self._open_for_goal(posterior, left, missing, chosen)
            more = self._select_from(posterior, missing, left, None, generator)
            chosen = torch.cat([chosen, more])
        return chosen

    @override
    def _batch_width(self, posterior: Decision, limits: PullLimits) -> float:
        """Return the width, larger if the arm of the largest bound is hopeless.

        A narrow bound stays near the best peak after all good arms there are measured.
        """
        width = super()._batch_width(posterior, limits)
        moments = posterior.moments
        if not self._widens or not len(moments.pulled_indices):
            return width
        means = moments.means(moments.pulled_indices)
        target = means.topk(max(1, int(GOOD_SHARE * len(means)))).values[-1].item()
        unit = math.sqrt(moments.noise_variance)
        scale = hopeful_scale(posterior.given, width / unit, target, limits.allowed)
        return max(width, scale * unit)

    def _best_plate(
        self,
        columns: Sequence[int],
        posterior: Decision,
        size: int,
        limits: PullLimits,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the batch of the largest expected rise, of one value of columns."""
        size = min(size, limits.total(size))
        # Values with new arms, if there are some.
        left = self._open_for_goal(posterior, limits, 1, self._indices([]))
        values = plate_values(posterior.moments, self.arms, left.allowed, columns)
        if isinstance(limits, ProductLimits):
            plates: list[PullLimits] = [
                limits.fixing(dict(zip(columns, map(int, value), strict=True)))
                for value in values.tolist()
            ]
        else:
            masks = plate_masks(self.arms, columns, values)
            masks = masks if limits.available is None else masks & limits.available
            plates = [self._pull_limits(mask, size) for mask in masks]
        batches = [
            self._select(posterior, size, plate, generator.clone_state())
            for plate in plates
        ]
        numbers = seeded_generator(posterior.surrogate.seed, PROGRESS, self.num_pulls)
        allowed = self._table.competing(also=self._observations.totals().arms)
        rises = expected_rises(posterior.given, batches, allowed, numbers)
        return batches[rises.index(max(rises))]

    def _open_for_goal(
        self, posterior: Decision, limits: PullLimits, size: int, chosen: Tensor
    ) -> PullLimits:
        """Return the pull limits given the goal; ``chosen`` arms count as pending."""
        if self.goal == "regret":
            return limits
        used = self._observations.used()
        if isinstance(limits, ProductLimits):
            return limits.once(torch.cat([used.arms, chosen]))
        waiting = self._observations.pending_arms()
        moments = cast(ArmPosterior, posterior.moments)
        equal = cast(ArmTable, self._table).duplicates
        return best_arm_limits(moments, limits, used, waiting, size, equal)

    def _new_arm_is_due(self) -> bool:
        """Whether this batch opens with an arm that was never pulled.

        A fit to few arms may be wrong, and bounds of a constant width may then choose
        these arms for ever. A new arm in every eighth of all pulls makes their number
        grow with the logarithm of all pulls, as slowly as the pulls of inferior arms
        under the rules of [lai1985]_.
        """
        if self.goal != "regret" or self.drifts or not self.policy.may_settle:
            return False
        observations = self._observations
        most = max(NEW_ARM_PATIENCE, int(NEW_ARM_SHARE * observations.num_used))
        return observations.num_since_new >= most


def warn_retired(arms: list[int]) -> None:
    """Warn that arms are retired, since their pulls have failed."""
    warnings.warn(
        f"Pulls of the arms {arms} have failed twice, so they are retired. "
        f"To allow them again, call `add_arms(bandit.arms[{arms}])`.",
        InputDataWarning,
        stacklevel=4,
    )


def _checked_goal(goal: Goal | None, drifts: bool) -> Goal:
    """Return the goal; raise if there is no such goal."""
    if goal is None:
        return "regret" if drifts else "best_arm"
    check_choice("goal", goal, GOALS)
    if drifts and goal == "best_arm":
        raise UnsupportedError(
            "Expected `goal` to be 'regret' where the objective drifts, since the best "
            "arm changes, but got 'best_arm'. Leave out `goal`."
        )
    return goal
