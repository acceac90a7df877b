"""Capacities answer as plain lists of numbers would."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms import ArmTable, PullCounts, PullLimits
from botorch_bkb.arms import pull_limits as limits_module
from botorch_bkb.models.utils.crossing import UNLIMITED


def of_pulls(*numbers):
    return PullLimits.of_pulls(torch.tensor(numbers))


def pulls(limits):
    """Return what every arm allows."""
    return limits.of_arms(torch.arange(limits.num_arms)).tolist()


@given(data=st.data(), num_arms=st.integers(1, 9))
def test_lists_and_masks_say_what_a_number_for_every_arm_would(data, num_arms):
    number = st.integers(0, 3)
    usual = data.draw(st.sampled_from([0, 1, 2, UNLIMITED]))
    mask = st.lists(st.booleans(), min_size=num_arms, max_size=num_arms)
    offered = data.draw(st.none() | mask)
    listed = data.draw(st.dictionaries(st.integers(0, num_arms - 1), number))
    arms = sorted(listed)
    expected = np.full(num_arms, usual, dtype=object)
    expected[arms] = [listed[arm] for arm in arms]
    if offered is not None:
        expected[~np.array(offered)] = 0
    limits = PullLimits(
        num_arms,
        usual,
        None if offered is None else torch.tensor(offered),
        PullCounts(
            torch.tensor(arms, dtype=torch.long),
            torch.tensor([listed[arm] for arm in arms], dtype=torch.long),
        ),
    )
    before, untouched = limits.copy(), expected.copy()
    for step in range(data.draw(st.integers(0, 4)) + 1):
        assert pulls(limits) == expected.tolist()
        is_open = expected > 0
        allowed = limits.allowed
        assert allowed is None or allowed.tolist() == is_open.tolist()
        assert (allowed is None) == is_open.all()
        assert limits.num_open == is_open.sum()
        assert limits.is_used_up is not is_open.any()
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
    assert pulls(before) == untouched.tolist()


def test_draws_look_at_masks_block_by_block(monkeypatch):
    monkeypatch.setattr(limits_module, "BLOCK_SIZE", 3)
    offered = torch.tensor([False, True, False, False, False, False, True, True])
    generator = torch.Generator().manual_seed(0)
    limits = PullLimits(8, offered=offered)
    assert {limits.draw(generator) for _ in range(60)} == {1, 6, 7}


def test_a_table_gives_the_capacities_of_what_is_offered():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    used = PullCounts(torch.tensor([1, 3, 2, 3]), torch.tensor([2, 1, 1, 2]))
    assert table.pull_limits(None, None, used).allowed is None
    assert pulls(table.pull_limits(None, 2, used)) == [2, 0, 1, 0]
    offered = table.retire(torch.tensor([0])).offered(None)
    assert pulls(table.pull_limits(offered, 3, used)) == [0, 1, 2, 0]
    # New arms follow those of the table.
    offered = table.offered_rows(torch.tensor([1, 4]), num_new=1)
    assert pulls(table.pull_limits(offered, 4, used)) == [0, 2, 0, 0, 4]


def test_equal_rows_are_one_arm_while_enough_pulls_are_left():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    limits = of_pulls(1, 1, 1, 0)
    assert pulls(table.merged_duplicates(limits, 2)) == [1, 1, 0, 0]
    assert table.merged_duplicates(limits, 3) is limits
    merged = table.merged_duplicates(PullLimits(4), 1)
    assert pulls(merged) == [UNLIMITED, UNLIMITED, 0, UNLIMITED]
