"""The next arm of a batch, by upper confidence bounds; arms for the goal "best_arm"."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import PullCounts, PullLimits
from botorch_bkb.arms.table import UNLIMITED
from botorch_bkb.models.utils.rows import Duplicates, first_equal, later_duplicates
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.posterior import expected_rise, Posterior


# The pool starts with this many arms and doubles, up to a limit.
POOL_SIZE = 128
MAX_POOL_SIZE = 1024
# So few that a pool's product with them stays below the size from which BLAS libraries
# start threads, which cost more than the product.
MAX_DOWNDATES = 64
# An arm whose upper bound with so many standard deviations misses a target exceeds it
# with less than 2.3 %.
HOPELESS_DEVIATIONS = 2.0


class Choices(ABC):
    """Arms to choose one by one, each choice in view of those before."""

    @abstractmethod
    def best(self) -> int | None:
        """Return the arm to choose now; None if no arm may be pulled any more."""

    @abstractmethod
    def pull(self, index: int, num_pulls: int) -> None:
        """Count pulls of an arm that was chosen."""

    def num_repeats(self, index: int) -> int:
        """Return how many pulls in a row an arm stays the best for, one at least."""
        return 1


class Pool:
    r"""A few arms with their covariances, as pulls without reward are added.

    ``n`` pulls of an arm turn a covariance ``M`` into ``M - n m m^T / (lambda + n p)``,
    ``m`` the arm's column and ``p`` its variance. If ``projected``, ``M`` is the
    projected covariance, beside which the residual stays. In NumPy on the processor:
    PyTorch's overhead would be most of the time.

    Args:
        posterior: The posterior given the pulls so far; it is not changed.
        scale: The number of standard deviations of the bounds.
        indices: The ``k`` arms of the pool, ascending.
        projected: Whether pulls reduce the projected variance only.
    """

    def __init__(
        self, posterior: Posterior, scale: float, indices: Tensor, projected: bool
    ) -> None:
        self.noise_variance = posterior.noise_variance
        self.scale = scale
        self.indices = indices
        self.arms: list[int] = indices.tolist()
        self.position = dict(zip(self.arms, range(len(self.arms)), strict=True))
        _, mean, residual, variance = posterior.moments(indices)
        if not projected:
            residual, variance = torch.zeros_like(residual), residual + variance
        # Rounding can leave a variance of zero below it, and a bound that is NaN.
        variance = variance.clamp_min(0.0)
        self.mean = mean.cpu().numpy()
        self.residual = residual.cpu().numpy()
        self.variance = variance.cpu().numpy()
        covariance = posterior.covariance(indices, indices, projected)
        self.covariance = covariance.cpu().numpy()
        # The downdates m sqrt(n / (lambda + n p)) not yet in `covariance`.
        self.downdates = np.empty((MAX_DOWNDATES, len(self.arms)), self.mean.dtype)
        self.num_downdates = 0
        self._refresh()

    def best(self, other_than: int | None = None) -> tuple[float, int]:
        """Return the largest bound, of the other arms, and the lowest index of ties."""
        bounds = self._bounds
        if not len(bounds):
            return -math.inf, -1
        if other_than is not None:
            bounds = bounds.copy()
            bounds[self.position[other_than]] = -math.inf
        position = int(bounds.argmax())
        return bounds.item(position), self.arms[position]

    def moments(self, index: int) -> list[float]:
        """Return an arm's mean, fixed variance and reducible variance."""
        at = self.position[index]
        return [self.mean.item(at), self.residual.item(at), self.variance.item(at)]

    def close(self, index: int) -> None:
        """Exclude an arm from now on."""
        self.mean[self.position[index]] = -math.inf
        self._refresh()

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of one arm of the pool, without rewards."""
        position = self.position[index]
        p = self.variance.item(position)
        if p <= 0:
            return
        if self.num_downdates == MAX_DOWNDATES:
            self.covariance -= self.downdates.T @ self.downdates
            self.num_downdates = 0
        earlier = self.downdates[: self.num_downdates]
        column = self.covariance[position] - earlier[:, position] @ earlier
        column *= math.sqrt(num_pulls / (self.noise_variance + num_pulls * p))
        self.downdates[self.num_downdates] = column
        self.num_downdates += 1
        self.variance -= column * column
        np.maximum(self.variance, 0.0, out=self.variance)
        self._refresh()

    def _refresh(self) -> None:
        self._bounds = self.mean + self.scale * np.sqrt(self.residual + self.variance)


class UpperBounds(Choices):
    """Upper confidence bounds of all arms, as pulls without reward are added.

    Exact for a pool of the largest ones, whose covariances are known. Bounds only fall,
    so those of the other arms are at most what they were when the pool was made. If one
    of them could be larger than the pool's, the posterior given all pulls makes another
    pool.

    Args:
        posterior: The posterior given all rewards and pending pulls.
        scale: The number of standard deviations of the bounds.
        projected: Whether pulls reduce the projected variance only, as in the BBKB
            paper.
        limits: How many pulls each arm allows; kept up to date.
    """

    def __init__(
        self, posterior: Posterior, scale: float, projected: bool, limits: PullLimits
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.projected = projected
        self.limits = limits
        num_open = limits.num_open
        self.size = num_open if num_open <= MAX_POOL_SIZE else POOL_SIZE
        # None before there is a pull: the choice that ends a batch needs no more.
        self.pool: Pool | None = None
        self.outside = (-math.inf, -1)
        self.new_pulls: dict[int, int] = {}  # which the posterior does not have

    @override
    def best(self) -> int | None:
        """Return the arm of the largest bound, lowest index first; None if none."""
        bound, arm = self._largest_bound()
        if math.isnan(bound):
            raise InputDataError(
                "Expected upper confidence bounds to be numbers, but got NaN. "
                "Check `covar_module` and the confidence schedule."
            )
        return None if bound == -math.inf else arm

    def _largest_bound(self) -> tuple[float, int]:
        """Return the largest bound and its arm; minus infinity for no arm."""
        if self.pool is None:
            top = self.posterior.largest_bounds(self.scale, 1, self.limits.allowed)
            found = zip(top.values.tolist(), top.arms.tolist(), strict=True)
            return next(found, (-math.inf, -1))
        best = self.pool.best()
        if not _beats(self.outside, best):
            return best
        self.size = min(2 * self.size, MAX_POOL_SIZE)
        return self._new_pool().best()

    @override
    def num_repeats(self, index: int) -> int:
        """Return how many pulls in a row keep the arm best; at most its limits.

        One at least. With ``n`` pulls the bound is ``mean + scale sqrt(residual +
        p lambda / (lambda + n p))``, against bounds that can only fall.
        """
        if not self.posterior.has_covariances:
            return 1
        pool = self.pool or self._new_pool()
        noise = self.posterior.noise_variance
        rival = pool.best(other_than=index)
        if _beats(self.outside, rival):
            rival = self.outside
        mean, residual, p = pool.moments(index)

        def overtaken(num_pulls: int) -> bool:
            variance = residual + p * noise / (noise + num_pulls * p)
            bound = mean + self.scale * math.sqrt(variance)
            return _beats(rival, (bound, index))

        return first_crossing(overtaken, self.limits.of(index))

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        self.new_pulls[index] = self.new_pulls.get(index, 0) + num_pulls
        is_used_up = self.limits.take(index, num_pulls)
        if self.pool is not None:
            self.pool.pull(index, num_pulls)
            if is_used_up:
                self.pool.close(index)
        elif self.posterior.has_covariances:
            self._new_pool()
        else:
            self._condition()

    def _condition(self) -> None:
        """Let the posterior know all pulls."""
        self.posterior = self.posterior.given(self.new_pulls, self.projected)
        self.new_pulls = {}

    def _new_pool(self) -> Pool:
        """Return a pool of the largest bounds given all pulls."""
        self._condition()
        found, self.outside = self.posterior.shortlist(
            self.scale, self.size, self.limits.allowed
        )
        arms = found.arms[found.values != -math.inf].sort().values
        self.pool = Pool(self.posterior, self.scale, arms, self.projected)
        return self.pool


def _beats(left: tuple[float, int], right: tuple[float, int]) -> bool:
    """Whether the first (bound, index) goes before the second."""
    return left[0] > right[0] or (left[0] == right[0] and left[1] < right[1])


def hopeful_scale(
    posterior: Posterior, scale: float, target: float, allowed: Any = None
) -> float:
    """Return a scale of upper bounds whose largest one is of a hopeful arm.

    The scale as it is, unless the arm of the largest bound exceeds the target with a
    probability below 2.3 %. Then the least scale at which any bound reaches the target:
    it is reached by the arm of the largest probability of improvement on the target
    [kushner1964]_. The scales of the arms found fall to it [dinkelbach1967]_.

    Args:
        posterior: The posterior.
        scale: The number of standard deviations of the bounds.
        target: The value to exceed.
        allowed: As for :meth:`Posterior.largest_bounds`.
    """

    def deviations(scale: float) -> float:
        """Return how far the arm of the largest bound is from the target."""
        arm = posterior.largest_bounds(scale, 1, allowed).arms
        gap = target - posterior.means(arm)
        return next(iter((gap / posterior.variances(arm).sqrt()).tolist()), -math.inf)

    least = deviations(scale)
    if not max(scale, HOPELESS_DEVIATIONS) < least < math.inf:
        return scale
    while (less := deviations(least)) < least:
        least = less
    return least


def best_arm_limits(
    posterior: ArmPosterior,
    limits: PullLimits,
    used: PullCounts,
    pending: Tensor,
    size: int,
    duplicates: Duplicates,
) -> PullLimits:
    """Return the pull limits of a batch of distinct arms, for the goal "best_arm".

    A batch may pull new arms, and pulled arms whose knowledge gradient exceeds that of
    every new arm. If these are fewer than ``size``, the pulled arms of the largest
    knowledge gradients are added. Every arm allows one pull at most. Arms with equal
    rows are one arm: each is pulled if one of them is, and one competes for the best.

    Args:
        posterior: The posterior given the observations.
        limits: How many pulls each arm allows.
        used: The pulls so far, told and pending.
        pending: The arms of pending pulls, repeats included.
        size: The size of the batch.
        duplicates: The arms with equal rows.
    """
    is_open, allowed = limits.is_open.clone(), limits.available
    is_known = ~is_open if allowed is None else allowed & ~is_open
    is_known[used.arms] = True
    if len(duplicates.rows):
        pulled = torch.isin(duplicates.first, first_equal(duplicates, used.arms))
        is_known[duplicates.rows[pulled]] = True
        allowed = torch.ones_like(is_open) if allowed is None else allowed.clone()
        allowed[later_duplicates(duplicates, allowed[duplicates.rows])] = False
    # The others are new, and alike but for their gain.
    arms = is_known.nonzero().squeeze(-1)
    is_offered = is_open[arms]
    top = posterior.largest_bounds(0.0, 2, allowed)
    most = posterior.largest_gain(top, allowed, arms)
    noise, variance = posterior.noise_variance, posterior.variances(arms)
    # Rewards of pending pulls are not known, but the variance that they leave is.
    rows, place = first_equal(duplicates, arms).unique(return_inverse=True)
    out = torch.searchsorted(rows, first_equal(duplicates, pending))
    out = torch.bincount(out, minlength=len(rows))[place]
    left = 1 / (1 + out * variance / noise)
    is_best = rows[place] == first_equal(duplicates, top.arms[:1])
    args = left * variance, posterior.result_variance, top, is_best
    gain = expected_rise(posterior.means(arms), *args)
    num_new = limits.num_open - int(is_offered.sum())
    chosen = is_offered & (gain > (most if num_new else -math.inf))
    missing = min(size, limits.num_open) - num_new - int(chosen.sum())
    if missing > 0:
        rest = gain.masked_fill(chosen | ~is_offered, -math.inf)
        # Stable: the lowest index among ties.
        chosen[rest.sort(descending=True, stable=True).indices[:missing]] = True
    is_open[arms] = chosen
    return PullLimits(is_open.int())


def first_crossing(crosses: Callable[[int], bool], most: int = UNLIMITED) -> int:
    """Return the least ``n >= 1`` for which a monotone condition holds, or ``most``."""
    high = 1
    while high < most and not crosses(high):
        high = 2 * high
    low = high // 2 + 1
    return low + bisect_left(range(low, min(high, most)), True, key=crosses)
