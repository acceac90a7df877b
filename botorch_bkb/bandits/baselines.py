"""Baselines that draw arms at random, on the model of BKB."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.bandits.ucb import BKB
from botorch_bkb.optim.batch_rules import BatchRule


class EpsilonGreedy(BKB):
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
        if not 0 <= uniform_probability <= 1:
            raise InputDataError(
                "Expected `uniform_probability` between 0 and 1, but got "
                f"{uniform_probability}."
            )
        super().__init__(arms, covar_module, noise_variance, **options)
        self.uniform_probability = uniform_probability

    @override
    def _choose(
        self, rule: BatchRule, capacity: Tensor | None, first: int | None
    ) -> Tensor:
        pending = [pull.score for pull in self._ledger.pending.values()]
        scores = self._posterior.mean.new_tensor(pending)
        batch = rule.open(self._posterior, scores, projected=True)
        left = None if capacity is None else capacity.clone()
        chosen: list[int] = []
        while not chosen or not batch.is_closed:
            if left is not None and not (left > 0).any():
                break
            index = first if first is not None and not chosen else self._pick(left)
            batch.take(index, 1)
            chosen.append(index)
            if left is not None:
                left[index] -= 1
            if first is not None and rule.opens_with_one_pull:
                break
        return self._indices(chosen)

    def _pick(self, capacity: Tensor | None) -> int:
        if self._draw(1) < self.uniform_probability:
            return self._draw_arm(capacity)
        mean = self._posterior.mean
        if capacity is not None:
            mean = mean.masked_fill(capacity <= 0, -torch.inf)
        return int(mean.argmax())


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
