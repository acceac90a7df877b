"""Questions about moments have the answers of plain lists of numbers."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors import ArmMoments
from botorch_bkb.posteriors.moments import positions_in, Ranked
from tests.posteriors import each_dtype, longs


NOISE = 0.25


def make_moments(mean, variance, dtype=torch.float64, prior=None):
    mean, variance = (torch.tensor(x, dtype=dtype) for x in (mean, variance))
    prior = torch.ones_like(mean) if prior is None else torch.tensor(prior)
    return ArmMoments(mean, variance, prior, NOISE, longs(), longs(), 0.0, 0.0)


# Small whole numbers and their squares: bounds are exact, and many of them tie.
arms_with = st.lists(
    st.tuples(st.integers(-2, 2), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=12,
)


def ranked(values, size):
    """Return arms by their values, ties by their index."""
    order = sorted(range(len(values)), key=lambda arm: (-values[arm], arm))[:size]
    return [values[arm] for arm in order], order


@each_dtype
@given(arms=arms_with, scale=st.integers(0, 2), size=st.integers(1, 15))
@settings(max_examples=25)
def test_the_largest_bounds_are_those_of_a_sorted_list(dtype, arms, scale, size):
    mean, deviations, competes = zip(*arms, strict=True)
    moments = make_moments(mean, np.square(deviations), dtype)
    bounds = [m + scale * s for m, s, _ in arms]
    found = moments.largest_bounds(float(scale), size)
    assert (found.values.tolist(), found.arms.tolist()) == ranked(bounds, size)
    assert found.values.dtype == dtype
    # Those that do not compete come last.
    some = [b if c else -math.inf for b, c in zip(bounds, competes, strict=True)]
    mask = torch.tensor(competes)
    found = moments.largest_bounds(float(scale), size, mask)
    assert (found.values.tolist(), found.arms.tolist()) == ranked(some, size)
    if any(competes):
        best = ranked([m if c else -math.inf for m, _, c in arms], 1)[1]
        assert moments.best_mean(mask) == best[0]
    # A known bound counts in place of the arm's own, wherever the arm stands.
    known = [len(arms) - 1, 0][: len(arms)]
    for arm in known:
        some[arm] = 1.5 + arm
    values = torch.tensor([some[arm] for arm in known], dtype=dtype)
    found = moments.largest_bounds(
        float(scale), size, mask, Ranked(values, longs(*known))
    )
    assert (found.values.tolist(), found.arms.tolist()) == ranked(some, size)


@each_dtype
def test_few_arms_are_answered_in_their_order_with_repeats(dtype):
    moments = make_moments([3.0, 1.0, 2.0], [0.5, 0.25, 1.0], dtype, [2.0, 4.0, 1.0])
    few = longs(2, 0, 2)
    assert moments.means(few).tolist() == [2.0, 3.0, 2.0]
    assert moments.variances(few).tolist() == [1.0, 0.5, 1.0]
    assert moments.leverage_scores_of(few).tolist() == [4.0, 2.0, 4.0]
    assert moments.leverage_score(1) == 1.0
    assert (moments.num_arms, moments.max_prior_variance) == (3, 4.0)
    assert (moments.like.shape, moments.like.dtype) == ((0,), dtype)
    for ask in (moments.means, moments.variances, moments.leverage_scores_of):
        assert ask(longs()).shape == (0,)
        assert ask(few).dtype == dtype


few = st.lists(st.integers(0, 30), max_size=12)


@given(arms=few, sought=few)
@settings(max_examples=25)
def test_places_are_those_of_a_list(arms, sought):
    arms = list(dict.fromkeys(arms))
    expected = [arms.index(arm) if arm in arms else -1 for arm in sought]
    found = positions_in(longs(*arms), longs(*sought))
    assert found.tolist() == expected
    assert found.dtype == torch.long
    ordered = sorted(arms)
    expected = [ordered.index(arm) if arm in ordered else -1 for arm in sought]
    found = positions_in(longs(*ordered), longs(*sought), is_ascending=True)
    assert found.tolist() == expected
