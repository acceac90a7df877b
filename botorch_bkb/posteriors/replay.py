"""A drifting posterior whose observations may come late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_bkb.checks import check_number
from botorch_bkb.posteriors.drifting import DriftingPosterior


class Observation(NamedTuple):
    """A told pull, in the units of the filter."""

    time: float
    arm: int
    reward: float


class ReplayedFilter:
    r"""A filter that goes back to a checkpoint where an observation comes late.

    The checkpoint holds all observations up to the time of the oldest pull that is
    still out, so its result replays only what came since. Observations of one time
    count in the order of telling, so that the filter goes through the
    same operations as one that has all observations at once: they are equal bit for
    bit. While nothing is out the checkpoint is the filter itself.

    Args:
        empty: A filter without observations.

    Attributes:
        filter: Given all observations, at the time of the last.
    """

    def __init__(self, empty: DriftingPosterior) -> None:
        self.filter = empty
        self._checkpoint = empty
        self._since: list[Observation] = []  # what the checkpoint lacks, by time
        self._hallucinated: tuple[list[tuple[float, int]], DriftingPosterior] | None = (
            None
        )

    def reaches(self, observations: Iterable[Observation]) -> bool:
        """Whether no observation is of a time before that of the checkpoint."""
        return not _is_late(self._checkpoint, observations)

    def observe(self, observations: Iterable[Observation], oldest: float) -> None:
        """Take in observations that the checkpoint reaches.

        Args:
            observations: In the order of telling.
            oldest: The time of the oldest pull that is still out; infinity for none.
        """
        new, since = self._in_order(observations)
        num_settled = sum(pull.time <= oldest for pull in since)
        settled, rest = since[:num_settled], since[num_settled:]
        is_late = _is_late(self.filter, new)
        is_same = self.filter is self._checkpoint
        if settled:
            self._hallucinated = None
        if is_late or rest:
            _observe(self._checkpoint, settled)
        if is_late or (rest and is_same):
            self.filter = self._checkpoint.copy() if rest else self._checkpoint
            _observe(self.filter, rest)
        else:
            _observe(self.filter, new)
        if not rest:
            self._checkpoint = self.filter
        self._since = rest

    def with_observations(
        self, observations: Iterable[Observation]
    ) -> DriftingPosterior:
        """Return a filter that has some more observations; this one stays."""
        new, since = self._in_order(observations)
        is_late = _is_late(self.filter, new)
        posterior = (self._checkpoint if is_late else self.filter).copy()
        _observe(posterior, since if is_late else new)
        return posterior

    def hallucinate(self, pending: Sequence[tuple[float, int]]) -> DriftingPosterior:
        """Return a filter whose variances count pulls that are out, and no mean.

        As if each had been told at its own time, which no result of a later time may
        change: so earlier hallucinations serve again while their pulls are the first.

        Args:
            pending: Times and arms, none before the checkpoint.
        """
        pulls = sorted([*((pull.time, pull.arm) for pull in self._since), *pending])
        done: list[tuple[float, int]] = []
        if self._hallucinated is not None:
            done, posterior = self._hallucinated
        if not done or pulls[: len(done)] != done:
            done, posterior = [], self._checkpoint.copy()
        self._hallucinated = None  # an interrupt must leave no half of it
        for time, arm in pulls[len(done) :]:
            hallucinate_pull(posterior, arm, time)
        self._hallucinated = pulls, posterior
        return posterior.copy()

    def extended(self, *arms: Tensor) -> ReplayedFilter:
        """Return one over more arms; ``arms`` as in the filters' ``extended``."""
        other = ReplayedFilter(self._checkpoint.extended(*arms))
        if self.filter is not self._checkpoint:
            other.filter = self.filter.extended(*arms)
        other._since = self._since
        return other

    def _in_order(
        self, observations: Iterable[Observation]
    ) -> tuple[list[Observation], list[Observation]]:
        """Return the observations by time, and all that the checkpoint lacks."""
        new = sorted(observations, key=_time_of)
        return new, sorted([*self._since, *new], key=_time_of)


class FilterSampler:
    """Draws of the arms at one time, which know of pulls that are out.

    Args:
        replayed: The filter; it is not changed.
        pending: Times and arms of pulls without reward.
        time: When.
        spread: How far draws go from the mean, as of
            :class:`~botorch_bkb.posteriors.ArmSampler`.
    """

    def __init__(
        self,
        replayed: ReplayedFilter,
        pending: Sequence[tuple[float, int]],
        time: float,
        spread: float = 1.0,
    ) -> None:
        self.spread = check_number("spread", spread, least=0.0)
        if pending:
            self._drifting = replayed.hallucinate(pending)
            self._drifting.advance(time)
            # Hallucinations bring variances only.
            self._drifting.mean = replayed.filter.predict(time)[0]
        else:
            self._drifting = replayed.filter.copy()
            self._drifting.advance(time)

    def draw_best_arms(
        self,
        num_draws: int,
        generator: torch.Generator,
        allowed: Tensor | None = None,
    ) -> Tensor:
        """Return the best arms of draws; ``num_draws x A`` numbers.

        Args:
            num_draws: The number of draws.
            generator: Their source of randomness.
            allowed: An ``A``-dim boolean tensor of the arms that compete; all if None.
        """
        values = self._drifting.draw_values(num_draws, generator)
        values = torch.lerp(self._drifting.mean, values, self.spread)
        if allowed is not None:
            values = values.masked_fill(~allowed, -torch.inf)
        return values.argmax(dim=-1)


def hallucinate_pull(posterior: DriftingPosterior, arm: int, time: float) -> None:
    """Let a filter observe its own mean of an arm: only variances change."""
    posterior.advance(time)
    indices = torch.tensor([arm], device=posterior.mean.device)
    posterior.observe(indices, posterior.mean[indices], time)


def _time_of(observation: Observation) -> float:
    return observation.time


def _is_late(posterior: DriftingPosterior, observations: Iterable[Observation]) -> bool:
    time = posterior.time
    return time is not None and any(pull.time < time for pull in observations)


def _observe(posterior: DriftingPosterior, observations: Iterable[Observation]) -> None:
    """Observe in order of time, observations of one time together."""
    for time, group in groupby(observations, key=_time_of):
        _, arms, rewards = zip(*group, strict=True)
        indices = torch.tensor(arms, device=posterior.mean.device)
        posterior.observe(
            indices, torch.tensor(rewards, dtype=torch.float64).to(posterior.mean), time
        )
