"""The distribution of the maximizer, from draws, and the rule that stops on it.

[basu2017]_ writes ``F_t`` for the posterior distribution of the point where the unknown
function is largest; a Thompson draw is a draw from it. Its section 2.2 stops "when the
variance of the distribution of F_t becomes considerably small" and returns its mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


class MaximizerSample:
    """Base class of distributions of the maximizer.

    Attributes:
        maximizers: The ``n x d`` points that were best, one per draw.
    """

    maximizers: Tensor

    @property
    def num_draws(self) -> int:
        """The number of draws."""
        return self.maximizers.shape[0]

    @property
    def variance(self) -> Tensor:
        """The ``d`` variances of the maximizer's coordinates."""
        return self.maximizers.var(dim=0, correction=0)


class MaximizerDistribution(MaximizerSample):
    r"""The distribution of the best arm, estimated by draws.

    By the empirical distribution of ``n`` draws, so the entropy is too small by about
    ``(number of distinct arms - 1) / (2 n)``.

    Args:
        arms: The ``A x d`` arms.
        indices: An ``n``-dim long tensor, the best arm of each draw, such as
            :meth:`~botorch_bkb.generation.ArmSampler.draw_best_arms` returns.

    Attributes:
        indices: The best arms, one per draw.
        maximizers: Their features, ``n x d``.

    Raises:
        BotorchTensorDimensionError: If ``arms`` is not ``A x d``, or ``indices`` is not
            one-dimensional or empty.
        InputDataError: If an index is no row of ``arms``.
    """

    def __init__(self, arms: Tensor, indices: Tensor) -> None:
        if arms.dim() != 2 or indices.dim() != 1 or indices.numel() == 0:
            raise BotorchTensorDimensionError(
                "Expected `arms` of shape A x d and `indices` with at least one draw, "
                f"but got {tuple(arms.shape)} and {tuple(indices.shape)}."
            )
        if indices.min() < 0 or indices.max() >= arms.shape[0]:
            raise InputDataError(
                f"Expected `indices` between 0 and {arms.shape[0] - 1}, the rows of "
                f"`arms`, but got {int(indices.min())} to {int(indices.max())}."
            )
        self.indices = indices
        self.maximizers = arms[indices]
        self._num_arms = arms.shape[0]

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of draws in which an arm is best."""
        return torch.bincount(self.indices, minlength=self._num_arms)

    @property
    def probabilities(self) -> Tensor:
        """The ``A`` probabilities of being best."""
        return self.counts.to(self.maximizers) / self.num_draws

    @property
    def standard_errors(self) -> Tensor:
        """The ``A`` Monte Carlo standard errors of the probabilities."""
        p = self.probabilities
        return (p * (1 - p) / self.num_draws).sqrt()

    @property
    def entropy(self) -> float:
        """The entropy, in nats."""
        return torch.special.entr(self.probabilities).sum().item()

    @property
    def mode(self) -> int:
        """The arm that is best most often, the lowest index among ties."""
        return int(self.counts.argmax())

    def credible_set(self, level: float = 0.95) -> Tensor:
        """Return the fewest arms that hold a probability, most likely first.

        Args:
            level: The probability that they hold at least, in ``(0, 1]``.

        Returns:
            A long tensor of arm indices; ties by index.
        """
        _check_level(level)
        arms, counts = self.indices.unique(return_counts=True)
        counts, order = counts.sort(descending=True, stable=True)
        held = counts.cumsum(dim=0)
        # Rounding must not add an arm: 0.1 of 10 draws is one draw.
        return arms[order[: int((held < level * self.num_draws - 1e-9).sum()) + 1]]


class BoxMaximizerDistribution(MaximizerSample):
    r"""The distribution of the best point of a box, estimated by draws.

    Densities are a Gaussian kernel estimate with the bandwidth ``1.06 min(deviation,
    quartile range / 1.34) n^{-1/(d + 4)}`` in each coordinate (Silverman's rule).

    Args:
        maximizers: An ``n x d`` tensor, the best point of each draw.

    Raises:
        BotorchTensorDimensionError: If ``maximizers`` is not ``n x d`` with ``n >= 1``.
    """

    def __init__(self, maximizers: Tensor) -> None:
        if maximizers.dim() != 2 or maximizers.shape[0] == 0:
            raise BotorchTensorDimensionError(
                "Expected `maximizers` of shape n x d with at least one draw, but got "
                f"{tuple(maximizers.shape)}."
            )
        self.maximizers = maximizers

    @property
    def density(self) -> Tensor:
        """The estimated densities at the ``n`` maximizers, up to a constant."""
        # Differences of large numbers would cancel.
        x = (self.maximizers - self.maximizers.mean(dim=0)) / self._bandwidth()
        return (-0.5 * torch.cdist(x, x).square()).exp().mean(dim=-1)

    @property
    def entropy(self) -> float:
        """The differential entropy, in nats, by the densities without the own draw.

        Minus infinity if all draws agree.
        """
        n, d = self.maximizers.shape
        spread = self._bandwidth()
        if n == 1 or not (self.variance > 0).all():
            return -torch.inf
        others = (n * self.density - 1) / (n - 1)
        constant = 0.5 * d * torch.log(self.maximizers.new_tensor(2 * torch.pi))
        tiny = torch.finfo(others.dtype).tiny
        log_density = others.clamp_min(tiny).log() - constant - spread.log().sum()
        return -log_density.mean().item()

    @property
    def mode(self) -> Tensor:
        """The maximizer of the largest estimated density, a ``d``-dim tensor."""
        return self.maximizers[self.density.argmax()]

    def credible_set(self, level: float = 0.95) -> Tensor:
        """Return the maximizers of the largest densities that hold a probability.

        Args:
            level: The share of the draws that is returned at least, in ``(0, 1]``.

        Returns:
            A ``k x d`` tensor, most likely first.
        """
        _check_level(level)
        size = math.ceil(level * self.num_draws - 1e-9)
        order = self.density.argsort(descending=True, stable=True)
        return self.maximizers[order[: max(size, 1)]]

    def _bandwidth(self) -> Tensor:
        n, d = self.maximizers.shape
        deviation = self.variance.sqrt()
        quartiles = self.maximizers.new_tensor([0.25, 0.75])
        low, high = self.maximizers.quantile(quartiles, dim=0)
        spread = (high - low) / 1.34
        # More than half of the draws may agree.
        spread = torch.where(spread > 0, torch.minimum(spread, deviation), deviation)
        width = 1.06 * spread * n ** (-1 / (d + 4))
        return torch.where(width > 0, width, torch.ones_like(width))


@dataclass(frozen=True)
class VarianceStoppingRule:
    r"""The paper's stopping rule, for any bandit that has such a distribution.

    Section 2.2 of [basu2017]_: stop when the variance of the distribution of the
    maximizer is small, and return its mode.

    Args:
        max_variance: The largest variance of a coordinate of the maximizer at which to
            stop; a number for all coordinates, or a ``d``-dim tensor.

    Raises:
        InputDataError: If ``max_variance`` is not positive.

    Example:
        >>> rule = VarianceStoppingRule(max_variance=0.01)
        >>> distribution = bandit.maximizer_distribution(generator=generator)
        >>> if rule(distribution):
        ...     answer = distribution.mode
    """

    max_variance: float | Tensor

    def __post_init__(self) -> None:
        if not (torch.as_tensor(self.max_variance) > 0).all():
            raise InputDataError(
                f"Expected `max_variance` to be positive, but got {self.max_variance}."
            )

    def __call__(self, distribution: MaximizerSample) -> bool:
        """Return whether every coordinate of the maximizer is known well enough."""
        limit = torch.as_tensor(self.max_variance).to(distribution.variance)
        if limit.dim() > 0 and limit.shape != distribution.variance.shape:
            raise BotorchTensorDimensionError(
                "Expected `max_variance` to be a number or to have shape "
                f"{tuple(distribution.variance.shape)}, one entry per coordinate, but "
                f"got {tuple(limit.shape)}."
            )
        return bool((distribution.variance <= limit).all())


def _check_level(level: float) -> None:
    if not 0 < level <= 1:
        raise InputDataError(
            f"Expected `level` above 0 and at most 1, but got {level}."
        )
