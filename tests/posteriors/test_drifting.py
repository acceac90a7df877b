"""What filters over time have in common: time, gaps, checks and predictions."""

import math

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import SparseArmFilter
from tests.helpers import gram_matrix
from tests.reference import time_varying_posterior


NOISE, RATE = 0.25, 0.1
each_dtype = pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
nothing = torch.empty(0, dtype=torch.long), torch.empty(0).double()


def arms_of(num_arms=6, dtype=torch.double):
    """Return arms on a line; the last one equals the first, where there are several."""
    arms = torch.arange(num_arms, dtype=dtype)
    arms[1:][-1:] = 0.0
    return arms.unsqueeze(-1)


def make(rate=RATE, noise=NOISE, num_arms=6, dtype=torch.double):
    arms, kernel = arms_of(num_arms, dtype), RBFKernel().to(dtype)
    return SparseArmFilter(arms, kernel, noise, rate, tolerance=0.0)


def dense(rate, steps, decision, num_arms=6):
    """Return the moments by equations (7) and (8), from all observations at once."""
    arms, rewards, times = (np.array(column) for column in zip(*steps, strict=True))
    gram = gram_matrix(RBFKernel().double(), arms_of(num_arms))
    return time_varying_posterior(gram, NOISE, rate, arms, times, rewards, decision)


def observe(filtered, steps):
    for arm, reward, time in steps:
        rewards = torch.tensor([reward]).to(filtered.mean)
        filtered.observe(torch.tensor([arm]), rewards, time)


def state(filtered):
    return filtered.mean.clone(), filtered.variance.clone(), filtered.log_det


def assert_same_state(found, expected):
    assert all(torch.equal(*pair) for pair in zip(found[:2], expected[:2], strict=True))
    assert found[2] == expected[2]


STEPS = [(1, 2.0, 0.5), (5, -1.0, 0.5), (0, 1.5, 3.25), (3, 0.5, 4.0)]


@each_dtype
@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("gap", [0.0, 0.5, 100.0])
def test_predictions_are_those_of_all_observations_at_once(dtype, rate, gap):
    filtered = make(rate, dtype=dtype)
    observe(filtered, STEPS)
    mean, variance = filtered.predict(4.0 + gap)
    expected = dense(rate, STEPS, 4.0 + gap)
    atol = 1e-9 if dtype == torch.double else 1e-3
    assert mean.dtype == variance.dtype == dtype
    np.testing.assert_allclose(mean, expected[0], atol=atol)
    np.testing.assert_allclose(variance, expected[1], atol=atol)


def test_a_prediction_changes_nothing_and_is_the_state_at_that_time():
    filtered = make()
    observe(filtered, STEPS)
    before = state(filtered)
    mean, variance = filtered.predict(9.0)
    assert_same_state(state(filtered), before)
    filtered.advance(9.0)
    assert filtered.time == 9.0
    torch.testing.assert_close(mean, filtered.mean)
    torch.testing.assert_close(variance, filtered.variance)
    assert filtered.log_det == before[2]


@given(gaps=st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(max_examples=10)
def test_many_small_gaps_are_one_large_one(gaps):
    walked, leapt = make(), make()
    for filtered in (walked, leapt):
        observe(filtered, STEPS)
    times = 4.0 + np.cumsum(gaps) / 4
    for time in times:
        walked.observe(*nothing, float(time))  # no observation is a time that passed
    leapt.advance(float(times[-1]))
    torch.testing.assert_close(walked.mean, leapt.mean)
    torch.testing.assert_close(walked.variance, leapt.variance)


def test_before_the_first_observation_any_time_has_the_prior():
    filtered = make()
    assert filtered.time is None
    for time in (-50.0, 7.0):
        mean, variance = filtered.predict(time)
        assert mean.tolist() == [0.0] * 6
        torch.testing.assert_close(variance, filtered.prior_variance)
    filtered.observe(*nothing, -50.0)
    assert (filtered.time, filtered.log_det) == (-50.0, 0.0)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_log_determinant_is_that_of_all_pairs_of_observations(rate):
    filtered = make(rate)
    observe(filtered, STEPS)
    arms, _, times = (np.array(column) for column in zip(*STEPS, strict=True))
    gram = gram_matrix(RBFKernel().double(), arms_of())[np.ix_(arms, arms)]
    K = gram * (1 - rate) ** (np.abs(times[:, None] - times) / 2)
    expected = np.linalg.slogdet(np.eye(len(K)) + K / NOISE)[1]
    assert filtered.log_det == pytest.approx(expected, rel=1e-9)


def test_a_copy_and_a_longer_one_leave_the_original_alone():
    filtered = make()
    observe(filtered, STEPS[:2])
    before = state(filtered)
    new = torch.tensor([[2.5]]).double()
    for other in (filtered.copy(), filtered.extended(new)):
        observe(other, STEPS[2:])
        assert_same_state(state(filtered), before)
        assert other.time == 4.0
        expected = dense(RATE, STEPS, 4.0)
        np.testing.assert_allclose(other.mean[:6], expected[0], atol=1e-9)
    assert filtered.time == 0.5
    assert len(other.mean) == len(other.prior_variance) == 7


@pytest.mark.parametrize(
    ("arms", "rewards", "time", "error", "match"),
    [
        ([0, 1], [1.0], 5.0, BotorchTensorDimensionError, "one reward per arm"),
        ([0, 6], [1.0, 1.0], 5.0, InputDataError, r"from 0 to 5, but got \[0, 6\]"),
        ([0, 1], [1.0, math.inf], 5.0, InputDataError, "finite `rewards`"),
        ([], [], 3.9, InputDataError, "`time` not before 4, .* but got 3.9"),
        ([0], [1.0], math.nan, InputDataError, "`time` to be a finite number"),
    ],
)
def test_bad_observations_change_nothing(arms, rewards, time, error, match):
    filtered = make()
    observe(filtered, STEPS)
    before = state(filtered)
    indices, values = torch.tensor(arms).long(), torch.tensor(rewards).double()
    with pytest.raises(error, match=match):
        filtered.observe(indices, values, time)
    assert_same_state(state(filtered), before)
    assert filtered.time == 4.0
    if "time" in match:
        with pytest.raises(InputDataError, match=match):
            filtered.predict(time)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"noise": 0.0}, "`noise_variance` to be a positive number, but got 0.0"),
        ({"rate": -0.1}, "`forgetting_rate` between 0 .* but got -0.1"),
        ({"rate": math.nan}, "`forgetting_rate`"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(InputDataError, match=match):
        make(**options)
