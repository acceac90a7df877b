"""Capacities answer as plain lists of numbers would."""

import pytest
import torch

from botorch_bkb.arms import ArmTable, Capacity, PullCounts
from botorch_bkb.models.utils.crossing import UNLIMITED


def test_arms_without_a_limit_are_never_used_up():
    capacity = Capacity(5)
    capacity.take(3, 7)
    assert capacity.without(torch.tensor([1, 1])) is capacity
    assert capacity.allowed is None
    assert not capacity.is_used_up
    assert capacity.allows(torch.tensor([4, 0])).tolist() == [True, True]
    assert capacity.least == capacity.of(3) == capacity.total(2) == UNLIMITED
    generator = torch.Generator().manual_seed(0)
    assert {capacity.draw(generator) for _ in range(100)} == set(range(5))


def test_what_is_taken_is_gone_from_the_copy_alone():
    capacity = Capacity(4, torch.tensor([2, 0, 5, 1]))
    left = capacity.copy()
    left.take(0, 1)
    left.take(3, 1)
    assert left.pulls.tolist() == [1, 0, 5, 0]
    assert left.without(torch.tensor([2, 0, 2])).pulls.tolist() == [0, 0, 3, 0]
    assert capacity.pulls.tolist() == [2, 0, 5, 1]
    assert left.allowed.tolist() == [True, False, True, False]
    assert left.allows(torch.tensor([3, 2])).tolist() == [False, True]
    assert (left.of(2), left.least, left.total(3), left.total(9)) == (5, 1, 4, 6)
    left.take(0, 1)
    left.take(2, 5)
    assert left.is_used_up


def test_draws_are_uniform_among_the_arms_that_are_left():
    generator = torch.Generator().manual_seed(1)
    capacity = Capacity(4, torch.tensor([0, 9, 0, 1]))
    draws = [capacity.draw(generator) for _ in range(400)]
    assert set(draws) == {1, 3}
    assert draws.count(1) == pytest.approx(200, abs=50)


def test_a_table_gives_the_capacities_of_what_is_offered():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    used = PullCounts(torch.tensor([1, 3, 2, 3]), torch.tensor([2, 1, 1, 2]))
    assert table.capacity(None, None, used).pulls is None
    assert table.capacity(None, 2, used).pulls.tolist() == [2, 0, 1, 0]
    offered = table.retire(torch.tensor([0])).offered(None)
    assert table.capacity(offered, 3, used).pulls.tolist() == [0, 1, 2, 0]
    # New arms follow those of the table.
    offered = table.offered_rows(torch.tensor([1, 4]), num_new=1)
    assert table.capacity(offered, 4, used).pulls.tolist() == [0, 2, 0, 0, 4]


def test_equal_rows_are_one_arm_while_enough_pulls_are_left():
    table = ArmTable.of(torch.tensor([[0.0], [1.0], [1.0], [2.0]]))
    capacity = Capacity(4, torch.tensor([1, 1, 1, 0]))
    assert table.merged_twins(capacity, 2).pulls.tolist() == [1, 1, 0, 0]
    assert table.merged_twins(capacity, 3) is capacity
    merged = table.merged_twins(Capacity(4), 1).pulls
    assert merged.tolist() == [UNLIMITED, UNLIMITED, 0, UNLIMITED]


def test_tables_do_not_change():
    table = ArmTable.of(torch.tensor([[0.0], [1.0]]))
    longer = table.appended(torch.tensor([[5.0]]), is_retired=True)
    assert (table.num_arms, longer.num_arms) == (2, 3)
    assert longer.retired.tolist() == [2]
    assert longer.retire_all().in_play.all()
    back = longer.retire_all().retire(torch.tensor([1]), False)
    assert back.retired.tolist() == [0, 2]
    assert longer.retired.tolist() == [2]
