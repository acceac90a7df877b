"""What is believed over a box after the pulls that were told."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.means import ZeroMean
from torch import Tensor

from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.bandits.inducing import (
    is_bulk,
    keeps_all,
    MIN_INDUCING,
    sample_in_blocks,
    warn_of_ceiling,
    within_ceiling,
)
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import draw_uniforms, seeded_generator, UPDATES
from botorch_bkb.models.utils.leverage_scores import (
    check_max_inducing,
    check_oversampling,
    inclusion_probabilities,
    sample_inducing_indices,
)


class ToldPoints(NamedTuple):
    """What was told over a box, in order of telling.

    Attributes:
        points: ``n x d``, in the user's units; those told twice stand here twice.
        rewards: Their ``n`` rewards, of which larger ones are better.
    """

    points: Tensor
    rewards: Tensor


@dataclass(frozen=True, kw_only=True)
class BoxBelief:
    """What is believed after the first told pulls.

    Attributes:
        hyperparameters: Kernel, noise and units.
        told: These pulls.
        inducing: The rows of the inducing ones, if the posterior is sparse.
        is_sparse: Whether it is.
        is_capped: Whether a ceiling of inducing points has ever taken effect.
        seed: What random numbers are a function of, see
            :mod:`~botorch_bkb.models.utils.draws`.
        num_updates: How often it has learned.
    """

    hyperparameters: Hyperparameters
    told: ToldPoints
    inducing: Tensor
    is_sparse: bool = False
    is_capped: bool = False
    seed: int = 0
    num_updates: int = 0

    @property
    def num_told(self) -> int:
        """How many told pulls are known."""
        return len(self.told.points)

    @cached_property
    def model(self) -> SingleTaskDTCGP:
        """The posterior, in the units of the kernel; computed when it is asked for."""
        hyperparameters, (points, rewards) = self.hyperparameters, self.told
        x = hyperparameters.to_features(points)
        targets = (rewards - hyperparameters.offset) / hyperparameters.scale
        targets = targets.unsqueeze(-1)
        model = SingleTaskDTCGP(
            x,
            targets,
            torch.full_like(targets, hyperparameters.noise_variance),
            inducing_points=x[self.inducing] if self.is_sparse else None,
            covar_module=hyperparameters.covar_module,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        return model.eval()


@dataclass(frozen=True)
class BoxLearner:
    """The posterior of a function on a box, exact or sparse.

    Args:
        oversampling: q-bar: a told point is inducing with probability ``min(1,
            oversampling * var / lambda)``, with the variance before the update. None:
            all are, the exact GP.
        max_inducing: A ceiling for points that are drawn so, None for none; see
            :class:`~botorch_bkb.bandits.SparseLearner`.
        min_inducing: Where kernel or noise is learned, up to so many told points all
            are inducing: under fitted noise of next to nothing, a point that is left
            out may be the optimum lost.

    Raises:
        InputDataError: If an option is out of range.
    """

    oversampling: float | None = None
    max_inducing: int | None = None
    min_inducing: int = MIN_INDUCING

    def __post_init__(self) -> None:
        """Check the options."""
        if self.oversampling is not None:
            check_oversampling(self.oversampling)
        check_max_inducing(self.max_inducing)
        if self.max_inducing is not None and self.oversampling is None:
            raise InputDataError(
                "Expected `max_inducing` to be None where every told point is "
                f"inducing, but got {self.max_inducing}. Pass `oversampling`."
            )

    def believe(
        self, hyperparameters: Hyperparameters, told: ToldPoints, inducing: Tensor
    ) -> BoxBelief:
        """Return a belief on inducing points that are known."""
        # Before the first ask with rewards, and where nothing is left out: exact.
        is_exact = not inducing.numel() or self._keeps_all(hyperparameters, told)
        return BoxBelief(
            hyperparameters=hyperparameters,
            told=told,
            inducing=inducing,
            is_sparse=not is_exact,
        )

    def is_current(self, belief: BoxBelief, told: ToldPoints) -> bool:
        """Whether there is nothing to learn."""
        return belief.num_told == len(told.points)

    def learn(self, belief: BoxBelief, told: ToldPoints) -> BoxBelief:
        """Return what is believed after all told pulls: fits what is due, and draws."""
        after = self._learned(belief, told)
        if after.is_capped and not belief.is_capped:
            warn_of_ceiling(len(after.inducing), after.num_told)
        return after

    def preview(self, belief: BoxBelief, told: ToldPoints) -> BoxBelief:
        """Return the belief after all told pulls between two asks.

        Args:
            belief: What the last ask knew.
            told: All told pulls.
        """
        is_first = not belief.inducing.numel()
        if belief.hyperparameters.learns or (is_first and _has_bulk(belief, told)):
            # What the next ask will draw, as over arms.
            return self._learned(belief, told)
        return self.believe(belief.hyperparameters, told, belief.inducing)

    def _learned(self, belief: BoxBelief, told: ToldPoints) -> BoxBelief:
        hyperparameters = belief.hyperparameters
        is_due = hyperparameters.is_due(len(told.points))
        by_fit = is_due and _has_bulk(belief, told)
        if by_fit:
            # As over arms: by the scores of hyper-parameters that know them.
            hyperparameters = self._refitted(belief, told, None)
        inducing, is_capped = self._resample(belief, hyperparameters, told)
        if is_due and not by_fit:
            hyperparameters = self._refitted(belief, told, inducing)
        after = self.believe(hyperparameters, told, inducing)
        return replace(
            after,
            is_capped=belief.is_capped or is_capped,
            seed=belief.seed,
            num_updates=belief.num_updates + 1,
        )

    def _keeps_all(self, hyperparameters: Hyperparameters, told: ToldPoints) -> bool:
        """Whether the posterior is exact."""
        return self.oversampling is None or keeps_all(
            hyperparameters, len(told.points), self.min_inducing, self.max_inducing
        )

    def _resample(
        self,
        belief: BoxBelief,
        hyperparameters: Hyperparameters,
        told: ToldPoints,
    ) -> tuple[Tensor, bool]:
        """Choose inducing points among the told ones, by the posterior before them.

        Returns:
            Their rows, and whether the ceiling took effect.
        """
        oversampling = self.oversampling
        if oversampling is None or self._keeps_all(hyperparameters, told):
            return torch.arange(len(told.points), device=told.points.device), False
        x = hyperparameters.to_features(told.points)
        ones = torch.ones_like(x[:, 0])
        generator = seeded_generator(belief.seed, UPDATES, belief.num_updates)
        is_capped = False

        def sample(scores: Tensor) -> Tensor:
            """Return which of the first told points are inducing, by their scores."""
            nonlocal is_capped
            seen = slice(len(scores))
            uniforms = draw_uniforms(len(scores), generator).to(scores)
            probabilities = inclusion_probabilities(scores, ones[seen], oversampling)
            rows = sample_inducing_indices(probabilities, scores, uniforms)
            rows, is_over = within_ceiling(
                rows, hyperparameters, x[seen], ones[seen], self.max_inducing
            )
            is_capped |= is_over
            return rows

        noise_variance = hyperparameters.noise_variance
        if _has_bulk(belief, told):
            rows = sample_in_blocks(hyperparameters, x, ones, sample)
        elif belief.num_told:
            noise = x.new_tensor(noise_variance)
            rows = sample(belief.model.leverage_scores(x, noise).detach())
        else:
            prior_variance = hyperparameters.covar_module(x, diag=True).detach()
            rows = sample(prior_variance / noise_variance)
        return rows, is_capped

    def _refitted(
        self, belief: BoxBelief, told: ToldPoints, inducing: Tensor | None
    ) -> Hyperparameters:
        """Return hyper-parameters fitted to all told pulls.

        A few are fitted exactly: a likelihood on inducing points that are drawn anew
        jumps from fit to fit. Many gather around the optimum: evenly chosen ones would
        be all but equal, unless many are new.

        Args:
            belief: What is believed.
            told: The pulls.
            inducing: The rows on which the likelihood stands; None for all, or evenly
                chosen ones.
        """
        hyperparameters = deepcopy(belief.hyperparameters)
        hyperparameters.features = hyperparameters.to_features(told.points)
        everything = torch.arange(len(told.points), device=told.points.device)
        is_empty = inducing is not None and not inducing.numel()
        if is_empty or self._keeps_all(hyperparameters, told):
            inducing = None
        hyperparameters.fit(everything, told.rewards, inducing)
        return hyperparameters


def _has_bulk(belief: BoxBelief, told: ToldPoints) -> bool:
    """Whether so many points are new that they are sampled block by block."""
    return is_bulk(len(told.points) - belief.num_told)
