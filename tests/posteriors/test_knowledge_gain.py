"""Knowledge gains of arms, at their edges, and the batches that they open."""

import math
from unittest import mock

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from botorch_bkb.arms import PullCounts, PullLimits
from botorch_bkb.models.kernels import PrecomputedKernel
from botorch_bkb.models.utils.rows import Duplicates
from botorch_bkb.posteriors import ArmPosterior, shards, upper_bounds
from botorch_bkb.posteriors.posterior import expected_rise, largest
from botorch_bkb.posteriors.upper_bounds import best_arm_limits
from tests.posteriors import ATOL, each_dtype, longs


NOISE = 0.5


def gains(mean, variance, dtype=torch.float64):
    mean, variance = (torch.tensor(x, dtype=dtype) for x in (mean, variance))
    top = largest(mean, 2)
    is_best = torch.arange(len(mean)) == top.arms[0]
    return expected_rise(mean, variance, NOISE, top, is_best)


def integrated_gains(mean, variance):
    """Return E max(all means after a pull) - max(now), summed over a fine grid."""
    steps = np.linspace(-9, 9, 100_001)
    weights = np.exp(-(steps**2) / 2)
    weights /= weights.sum()
    found = []
    for arm in range(len(mean)):
        moved = mean[arm] + steps * variance[arm] / math.sqrt(variance[arm] + NOISE)
        rest = np.delete(mean, arm).max()
        found.append(weights @ np.maximum(moved, rest) - mean.max())
    return np.array(found)


@each_dtype
@given(seed=st.integers(0, 10**6), num_arms=st.integers(2, 8))
@settings(max_examples=15)
def test_the_gain_is_the_expected_rise_of_the_largest_mean(dtype, seed, num_arms):
    stream = np.random.default_rng(seed)
    mean = stream.integers(-2, 3, size=num_arms) / 2  # ties are frequent
    variance = stream.uniform(0.05, 2.0, size=num_arms)
    found = gains(mean, variance, dtype)
    assert found.dtype == dtype
    expected = integrated_gains(mean, variance)
    np.testing.assert_allclose(found, expected, atol=max(ATOL[dtype], 1e-7))


@each_dtype
def test_rounding_leaves_no_gain_below_zero(dtype):
    """Or a pulled arm without variance would tell more than new ones."""
    gaps = np.linspace(0.0, 20.0, 2001)
    mean, variance = [30.0, *(30.0 - gaps), 0.0], [1.0] * 2002 + [0.0]
    assert (gains(mean, variance, dtype) >= 0).all()
    gap = 5.89 if dtype == torch.float32 else 8.88  # the terms cancel to below zero
    assert batch([0.0, -gap, 0.0], [0.0, 1.5, 0.0], [0, 2], 1, dtype=dtype) == [0, 1, 0]


def batch(mean, variance, used, size, dtype=torch.float64, pending=(), limits=None):
    """Return the capacities of a batch of a given size."""
    mean, variance = (torch.as_tensor(x, dtype=dtype) for x in (mean, variance))
    arms = torch.arange(len(mean)).unsqueeze(-1).to(mean)
    moments = ArmPosterior(arms, PrecomputedKernel(torch.eye(len(mean))), NOISE)
    (shard,) = moments.shards.parts
    shard.moments[1:] = torch.stack([mean, variance, torch.zeros_like(mean)])
    used = PullCounts(longs(*used), torch.ones(len(used), dtype=torch.long))
    limits = limits or PullLimits.unlimited(mean, len(mean))
    none = Duplicates(longs(), longs())
    found = best_arm_limits(moments, limits, used, longs(*pending), size, none)
    assert found.most <= 1
    return found.is_open.int().tolist()


def dense_capacities(limits, used, gain, size):
    """Return capacities of a batch, by lists of all arms."""
    allowed, is_new = limits > 0, (limits > 0) & (used == 0)
    most = gain[is_new].max() if is_new.any() else -np.inf
    is_open = is_new | (allowed & (gain > most))
    rest = [arm for arm in np.argsort(-gain, kind="stable") if not is_open[arm]]
    missing = max(min(size, allowed.sum()) - is_open.sum(), 0)
    is_open[[arm for arm in rest if allowed[arm]][:missing]] = True
    return np.where(is_open, np.minimum(limits, 1), 0).tolist()


@given(seed=st.integers(0, 2**31), num_arms=st.integers(1, 12), size=st.integers(1, 20))
@settings(max_examples=100)
def test_a_batch_is_of_distinct_arms_that_tell_most(seed, num_arms, size):
    """Gains are small integers, so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda high: torch.randint(high, (num_arms,), generator=generator)  # noqa: E731
    limits, used, gain = draw(3), draw(3), draw(5).double()
    closed = draw(2).bool()
    offered = None if closed.all() else ~closed
    limits = PullLimits(limits.int(), offered)
    left = limits.is_open.int().numpy()
    expected = dense_capacities(left, used.numpy(), gain.numpy(), size)
    pulled = used.nonzero().squeeze(-1).tolist()
    gains = mock.Mock(side_effect=lambda mean, *_: mean.clone())
    with (
        mock.patch.object(upper_bounds, "expected_rise", gains),
        mock.patch.object(shards, "expected_rise", gains),
    ):
        assert batch(gain, gain, pulled, size, limits=limits) == expected


@each_dtype
@given(seed=st.integers(0, 10**6), num_pending=st.integers(1, 9))
@settings(max_examples=25)
def test_a_pull_that_is_out_leaves_its_arm_less_to_learn(dtype, seed, num_pending):
    """Open are the pulled arms whose gain, by the grid, is above that of the new."""
    stream = np.random.default_rng(seed)
    mean, variance = stream.normal(size=6), stream.uniform(0.05, 2.0, size=6)
    used = stream.permutation(6)[:4]
    pending = stream.choice(used, size=num_pending)
    counts = np.bincount(pending, minlength=6)
    # Each would leave 1 / (1 / v + 1 / lambda) of v.
    left = 1 / (1 / variance + counts / NOISE)
    gain = integrated_gains(mean, left)
    most = np.delete(gain, used).max()
    assume(np.abs(gain[used] - most).min() > 1e-4)
    found = batch(mean, variance, used, 1, dtype=dtype, pending=pending)
    is_new = ~np.isin(np.arange(6), used)
    assert found == (is_new | (gain > most)).astype(int).tolist()
