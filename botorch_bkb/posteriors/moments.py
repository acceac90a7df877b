"""Questions about all arms, whose answers are small.

Above this layer nothing holds or passes over numbers of all arms, except where a user
asks for them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override


class Ranked(NamedTuple):
    """Arms in order of their values, largest first, the lowest index among ties."""

    values: Tensor
    arms: Tensor

    @classmethod
    def merged(cls, parts: Sequence[Ranked], size: int) -> Ranked:
        """Return the first of several lists, each over higher indices than before."""
        if len(parts) == 1:
            return parts[0]
        values = torch.cat([part.values for part in parts])
        arms = torch.cat([part.arms for part in parts])
        values, order = values.sort(descending=True, stable=True)
        return cls(values[:size], arms[order[:size]])


def largest(values: Tensor, size: int) -> Ranked:
    """Return the largest values and where they stand, the lowest index among ties.

    NaN is larger than any number.
    """
    size = min(size, len(values))
    if not size:
        return Ranked(values[:0], torch.arange(0, device=values.device))
    if size == 1:  # `max` returns the first of the largest
        return Ranked(*values.max(dim=0, keepdim=True))
    least = values.topk(size).values[-1:]
    above = (values.isnan() | (values > least)).nonzero().squeeze(-1)[:size]
    ties = (values == least).nonzero().squeeze(-1)[: size - len(above)]
    positions = torch.cat([above, ties]).sort().values
    found, order = values[positions].sort(descending=True, stable=True)
    return Ranked(found, positions[order])


def positions_in(arms: Tensor, sought: Tensor, is_ascending: bool = False) -> Tensor:
    """Return where arms stand in a list of distinct ones, -1 for those that do not.

    Args:
        arms: The list.
        sought: Arms, in any order.
        is_ascending: Whether the list is in order.
    """
    if not len(arms):
        return torch.full_like(sought, -1)
    ordered, order = (arms, None) if is_ascending else arms.sort()
    near = torch.searchsorted(ordered, sought.contiguous()).clamp_max_(len(arms) - 1)
    place = near if order is None else order[near]
    return torch.where(ordered[near] == sought, place, -1)


def expected_rise(
    mean: Tensor,  # k
    variance: Tensor,  # k
    noise_variance: float,
    top: Ranked,
    is_best: Tensor,  # k, bool
) -> Tensor:  # k
    r"""Return how much one more pull is expected to raise the largest mean.

    The knowledge gradient of [frazier2009]_ as if arms were independent: a pull of
    ``x`` moves its mean by a normal step of deviation ``s = v / sqrt(v + lambda)``,
    so ::

        E max(mean(x) + step, rest) - max(mean(x), rest) = s h(-|mean(x) - rest| / s)

    with ``h(z) = z Phi(z) + phi(z)`` and ``rest`` the largest mean of the others.

    Args:
        mean: The means of some arms.
        variance: Their variances.
        noise_variance: lambda.
        top: The two largest means of all arms that compete; one if there is one arm.
        is_best: Whether an arm is the first of these.
    """
    second = top.values[1] if len(top.values) > 1 else -math.inf
    rest = torch.where(is_best, second, top.values[0])
    step = variance / (variance + noise_variance).sqrt()
    z = -(mean - rest).abs() / step
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    gain = step * (z * torch.special.ndtr(z) + density)
    # Far below the best the two terms cancel, and rounding is negative.
    return torch.where(step > 0, gain, 0.0).nan_to_num(0.0).clamp_min(0.0)


class Moments(ABC):
    """Means and variances of ``A`` arms, and what widths need beside them.

    Attributes:
        num_arms: A.
        like: A tensor without entries, of the dtype and on the device of the moments.
        max_prior_variance: The largest prior variance, kappa squared.
        noise_variance: lambda.
        pulled_indices: The arms with rewards.
        inducing_indices: The inducing arms.
        log_det: ``log det(I + K / lambda)`` of the pulls.
        effective_dimension: The sum of the pulls' leverage scores.
    """

    num_arms: int
    like: Tensor
    max_prior_variance: float
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float

    @abstractmethod
    def means(self, indices: Tensor) -> Tensor:
        """Return the posterior means of a few arms."""

    @abstractmethod
    def variances(self, indices: Tensor) -> Tensor:
        """Return the posterior variances of a few arms."""

    @abstractmethod
    def largest_bounds(
        self,
        scale: float,
        size: int,
        competes: Tensor | None = None,
        known: Ranked | None = None,
    ) -> Ranked:
        """Return the arms of the largest ``mean + scale sqrt(variance)``.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            competes: An ``A``-dim boolean tensor; minus infinity for all others. All
                if None.
            known: Arms whose bounds are known, in any order.
        """

    def leverage_scores_of(self, indices: Tensor) -> Tensor:
        """Return the ridge leverage scores of a few arms."""
        return self.variances(indices) / self.noise_variance

    def leverage_score(self, index: int) -> float:
        """Return the ridge leverage score of one arm."""
        arm = torch.tensor([index], device=self.like.device)
        return self.leverage_scores_of(arm).item()

    def best_mean(self, competes: Tensor | None = None) -> int:
        """Return the arm of the largest mean, the lowest index among ties.

        Args:
            competes: An ``A``-dim boolean tensor; all if None.
        """
        return int(self.largest_bounds(0.0, 1, competes).arms)


@dataclass
class ArmMoments(Moments):
    """The moments of all arms at one time, as numbers.

    Attributes:
        mean: The ``A`` posterior means.
        variance: The ``A`` posterior variances.
        prior_variance: The ``A`` prior variances.
    """

    mean: Tensor
    variance: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float

    def __post_init__(self) -> None:
        self.num_arms = len(self.mean)
        self.like = self.mean[:0]
        self.max_prior_variance = self.prior_variance.max().item()

    @override
    def means(self, indices: Tensor) -> Tensor:
        return self.mean[indices]

    @override
    def variances(self, indices: Tensor) -> Tensor:
        return self.variance[indices]

    @override
    def largest_bounds(
        self,
        scale: float,
        size: int,
        competes: Tensor | None = None,
        known: Ranked | None = None,
    ) -> Ranked:
        bounds = self.mean + scale * self.variance.sqrt()
        if competes is not None:
            bounds = bounds.masked_fill(~competes, -torch.inf)
        if known is not None:
            bounds[known.arms] = known.values
        return largest(bounds, size)
