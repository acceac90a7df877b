"""The least count that crosses, in few questions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms.pull_limits import UNLIMITED
from botorch_bkb.posteriors.upper_bounds import first_crossing


@given(
    crossing=st.integers(1, UNLIMITED + 2),
    most=st.sampled_from([1, 2, 1000, UNLIMITED]),
)
def test_the_least_count_is_found(crossing, most):
    asked = []

    def crosses(n):
        asked.append(n)
        return n >= crossing

    assert first_crossing(crosses, most) == min(crossing, most)
    assert len(asked) <= 2 * min(crossing, most).bit_length()


@pytest.mark.parametrize("score", [1e-20, 1e-26])
def test_terms_that_rounding_swallows_take_no_time(score):
    """2.0 + n score is 2.0 for long, or for good."""
    found = first_crossing(lambda n: 2.0 + n * score > 2.0)
    assert found == UNLIMITED or 2.0 + found * score > 2.0
    assert 2.0 + (found - 1) * score == 2.0
