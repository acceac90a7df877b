"""`GPBandit.progress`: the rise of a batch and the best arm, against dense NumPy."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from scipy.special import expit, logit

from botorch_bkb import GPBandit
from botorch_bkb.arms import ProductArms
from botorch_bkb.bandits import ThompsonPolicy
from botorch_bkb.bandits.progress import calibrated
from botorch_bkb.posteriors import batch_rise
from tests.bandits.test_predictions import campaign, dense_posterior, seeded, tables
from tests.posteriors.test_product_posterior import NOISE, Space


def dense_rise(mean, covariance, noise, pending, batch, num_draws=200_000):
    """E[max mean after the batch] - max mean, by draws over all arms."""
    if len(pending):
        K = covariance[np.ix_(pending, pending)] + noise * np.eye(len(pending))
        lost = np.linalg.solve(K, covariance[pending])
        covariance = covariance - covariance[:, pending] @ lost
    K = covariance[np.ix_(batch, batch)] + noise * np.eye(len(batch))
    y = np.linalg.cholesky(K) @ np.random.default_rng(0).normal(
        size=(len(batch), num_draws)
    )
    after = mean[:, None] + covariance[:, batch] @ np.linalg.solve(K, y)
    best = mean.argmax()  # its mean does not change in expectation
    return (after.max(axis=0) - after[best]).mean()


@pytest.fixture
def many_draws(monkeypatch):
    monkeypatch.setattr(batch_rise, "NUM_DRAWS", 2**17)
    monkeypatch.setattr(batch_rise, "NUM_NORMALS", 2**22)


@pytest.mark.filterwarnings("ignore:`max_inducing` took effect")
@pytest.mark.parametrize("options", [{}, {"max_inducing": 9}, {"maximize": False}])
@pytest.mark.usefixtures("many_draws")
def test_the_rise_is_that_of_dense_draws_over_all_arms(options):
    arms, _ = tables()
    bandit = campaign(arms, 3, noise_std=1.0, **options)
    bandit.ask(2)
    bandit.add_pending([5, 5])
    twin, state = deepcopy(bandit), torch.get_rng_state()
    found = bandit.progress(4)
    assert found.expected_rise == bandit.progress(4).expected_rise
    assert torch.equal(torch.get_rng_state(), state)
    pending = [*bandit.pending.values()]
    batch = bandit.ask(4)
    assert torch.equal(batch, twin.ask(4))
    mean, covariance = dense_posterior(bandit, arms)
    mean = mean if bandit.maximize else -mean
    args = mean, covariance, bandit.noise_variance, pending
    expected = dense_rise(*args, batch.tolist())
    assert expected > 0.01
    assert found.expected_rise == pytest.approx(expected, rel=0.02)
    # The batch of the last ask, in any order, and one that was never asked.
    again = bandit.progress(indices=batch.flip(0)).expected_rise
    assert again == pytest.approx(expected, rel=0.02)
    args = *args[:3], [*pending, *batch.tolist()]
    one = bandit.progress(indices=[3, 3, 8]).expected_rise
    assert one == pytest.approx(dense_rise(*args, [3, 3, 8]), rel=0.05, abs=1e-4)


@pytest.mark.usefixtures("many_draws")
def test_the_rise_in_a_product_space():
    for seed in range(3):
        space = Space(seed)
        pending, batch = torch.tensor([17, 60]), torch.tensor([3, 90, 91, 17])
        given = space.posterior.given(Counter(pending.tolist()))
        (rise,) = batch_rise.expected_rises(given, [batch], None, seeded())
        args = space.mean, space.covariance, NOISE, pending.numpy(), batch.numpy()
        assert rise == pytest.approx(dense_rise(*args), rel=0.02, abs=4e-4)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_arm_is_that_of_joint_draws(maximize):
    arms, _ = tables()
    bandit = campaign(arms, 3, noise_std=2.0, maximize=maximize)
    bandit.ask(1)  # pending pulls do not count
    found = bandit.progress()
    columns = bandit.predictions(num_draws=20_000, generator=seeded())
    mean, covariance = dense_posterior(bandit, arms)
    draws = np.random.default_rng(0).multivariate_normal(
        mean if maximize else -mean, covariance, 20_000, method="eigh"
    )
    is_measured = np.isin(range(len(arms)), bandit.observed_arms)
    better = draws[:, ~is_measured].max(axis=1) > draws[:, is_measured].max(axis=1)
    assert 0.05 < better.mean() < 0.95
    expected = calibrated(better.mean())
    assert found.probability_unmeasured == pytest.approx(expected, abs=0.03)
    share = np.bincount(draws.argmax(axis=1), minlength=len(arms)) / len(draws)
    np.testing.assert_allclose(columns["probability_best"], share, atol=0.02)
    share = share[found.best_arms.numpy()]
    assert 0.93 < share.sum() < 0.99
    assert share[:-1].sum() < 0.97
    assert (np.diff(share) < 0.03).all()


def test_shares_of_draws_are_calibrated_by_platt_scaling():
    share = np.linspace(0.001, 0.999, 99)
    expected = expit(0.1 + 0.3 * logit(share))
    np.testing.assert_allclose(np.vectorize(calibrated)(share), expected)
    assert calibrated(0) == calibrated(0.5 / 2048) < 0.15


@pytest.mark.parametrize("left", ["nothing", "equal arms", "a retired arm"])
def test_of_measured_arms_alone_none_is_better(left):
    arms = torch.rand(8, 2, generator=seeded()).double()
    if left == "equal arms":  # the first of equal arms are not those with results
        arms = torch.cat([arms, arms])
    told = torch.arange(len(arms))[-8:]
    if left == "a retired arm":
        arms = torch.cat([arms, arms[:1] + 0.1])
    bandit = GPBandit(arms, generator=seeded())
    bandit.add_observations(told, torch.rand(8, generator=seeded()).double())
    if left == "a retired arm":
        bandit.retire_arms([8])
    assert bandit.progress().probability_unmeasured == 0


@pytest.mark.parametrize("policy", [None, ThompsonPolicy()])
@pytest.mark.parametrize("kind", ["table", "products"])
def test_no_later_pick_changes(kind, policy):
    arms, _ = tables()
    if kind == "products":
        x = torch.linspace(0, 1, 9).double()
        arms = ProductArms({"x": x, "y": x, "word": ["a", "b", "c"]})

    def play(asks_progress):
        bandit = GPBandit(arms, policy=policy, generator=seeded(3))
        picks = []
        for number in range(4):
            if asks_progress and number:
                first = bandit.progress(6)
                assert first.expected_rise == bandit.progress(6).expected_rise
            picks += [bandit.ask(6)]
            if asks_progress and number:
                again = bandit.progress(indices=picks[-1])
                expected = pytest.approx(first.expected_rise, rel=1e-6)
                assert again.expected_rise == expected
            rewards = arms[picks[-1]].double().sin().sum(dim=-1)
            bandit.tell(picks[-1][:5], rewards[:5])
        return torch.cat(picks)

    assert torch.equal(play(True), play(False))


def test_what_has_no_progress_is_refused():
    arms, _ = tables()
    bandit = GPBandit(arms, generator=seeded())
    with pytest.raises(InputDataError, match="there are none yet"):
        bandit.progress()
    bandit.add_observations([0, 1], [1.0, 2.0])
    with pytest.raises(InputDataError, match="`n`"):
        bandit.progress(0)
    with pytest.raises(InputDataError, match="60"):
        bandit.progress(indices=[60])
    drifting = GPBandit(arms, forgetting_rate=0.1, generator=seeded())
    drifting.add_observations([0, 1], [1.0, 2.0])
    with pytest.raises(UnsupportedError, match="drifts"):
        drifting.progress()
