"""Policies: what to pull, given a belief, a batch rule and what is pending."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.learners import Belief
from botorch_bkb.bandits.ledger import Pulls
from botorch_bkb.checks import check_number, check_probability
from botorch_bkb.models.utils.draws import draw_uniforms
from botorch_bkb.optim.batch_rules import BatchRule
from botorch_bkb.optim.batch_ucb import fill_batch
from botorch_bkb.posteriors import ArmSampler, Moments, ResidualPart
from botorch_bkb.posteriors.arm_sampler import check_residual_part
from botorch_bkb.posteriors.upper_bounds import Choices


@dataclass(frozen=True)
class Decision:
    """What a policy sees.

    Attributes:
        belief: What is believed of the arms.
        moments: Its means and variances, at the time of the decision.
        pulls: Told and pending ones, those that count.
        left: How many pulls each arm allows; kept up to date between picks.
        rule: When the batch closes.
        first: The first arm of the batch, if it is already chosen.
        width: Returns the confidence width. Ask once: some schedules remember.
        generator: The source of randomness.
    """

    belief: Belief
    moments: Moments
    pulls: Pulls
    left: Capacity
    rule: BatchRule
    first: int | None
    width: Callable[[], float]
    generator: torch.Generator


class Policy(ABC):
    """Chooses batches of arms."""

    # Whether it may choose the same arms for good, whatever a wrong fit says of others.
    may_settle = False

    @abstractmethod
    def choices(self, decision: Decision) -> Choices:
        """Return arms to choose one by one."""

    def choose(self, decision: Decision) -> Tensor:
        """Return a batch: a long tensor of arms in order of choice, one at least."""
        moments, rule = decision.moments, decision.rule
        choices = self.choices(decision)
        scores = decision.belief.pending_scores(decision.pulls)
        batch = rule.open(moments, moments.like.new_tensor(scores))
        return fill_batch(choices, batch, decision.first, moments.pulled_indices)


@dataclass(frozen=True)
class UCBPolicy(Policy):
    """Upper confidence bounds, each in view of the pulls before it."""

    may_settle = True

    @override
    def choices(self, decision: Decision) -> Choices:
        belief, moments = decision.belief, decision.moments
        scale = decision.width() / math.sqrt(moments.noise_variance)
        grow = belief.grows or not decision.rule.keeps_inducing_points
        return belief.upper_bounds(moments, scale, grow, decision.pulls, decision.left)


class DrawingPolicy(Policy):
    """Draws arms one by one."""

    @abstractmethod
    def picks(self, decision: Decision) -> Iterator[int]:
        """Yield arms that allow a pull, without end."""

    @override
    def choices(self, decision: Decision) -> Choices:
        return _Picks(self.picks(decision), decision.left)


class _Picks(Choices):
    def __init__(self, picks: Iterator[int], left: Capacity) -> None:
        self.picks = picks
        self.left = left

    @override
    def best(self) -> int | None:
        return None if self.left.is_used_up else next(self.picks)

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        self.left.take(index, num_pulls)


@dataclass(frozen=True)
class EpsilonGreedyPolicy(DrawingPolicy):
    """The arm of the largest posterior mean, or with some probability a uniform one.

    Args:
        uniform_probability: The probability of a uniform draw, for each pull.

    Raises:
        InputDataError: If it is no probability.
    """

    uniform_probability: float = 0.1

    def __post_init__(self) -> None:
        """Check the probability."""
        check_probability("uniform_probability", self.uniform_probability)

    @override
    def picks(self, decision: Decision) -> Iterator[int]:
        left, generator = decision.left, decision.generator
        while True:
            if draw_uniforms(1, generator) < self.uniform_probability:
                yield left.draw(generator)
            else:
                yield decision.moments.best_mean(left.allowed)


@dataclass(frozen=True)
class ThompsonPolicy(DrawingPolicy):
    """The best arms of draws from the belief, by algorithm 1 of [basu2017]_.

    The draws of a batch are from the belief at its start; before the first reward all
    pulls are uniform, the paper's ``F_0``.

    Args:
        uniform_probability: The paper's xi: the probability of a uniform draw in place
            of the best arm of one from the belief.
        residual: What draws do beside the inducing arms, see
            :mod:`botorch_bkb.posteriors.arm_sampler`. None: the joint law of the
            belief; a filter has no other.
        spread: How far draws go from the mean of the belief: of each, ``mean + spread
            (draw - mean)`` is what counts, the posterior reshaping of [chapelle2011]_.

    Raises:
        InputDataError: If an option is out of range.
    """

    uniform_probability: float = 0.0
    residual: ResidualPart | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_probability("uniform_probability", self.uniform_probability)
        check_number("spread", self.spread, least=0.0)
        if self.residual is not None:
            check_residual_part(self.residual)

    @override
    def picks(self, decision: Decision) -> Iterator[int]:
        while decision.pulls.num_told == 0:
            yield decision.left.draw(decision.generator)
        sampler = decision.belief.sampler(decision.pulls, self.residual, self.spread)
        if isinstance(sampler, ArmSampler) and sampler.residual == "correlated":
            yield from self._joint(sampler, decision)
        size = 1
        # Draws of one block share a pass over all arms. Blocks double whatever the size
        # of the batch, so that a capped batch is the beginning of the longer one.
        while True:
            # Small enough that no arm uses up its repeats within a block.
            block = min(size, decision.left.least)
            is_uniform = self._is_uniform(block, decision)
            best = iter(())
            if not all(is_uniform):
                num_draws = block - sum(is_uniform)
                draws = sampler.draw_best_arms(
                    num_draws, decision.generator, decision.left.allowed
                )
                best = iter(draws.tolist())
            for uniform in is_uniform:
                yield self._uniform(decision) if uniform else next(best)
            size *= 2

    def _joint(self, sampler: ArmSampler, decision: Decision) -> Iterator[int]:
        """Yield the best arms, of those left, of joint draws over promising ones."""
        size, left = 1, decision.left
        pool = sampler.promising_arms(left.allowed)
        while True:
            draws = sampler.draw_values(size, decision.generator, pool)
            is_uniform = self._is_uniform(size, decision)
            for values, uniform in zip(draws, is_uniform, strict=True):
                allowed = left.allows(pool)
                if not allowed.any():
                    pool = sampler.promising_arms(left.allowed)
                    break
                if uniform:
                    yield self._uniform(decision)
                else:
                    best = values.masked_fill(~allowed, -torch.inf).argmax()
                    yield int(pool[best])
            size *= 2

    def _is_uniform(self, size: int, decision: Decision) -> list[bool]:
        uniforms = draw_uniforms(size, decision.generator)
        is_uniform: list[bool] = (uniforms < self.uniform_probability).tolist()
        return is_uniform

    def _uniform(self, decision: Decision) -> int:
        return decision.left.draw(decision.generator)
