"""Months of a campaign in random order, against a dictionary of what has happened."""

import shutil
import tempfile
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    RuleBasedStateMachine,
)
from typing_extensions import override

from botorch_bkb import BBKB, GPBandit, GPUCB, TVGPUCB
from botorch_bkb.bandits import FiniteArmBandit
from tests.bandits import LEARNED, make_bandit, NOISE, rbf
from tests.helpers import gram_matrix
from tests.reference import Arms


# Rows to take arms from, so few that they meet again.
POOL = [(x / 4, y / 2) for x in range(5) for y in range(3)]
values = st.floats(-3, 3).map(lambda value: round(value, 3))
some_rows = st.lists(st.sampled_from(POOL), min_size=1, max_size=5)
numbers = st.integers(0, 10_000)


@dataclass
class Record:
    """What has happened, as plain as it can be written down."""

    rows: list[tuple[float, float]]
    retired: set[int] = field(default_factory=set)
    # Of arms, since their last reward.
    failures: Counter[int] = field(default_factory=Counter)
    asked: list[int] = field(default_factory=list)  # the arm of every pull id
    results: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    external: list[tuple[int, float]] = field(default_factory=list)

    @property
    def pending(self) -> dict[int, int]:
        settled = self.failed | set(self.results)
        return {key: arm for key, arm in enumerate(self.asked) if key not in settled}

    @property
    def told(self) -> list[tuple[int, float]]:
        by_id = [(self.asked[key], value) for key, value in self.results.items()]
        return by_id + self.external

    @property
    def active(self) -> list[int]:
        return [arm for arm in range(len(self.rows)) if arm not in self.retired]


def tensor(rows):
    return torch.tensor(rows, dtype=torch.double).reshape(-1, 2)


class Campaign(RuleBasedStateMachine):
    """A bandit in use; subclasses say which."""

    bandit_class: type[FiniteArmBandit] = GPUCB
    is_exact = True
    options: ClassVar[dict[str, Any]] = {}

    @initialize(rows=some_rows)
    def start(self, rows):
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "state"
        self.given = list(dict.fromkeys(rows))
        self.record = Record(list(self.given))
        self.bandit = self.make(seed=0)
        self.save()

    @override
    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def make(self, seed):
        arms = tensor(self.given)
        return make_bandit(self.bandit_class, arms, seed, **self.options)

    def call(self, name, *args, **options):
        """Call a method, and note it down with its answer for who restores a file."""
        answer = getattr(self.bandit, name)(*args, **options)
        self.journal.append((name, args, options, answer))
        return answer

    def pick(self, choices, number):
        return choices[number % len(choices)]

    # Pulls ----------------------------------------------------------------------------

    def asked(self, indices):
        self.record.asked += indices.tolist()

    @precondition(lambda self: self.record.active)
    @rule(size=st.integers(1, 6))
    def ask(self, size):
        indices = self.call("ask", size)
        assert 1 <= len(indices) <= size
        assert not set(indices.tolist()) & self.record.retired
        self.asked(indices)

    @rule(rows=some_rows, size=st.integers(1, 4))
    def ask_visitors(self, rows, size):
        indices = self.call("ask", size, arms=tensor(rows))
        assert 1 <= len(indices) <= size
        table = [tuple(row) for row in self.bandit.arms.tolist()]
        known = len(self.record.rows)
        assert table[:known] == self.record.rows
        assert set(table[known:]) <= set(rows)
        assert {table[arm] for arm in indices.tolist()} <= set(rows)
        assert set(range(known, len(table))) <= set(indices.tolist())
        self.record.rows = table
        self.record.retired |= set(range(known, len(table)))
        self.asked(indices)

    @precondition(lambda self: self.record.pending)
    @rule(start=numbers, stride=st.integers(1, 3), told=st.lists(values, max_size=8))
    def tell(self, start, stride, told):
        """Any part of what is out, in any order."""
        keys = list(self.record.pending)
        chosen = keys[start % len(keys) :: stride][: len(told)][::-1]
        told = told[: len(chosen)]
        arms = [self.record.asked[key] for key in chosen]
        self.call("tell", arms, told, pull_ids=chosen)
        for arm in arms:
            del self.record.failures[arm]
        self.record.results.update(zip(chosen, told, strict=True))

    @precondition(lambda self: self.record.pending)
    @rule(number=numbers, value=values)
    def tell_the_oldest(self, number, value):
        arm = self.pick(list(self.record.pending.values()), number)
        self.call("tell", [arm], [value])
        del self.record.failures[arm]
        oldest = next(key for key, it in self.record.pending.items() if it == arm)
        self.record.results[oldest] = value

    @precondition(lambda self: self.record.pending)
    @rule(number=numbers)
    def fail(self, number):
        key = self.pick(list(self.record.pending), number)
        arm = self.record.asked[key]
        self.call("fail", [arm], pull_ids=[key])
        self.record.failed.add(key)
        self.record.failures[arm] += 1
        if self.bandit_class is GPBandit and self.record.failures[arm] == 2:
            self.record.retired.add(arm)
            del self.record.failures[arm]

    @rule(number=numbers, told=st.lists(values, min_size=1, max_size=4))
    def add_observations(self, number, told):
        """Whether pulls of that arm are pending or not."""
        arm = number % len(self.record.rows)
        self.call("add_observations", len(told) * [arm], told)
        del self.record.failures[arm]
        self.record.external += [(arm, value) for value in told]

    # Arms -----------------------------------------------------------------------------

    def joined(self, indices, rows):
        self.record.rows += [
            row for row in dict.fromkeys(rows) if row not in self.record.rows
        ]
        assert indices.tolist() == [self.record.rows.index(row) for row in rows]

    @rule(rows=some_rows)
    def add_arms(self, rows):
        self.joined(self.call("add_arms", tensor(rows)), rows)
        self.record.retired -= {self.record.rows.index(row) for row in rows}

    @rule(number=numbers)
    def retire_arm(self, number):
        arm = number % len(self.record.rows)
        self.call("retire_arms", [arm])
        self.record.retired.add(arm)

    # Crashes --------------------------------------------------------------------------

    @rule()
    def save(self):
        self.bandit.save(self.path)
        self.saved, self.journal = deepcopy(self.record), []

    @rule()
    def crash(self):
        """Load the file elsewhere, and do again what the journal says."""
        journal, self.bandit = self.journal, self.make(seed=99)
        self.bandit.load(self.path)
        now, self.record = self.record, self.saved
        self.agrees_with_the_record()
        self.journal = []
        for name, args, options, answer in journal:
            again = self.call(name, *args, **options)
            assert (again is None) if answer is None else torch.equal(again, answer)
        self.record, self.saved = now, deepcopy(self.saved)

    @rule()
    def lose_what_was_not_saved(self):
        self.bandit = self.make(seed=99)
        self.bandit.load(self.path)
        self.record, self.journal = deepcopy(self.saved), []

    # What must hold -------------------------------------------------------------------

    @invariant()
    def agrees_with_the_record(self):
        if not hasattr(self, "bandit"):
            return
        bandit, record = self.bandit, self.record
        assert [tuple(row) for row in bandit.arms.tolist()] == record.rows
        assert set(bandit.is_retired.nonzero().flatten().tolist()) == record.retired
        assert bandit.pending == record.pending
        assert bandit.num_pulls == len(record.told)
        ledger = bandit.state_dict()["observations"]
        kept = zip(ledger["told_indices"], ledger["told_rewards"], strict=True)
        assert sorted(kept) == sorted(record.told)
        mean, variance = (moment.numpy() for moment in bandit.predict())
        assert np.isfinite(mean).all()
        assert (variance >= 0).all()
        if self.is_exact:
            expected = dense_posterior(np.array(record.rows), record.told)
            np.testing.assert_allclose(mean, expected[0], rtol=0, atol=1e-8)
            np.testing.assert_allclose(variance, expected[1], rtol=0, atol=1e-8)


def dense_posterior(rows, told):
    """Return mean and variance of an exact GP."""
    counts, sums = np.zeros((2, len(rows)))
    for arm, value in told:
        counts[arm] += 1
        sums[arm] += value
    dense = Arms(gram_matrix(rbf(), torch.tensor(rows)), NOISE)
    return dense.posterior(counts.nonzero()[0], counts, sums)[:2]


class SparseCampaign(Campaign):
    bandit_class = BBKB
    is_exact = False
    options: ClassVar[dict[str, Any]] = {"resampling": "coupled"}


class DriftingCampaign(Campaign):
    bandit_class = TVGPUCB
    is_exact = False
    options: ClassVar[dict[str, Any]] = {"confidence": 2.0}


class LearningCampaign(Campaign):
    bandit_class = GPBandit
    is_exact = False
    options: ClassVar[dict[str, Any]] = LEARNED


def case(machine, num_examples, num_steps=40):
    test = machine.TestCase
    test.settings = settings(
        max_examples=num_examples, stateful_step_count=num_steps, deadline=None
    )
    return test


# Few, with a fresh seed in every run.
TestExact = case(Campaign, 5)
TestSparse = case(SparseCampaign, 6)
TestDrifting = case(DriftingCampaign, 4)
# A fit to a few odd rewards may fail, and says so.
TestLearning = pytest.mark.filterwarnings("ignore")(case(LearningCampaign, 2, 25))
