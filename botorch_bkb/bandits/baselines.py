"""Baselines that draw arms at random; their posterior is that of BKB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.bandits.randomized import RandomizedBandit
from botorch_bkb.checks import check_probability
from botorch_bkb.optim.batch_rules import BatchRule, FixedSize


class EpsilonGreedy(RandomizedBandit):
    """The arm of the largest posterior mean, or with some probability a uniform one.

    Args:
        uniform_probability: The probability of a uniform draw, for each pull.

    All other arguments are those of :class:`~botorch_bkb.bandits.BKB`; the confidence
    schedule only serves ``confidence_bound``.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float = 0.1,
        **options: Any,
    ) -> None:
        check_probability("uniform_probability", uniform_probability)
        super().__init__(arms, covar_module, noise_variance, **options)
        self.uniform_probability = uniform_probability

    @override
    def default_batch_rule(self) -> BatchRule:
        return FixedSize(1)

    @override
    def _picks(self, left: Capacity, pending: Sequence[Pull]) -> Iterator[int]:
        while True:
            if self._draw(1) < self.uniform_probability:
                yield left.draw(self.generator)
                continue
            yield self._posterior.best_mean(left.allowed)


class UniformRandom(EpsilonGreedy):
    """Every arm drawn uniformly: what any bandit has to beat."""

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            arms, covar_module, noise_variance, uniform_probability=1.0, **options
        )
