"""Policies over a box: which points to ask for, given a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass

import torch
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise.prior_samplers import TPathwisePriorSampler
from botorch.utils.sampling import manual_seed
from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.analytic import (
    BatchUpperConfidenceBound,
    condition_on_means,
)
from botorch_bkb.acquisition.schedules import (
    as_schedule,
    ConfidenceSchedule,
    DeviationWidth,
    RandomDeviationWidth,
)
from botorch_bkb.checks import check_number, check_size
from botorch_bkb.generation.paths import draw_posterior_paths, maximize_paths
from botorch_bkb.models import SingleTaskDTCGP
from botorch_bkb.models.utils.draws import draw_seed, draw_uniforms


# Rewards are divided by it.
LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class BoxSearch:
    """Options of the search over a box, by BoTorch's gradient optimizer.

    Attributes:
        num_restarts: How many points the gradient optimizer improves.
        raw_samples: The number of points among which these are the best.
        prior_sampler: The prior part of draws from the posterior.
        around_best: Whether a search for the largest bound also starts around the best
            point so far: late maxima are narrower than uniform starts are apart.

    Raises:
        InputDataError: If a number is no integer of at least 1.
    """

    num_restarts: int
    raw_samples: int
    prior_sampler: TPathwisePriorSampler
    around_best: bool

    def __post_init__(self) -> None:
        check_size("num_restarts", self.num_restarts)
        check_size("raw_samples", self.raw_samples)

    def maximizers_of_draws(
        self,
        model: SingleTaskDTCGP,
        num_draws: int,
        box: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the ``num_draws x d`` maximizers of draws from the model."""
        return maximize_paths(
            draw_posterior_paths(model, num_draws, generator, self.prior_sampler),
            box,
            generator,
            candidates=model.inducing_points,
            raw_samples=self.raw_samples,
            num_restarts=self.num_restarts,
        )


class BoxPolicy(ABC):
    """Chooses points of a box.

    Attributes:
        confidence: The width of confidence bounds, if the policy uses them.
    """

    confidence: ConfidenceSchedule = DeviationWidth()

    @abstractmethod
    def select(
        self,
        model: SingleTaskDTCGP,
        size: int,
        pending: Tensor,
        box: Tensor,
        search: BoxSearch,
        generator: torch.Generator,
    ) -> Tensor:
        """Choose points, in the units of the model.

        Args:
            model: The posterior given the observations.
            size: How many.
            pending: The ``n x d`` points without reward.
            box: The ``2 x d`` corners.
            search: How to search.
            generator: The source of randomness.

        Returns:
            A ``size x d`` tensor.
        """


class BoxUCBPolicy(BoxPolicy):
    """Upper confidence bounds, maximized by BoTorch's gradient optimizer.

    Points pending or chosen earlier in the batch lower the variance (GP-BUCB). The
    optimizer finds a local maximum of the bound, where theorems ask for the global one.

    Args:
        confidence: A schedule of ``botorch_bkb.acquisition.confidence``, or a number of
            posterior standard deviations. None: one on average,
            ``RandomDeviationWidth(1.0)``: a constant number measures where the mean is
            largest again and again, or goes from corner to corner.
    """

    def __init__(self, confidence: ConfidenceSchedule | float | None = None) -> None:
        default = RandomDeviationWidth()
        self.confidence = as_schedule(default if confidence is None else confidence)

    @override
    def select(
        self,
        model: SingleTaskDTCGP,
        size: int,
        pending: Tensor,
        box: Tensor,
        search: BoxSearch,
        generator: torch.Generator,
    ) -> Tensor:
        chosen = pending
        for _ in range(size):
            acqf = BatchUpperConfidenceBound(model, self.confidence, chosen)
            with manual_seed(draw_seed(generator)):
                point, _ = optimize_acqf(
                    acqf,
                    box,
                    q=1,
                    num_restarts=search.num_restarts,
                    raw_samples=search.raw_samples,
                    options={"sample_around_best": search.around_best},
                )
            chosen = torch.cat([chosen, point])
        return chosen[-size:]


class BoxThompsonPolicy(BoxPolicy):
    """Maximizers of draws from the posterior, algorithm 1 of [basu2017]_.

    On draws from the sparse posterior whose prior part is approximate; see
    :mod:`botorch_bkb.generation.paths`.

    Args:
        uniform_probability: The paper's xi: the probability of a uniform point in place
            of a draw's maximizer.
        scale: How far draws go from the posterior mean: of each, ``mean + scale (draw
            - mean)`` is maximized, the posterior reshaping of [chapelle2011]_. At least
            0.001; the paper's law is 1.
    """

    def __init__(self, uniform_probability: float = 0.0, scale: float = 0.7) -> None:
        check_number("uniform_probability", uniform_probability, 0.0, 1.0)
        check_number("scale", scale, least=LEAST_SCALE)
        self.uniform_probability = uniform_probability
        self.scale = scale

    @override
    def select(
        self,
        model: SingleTaskDTCGP,
        size: int,
        pending: Tensor,
        box: Tensor,
        search: BoxSearch,
        generator: torch.Generator,
    ) -> Tensor:
        if self.scale != 1:
            # A draw around a mean that is divided by the scale, times the scale, is
            # `mean + scale (draw - mean)`.
            model = deepcopy(model)
            model.set_train_data(targets=model.train_targets / self.scale)  # type: ignore[operator]
        if len(pending):
            # Its variance falls; its mean stays.
            model = condition_on_means(model, pending)
        points = draw_points(size, box, generator)
        is_drawn = draw_uniforms(size, generator) >= self.uniform_probability
        if num_draws := int(is_drawn.sum()):
            points[is_drawn.to(points.device)] = search.maximizers_of_draws(
                model, num_draws, box, generator
            )
        return points


def draw_points(size: int, box: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ``size x d`` uniform points of a box."""
    low, high = box
    u = draw_uniforms(size * len(low), generator).reshape(size, len(low))
    return low + (high - low) * u.to(low)
