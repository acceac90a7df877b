"""Rows that are kept are the rows that came, and places are those of a Python list."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.posteriors.kernel_rows import (
    KernelRows,
    positions_in,
    positions_in_ascending,
)
from tests.posteriors import each_dtype, longs


def make_rows(num_arms=5, limit=200, dtype=torch.float64):
    return KernelRows(num_arms, limit, torch.empty(0, dtype=dtype))


def numbered(start, stop, num_arms=5, dtype=torch.float64):
    """Return rows that say in every entry which they are, whatever the dtype."""
    rows = np.arange(start, stop)[:, None] + np.arange(num_arms) / 128
    return torch.tensor(rows, dtype=dtype)


def add(rows, values):
    """Add rows in two tiles of columns."""
    middle = values.shape[1] // 2
    tiles = [slice(0, middle), slice(middle, None)]
    rows.add(len(values), ((tile, values[:, tile]) for tile in tiles))


@each_dtype
@given(
    sizes=st.lists(st.integers(0, 70), max_size=6),
    slots=st.lists(st.integers(0, 10**6), max_size=8),
)
@settings(max_examples=25)
def test_any_rows_are_found_again_however_they_came(dtype, sizes, slots):
    """Repeated and in any order, for arms in a row and for a list of arms."""
    rows, size = make_rows(limit=sum(sizes), dtype=dtype), 0
    for more in sizes:
        add(rows, numbered(size, size + more, dtype=dtype))
        size += more
    assert rows.size == size <= len(rows.rows) <= rows.limit
    expected = numbered(0, size, dtype=dtype)
    sought = longs(*(slot % size for slot in slots if size))
    for arms in (slice(0, 5), slice(1, 4), slice(2, 2), longs(3, 0, 0), longs()):
        found = rows.select(sought, arms)
        assert found.dtype == dtype
        assert torch.equal(found, expected[sought][:, arms])


def test_a_tile_that_fails_adds_nothing():
    rows = make_rows()
    add(rows, numbered(0, 2))

    def tiles():
        yield slice(0, 2), numbered(2, 5)[:, :2]
        raise ValueError("no kernel")

    with pytest.raises(ValueError, match="no kernel"):
        rows.add(3, tiles())
    add(rows, numbered(2, 3))
    assert torch.equal(rows.select(longs(0, 1, 2), slice(0, 5)), numbered(0, 3))


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
    assert positions_in_ascending(longs(*ordered), longs(*sought)).tolist() == expected
