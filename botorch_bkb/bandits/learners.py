"""Learners: what is believed of the arms after the pulls that were told.

A learner is its options and no more; what it knows is a :class:`Belief`, which the
bandit keeps. ``ExactLearner`` and ``SparseLearner`` believe in one function that stays
as it is, ``BlockLearner`` lets either start afresh with every block of time, and
:class:`~botorch_bkb.bandits.forgetting.ForgettingLearner` forgets smoothly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
    PracticalBKBWidth,
)
from botorch_bkb.acquisition.time_varying import RTVWidth
from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.hyperparameters import Hyperparameters, MIN_PULLS_TO_FIT
from botorch_bkb.bandits.inducing import (
    in_stable_order,
    is_bulk,
    keeps_all,
    MIN_INDUCING,
    sample_in_blocks,
    warn_of_ceiling,
    within_ceiling,
)
from botorch_bkb.bandits.ledger import Pulls
from botorch_bkb.checks import as_number, check_count
from botorch_bkb.models.utils.draws import (
    draw_uniforms,
    keyed_uniforms,
    seeded_generator,
    UPDATES,
)
from botorch_bkb.models.utils.leverage_scores import (
    check_inclusion,
    check_max_inducing,
    check_oversampling,
    check_resampling,
    Inclusion,
    inclusion_probabilities,
    Resampling,
    sample_inducing_indices,
)
from botorch_bkb.posteriors import ArmPosterior, ArmSampler, Moments, ResidualPart
from botorch_bkb.posteriors.kernel_rows import positions_in
from botorch_bkb.posteriors.upper_bounds import Choices, UpperBounds


class Sampler(Protocol):
    """Draws from what is believed, for Thompson sampling."""

    def draw_best_arms(
        self,
        num_draws: int,
        generator: torch.Generator,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the best arm, of those allowed, in each of several draws."""


@dataclass(frozen=True, kw_only=True)
class Belief(ABC):
    """What a learner believes after the first told pulls.

    Learning returns another belief, and takes the posterior inside along: it is large,
    and changed in place. The belief of before can only be rebuilt after that.

    Attributes:
        hyperparameters: Kernel, noise and units.
        inducing_indices: The inducing arms.
        max_feature_bytes: The byte budget of what is cached for all arms.
        grows: Whether an arm that is chosen joins the inducing ones, whatever the batch
            rule says.
        num_told: How many told pulls are known, the first ones.
        seed: What random numbers are a function of, see
            :mod:`~botorch_bkb.models.utils.draws`.
        num_updates: How often it has learned.
        restart: How many of them the last fit of hyper-parameters knew, and the log
            determinant then: frozen sums go on from there.
        block: Which block of time this is of.
    """

    hyperparameters: Hyperparameters
    inducing_indices: Tensor
    max_feature_bytes: int
    grows: bool
    num_told: int = 0
    seed: int = 0
    num_updates: int = 0
    restart: tuple[int, float] = (0, 0.0)
    block: int = 0

    @abstractmethod
    def moments(self, pulls: Pulls) -> Moments:
        """Return means and variances at the time of the decision."""

    @abstractmethod
    def pending_scores(self, pulls: Pulls) -> list[float]:
        """Return the leverage scores of pending pulls, as batch rules count them."""

    @abstractmethod
    def upper_bounds(
        self, moments: Moments, scale: float, grow: bool, pulls: Pulls, left: Capacity
    ) -> Choices:
        """Return the arms in order of their bounds, as pulls are added.

        Args:
            moments: Those of this belief.
            scale: The number of standard deviations.
            grow: Whether chosen arms join the inducing ones.
            pulls: Those pending lower the variance.
            left: How many pulls arms still allow; kept up to date.
        """

    @abstractmethod
    def sampler(
        self, pulls: Pulls, residual: ResidualPart | None, spread: float = 1.0
    ) -> Sampler:
        """Return draws that know of the pending pulls.

        Args:
            pulls: Those pending lower the variance.
            residual: What draws do beside the inducing arms, see
                :mod:`~botorch_bkb.posteriors.arm_sampler`. None: the joint law, as far
                as this belief has it.
            spread: How far draws go from the mean, see there.
        """


B = TypeVar("B", bound=Belief)


class Learner(ABC, Generic[B]):
    """What makes beliefs of pulls.

    Attributes:
        drifts: Whether pulls have times, on which the belief depends.
    """

    drifts: bool = False

    @property
    @abstractmethod
    def default_confidence(self) -> ConfidenceSchedule:
        """The width where none is given, but kernel and noise are."""

    @abstractmethod
    def begin(
        self,
        arms: Tensor,
        covar_module: Kernel | None,
        noise_variance: float | None,
        max_feature_bytes: int,
    ) -> B:
        """Return what is believed before the first pull.

        Args:
            arms: The ``A x d`` arms.
            covar_module: The kernel; None to learn one.
            noise_variance: lambda; None to learn it.
            max_feature_bytes: The byte budget of what is cached for all arms.
        """

    @abstractmethod
    def learn(self, belief: B, pulls: Pulls) -> B:
        """Return what is believed after all told pulls; takes the posterior over."""

    @abstractmethod
    def preview(self, belief: B, pulls: Pulls) -> B:
        """Return the belief after all told pulls between two asks; takes nothing over.

        Args:
            belief: What the last ask knew.
            pulls: The pulls.
        """

    @abstractmethod
    def rebuild(self, belief: B, pulls: Pulls) -> B:
        """Return the same belief, computed from nothing, as a load does."""

    def extended(self, belief: B, rows: Tensor, pulls: Pulls) -> B:
        """Return a belief of more arms, after the others; ``rows`` in user's units."""
        hyperparameters, _ = belief.hyperparameters.extended(rows)
        return self.rebuild(replace(belief, hyperparameters=hyperparameters), pulls)

    def restarted(self, belief: B, pulls: Pulls) -> B:
        """Return the belief of one that has forgotten all pulls."""
        return replace(belief, num_told=0)

    def is_current(self, belief: B, pulls: Pulls) -> bool:
        """Whether there is nothing to learn."""
        return belief.num_told == pulls.num_told

    def counting(self, belief: B, pulls: Pulls) -> Pulls:
        """Return the pulls that count for a belief."""
        return pulls

    def withdrawn(self, belief: B, num_told: int, pulls: Pulls) -> B:
        """Return what was believed when only so many pulls had been told."""
        if pulls.num_told < MIN_PULLS_TO_FIT:
            # No fit would replace the one to what was withdrawn.
            unfitted = belief.hyperparameters.unfitted()
            belief = replace(belief, hyperparameters=unfitted, restart=(0, 0.0))
        start, log_det = belief.restart
        pulled = self.counting(belief, pulls).totals(num_told).arms
        inducing = belief.inducing_indices
        belief = replace(
            belief,
            num_told=num_told,
            restart=(min(start, pulls.num_told), log_det),
            inducing_indices=inducing[torch.isin(inducing, pulled)],
        )
        return self.rebuild(belief, pulls)

    def state_dict(self, belief: B) -> dict[str, Any]:
        """Return what a saved belief has of this learner's own."""
        return {}

    def load(self, belief: B, state: dict[str, Any]) -> B:
        """Return a belief with what :meth:`state_dict` returned."""
        return belief


@dataclass(frozen=True, kw_only=True)
class PosteriorBelief(Belief):
    """A posterior of a function that stays as it is.

    Attributes:
        posterior: The posterior.
        is_capped: Whether a ceiling of inducing arms has ever taken effect.
    """

    posterior: ArmPosterior
    is_capped: bool = False

    @override
    def moments(self, pulls: Pulls) -> ArmPosterior:
        return self.posterior

    @override
    def pending_scores(self, pulls: Pulls) -> list[float]:
        return [pull.score for pull in pulls.pending]

    @override
    def upper_bounds(
        self, moments: Moments, scale: float, grow: bool, pulls: Pulls, left: Capacity
    ) -> UpperBounds:
        return UpperBounds(self.posterior, scale, grow, pulls.pending_arms, left)

    @override
    def sampler(
        self, pulls: Pulls, residual: ResidualPart | None, spread: float = 1.0
    ) -> ArmSampler:
        pending = pulls.pending_arms
        return ArmSampler(self.posterior, pending, residual or "correlated", spread)


class PosteriorLearner(Learner[PosteriorBelief]):
    """Believes in one function; a subclass says which pulled arms are inducing."""

    grows: bool
    # From features to the kernel that is learned; None for the default.
    new_kernel: Callable[[Tensor], Kernel] | None = None
    # Whether a prior mean is fitted with what is learned; if not, the rewards' average.
    learns_mean: bool = False

    @abstractmethod
    def resample(
        self,
        belief: PosteriorBelief,
        hyperparameters: Hyperparameters,
        pulls: Pulls,
    ) -> PosteriorBelief:
        """Choose inducing arms among the pulled ones; the posterior stays.

        Args:
            belief: What is believed before it learns.
            hyperparameters: Those that it will have.
            pulls: The pulls.

        Returns:
            The belief with its next ``inducing_indices``, and what it remembers of the
            choice.
        """

    def preview_inducing(
        self,
        belief: PosteriorBelief,
        hyperparameters: Hyperparameters,
        pulls: Pulls,
    ) -> Tensor:
        """Return the inducing arms between two asks; arguments as in ``resample``."""
        return pulls.totals().arms

    @override
    def begin(
        self,
        arms: Tensor,
        covar_module: Kernel | None,
        noise_variance: float | None,
        max_feature_bytes: int,
    ) -> PosteriorBelief:
        hyperparameters = Hyperparameters(
            arms, covar_module, noise_variance, self.learns_mean, self.new_kernel
        )
        return PosteriorBelief(
            hyperparameters=hyperparameters,
            inducing_indices=torch.empty(0, dtype=torch.long, device=arms.device),
            max_feature_bytes=max_feature_bytes,
            grows=self.grows,
            posterior=_new_posterior(hyperparameters, max_feature_bytes),
        )

    @override
    def learn(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        hyperparameters, posterior = belief.hyperparameters, belief.posterior
        refit = hyperparameters.is_due(pulls.num_told)
        if refit:
            hyperparameters = hyperparameters.refitted(*pulls.history())
            posterior = _new_posterior(hyperparameters, belief.max_feature_bytes)
        belief = self.resample(belief, hyperparameters, pulls)
        inducing = belief.inducing_indices
        _update(posterior, hyperparameters, inducing, pulls, pulls.num_told)
        return replace(
            belief,
            hyperparameters=hyperparameters,
            num_told=pulls.num_told,
            num_updates=belief.num_updates + 1,
            restart=(pulls.num_told, posterior.log_det) if refit else belief.restart,
            posterior=posterior,
        )

    @override
    def preview(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        hyperparameters, restart = belief.hyperparameters, belief.restart
        refit = hyperparameters.is_due(pulls.num_told)
        if refit:
            hyperparameters = hyperparameters.refitted(*pulls.history())
        posterior = _new_posterior(hyperparameters, max_feature_bytes=0)
        inducing = self.preview_inducing(belief, hyperparameters, pulls)
        _update(posterior, hyperparameters, inducing, pulls, pulls.num_told)
        if refit:
            restart = (pulls.num_told, posterior.log_det)
        return replace(
            belief,
            hyperparameters=hyperparameters,
            num_told=pulls.num_told,
            restart=restart,
            posterior=posterior,
        )

    @override
    def rebuild(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        hyperparameters = belief.hyperparameters
        posterior = _new_posterior(hyperparameters, belief.max_feature_bytes)
        if belief.num_told:
            inducing = belief.inducing_indices
            _update(posterior, hyperparameters, inducing, pulls, belief.num_told)
        return replace(belief, posterior=posterior)


@dataclass(frozen=True)
class ExactLearner(PosteriorLearner):
    """The exact GP: every pulled arm is inducing.

    Cost ``O(A P^2)`` an ask for ``P`` distinct pulled arms.

    Args:
        new_kernel: As in :class:`SparseLearner`.
    """

    new_kernel: Callable[[Tensor], Kernel] | None = None
    grows = True

    @property
    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return ChowdhuryGopalanWidth()

    @override
    def resample(
        self,
        belief: PosteriorBelief,
        hyperparameters: Hyperparameters,
        pulls: Pulls,
    ) -> PosteriorBelief:
        inducing = in_stable_order(belief.inducing_indices, pulls.totals().arms)
        return replace(belief, inducing_indices=inducing)


@dataclass(frozen=True)
class SparseLearner(PosteriorLearner):
    r"""The DTC posterior, its inducing arms drawn by leverage scores.

    Args:
        oversampling: q-bar: a pulled arm is kept with probability ``min(1, oversampling
            * n * var / lambda)``, with the variance before the update. See
            ``acquisition.bkb_oversampling`` for the theorems' value.
        resampling: ``"independent"``, fresh draws at every update as the theorems
            assume, or ``"coupled"``, one uniform number per arm for good: the same
            marginals, inducing arms that change little from batch to batch, and no
            theorem. The numbers are a function of a seed and the arm, so that a bandit
            keeps the seed alone.
        inclusion: ``"merged"`` for the probability above, as in the authors' code, or
            ``"per_pull"`` for ``1 - (1 - min(1, oversampling * var / lambda))^n``, as
            the papers print it; see
            ``models.utils.leverage_scores.inclusion_probabilities`` for why not.
        max_inducing: A ceiling, None for none. Time and memory of an ask are then
            bounded whatever the noise: where more arms are drawn, so many of them are
            kept, each in turn the one of the largest leverage score that is left
            (``models.utils.leverage_scores.leverage_pivots``). What they leave of the
            others counts as never measured: means are smoother, variances are no
            longer within the theorems' factor of the exact ones, mostly larger, and a
            ``BotorchWarning`` says so once. Inside an ask, arms that are pending or
            chosen may join beside them, as many as these are.
        min_inducing: Where kernel or noise is learned, up to this many pulled arms all
            are inducing, if the ceiling allows it: sampling saves nothing worth the
            accuracy while they are few. Where both are given, the law is the papers'
            from the first pull on.
        new_kernel: From ``A x d`` features to the kernel that is learned where none is
            given, before any fit. None:
            :func:`~botorch_bkb.bandits.composite_to_learn`, a Tanimoto kernel of bits.
        learns_mean: Whether a constant prior mean is fitted with kernel or noise. If
            not, it is the average of the rewards.

    Raises:
        InputDataError: If an option is out of range.
    """

    oversampling: float = 2.0
    resampling: Resampling = "independent"
    inclusion: Inclusion = "merged"
    new_kernel: Callable[[Tensor], Kernel] | None = None
    max_inducing: int | None = None
    min_inducing: int = MIN_INDUCING
    learns_mean: bool = False
    grows = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_oversampling(self.oversampling)
        check_resampling(self.resampling)
        check_inclusion(self.inclusion)
        check_max_inducing(self.max_inducing)
        check_count("min_inducing", self.min_inducing)

    @property
    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBKBWidth()

    def keeps_all(self, hyperparameters: Hyperparameters, num_pulled: int) -> bool:
        """Whether so many pulled arms are inducing without sampling."""
        return keeps_all(
            hyperparameters, num_pulled, self.min_inducing, self.max_inducing
        )

    @override
    def resample(
        self,
        belief: PosteriorBelief,
        hyperparameters: Hyperparameters,
        pulls: Pulls,
    ) -> PosteriorBelief:
        pulled, counts, _ = pulls.totals()
        if not len(pulled):  # in a new block
            return replace(belief, inducing_indices=belief.inducing_indices[:0])
        if self.keeps_all(hyperparameters, len(pulled)):
            inducing = in_stable_order(belief.inducing_indices, pulled)
            return replace(belief, inducing_indices=inducing)
        generator = seeded_generator(belief.seed, UPDATES, belief.num_updates)
        is_capped = False

        def sample(scores: Tensor) -> Tensor:
            """Return which of the first pulled arms are inducing, by their scores."""
            nonlocal is_capped
            num_seen = len(scores)
            arms, seen = pulled[:num_seen], counts[:num_seen]
            probabilities = inclusion_probabilities(
                scores, seen, self.oversampling, self.inclusion
            )
            if self.resampling == "independent":
                numbers = draw_uniforms(len(arms), generator)
            else:
                numbers = keyed_uniforms(belief.seed, arms)
            rows = sample_inducing_indices(probabilities, scores, numbers.to(scores))
            if self.max_inducing is None:
                return rows
            features = hyperparameters.features[arms]
            rows, is_capped = within_ceiling(
                rows, hyperparameters, features, seen, self.max_inducing
            )
            return rows

        known = positions_in(belief.posterior.pulled_indices, pulled)
        if is_bulk(int((known < 0).sum())):
            budget = belief.max_feature_bytes
            features = hyperparameters.features[pulled]
            rows = sample_in_blocks(hyperparameters, features, counts, sample, budget)
        else:
            rows = sample(belief.posterior.leverage_scores_of(pulled))
        return replace(
            belief,
            inducing_indices=in_stable_order(belief.inducing_indices, pulled[rows]),
            is_capped=belief.is_capped or is_capped,
        )

    @override
    def learn(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        after = super().learn(belief, pulls)
        if after.is_capped and not belief.is_capped:
            warn_of_ceiling(len(after.inducing_indices), len(pulls.totals().arms))
        return after

    @override
    def preview_inducing(
        self,
        belief: PosteriorBelief,
        hyperparameters: Hyperparameters,
        pulls: Pulls,
    ) -> Tensor:
        if not hyperparameters.learns:
            # The papers' posterior is resampled by an ask only.
            if len(belief.inducing_indices):
                return belief.inducing_indices
            pulled = pulls.totals().arms
            is_few = self.max_inducing is None or len(pulled) <= self.max_inducing
            if is_few and not is_bulk(len(pulled)):
                return pulled
        # What the next ask will draw. A learned kernel may have detail that an arm
        # shares with no other: one that is only projected would lose its own reward.
        drawn = self.resample(belief, hyperparameters, pulls)
        return drawn.inducing_indices

    @override
    def restarted(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        """Arms are drawn by the scores of the prior again."""
        none = belief.inducing_indices[:0]
        belief = replace(belief, num_told=0, inducing_indices=none)
        return self.rebuild(belief, pulls)


@dataclass(frozen=True)
class BlockLearner(Learner[PosteriorBelief]):
    r"""Starts afresh with every block of time. Algorithm 1 of [bogunovic2016tvgpucb]_.

    The first block starts at time 1 (at 0 for what was told before the first decision),
    blocks before it have negative times, and a decision uses the rewards of its own;
    pulls of earlier ones that are still pending do not count. Hyper-parameters are
    fitted to all rewards as if nothing drifted.

    Args:
        block_size: The paper's ``N``, in units of time.
        within: What learns within a block.

    Raises:
        InputDataError: If ``block_size`` is out of range.
    """

    block_size: float
    within: PosteriorLearner = ExactLearner()
    drifts = True

    def __post_init__(self) -> None:
        """Check the size."""
        if not 0 < as_number(self.block_size) < math.inf:
            raise InputDataError(
                "Expected `block_size` to be a positive time, but got "
                f"{self.block_size!r}."
            )

    @property
    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return RTVWidth()

    @override
    def begin(
        self,
        arms: Tensor,
        covar_module: Kernel | None,
        noise_variance: float | None,
        max_feature_bytes: int,
    ) -> PosteriorBelief:
        return self.within.begin(arms, covar_module, noise_variance, max_feature_bytes)

    @override
    def learn(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        belief = self._turned(belief, pulls)
        if self.within.is_current(belief, pulls):
            return belief
        return self.within.learn(belief, self.counting(belief, pulls))

    @override
    def preview(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        belief = self._turned(belief, pulls)
        return self.within.preview(belief, self.counting(belief, pulls))

    @override
    def rebuild(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        return self.within.rebuild(belief, self.counting(belief, pulls))

    @override
    def is_current(self, belief: PosteriorBelief, pulls: Pulls) -> bool:
        is_now = belief.block == self._block(pulls)
        return is_now and self.within.is_current(belief, pulls)

    @override
    def counting(self, belief: PosteriorBelief, pulls: Pulls) -> Pulls:
        start = 1.0 + belief.block * self.block_size
        if belief.block == 0:
            # What was known before the first decision is of time 0.
            start = 0.0
        pending = [pull for pull in pulls.pending if pull.time >= start]
        return replace(pulls, since=start, pending=pending)

    @override
    def state_dict(self, belief: PosteriorBelief) -> dict[str, Any]:
        return {**self.within.state_dict(belief), "block": belief.block}

    @override
    def load(self, belief: PosteriorBelief, state: dict[str, Any]) -> PosteriorBelief:
        belief = self.within.load(belief, state)
        return replace(belief, block=int(state["block"]))

    def _block(self, pulls: Pulls) -> int:
        """Return the block of the decision."""
        return math.floor((pulls.now - 1) / self.block_size)

    def _turned(self, belief: PosteriorBelief, pulls: Pulls) -> PosteriorBelief:
        """Return a belief of the block of the decision: what was known is forgotten."""
        block = self._block(pulls)
        if block == belief.block:
            return belief
        return replace(self.within.restarted(belief, pulls), block=block)


def _new_posterior(
    hyperparameters: Hyperparameters, max_feature_bytes: int
) -> ArmPosterior:
    return ArmPosterior(
        hyperparameters.features,
        hyperparameters.covar_module,
        hyperparameters.noise_variance,
        max_feature_bytes,
    )


def _update(
    posterior: ArmPosterior,
    hyperparameters: Hyperparameters,
    inducing_indices: Tensor,
    pulls: Pulls,
    num_told: int,
) -> None:
    pulled, counts, sums = pulls.totals(num_told)
    counts = counts.to(sums)
    centered = (sums - hyperparameters.offset * counts) / hyperparameters.scale
    posterior.update(inducing_indices, pulled, counts, centered)
