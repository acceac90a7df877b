"""Questions about moments have the answers of plain lists of numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors import ArmMoments
from tests.posteriors import longs


NOISE = 0.25


def make_moments(mean, variance, dtype=torch.float64, prior=None):
    mean, variance = (torch.tensor(x, dtype=dtype) for x in (mean, variance))
    prior = torch.ones_like(mean) if prior is None else torch.tensor(prior)
    return ArmMoments(mean, variance, prior, NOISE, longs(), longs(), 0.0, 0.0)


def test_the_largest_bounds_are_of_arms_that_compete():
    moments = make_moments([1.0, 3.0, 2.0, 3.0], [4.0, 0.0, 1.0, 0.0])
    competes = torch.tensor([True, False, True, True])
    assert moments.largest_bounds(1.0, 3).arms.tolist() == [0, 1, 2]
    assert moments.largest_bounds(1.0, 9, competes).arms.tolist() == [0, 2, 3, 1]
    assert (moments.best_mean(), moments.best_mean(competes)) == (1, 3)


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
