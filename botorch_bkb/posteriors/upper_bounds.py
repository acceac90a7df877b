"""Which arm has the largest upper confidence bound, as pulls are added."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import PullLimits
from botorch_bkb.models.utils.crossing import first_crossing
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.hallucination import HallucinatedPosterior, PoolPosterior
from botorch_bkb.posteriors.moments import Moments
from botorch_bkb.posteriors.replay import hallucinate_pull, ReplayedFilter
from botorch_bkb.posteriors.shards import Ranked
from botorch_bkb.posteriors.sparse_arm_filter import SparseArmFilter


# The pool starts with this many arms and doubles, up to a limit.
POOL_SIZE = 128
MAX_POOL_SIZE = 1024
# Past it so many arms are tracked, at the cost of a pass over their features a pull;
# then eight times as many, and in the end all arms.
EXCERPT_SIZE = 2**15


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


class UpperBounds(Choices):
    """The arms that may be the best: a pool with exact bounds, stale ones outside.

    A stale bound holds as long as variances only fall: with fixed inducing arms, and
    with growing ones where the GP is exact; otherwise all arms are tracked. Where the
    pool would grow too large, more arms are tracked than its covariances could be kept
    of, up to a quarter of all and of the byte budget, and then all.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        grow: bool,
        pending_indices: Tensor,
        limits: PullLimits,
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.grow = grow
        self.limits = limits
        self.outside = (-math.inf, -1)
        self.pulls: dict[int, int] = {}
        # None before there is a pull: the choice that ends a batch needs no more.
        self.tracked: PoolPosterior | HallucinatedPosterior | None = None
        if len(pending_indices):
            self._begin(_counts_in_order(pending_indices))

    def _begin(self, pending: dict[int, int]) -> PoolPosterior | HallucinatedPosterior:
        """Prepare for pulls; return what is tracked."""
        if self.tracked is not None:
            return self.tracked
        posterior, grow = self.posterior, self.grow
        if (grow and posterior.is_exact) or not (grow or pending):
            self.pulls = pending
            # The stale bounds are those of the start, but of arms that left a pool.
            self.allowed = self.limits.allowed
            self.known = Ranked(posterior.like, posterior.pulled_indices[:0])
            return self._pool(POOL_SIZE)
        # Pending arms join the inducing arms, whatever the rule.
        return self._track(None, pending, append=True)

    def _first(self) -> tuple[float, int]:
        """Return the largest bound and its arm before there is a pull."""
        allowed = self.limits.allowed
        values, arms = self.posterior.largest_bounds(self.scale, 1, allowed)
        return values.item(), int(arms)

    @override
    def best(self) -> int | None:
        """Return the arm of the largest bound, lowest index first; None if none."""
        while True:
            tracked = self.tracked
            best = self._first() if tracked is None else tracked.best()
            if math.isnan(best[0]):
                raise InputDataError(
                    "Expected upper confidence bounds to be numbers, but got NaN. "
                    "Check `covar_module` and the confidence schedule."
                )
            if best[0] == self.outside[0] == -math.inf:
                return None
            if tracked is None or tracked.indices is None:
                return best[1]
            if not _beats(self.outside, best):
                return best[1]
            self._enlarge(tracked.indices, torch.as_tensor(tracked.bounds))

    @override
    def num_repeats(self, index: int) -> int:
        """Return how many pulls in a row keep the arm best; at most its limits.

        One at least. With ``n`` pulls the bound is ``mean + scale sqrt(residual +
        p lambda / (lambda + n p))``, against bounds that can only fall.
        """
        tracked = self._append(index)
        noise = self.posterior.noise_variance
        rival = tracked.rival(index)
        if _beats(self.outside, rival):
            rival = self.outside
        mean, residual, p = tracked.moments(index)

        def overtaken(num_pulls: int) -> bool:
            variance = residual + p * noise / (noise + num_pulls * p)
            bound = mean + self.scale * math.sqrt(variance)
            return _beats(rival, (bound, index))

        limit = math.inf
        if rival[0] > mean and self.scale > 0:
            room = ((rival[0] - mean) / self.scale) ** 2 - residual
            limit = noise / room - noise / p if room > 0 and p > 0 else math.inf
        pulls = first_crossing(overtaken, limit) if limit > 0 else 1
        return min(pulls, self.limits.of(index))

    def _append(self, index: int) -> PoolPosterior | HallucinatedPosterior:
        """Let a chosen arm join the inducing arms, if they grow."""
        tracked = self._begin({})
        if self.grow:
            tracked.append(index)
        return tracked

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        tracked = self._append(index)
        self.pulls[index] = self.pulls.get(index, 0) + num_pulls
        if index in tracked:
            tracked.pull(index, num_pulls)
        else:
            # The uniformly drawn first arm need not be in the pool.
            tracked = self._pool(POOL_SIZE)
        self.limits.take(index, num_pulls)
        if self.limits.of(index) <= 0 and index in tracked:
            tracked.close(index)

    def _enlarge(self, indices: Tensor, bounds: Tensor) -> None:
        """Track more arms than these, of which the bounds are known, or all."""
        is_other = ~torch.isin(self.known.arms, indices)
        self.known = Ranked(
            torch.cat([self.known.values[is_other], bounds.to(self.known.values)]),
            torch.cat([self.known.arms[is_other], indices]),
        )
        size = 2 * len(indices)
        if size <= MAX_POOL_SIZE:
            self._pool(size)
            return
        size = EXCERPT_SIZE if size <= EXCERPT_SIZE else 4 * size
        posterior = self.posterior
        feature_bytes = size * posterior.L_v.shape[0] * posterior.like.element_size()
        is_few = 4 * size <= posterior.num_arms
        if is_few and 4 * feature_bytes <= posterior.max_feature_bytes:
            self._track(self._largest(size), self.pulls, append=self.grow)
        else:
            self._track(None, self.pulls, append=self.grow)

    def _largest(self, size: int) -> Tensor:
        """Return the arms of the largest bounds; remember the best one outside."""
        ranked = self.posterior.largest_bounds(
            self.scale, size + 1, self.allowed, self.known
        )
        self.outside = (-math.inf, -1)
        if len(ranked.arms) > size:
            self.outside = ranked.values[size].item(), int(ranked.arms[size])
        return ranked.arms[:size].sort().values

    def _pool(self, size: int) -> PoolPosterior:
        """Make the arms of the largest bounds exact."""
        arms = self._largest(size)
        pool = PoolPosterior(self.posterior, self.scale, arms, self.pulls, self.grow)
        for closed in arms[~self.limits.allows(arms)].tolist():
            pool.close(closed)
        self.tracked = pool
        return pool

    def _track(
        self, arms: Tensor | None, pulls: dict[int, int], append: bool
    ) -> HallucinatedPosterior:
        """Track some arms, or all."""
        if arms is None:
            self.outside = (-math.inf, -1)
        tracked = HallucinatedPosterior(
            self.posterior, self.scale, self.limits.allowed, arms
        )
        for index, num_pulls in pulls.items():
            if append:
                tracked.append(index)
            tracked.pull(index, num_pulls)
        self.tracked = tracked
        return tracked


class DriftingUpperBounds(Choices):
    """The upper confidence bounds of arms that drift, all at one time.

    Args:
        moments: What is known at that time.
        scale: The number of standard deviations of the bounds.
        replayed: The filter; it is not changed.
        pending: Times and arms of pulls without reward.
        time: That time, in the filter's units.
        limits: How many pulls each arm allows; kept up to date.
    """

    def __init__(
        self,
        moments: Moments,
        scale: float,
        replayed: ReplayedFilter,
        pending: Sequence[tuple[float, int]],
        time: float,
        limits: PullLimits,
    ) -> None:
        self.mean, self.variance = moments.mean, moments.variance
        self.scale = scale
        self.replayed = replayed
        self.time = time
        self.limits = limits
        self.hallucinated: SparseArmFilter | None = None
        if pending:
            self.hallucinated = replayed.hallucinate(pending)
            self.variance = self.hallucinated.predict(time)[1]

    @override
    def best(self) -> int | None:
        bounds = self.mean + self.scale * self.variance.sqrt()
        if self.limits.is_used_up:
            return None
        allowed = self.limits.allowed
        if allowed is not None:
            bounds = bounds.masked_fill(~allowed, -math.inf)
        return int(bounds.argmax())

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        self.limits.take(index, num_pulls)
        if self.hallucinated is None:
            self.hallucinated = self.replayed.filter.copy()
        for _ in range(num_pulls):
            hallucinate_pull(self.hallucinated, index, self.time)
        self.variance = self.hallucinated.variance


def _beats(left: tuple[float, int], right: tuple[float, int]) -> bool:
    """Whether the first (bound, index) goes before the second."""
    return left[0] > right[0] or (left[0] == right[0] and left[1] < right[1])


def _counts_in_order(indices: Tensor) -> dict[int, int]:
    """Count the occurrences of each value, in order of appearance."""
    counts: dict[int, int] = {}
    for index in indices.tolist():
        counts[index] = counts.get(index, 0) + 1
    return counts
