"""Capacities answer as plain lists of numbers would."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_bkb.arms import ArmTable, Capacity, PullCounts
from botorch_bkb.arms import capacity as capacity_module
from botorch_bkb.models.utils.crossing import UNLIMITED


def of_pulls(*numbers):
    return Capacity.of_pulls(torch.tensor(numbers))


def pulls(capacity):
    """Return what every arm allows."""
    return capacity.of_arms(torch.arange(capacity.num_arms)).tolist()


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
    capacity = Capacity(
        num_arms,
        usual,
        None if offered is None else torch.tensor(offered),
        PullCounts(
            torch.tensor(arms, dtype=torch.long),
            torch.tensor([listed[arm] for arm in arms], dtype=torch.long),
        ),
    )
    before, untouched = capacity.copy(), expected.copy()
    for step in range(data.draw(st.integers(0, 4)) + 1):
        assert pulls(capacity) == expected.tolist()
        is_open = expected > 0
        allowed = capacity.allowed
        assert allowed is None or allowed.tolist() == is_open.tolist()
        assert (allowed is None) == is_open.all()
        assert capacity.num_open == is_open.sum()
        assert capacity.is_used_up is not is_open.any()
        assert capacity.total(2) == np.minimum(expected, 2).sum()
        if not is_open.any():
            break
        assert capacity.least == min(expected[is_open])
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randint(int(is_open.sum()), (1,), generator=generator)
        generator.manual_seed(step)
        assert capacity.draw(generator) == np.flatnonzero(is_open)[int(drawn)]
        arm = data.draw(st.sampled_from(np.flatnonzero(is_open).tolist()))
        capacity.take(arm, 1)
        if expected[arm] != UNLIMITED:
            expected[arm] -= 1
    assert pulls(before) == untouched.tolist()


def test_draws_look_at_masks_block_by_block(monkeypatch):
    monkeypatch.setattr(capacity_module, "BLOCK_SIZE", 3)
    offered = torch.tensor([False, True, False, False, False, False, True, True])
    generator = torch.Generator().manual_seed(0)
    capacity = Capacity(8, offered=offered)
    assert {capacity.draw(generator) for _ in range(60)} == {1, 6, 7}


def test_a_table_gives_the_capacities_of_what_is_offered():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    used = PullCounts(torch.tensor([1, 3, 2, 3]), torch.tensor([2, 1, 1, 2]))
    assert table.capacity(None, None, used).allowed is None
    assert pulls(table.capacity(None, 2, used)) == [2, 0, 1, 0]
    offered = table.retire(torch.tensor([0])).offered(None)
    assert pulls(table.capacity(offered, 3, used)) == [0, 1, 2, 0]
    # New arms follow those of the table.
    offered = table.offered_rows(torch.tensor([1, 4]), num_new=1)
    assert pulls(table.capacity(offered, 4, used)) == [0, 2, 0, 0, 4]


def test_equal_rows_are_one_arm_while_enough_pulls_are_left():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    capacity = of_pulls(1, 1, 1, 0)
    assert pulls(table.merged_twins(capacity, 2)) == [1, 1, 0, 0]
    assert table.merged_twins(capacity, 3) is capacity
    merged = table.merged_twins(Capacity(4), 1)
    assert pulls(merged) == [UNLIMITED, UNLIMITED, 0, UNLIMITED]
