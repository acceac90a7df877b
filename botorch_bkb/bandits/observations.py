"""The record of pulls: told, pending and failed."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Self, TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import PullCounts
from botorch_bkb.bandits.groups import CAMPAIGN, WHOLE
from botorch_bkb.checks import (
    as_tensor,
    check_count,
    check_indices,
    check_known_noise,
    check_labels,
    check_number,
    check_one,
    check_pull_ids,
    check_rewards,
    check_time,
)


if TYPE_CHECKING:
    from botorch_bkb.bandits.fitting import Fit, Units


LABELS = "group", "campaign", "control"
# In place of the arm of a control.
NO_ARM = -1

# Beside larger weights, the posterior's matrices have no digits left for the others.
MOST_WEIGHT = 1e6


class Pull(NamedTuple):
    """A pull without reward: its arm, and leverage score and time of the ask.

    Times are zero unless the objective drifts.
    """

    arm: int
    score: float
    time: float = 0.0


class Results(NamedTuple):
    """Observations in order of telling, ``n`` of them.

    Attributes:
        indices: The arms, -1 for controls.
        rewards: Their rewards.
        scores: Their leverage scores, frozen at the start of their batch.
        ids: The ids of their pulls, -1 for those that were never asked for.
        asked: The times at which these were asked for.
        times: When the rewards were measured.
        noise: Their noise variances, in the original scale, 0 if not known.
        labels: Places of their groups, earlier campaigns and controls among the names
            of labels, -1 for none, ``n x 3``.
    """

    indices: Tensor
    rewards: Tensor
    scores: Tensor
    ids: Tensor
    asked: Tensor
    times: Tensor
    noise: Tensor
    labels: Tensor

    @classmethod
    def of(cls, *columns: Sequence[float]) -> Results:
        """Return columns of numbers on the CPU, those of the three labels last."""
        numbers = torch.tensor(columns, dtype=torch.double, device="cpu")
        indices, rewards, scores, ids, asked, times, noise = numbers[:-3]
        labels = numbers[-3:].mT.long()
        return cls(
            indices.long(), rewards, scores, ids.long(), asked, times, noise, labels
        )

    def rows(self, kept: Tensor | slice) -> Results:
        """Return those of a mask or slice."""
        return Results(*(each[kept] for each in self))

    @property
    def is_own_arm(self) -> Tensor:
        """Which are of arms, not of controls, in the present campaign."""
        return (self.indices != NO_ARM) & (self.labels[:, CAMPAIGN] < 0)

    def less(self, levels: Mapping[tuple[int, int], float]) -> Results:
        """Return these observations less the offsets of campaigns and groups."""
        if not levels:
            return self
        rewards, (groups, campaigns, _) = self.rewards.clone(), self.labels.mT
        for (campaign, group), level in levels.items():
            is_in = (campaigns == campaign) & ((groups == group) | (group == WHOLE))
            rewards -= level * is_in
        return self._replace(rewards=rewards)

    def warped(self, units: Units) -> Results:
        """Return these observations with rewards warped, but not their levels."""
        if units.warp is None:
            return self
        less = self.less(units.levels).rewards
        rewards, noise = units.warp.measured(less, self.noise)
        return self._replace(rewards=rewards + (self.rewards - less), noise=noise)

    def weights(self, fit: Fit) -> Tensor:
        """Return the weights of warped results: a variance over their noise variances.

        If the noise variance of a result is not known, the weight is 1, over the ratio
        of its campaign.
        """
        unknown = torch.ones_like(self.noise)
        for campaign, ratio in fit.groups.noise_ratios.items():
            unknown[self.labels[:, CAMPAIGN] == campaign] /= ratio
        weights = fit.original_noise_variance / self.noise
        weights = torch.where(self.noise > 0, weights, unknown)
        return weights.clamp_max(MOST_WEIGHT)


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

    def plus(self, indices: Tensor, rewards: Tensor, weights: Tensor) -> Totals:
        """Return the totals with more observations."""
        arms = torch.cat([self.arms, indices])
        arms, place = arms.unique(return_inverse=True)
        weighted = torch.cat([self.sums, rewards * weights])
        weights = torch.cat([self.counts.to(weights), weights])
        return Totals(
            arms,
            weights.new_zeros(len(arms)).index_add_(0, place, weights),
            weighted.new_zeros(len(arms)).index_add_(0, place, weighted),
        )


class Observations:
    """The pulls of a bandit over ``num_arms`` arms.

    Every pull that was asked has an id, counted from zero. It stays pending until it is
    told or fails. A copy is independent, so that a bandit can change a copy and then
    take it over, in one assignment.

    Args:
        num_arms: A.
        like: A tensor of the dtype of the arms, and on their device.
        sign: 1 if large rewards are good, -1 if small ones are. ``history`` and
            ``totals`` return rewards times it.

    Attributes:
        num_arms: A.
        told: The observations, on the CPU, with rewards as told.
        labels: The names of groups, campaigns and controls.
        pending: Pulls by id, in order of asking.
        next_id: The id of the next pull.
        tried: The arms of all pulls, told, pending and failed.
        num_since_new: The number of pulls since an arm was pulled for the first time,
            in the order in which they were asked for, or told from outside.
        failures: How often the pulls of arms have failed since the last reward.
        failed_lately: The arms whose pulls have failed since the last ask.
        now: The time of the last ask; minus infinity before the first.
        last_ask: The ids of the pulls of the last ask.
        opening_id: The pull that opened the run, a uniform draw.
        opening_score: Its leverage score.
    """

    def __init__(self, num_arms: int, like: Tensor, sign: float = 1.0) -> None:
        self.dtype = like.dtype
        self.device = like.device
        self.sign = sign
        self.num_arms = num_arms
        self.told = Results.of(*[[]] * 10)
        self.labels: list[str] = []
        self.pending: dict[int, Pull] = {}
        self.next_id = 0
        self.tried: set[int] = set()
        self.num_since_new = 0
        self.failures: Counter[int] = Counter()
        self.failed_lately: set[int] = set()
        self.now = -math.inf
        self.last_ask = range(0)
        self.opening_id, self.opening_score = 0, 0.0
        none = self._long([])
        self._nothing = Totals(none, none, none.double())
        self._summed = self._nothing, 0  # the totals of so many observations

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.pending, other.failures = self.pending.copy(), self.failures.copy()
        other.tried, other.failed_lately = self.tried.copy(), self.failed_lately.copy()
        return other

    @property
    def num_pulls(self) -> int:
        """The number of observations."""
        return len(self.told.rewards)

    @property
    def num_used(self) -> int:
        """The number of observations and of pending pulls."""
        return self.num_pulls + len(self.pending)

    @property
    def arms(self) -> set[int]:
        """The arms with observations, those of earlier campaigns included."""
        return {*self.told.indices.tolist()} - {NO_ARM}

    def has_new_labels(self, start: int) -> bool:
        """Whether some, from a place on, are the first of a group or campaign."""
        labels = self.told.labels
        if start >= len(labels) or (labels < 0).all():
            return False
        return len(labels.unique(dim=0)) > len(labels[:start].unique(dim=0))

    @property
    def earliest(self) -> float:
        """The time before which no pull can start; minus infinity if there is none."""
        others = [self.now, *(pull.time for pull in self.pending.values())]
        times = self.told.times
        return torch.cat([times, times.new_tensor(others)]).max().item()

    @property
    def last_time(self) -> float:
        """The last time known, of a pull or a reward; 0 if there is none."""
        return 0.0 if self.earliest == -math.inf else self.earliest

    def ask(
        self,
        indices: Sequence[int],
        scores: Sequence[float],
        time: float | None = None,
    ) -> None:
        """Make pulls pending: of an ask at a time, or started elsewhere if None."""
        if time is None:
            time = self.last_time
        else:
            if not self.num_used:
                self.opening_id, self.opening_score = self.next_id, scores[0]
            self.now = time
            self.last_ask = range(self.next_id, self.next_id + len(indices))
            self.failed_lately = set()
        for arm, score in zip(indices, scores, strict=True):
            self.pending[self.next_id] = Pull(arm, score, time)
            self.next_id += 1
        self._try(indices)

    def tell(
        self,
        indices: Any,
        rewards: Any,
        pull_ids: Any,
        time: float | None = None,
        noise_variance: Any = None,
        group: Any = None,
    ) -> None:
        """Settle pending pulls with rewards; arguments as in ``tell`` of a bandit."""
        ids = self._settle(self._checked_arms(indices), pull_ids)
        pulls = list(map(self.pending.pop, ids))
        self._extend(pulls, rewards, noise_variance, ids, time, group)

    def add(
        self,
        indices: Any,
        rewards: Any,
        scores: Callable[[Tensor], Tensor],
        time: float | None = None,
        noise_variance: Any = None,
        group: Any = None,
        campaign: Any = None,
        control: Any = None,
    ) -> None:
        """Take in rewards of pulls that were never asked for, or of controls.

        Arguments are as in ``add_observations`` of a bandit; ``scores`` returns the
        leverage scores of arms at the last time known.
        """
        time = self.last_time if time is None else time
        if control is None:
            arms = self._checked_arms(indices)
            found = scores(self._long(arms)).tolist()
        else:
            arms = [NO_ARM] * as_tensor("rewards", rewards, "real numbers").numel()
            if "" in check_labels("control", control, len(arms)):
                raise InputDataError(
                    "Expected `control` to name the sample of every result, but got "
                    f"{control!r}. Record the results of arms with `indices`."
                )
            found = [0.0] * len(arms)
        pulls, ids = list(map(Pull, arms, found)), [-1] * len(arms)
        self._extend(
            pulls, rewards, noise_variance, ids, time, group, campaign, control
        )
        new = self.told.rows(slice(self.num_pulls - len(arms), None))
        self._try(new.indices[new.is_own_arm].tolist())

    def _extend(
        self,
        pulls: Sequence[Pull],
        rewards: Any,
        noise_variance: Any,
        ids: Sequence[int],
        time: float | None,
        *labels: Any,
    ) -> None:
        values = check_rewards(rewards, len(pulls), self.dtype)
        noise = check_known_noise(noise_variance, len(pulls), self.dtype)
        codes = [
            self._codes(check_labels(name, given, len(pulls)))
            for name, given in zip_longest(LABELS, labels)
        ]
        arms, scores, asked = ([pull[part] for pull in pulls] for part in range(3))
        times = asked if time is None else [time] * len(pulls)
        new = Results.of(arms, values, scores, ids, asked, times, noise, *codes)
        self.told = Results(*map(torch.cat, zip(self.told, new, strict=True)))
        for arm in new.indices[new.labels[:, CAMPAIGN] < 0].tolist():
            self.failures.pop(arm, None)

    def _codes(self, labels: list[str]) -> list[int]:
        """Return the places of names among the labels, -1 for no name."""
        self.labels = [*dict.fromkeys([*self.labels, *filter(None, labels)])]
        place_in = {"": -1} | {name: at for at, name in enumerate(self.labels)}
        return [place_in[name] for name in labels]

    def _try(self, arms: Sequence[int]) -> None:
        """Count new pulls, and remember their arms."""
        for arm in arms:
            self.num_since_new = self.num_since_new + 1 if arm in self.tried else 0
            self.tried.add(arm)

    def fail(self, indices: Any, pull_ids: Any) -> None:
        """Release pending pulls without reward."""
        arms = self._checked_arms(indices)
        for key in self._settle(arms, pull_ids):
            del self.pending[key]
        self.failures.update(arms)
        self.failed_lately.update(arms)

    def withdraw(
        self,
        indices: Any,
        pull_ids: Any,
        campaign: str | None = None,
        control: str | None = None,
    ) -> list[int]:
        """Remove observations; pulls that were asked for are pending again.

        Without ids the latest observations of these arms are taken, or the latest one
        of a control; those of an earlier campaign if it is named.

        Returns:
            The places that they had among the observations.
        """
        check_one(indices=indices, control=control)
        place_of, known = {}, {}
        told, ids = self.told, self.told.ids.tolist()
        columns = (told.indices, told.scores, told.asked)
        pulls = list(map(Pull, *(column.tolist() for column in columns)))
        place_in = {"": -1} | {name: at for at, name in enumerate(self.labels)}
        given = {"campaign": campaign, "control": control}.items()
        wanted = [place_in.get(check_labels(*one, 1)[0]) for one in given]
        arms = self._checked_arms(indices) if control is None else [NO_ARM]
        for place, labels in reversed(list(enumerate(told.labels[:, 1:].tolist()))):
            if labels == wanted:
                key = place if pull_ids is None else ids[place]
                place_of[key], known[key] = place, pulls[place]
        known.pop(-1, None)
        found = self._keys(
            known,
            arms,
            pull_ids,
            "Expected another told result of {} to withdraw, but it has none. Use "
            "`fail` for pending pulls, and `campaign` for results of an earlier one.",
            "Expected pull {} to be one of {} whose result was told, but it is none. "
            "`pending` lists pending pulls, by id.",
        )
        places = [place_of[key] for key in found]
        kept = torch.ones(len(pulls), dtype=torch.bool, device="cpu")
        for place in places:
            kept[place] = False
            if ids[place] >= 0:
                self.pending[ids[place]] = pulls[place]
        self.pending = dict(sorted(self.pending.items()))
        self.told = told.rows(kept)
        self._summed = self._nothing, 0
        return places

    def pending_arms(self) -> Tensor:
        """Return the arms of pending pulls, in order of asking, repeats included."""
        return self._long([pull.arm for pull in self.pending.values()])

    def used(self) -> PullCounts:
        """Return the numbers of pulls, told and pending, by arm."""
        pending = self.pending_arms()
        ones = torch.ones_like(pending)
        found = self.totals().plus(pending, ones.double(), ones)
        return PullCounts(found.arms, found.counts)

    def history(
        self, start: int = 0, stop: int | None = None, units: Units | None = None
    ) -> Results:
        """Return some observations, with signed rewards, warped if there are units."""
        told = self.told.rows(slice(start, stop))
        results = Results(*(column.to(self.device) for column in told))
        results = results._replace(rewards=self.sign * results.rewards)
        return results if units is None else results.warped(units)

    def totals(
        self,
        fit: Fit | None = None,
        num_pulls: int | None = None,
        since: float = -math.inf,
    ) -> Totals:
        """Return the totals of the first observations of arms, with signed rewards.

        Args:
            fit: None: those of this campaign, each with the weight 1. With a fit, those
                of earlier campaigns as well, with its weights and warped rewards.
            num_pulls: How many; all if None.
            since: Rewards of earlier times do not count.
        """
        told, units = self.told, fit.units if fit else None
        has_campaigns = (told.labels[:, CAMPAIGN] >= 0).any()
        is_weighted = bool(fit and (told.noise.any() or has_campaigns))
        # An ask would otherwise sum up all observations several times.
        is_whole = num_pulls in (None, self.num_pulls) and since == -math.inf
        is_kept = is_whole and not is_weighted and not (units and units.warp)
        before, start = self._summed if is_kept else (self._nothing, 0)
        if is_kept and start == self.num_pulls:
            return before
        results = self.history(start, num_pulls, units)
        counts = results.indices != NO_ARM if fit else results.is_own_arm
        results = results.rows(counts & (results.times >= since))
        weights = torch.ones_like(results.indices)
        if fit and is_weighted:
            weights = results.weights(fit)
        found = before.plus(results.indices, results.rewards, weights)
        if is_kept:
            self._summed = found, self.num_pulls
        return found

    def _settle(self, arms: list[int], pull_ids: Any) -> list[int]:
        """Return the ids of pending pulls of these arms, by id or the oldest ones."""
        return self._keys(
            self.pending,
            arms,
            pull_ids,
            "Expected a pending pull of {}, but it has none left to settle. Ask first, "
            "and tell what `ask` returned; or pass results that were never asked for "
            "to `add_observations`.",
            "Expected pull {} to be a pending pull of {}, but it is {}. `pending` "
            "lists those that wait for a result, by id.",
        )

    def _keys(
        self,
        known: Mapping[int, Pull],
        arms: list[int],
        pull_ids: Any,
        missing: str,
        strange: str,
    ) -> list[int]:
        """Return a key of each pull: its id, or the first one of its arm.

        An error has the message ``missing`` if an arm has no pull left among the known
        ones, and ``strange`` if the pull of an id is of another arm, or unknown.
        """
        if pull_ids is not None:
            ids = check_pull_ids(pull_ids, len(arms))
            for arm, key in zip(arms, ids, strict=True):
                pull = known.get(key)
                if pull is None or pull.arm != arm:
                    found = "settled, or was never asked for"
                    if pull is not None:
                        found = f"one of {self._name(pull.arm)}"
                    message = strange.format(key, self._name(arm), found)
                    raise InputDataError(message)
            return ids
        keys: dict[int, list[int]] = {}
        for key, pull in known.items():
            keys.setdefault(pull.arm, []).append(key)
        first = []
        for arm in arms:
            if not keys.get(arm):
                raise InputDataError(missing.format(self._name(arm)))
            first.append(keys[arm].pop(0))
        return first

    def _checked_arms(self, indices: Any) -> list[int]:
        """Return the arms of a user's argument."""
        return check_indices(indices, self.num_arms)

    def _name(self, arm: int) -> str:
        """Return how messages name an arm."""
        return f"arm {arm}" if arm != NO_ARM else "this control"

    def _long(self, arms: Sequence[int]) -> Tensor:
        return torch.tensor(arms, dtype=torch.long, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists."""
        *columns, labels = self.told
        names = *Results._fields[: len(columns)], *LABELS
        told = zip(names, [*columns, *labels.mT], strict=True)
        return {
            **{f"told_{name}": column.tolist() for name, column in told},
            "labels": self.labels,
            "pending": {key: tuple(pull) for key, pull in self.pending.items()},
            "next_id": self.next_id,
            "tried": sorted(self.tried),
            "num_since_new": self.num_since_new,
            "failures": dict(self.failures),
            "failed_lately": sorted(self.failed_lately),
            "now": None if self.now == -math.inf else self.now,
            "last_ask": (self.last_ask.start, self.last_ask.stop),
            "opening_id": self.opening_id,
            "opening_score": self.opening_score,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, into new observations."""
        arms = array("q", state["told_indices"]).tolist()  # accepts integers only
        check_indices([arm for arm in arms if arm != NO_ARM], self.num_arms)
        self.labels = [*map(str, state.get("labels", []))]  # none in version 1.0
        most, none = len(self.labels), [-1] * len(arms)
        labels = {name: state.get(f"told_{name}", none) for name in LABELS}
        columns = (
            arms,
            check_rewards(state["told_rewards"], len(arms), self.dtype),
            [check_number("told_scores", x, 0.0) for x in state["told_scores"]],
            array("q", state["told_ids"]).tolist(),
            list(map(check_time, state["told_asked"])),
            list(map(check_time, state["told_times"])),
            [check_number("told_noise", x, 0.0) for x in state["told_noise"]],
            *(
                [check_count(name, code + 1, most) - 1 for code in codes]
                for name, codes in labels.items()
            ),
        )
        if any(len(column) != len(arms) for column in columns):
            raise InputDataError("Expected a number per observation in every column.")
        self.told = Results.of(*columns)
        self.next_id = check_count("next_id", state["next_id"])
        for key, (arm, score, time) in state["pending"].items():
            score = check_number("told_scores", score, 0.0)
            pull = Pull(arm, score, check_time(time))
            self.pending[check_count("pending", key, self.next_id - 1)] = pull
        for arm, count in state["failures"].items():
            self.failures[arm] = check_count("failures", count)
        self.tried = set(state["tried"])
        self.failed_lately = set(state["failed_lately"])
        pending = [pull.arm for pull in self.pending.values()]
        named = [*pending, *self.failures, *self.tried, *self.failed_lately]
        check_indices(named, self.num_arms)
        self.num_since_new = check_count("num_since_new", state["num_since_new"])
        self.now = -math.inf if state["now"] is None else check_time(state["now"])
        ids = state.get("last_ask", (0, 0))  # none in version 1.0
        start, stop = (check_count("last_ask", each, self.next_id) for each in ids)
        self.last_ask = range(start, stop)
        self.opening_id = check_count("opening_id", state.get("opening_id", 0))
        self.opening_score = check_number("opening_score", state["opening_score"], 0.0)
