"""A drifting posterior whose observations may come late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

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
    count in the order in which they were brought, so that the filter goes through the
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
        self._imagined: tuple[list[tuple[float, int]], DriftingPosterior] | None = None

    def reaches(self, observations: Iterable[Observation]) -> bool:
        """Whether no observation is of a time before that of the checkpoint."""
        return not _is_late(self._checkpoint, observations)

    def bring(self, observations: Iterable[Observation], oldest: float) -> None:
        """Take in observations that the checkpoint reaches.

        Args:
            observations: In the order of telling.
            oldest: The time of the oldest pull that is still out; infinity for none.
        """
        new, since = self._in_order(observations)
        num_settled = sum(one.time <= oldest for one in since)
        settled, rest = since[:num_settled], since[num_settled:]
        is_late = _is_late(self.filter, new)
        is_one = self.filter is self._checkpoint
        if settled:
            self._imagined = None
        if is_late or rest:
            _observe(self._checkpoint, settled)
        if is_late or (rest and is_one):
            self.filter = self._checkpoint.copy() if rest else self._checkpoint
            _observe(self.filter, rest)
        else:
            _observe(self.filter, new)
        if not rest:
            self._checkpoint = self.filter
        self._since = rest

    def given(self, observations: Iterable[Observation]) -> DriftingPosterior:
        """Return a filter that has some more observations; this one stays."""
        new, since = self._in_order(observations)
        is_late = _is_late(self.filter, new)
        moving = (self._checkpoint if is_late else self.filter).copy()
        _observe(moving, since if is_late else new)
        return moving

    def imagine(self, pending: Sequence[tuple[float, int]]) -> DriftingPosterior:
        """Return a filter whose variances count pulls that are out, and no mean.

        As if each had been told at its own time, which no result of a later time may
        change: so what was imagined before serves again while its pulls are the first.

        Args:
            pending: Times and arms, none before the checkpoint.
        """
        pulls = sorted([*((one.time, one.arm) for one in self._since), *pending])
        done: list[tuple[float, int]] = []
        if self._imagined is not None:
            done, moving = self._imagined
        if not done or pulls[: len(done)] != done:
            done, moving = [], self._checkpoint.copy()
        self._imagined = None  # an interrupt must leave no half of it
        for time, arm in pulls[len(done) :]:
            imagine_pull(moving, arm, time)
        self._imagined = pulls, moving
        return moving.copy()

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


def imagine_pull(moving: DriftingPosterior, arm: int, time: float) -> None:
    """Let a filter have the mean of an arm at a time: the variances fall."""
    moving.advance(time)
    one = torch.tensor([arm], device=moving.mean.device)
    moving.observe(one, moving.mean[one], time)


def _time_of(observation: Observation) -> float:
    return observation.time


def _is_late(moving: DriftingPosterior, observations: Iterable[Observation]) -> bool:
    time = moving.time
    return time is not None and any(one.time < time for one in observations)


def _observe(moving: DriftingPosterior, observations: Iterable[Observation]) -> None:
    """Bring observations in order of time, those of one time together."""
    for time, group in groupby(observations, key=_time_of):
        _, arms, rewards = zip(*group, strict=True)
        indices = torch.tensor(arms, device=moving.mean.device)
        moving.observe(
            indices, torch.tensor(rewards, dtype=torch.float64).to(moving.mean), time
        )
