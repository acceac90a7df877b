"""Several threads with one bandit: one at a time is in it, and nothing is lost."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy, deepcopy
from threading import Barrier
from types import FunctionType

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError

from botorch_bkb import BBKB, BoxBandit, GPBandit, RGPUCB, TVGPUCB
from botorch_bkb.posteriors import shards
from tests.bandits import assert_same, make_bandit, NOISE, random_arms, rbf


NUM_THREADS = 8
NUM_ROUNDS = 3


def make_any(bandit_class, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if bandit_class is not BoxBandit:
        return make_bandit(bandit_class, random_arms(20), generator=generator)
    box = torch.tensor([[0.0], [1.0]]).double()
    options = {"raw_samples": 8, "num_restarts": 1, "generator": generator}
    return BoxBandit(box, rbf(), NOISE, **options)


def measure(pulled):
    """One reward per arm or point, different ones for different ones."""
    return pulled.double().reshape(len(pulled), -1).sum(dim=-1) / 10


def tasks(bandit):
    """What workers do beside asking and telling."""
    if isinstance(bandit, BoxBandit):
        points = bandit.bounds
        return [bandit.state_dict, lambda: bandit.predict(points), bandit.best_point]
    return [bandit.state_dict, bandit.predict, bandit.best_arm]


@pytest.mark.parametrize("bandit_class", [BBKB, TVGPUCB, BoxBandit])
def test_eight_threads_ask_and_tell(bandit_class):
    bandit = make_any(bandit_class)
    start = Barrier(NUM_THREADS)

    def work(number):
        start.wait()
        told = []
        for turn in range(NUM_ROUNDS):
            with bandit.lock:
                pulled = bandit.ask(1 if turn % 2 else 2)
                pull_ids = list(bandit.pending)[-len(pulled) :]
            if (number + turn) % 3 == 0:
                bandit.fail(pulled, pull_ids=pull_ids)
                continue
            bandit.tell(pulled, measure(pulled), pull_ids=pull_ids)
            told += pulled.tolist()
            tasks(bandit)[turn % 3]()
        return told

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        told = [pull for part in pool.map(work, range(NUM_THREADS)) for pull in part]
    assert bandit.num_pulls == len(told)
    assert not bandit.pending
    state = bandit.state_dict()
    observations = state["observations"]
    known = torch.tensor(observations["told_indices"])
    if bandit_class is BoxBandit:
        known = observations["points"][known]
    assert sorted(known.tolist()) == sorted(told)
    assert observations["told_rewards"] == pytest.approx(measure(known).tolist())
    # All of one piece: another bandit goes on from there.
    other = make_any(bandit_class, seed=9)
    other.load_state_dict(state)
    assert_same(other.state_dict(), state)


class CountingLock:
    """A lock for one thread that counts how often it is taken."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self.count += 1

    def __exit__(self, *details):
        pass


@pytest.mark.parametrize("bandit_class", [BBKB, GPBandit, TVGPUCB, BoxBandit])
def test_every_public_method_takes_the_lock(bandit_class):
    bandit = make_any(bandit_class)
    names = [name for name in dir(bandit_class) if not name.startswith("_")]
    assert {"ask", "tell", "fail", "predict", "save", "load", "pending"} < set(names)
    for name in names:
        bandit.lock = CountingLock()
        if isinstance(getattr(bandit_class, name), FunctionType):
            # It wants arguments or rewards, or another objective.
            with suppress(TypeError, InputDataError, UnsupportedError):
                getattr(bandit, name)()
            assert bandit.lock.count > 0, name


def through_a_pickle(bandit):
    return pickle.loads(pickle.dumps(bandit))


@pytest.mark.parametrize("make_copy", [copy, deepcopy, through_a_pickle])
@pytest.mark.parametrize("bandit_class", [BBKB, RGPUCB, BoxBandit])
def test_a_copy_is_independent(bandit_class, make_copy):
    bandit = make_any(bandit_class)
    pulled = bandit.ask(1)
    bandit.tell(pulled, measure(pulled))
    with bandit.lock:
        other = make_copy(bandit)
        with ThreadPoolExecutor(1) as pool:  # waits for no lock but its own
            picks = pool.submit(other.ask, 1).result()
    before = deepcopy(bandit.state_dict())
    other.tell(picks, measure(picks))
    other.predict(pulled)
    other.ask(1)
    assert_same(bandit.state_dict(), before)
    assert picks.tolist() == bandit.ask(1).tolist()
    assert "lock" not in bandit.state_dict()


@pytest.mark.parametrize(("num_results", "num_threads"), [(9, 1), (10, 3)])
def test_the_first_ask_over_much_data_uses_all_threads(
    num_results, num_threads, monkeypatch
):
    """Before it there are no features that could be counted, but there are results."""
    arms = torch.linspace(0, 1, 100).double().unsqueeze(-1)
    bandit = GPBandit(arms)
    bandit.add_observations(range(num_results), torch.rand(num_results).double())
    monkeypatch.setattr(shards, "MIN_SHARED_BYTES", 10 * arms.nbytes)
    seen = []
    select = bandit._select
    monkeypatch.setattr(
        bandit,
        "_select",
        lambda *args, **options: (
            seen.append(torch.get_num_threads()) or select(*args, **options)
        ),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        bandit.ask(2)
    finally:
        torch.set_num_threads(before)
    assert seen == [num_threads]
