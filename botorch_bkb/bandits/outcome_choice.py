"""The choice of a batch among all candidates, given models of several outcomes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import torch
from botorch.acquisition import utils
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import (
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from botorch.utils.probability.utils import log_prob_normal_in
from botorch.utils.sampling import manual_seed
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import BitArms, ProductArms, PullCounts, PullLimits, TableArms
from botorch_bkb.arms.product_table import ProductLimits
from botorch_bkb.bandits.fitting import Units
from botorch_bkb.bandits.roles import Limit, Objective, Role, Target
from botorch_bkb.models.utils.rows import as_dense, positions_in
from botorch_bkb.optim.optimize_finite import optimize_acqf_finite
from botorch_bkb.posteriors import Posterior


# The candidates among which the batch is chosen, and those for one value of `same`.
POOL_SIZE, PLATE_POOL_SIZE, MOST_PLATES = 1024, 256, 20
# The posterior standard deviations of optimistic outcomes.
DEVIATIONS = 2.0
# The second width compares candidates that do not improve the front by the first.
WIDTHS = DEVIATIONS, 2 * DEVIATIONS
# Joint samples, halved for each objective beyond two, whose hypervolumes take longer.
NUM_SAMPLES = 64
# Medians of ninths of the normal distribution.
TARGET_STEPS = [NormalDist().inv_cdf((k + 0.5) / 9) for k in range(9)]
# Numbers of candidates times cells that are alive at a time.
CHUNK_NUMBERS = 2**21
# Larger product spaces are searched locally: from so many products, in so many steps.
MOST_PRODUCTS, NUM_STARTS, MOST_STEPS = 2**20, 64, 10


class OutcomeModel(NamedTuple):
    """An outcome: its roles, the bandit that models it, and the posterior now.

    Attributes:
        reference: What it is at the reference point of the hypervolume, in its own
            units; None for the default.
    """

    roles: Sequence[Role]
    bandit: Any
    posterior: Posterior
    units: Units
    sign: float
    reference: float | None

    @classmethod
    def of(cls, bandit: Any, roles: Sequence[Role], reference: float | None) -> Self:
        """Return the model of the present observations."""
        (surrogate, posterior), sign = bandit._present(), bandit._observations.sign
        units = surrogate.fit.units
        return cls(roles, bandit, posterior, units, sign, reference)

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of standardized outcomes."""
        _, mean, residual, projected = self.posterior.moments(rows)
        return mean, (residual + projected).clamp_min(0.0).sqrt()

    def original(self, values: Tensor) -> Tensor:
        """Return standardized values in the scale of the outcome."""
        return self.sign * self.units.original(values.double())

    def room(self, limit: Any, mean: Tensor, std: Tensor) -> Tensor:
        """Return by how many standard deviations means are within a limit."""
        tiny = torch.finfo(std.dtype).tiny
        return self.margin(limit, mean) / std.clamp_min(tiny)

    def margin(self, limit: Any, values: Tensor) -> Tensor:
        """Return by how much standardized values are within a limit."""
        side = math.copysign(1.0, limit.best) * self.sign
        # A mean at a bound of the outcome may be exactly at the limit, and meets it.
        nearest = math.nextafter(self.sign * limit.limit, -side * math.inf)
        bound = self.units.standardized_value(nearest)
        return side * (values - bound)


class Scores(NamedTuple):
    """How promising candidates are: those of the largest key are the best.

    Attributes:
        candidates: Their arms, ascending.
        violation: By how many standard deviations optimistic outcomes violate limits.
        value: The improvement by optimistic outcomes.
        more: That by still more optimistic ones.
        spread: Their summed standard deviations, which break ties.
    """

    candidates: Tensor
    violation: Tensor
    value: Tensor
    more: Tensor
    spread: Tensor

    def where(self, kept: Tensor) -> Scores:
        """Return some of them."""
        return Scores(*(part[kept] for part in self))

    def first(self, size: int) -> Tensor:
        """Return the arms of the best, best first, the lowest index among ties."""
        order = torch.arange(len(self.candidates), device=self.candidates.device)
        for key in (self.spread, self.more, self.value, -self.violation):
            order = order[key[order].sort(descending=True, stable=True).indices]
        return self.candidates[order[:size]]


class OutcomeChoice:
    """Chooses candidates by models of all outcomes.

    Args:
        models: The outcomes with observations, one objective at least.
        measured: The arms with observations, ascending.
        seed: That of the samples.
    """

    def __init__(
        self, models: Sequence[OutcomeModel], measured: Tensor, seed: int
    ) -> None:
        self.models = models
        self.measured = measured
        self.seed = seed
        self.objectives = [
            (model, role)
            for model in models
            for role in model.roles
            if isinstance(role, Objective)
        ]
        # Utilities are in standard deviations of the outcome.
        utilities = self.utilities(measured)
        feasible = self.log_probability_feasible(measured)
        reference = utilities.amin(dim=0)
        for place, (model, role) in enumerate(self.objectives):
            if model.reference is not None:
                given = role.utility(reference.new_tensor(model.reference))
                reference[place] = given / model.units.std
        self.reference = reference
        self.front = utilities[feasible >= min(math.log(0.5), feasible.max().item())]

    def utilities(self, rows: Tensor) -> Tensor:
        """Return the ``k x p`` utilities of posterior means of ``k`` arms.

        Utilities of targets are averaged over the posterior: a mean near the target
        says little if it is uncertain.
        """
        found = []
        for model, role in self.objectives:
            mean, std = model.moments(rows)
            steps = TARGET_STEPS if isinstance(role, Target) else [0.0]
            values = [role.utility(model.original(mean + k * std)) for k in steps]
            found.append(torch.stack(values).mean(dim=0) / model.units.std)
        return torch.stack(found, dim=-1)

    def log_probability_feasible(self, rows: Tensor) -> Tensor:
        """Return the log probability that the outcomes of each arm meet all limits."""
        found = torch.zeros_like(rows, dtype=self.models[0].posterior.like.dtype)
        for model in self.models:
            mean = model.posterior.means(rows)
            # That of intervals, so that they do not contradict the probability.
            std = model.bandit._error_variances(rows).sqrt()
            low, high = (
                torch.full_like(mean, -math.inf),
                torch.full_like(mean, math.inf),
            )
            for role in model.roles:
                if isinstance(role, Limit):  # both sides limit one normal number
                    room = model.room(role, mean, std)
                    if role.best < 0:
                        high = torch.minimum(high, room)
                    else:
                        low = torch.maximum(low, -room)
            is_empty = low >= high
            low = low.masked_fill(is_empty, -math.inf)
            inside = log_prob_normal_in(low, high.masked_fill(is_empty, math.inf))
            found = found + inside.masked_fill(is_empty, -math.inf)
        return found

    # Promising candidates

    def scores(self, rows: Tensor) -> Scores:
        """Return how promising arms are by optimistic outcomes."""
        cells = None
        if len(self.objectives) > 1:
            parts = FastNondominatedPartitioning(self.reference, self.front)
            cells = parts.get_hypercell_bounds()
        step = CHUNK_NUMBERS // (1 if cells is None else cells[0].numel())
        found = [self._scores(part, cells) for part in rows.split(max(1, step))]
        return Scores(*map(torch.cat, zip(*found, strict=True)))

    def _scores(self, rows: Tensor, cells: Tensor | None) -> Scores:
        utilities: tuple[list[Tensor], list[Tensor]] = [], []
        spread = violation = self.reference.new_zeros(len(rows))
        for model in self.models:
            mean, std = model.moments(rows)
            for role in model.roles:
                if isinstance(role, Limit):
                    short = -DEVIATIONS - model.room(role, mean, std)
                    violation = violation + short.clamp_min(0.0)
                    continue
                spread = spread + std
                for width, found in zip(WIDTHS, utilities, strict=True):
                    ends = [model.original(mean + k * width * std) for k in (-1, 1)]
                    low, high = ends[:: int(model.sign)]
                    value = role.optimistic_utility(low, high)
                    found.append(value / model.units.std)
        first, more = (_improvements(torch.stack(u, dim=-1), cells) for u in utilities)
        return Scores(rows, violation, first, more, spread)

    def promising(self, limits: PullLimits) -> Scores:
        """Return the scores of all arms that allow a pull.

        Of a large product space these are the products that a local search visits: from
        the largest bounds of each outcome and the measured products on, the best ones
        with every other element of one component, until nothing better is found.
        """
        arms = self.models[0].bandit.arms
        if not isinstance(limits, ProductLimits) or len(arms) <= MOST_PRODUCTS:
            rows = torch.arange(len(arms), device=self.measured.device)
            return self.scores(rows[limits.allows(rows)])
        starts = [self.measured]
        for model in self.models:
            found = model.posterior.largest_bounds(
                DEVIATIONS, POOL_SIZE, limits.allowed
            )
            starts.append(found.arms)
        visited = torch.cat(starts).unique()
        known = self.scores(visited[limits.allows(visited)])
        for _ in range(MOST_STEPS):
            best = known.first(NUM_STARTS)
            near = _neighbors(arms, best)
            near = near[~torch.isin(near, known.candidates) & limits.allows(near)]
            if not len(near):
                break
            both = zip(known, self.scores(near), strict=True)
            known = Scores(*map(torch.cat, both))
            known = known.where(known.candidates.argsort())
            if torch.equal(best, known.first(NUM_STARTS)):
                break
        return known

    # The batch

    def batch(
        self,
        size: int,
        limits: PullLimits,
        used: PullCounts,
        columns: Sequence[int] | None = None,
    ) -> Tensor:
        """Return a batch of distinct arms, new ones if there are some.

        Args:
            size: Its size, the number of arms that allow a pull at most.
            limits: Which arms allow a pull.
            used: The pulls, measured or pending, that all outcomes have, by arm,
                ascending. Of arms that come again, those with the fewest are first.
            columns: Columns of which all arms of the batch have the same values.
        """
        scores, table = self.promising(limits), self.models[0].bandit._table
        first = table.first_equal(scores.candidates)
        is_new = ~torch.isin(first, table.first_equal(used.arms))
        if columns is None:
            return self._batch(size, scores, is_new, used, POOL_SIZE)[0]
        arms = self.models[0].bandit.arms
        rows = as_dense(arms[scores.candidates])[:, columns]
        leading = scores.where(is_new) if is_new.any() else scores
        tops = as_dense(arms[leading.first(POOL_SIZE)])[:, columns]
        batches = []
        for value in list(dict.fromkeys(map(tuple, tops.tolist())))[:MOST_PLATES]:
            has = (rows == rows.new_tensor(value)).all(dim=-1)
            plate = scores.where(has), is_new[has]
            batches.append(self._batch(size, *plate, used, PLATE_POOL_SIZE))
        return max(batches, key=lambda batch: batch[1])[0]

    def _batch(
        self,
        size: int,
        scores: Scores,
        is_new: Tensor,
        used: PullCounts,
        pool_size: int,
    ) -> tuple[Tensor, float]:
        """Return a batch among the best candidates, and its expected improvement."""
        table = self.models[0].bandit._table
        new = scores.where(is_new)
        # The others violate a limit even if outcomes are optimistic: they come last.
        num_allowed = int((new.violation == 0).sum())
        pool = new.first(max(size, min(pool_size, num_allowed)))
        picks, value = pool, 0.0
        if len(pool):
            choices = as_dense(table.rows[pool]).double()
            baseline = torch.cat([self.measured, used.arms]).unique()
            with warnings.catch_warnings(), manual_seed(self.seed % 2**31):
                # There may be no feasible measurement yet, which is normal.
                warnings.filterwarnings("ignore", "When all training points are inf")
                warnings.simplefilter("ignore", NumericalWarning)
                chosen, values = optimize_acqf_finite(
                    self.acquisition(baseline), choices, min(size, len(pool))
                )
            picks, value = pool[chosen], values.exp().sum().item()
        again = scores.where(~is_new).first(len(scores.candidates))
        # Equal arms are one.
        arms, place = table.first_equal(used.arms).unique(return_inverse=True)
        counts = torch.zeros_like(arms).index_add_(0, place, used.counts.to(arms))
        place = positions_in(arms, table.first_equal(again), is_ascending=True)
        again = again[counts[place].sort(stable=True).indices]
        return torch.cat([picks, again[: size - len(picks)]]), value

    def acquisition(self, baseline: Tensor) -> Any:
        """Return BoTorch's noisy (hypervolume) improvement, given limits.

        Its model has standardized outcomes, whose joint posterior is Gaussian.

        Args:
            baseline: The arms that are to be improved upon, measured or pending.
        """
        models, transforms = [], []
        for each in self.models:
            with warnings.catch_warnings():  # single precision was the user's choice
                warnings.simplefilter("ignore", InputDataWarning)
                model = each.bandit.model().double()
            # In double from the start: the model rounded its own.
            like = model.train_targets
            transforms.append(each.units.outcome_transform(each.sign, like))
            del model.outcome_transform
            models.append(model)

        def utility(place: int, role: Objective) -> Callable[..., Tensor]:
            def of(samples: Tensor, X: Tensor | None = None) -> Tensor:
                values = samples[..., place : place + 1]
                outcome = transforms[place].untransform(values)[0].squeeze(-1)
                return role.utility(outcome) / self.models[place].units.std

            return of

        def violation(place: int, limit: Limit) -> Callable[[Tensor], Tensor]:
            own = self.models[place]
            return lambda samples: -own.margin(limit, own.sign * samples[..., place])

        # A constraint of BoTorch holds where it is not positive.
        objectives, constraints = [], []
        for place, each in enumerate(self.models):
            for role in each.roles:
                if isinstance(role, Objective):
                    objectives.append(utility(place, role))
                elif isinstance(role, Limit):
                    constraints.append(violation(place, role))
        num_samples = NUM_SAMPLES >> max(0, len(objectives) - 2)
        options: dict[str, Any] = {
            "model": ModelListGP(*models),
            "X_baseline": as_dense(self.models[0].bandit.arms[baseline]).double(),
            "sampler": SobolQMCNormalSampler(
                torch.Size([num_samples]), seed=self.seed % 2**31
            ),
            "constraints": constraints or None,
            "prune_baseline": True,
        }

        def utilities(samples: Tensor, X: Tensor | None = None) -> Tensor:
            return torch.stack([own(samples) for own in objectives], dim=-1)

        with manual_seed(self.seed % 2**31):  # the baseline is pruned by samples
            if len(objectives) == 1:
                options["objective"] = GenericMCObjective(objectives[0])
                arms = self.models[0].bandit.arms
                if not isinstance(arms, BitArms | ProductArms | TableArms):
                    return qLogNoisyExpectedImprovement(**options)
                some = torch.linspace(0, len(arms) - 1, 32, dtype=torch.double).long()
                rows = as_dense(arms[some.to(baseline)]).double()
                return _ArmImprovement(rows, **options)
            return qLogNoisyExpectedHypervolumeImprovement(
                ref_point=self.reference.double(),
                objective=GenericMCMultiOutputObjective(utilities),
                **options,
            )


class _ArmImprovement(qLogNoisyExpectedImprovement):
    """Takes the least utility of rows where BoTorch takes random points around arms.

    It does so if no arm is feasible. Between fingerprints or codes there is nothing.
    """

    def __init__(self, rows: Tensor, **options: Any) -> None:
        self.rows = rows
        super().__init__(**options)

    @override
    def _compute_best_feasible_objective(self, samples: Tensor, obj: Tensor) -> Tensor:
        least = -utils.get_infeasible_cost(self.rows, self.model, self.objective)
        return utils.compute_best_feasible_objective(
            samples, obj, self._constraints, infeasible_obj=least
        )


def _improvements(values: Tensor, cells: Tensor | None) -> Tensor:
    """Return by how much each of ``k x p`` utilities improves the hypervolume.

    ``cells`` are the lower and upper bounds of the cells that are not dominated. They
    are None for one objective, whose utilities are returned.
    """
    if cells is None:
        return values.squeeze(-1)
    least, most = cells
    sides = (values.unsqueeze(1).minimum(most) - least).clamp_min(0.0)
    return sides.prod(dim=-1).sum(dim=-1)


def _neighbors(arms: ProductArms, products: Tensor) -> Tensor:
    """Return the products that differ from some in one component, ascending."""
    positions, found = arms.components(products), []
    for column, size in enumerate(arms.sizes):
        near = positions.repeat_interleave(size, dim=0)
        near[:, column] = torch.arange(size, device=near.device).repeat(len(products))
        found.append(arms.numbers(near))
    return torch.cat(found).unique()
