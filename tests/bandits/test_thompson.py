"""Thompson sampling over arms: the law of its picks, and what it learns."""

import numpy as np
import pytest
import torch

from botorch_bkb import BBKB, GPBandit, GPThompsonSampling, GPUCB, TVGPUCB
from botorch_bkb.bandits import rbf_to_learn, ThompsonPolicy
from botorch_bkb.generation import MaximizerDistribution, VarianceStoppingRule
from botorch_bkb.optim import FixedSize
from tests.bandits import (
    grid_arms,
    make_bandit,
    NOISE,
    play,
    random_arms,
    unchanged,
)
from tests.helpers import gram_matrix
from tests.reference import Arms


# Under the null hypothesis some cell of 12 exceeds this with probability 1e-4.
MAX_Z = 4.5


def told_bandit(num_arms=12, **options):
    """Return a bandit with a few pulls told, its arms on a line."""
    options = {"uniform_probability": 0.0, "lengthscale": 0.15, **options}
    bandit = make_bandit(GPThompsonSampling, grid_arms(num_arms), **options)
    bandit.add_observations([1, 5, 5, 9], [0.2, 0.5, 0.1, 0.3])
    return bandit


def dense_probabilities(bandit, pending=(), allowed=None, num_draws=100_000, scale=1.0):
    """Return how often each arm is best in dense Gaussian draws of the weights."""
    K = gram_matrix(bandit.covar_module, bandit.arms)
    dense, S = Arms(K, NOISE), bandit.inducing_indices.numpy()
    counts, sums = np.zeros((2, len(K)))
    counts[[1, 5, 9]], sums[[1, 5, 9]] = [1, 2, 1], [0.2, 0.6, 0.3]
    mean = dense.parts(S, counts, sums)[0]
    np.add.at(counts, np.array(pending, int), 1)
    covariance = dense.parts(np.union1d(S, pending), counts, sums)[2]
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(mean, scale**2 * covariance, num_draws)
    if allowed is not None:
        draws[:, ~allowed] = -np.inf
    return np.bincount(draws.argmax(axis=1), minlength=len(K)) / num_draws


def largest_z(counts, probabilities, num_picks, num_draws=100_000):
    p = probabilities
    error = np.sqrt(p * (1 - p) * (1 / num_picks + 1 / num_draws)) + 1 / num_picks
    return (np.abs(counts / num_picks - p) / error).max()


@pytest.mark.parametrize(
    ("xi", "scale"), [(0.0, 1.0), (0.3, 1.0), (0.0, 0.4), (0, 2.0)]
)
def test_picks_follow_the_probability_of_being_best(xi, scale):
    """Of draws whose deviations are scaled."""
    rule = FixedSize(8000)
    bandit = told_bandit(batch_rule=rule, uniform_probability=xi, scale=scale)
    picks = np.bincount(bandit.ask(), minlength=12)
    plain = dense_probabilities(bandit)
    assert (plain > 0.1).sum() >= 3  # the draws disagree
    p = (1 - xi) * dense_probabilities(bandit, scale=scale) + xi / 12
    assert largest_z(picks, p, 8000) < MAX_Z
    if (xi, scale) != (0, 1):
        assert largest_z(picks, plain, 8000) > 2 * MAX_Z
    # The distribution of the maximizer is that of the posterior, whatever the scale.
    said, expected = (
        one.maximizer_distribution(500, torch.Generator().manual_seed(1)).indices
        for one in (bandit, told_bandit(batch_rule=rule))
    )
    assert torch.equal(said, expected)


def test_pending_pulls_shrink_the_draws():
    bandit = told_bandit(batch_rule=FixedSize(8000))
    pending = [3] * 30 + [7] * 30 + [11]
    bandit.add_pending(pending)
    picks = np.bincount(bandit.ask(), minlength=12)
    p = dense_probabilities(bandit, pending)
    assert largest_z(picks, p, 8000) < MAX_Z
    assert largest_z(picks, dense_probabilities(bandit), 8000) > 2 * MAX_Z


def test_arms_that_run_out_leave_the_draw_to_the_others():
    """Arm 5 has had its two pulls."""
    bandit = told_bandit(max_repeats=2)
    counts = np.zeros(12)
    for _ in range(1500):
        picks = bandit.ask(1)
        counts[picks] += 1
        bandit.fail(picks)
    allowed = np.ones(12, dtype=bool)
    allowed[5] = False
    assert counts[5] == 0
    assert largest_z(counts, dense_probabilities(bandit, (), allowed), 1500) < MAX_Z


def test_before_the_first_reward_all_pulls_are_uniform():
    bandit = make_bandit(GPThompsonSampling, grid_arms(12), batch_rule=FixedSize(3000))
    for _ in range(2):  # the second time with pulls pending
        counts = np.bincount(bandit.ask(), minlength=12)
        assert largest_z(counts, np.full(12, 1 / 12), 3000) < MAX_Z


def test_as_printed_hyperparameters_are_estimated_in_every_round():
    arms, rng = random_arms(40), np.random.default_rng(0)
    bandit = GPThompsonSampling(arms, oversampling=1e9, seed=0)
    pulled = rng.integers(0, 40, 140)
    # So skewed that a GPBandit would warp them; the prior mean of the paper is 0.
    rewards = np.exp(3 * np.sin(5 * arms[pulled, 0].numpy())) + rng.normal(0, 0.1, 140)
    bandit.add_observations(pulled, rewards)
    for reward in (1.0, 2.0):
        batch = bandit.ask(1)
        fit, features = bandit._surrogate.fit, bandit._surrogate.fitter.features
        assert fit.next_fit == bandit.num_pulls + 1
        K = bandit.covar_module(features).to_dense().detach().numpy()
        C = K[np.ix_(pulled, pulled)] + fit.noise_variance * np.eye(len(pulled))
        mean = K[:, pulled] @ np.linalg.solve(C, rewards)
        np.testing.assert_allclose(bandit.predict()[0], mean, rtol=1e-5, atol=1e-4)
        bandit.tell(batch, [reward])
        pulled, rewards = np.append(pulled, batch), np.append(rewards, reward)


@pytest.mark.parametrize("learned", [{}, {"covar_module": rbf_to_learn}])
def test_kernel_noise_or_both_are_learned(learned):
    bandit = GPThompsonSampling(random_arms(20), **learned, seed=0)
    assert len(bandit.ask()) == 30
    assert "learns kernel and noise" in repr(bandit)
    bandit = GPThompsonSampling(random_arms(20), noise_variance=0.1, seed=0)
    assert "learns kernel)" in repr(bandit)


# The distribution of the maximizer ----------------------------------------------------


@pytest.mark.parametrize(
    ("bandit_class", "maximize"),
    [
        (BBKB, True),
        (GPUCB, False),
        (GPThompsonSampling, True),
        (TVGPUCB, False),
        (GPBandit, True),
    ],
)
def test_any_bandit_has_a_distribution_of_the_maximizer(bandit_class, maximize):
    arms = random_arms(40)
    bandit = make_bandit(bandit_class, arms, maximize=maximize)
    generator = torch.Generator().manual_seed(3)
    before = bandit.maximizer_distribution(4000, generator)
    p = before.probabilities.numpy()
    assert largest_z(p * 4000, np.full(40, 1 / 40), 4000) < MAX_Z
    play(bandit, 30)
    with unchanged(bandit):
        after = bandit.maximizer_distribution(500, generator)
    assert isinstance(after, MaximizerDistribution)
    assert after.num_draws == 500
    assert after.entropy < before.entropy
    # The mode is a good arm: within the noise of the best posterior mean.
    mean, variance = bandit.predict()
    sign = 1 if maximize else -1
    assert sign * mean[after.mode] > (sign * mean).max() - 2 * variance.max().sqrt()


@pytest.mark.parametrize("bandit_class", [GPThompsonSampling, GPBandit, BBKB])
@pytest.mark.parametrize("covariance", ["projected", "full"])
def test_the_maximizer_has_the_law_of_the_bandit_s_own_draws(bandit_class, covariance):
    """All observations are at arms of [0, 0.3], far from most."""
    options = {"policy": ThompsonPolicy(covariance=covariance, scale=1.0)}
    if bandit_class is GPThompsonSampling:
        options = {"covariance": covariance, "uniform_probability": 0.0}
    bandit = make_bandit(bandit_class, grid_arms(41), lengthscale=0.1, **options)
    pulled = [*range(0, 13, 3)] * 3
    bandit.add_observations(pulled, [np.sin(10 * arm / 40) for arm in pulled])
    generator = torch.Generator().manual_seed(0)
    said = bandit.maximizer_distribution(4000, generator)
    sampler = bandit._predictor().at(bandit._observations, 0.0).sampler(covariance)
    picks = np.bincount(sampler.draw_best_arms(20_000, generator), minlength=41)
    counts = said.counts.numpy()
    assert largest_z(counts, picks / 20_000, 4000, 20_000) < MAX_Z
    # Projected draws vanish beside the data, and the rule looks at the same law.
    beyond = said.probabilities[17:].sum()
    assert beyond < 0.05 if covariance == "projected" else beyond > 0.5
    assert VarianceStoppingRule(0.02)(said) == (covariance == "projected")
