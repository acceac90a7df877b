"""Whether the bandits learn: regret against uniform choice, with fixed seeds."""

import pytest

from botorch_bkb import (
    BBKB,
    EpsilonGreedy,
    GPBandit,
    GPThompsonSampling,
    GPUCB,
)
from tests.bandits import make_bandit, noisy_rewards, random_arms, true_rewards
from tests.bandits.contract import each


NUM_ARMS, NUM_PULLS = 60, 60


def mean_regret(bandit_class, seed, maximize=True):
    """Return the mean regret per pull, and that of the arm that is called best."""
    arms = random_arms(NUM_ARMS)
    truth = true_rewards(arms)
    sign = 1 if maximize else -1
    options = {"goal": "regret"} if bandit_class is GPBandit else {}
    bandit = make_bandit(bandit_class, arms, seed, maximize=maximize, **options)
    measure = noisy_rewards(arms, seed)
    while bandit.num_pulls < NUM_PULLS:
        size = 4 if bandit_class is GPBandit else NUM_PULLS - bandit.num_pulls
        indices = bandit.ask(size)
        bandit.tell(indices, sign * measure(indices))
    regrets = truth.max() - truth
    pulled = (bandit.counts * regrets).sum() / NUM_PULLS
    return pulled.item(), regrets[bandit.best_arm()].item()


def uniform_regret():
    truth = true_rewards(random_arms(NUM_ARMS))
    return (truth.max() - truth).mean().item()


@each([BBKB, GPUCB, EpsilonGreedy, GPThompsonSampling, GPBandit])
@pytest.mark.parametrize(("seed", "maximize"), [(0, True), (1, False)])
def test_every_bandit_beats_uniform_choice(bandit_class, seed, maximize):
    cumulative, simple = mean_regret(bandit_class, seed, maximize)
    assert cumulative < 0.5 * uniform_regret()
    assert simple < 0.2
