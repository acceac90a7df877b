import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_bkb.models.utils.rows import covers, find_duplicates, later_duplicates


def equal_rows(table):
    """Return, for every row, the numbers of the rows that are equal."""
    rows = [tuple(row) for row in table.tolist()]
    return [[j for j, other in enumerate(rows) if other == row] for row in rows]


@given(
    seed=st.integers(0, 2**31),
    num_rows=st.integers(1, 40),
    num_columns=st.integers(1, 3),
    num_values=st.integers(1, 8),
)
@settings(max_examples=30)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_twins_are_the_equal_rows(seed, num_rows, num_columns, num_values, dtype):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_values, generator=generator, dtype=dtype)
    values[0] = 0.0
    shape = (num_rows, num_columns)
    table = values[torch.randint(num_values, shape, generator=generator)]
    table *= torch.randint(2, shape, generator=generator) * 2 - 1  # zeros of both signs
    groups = equal_rows(table)
    duplicates = find_duplicates(table)
    assert duplicates.rows.tolist() == [i for i, g in enumerate(groups) if len(g) > 1]
    assert duplicates.first.tolist() == [g[0] for g in groups if len(g) > 1]
    allowed = torch.randint(2, (num_rows,), generator=generator).bool()
    expected = [
        bool(allowed[i]) and i == min(j for j in group if allowed[j])
        for i, group in enumerate(groups)
    ]
    before = allowed.clone()
    found = allowed.clone()
    found[later_duplicates(duplicates, allowed[duplicates.rows])] = False
    assert found.tolist() == expected
    assert torch.equal(allowed, before)


@given(
    seed=st.integers(0, 2**31),
    num_points=st.integers(1, 6),
    num_inputs=st.integers(1, 6),
)
@settings(max_examples=30)
def test_points_cover_inputs_of_which_each_is_one_of_them(seed, num_points, num_inputs):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(2, (num_points, 2), generator=generator).double()
    inputs = torch.randint(2, (num_inputs, 2), generator=generator).double()
    rows = {tuple(row) for row in points.tolist()}
    expected = all(tuple(row) in rows for row in inputs.tolist())
    assert covers(points, inputs) == expected
