"""The record of pulls: told, pending and failed."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
        sums: Their summed rewards as told, in double.
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


@dataclass(frozen=True)
class Pulls:
    """The pulls of a bandit, as its learner and its policy see them.

    Attributes:
        ledger: All of them.
        sign: What rewards are multiplied with: here, larger ones are better.
        now: The time of the decision.
        pending: Those without reward, of which the first come from the ledger.
        since: Pulls of earlier times do not count.
    """

    ledger: PullLedger
    sign: float
    now: float
    pending: Sequence[Pull] = ()
    since: float = -math.inf

    @property
    def num_told(self) -> int:
        """The number of told pulls, those that do not count included."""
        return self.ledger.num_pulls

    def totals(self, num_told: int | None = None) -> Totals:
        """Return the totals of the told pulls that count, or of the first told ones."""
        num_told = self.num_told if num_told is None else num_told
        arms, counts, sums = self.ledger.totals(num_told, self.since)
        return Totals(arms, counts, self.sign * sums)

    def history(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return arms, rewards and times of all told pulls, in order of telling."""
        indices, rewards, times = self.ledger.history()
        return indices, self.sign * rewards, times

    @property
    def pending_arms(self) -> Tensor:
        """The arms of ``pending``, repeats included."""
        arms = [pull.arm for pull in self.pending]
        return torch.tensor(arms, dtype=torch.long, device=self.ledger.device)


class PullLedger:
    """The pulls of a bandit over ``num_arms`` arms.

    Every pull that was asked has an id, counted from zero. It stays pending until it is
    told or fails. All checks come before any change.

    Args:
        num_arms: A.
        like: A tensor of the dtype of the arms, and on their device.

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
    """

    def __init__(self, num_arms: int, like: Tensor) -> None:
        self.dtype = like.dtype
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

    @property
    def num_pulls(self) -> int:
        """The number of told pulls."""
        return len(self.told_indices)

    @property
    def counts(self) -> Tensor:
        """The ``A`` numbers of told pulls."""
        totals = self.totals(self.num_pulls)
        counts = totals.counts.new_zeros(self.num_arms)
        counts[totals.arms] = totals.counts
        return counts

    def ask(
        self, indices: Sequence[int], scores: Sequence[float], time: float = 0.0
    ) -> None:
        """Make pulls pending."""
        asked = zip(indices, scores, strict=True)
        pulls = [Pull(index, score, time) for index, score in asked]
        new = dict(enumerate(pulls, self.next_id))
        self.pending = {**self.pending, **new}
        self.next_id += len(new)
        self._try(indices)

    def tell(
        self,
        indices: Any,
        rewards: Any,
        pull_ids: Any,
        external_scores: Callable[[Tensor], Tensor] | None,
        time: float | None = None,
        now: float = 0.0,
    ) -> None:
        """Settle pending pulls with rewards.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            pull_ids: Which pulls these are; if None, the oldest pending ones.
            external_scores: The leverage scores of arms, for pulls that were never
                asked; None if there must not be any.
            time: When the rewards were measured; if None, when they were asked for.
            now: When those were asked for that were never asked.
        """
        arms = check_indices(indices, self.num_arms)
        values = check_rewards(rewards, len(arms), self.dtype)
        settled = self._match(arms, pull_ids, external=external_scores is not None)
        scores = [0.0] * len(arms)
        if external_scores is not None:
            indices = torch.tensor(arms, dtype=torch.long, device=self.device)
            scores = external_scores(indices).tolist()
        pulls = [None if key is None else self.pending[key] for key in settled]
        for position, pull in enumerate(pulls):
            if pull is not None:
                scores[position] = pull.score
        out = set(settled)
        pending = {key: pull for key, pull in self.pending.items() if key not in out}
        # Replaced in one assignment, so that an interrupt cannot leave half a change.
        self.pending = pending
        self.first_is_told |= 0 in out
        self.failures = {
            arm: count for arm, count in self.failures.items() if arm not in arms
        }
        self.told_indices.extend(arms)
        self.told_rewards.extend(values)
        self.told_scores.extend(scores)
        self.told_ids.extend(-1 if key is None else key for key in settled)
        self.told_asked.extend(0.0 if pull is None else pull.time for pull in pulls)
        times = [now if pull is None else pull.time for pull in pulls]
        self.told_times.extend(times if time is None else [time] * len(pulls))
        outside = zip(arms, settled, strict=True)
        self._try([arm for arm, key in outside if key is None])

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
        for pull_id in self._match(arms, pull_ids, external=False):
            if pull_id is not None:
                del self.pending[pull_id]
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
        self._totals, self._num_summed = self._nothing, 0

    def pending_arms(self) -> Tensor:
        """Return the arms of pending pulls, in order of asking, repeats included."""
        arms = [pull.arm for pull in self.pending.values()]
        return torch.tensor(arms, dtype=torch.long, device=self.device)

    def used(self) -> PullCounts:
        """Return the pulls told and pending, by arm; an arm may come twice."""
        totals, pending = self.totals(self.num_pulls), self.pending_arms()
        counts = torch.cat([totals.counts, torch.ones_like(pending)])
        return PullCounts(torch.cat([totals.arms, pending]), counts)

    def history(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return arms, rewards and times of told pulls, as told, in double."""
        columns = (self.told_indices, self.told_rewards, self.told_times)
        indices, *numbers = (torch.from_numpy(np.array(column)) for column in columns)
        rewards, times = (column.to(self.device) for column in numbers)
        return indices.to(self.device), rewards, times

    def totals(self, num_pulls: int, since: float = -math.inf) -> Totals:
        """Return the totals of the first told pulls.

        Args:
            num_pulls: How many.
            since: Rewards of earlier times do not count.
        """
        if num_pulls < self.num_pulls or since > -math.inf:
            history = (column[:num_pulls] for column in self.history())
            indices, rewards, times = history
            counts = times >= since
            return self._nothing.plus(indices[counts], rewards[counts])
        if self._num_summed < num_pulls:
            new = slice(self._num_summed, None)
            indices = torch.from_numpy(np.array(self.told_indices[new]))
            rewards = torch.from_numpy(np.array(self.told_rewards[new]))
            totals = self._totals.plus(indices.to(self.device), rewards.to(self.device))
            self._totals, self._num_summed = totals, num_pulls
        return self._totals

    def _match(
        self, arms: list[int], pull_ids: Any, external: bool
    ) -> list[int | None]:
        if pull_ids is not None:
            return self._match_ids(arms, check_pull_ids(pull_ids, len(arms)))
        waiting: dict[int, deque[int]] = {arm: deque() for arm in arms}
        for pull_id, pull in self.pending.items():
            if pull.arm in waiting:
                waiting[pull.arm].append(pull_id)
        matched: list[int | None] = []
        for arm in arms:
            if waiting[arm]:
                matched.append(waiting[arm].popleft())
            elif external:
                matched.append(None)
            else:
                raise InputDataError(
                    f"Expected a pending pull of {self._name(arm)}, but it has none "
                    "left to settle. Ask first, and tell what `ask` returned; or pass "
                    "`external=True` to `tell` if the reward is historical or outside "
                    "data."
                )
        return matched

    def _name(self, arm: int) -> str:
        """Return how messages name an arm."""
        return f"arm {arm}"

    def _match_ids(self, arms: list[int], pull_ids: list[int]) -> list[int | None]:
        for arm, pull_id in zip(arms, pull_ids, strict=True):
            pull = self.pending.get(pull_id)
            if pull is None or pull.arm != arm:
                found = None if pull is None else self._name(pull.arm)
                raise wrong_pull(pull_id, self._name(arm), found, self.next_id)
        return list(pull_ids)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but ``told_times`` as plain numbers and lists."""
        return {
            "told_indices": list(self.told_indices),
            "told_rewards": list(self.told_rewards),
            "told_scores": list(self.told_scores),
            "told_ids": list(self.told_ids),
            "told_asked": list(self.told_asked),
            "pending": {key: tuple(pull) for key, pull in self.pending.items()},
            "next_id": self.next_id,
            "first_is_told": self.first_is_told,
            "tried": sorted(self.tried),
            "num_since_new": self.num_since_new,
            "failures": dict(self.failures),
            "failed_lately": sorted(self.failed_lately),
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
        if not len(ids) == len(asked) == len(told):
            raise InputDataError(
                f"Expected an id and a time per told pull, but got {len(ids)} and "
                f"{len(asked)} for {len(told)} pulls."
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
        self.told_indices, self.told_rewards = array("q", told), array("d", rewards)
        self.told_scores, self.pending = array("d", scores), pending
        self.told_ids, self.told_asked = array("q", ids), array("d", asked)
        self.told_times = array("d", [0.0] * len(told))
        self.next_id = next_id
        self.first_is_told = bool(state["first_is_told"])
        self._totals, self._num_summed = self._nothing, 0
        self.tried, self.num_since_new = frozenset(tried), since
        self.failures, self.failed_lately = failures, frozenset(lately)


class PointLedger(PullLedger):
    """The pulls of a bandit on a box, whose arms are the points of its pulls.

    Args:
        bounds: The ``2 x d`` corners of the box, in double.

    Attributes:
        points: The ``A x d`` points that were asked for or told, each once.
    """

    def __init__(self, bounds: Tensor) -> None:
        super().__init__(0, like=bounds)
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
