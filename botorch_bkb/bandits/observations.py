"""The record of pulls: told, pending and failed."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import PullCounts
from botorch_bkb.bandits.warping import LogWarp
from botorch_bkb.checks import (
    check_count,
    check_indices,
    check_known_noise,
    check_number,
    check_pull_ids,
    check_rewards,
    check_time,
)
from botorch_bkb.models.utils.rows import positions_in


# Arrays: a number is 8 bytes, and a million become a tensor at once.
TOLD_COLUMNS = {
    "told_indices": "q",
    "told_rewards": "d",
    "told_scores": "d",
    "told_ids": "q",
    "told_asked": "d",
    "told_times": "d",
    "told_noise": "d",
}

# Beside larger weights, the posterior's matrices have no digits left for the others.
MOST_WEIGHT = 1e6


class Pull(NamedTuple):
    """A pull without reward: its arm, and leverage score and time of the ask.

    Times are those of bandits on objectives that drift; others leave them at zero.
    """

    arm: int
    score: float
    time: float = 0.0


class Totals(NamedTuple):
    """The observations of ``P`` arms, summed up.

    Attributes:
        arms: A ``P``-dim long tensor, ascending.
        counts: Their numbers of observations, or the sums of these observations'
            weights.
        sums: Their summed (weighted) rewards, in double.
    """

    arms: Tensor
    counts: Tensor
    sums: Tensor


class Observations:
    """The pulls of a bandit over ``num_arms`` arms.

    Every pull that was asked has an id, counted from zero. It stays pending until it is
    told or fails. Every change replaces what it changes, so that a bandit can change a
    shallow copy and then take it over, in one assignment.

    Args:
        num_arms: A.
        like: A tensor of the dtype of the arms, and on their device.
        sign: 1 where large rewards are good, -1 where small ones are. ``history`` and
            ``totals`` return rewards times it.

    Attributes:
        num_arms: A.
        told_indices: The arms of observations, in order of telling.
        told_rewards: Their rewards.
        told_scores: Their leverage scores, frozen at the start of their batch.
        told_ids: The ids of their pulls; -1 for those that were never asked.
        told_asked: The times at which those were asked.
        told_times: The times of the rewards, by default when they were asked for.
        told_noise: Their noise variances, in the original scale; 0 if not known.
        pending: Pulls by id, in order of asking.
        next_id: The id of the next pull.
        tried: The arms of all pulls, told, pending and failed.
        num_since_new: The number of pulls since the last one of an arm that had none,
            in the order in which they were asked for, or told from outside.
        failures: How often the pulls of arms have failed since the last reward.
        failed_lately: The arms whose pulls have failed since the last ask.
        now: The last time of an ask or a reward; None before the first.
        opening_score: The leverage score of the uniform draw that opened the run.
    """

    def __init__(self, num_arms: int, like: Tensor, sign: float = 1.0) -> None:
        self.dtype = like.dtype
        self.sign = sign
        self.num_arms = num_arms
        self.device = like.device
        # In double for any dtype of the arms: sums of a million rewards stay accurate.
        none = self._long([])
        self._nothing = Totals(none, none, none.double())
        self._summed = self._nothing, 0  # totals of so many first observations
        self.told_indices = array("q")
        self.told_rewards = array("d")
        self.told_scores = array("d")
        self.told_ids = array("q")
        self.told_asked = array("d")
        self.told_times = array("d")
        self.told_noise = array("d")
        self.pending: dict[int, Pull] = {}
        self.next_id = 0
        self.tried: frozenset[int] = frozenset()
        self.num_since_new = 0
        self.failures: Mapping[int, int] = {}
        self.failed_lately: frozenset[int] = frozenset()
        self.now: float | None = None
        self.opening_score = 0.0

    @property
    def num_pulls(self) -> int:
        """The number of observations."""
        return len(self.told_indices)

    @property
    def last_time(self) -> float:
        """The last time known, of an ask or a reward; 0 if there is none."""
        return 0.0 if self.now is None else self.now

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
            if not self.num_pulls and not self.pending:
                self.opening_score = scores[0]
            self.now = time
        pending = dict(self.pending)
        for key, (arm, score) in enumerate(
            zip(indices, scores, strict=True), self.next_id
        ):
            pending[key] = Pull(arm, score, time)
        self.pending = pending
        self.next_id += len(indices)
        self._try(indices)

    def tell(
        self,
        indices: Any,
        rewards: Any,
        pull_ids: Any,
        time: float | None = None,
        noise_variance: Any = None,
    ) -> None:
        """Settle pending pulls with rewards.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            pull_ids: Which pulls these are; if None, the oldest pending ones.
            time: When the rewards were measured; if None, when they were asked for.
            noise_variance: The rewards', see ``check_known_noise``.
        """
        settled = self._match(self._checked_arms(indices), pull_ids)
        pending = dict(self.pending)
        pulls = list(map(pending.pop, settled))
        self.pending = pending
        self._extend(pulls, rewards, noise_variance, settled, time)

    def add(
        self,
        indices: Any,
        rewards: Any,
        scores: Callable[[Tensor, float], Tensor],
        time: float | None = None,
        noise_variance: Any = None,
    ) -> None:
        """Take in rewards of pulls that were never asked for.

        Args:
            indices: The arms, ``q`` of them.
            rewards: Their ``q`` rewards.
            scores: The leverage scores of arms at a time.
            time: When the rewards were measured; if None, at the last time known.
            noise_variance: The rewards', see ``check_known_noise``.
        """
        time = self.last_time if time is None else time
        arms = self._checked_arms(indices)
        found = scores(self._long(arms), self.last_time).tolist()
        pulls = list(map(Pull, arms, found))
        self._extend(pulls, rewards, noise_variance, [-1] * len(arms), time)
        self._try(arms)

    def _extend(
        self,
        pulls: Sequence[Pull],
        rewards: Any,
        noise_variance: Any,
        ids: Sequence[int],
        time: float | None,
    ) -> None:
        arms, scores, asked = (list(map(itemgetter(i), pulls)) for i in range(3))
        times = asked if time is None else [time] * len(pulls)
        values = check_rewards(rewards, len(pulls), self.dtype)
        noise = check_known_noise(noise_variance, len(pulls), self.dtype)
        columns = arms, values, scores, ids, asked, times, noise
        for (name, typecode), column in zip(TOLD_COLUMNS.items(), columns, strict=True):
            setattr(self, name, getattr(self, name) + array(typecode, column))
        self.now = max(times if self.now is None else [self.now, *times], default=None)
        told = set(arms)
        self.failures = {
            arm: count for arm, count in self.failures.items() if arm not in told
        }

    def _try(self, arms: Sequence[int]) -> None:
        """Count new pulls, and remember their arms."""
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
        arms = self._checked_arms(indices)
        pending = dict(self.pending)
        for key in self._match(arms, pull_ids):
            del pending[key]
        self.pending = pending
        self.failures = Counter(self.failures) + Counter(arms)
        self.failed_lately |= set(arms)

    def find_told(self, indices: Any, pull_ids: Any) -> list[int]:
        """Return the places of observations; without ids the latest of those arms."""
        arms = self._checked_arms(indices)
        if pull_ids is None:
            latest = reversed(list(enumerate(self.told_indices)))
            return self._first_keys(
                latest,
                arms,
                "Expected another told result of {} to withdraw, but it has none. Use "
                "`fail` for pending pulls.",
            )
        place_of = {key: place for place, key in enumerate(self.told_ids) if key >= 0}
        places = []
        for arm, pull_id in zip(arms, check_pull_ids(pull_ids, len(arms)), strict=True):
            place = place_of.get(pull_id)
            if place is None or self.told_indices[place] != arm:
                raise InputDataError(
                    f"Expected pull {pull_id} to be one of arm {arm} whose result was "
                    "told, but it is none. `pending` lists pending pulls, by id."
                )
            places.append(place)
        return places

    def withdraw(self, places: Sequence[int]) -> None:
        """Take observations back: those that were asked are pending again."""
        pending = dict(self.pending)
        for place in set(places):
            if self.told_ids[place] >= 0:
                pending[self.told_ids[place]] = Pull(
                    self.told_indices[place],
                    self.told_scores[place],
                    self.told_asked[place],
                )
        for name, typecode in TOLD_COLUMNS.items():
            left = np.delete(np.array(getattr(self, name)), places)
            setattr(self, name, array(typecode, left.tolist()))
        self.pending = dict(sorted(pending.items()))
        times = [pull.time for pull in pending.values()]
        self.now = max([*self.told_times, *times], default=None)
        self._summed = self._nothing, 0

    def pending_arms(self) -> Tensor:
        """Return the arms of pending pulls, in order of asking, repeats included."""
        return self._long([pull.arm for pull in self.pending.values()])

    def used(self) -> PullCounts:
        """Return the pulls told and pending, by arm; an arm may come twice."""
        totals, pending = self.totals(), self.pending_arms()
        counts = torch.cat([totals.counts, torch.ones_like(pending)])
        return PullCounts(torch.cat([totals.arms, pending]), counts)

    def history(
        self, start: int = 0, warp: LogWarp | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return arms, signed rewards, times and noise of observations, from one on.

        Rewards and noise are warped if ``warp`` is given.
        """
        names = ("told_indices", "told_rewards", "told_times", "told_noise")
        indices, rewards, times, noise = (
            torch.from_numpy(np.array(getattr(self, name)[start:])).to(self.device)
            for name in names
        )
        rewards = self.sign * rewards
        if warp is not None:
            rewards, noise = warp.measured(rewards, noise)
        return indices, rewards, times, noise

    def weights(
        self, noise_variance: float, warp: LogWarp | None = None, start: int = 0
    ) -> Tensor:
        """Return a variance over those of observations, 1 if these are not known."""
        *_, noise = self.history(start, warp)
        weights = torch.where(noise > 0, noise_variance / noise, 1.0)
        return weights.clamp_max(MOST_WEIGHT)

    def totals(
        self,
        num_pulls: int | None = None,
        since: float = -math.inf,
        noise_variance: float = 0.0,
        warp: LogWarp | None = None,
    ) -> Totals:
        """Return the totals of the first observations, with signed rewards.

        Args:
            num_pulls: How many; all if None.
            since: Rewards of earlier times do not count.
            noise_variance: If positive, observations have the weights relative to it.
            warp: What is done to each reward before they are added; None for nothing.
        """
        num_pulls = self.num_pulls if num_pulls is None else num_pulls
        is_weighted = noise_variance > 0 and np.array(self.told_noise).any()
        is_all = num_pulls == self.num_pulls and since == -math.inf
        if not is_all or is_weighted or warp is not None:
            indices, rewards, times, _ = self.history(warp=warp)
            counts = times[:num_pulls] >= since
            indices, rewards = indices[:num_pulls][counts], rewards[:num_pulls][counts]
            weights = torch.ones_like(indices)
            if is_weighted:
                weights = self.weights(noise_variance, warp)[:num_pulls][counts]
            return _plus(self._nothing, indices, rewards, weights)
        totals, num_summed = self._summed
        if num_summed < num_pulls:
            indices, rewards, *_ = self.history(num_summed)
            totals = _plus(totals, indices, rewards, torch.ones_like(indices))
            self._summed = totals, num_pulls
        return totals

    def _match(self, arms: list[int], pull_ids: Any) -> list[int]:
        """Return the ids of pending pulls of these arms, by id or the oldest ones."""
        if pull_ids is None:
            return self._first_keys(
                ((pull_id, pull.arm) for pull_id, pull in self.pending.items()),
                arms,
                "Expected a pending pull of {}, but it has none left to settle. Ask "
                "first, and tell what `ask` returned; or pass results that were never "
                "asked for to `add_observations`.",
            )
        ids = check_pull_ids(pull_ids, len(arms))
        for arm, pull_id in zip(arms, ids, strict=True):
            pull = self.pending.get(pull_id)
            if pull is None or pull.arm != arm:
                found = "settled, or was never asked for"
                if pull is not None:
                    found = f"one of {self._name(pull.arm)}"
                raise InputDataError(
                    f"Expected pull {pull_id} to be a pending pull of "
                    f"{self._name(arm)}, but it is {found}. `pending` lists those that "
                    "wait for a result, by id."
                )
        return ids

    def _first_keys(
        self, pairs: Iterable[tuple[int, int]], arms: list[int], missing: str
    ) -> list[int]:
        """Return the keys of the first pairs (key, arm) of each arm, repeats included.

        Raises:
            InputDataError: With the message ``missing``, if an arm has none left.
        """
        keys: dict[int, deque[int]] = {arm: deque() for arm in arms}
        for key, arm in pairs:
            if arm in keys:
                keys[arm].append(key)
        found = []
        for arm in arms:
            if not keys[arm]:
                raise InputDataError(missing.format(self._name(arm)))
            found.append(keys[arm].popleft())
        return found

    def _checked_arms(self, indices: Any) -> list[int]:
        """Return the arms of a user's argument."""
        return check_indices(indices, self.num_arms)

    def _name(self, arm: int) -> str:
        """Return how messages name an arm."""
        return f"arm {arm}"

    def _long(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        return {
            **{name: list(getattr(self, name)) for name in TOLD_COLUMNS},
            "pending": {key: tuple(pull) for key, pull in self.pending.items()},
            "next_id": self.next_id,
            "tried": sorted(self.tried),
            "num_since_new": self.num_since_new,
            "failures": dict(self.failures),
            "failed_lately": sorted(self.failed_lately),
            "now": self.now,
            "opening_score": self.opening_score,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, into new observations.

        Raises:
            ValueError: If these are no pulls of these arms.
        """
        arms = check_indices(state["told_indices"], self.num_arms)
        columns = (
            arms,
            check_rewards(state["told_rewards"], len(arms), self.dtype),
            [check_number("told_scores", x, 0.0) for x in state["told_scores"]],
            state["told_ids"],
            [check_time(time) for time in state["told_asked"]],
            [check_time(time) for time in state["told_times"]],
            [check_number("told_noise", x, 0.0) for x in state["told_noise"]],
        )
        if any(len(column) != len(arms) for column in columns):
            raise InputDataError("Expected a number per observation in every column.")
        for (name, typecode), column in zip(TOLD_COLUMNS.items(), columns, strict=True):
            setattr(self, name, array(typecode, column))
        self.next_id = check_count("next_id", state["next_id"])
        for key, (arm, score, time) in state["pending"].items():
            score = check_number("told_scores", score, 0.0)
            pull = Pull(arm, score, check_time(time))
            self.pending[check_count("pending", key, self.next_id - 1)] = pull
        self.failures = {
            arm: check_count("failures", count)
            for arm, count in state["failures"].items()
        }
        self.tried = frozenset(state["tried"])
        self.failed_lately = frozenset(state["failed_lately"])
        pending = [pull.arm for pull in self.pending.values()]
        named = [*pending, *self.failures, *self.tried, *self.failed_lately]
        check_indices(named, self.num_arms)
        self.num_since_new = check_count("num_since_new", state["num_since_new"])
        self.now = None if state["now"] is None else check_time(state["now"])
        self.opening_score = check_number("opening_score", state["opening_score"], 0.0)


def _plus(totals: Totals, indices: Tensor, rewards: Tensor, weights: Tensor) -> Totals:
    """Return the totals of more pulls as well, added in order of telling."""
    arms, counts, sums = totals
    place = positions_in(arms, indices, is_ascending=True)
    if (place < 0).any():
        arms = torch.cat([arms, indices]).unique()
        before = positions_in(arms, totals.arms, is_ascending=True)
        counts = counts.new_zeros(len(arms)).index_copy_(0, before, counts)
        sums = sums.new_zeros(len(arms)).index_copy_(0, before, sums)
        place = positions_in(arms, indices, is_ascending=True)
    return Totals(
        arms,
        counts.to(weights).index_add(0, place, weights),
        sums.index_add(0, place, rewards * weights),
    )
