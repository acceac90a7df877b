"""Late observations and arms that join, against filters that had them in time."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_bkb import TVGPUCB
from botorch_bkb.posteriors import SparseArmKalmanFilter
from botorch_bkb.posteriors.replay import Observation, ReplayedFilter
from tests.bandits import make_bandit, play
from tests.helpers import spy
from tests.posteriors.test_sparse_arm_filter import assert_same_bits


NOISE, RATE = 0.2, 0.05
ARMS = torch.as_tensor(np.random.default_rng(0).uniform(size=(50, 2)))
KERNEL = MaternKernel(nu=2.5).double()
KERNEL.lengthscale = 0.3
GRAM = KERNEL(ARMS).to_dense().detach()
both_filters = pytest.mark.parametrize("sparse", [False, True], ids=["exact", "sparse"])


def new_filter(sparse, num_arms=50):
    # So few and so strict that arms leave, and come back.
    options = (0.01, 12) if sparse else (0.0, 512)
    return SparseArmKalmanFilter(ARMS[:num_arms], KERNEL, NOISE, RATE, *options)


def random_pulls(num_pulls, seed, num_arms=50):
    """Return observations at 0, 1, 1.5, ..., some at one time."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.choice([0.0, 0.5, 1.0], size=num_pulls))
    return [
        Observation(float(time), int(rng.integers(num_arms)), float(rng.normal()))
        for time in times
    ]


def filtered(pulls, empty):
    replayed = ReplayedFilter(empty)
    replayed.observe(pulls, math.inf)
    return replayed.filter


@pytest.mark.parametrize(("sparse", "seed"), [(False, 0), (True, 1)])
def test_late_observations_are_those_of_a_full_replay_bit_for_bit(sparse, seed):
    rng = np.random.default_rng(seed)
    replayed = ReplayedFilter(new_filter(sparse))
    pulls, out, told = random_pulls(60, seed), [], []
    for number in range(0, 60, 2):
        out += pulls[number : number + 2]
        rng.shuffle(out)
        size = len(out) if number == 58 else int(rng.integers(len(out) + 1))
        new, out = out[:size], out[size:]
        told += new
        expected = filtered(told, new_filter(sparse))
        assert replayed.reaches(new)
        assert_same_bits(replayed.with_observations(new), expected)
        replayed.observe(new, min((pull.time for pull in out), default=math.inf))
        assert_same_bits(replayed.filter, expected)
    assert len(told) == 60


@both_filters
def test_arms_that_join_are_as_if_they_had_always_been_there(sparse):
    """Twice, with observations of new arms in between."""
    first, second = random_pulls(60, 5, num_arms=30), random_pulls(60, 6, num_arms=40)
    shifted = [pull._replace(time=pull.time + first[-1].time + 1) for pull in second]
    replayed = ReplayedFilter(new_filter(sparse, 30))
    replayed.observe(first, first[50].time)
    replayed = replayed.extended(ARMS[30:40])
    replayed.observe(shifted, first[50].time)
    replayed = replayed.extended(ARMS[40:])
    late = [Observation(first[55].time, 45, 2.0)]
    for new in ([], late):
        got = replayed.with_observations(new)
        wanted = filtered([*first, *shifted, *new], new_filter(sparse))
        torch.testing.assert_close(got.mean, wanted.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(got.variance, wanted.variance, rtol=0, atol=1e-8)
        assert got.log_det == pytest.approx(wanted.log_det)
    empty = new_filter(sparse, 30).extended(ARMS[30:])
    torch.testing.assert_close(empty.variance, GRAM.diagonal())
    assert empty.mean.tolist() == [0.0] * 50


@both_filters
def test_bandits_replay_what_came_since_the_oldest_pull_only(sparse, monkeypatch):
    bandit = make_bandit(TVGPUCB, ARMS[:20], sparse=sparse)
    play(bandit, 20)
    bandit.add_arms(ARMS[20:30])
    late = bandit.ask()
    for _ in range(5):
        play(bandit, 1)
    observed = spy(monkeypatch, SparseArmKalmanFilter, "observe")
    bandit.tell(late, [0.3])
    bandit.add_arms(ARMS[30:40])
    waiting = bandit.ask(arms=ARMS[40:])
    # The late one and the five that came since it; new arms replay nothing.
    assert sum(len(arms) for _, arms, *_ in observed) == 6
    assert bandit.pending == {26: waiting.item()}
    bandit.tell(waiting, [0.1])
    observed.clear()
    play(bandit, 2)
    bandit.predict()
    # Nothing is pending: a result is one observation.
    assert sum(len(arms) for _, arms, *_ in observed) == 3
