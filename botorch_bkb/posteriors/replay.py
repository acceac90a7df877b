"""A drifting posterior whose observations may come late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Self

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.posteriors.arm_sampler import POOL_DEVIATIONS, POOL_SIZE
from botorch_bkb.posteriors.posterior import largest, Posterior, Ranked
from botorch_bkb.posteriors.sparse_arm_filter import SparseArmKalmanFilter


_time_of = attrgetter("time")


class Observation(NamedTuple):
    """An observation, in the units of the filter."""

    time: float
    arm: int
    reward: float


class ReplayedFilter:
    r"""A filter of observations that may come late.

    It keeps one filter, of all observations up to the time of the oldest pending pull,
    and replays those after it where they are needed. Observations of one time count in
    the order of telling, so that the filter equals bit for bit one that has all
    observations at once.

    Args:
        settled: A filter without observations; it is changed in place.

    Attributes:
        settled: The filter given the observations before any pending pull.
        since: The observations after these, by time.
    """

    def __init__(self, settled: SparseArmKalmanFilter) -> None:
        self.settled = settled
        self.since: list[Observation] = []
        self._present: SparseArmKalmanFilter | None = None

    @property
    def filter(self) -> SparseArmKalmanFilter:
        """Given all observations, at the time of the last."""
        if not self.since:
            return self.settled
        if self._present is None:
            self._present = self.with_observations([])
        return self._present

    def reaches(self, observations: Iterable[Observation]) -> bool:
        """Whether no observation is of a time before those that are settled."""
        time = self.settled.time
        return time is None or all(pull.time >= time for pull in observations)

    def observe(self, observations: Iterable[Observation], oldest: float) -> None:
        """Take in observations that the settled ones allow.

        Args:
            observations: In the order of telling.
            oldest: The time of the oldest pending pull; infinity for none.
        """
        since = sorted([*self.since, *observations], key=_time_of)
        num_settled = sum(pull.time <= oldest for pull in since)
        _observe(self.settled, since[:num_settled])
        self.since, self._present = since[num_settled:], None

    def with_observations(
        self, observations: Iterable[Observation]
    ) -> SparseArmKalmanFilter:
        """Return a filter that has some more observations; this one stays."""
        posterior = self.settled.copy()
        _observe(posterior, sorted([*self.since, *observations], key=_time_of))
        return posterior

    def hallucinate(
        self, pending: Sequence[tuple[float, int]]
    ) -> SparseArmKalmanFilter:
        """Return a filter whose variances count pending pulls, each at its own time.

        Args:
            pending: Times and arms, none before the settled observations.
        """
        posterior = self.settled.copy()
        since = [(told.time, told.arm) for told in self.since]
        for time, arm in sorted([*since, *pending]):
            hallucinate_pull(posterior, arm, time)
        return posterior

    def at(
        self,
        time: float,
        pending: Sequence[tuple[float, int]] = (),
        pulled_indices: Tensor | None = None,
        effective_dimension: float = 0.0,
        like: Tensor | None = None,
    ) -> FilterPosterior:
        """Return the posterior at a time.

        Args:
            time: When.
            pending: Times and arms of pulls without reward, on which to condition.
            pulled_indices: The arms with rewards; the inducing arms if None.
            effective_dimension: The sum of the pulls' leverage scores.
            like: A tensor of the dtype of the moments; that of the filter if None.
        """
        known = self.filter
        like = known.mean if like is None else like
        inducing = known.inducing_indices
        mean, variance = known.predict(time)
        conditioned = known
        if pending:
            conditioned = self.hallucinate(pending)
            variance = conditioned.predict(time)[1]
        return FilterPosterior(
            mean=mean.to(like),
            variance=variance.to(like),
            prior_variance=known.prior_variance.to(like),
            noise_variance=known.noise_variance,
            pulled_indices=inducing if pulled_indices is None else pulled_indices,
            inducing_indices=inducing,
            log_det=known.log_det,
            effective_dimension=effective_dimension,
            filter=conditioned,
            time=time,
        )

    def extended(self, arms: Tensor) -> ReplayedFilter:
        """Return one over ``k x d`` more arms."""
        other = ReplayedFilter(self.settled.extended(arms))
        other.since = self.since
        return other


@dataclass
class FilterPosterior(Posterior):
    """The posterior of arms that drift, at one time.

    Attributes:
        mean: The ``A`` posterior means.
        variance: The ``A`` posterior variances.
        prior_variance: The ``A`` prior variances.
        filter: Conditions on pulls without reward and draws; it is not changed.
        time: The time, in the units of the filter.
    """

    mean: Tensor
    variance: Tensor
    prior_variance: Tensor
    noise_variance: float
    pulled_indices: Tensor
    inducing_indices: Tensor
    log_det: float
    effective_dimension: float
    filter: SparseArmKalmanFilter | None = None
    time: float = 0.0
    has_covariances = False

    def __post_init__(self) -> None:
        self.num_arms = len(self.mean)
        self.like = self.mean[:0]
        self.max_prior_variance = self.prior_variance.max().item()

    @override
    def moments(self, indices: Tensor) -> Tensor:
        columns = self.prior_variance, self.mean, self.variance
        prior, mean, variance = (column[indices] for column in columns)
        return torch.stack([prior, mean, torch.zeros_like(mean), variance])

    def copied_filter(self) -> SparseArmKalmanFilter:
        """Return a filter that may be changed."""
        if self.filter is None:
            raise UnsupportedError("Expected `filter`, to condition on pulls.")
        return self.filter.copy()

    @override
    def given(self, pulls: Mapping[int, int], projected: bool = False) -> Self:
        """Return the posterior given pulls at this time, one after the other."""
        conditioned = self.copied_filter()
        for arm, num_pulls in pulls.items():
            for _ in range(num_pulls):
                hallucinate_pull(conditioned, arm, self.time)
        variance = conditioned.variance.to(self.mean)
        return replace(self, variance=variance, filter=conditioned)

    @override
    def largest_bounds(
        self, scale: float, size: int, allowed: Tensor | None = None
    ) -> Ranked:
        bounds = self.mean + scale * self.variance.sqrt()
        if allowed is not None:
            bounds = bounds.masked_fill(~allowed, -torch.inf)
        return largest(bounds, size)


class FilterSampler:
    """Draws of the arms that drift, at one time.

    Args:
        posterior: Conditions on all pulls; it is not changed.
        scale: As of :class:`~botorch_bkb.posteriors.ArmSampler`.
    """

    def __init__(self, posterior: FilterPosterior, scale: float = 1.0) -> None:
        self._posterior, self.scale = posterior, scale
        drifting = posterior.copied_filter()
        drifting.advance(posterior.time)
        drifting.mean = posterior.mean.to(drifting.mean)
        self._drifting = drifting

    def draw_best_arms(
        self,
        num_draws: int,
        generator: torch.Generator,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the best arms of joint draws over the promising ones.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness.
            allowed: An ``A``-dim boolean tensor of the arms that compete; all if None.
        """
        pool = self._posterior.largest_bounds(POOL_DEVIATIONS, POOL_SIZE, allowed)
        arms = pool.arms[pool.values > -torch.inf].sort().values
        values = self._drifting.draw_values(num_draws, generator, arms)
        values = torch.lerp(self._drifting.mean[arms], values, self.scale)
        return arms[values.argmax(dim=-1)]


def hallucinate_pull(posterior: SparseArmKalmanFilter, arm: int, time: float) -> None:
    """Let a filter observe its own mean of an arm: only variances change."""
    posterior.advance(time)
    indices = torch.tensor([arm], device=posterior.mean.device)
    posterior.observe(indices, posterior.mean[indices], time)


def _observe(
    posterior: SparseArmKalmanFilter, observations: Iterable[Observation]
) -> None:
    """Observe in order of time, observations of one time together."""
    for time, group in groupby(observations, key=_time_of):
        _, arms, rewards = zip(*group, strict=True)
        indices = torch.tensor(arms, device=posterior.mean.device)
        posterior.observe(
            indices, torch.tensor(rewards, dtype=torch.float64).to(posterior.mean), time
        )
