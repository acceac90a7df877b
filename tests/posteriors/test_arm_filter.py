"""The filter equals equations (7) and (8) of the TV-GP-UCB paper, solved densely."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import ArmFilter
from tests.reference import time_varying_posterior


NOISE = 0.2


def covariance(num_arms, seed=0):
    points = np.random.default_rng(seed).uniform(size=(num_arms, 2))
    gaps = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    return np.exp(-gaps / (2 * 0.3**2))


def history(num_arms, num_times, seed):
    """Return times with real gaps and no, one or several observations at each."""
    generator = np.random.default_rng(seed)
    times = np.cumsum(generator.exponential(1.0, size=num_times))
    sizes = generator.integers(0, 4, size=num_times)
    return [
        (time, generator.integers(0, num_arms, size=size), generator.normal(size=size))
        for time, size in zip(times, sizes, strict=True)
    ]


def assert_equals_the_dense_answer(gram, rate, steps, gap, atol=1e-9):
    filtered = ArmFilter(torch.as_tensor(gram), NOISE, rate)
    for time, arms, rewards in steps:
        filtered.observe(torch.as_tensor(arms), torch.as_tensor(rewards), time)
    decision = steps[-1][0] + gap
    mean, variance = filtered.predict(decision)
    times = np.concatenate([np.full(len(arms), time) for time, arms, _ in steps])
    expected = time_varying_posterior(
        gram,
        NOISE,
        rate,
        np.concatenate([arms for _, arms, _ in steps]),
        times,
        np.concatenate([rewards for *_, rewards in steps]),
        decision,
    )
    np.testing.assert_allclose(mean, expected[0], atol=atol)
    np.testing.assert_allclose(variance, expected[1], atol=atol)


@pytest.mark.parametrize("rate", [0.001, 0.03, 0.3])
def test_300_times_equal_the_dense_answer(rate):
    assert_equals_the_dense_answer(covariance(60), rate, history(60, 300, 1), gap=1.0)


@given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    gap=st.sampled_from([0.0, 0.7, 30.0]),
)
@settings(max_examples=40, deadline=None)
def test_random_histories_equal_the_dense_answer(seed, rate, gap):
    steps = history(12, 15, seed)
    # Twice the same time: as if it were one.
    steps.append((steps[-1][0], np.array([3, 3]), np.array([0.5, -0.5])))
    assert_equals_the_dense_answer(covariance(12, seed), rate, steps, gap)


def test_long_after_the_last_observation_the_prior_is_back():
    filtered = ArmFilter(torch.as_tensor(covariance(8)), NOISE, 0.1)
    filtered.observe(torch.tensor([2]), torch.tensor([5.0]), time=0.0)
    mean, variance = filtered.predict(1e4)
    assert mean.abs().max() < 1e-9
    torch.testing.assert_close(variance, torch.ones(8).double())


def test_single_precision_is_close():
    gram = torch.as_tensor(covariance(20)).float()
    double = ArmFilter(gram.double(), NOISE, 0.05)
    single = ArmFilter(gram, NOISE, 0.05)
    for time, arms, rewards in history(20, 100, 2):
        arms, rewards = torch.as_tensor(arms), torch.as_tensor(rewards)
        double.observe(arms, rewards, time)
        single.observe(arms, rewards.float(), time)
    mean, variance = single.predict(300.0)
    assert mean.dtype == variance.dtype == torch.float
    expected = double.predict(300.0)
    torch.testing.assert_close(mean.double(), expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(variance.double(), expected[1], atol=1e-4, rtol=0)


def test_bad_options_are_refused():
    gram = torch.eye(3)
    with pytest.raises(BotorchTensorDimensionError, match="of shape A x A"):
        ArmFilter(gram[:2], NOISE, 0.1)
    with pytest.raises(InputDataError, match="`noise_variance` to be a positive"):
        ArmFilter(gram, 0.0, 0.1)
    with pytest.raises(InputDataError, match="`forgetting_rate` between 0"):
        ArmFilter(gram, NOISE, 1.5)


@pytest.mark.parametrize(
    ("arms", "rewards", "time", "match"),
    [
        ([0, 1], [1.0], 2.0, "one reward per arm"),
        ([3], [1.0], 2.0, "from 0 to 2"),
        ([-1], [1.0], 2.0, "from 0 to 2"),
        ([0], [float("nan")], 2.0, "finite `rewards`"),
        ([0], [1.0], 0.5, "not before 1"),
        ([0], [1.0], float("inf"), "`time` to be a finite number"),
    ],
)
def test_bad_observations_are_refused_and_change_nothing(arms, rewards, time, match):
    filtered = ArmFilter(torch.eye(3), NOISE, 0.1)
    filtered.observe(torch.tensor([1]), torch.tensor([1.0]), time=1.0)
    mean, covariance_before = filtered.mean.clone(), filtered.covariance.clone()
    with pytest.raises((BotorchTensorDimensionError, InputDataError), match=match):
        filtered.observe(torch.tensor(arms), torch.tensor(rewards), time)
    assert filtered.time == 1.0
    assert torch.equal(filtered.mean, mean)
    assert torch.equal(filtered.covariance, covariance_before)
