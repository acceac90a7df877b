"""Limits on pulls answer as plain lists of numbers would."""

from functools import partial

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms import ArmTable, PullCounts, PullLimits
from botorch_bkb.arms.table import UNLIMITED


def pulls_left(limits):
    is_open = limits.allows(torch.arange(len(limits.is_open)))
    return [limits.of(arm) if each else 0 for arm, each in enumerate(is_open)]


@given(data=st.data(), num_arms=st.integers(1, 9))
def test_limits_are_those_of_a_list(data, num_arms):
    number = st.sampled_from([0, 1, 2, 3, UNLIMITED])
    expected = np.array(
        data.draw(st.lists(number, min_size=num_arms, max_size=num_arms))
    )
    left = torch.from_numpy(expected).int()
    mask = st.lists(st.booleans(), min_size=num_arms, max_size=num_arms)
    offered = data.draw(st.none() | mask)
    if offered is not None:
        expected = expected * offered
        offered = torch.tensor(offered)
    limits = PullLimits(left, offered)
    before, untouched = limits.copy(), expected.copy()
    for step in range(data.draw(st.integers(0, 4)) + 1):
        assert pulls_left(limits) == expected.tolist()
        is_open = expected > 0
        allowed = limits.allowed
        assert allowed is None or allowed.tolist() == is_open.tolist()
        assert (allowed is None) == is_open.all()
        assert limits.num_open == is_open.sum()
        assert limits.total(2) == np.minimum(expected, 2).sum()
        if not is_open.any():
            break
        assert limits.least == min(expected[is_open])
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randint(int(is_open.sum()), (1,), generator=generator)
        generator.manual_seed(step)
        assert limits.draw(generator) == np.flatnonzero(is_open)[int(drawn)]
        arm = data.draw(st.sampled_from(np.flatnonzero(is_open).tolist()))
        limits.take(arm, 1)
        if expected[arm] != UNLIMITED:
            expected[arm] -= 1
    assert pulls_left(before) == untouched.tolist()


def test_of_many_open_arms_few_stay_on_offer():
    left = torch.arange(1000) % 4
    limits = PullLimits(left.int(), torch.arange(1000) >= 100)
    few = limits.thinned(90)
    assert torch.equal(few.is_open, limits.thinned(90).is_open)
    kept = few.is_open.nonzero().squeeze(-1)
    assert few.num_open == len(kept) == 90
    assert limits.allows(kept).all()
    assert [few.of(arm) for arm in kept.tolist()] == left[kept].tolist()
    assert torch.equal(few.available, few.is_open)
    assert int(kept.diff().max()) < 100  # they are everywhere
    few.take(int(kept[0]), int(left[kept[0]]))
    assert few.num_open == 89
    assert limits.num_open == 675
    assert limits.thinned(675) is limits


def test_a_table_gives_the_limits_of_what_is_offered():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [3.0], [2.0]]))
    used = PullCounts(torch.tensor([1, 3, 2, 3]), torch.tensor([2, 1, 1, 2]))
    for many in (None, 10**12):
        assert table.pull_limits(None, many, used).allowed is None
    assert pulls_left(table.pull_limits(None, 2, used)) == [2, 0, 1, 0]
    offered, _ = table.retire(torch.tensor([0])).offered()
    assert pulls_left(table.pull_limits(offered, 3, used)) == [0, 1, 2, 0]
    # New arms follow those of the table.
    offered, _ = table.offered(arms=torch.tensor([[1.0], [9.0]]))
    assert pulls_left(table.pull_limits(offered, 4, used)) == [0, 2, 0, 0, 4]


def test_equal_rows_are_one_arm_while_enough_pulls_are_left():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    offered, none = torch.tensor([True, True, True, False]), torch.tensor([]).long()
    limits = partial(table.pull_limits, offered, 1, PullCounts(none, none))
    assert pulls_left(limits(2)) == [1, 1, 0, 0]
    assert pulls_left(limits(3)) == [1, 1, 1, 0]
    with pytest.raises(InputDataError, match="all are unavailable, retired or have"):
        table.pull_limits(~offered, 0, PullCounts(none, none))
