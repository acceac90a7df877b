"""The bandit of several outcomes: objectives, targets, limits and Pareto fronts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import reduce
from typing import Any, cast, NamedTuple, Self

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.utils.multi_objective.pareto import is_non_dominated
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import BitArms, ProductArms, PullCounts, PullLimits, TableArms
from botorch_bkb.arms.product_table import table_of
from botorch_bkb.bandits.bandit import FiniteArmBandit
from botorch_bkb.bandits.base import Array, Labels, locked, SavedBandit, Values
from botorch_bkb.bandits.gp_bandit import GPBandit, MOST_FAILURES, warn_retired
from botorch_bkb.bandits.observations import Pull
from botorch_bkb.bandits.outcome_choice import (
    MOST_PRODUCTS,
    OutcomeChoice,
    OutcomeModel,
)
from botorch_bkb.bandits.plates import checked_columns
from botorch_bkb.bandits.roles import (
    checked_roles,
    Limit,
    Objective,
    objectives_of,
    Role,
)
from botorch_bkb.checks import (
    as_tensor,
    check_count,
    check_indices,
    check_labels,
    check_number,
    check_one,
    check_pull_ids,
    check_size,
    check_truth,
)
from botorch_bkb.models.kernels.learned import matern_to_learn
from botorch_bkb.models.utils.draws import as_generator


# A candidate is recommended if it meets its limits with this probability.
CONFIDENT = 0.95
# Posterior means that differ by less than this share of a standard deviation are equal.
NO_DIFFERENCE = 0.1


class Recommendation(NamedTuple):
    """The recommended arm, and how certain it is that it meets the limits.

    Attributes:
        arm: The arm.
        is_feasible: Whether it meets all limits with a probability of 95 %. Otherwise
            no arm does, and it is the one of the largest probability.
        probability_feasible: That probability.
    """

    arm: int
    is_feasible: bool
    probability_feasible: float


class OutcomesBandit(SavedBandit):
    r"""Finds candidates that are good in several outcomes, or within limits.

    Every outcome has a :class:`~botorch_bkb.GPBandit` of its own, with kernel, noise
    and warp, and a role: it is maximized, minimized, near a target, or within a limit.
    ``ask`` chooses one batch for all. ``tell`` takes the results of all outcomes, or of
    some: the others stay pending.

    A batch is chosen in two steps. At most 1,024 candidates of the largest optimistic
    improvement are found among all candidates, as in [xu2023config]_: each outcome
    counts with the end of its interval of two standard deviations that is best for its
    role, and limits have to hold there. Among these, BoTorch's acquisition functions
    choose the batch one by one, ``qLogNoisyExpectedHypervolumeImprovement`` for several
    objectives, ``qLogNoisyExpectedImprovement`` for one, with the limits as
    constraints. Product spaces of more than a million products are searched locally.

    Measured candidates are chosen again only if no others are left, those with the
    fewest measurements first.

    Args:
        arms: An ``A x d`` tensor of features, a DataFrame with numbers and words, or
            arms that are stored elsewhere, as for :class:`~botorch_bkb.GPBandit`.
        outcomes: The role of each outcome, by its name: ``Maximize()``, ``Minimize()``,
            ``Target(value, tolerance)``, ``AtMost(limit)``, ``AtLeast(limit)``, or a
            list, such as ``[Maximize(), AtLeast(50.0)]``. One to four are objectives.
        reference_point: For several objectives, the outcomes by name that are just not
            good enough, in units of the outcome: the hypervolume of a front is measured
            from there. For outcomes without one it is the worst posterior mean of the
            measured candidates.
        covar_module: The kernel of each outcome, by its name, as for ``GPBandit``.
            Outcomes without one learn the default kernel of ``GPBandit``, or a Matern
            kernel if the arms are plain numbers.
        noise_variance: The variance of each outcome's noise, by its name, in squared
            units of the outcome; learned for outcomes without one.
        bounds: The least and the largest possible mean of each outcome, by its name.
        max_inducing: A ceiling for inducing arms, None for none.
        max_repeats: The most pulls of one arm, told and pending; None for no limit.
        generator: The seed of all random numbers is read from it; it is not advanced.
            None: a random seed.
        seed: An integer in place of ``generator``.

    Attributes:
        roles: The roles of each outcome.
        outcomes: The bandit of each outcome, for ``predict``, ``main_effects`` and
            ``model``. Ask and tell here, not there.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d`` with ``A, d >= 1``.
        InputDataError: If an outcome has no role or two objectives, if there is no
            objective or more than four, or if an option is out of range.

    Example:
        >>> bandit = OutcomesBandit(arms, {"yield": Maximize(), "impurity": AtMost(2)})
        >>> indices = bandit.ask(8)
        >>> bandit.tell(indices, {"yield": yields, "impurity": impurities})
    """

    drifts = False  # pulls have no times

    def __init__(
        self,
        arms: Array,
        outcomes: Mapping[str, Role | Sequence[Role]],
        *,
        reference_point: Mapping[str, float] | None = None,
        covar_module: Mapping[str, Kernel | Callable[[Tensor], Kernel]] | None = None,
        noise_variance: Mapping[str, float] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        max_inducing: int | None = None,
        max_repeats: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        self.roles = checked_roles(outcomes)
        kernels = self._by_name("covar_module", covar_module)
        noises = self._by_name("noise_variance", noise_variance)
        limits = self._by_name("bounds", bounds)
        self.reference_point = {
            name: check_number("reference_point", value)
            for name, value in self._by_name("reference_point", reference_point).items()
        }
        goals = [name for name, _ in objectives_of(self.roles)]
        for name in self.reference_point:
            if name not in goals or len(goals) == 1:
                raise InputDataError(
                    "Expected `reference_point` of several objectives, but got "
                    f"{name!r}, with the objectives {goals}. Make it a limit, such as "
                    "`AtLeast(50.0)`, or leave it out."
                )
        self.num_batches = 0
        self.max_repeats = max_repeats
        generator = as_generator(generator, seed)
        self.outcomes: dict[str, GPBandit] = {}
        # Kernels of plain numbers that add up effects are too certain of combinations.
        table: Any = table_of(arms)  # one copy of the rows
        is_special = isinstance(table.rows, TableArms | BitArms | ProductArms)
        default = None if is_special else matern_to_learn
        for name, roles in self.roles.items():
            leading = next((r for r in roles if isinstance(r, Objective)), roles[0])
            self.outcomes[name] = GPBandit(
                table,
                kernels.get(name, default),
                noises.get(name),
                goal="best_arm",
                max_inducing=max_inducing,
                maximize=leading.best == math.inf,
                bounds=limits.get(name),
                max_repeats=max_repeats,
                generator=generator,
            )

    @override
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._first._observations.num_arms:,} arms, "
            f"{len(self.observed_arms):,} measured, {len(self.pending):,} pending, "
            f"{self.roles})"
        )

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        with self.lock:
            vars(other).update(self.__getstate__())
            other.outcomes = {name: copy(one) for name, one in self.outcomes.items()}
        return other

    @property
    def _first(self) -> GPBandit:
        """The bandit that stands for all: they share arms and pulls."""
        return next(iter(self.outcomes.values()))

    @override
    def _begin(self) -> Callable[[], None]:
        before = vars(self).copy()
        undo = [bandit._begin() for bandit in self.outcomes.values()]

        def restore() -> None:
            vars(self).update(before)
            for one in undo:
                one()

        return restore

    @override
    def _forget_posteriors(self) -> None:
        for bandit in self.outcomes.values():
            bandit._forget_posteriors()

    def _by_name(self, option: str, given: Any) -> dict[str, Any]:
        """Return what outcomes were given by name; raise if one is unknown."""
        given = {} if given is None else given
        if not hasattr(given, "keys"):  # a frame has them, too
            raise InputDataError(
                f"Expected `{option}` by outcome, a dictionary with some of "
                f"{[*self.roles]}, but got {given!r}."
            )
        self._check_names(dict(given))
        return dict(given)

    def _check_names(self, names: Mapping[str, Any]) -> None:
        strange = [name for name in names if name not in self.roles]
        if strange:
            raise InputDataError(
                f"Expected outcomes among {[*self.roles]}, but got {strange[0]!r}. "
                "Correct the name, or give the outcome a role."
            )

    # Arms and pulls

    @property
    def arms(self) -> Tensor:
        """The ``A x d`` arms, one per row."""
        return self._first.arms

    @property
    def is_retired(self) -> Tensor:
        """An ``A``-dim boolean tensor of the retired arms."""
        return self._first.is_retired

    @property
    @locked
    def observed_arms(self) -> Tensor:
        """The arms with observations of all outcomes, ascending.

        If there are none: those with observations of the most outcomes.
        """
        found = torch.cat([bandit.observed_arms for bandit in self.outcomes.values()])
        arms, counts = found.unique(return_counts=True)
        return arms[counts == counts.max()] if len(arms) else arms

    @property
    @locked
    def pending(self) -> dict[int, int]:
        """The arms of pulls with a pending outcome by pull id, in order of asking."""
        found: dict[int, int] = {}
        for bandit in self.outcomes.values():
            found |= bandit.pending
        return dict(sorted(found.items()))

    @locked
    def tell(
        self,
        indices: Values,
        results: Any,
        pull_ids: Values | None = None,
        *,
        noise_variance: Mapping[str, Values | float] | None = None,
        group: Labels = None,
    ) -> None:
        """Record results of pending pulls, of all outcomes or of some.

        Args:
            indices: The ``q`` arms.
            results: Their ``q`` results of each outcome, by its name: a mapping or a
                DataFrame. Outcomes that are missing or NaN stay pending.
            pull_ids: Which pulls these are, see ``pending``. If None, for each outcome
                the oldest pending pulls of those arms.
            noise_variance: The noise variances of these results, by outcome, as for
                :meth:`GPBandit.tell <botorch_bkb.GPBandit.tell>`.
            group: The groups of these results, as there; each outcome has offsets of
                its own.

        Raises:
            BotorchTensorDimensionError: If the shapes do not fit.
            InputDataError: If an outcome or an arm is unknown, a result is infinite, or
                a pull is not pending. Nothing has changed then.
        """
        labels = {"group": group}
        self._record("tell", indices, results, noise_variance, labels, pull_ids)

    @locked
    def add_observations(
        self,
        indices: Values | None,
        results: Any,
        *,
        noise_variance: Mapping[str, Values | float] | None = None,
        group: Labels = None,
        campaign: Labels = None,
        control: Labels = None,
        arms: Array | None = None,
    ) -> None:
        """Record results that were never asked for; they settle no pending pull.

        Arguments and errors are those of :meth:`tell`, and arms may repeat. ``control``
        and ``arms`` take the place of ``indices``, and these and ``campaign`` are those
        of :meth:`GPBandit.add_observations <botorch_bkb.GPBandit.add_observations>`.
        """
        check_one(indices=indices, control=control, arms=arms)
        if arms is not None:
            indices = self._first._joined(arms)
            for bandit in self.outcomes.values():
                bandit._joined(arms)
                bandit._table = self._first._table
        labels = {"group": group, "campaign": campaign, "control": control}
        self._record("add_observations", indices, results, noise_variance, labels)

    @locked
    def groups(self) -> dict[str, dict[str, Any]]:
        """Return by outcome what :meth:`GPBandit.groups` returns."""
        return {name: bandit.groups() for name, bandit in self.outcomes.items()}

    def _record(
        self,
        method: str,
        indices: Values | None,
        results: Any,
        noise_variance: Mapping[str, Values | float] | None,
        labels: Mapping[str, Labels],
        pull_ids: Values | None = None,
    ) -> None:
        """Pass results, and what belongs to them, to the bandits of their outcomes."""
        if not (isinstance(results, Mapping) or hasattr(results, "columns")):
            raise InputDataError(
                f"Expected `results` of the outcomes {[*self.roles]} by name, such as "
                f"a dictionary or a DataFrame, but got {results!r}."
            )
        results, noises = dict(results), self._by_name("noise_variance", noise_variance)
        self._check_names(results)
        if not noises.keys() <= results.keys():
            raise InputDataError(
                f"Expected noise variances of the outcomes {[*results]} of these "
                f"results, but got those of {[*noises]}. Tell them with their results."
            )
        columns = {
            name: as_tensor(name, given, "numbers, NaN if open").double().flatten()
            for name, given in results.items()
        }
        size = max(map(len, columns.values()), default=0)
        is_control = labels.get("control") is not None
        arms = None if is_control else check_indices(indices, len(self.arms))
        size = size if arms is None else len(arms)
        ids = None if pull_ids is None else check_pull_ids(pull_ids, size)
        names = {name: check_labels(name, each, size) for name, each in labels.items()}
        for name, values in columns.items():
            noise = noises.get(name)
            noise = math.nan if noise is None else noise  # not known
            noise = as_tensor(name, noise, "noise variances").double().flatten()
            if len(values) != size or len(noise) not in (1, size):
                raise InputDataError(
                    f"Expected {size} results of {name!r}, one for each arm, and "
                    f"as many noise variances, or one for all, but got {len(values)} "
                    f"and {len(noise)}."
                )
            told = (~values.isnan()).nonzero().squeeze(-1)
            options: dict[str, Any] = {"noise_variance": noise.expand(size)[told]}
            for label, each in names.items():
                if labels[label] is not None:
                    options[label] = [each[place] for place in told.tolist()]
            if ids is not None:
                options["pull_ids"] = torch.tensor(ids)[told]
            if len(told):
                record = getattr(self.outcomes[name], method)
                own = None if arms is None else torch.tensor(arms)[told]
                record(own, values[told], **options)

    @locked
    def fail(self, indices: Values, pull_ids: Values | None = None) -> None:
        """Release the pending outcomes of pulls that have failed.

        The next ask leaves these arms out, if there are others. An arm that fails a
        second time without a result in between is retired, with a warning.

        Args:
            indices: The ``q`` arms.
            pull_ids: Which pulls these are. If None, the oldest pending ones.

        Raises:
            InputDataError: If a pull is not pending. Nothing has changed then.
        """
        arms, pulls = check_indices(indices, len(self.arms)), dict[int, Pull]()
        for bandit in self.outcomes.values():
            pulls |= bandit._observations.pending
        together = copy(self._first._observations)
        together.pending = dict(sorted(pulls.items()))
        ids = together._settle(arms, pull_ids)
        for bandit in self.outcomes.values():
            pairs = zip(arms, ids, strict=True)
            own = [pair for pair in pairs if pair[1] in bandit.pending]
            if own:
                FiniteArmBandit.fail(bandit, *map(list, zip(*own, strict=True)))
        failures = Counter[int]()
        for bandit in self.outcomes.values():
            failures |= bandit._observations.failures
        again = [arm for arm, count in failures.items() if count >= MOST_FAILURES]
        if again:
            self.retire_arms(again)
            for bandit in self.outcomes.values():
                for arm in again:
                    bandit._observations.failures.pop(arm, None)
            warn_retired(again)

    @locked
    def withdraw(
        self,
        indices: Values | None,
        pull_ids: Values | None = None,
        *,
        outcomes: Sequence[str] | str | None = None,
        campaign: str | None = None,
        control: str | None = None,
    ) -> None:
        """Take back told results, such as a mistyped one, which are pending again.

        Args:
            indices: The ``q`` arms.
            pull_ids: Which pulls these are. If None, the last results of those arms.
            outcomes: The outcomes whose results are taken back, or one; all if None.
            campaign: As for ``GPBandit.withdraw``.
            control: As for ``GPBandit.withdraw``.

        Raises:
            InputDataError: If an arm or an outcome is unknown, or has no such result.
                Nothing has changed then.
        """
        outcomes = [outcomes] if isinstance(outcomes, str) else outcomes
        names = [*(self.roles if outcomes is None else outcomes)]
        self._check_names(dict.fromkeys(names))
        for name in names:
            try:
                self.outcomes[name].withdraw(
                    indices, pull_ids, campaign=campaign, control=control
                )
            except InputDataError as error:
                raise InputDataError(
                    f"{error} This is said of the outcome {name!r}. To withdraw results"
                    " of others alone, name these by `outcomes`."
                ) from error

    @locked
    def add_pending(self, indices: Values) -> None:
        """Count evaluations that were started elsewhere as pending, repeats included.

        Raises:
            InputDataError: If an arm is unknown.
        """
        for bandit in self.outcomes.values():
            bandit.add_pending(indices)

    @locked
    def add_arms(self, arms: Array) -> Tensor:
        """Add arms, as :meth:`GPBandit.add_arms <botorch_bkb.GPBandit.add_arms>`."""
        for bandit in self.outcomes.values():
            indices = bandit.add_arms(arms)
            bandit._table = self._first._table
        return indices

    @locked
    def retire_arms(self, indices: Values) -> None:
        """Retire arms: they are not pulled any more. ``add_arms`` takes them back.

        Raises:
            InputDataError: If an arm is unknown. Nothing has changed then.
        """
        self._first.retire_arms(indices)
        for bandit in self.outcomes.values():
            bandit._table = self._first._table

    # The choice

    @locked
    def ask(
        self,
        n: int = 1,
        *,
        available: Values | None = None,
        same: Sequence[int | str] | None = None,
    ) -> Tensor:
        """Choose ``n`` distinct arms, fewer only if fewer are left; they are pending.

        Before the first result of an objective, the batch is spread out.

        Args:
            n: The number of pulls.
            available: An ``A``-dim boolean tensor of the arms that can be pulled now.
            same: Columns of ``arms``, or components of a product space by name or
                number, of which all arms of the batch have the same values: of the at
                most 20 values of the best new candidates, those with the largest
                expected improvement.

        Returns:
            A long tensor of arm indices in order of choice.

        Raises:
            InputDataError: If an argument does not fit, or no arm may be pulled.
                Nothing has changed then.
        """
        check_size("n", n)
        columns = None if same is None else checked_columns(self._first._table, same)
        for bandit in self.outcomes.values():
            with bandit._threads():
                bandit._update(bandit.decision_time)
        limits = self._pull_limits(available, n)
        choice = self._choice()
        if choice is None:
            bandit = next(b for b in self.outcomes.values() if not b._observations.arms)
            picks = copy(bandit).ask(n, available=available, same=same)
        else:
            size = min(n, limits.num_open)
            picks = choice.batch(size, limits, self._used(), columns)
        for bandit in self.outcomes.values():
            scores = torch.zeros_like(picks).tolist()
            bandit._observations.ask(picks.tolist(), scores, bandit.decision_time)
            bandit.num_batches += 1
        self.num_batches += 1
        return picks

    def _pull_limits(self, available: Values | None, size: int) -> PullLimits:
        """Return how many pulls each arm allows."""
        table = self._first._table
        on_offer, _ = table.offered(available)
        limits = table.pull_limits(on_offer, self.max_repeats, self._used(), size)
        failed = set[int]()
        for bandit in self.outcomes.values():
            failed |= bandit._observations.failed_lately
        others = limits.closed(self._first._indices(sorted(failed)))
        return others if others.num_open else limits

    def _used(self) -> PullCounts:
        """Return the numbers of pulls, told and pending, that all outcomes have."""
        found = [bandit._observations.used() for bandit in self.outcomes.values()]
        counts = [
            Counter(dict(zip(arms.tolist(), numbers.tolist(), strict=True)))
            for arms, numbers in found
        ]
        least = sorted(reduce(Counter[int].__and__, counts).items())
        arms, numbers = zip(*least, strict=True) if least else ((), ())
        return PullCounts(*map(self._first._indices, (arms, numbers)))

    def _choice(self) -> OutcomeChoice | None:
        """Return what chooses among candidates; None before a result of objectives."""
        models = [
            OutcomeModel.of(bandit, self.roles[name], self.reference_point.get(name))
            for name, bandit in self.outcomes.items()
            if bandit._observations.arms
        ]
        if not any(isinstance(r, Objective) for model in models for r in model.roles):
            return None
        seed = self._first._surrogate.seed + self.num_batches
        measured = self.observed_arms
        if not len(measured):  # those of earlier campaigns are to be improved upon
            arms = (bandit._observations.arms for bandit in self.outcomes.values())
            measured = self._first._indices(sorted(set[int]().union(*arms)))
        return OutcomeChoice(models, measured, seed)

    # Answers

    @locked
    def predictions(self, indices: Values | None = None) -> dict[str, Tensor]:
        """Return predictions of the outcomes, as columns for ``pandas.DataFrame``.

        Args:
            indices: The arms; all if None.

        Returns:
            ``arm``; for each outcome, such as ``yield``, ``yield_mean`` and
            ``yield_std``, and ``yield_low`` and ``yield_high``, the 95 % interval of
            its mean, as of ``GPBandit.predictions``; and ``probability_feasible``, that
            the means meet all limits, with the noise of these intervals, if there are
            limits.

        Raises:
            InputDataError: If an arm is unknown, or an outcome has no observations.
        """
        choice, rows = self._checked_choice(), self._first._rows(indices)
        columns = {"arm": rows}
        for name, bandit in self.outcomes.items():
            mean, variance = bandit.predict(rows)
            low, high = bandit._interval(rows)
            found = {"mean": mean, "std": variance.sqrt(), "low": low, "high": high}
            for kind, values in found.items():
                columns[f"{name}_{kind}"] = values
        if any(isinstance(r, Limit) for roles in self.roles.values() for r in roles):
            logs = choice.log_probability_feasible(rows)
            columns["probability_feasible"] = logs.exp()
        return columns

    @locked
    def best_arm(self, among_pulled: bool = True) -> Recommendation:
        """Return the best arm that meets the limits, or the most probable one.

        The arm of the best posterior mean among those that meet all limits with a
        probability of 95 %, the lowest index among ties. If there is none: the arm that
        meets them with the largest probability. Retired arms do not count, unless all
        are retired.

        Args:
            among_pulled: Whether only arms with observations count, if there are some.

        Raises:
            InputDataError: If the objective has no observations.
            UnsupportedError: If there are several objectives, or too many products.
        """
        choice = self._checked_choice()
        if len(choice.objectives) > 1:
            raise UnsupportedError(
                "Expected one objective, but several are optimized, of which no arm is "
                "the best. Use `pareto_front()`."
            )
        rows, feasible = self._recommendable(choice, among_pulled)
        utilities = choice.utilities(rows).squeeze(-1)
        place = int(utilities.argmax())
        probability = feasible[place].item()
        return Recommendation(int(rows[place]), probability >= CONFIDENT, probability)

    @locked
    def pareto_front(self, among_pulled: bool = True) -> Tensor:
        """Return the arms whose posterior means no other arm's dominate.

        Means that differ by less than a tenth of their standard deviation are equal.
        Among those that meet all limits with a probability of 95 %, or else among those
        of the largest probability. Retired arms do not count, unless all are retired.

        Args:
            among_pulled: Whether only arms with observations count, if there are some.

        Returns:
            A long tensor, in order of the first objective, the best first.

        Raises:
            InputDataError: If an objective has no observations.
            UnsupportedError: If there are too many products.
        """
        choice = self._checked_choice()
        rows, _ = self._recommendable(choice, among_pulled)
        utilities = choice.utilities(rows)
        order = utilities[:, 0].sort(descending=True, stable=True).indices
        rows, utilities = rows[order], utilities[order]
        stds = [model.moments(rows)[1].median() for model, _ in choice.objectives]
        steps = NO_DIFFERENCE * torch.stack(stds).clamp_min(1e-12)
        is_front = is_non_dominated((utilities / steps).round(), deduplicate=True)
        return rows[is_front]

    def _recommendable(
        self, choice: OutcomeChoice, among_pulled: bool
    ) -> tuple[Tensor, Tensor]:
        """Return arms that meet the limits most certainly, and their probabilities."""
        pulled, measured = None, self.observed_arms
        if check_truth("among_pulled", among_pulled) and len(measured):
            pulled = measured
        table = self._first._table
        competing = table.competing(pulled, measured)
        if isinstance(competing, Tensor):
            rows = competing.nonzero().squeeze(-1)
        else:  # products
            if pulled is None and len(self.arms) > MOST_PRODUCTS:
                raise UnsupportedError(
                    f"Expected at most {MOST_PRODUCTS:,} products to compare all, but "
                    f"there are {len(self.arms):,}. Leave out `among_pulled=False`."
                )
            rows = table.indices if pulled is None else pulled
            rows = rows[competing.allows(rows)]
        # Probabilities of arms far from a limit underflow to zero.
        feasible = choice.log_probability_feasible(rows)
        kept = feasible >= min(math.log(CONFIDENT), feasible.max().item())
        return rows[kept], feasible[kept].exp()

    def _checked_choice(self) -> OutcomeChoice:
        """Return the models of all outcomes; raise unless each has observations."""
        for name, bandit in self.outcomes.items():
            if not bandit._observations.arms:
                raise InputDataError(
                    f"Expected observations of each outcome, but {name!r} has none "
                    "yet. Call `tell` first."
                )
        return cast(OutcomeChoice, self._choice())

    # Files

    @override
    def _identity(self) -> dict[str, Any]:
        return {"bandit": type(self).__name__, "roles": repr(self.roles)}

    @override
    @locked
    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next ``ask`` depends on, ``O(pulls)`` numbers.

        Load it into a bandit constructed with the same arms, roles and options.
        """
        states = {name: bandit.state_dict() for name, bandit in self.outcomes.items()}
        return {**self._identity(), "num_batches": self.num_batches, "outcomes": states}

    @override
    def _load(self, state: dict[str, Any]) -> None:
        for name, bandit in self.outcomes.items():
            bandit.load_state_dict(state["outcomes"][name])
            bandit._table = self._first._table
        self.num_batches = check_count("num_batches", state["num_batches"])
