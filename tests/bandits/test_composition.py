"""Bandits composed of parts: every policy on every learner, with every batch rule."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from typing_extensions import override

from botorch_bkb import BBKB, BKB, GPThompsonSampling, GPUCB, RGPUCB, TVGPUCB
from botorch_bkb.acquisition import PracticalBBKBWidth
from botorch_bkb.bandits import (
    BlockLearner,
    DriftingBandit,
    EpsilonGreedyPolicy,
    ExactLearner,
    FiniteArmBandit,
    ForgettingLearner,
    SparseLearner,
    ThompsonPolicy,
    UCBPolicy,
)
from botorch_bkb.bandits.policies import DrawingPolicy
from botorch_bkb.optim import FixedSize, ProductRule, SumRule
from tests.bandits import (
    assert_same,
    make_bandit,
    NOISE,
    noisy_rewards,
    play,
    random_arms,
    rbf,
)
from tests.reference import exact_posterior


LEARNERS = {
    "exact": ExactLearner(),
    "sparse": SparseLearner(),
    "coupled": SparseLearner(resampling="coupled"),
    "blocks": BlockLearner(9.0),
    "sparse blocks": BlockLearner(9.0, within=SparseLearner()),
    "filter": ForgettingLearner(0.03),
    "sparse filter": ForgettingLearner(0.03, sparse=True),
}
POLICIES = {
    "ucb": UCBPolicy(),
    "thompson": ThompsonPolicy(),
    "greedy": EpsilonGreedyPolicy(0.1),
    "uniform": EpsilonGreedyPolicy(1.0),
}
RULES = {
    "single": FixedSize(1),
    "sum": SumRule(),
    "product": ProductRule(),
}
# Every pair of a learner, a policy and a rule.
COMBINATIONS = [
    (learner, policy, rule)
    for i, learner in enumerate(LEARNERS)
    for j, policy in enumerate(POLICIES)
    for k, rule in enumerate(RULES)
    if (i + j + k) % len(RULES) == 0
]


def compose(learner, policy, num_arms=30, seed=0, **options):
    kind = DriftingBandit if learner.drifts else FiniteArmBandit
    return make_bandit(
        kind, random_arms(num_arms), seed, learner=learner, policy=policy, **options
    )


@pytest.mark.parametrize(("learner", "policy", "rule"), COMBINATIONS)
def test_policies_learners_and_rules_go_together(learner, policy, rule, tmp_path):
    """Whole runs, with pulls that come late, arms that join and a save in between."""
    learner, policy, rule = LEARNERS[learner], POLICIES[policy], RULES[rule]
    runs = []
    for seed in (0, 1):
        bandit = compose(learner, policy, seed=seed, batch_rule=rule, max_repeats=9)
        measure = noisy_rewards(random_arms(60))
        batches = []
        for number in range(8):
            if number == 4:
                if seed == 0:
                    bandit.save(tmp_path / "state")
                else:
                    bandit.load(tmp_path / "state")
            if number == 6:
                bandit.add_arms(random_arms(60)[30:40])
            batches.append(bandit.ask(max_size=6).tolist())
            out = list(bandit.pending.items())
            told = out[: max(1, len(out) // 2)]
            arms = torch.tensor([arm for _, arm in told])
            bandit.tell(arms, measure(arms), pull_ids=[key for key, _ in told])
            mean, variance = bandit.predict()
            assert mean.isfinite().all()
            assert (variance >= 0).all()
            assert bandit.confidence_bound().isfinite().all()
        assert bandit.counts.max() <= 9
        assert 0 <= bandit.best_arm() < 40
        draws = bandit.maximizer_distribution(20, torch.Generator().manual_seed(0))
        assert draws.indices.max() < 40
        assert bandit.num_pulls > 4
        runs.append(batches)
    assert runs[0][4] == runs[1][4]


NAMED = {
    "BKB": (BKB, {}, SparseLearner(), UCBPolicy(), {}),
    "BBKB": (
        BBKB,
        {"oversampling": 1.0},
        SparseLearner(1.0),
        UCBPolicy(),
        {"batch_rule": SumRule(), "confidence": PracticalBBKBWidth()},
    ),
    "GPUCB": (GPUCB, {}, ExactLearner(), UCBPolicy(), {}),
    "TVGPUCB": (
        TVGPUCB,
        {"forgetting_rate": 0.1},
        ForgettingLearner(0.1),
        UCBPolicy(),
        {},
    ),
    "RGPUCB": (RGPUCB, {"block_size": 5.0}, BlockLearner(5.0), UCBPolicy(), {}),
    "GPThompsonSampling": (
        GPThompsonSampling,
        {"batch_rule": FixedSize(3)},
        SparseLearner(learns_mean=True),
        ThompsonPolicy(0.05, "omitted"),
        {"batch_rule": FixedSize(3)},
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_bandit_is_its_parts(name):
    kind, options, learner, policy, parts = NAMED[name]
    bandit = make_bandit(kind, **options)
    composed = compose(learner, policy, **parts)
    assert (bandit.learner, bandit.policy) == (learner, policy)
    assert play(bandit, 12) == play(composed, 12)
    for left, right in zip(bandit.predict(), composed.predict(), strict=True):
        assert torch.equal(left, right)
    assert bandit.confidence_width == composed.confidence_width


@pytest.mark.parametrize(
    ("learner", "kind"),
    [
        (ExactLearner(), DriftingBandit),
        (SparseLearner(), DriftingBandit),
        (BlockLearner(3.0), FiniteArmBandit),
        (ForgettingLearner(0.1), FiniteArmBandit),
    ],
)
def test_learners_that_want_times_get_them_and_others_do_not(learner, kind):
    with pytest.raises(UnsupportedError, match=r"`learner` for pulls with.*times.*got"):
        make_bandit(kind, learner=learner)


# Drift --------------------------------------------------------------------------------


def shares_of_best(bandit, num_draws, spread):
    """Return how often each arm is the best of a draw that a policy may ask for."""
    picks = []

    @dataclass(frozen=True)
    class Many(DrawingPolicy):
        @override
        def picks(self, decision):
            sampler = decision.belief.sampler(decision.pulls, None, spread)
            generator = torch.Generator().manual_seed(0)
            picks.extend(
                sampler.draw_best_arms(num_draws, generator, decision.left.allowed)
                .bincount(minlength=bandit.arms.shape[0])
                .tolist()
            )
            yield 0

    bandit.policy = Many()
    bandit.ask()
    return np.array(picks) / num_draws


@pytest.mark.parametrize("spread", [1.0, 0.5])
@pytest.mark.parametrize("num_pending", [0, 2])
def test_draws_of_a_filter_have_the_law_of_the_dense_posterior(num_pending, spread):
    """Equations (7) and (8), pending pulls as told at their means, by rejection."""
    bandit = compose(ForgettingLearner(0.2), UCBPolicy(), num_arms=6)
    arms, kernel = bandit.arms, rbf()
    rewards = [0.7, -0.2, 0.4, 0.1]
    for number, reward in enumerate(rewards):
        bandit.tell([number], [reward], external=True, time=float(number + 1))
    pending = []
    for _ in range(num_pending):
        bandit.ask(time=5.0)
        pending = [5.0] * len(bandit.pending)
    out = list(bandit.pending.values())
    with torch.no_grad():
        K = kernel(arms).to_dense().numpy()
    times = np.array([1.0, 2.0, 3.0, 4.0, *pending])
    pulled = np.array([0, 1, 2, 3, *out])
    decay = 0.8 ** (np.abs(times[:, None] - times[None]) / 2)
    now = bandit.decision_time
    cross = K[:, pulled] * 0.8 ** ((now - times) / 2)
    noise = NOISE * np.eye(len(times))
    told = slice(0, 4)
    gram = K[np.ix_(pulled, pulled)] * decay + noise
    mean = cross[:, told] @ np.linalg.solve(gram[told, told], rewards)
    covariance = K - cross @ np.linalg.solve(gram, cross.T)
    stream = np.random.default_rng(0)
    covariance *= spread**2
    values = stream.multivariate_normal(mean, covariance, size=200_000)
    expected = np.bincount(values.argmax(axis=1), minlength=6) / len(values)
    got = shares_of_best(bandit, 4000, spread)
    assert np.abs(got - expected).max() < 4 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    ("learner", "residual"),
    [
        (ForgettingLearner(0.1), None),
        (SparseLearner(), None),
        (SparseLearner(), "omitted"),
    ],
)
def test_draws_without_spread_are_the_mean(learner, residual):
    bandit = compose(learner, ThompsonPolicy(0.0, residual, spread=0.0), num_arms=30)
    bandit.tell([0, 7, 21], [0.3, 1.0, -0.5], external=True)
    best = int(bandit.predict()[0].argmax())
    assert bandit.ask().tolist() == [best] * len(bandit.pending)


def test_a_filter_has_one_law_of_draws():
    bandit = compose(ForgettingLearner(0.1), ThompsonPolicy(residual="omitted"))
    bandit.tell([0], [1.0], external=True)
    before = bandit.state_dict()
    with pytest.raises(UnsupportedError, match=r"`residual` to be None.*got 'omitted'"):
        bandit.ask()
    assert_same(bandit.state_dict(), before)


def test_sparse_blocks_start_from_the_prior():
    """All inducing: the dense posterior of the block's own pulls, and of no other."""
    learner = BlockLearner(4.0, within=SparseLearner(oversampling=1e9))
    bandit = compose(learner, UCBPolicy(), batch_rule=FixedSize(2))
    measure, told = noisy_rewards(bandit.arms), []
    for number in range(1, 7):
        indices = bandit.ask()
        rewards = measure(indices)
        bandit.tell(indices, rewards)
        pairs = zip(indices.tolist(), rewards.tolist(), strict=True)
        told += [(number, *pair) for pair in pairs]
    own = [(arm, reward) for time, arm, reward in told if time >= 5]
    pulled = [arm for arm, _ in own]
    with torch.no_grad():
        K = rbf()(bandit.arms).to_dense().numpy()
    mean, covariance = exact_posterior(
        K[np.ix_(pulled, pulled)],
        K[pulled],
        K,
        np.full(len(own), NOISE),
        np.array([reward for _, reward in own]),
    )
    bandit.ask()  # between two asks a prediction stands on the inducing arms of before
    got = bandit.predict()
    np.testing.assert_allclose(got[0], mean, atol=1e-8)
    np.testing.assert_allclose(got[1], np.diag(covariance), atol=1e-8)
    bandit.ask(time=9.0)
    assert torch.equal(bandit.predict()[0], torch.zeros(30, dtype=torch.double))
    assert len(bandit.inducing_indices) == 0


# Memory -------------------------------------------------------------------------------


def test_an_exact_filter_has_a_limit_that_names_the_sparse_one():
    arms = random_arms(50)
    num_bytes = 2 * 50 * 50 * 8
    match = f"over 50 arms.*{num_bytes:,} bytes.*got {num_bytes - 1:,}.*`sparse=True`"
    with pytest.raises(InputDataError, match=match):
        make_bandit(TVGPUCB, arms, max_feature_bytes=num_bytes - 1)
    bandit = make_bandit(TVGPUCB, arms, max_feature_bytes=num_bytes)
    play(bandit, 2)
    before = bandit.state_dict()
    with pytest.raises(InputDataError, match=r"over 51 arms.*`sparse=True`"):
        bandit.ask(arms=torch.zeros(1, 2).double())
    assert_same(bandit.state_dict(), before)
    make_bandit(TVGPUCB, arms, max_feature_bytes=0, sparse=True)


@pytest.mark.parametrize("learner", [SparseLearner, ExactLearner])
def test_a_kernel_to_learn_has_to_be_one(learner):
    for kernel, message in ((None, "but got None"), (2.5, "GPyTorch kernel object")):
        with pytest.raises(InputDataError, match=message):
            FiniteArmBandit(
                random_arms(8), learner=learner(new_kernel=lambda arms, k=kernel: k)
            )
