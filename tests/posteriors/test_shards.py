"""The number of shards changes no choice; merged answers are those of all arms."""

from itertools import pairwise
from math import isnan

import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb import BBKB, BKB, GPBandit, GPBUCB, GPThompsonSampling
from botorch_bkb.bandits import EpsilonGreedy
from botorch_bkb.optim import FixedSize
from botorch_bkb.posteriors import ArmPosterior, ArmSampler, shards
from botorch_bkb.posteriors.posterior import largest, Ranked
from botorch_bkb.posteriors.shards import MIN_SHARED_BYTES, plan_shards, threads_for
from tests.helpers import random_points, seeded


BLOCK_SIZE = 16
NUM_ARMS = 150
NAN = float("nan")


def set_shards(monkeypatch, num_shards, block_size=BLOCK_SIZE):
    """Let every posterior have so many shards, of blocks so small that it can."""
    monkeypatch.setattr(shards, "BLOCK_SIZE", block_size)
    plan = lambda A, _, size: plan_shards(A, num_shards, size)  # noqa: E731
    monkeypatch.setattr(shards, "plan_shards", plan)


def table(num_arms=NUM_ARMS, dtype=torch.double):
    return random_points(num_arms, 2, dtype=dtype)


def kernel(lengthscale=0.3):
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale
    return kernel


def make_ts(covariance, **options):
    return lambda arms: GPThompsonSampling(
        arms, kernel(0.15), 0.1, covariance=covariance, generator=seeded(1), **options
    )


BANDITS = {
    "bbkb": lambda arms: BBKB(arms, kernel(), 0.1, seed=1),
    "bbkb-recomputed": lambda arms: BBKB(
        arms, kernel(0.1), 0.05, max_feature_bytes=0, seed=1
    ),
    "bkb": lambda arms: BKB(arms, kernel(), 0.1, batch_rule=FixedSize(3), seed=1),
    "best-arm": lambda arms: GPBandit(arms, kernel(), 0.1, seed=1),
    "gpbucb": lambda arms: GPBUCB(arms, kernel(0.15), 0.02, seed=1),
    "epsilon-greedy": lambda arms: EpsilonGreedy(arms, kernel(), 0.1, seed=1),
    "ts": make_ts("full"),
    "ts-weights": make_ts("projected"),
}


def campaign(bandit, num_asks=5):
    """Return the choices and the predictions of a run with masks and pending pulls."""
    environment, choices, predictions = seeded(2), [], []
    for _ in range(num_asks):
        available = torch.rand(len(bandit.arms), generator=environment) < 0.7
        choices.append(bandit.ask(12, available=available).tolist())
        pending = bandit.pending
        keys = [key for key in pending if torch.rand((), generator=environment) < 0.6]
        arms = torch.tensor([pending[key] for key in keys], dtype=torch.long)
        noise = torch.randn(len(arms), generator=environment).to(bandit.arms)
        bandit.tell(arms, bandit.arms[arms].sin().sum(dim=-1) + 0.3 * noise, keys)
        predictions += [*bandit.predict(), bandit.confidence_bound()]
    choices.append(bandit.maximizer_distribution(8, seeded(3)).indices.tolist())
    return choices, predictions


def assert_same(found, expected):
    """Compare the choices of two runs, and their predictions up to rounding."""
    assert found[0] == expected[0]
    tolerance = torch.finfo(expected[1][0].dtype).eps ** 0.5
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("bandit", "dtype"),
    [*((bandit, torch.double) for bandit in BANDITS), ("bbkb", torch.float)],
)
def test_shards_change_no_choice(monkeypatch, bandit, dtype):
    """Products over other strides may differ in their last bits."""
    arms = table(dtype=dtype)
    set_shards(monkeypatch, 1)
    expected = campaign(BANDITS[bandit](arms))
    set_shards(monkeypatch, 4)
    assert_same(campaign(BANDITS[bandit](arms)), expected)


@given(
    values=st.lists(
        st.sampled_from([NAN, -torch.inf, -2.0, 0.0, 1.0]), min_size=1, max_size=30
    ),
    size=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_the_largest_are_in_order_with_the_lowest_index_first(values, size, cuts):
    """Whatever the shards; no number is larger than NaN, which is to be seen."""
    expected = sorted(range(len(values)), key=lambda i: (-rank(values[i]), i))[:size]
    limits = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    parts = []
    for start, stop in pairwise(limits):
        part = largest(torch.tensor(values[start:stop]), size)
        parts.append(Ranked(part.values, part.arms + start))
    merged = Ranked.merged(parts).first(size)
    assert merged.arms.tolist() == expected


def rank(value):
    return float("inf") if isnan(value) else value


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("place", [3, 70, 159])
def test_a_number_that_is_none_is_not_hidden_by_another_shard(
    monkeypatch, num_shards, place
):
    set_shards(monkeypatch, num_shards)
    posterior = ArmPosterior(table(160), kernel(), 0.1)
    assert len(posterior.shards.parts) == num_shards
    for part in posterior.shards.parts:
        if 0 <= place - part.start < part.num_arms:
            part.moments[1, place - part.start] = NAN
    assert posterior.largest_bounds(1.0, 2).arms.tolist()[0] == place
    assert posterior.best_mean() == place
    draws = ArmSampler(posterior).draw_best_arms(5, seeded())
    assert draws.tolist() == [place] * 5


@pytest.mark.parametrize(
    ("num_arms", "num_shards", "limits"),
    [
        (10, 3, [0, 10]),
        (64, 2, [0, 32, 64]),
        (65, 3, [0, 32, 64, 65]),
        (40, 9, [0, 16, 32, 40]),
    ],
)
def test_shards_are_whole_blocks(num_arms, num_shards, limits):
    assert plan_shards(num_arms, num_shards, BLOCK_SIZE) == limits


@pytest.mark.parametrize(
    ("num_bytes", "expected"), [(MIN_SHARED_BYTES - 1, 1), (MIN_SHARED_BYTES, 3)]
)
def test_small_work_runs_on_one_thread_and_gives_the_others_back(num_bytes, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def work():
        with threads_for(num_bytes):
            assert torch.get_num_threads() == expected
            raise ValueError("inside")

    try:
        with pytest.raises(ValueError, match="inside"):
            work()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
