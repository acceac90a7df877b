"""Bandits whose pulls have times, against the dense posterior over space and time."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.kernels.categorical import CategoricalKernel
from gpytorch.kernels import RBFKernel

from botorch_bkb import GPBandit, RGPUCB, TVGPUCB
from botorch_bkb.acquisition import LogWidth
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import matern_block_size, rbf_block_size
from botorch_bkb.bandits.observations import Observations
from botorch_bkb.optim import FixedSize, SumRule
from tests.bandits import (
    identity_bandit,
    make_bandit,
    NOISE,
    noisy_rewards,
    play,
    random_arms,
    rbf,
    unchanged,
)
from tests.helpers import gram_matrix, seeded
from tests.reference import time_varying_posterior


RATE = 0.1
WIDTH = LogWidth(0.8, 4.0)
both_filters = pytest.mark.parametrize("sparse", [False, True], ids=["exact", "sparse"])


def dense(bandit, pulls, time, rate=RATE):
    """Return means and variances by equations (7) and (8)."""
    arms, rewards, times = (np.array(column) for column in zip(*pulls, strict=True))
    gram = gram_matrix(rbf(), bandit.arms)
    return time_varying_posterior(
        gram, NOISE, rate, arms.astype(int), times, rewards, time
    )


def tv_bandit(**options):
    options = {"forgetting_rate": RATE, "confidence": WIDTH, "tolerance": 0.0} | options
    return make_bandit(TVGPUCB, **options)


# TV-GP-UCB ----------------------------------------------------------------------------


@pytest.mark.parametrize(("sparse", "maximize"), [(False, True), (True, False)])
def test_a_whole_run_is_that_of_algorithm_2(sparse, maximize):
    """Real times, with gaps; picks, means, variances by the dense formulas."""
    bandit = tv_bandit(sparse=sparse, maximize=maximize)
    sign, rng, pulls, time = (1 if maximize else -1), np.random.default_rng(0), [], 0.0
    for number in range(40):
        time += rng.exponential()
        (index,) = bandit.ask(time=time).tolist()
        if number:
            mean, variance = dense(bandit, pulls, time)
            beta = 0.8 * math.log(4 * (number + 1))
            score = sign * mean + np.sqrt(beta * variance)
            assert score[index] > score.max() - 1e-9
        time += rng.exponential()
        reward = math.sin(6 * bandit.arms[index].sum() + time / 5) + rng.normal() / 3
        bandit.tell([index], [reward], time=time)
        pulls.append((index, reward, time))
        mean, variance = dense(bandit, pulls, time + 1)
        np.testing.assert_allclose(bandit.predict()[0], mean, atol=1e-7)
        np.testing.assert_allclose(bandit.predict()[1], variance, atol=1e-7)


@both_filters
def test_batches_and_pending_pulls_shrink_the_variance_as_if_told(sparse):
    bandit = tv_bandit(sparse=sparse, batch_rule=FixedSize(4))
    measure, pulls = noisy_rewards(bandit.arms), []
    for _ in range(3):
        indices = bandit.ask()
        rewards = measure(indices)
        ids = list(bandit.pending)[-3:]  # the first of four stays out
        bandit.tell(indices[1:], rewards[1:], pull_ids=ids)
        time = bandit.decision_time - 1
        pulls += zip(
            indices[1:].tolist(), rewards[1:].tolist(), 3 * [time], strict=True
        )
    # Each at its own time: one was asked for at 1, one at 2, one at 3.
    waiting = [
        (arm, 0.0, float(time))
        for time, arm in enumerate(bandit.pending.values(), start=1)
    ]
    batch, time = bandit.ask(time=9.0).tolist(), 9.0
    mean, _ = dense(bandit, pulls, time)
    beta = 0.8 * math.log(4 * (bandit.num_pulls + len(waiting) + 1))
    for index in batch:
        _, variance = dense(bandit, pulls + waiting, time)
        score = mean + np.sqrt(beta * variance)
        assert score[index] > score.max() - 1e-9
        waiting.append((index, 0.0, time))


def test_a_lost_pull_uses_up_less_and_less_of_a_batch():
    """Of its share of the sum rule what is remembered is left."""
    rule = SumRule(25.0)  # three pulls of unknown arms, at var / lambda = 10
    bandit = identity_bandit(TVGPUCB, forgetting_rate=0.5, batch_rule=rule)
    bandit.ask(time=1.0)
    for time, size in ((1.0, 2), (11.0, 3)):
        batch = bandit.ask(time=time)
        assert len(batch) == size
        bandit.fail(batch, pull_ids=list(bandit.pending)[1:])


def values_that_drift(arms, rate):
    """Yield the values of all arms of a function that forgets, step by step."""
    gram = torch.from_numpy(gram_matrix(rbf(), arms)) + 1e-9 * torch.eye(len(arms))
    root = torch.linalg.cholesky(gram)
    stream = seeded(1)
    new = root @ torch.randn(len(arms), generator=stream, dtype=torch.double)
    while True:
        yield new
        step = root @ torch.randn(len(arms), generator=stream, dtype=torch.double)
        new = math.sqrt(1 - rate) * new + math.sqrt(rate) * step


def test_an_unknown_rate_is_learned():
    """A function that forgets a tenth at each step, and one that stays."""
    arms, learned = random_arms(40), []
    # Above the bytes of an exact filter, and below them: a sparse one.
    for rate, room in ((0.1, 2**31), (0.0, 12_000)):
        options = {"forgetting_rate": "learn", "max_feature_bytes": room}
        bandit = make_bandit(GPBandit, arms, noise_variance=0.01, **options)
        stream = seeded()
        for _, values in zip(range(20), values_that_drift(arms, rate), strict=False):
            indices = bandit.ask(3)
            noise = torch.randn(3, generator=stream, dtype=torch.double)
            bandit.tell(indices, values[indices] + 0.1 * noise)
        learned.append(bandit.forgetting_rate)
    assert 0.05 < learned[0] < 0.2
    assert learned[1] < 0.01


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**20], ids=str)
def test_a_learned_rate_does_not_depend_on_the_unit_of_time(unit):
    """In steps of a second counted in years, or of a day counted in seconds."""
    arms = random_arms(20)
    bandit, plain, other = (
        make_bandit(GPBandit, arms, forgetting_rate="learn") for _ in range(3)
    )
    for time, values in zip(range(33), values_that_drift(arms, 0.2), strict=False):
        index = 7 * time % 20
        for one, scale in ((bandit, unit), (plain, 1.0)):
            one.add_observations([index], values[[index]], time=time * scale)
    for one, scale in ((bandit, unit), (plain, 1.0)):
        one.ask(time=33 * scale)
    assert 0.05 < plain.forgetting_rate < 0.5
    step_rate = 1 - (1 - plain.forgetting_rate) ** (1 / unit)
    assert bandit.forgetting_rate == pytest.approx(step_rate)
    other.load_state_dict(bandit.state_dict())
    assert other.forgetting_rate == bandit.forgetting_rate
    assert torch.equal(other.ask(time=35 * unit), plain.ask(time=35.0))


# R-GP-UCB -----------------------------------------------------------------------------


def test_the_first_arm_of_every_block_is_drawn_uniformly():
    seen = []
    for seed in range(6):
        bandit = make_bandit(RGPUCB, block_size=2, seed=seed)
        seen += [batch[0] for batch in play(bandit, 40)[2::2]]
        bandit.ask(time=100.0)  # its result does not come in time
        seen.append(bandit.ask(time=200.0).item())
    counts = torch.tensor(seen).bincount(minlength=30)
    assert len(seen) == 6 * 20
    assert counts[0] <= 12
    assert (counts > 0).sum() >= 26  # 29.5 are expected


def test_a_filter_takes_no_product_space_and_the_remedies_do():
    arms = ProductArms({"a": ["x", "y", "z"], "b": [0.0, 0.5, 1.0]})
    kernel = CategoricalKernel(active_dims=(0,)) * RBFKernel(active_dims=(1,))
    for make in (
        lambda: TVGPUCB(arms, kernel.double(), 0.1, forgetting_rate=0.1),
        lambda: GPBandit(arms, forgetting_rate="learn"),
    ):
        with pytest.raises(UnsupportedError, match=r"Use `RGPUCB`.* or leave out"):
            make()
    for bandit in (RGPUCB(arms, kernel, 0.1, block_size=3), GPBandit(arms)):
        for _ in range(5):
            picks = bandit.ask()
            bandit.tell(picks, picks.double())
        assert bandit.num_pulls == 5


@pytest.mark.parametrize(
    ("rate", "horizon", "rbf_size", "matern_size"),
    [(0.01, 200, 38, 92), (0.03, 200, 29, 67), (0.5, 10, 10, 10), (0.0, 70, 70, 70)],
)
def test_block_sizes_are_the_papers(rate, horizon, rbf_size, matern_size):
    assert rbf_block_size(rate, horizon) == rbf_size
    # nu = 5/2 in two dimensions: c = 6 / 11, so 24 eps^(-11 / 38).
    assert matern_block_size(rate, horizon, nu=2.5, dimension=2) == matern_size


# Time ---------------------------------------------------------------------------------

each_kind = pytest.mark.parametrize("bandit_class", [TVGPUCB, RGPUCB])


@each_kind
def test_without_times_every_ask_is_one_step(bandit_class):
    bandit = make_bandit(bandit_class)
    assert bandit.decision_time == 1
    first = bandit.ask()
    assert bandit.decision_time == 2
    bandit.tell(first, [0.0])
    assert bandit.decision_time == 2
    second = bandit.ask(time=7.5)
    bandit.tell(second, [0.0], time=9.0)
    assert bandit.decision_time == 10


@each_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf, "noon", None.__class__])
def test_bad_times_are_refused_and_change_nothing(bandit_class, bad):
    bandit = make_bandit(bandit_class)
    indices = bandit.ask(time=2.0)
    bandit.tell(indices, [1.0], time=4.0)
    pending = bandit.ask(time=5.0)
    with unchanged(bandit), pytest.raises(InputDataError, match="`time` to be a finit"):
        bandit.tell(pending, [1.0], time=bad)
    for time in (bad, 4.9):
        with (
            unchanged(bandit),
            pytest.raises(InputDataError, match="not before 5"),
        ):
            bandit.ask(time=time)
    assert bandit.decision_time == 6


@pytest.mark.parametrize(
    "sparse", [False, True, None], ids=["exact", "sparse", "learned"]
)
def test_late_results_are_of_the_time_they_were_asked_for(sparse):
    """In any order, as if they had come in time; between them others came."""
    learned = sparse is None  # with the kernel and the rate
    if learned:
        options = {"forgetting_rate": "learn", "covar_module": None}
        late, prompt = (make_bandit(GPBandit, **options) for _ in range(2))
    else:
        options = {"sparse": sparse, "batch_rule": FixedSize(2)}
        late, prompt = (tv_bandit(**options) for _ in range(2))
    rng, pulls, drawer = np.random.default_rng(2), [], []
    for step in range(1, 13):
        indices = late.ask(2)
        ids = list(late.pending)[-2:]
        rewards = rng.normal(size=2).tolist()
        pulls += [
            (arm, reward, float(step))
            for arm, reward in zip(indices.tolist(), rewards, strict=True)
        ]
        late.tell(indices[:1], rewards[:1], pull_ids=ids[:1])
        drawer.append((indices[1:], rewards[1:], ids[1:]))
        if step % 4 == 0:
            for one in rng.permutation(len(drawer)):
                late.tell(*drawer[one][:2], pull_ids=drawer[one][2])
            drawer.clear()
            late.predict()
    for arm, reward, time in pulls:
        prompt.add_observations([arm], [reward], time=time)
    for one in (late, prompt):
        one.fail(one.ask(time=14.0))
    if not learned:
        for got, expected in zip(late.predict(), dense(late, pulls, 15.0), strict=True):
            np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(late.predict(), prompt.predict(), rtol=0, atol=1e-9)
    assert late.num_pulls == prompt.num_pulls == 24
    assert late.predict()[0].isfinite().all()


@pytest.mark.parametrize("rule", [FixedSize(3), SumRule(30.0)], ids=repr)
def test_pulls_pending_in_an_earlier_block_do_not_count(rule):
    """Neither for the variance, nor in the rule: the picks of a fresh bandit."""
    bandit, fresh = (
        make_bandit(RGPUCB, block_size=5, batch_rule=rule, confidence=2.0)
        for _ in range(2)
    )
    lost = bandit.ask(time=2.0)
    for one in (bandit, fresh):
        one.add_observations([3, 4], [0.5, 0.7], time=7.0)
    assert torch.equal(bandit.ask(time=8.0), fresh.ask(time=8.0))
    assert len(lost) < len(bandit.pending)


def test_a_late_result_counts_in_the_block_of_its_time():
    bandit = make_bandit(RGPUCB, block_size=5, batch_rule=FixedSize(2))
    first = bandit.ask(time=2.0)
    second = bandit.ask(time=7.0)
    bandit.tell(second, [1.0, 2.0])
    bandit.tell(first, [50.0, 50.0])  # of a block that is over
    bandit.add_observations([3], [0.5], time=8.0)
    other = make_bandit(RGPUCB, block_size=5, batch_rule=FixedSize(2))
    other.add_observations([*second.tolist(), 3], [1.0, 2.0, 0.5], time=8.0)
    torch.testing.assert_close(bandit.predict(), other.predict())
    assert bandit.num_pulls == 5


def test_a_reward_of_a_negative_time_does_not_count_in_the_first_block():
    bandit = make_bandit(RGPUCB, block_size=5)
    bandit.add_observations([0], [5.0], time=-1.0)
    assert bandit.predict([0])[0] > 1
    bandit.ask(1)  # at time 0
    assert bandit.decision_time == 1
    assert bandit.predict([0])[0] == 0


def test_what_is_pending_before_any_time_is_known_is_of_time_zero():
    bandit = tv_bandit()
    bandit.add_pending([0])
    bandit.add_observations([1, 2], [0.3, 0.5], time=-5.0)
    assert bandit.decision_time == 1.0
    with pytest.raises(InputDataError, match="not before 0, the last known time"):
        bandit.ask(1, time=-1.0)
    bandit.tell([0], [0.2], time=-6.0)  # now nothing is of time zero
    assert bandit.decision_time == -4.0
    assert len(bandit.ask(1, time=-4.5)) == 1


def test_other_bad_arguments_are_refused():
    for size in (0, math.nan):
        with pytest.raises(InputDataError, match="`block_size` to be positive"):
            make_bandit(RGPUCB, block_size=size)
    with pytest.raises(InputDataError, match="`tolerance` to be a number from 0 to 1"):
        tv_bandit(sparse=True, tolerance=1.5)
    with pytest.raises(InputDataError, match="`max_inducing` to be a whole number"):
        tv_bandit(sparse=True, max_inducing=1)
    for call in (lambda: tv_bandit(forgetting_rate=1.1), lambda: rbf_block_size(-1, 9)):
        with pytest.raises(InputDataError, match="`forgetting_rate` to be a number"):
            call()
    with pytest.raises(InputDataError, match="`nu` to be positive"):
        matern_block_size(0.1, 10, nu=0.0, dimension=2)


@pytest.mark.parametrize("event", ["predict", "interrupt", "save"])
def test_blocks_that_turn_without_results_go_on_as_if_nothing_had_happened(
    event, tmp_path, monkeypatch
):
    bandit, other = (make_bandit(RGPUCB, block_size=5) for _ in range(2))
    for one in (bandit, other):
        play(one, 4)
    for time in (7.0, 8.0, 12.0, 13.0, 21.0):
        if event == "predict":
            with unchanged(other):
                other.predict()
                other.best_arm()
                other.confidence_bound()
        elif event == "interrupt":
            with monkeypatch.context() as patch:
                interrupt = Mock(side_effect=KeyboardInterrupt)
                patch.setattr(Observations, "ask", interrupt)
                with unchanged(other), pytest.raises(KeyboardInterrupt):
                    other.ask(time=time)
        else:
            other.save(tmp_path / "state", overwrite=True)
            other = make_bandit(RGPUCB, block_size=5, seed=9)
            other.load(tmp_path / "state")
        assert torch.equal(other.ask(time=time), bandit.ask(time=time))
    for one in (bandit, other):  # late, of three blocks
        one.tell(list(one.pending.values()), [0.3, 0.1, 0.7, 0.2, 0.5])
    assert play(other, 8) == play(bandit, 8)


def test_draws_of_a_sparse_filter_know_of_arms_far_from_all_results():
    found, arms = [], random_arms(100)
    for sparse in (False, True):
        bandit = tv_bandit(sparse=sparse, arms=arms, covar_module=rbf(0.03))
        bandit.add_observations([3, 50, 70], [-1.0, -1.2, -1.1])
        found.append(bandit.maximizer_distribution(400, seeded()))
    exact, sparse = found
    assert len(exact.indices.unique()) > 50
    assert torch.equal(exact.indices, sparse.indices)


def test_a_loaded_bandit_takes_back_a_result_that_came_late():
    first, other = (tv_bandit() for _ in range(2))
    early, late = first.ask(1), first.ask(1)
    first.tell(late, [0.3], pull_ids=[1])
    first.ask(1)
    first.tell(early, [1.0], pull_ids=[0])
    other.load_state_dict(first.state_dict())
    for bandit in (first, other):
        bandit.withdraw(early, [0])
    assert torch.equal(first.ask(1), other.ask(1))
    assert torch.equal(first.predict()[1], other.predict()[1])


def test_taking_back_a_result_does_not_turn_back_the_clock():
    """An ask whose pulls have failed, or were never told, happened all the same."""
    bandit = tv_bandit()
    bandit.fail(bandit.ask(1, time=9.0))
    bandit.add_observations([3], [1.0], time=12.0)
    assert bandit.decision_time == 13.0
    bandit.withdraw([3])
    assert bandit.decision_time == 10.0
    with unchanged(bandit), pytest.raises(InputDataError, match="not before 9"):
        bandit.ask(1, time=3.0)
