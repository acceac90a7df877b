"""Poor rewards on a logarithmic scale, against plain NumPy."""

from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies
from scipy.stats import norm

from botorch_bkb import BoxBandit, GPBandit
from botorch_bkb.bandits.warping import LogWarp
from tests.bandits import random_arms
from tests.bandits.contract import both_signs
from tests.bandits.test_predictions import dense_posterior
from tests.reference import log_warp


# Single precision, so that squares do not underflow.
numbers = strategies.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@cache
def failing(maximize=True, num_told=30, has_noise=False):
    """A bandit, for tests that only read it: some rewards are failures, one repeats.

    The repeats fail now and then. Relative errors may be known, but not of the last.
    """
    arms = random_arms(60)
    bandit = GPBandit(arms, maximize=maximize, seed=0)
    rewards = torch.sin(3 * arms.sum(dim=-1))
    rewards = torch.where(rewards < 0, 50 * rewards - 10, rewards)
    rewards = rewards[:num_told] if maximize else -rewards[:num_told]
    best = rewards.argmax() if maximize else rewards.argmin()
    indices = torch.cat([torch.arange(num_told), best.expand(3)])
    rewards = torch.cat([rewards, rewards[best] * torch.tensor([1.1, 0.9, -40.0])])
    noise = (0.1 * rewards).square().clamp_min(1e-4)
    noise[-1] = torch.nan
    known = noise if has_noise else None
    bandit.add_observations(indices, rewards, noise_variance=known)
    bandit.ask(1)
    return bandit


@given(strategies.lists(numbers, min_size=1, max_size=40))
def test_the_warp_is_the_formula_and_undone(values):
    y = np.array(values)
    warp = LogWarp.of(torch.from_numpy(y))
    if warp is None:
        better = y[y >= np.sort(y)[(len(y) - 1) // 2]]
        assert np.ptp(better) <= 1e-8 * np.abs(y).max()
        return
    dense, _ = log_warp(y)
    found = warp(torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(found, dense(y), rtol=1e-12, atol=1e-12 * warp.spread)
    assert (np.diff(found[np.argsort(y)]) >= 0).all()
    np.testing.assert_array_equal(found[y >= warp.median], y[y >= warp.median])
    back = warp.undo(torch.from_numpy(found)).numpy()
    scale = np.abs(y).max() + warp.spread
    np.testing.assert_allclose(back, y, rtol=1e-9, atol=1e-9 * scale)
    low = warp(torch.tensor([y.min()])) - torch.tensor([0.1, 1.0, 1e6]) * warp.spread
    below = warp.undo(low).numpy()
    np.testing.assert_allclose(below, log_warp(y)[1](low.numpy()), rtol=1e-6)


def test_a_level_of_all_rewards_shifts_the_warp():
    y = torch.linspace(-3, 4, 50).double().exp()
    shifted = LogWarp.of(y + 1e11)
    assert shifted is not None
    assert shifted.spread == pytest.approx(LogWarp.of(y).spread, rel=1e-5)


def test_the_slope_is_that_of_differences():
    y = torch.linspace(-3, 4, 50).double().exp()
    warp, step = LogWarp.of(y), 1e-6
    slopes = (warp(y + step) - warp(y - step)) / (2 * step)
    assert warp.log_slope(y) == pytest.approx(slopes.log().mean().item(), abs=1e-6)


def test_failures_are_warped_and_a_smooth_response_is_not():
    assert failing().warp is not None
    arms = random_arms(60)
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(range(30), arms[:30].sum(dim=-1).sin())
    bandit.ask(1)
    assert bandit.warp is None
    drifting = GPBandit(arms, forgetting_rate="learn")
    drifting.add_observations(range(30), [-1e3] * 5 + [1.0 * n for n in range(25)])
    drifting.ask(1)
    assert drifting.warp is None


@both_signs
@pytest.mark.parametrize("has_noise", [False, True], ids=["", "known noise"])
def test_answers_are_in_the_units_of_the_rewards(maximize, has_noise):
    bandit = failing(maximize, has_noise=has_noise)
    assert bandit.warp is not None
    told = bandit._observations.told
    warp, undo = log_warp(told.rewards.numpy(), maximize)
    mean, covariance = dense_posterior(bandit, bandit.arms)
    sign = 1 if maximize else -1
    center, std = sign * mean, np.sqrt(np.diag(covariance))

    def at(deviations):
        return sign * undo(center + deviations * std)

    found = bandit.predict()
    np.testing.assert_allclose(found[0], at(0), rtol=1e-5, atol=1e-5)
    # As wide as a 95 % interval.
    width = undo(center + 1.96 * std) - undo(center - 1.96 * std)
    np.testing.assert_allclose(found[1].sqrt(), width / 3.92, rtol=1e-4, atol=1e-5)
    table = bandit.predictions(threshold=0.5 * sign, num_draws=8)
    is_new = torch.ones(len(mean), dtype=torch.bool)
    is_new[told.indices[told.noise == 0]] = False  # learned noise has its median
    name = "probability_above" if maximize else "probability_below"
    z = (center - warp(np.array([0.5]))) / std
    expected = {"low": at(-2.78 * sign), "high": at(2.78 * sign), name: norm.cdf(z)}
    for name, column in expected.items():
        found = table[name][is_new]
        np.testing.assert_allclose(found, column[is_new], rtol=1e-4, atol=1e-4)
    width = bandit.confidence_width / bandit.noise_variance**0.5
    np.testing.assert_allclose(bandit.confidence_bound(), at(width), rtol=1e-4)


def test_predictions_below_the_worst_result_are_on_a_line():
    warp = LogWarp.of(torch.tensor([0.0, 80, 85, 90, 95], dtype=torch.double))
    bottom = warp(torch.zeros(1).double())
    deep = bottom - torch.tensor([1e3, 1e6], dtype=torch.double)
    mean, variance = warp.undo_moments(deep, torch.full_like(deep, 9.0))
    slope = 85 / (85 - bottom)
    torch.testing.assert_close(mean, 85 + slope * (deep - 85))
    torch.testing.assert_close(variance.sqrt(), (3 * slope).expand(2))


@pytest.mark.parametrize("maximize", [True, False])
def test_thresholds_below_the_worst_result_are_on_that_line(maximize):
    bandit = failing(maximize=maximize)
    means, _ = bandit.predict()
    worst = bandit.warp.least if maximize else -bandit.warp.least
    for arm in torch.cat([means.topk(3).indices, (-means).topk(3).indices]).tolist():
        answers = bandit.predictions([arm], threshold=means[arm].item())
        name = "probability_above" if maximize else "probability_below"
        assert answers[name].item() == pytest.approx(0.5)
    assert (means < worst).any() if maximize else (means > worst).any()


def test_a_loaded_bandit_continues(tmp_path):
    bandit = deepcopy(failing())
    bandit.save(tmp_path / "state")
    other = GPBandit(bandit.arms)
    other.load(tmp_path / "state")
    assert other.warp == bandit.warp is not None
    assert torch.equal(bandit.ask(5), other.ask(5))
    assert torch.equal(bandit.predict()[0], other.predict()[0])


def test_a_box_is_warped_too():
    points = random_arms(30)
    bandit = BoxBandit(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
    rewards = torch.sin(3 * points.sum(dim=-1))
    rewards = torch.where(rewards < 0, 50 * rewards - 10, rewards)
    bandit.add_observations(points, rewards)
    bandit.ask(1)
    assert bandit.warp is not None
    mean, variance = bandit.predict(points)
    good = rewards > rewards.median()
    assert (mean - rewards)[good].abs().max() < 0.3
    assert (variance[good] < 0.1).all()


def plates(offset_std):
    """Return a bandit with 8 results on each of 6 plates, the offsets, and rewards."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(300, 3, generator=generator, dtype=torch.double)
    trend = 2 * torch.sin(5 * arms[:, 0]) + arms[:, 1] - 3 * (arms[:, 2] - 0.5) ** 2
    rewards = torch.randn(300, generator=generator) - 3 * torch.exp(-1.3 * trend)
    offsets = offset_std * torch.randn(6, generator=generator, dtype=torch.double)
    bandit = GPBandit(arms, seed=0)
    for number, offset in enumerate(offsets):
        told = torch.arange(8 * number, 8 * number + 8)
        bandit.add_observations(told, rewards[told] + offset, group=f"{number}")
    return bandit, offsets - offsets.mean(), rewards


@pytest.mark.parametrize("offset_std", [0.0, 4.0])
def test_offsets_beside_a_warp_are_as_uncertain_as_they_are(offset_std):
    bandit, offsets, _ = plates(offset_std)
    bandit.ask()
    found = pd.DataFrame(bandit.groups())
    assert bandit.warp is not None
    assert ((found["offset"] - offsets.numpy()) / found["std"]).pow(2).mean() < 3


def test_a_plate_after_the_last_fit_is_corrected():
    bandit, _, rewards = plates(4.0)
    bandit._surrogate.fitter.always_until = 1
    bandit.ask()
    assert bandit._surrogate.fit.next_fit > 56
    late = torch.arange(100, 108)
    bandit.add_observations(late, rewards[late] + 12.0, group="late")
    found = pd.DataFrame(bandit.groups()).set_index("group")
    assert bandit.warp is not None
    assert found["offset"]["late"] > 8
    # Of a fit that does not know the plate, predictions there are 11 too low.
    assert (bandit.predict(late)[0] - rewards[late]).mean().abs() < 5
