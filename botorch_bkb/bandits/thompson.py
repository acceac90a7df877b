r"""Thompson sampling over a finite set of arms.

References:
    [basu2017] K. Basu, S. Ghosh. Analysis of Thompson sampling for Gaussian process
    optimization in the bandit setting. 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.bandits.randomized import RandomizedBandit
from botorch_bkb.checks import check_probability
from botorch_bkb.optim.batch_rules import BatchRule, FixedSize
from botorch_bkb.posteriors.arm_sampler import (
    ArmSampler,
    check_residual_part,
    ResidualPart,
)


# The paper draws this many points from the distribution of the maximizer per round.
DRAWS_PER_ROUND = 30


class GPThompsonSampling(RandomizedBandit):
    r"""Thompson sampling: each pull is the best arm of a draw from the posterior.

    Algorithm 1 of [basu2017]_ on the weights of the sparse posterior, which leverage
    scores keep small, at ``O(A m)`` a draw. The draws of one batch come from the
    posterior at its start, as the paper's thirty per round do; pulls still pending from
    earlier batches lower the variance of the draws. Before the first reward all pulls
    are uniform, the paper's ``F_0``.

    Hyper-parameters that are not given are estimated by maximum a posteriori at every
    update up to 128 told pulls (section 2.3 of the paper, which does so in every
    round), and at doubling numbers after that. ``ask(size=n)`` returns as many draws of
    one posterior.

    Args:
        uniform_probability: The paper's xi: with this probability a pull is a uniformly
            chosen arm in place of a draw. (The epsilon-greedy Thompson sampling of
            later papers mixes with the mean of several draws instead.) The theorem
            needs it to be positive; the paper names no value. None: 0.05 where kernel
            and noise are given, 0 where anything is learned and no theorem applies.
        residual: How draws treat what the inducing arms do not explain: ``"omitted"``,
            ``"independent"`` or ``"correlated"``; see
            :mod:`botorch_bkb.posteriors.arm_sampler` for what each gets wrong. None:
            the draw of the paper's weights, ``"omitted"``, where kernel and noise are
            given, and the posterior's own law, ``"correlated"``, where anything is
            learned.

    All other arguments are those of :class:`~botorch_bkb.bandits.BKB`. The default
    ``batch_rule`` is ``FixedSize(30)``; BBKB's rules are welcome too. The confidence
    schedule only serves ``confidence_bound``. The paper's answer is
    ``maximizer_distribution().mode``.

    Example:
        >>> bandit = GPThompsonSampling(arms, RBFKernel(), noise_variance=0.2)
        >>> indices = bandit.ask()
        >>> bandit.tell(indices, measure(indices))
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float | None = None,
        *,
        uniform_probability: float | None = None,
        residual: ResidualPart | None = None,
        **options: Any,
    ) -> None:
        learns = covar_module is None or noise_variance is None
        if uniform_probability is None:
            uniform_probability = 0.0 if learns else 0.05
        check_probability("uniform_probability", uniform_probability)
        if residual is None:
            residual = "correlated" if learns else "omitted"
        check_residual_part(residual)
        super().__init__(arms, covar_module, noise_variance, **options)
        self.uniform_probability = uniform_probability
        self.residual: ResidualPart = residual

    @override
    def default_batch_rule(self) -> BatchRule:
        return FixedSize(DRAWS_PER_ROUND)

    @override
    def _picks(self, left: Capacity, pending: Sequence[Pull]) -> Iterator[int]:
        while self.num_pulls == 0:
            yield left.draw(self.generator)
        arms = self._indices([pull.arm for pull in pending])
        sampler = ArmSampler(self._posterior, arms, self.residual)
        draw = self._correlated if self.residual == "correlated" else self._separate
        yield from draw(sampler, left)

    def _separate(self, sampler: ArmSampler, left: Capacity) -> Iterator[int]:
        """Yield the best arms of draws over all arms."""
        # Draws of one block share a pass over all arms. Blocks double whatever the size
        # of the batch, so that a capped batch is the beginning of the longer one.
        size = 1
        while True:
            # Small enough that no arm uses up its repeats within a block.
            block = min(size, left.least)
            is_uniform = (self._draw(block) < self.uniform_probability).tolist()
            best = iter(())
            if not all(is_uniform):
                num_draws = block - sum(is_uniform)
                draws = sampler.draw_best_arms(num_draws, self.generator, left.allowed)
                best = iter(draws.tolist())
            for uniform in is_uniform:
                yield left.draw(self.generator) if uniform else next(best)
            size *= 2

    def _correlated(self, sampler: ArmSampler, left: Capacity) -> Iterator[int]:
        """Yield the best arms, of those left, of joint draws over promising ones."""
        size = 1
        pool = sampler.promising_arms(left.allowed)
        while True:
            draws = sampler.draw_values(size, self.generator, pool)
            is_uniform = (self._draw(size) < self.uniform_probability).tolist()
            for values, uniform in zip(draws, is_uniform, strict=True):
                if not left.allows(pool).any():
                    pool = sampler.promising_arms(left.allowed)
                    break
                values = values.masked_fill(~left.allows(pool), -torch.inf)
                best = (
                    left.draw(self.generator) if uniform else int(pool[values.argmax()])
                )
                yield best
            size *= 2
