"""Policies over a box: which points to ask for, given a model and what is pending."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise.prior_samplers import TPathwisePriorSampler
from botorch.utils.sampling import manual_seed
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.batch import BatchUpperConfidenceBound, condition_on_means
from botorch_bkb.acquisition.confidence import (
    as_schedule,
    ChowdhuryGopalanWidth,
    ConfidenceSchedule,
)
from botorch_bkb.acquisition.deviations import RandomDeviationWidth
from botorch_bkb.checks import check_number, check_probability
from botorch_bkb.generation.paths import draw_posterior_paths, maximize_paths
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import draw_seed, draw_uniforms


# Rewards are divided by it.
LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class BoxDecision:
    """What a policy over a box sees, in the units of the model.

    Attributes:
        model: What is known.
        size: How many points are asked for.
        pending: The ``n x d`` points without reward.
        box: The ``2 x d`` corners.
        learns: Whether kernel or noise are learned.
        generator: The source of randomness.
        num_restarts: How many points the gradient optimizer improves.
        raw_samples: The number of points among which these are the best.
        prior_sampler: The prior part of draws from the posterior.
    """

    model: SingleTaskDTCGP
    size: int
    pending: Tensor
    box: Tensor
    learns: bool
    generator: torch.Generator
    num_restarts: int
    raw_samples: int
    prior_sampler: TPathwisePriorSampler

    def draw_maximizers(self, num_draws: int) -> Tensor:
        """Return the ``num_draws x d`` maximizers of draws from the model."""
        model, generator = self.model, self.generator
        paths = draw_posterior_paths(model, num_draws, generator, self.prior_sampler)
        return maximize_paths(
            paths,
            self.box,
            generator,
            candidates=model.inducing_points,
            raw_samples=self.raw_samples,
            num_restarts=self.num_restarts,
        )


class BoxPolicy(ABC):
    """Chooses points of a box."""

    def begun(self, learns: bool, seed: int) -> Self:
        """Return the policy of one bandit."""
        return self

    @abstractmethod
    def choose(self, decision: BoxDecision) -> Tensor:
        """Return ``size x d`` points, in the units of the model."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a state keeps of the policy."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        return


class BoxUCBPolicy(BoxPolicy):
    """Upper confidence bounds, maximized by BoTorch's gradient optimizer.

    Args:
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number (a
            constant width ``w``, in the papers' scaling). None: ``default``, and one
            posterior deviation on average, ``RandomDeviationWidth(1.0)``, where kernel
            or noise are learned: a constant number measures where the mean is largest
            again and again, or goes from corner to corner.
        default: The width where kernel and noise are given. None: that of Chowdhury
            and Gopalan.
    """

    def __init__(
        self,
        confidence: ConfidenceSchedule | float | None = None,
        default: ConfidenceSchedule | None = None,
    ) -> None:
        default = ChowdhuryGopalanWidth() if default is None else default
        self._is_given = confidence is not None
        self.confidence = as_schedule(default if confidence is None else confidence)

    @override
    def begun(self, learns: bool, seed: int) -> Self:
        if self._is_given or not learns:
            return self
        other = copy(self)
        other.confidence = RandomDeviationWidth(seed=seed)
        return other

    @override
    def choose(self, decision: BoxDecision) -> Tensor:
        chosen = decision.pending
        for _ in range(decision.size):
            acqf = BatchUpperConfidenceBound(decision.model, self.confidence, chosen)
            with manual_seed(draw_seed(decision.generator)):
                # Late maxima are narrower than uniform starting points are apart.
                point, _ = optimize_acqf(
                    acqf,
                    decision.box,
                    q=1,
                    num_restarts=decision.num_restarts,
                    raw_samples=decision.raw_samples,
                    options={"sample_around_best": decision.learns},
                )
            chosen = torch.cat([chosen, point])
        return chosen[-decision.size :]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"confidence": self.confidence.state_dict()}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.confidence.load_state_dict(state["confidence"])


class BoxThompsonPolicy(BoxPolicy):
    """Points where draws from the posterior are largest, algorithm 1 of [basu2017]_.

    Args:
        uniform_probability: The paper's xi: the probability of a uniform point in place
            of a draw's maximizer.
        spread: How far draws go from the posterior mean: of each, ``mean + spread (draw
            - mean)`` is maximized, the posterior reshaping of [chapelle2011]_. At least
            0.001.
    """

    def __init__(self, uniform_probability: float = 0.0, spread: float = 1.0) -> None:
        check_probability("uniform_probability", uniform_probability)
        check_number("spread", spread, least=LEAST_SPREAD)
        self.uniform_probability = uniform_probability
        self.spread = spread

    @override
    def choose(self, decision: BoxDecision) -> Tensor:
        size, generator = decision.size, decision.generator
        model = decision.model
        if self.spread != 1:
            # Draws have the deviation from a mean that is so many times larger: this
            # many times such a draw is `mean + spread (draw - mean)`.
            model = deepcopy(model)
            model.set_train_data(targets=model.train_targets / self.spread)
        if len(decision.pending):
            # Its variance falls; its mean stays, or nearly where it is sparse.
            model = condition_on_means(model, decision.pending)
        decision = replace(decision, model=model)
        points = draw_points(size, decision.box, generator)
        is_drawn = draw_uniforms(size, generator) >= self.uniform_probability
        num_draws = int(is_drawn.sum())
        if num_draws:
            points[is_drawn.to(points.device)] = decision.draw_maximizers(num_draws)
        return points


def draw_points(size: int, box: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ``size x d`` uniform points of a box."""
    low, high = box
    u = draw_uniforms(size * len(low), generator).reshape(size, len(low))
    return low + (high - low) * u.to(low)
