"""Policies: which arms to pull, given a posterior and a batch rule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError
from typing_extensions import override

from botorch_bkb.arms import PullLimits
from botorch_bkb.bandits.fitting import PriorMean
from botorch_bkb.checks import check_choice, check_number
from botorch_bkb.models.utils.draws import draw_uniforms
from botorch_bkb.optim.batch_rules import BatchRule
from botorch_bkb.posteriors import ArmSampler, DrawCovariance, Posterior
from botorch_bkb.posteriors.arm_sampler import COVARIANCES
from botorch_bkb.posteriors.replay import FilterSampler
from botorch_bkb.posteriors.upper_bounds import Choices, UpperBounds


if TYPE_CHECKING:
    from botorch_bkb.bandits.surrogates import ArmSurrogate


@dataclass(frozen=True)
class Decision:
    """What a policy knows when it chooses a batch.

    Attributes:
        moments: The posterior given the observations alone.
        given: The posterior given the pulls without reward as well.
        num_told: The number of observations.
        time: The time of the decision.
        given_scores: The leverage scores of the pulls without reward, decayed to the
            decision time if the objective drifts.
        make_sampler: Returns draws, see :meth:`sampler`.
        surrogate: The surrogate, which has the fit and the seed.
        is_exact: Whether every pulled arm is inducing.
    """

    moments: Posterior
    given: Posterior
    num_told: int
    time: float
    given_scores: list[float]
    make_sampler: Callable[[DrawCovariance, float], ArmSampler | FilterSampler]
    surrogate: ArmSurrogate
    is_exact: bool = False

    def sampler(
        self, covariance: DrawCovariance = "full", scale: float = 1.0
    ) -> ArmSampler | FilterSampler:
        """Return draws from the posterior, with the variances of ``given``.

        The arguments are those of :class:`~botorch_bkb.posteriors.ArmSampler`.
        """
        return self.make_sampler(covariance, scale)


# The name of 1.0.
PosteriorAt = Decision


class Policy(ABC):
    """Chooses batches of arms."""

    # Whether it may choose the same arms for ever, however wrong the fit is.
    may_settle = False
    # The prior mean of a GPBandit.
    prior_mean: PriorMean = "average"
    # That of the draws of `maximizer_distribution`.
    covariance: DrawCovariance = "full"

    @abstractmethod
    def choices(
        self,
        posterior: Decision,
        rule: BatchRule,
        limits: PullLimits,
        width: Callable[[], float],
        generator: torch.Generator,
    ) -> Choices:
        """Return arms to choose one by one.

        Args:
            posterior: The posterior at the time of the decision.
            rule: When the batch closes.
            limits: How many pulls each arm allows; kept up to date between picks.
            width: Returns the confidence width.
            generator: The source of randomness.
        """


def as_policy(policy: Policy | None) -> Policy:
    """Return the policy, upper confidence bounds for None."""
    if policy is None:
        return UCBPolicy()
    if not isinstance(policy, Policy):
        raise InputDataError(
            "Expected `policy` to be a Policy, such as `ThompsonPolicy()`, but got "
            f"{policy!r}."
        )
    return policy


@dataclass(frozen=True)
class UCBPolicy(Policy):
    """Upper confidence bounds, each in view of the pulls before it."""

    may_settle = True

    @override
    def choices(
        self,
        posterior: Decision,
        rule: BatchRule,
        limits: PullLimits,
        width: Callable[[], float],
        generator: torch.Generator,
    ) -> Choices:
        scale = width() / math.sqrt(posterior.moments.noise_variance)
        # The proofs for fixed inducing arms need all rewards of earlier batches.
        is_plain = not posterior.is_exact and not posterior.given_scores
        projected = rule.keeps_inducing_points and is_plain
        return UpperBounds(posterior.given, scale, projected, limits)


class DrawingPolicy(Policy):
    """Draws arms one by one."""

    @abstractmethod
    def picks(
        self, posterior: Decision, limits: PullLimits, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield arms that allow a pull, without end."""

    @override
    def choices(
        self,
        posterior: Decision,
        rule: BatchRule,
        limits: PullLimits,
        width: Callable[[], float],
        generator: torch.Generator,
    ) -> Choices:
        return _Picks(self.picks(posterior, limits, generator), limits)


class _Picks(Choices):
    def __init__(self, picks: Iterator[int], limits: PullLimits) -> None:
        self.picks = picks
        self.limits = limits

    @override
    def best(self) -> int | None:
        return None if self.limits.num_open == 0 else next(self.picks)

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        self.limits.take(index, num_pulls)


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
        check_number("uniform_probability", self.uniform_probability, 0.0, 1.0)

    @override
    def picks(
        self, posterior: Decision, limits: PullLimits, generator: torch.Generator
    ) -> Iterator[int]:
        while True:
            if draw_uniforms(1, generator) < self.uniform_probability:
                yield limits.draw(generator)
            else:
                yield posterior.moments.best_mean(limits.allowed)


@dataclass(frozen=True)
class UniformPolicy(EpsilonGreedyPolicy):
    """Uniform draws of all arms: the baseline."""

    uniform_probability: float = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uniform_probability != 1:
            raise InputDataError(
                "Expected all draws of a UniformPolicy to be uniform. Use "
                f"`EpsilonGreedyPolicy({self.uniform_probability!r})` for fewer."
            )


@dataclass(frozen=True)
class ThompsonPolicy(DrawingPolicy):
    """The best arms of draws from the posterior, by algorithm 1 of [basu2017]_.

    The draws of a batch are from the posterior at its start; before the first reward
    all pulls are uniform, the paper's ``F_0``.

    Args:
        uniform_probability: The paper's xi: the probability of a uniform draw in place
            of the best arm of one from the posterior.
        covariance: What draws do beside the inducing arms, see
            :mod:`botorch_bkb.posteriors.arm_sampler`. ``"full"``: the joint law of the
            posterior; a filter has no other.
        scale: How far draws go from the posterior mean: of each, ``mean + scale
            (draw - mean)`` is what counts, the posterior reshaping of [chapelle2011]_.
            0.7 found more of the best arms in a hundred pulls with learned
            hyperparameters; the papers' law is 1.

    Raises:
        InputDataError: If an option is out of range.
    """

    uniform_probability: float = 0.0
    covariance: DrawCovariance = "full"
    scale: float = 0.7
    # The mean reward rises as the bandit improves. As a prior mean, it would make the
    # best of many draws an arm far from all observations.
    prior_mean = "fitted"

    def __post_init__(self) -> None:
        check_number("uniform_probability", self.uniform_probability, 0.0, 1.0)
        check_number("scale", self.scale, least=0.0)
        check_choice("covariance", self.covariance, COVARIANCES)

    @override
    def picks(
        self, posterior: Decision, limits: PullLimits, generator: torch.Generator
    ) -> Iterator[int]:
        if posterior.num_told == 0:
            return iter(partial(limits.draw, generator), None)
        sampler = posterior.sampler(self.covariance, self.scale)
        if isinstance(sampler, ArmSampler) and sampler.covariance == "full":
            return self._joint(sampler, limits, generator)
        return self._in_blocks(sampler, limits, generator)

    def _in_blocks(
        self,
        sampler: ArmSampler | FilterSampler,
        limits: PullLimits,
        generator: torch.Generator,
    ) -> Iterator[int]:
        """Yield the best arms of draws over all arms.

        Draws of one block share one computation over all arms. Blocks double whatever
        the size of the batch, so that a capped batch is the beginning of the longer
        one.
        """
        for power in count():
            # Small enough that no arm uses up its repeats within a block.
            is_uniform = self._is_uniform(min(2**power, limits.least), generator)
            num_draws, best = is_uniform.count(False), iter(())
            if num_draws:
                draws = sampler.draw_best_arms(num_draws, generator, limits.allowed)
                best = iter(draws.tolist())
            for uniform in is_uniform:
                yield limits.draw(generator) if uniform else next(best)

    def _joint(
        self, sampler: ArmSampler, limits: PullLimits, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield the best arms, of those left, of joint draws over promising ones."""
        pool = sampler.promising_arms(limits.allowed)
        for power in count():
            draws = sampler.draw_values(2**power, generator, pool)
            is_uniform = self._is_uniform(2**power, generator)
            for values, uniform in zip(draws, is_uniform, strict=True):
                allowed = limits.allows(pool)
                if not allowed.any():
                    pool = sampler.promising_arms(limits.allowed)
                    break
                if uniform:
                    yield limits.draw(generator)
                else:
                    best = values.masked_fill(~allowed, -torch.inf).argmax()
                    yield int(pool[best])

    def _is_uniform(self, size: int, generator: torch.Generator) -> list[bool]:
        uniforms = draw_uniforms(size, generator)
        is_uniform: list[bool] = (uniforms < self.uniform_probability).tolist()
        return is_uniform
