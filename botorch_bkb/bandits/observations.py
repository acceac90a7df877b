"""The record of pulls: told, pending and failed."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import PullCounts
from botorch_bkb.arms.table import match_rows
from botorch_bkb.checks import (
    check_count,
    check_indices,
    check_points,
    check_pull_ids,
    check_rewards,
    check_score,
    check_time,
    wrong_pull,
)
from botorch_bkb.posteriors.kernel_rows import positions_in_ascending


class Pull(NamedTuple):
    """A pull without reward: its arm, and leverage score and time of the ask.

    Times are those of bandits on objectives that drift; others leave them at zero.
    """

    arm: int
    score: float
    time: float = 0.0


class Totals(NamedTuple):
    """What was told of ``P`` arms.

    Attributes:
        arms: A ``P``-dim long tensor, ascending.
        counts: Their numbers of told pulls.
        sums: Their summed rewards, in double.
    """

    arms: Tensor
    counts: Tensor
    sums: Tensor

    def plus(self, indices: Tensor, rewards: Tensor) -> Totals:
        """Return the totals of more pulls as well, added in order of telling."""
        arms, counts, sums = self
        place = positions_in_ascending(arms, indices)
        if (place < 0).any():
            arms = torch.cat([arms, indices]).unique()
            before = positions_in_ascending(arms, self.arms)
            counts = counts.new_zeros(len(arms)).index_copy_(0, before, counts)
            sums = sums.new_zeros(len(arms)).index_copy_(0, before, sums)
            place = positions_in_ascending(arms, indices)
        return Totals(
            arms,
            counts.index_add(0, place, torch.ones_like(indices)),
            sums.index_add(0, place, rewards),
        )


class Observations:
    """The pulls of a bandit over ``num_arms`` arms.

    Every pull that was asked has an id, counted from zero. It stays pending until it is
    told or fails. All checks come before any change.

    Args:
        num_arms: A.
        like: A tensor of the dtype of the arms, and on their device.
        sign: 1 where large rewards are good, -1 where small ones are. ``history`` and
            ``totals`` return rewards times it.

    Attributes:
        num_arms: A. Nothing here has an entry per arm, but ``counts`` where it is
            asked for.
        told_indices: The arms of told pulls, in order of telling.
        told_rewards: Their rewards.
        told_scores: Their leverage scores, frozen at the start of their batch.
        told_ids: The ids of their pulls; -1 for those that were never asked.
        told_asked: The times at which those were asked.
        told_times: The times of the rewards, by default when they were asked for.
        pending: Pulls by id, in order of asking.
        next_id: The id of the next pull.
        first_is_told: Whether pull 0 brought a reward.
        tried: The arms of all pulls, told, pending and failed.
        num_since_new: The number of pulls since the last one of an arm that had none,
            in the order in which they were asked for, or told from outside.
        failures: How often the pulls of arms have failed since the last reward.
        failed_lately: The arms whose pulls have failed since the last ask.
        now: The last time of an ask or a reward; None before the first.
    """

    def __init__(self, num_arms: int, like: Tensor, sign: float = 1.0) -> None:
        self.dtype = like.dtype
        self.sign = sign
        self.num_arms = num_arms
        self.device = like.device
        none = torch.empty(0, dtype=torch.long, device=like.device)
        # In double for any dtype of the arms: sums of a million rewards stay accurate.
        self._nothing = Totals(none, none, none.double())
        self._totals, self._num_summed = self._nothing, 0  # of the first told pulls
        # Arrays: a number is 8 bytes, and a million become a tensor at once.
        self.told_indices = array("q")
        self.told_rewards = array("d")
        self.told_scores = array("d")
        self.told_ids = array("q")
        self.told_asked = array("d")
        self.told_times = array("d")
        self.pending: dict[int, Pull] = {}
        self.next_id = 0
        self.first_is_told = False
        self.tried: frozenset[int] = frozenset()
        self.num_since_new = 0
        self.failures: Mapping[int, int] = {}
        self.failed_lately: frozenset[int] = frozenset()
        self.now: float | None = None

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return len(self.told_indices)

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        totals = self.totals()
        counts = totals.counts.new_zeros(self.num_arms)
        counts[totals.arms] = totals.counts
        return counts

    @property
    def last_time(self) -> float:
        """The last time known, of an ask or a reward; 0 if there is none."""
        return 0.0 if self.now is None else self.now

    @property
    def next_time(self) -> float:
        """The time of the next decision, unless ``ask`` names another."""
        return self.last_time + 1.0

    def ask(
        self,
        indices: Sequence[int],
        scores: Sequence[float],
        time: float | None = None,
    ) -> None:
        """Make pulls pending, by default at the last time known."""
        if time is None:
            time = self.last_time
        else:
            self.now = time
        asked = zip(indices, scores, strict=True)
        pulls = [Pull(index, score, time) for index, score in asked]
        new = dict(enumerate(pulls, self.next_id))
        self.pending = {**self.pending, **new}
        self.next_id += len(new)
        self._try(indices)

    def tell(
        self, indices: Any, rewards: Any, pull_ids: Any, time: float | None = None
    ) -> None:
        """Settle pending pulls with rewards.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            pull_ids: Which pulls these are; if None, the oldest pending ones.
            time: When the rewards were measured; if None, when they were asked for.
        """
        arms = check_indices(indices, self.num_arms)
        values = check_rewards(rewards, len(arms), self.dtype)
        settled = self._match(arms, pull_ids)
        pulls = [self.pending[key] for key in settled]
        out = set(settled)
        pending = {key: pull for key, pull in self.pending.items() if key not in out}
        # Replaced in one assignment, so that an interrupt cannot leave half a change.
        self.pending = pending
        self.first_is_told |= 0 in out
        times = [pull.time if time is None else time for pull in pulls]
        self._extend(pulls, values, settled, times)

    def add(
        self,
        indices: Any,
        rewards: Any,
        scores: Callable[[Tensor], Tensor],
        time: float | None = None,
    ) -> None:
        """Take in rewards of pulls that were never asked for.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            scores: The leverage scores of arms.
            time: When the rewards were measured; if None, at the last time known.
        """
        time = self.last_time if time is None else time
        arms = check_indices(indices, self.num_arms)
        values = check_rewards(rewards, len(arms), self.dtype)
        indices = torch.tensor(arms, dtype=torch.long, device=self.device)
        found = zip(arms, scores(indices).tolist(), strict=True)
        pulls = [Pull(arm, score) for arm, score in found]
        self._extend(pulls, values, [-1] * len(arms), [time] * len(arms))
        self._try(arms)

    def _extend(
        self,
        pulls: Sequence[Pull],
        rewards: Sequence[float],
        ids: Sequence[int],
        times: Sequence[float],
    ) -> None:
        arms = {pull.arm for pull in pulls}
        self.failures = {
            arm: count for arm, count in self.failures.items() if arm not in arms
        }
        self.told_indices.extend(pull.arm for pull in pulls)
        self.told_rewards.extend(rewards)
        self.told_scores.extend(pull.score for pull in pulls)
        self.told_ids.extend(ids)
        self.told_asked.extend(pull.time for pull in pulls)
        self.told_times.extend(times)
        last = [] if self.now is None else [self.now]
        self.now = max([*last, *times], default=None)

    def _try(self, arms: Sequence[int]) -> None:
        """Count pulls that nobody has asked for before."""
        new: set[int] = set()
        for arm in arms:
            self.num_since_new += 1
            if arm not in self.tried and arm not in new:
                new.add(arm)
                self.num_since_new = 0
        if new:
            self.tried |= new

    def fail(self, indices: Any, pull_ids: Any) -> None:
        """Release pending pulls without reward."""
        arms = check_indices(indices, self.num_arms)
        out = set(self._match(arms, pull_ids))
        self.pending = {
            key: pull for key, pull in self.pending.items() if key not in out
        }
        self.failures = Counter(self.failures) + Counter(arms)
        self.failed_lately |= set(arms)

    def find_told(self, indices: Any, pull_ids: Any) -> list[int]:
        """Return the places of told pulls; without ids the latest of those arms."""
        arms = check_indices(indices, self.num_arms)
        if pull_ids is None:
            places: dict[int, list[int]] = {arm: [] for arm in arms}
            for place, arm in enumerate(self.told_indices):
                if arm in places:
                    places[arm].append(place)
            for arm, wished in Counter(arms).items():
                if len(places[arm]) < wished:
                    raise InputDataError(
                        f"Expected {wished} told results of arm {arm} to withdraw, but "
                        f"it has {len(places[arm])}. Use `fail` for pending pulls."
                    )
            return [places[arm].pop() for arm in arms]
        ids = check_pull_ids(pull_ids, len(arms))
        wanted = set(ids)
        place_of = {
            pull_id: place
            for place, pull_id in enumerate(self.told_ids)
            if pull_id in wanted and pull_id >= 0
        }
        for arm, pull_id in zip(arms, ids, strict=True):
            found = place_of.get(pull_id)
            if found is None or self.told_indices[found] != arm:
                raise InputDataError(
                    f"Expected pull {pull_id} to be one of arm {arm} whose result was "
                    "told, but it is none. `pending` lists what is out, by id."
                )
        return [place_of[pull_id] for pull_id in ids]

    def withdraw(self, places: Sequence[int]) -> None:
        """Take told pulls back: those that were asked are pending again."""
        out = set(places)
        pending = dict(self.pending)
        for place in out:
            if self.told_ids[place] >= 0:
                pending[self.told_ids[place]] = Pull(
                    self.told_indices[place],
                    self.told_scores[place],
                    self.told_asked[place],
                )
        for name in ("indices", "rewards", "scores", "ids", "asked", "times"):
            column: array[Any] = getattr(self, f"told_{name}")
            left = [value for place, value in enumerate(column) if place not in out]
            setattr(self, f"told_{name}", array(column.typecode, left))
        self.pending = dict(sorted(pending.items()))
        self.first_is_told &= 0 in self.told_ids
        times = [pull.time for pull in pending.values()]
        self.now = max([*self.told_times, *times], default=None)
        self._totals, self._num_summed = self._nothing, 0

    def pending_arms(self) -> Tensor:
        """Return the arms of pending pulls, in order of asking, repeats included."""
        arms = [pull.arm for pull in self.pending.values()]
        return torch.tensor(arms, dtype=torch.long, device=self.device)

    def used(self) -> PullCounts:
        """Return the pulls told and pending, by arm; an arm may come twice."""
        totals, pending = self.totals(), self.pending_arms()
        counts = torch.cat([totals.counts, torch.ones_like(pending)])
        return PullCounts(torch.cat([totals.arms, pending]), counts)

    def history(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return arms, signed rewards and times of told pulls, in double."""
        columns = (self.told_indices, self.told_rewards, self.told_times)
        tensors = (torch.from_numpy(np.array(column)) for column in columns)
        indices, rewards, times = (tensor.to(self.device) for tensor in tensors)
        return indices, self.sign * rewards, times

    def totals(self, num_pulls: int | None = None, since: float = -math.inf) -> Totals:
        """Return the totals of the first told pulls, with signed rewards.

        Args:
            num_pulls: How many; all if None.
            since: Rewards of earlier times do not count.
        """
        num_pulls = self.num_pulls if num_pulls is None else num_pulls
        if num_pulls < self.num_pulls or since > -math.inf:
            history = (column[:num_pulls] for column in self.history())
            indices, rewards, times = history
            counts = times >= since
            return self._nothing.plus(indices[counts], rewards[counts])
        if self._num_summed < num_pulls:
            new = slice(self._num_summed, None)
            indices = torch.from_numpy(np.array(self.told_indices[new]))
            rewards = torch.from_numpy(np.array(self.told_rewards[new]))
            rewards = self.sign * rewards.to(self.device)
            totals = self._totals.plus(indices.to(self.device), rewards)
            self._totals, self._num_summed = totals, num_pulls
        return self._totals

    def _match(self, arms: list[int], pull_ids: Any) -> list[int]:
        """Return the pending pulls that arms stand for, by id or the oldest ones."""
        if pull_ids is not None:
            return self._match_ids(arms, check_pull_ids(pull_ids, len(arms)))
        waiting: dict[int, deque[int]] = {arm: deque() for arm in arms}
        for pull_id, pull in self.pending.items():
            if pull.arm in waiting:
                waiting[pull.arm].append(pull_id)
        for arm, wished in Counter(arms).items():
            if len(waiting[arm]) < wished:
                raise InputDataError(
                    f"Expected a pending pull of {self._name(arm)}, but it has none "
                    "left to settle. Ask first, and tell what `ask` returned; or pass "
                    "results that were never asked for to `add_observations`."
                )
        return [waiting[arm].popleft() for arm in arms]

    def _name(self, arm: int) -> str:
        """Return how messages name an arm."""
        return f"arm {arm}"

    def _match_ids(self, arms: list[int], pull_ids: list[int]) -> list[int]:
        for arm, pull_id in zip(arms, pull_ids, strict=True):
            pull = self.pending.get(pull_id)
            if pull is None or pull.arm != arm:
                found = None if pull is None else self._name(pull.arm)
                raise wrong_pull(pull_id, self._name(arm), found, self.next_id)
        return pull_ids

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        return {
            "told_indices": list(self.told_indices),
            "told_rewards": list(self.told_rewards),
            "told_scores": list(self.told_scores),
            "told_ids": list(self.told_ids),
            "told_asked": list(self.told_asked),
            "told_times": list(self.told_times),
            "pending": {key: tuple(pull) for key, pull in self.pending.items()},
            "next_id": self.next_id,
            "first_is_told": self.first_is_told,
            "tried": sorted(self.tried),
            "num_since_new": self.num_since_new,
            "failures": dict(self.failures),
            "failed_lately": sorted(self.failed_lately),
            "now": self.now,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            InputDataError: If these are no pulls of these arms. Nothing has changed
                then.
        """
        num_arms = self.num_arms
        told = check_indices(state["told_indices"], num_arms)
        rewards = check_rewards(state["told_rewards"], len(told), self.dtype)
        scores = [check_score(score) for score in state["told_scores"]]
        if len(scores) != len(told):
            raise InputDataError(
                f"Expected a score per told pull, but got {len(scores)} of them for "
                f"{len(told)} pulls."
            )
        next_id = check_count("next_id", state["next_id"])
        ids = [
            check_count("told_ids", key + 1, next_id) - 1 for key in state["told_ids"]
        ]
        asked = [check_time(time) for time in state["told_asked"]]
        times = [check_time(time) for time in state["told_times"]]
        if not len(ids) == len(asked) == len(times) == len(told):
            raise InputDataError(
                f"Expected an id and two times per told pull, but got {len(ids)}, "
                f"{len(asked)} and {len(times)} for {len(told)} pulls."
            )
        pending = {
            check_count("pending", key, next_id - 1): Pull(
                arm, check_score(score), check_time(time)
            )
            for key, (arm, score, time) in state["pending"].items()
        }
        check_indices([pull.arm for pull in pending.values()], num_arms)
        tried = check_indices(state["tried"], num_arms)
        since = check_count("num_since_new", state["num_since_new"])
        failures = {
            arm: check_count("failures", count)
            for arm, count in state["failures"].items()
        }
        check_indices(list(failures), num_arms)
        lately = check_indices(state["failed_lately"], num_arms)
        now = None if state["now"] is None else check_time(state["now"])
        self.told_indices, self.told_rewards = array("q", told), array("d", rewards)
        self.told_scores, self.pending = array("d", scores), pending
        self.told_ids, self.told_asked = array("q", ids), array("d", asked)
        self.told_times = array("d", times)
        self.next_id = next_id
        self.first_is_told = bool(state["first_is_told"])
        self._totals, self._num_summed = self._nothing, 0
        self.tried, self.num_since_new = frozenset(tried), since
        self.failures, self.failed_lately = failures, frozenset(lately)
        self.now = now


class PointObservations(Observations):
    """The pulls of a bandit on a box, whose arms are the points of its pulls.

    Args:
        bounds: The ``2 x d`` corners of the box, in double.
        sign: As for arms.

    Attributes:
        points: The ``A x d`` points that were asked for or told, each once.
    """

    def __init__(self, bounds: Tensor, sign: float = 1.0) -> None:
        super().__init__(0, bounds, sign)
        self.bounds = bounds
        self.points = bounds[:0]

    @property
    def told_points(self) -> Tensor:
        """The ``n x d`` points of told pulls, in order of telling."""
        return self.points[self.history()[0]]

    @property
    def pending_points(self) -> Tensor:
        """The ``n x d`` points of pending pulls, in order of asking."""
        return self.points[[pull.arm for pull in self.pending.values()]]

    def find(self, points: Any) -> Tensor:
        """Return the arms of ``q x d`` points, new ones among them.

        Raises:
            BotorchTensorDimensionError: If ``points`` is not ``q x d``.
            InputDataError: If a point is not finite, or not in the box.
        """
        return self._add(check_points(points, self.bounds))

    def ask_points(self, points: Tensor) -> None:
        """Make pulls of ``q x d`` points pending; rounding may put one off the box."""
        self.ask(self._add(points).tolist(), [0.0] * len(points))

    def _add(self, points: Tensor) -> Tensor:
        arms, new = match_rows(self.points, points)
        self.points = torch.cat([self.points, new])
        self.num_arms = len(self.points)
        return arms

    @override
    def _name(self, arm: int) -> str:
        return str(self.points[arm].tolist())

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the points as well."""
        return {**super().state_dict(), "points": self.points}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.find(state["points"])
        super().load_state_dict(state)
