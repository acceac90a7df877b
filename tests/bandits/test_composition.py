"""Bandits of parts: every policy on every surrogate, with every batch rule."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from typing_extensions import override

from botorch_bkb import (
    BBKB,
    BKB,
    EpsilonGreedy,
    GPBandit,
    GPBUCB,
    GPThompsonSampling,
    GPUCB,
    RGPUCB,
    TVGPUCB,
    UniformRandom,
)
from botorch_bkb.acquisition import (
    ChowdhuryGopalanWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
    RTVWidth,
    TVWidth,
)
from botorch_bkb.bandits import (
    EpsilonGreedyPolicy,
    FiniteArmBandit,
    LeverageScoreSampling,
    ThompsonPolicy,
    UCBPolicy,
    UniformPolicy,
)
from botorch_bkb.bandits.drifting import DriftFitter, FilterSurrogate
from botorch_bkb.bandits.fitting import Fitter
from botorch_bkb.bandits.policies import DrawingPolicy
from botorch_bkb.bandits.surrogates import PosteriorSurrogate
from botorch_bkb.optim import FixedSize, ProductRule, SumRule
from tests.bandits import (
    assert_same,
    make_bandit,
    NOISE,
    noisy_rewards,
    play,
    random_arms,
    rbf,
    unchanged,
)
from tests.helpers import gram_matrix
from tests.reference import Arms


def on_posterior(sampling=None, block_size=None):
    """Return a function from arms to a surrogate, kernel and noise given."""

    def make(arms):
        fitter = Fitter(arms, rbf(), NOISE)
        return PosteriorSurrogate(fitter, 2**31, sampling, block_size)

    return make


def on_filter(rate, **options):
    def make(arms):
        fitter = DriftFitter(arms, rbf(), NOISE, rate)
        return FilterSurrogate(fitter, **options)

    return make


SPARSE = LeverageScoreSampling()
SURROGATES = {
    "exact": on_posterior(),
    "sparse": on_posterior(SPARSE),
    "coupled": on_posterior(LeverageScoreSampling(resampling="coupled")),
    "blocks": on_posterior(block_size=9.0),
    "sparse blocks": on_posterior(SPARSE, 9.0),
    "filter": on_filter(0.03),
    "sparse filter": on_filter(0.03, sparse=True),
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
# Every pair of a surrogate, a policy and a rule.
COMBINATIONS = [
    (surrogate, policy, rule)
    for i, surrogate in enumerate(SURROGATES)
    for j, policy in enumerate(POLICIES)
    for k, rule in enumerate(RULES)
    if (i + j + k) % len(RULES) == 0
]


def compose(surrogate, policy, num_arms=30, seed=0, **options):
    arms, generator = random_arms(num_arms), torch.Generator().manual_seed(seed)
    return FiniteArmBandit(
        arms, surrogate(arms), policy, generator=generator, **options
    )


@pytest.mark.parametrize(("surrogate", "policy", "rule"), COMBINATIONS)
def test_policies_surrogates_and_rules_go_together(surrogate, policy, rule, tmp_path):
    """Whole runs, with pulls that come late, arms that join and a save in between."""
    surrogate, policy, rule = SURROGATES[surrogate], POLICIES[policy], RULES[rule]
    runs = []
    for seed in (0, 1):
        bandit = compose(surrogate, policy, seed=seed, batch_rule=rule, max_repeats=9)
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
            batches.append(bandit.ask(6).tolist())
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


# Width, policy and batch rule of the algorithms of the papers.
DEFAULTS = {
    BKB: (PracticalBKBWidth(), UCBPolicy(), FixedSize(1)),
    BBKB: (PracticalBBKBWidth(), UCBPolicy(), SumRule()),
    GPUCB: (ChowdhuryGopalanWidth(), UCBPolicy(), FixedSize(1)),
    GPBUCB: (ChowdhuryGopalanWidth(), UCBPolicy(), ProductRule()),
    TVGPUCB: (TVWidth(), UCBPolicy(), FixedSize(1)),
    RGPUCB: (RTVWidth(), UCBPolicy(), FixedSize(1)),
    EpsilonGreedy: (PracticalBKBWidth(), EpsilonGreedyPolicy(0.1), FixedSize(1)),
    UniformRandom: (PracticalBKBWidth(), UniformPolicy(), FixedSize(1)),
    GPThompsonSampling: (
        PracticalBKBWidth(),
        ThompsonPolicy(0.05, "projected", 1.0),
        FixedSize(30),
    ),
}


def test_the_defaults_of_the_algorithms_of_the_papers():
    times = {TVGPUCB: {"forgetting_rate": 0.05}, RGPUCB: {"block_size": 20}}
    for kind, expected in DEFAULTS.items():
        bandit = kind(random_arms(30), rbf(), NOISE, **times.get(kind, {}))
        assert (bandit.confidence, bandit.policy, bandit.batch_rule) == expected


@pytest.mark.parametrize("name", SURROGATES)
def test_only_surrogates_that_drift_have_times(name):
    bandit = compose(SURROGATES[name], UCBPolicy())
    assert bandit.drifts == any(word in name for word in ("blocks", "filter"))
    if bandit.drifts:
        bandit.ask(time=3.0)
        assert bandit.decision_time == 4.0
        return
    pulled = bandit.ask()
    for call in (
        lambda: bandit.ask(time=1.0),
        lambda: bandit.tell(pulled, [1.0], time=1.0),
        lambda: bandit.add_observations([0], [1.0], time=1.0),
    ):
        with unchanged(bandit), pytest.raises(UnsupportedError, match="no `time`"):
            call()


# Drift --------------------------------------------------------------------------------


def shares_of_best(bandit, num_draws, scale):
    """Return how often each arm is the best of a draw that a policy may ask for."""
    picks = []

    @dataclass(frozen=True)
    class Many(DrawingPolicy):
        @override
        def picks(self, posterior, limits, generator):
            sampler = posterior.sampler("full", scale)
            generator = torch.Generator().manual_seed(0)
            picks.extend(
                sampler.draw_best_arms(num_draws, generator, limits.allowed)
                .bincount(minlength=bandit.arms.shape[0])
                .tolist()
            )
            yield 0

    bandit.policy = Many()
    bandit.ask()
    return np.array(picks) / num_draws


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("num_pending", [0, 2])
def test_draws_of_a_filter_have_the_law_of_the_dense_posterior(num_pending, scale):
    """Equations (7) and (8), pending pulls as told at their means, by rejection."""
    bandit = compose(on_filter(0.2), UCBPolicy(), num_arms=6)
    arms, kernel = bandit.arms, rbf()
    rewards = [0.7, -0.2, 0.4, 0.1]
    for number, reward in enumerate(rewards):
        bandit.add_observations([number], [reward], time=float(number + 1))
    pending = []
    for _ in range(num_pending):
        bandit.ask(time=5.0)
        pending = [5.0] * len(bandit.pending)
    out = list(bandit.pending.values())
    K = gram_matrix(kernel, arms)
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
    covariance *= scale**2
    values = stream.multivariate_normal(mean, covariance, size=200_000)
    expected = np.bincount(values.argmax(axis=1), minlength=6) / len(values)
    got = shares_of_best(bandit, 4000, scale)
    assert np.abs(got - expected).max() < 4 * math.sqrt(0.25 / 4000)


def test_a_filter_has_one_law_of_draws():
    with pytest.raises(
        UnsupportedError, match=r"`covariance` to be 'full'.*got 'projected'"
    ):
        compose(on_filter(0.1), ThompsonPolicy(covariance="projected"))


def test_sparse_blocks_start_from_the_prior():
    """All inducing: the dense posterior of the block's own pulls, and of no other."""
    surrogate = on_posterior(LeverageScoreSampling(oversampling=1e9), 4.0)
    bandit = compose(surrogate, UCBPolicy(), batch_rule=FixedSize(2))
    measure, told = noisy_rewards(bandit.arms), []
    for number in range(1, 7):
        indices = bandit.ask()
        rewards = measure(indices)
        bandit.tell(indices, rewards)
        pairs = zip(indices.tolist(), rewards.tolist(), strict=True)
        told += [(number, *pair) for pair in pairs]
    counts, sums = np.zeros((2, 30))
    for time, arm, reward in told:
        counts[arm] += time >= 5
        sums[arm] += reward * (time >= 5)
    dense = Arms(gram_matrix(rbf(), bandit.arms), NOISE)
    expected = dense.posterior(counts.nonzero()[0], counts, sums)
    got = bandit.predict()
    np.testing.assert_allclose(got[0], expected[0], atol=1e-8)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-8)
    bandit.ask(time=9.0)
    assert torch.equal(bandit.predict()[0], torch.zeros(30, dtype=torch.double))
    assert len(bandit.inducing_indices) == 0


# Memory -------------------------------------------------------------------------------


def test_an_exact_filter_has_a_limit_that_names_the_sparse_one():
    arms = random_arms(50)
    num_bytes = 50 * 50 * 8
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


def test_gpbandit_takes_the_sparse_filter_where_the_exact_one_has_no_room():
    arms = random_arms(50)
    sizes = []
    for room in (50 * 50 * 8, 50 * 50 * 8 - 1):
        bandit = make_bandit(
            GPBandit, arms, forgetting_rate=0.1, max_feature_bytes=room
        )
        bandit.add_observations(range(40), torch.ones(40), time=0.0)
        bandit.add_observations([41], [1.0], time=300.0)
        bandit.ask()
        sizes.append(len(bandit.inducing_indices))
    # What is forgotten needs no inducing arms.
    assert sizes[1] < 5 < sizes[0]


@pytest.mark.parametrize("forgetting_rate", [0.0, 0.1])
def test_a_kernel_to_learn_has_to_be_one(forgetting_rate):
    for kernel, message in (
        (None, "but got None"),
        (2.5, "GPyTorch kernel, but got 2.5"),
    ):
        with pytest.raises(InputDataError, match=message):
            GPBandit(
                random_arms(8),
                lambda features, kernel=kernel: kernel,
                forgetting_rate=forgetting_rate,
            )
