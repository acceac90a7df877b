import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.arms.pull_limits import UNLIMITED
from botorch_bkb.posteriors.upper_bounds import first_crossing


@given(crossing=st.integers(1, 10**6), error=st.integers(-70, 70))
@settings(max_examples=25)
@pytest.mark.parametrize("scale", [1, 1000])
def test_the_least_count_is_found_from_a_wrong_estimate(crossing, error, scale):
    estimate = crossing + scale * error / 7
    assert first_crossing(lambda n: n >= crossing, estimate) == crossing


@pytest.mark.parametrize("estimate", [math.nan, 2.0**31])
def test_a_condition_that_never_holds_is_not_asked(estimate):
    def crosses(n):
        raise AssertionError

    assert first_crossing(crosses, estimate) == UNLIMITED


@pytest.mark.parametrize("estimate", [-math.inf, 0.5])
def test_what_holds_already_is_crossed_by_the_first(estimate):
    assert first_crossing(lambda n: True, estimate) == 1


def test_a_right_estimate_takes_two_questions():
    """A question may be a pass over all arms."""
    asked = []

    def crosses(n):
        asked.append(n)
        return n > 1000

    assert first_crossing(crosses, 1000.0) == 1001
    assert sorted(asked) == [1000, 1001]


@pytest.mark.parametrize("score", [1e-20, 1e-24])
def test_terms_that_rounding_swallows_take_no_time(score):
    """It counted them one by one: 2.0 + n score is 2.0 for long."""
    found = first_crossing(lambda n: 2.0 + n * score > 2.0, 0.0)
    assert 2.0 + found * score > 2.0 == 2.0 + (found - 1) * score


def test_a_condition_that_rounding_keeps_from_holding_is_unlimited():
    """A formula says that the bound is passed, which it only comes close to."""
    assert first_crossing(lambda n: 1.0 + 1.0 / n < 1.0, 1e6) == UNLIMITED
