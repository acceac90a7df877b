"""A table whose numbers are made when they are taken, against its dense copy."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils import lazy_rows
from botorch_bkb.models.utils.lazy_rows import as_dense, LazyRows, row_blocks


class Multiples(LazyRows):
    """Rows ``(x, 2 x, 3 x)``, of which ``x`` is kept; counts the rows made dense."""

    num_made = 0

    @staticmethod
    def __new__(cls, x):
        rows = Tensor._make_wrapper_subclass(cls, (len(x), 3), dtype=x.dtype)
        rows.x = x
        return rows

    @override
    def dense(self):
        Multiples.num_made += len(self)
        return self.x.unsqueeze(-1) * torch.arange(1, 4).to(self.x)

    @property
    @override
    def _like(self):
        return self.x

    @override
    def _rows(self, rows):
        return Multiples(self.x[rows])

    @override
    def _joined(self, parts):
        columns = [x.x if isinstance(x, Multiples) else x[:, 0] for x in parts]
        return Multiples(torch.cat(columns))


def tables(num_rows=7, dtype=torch.double):
    """Return the lazy table and its dense copy; nothing is counted before."""
    lazy = Multiples(torch.arange(num_rows, dtype=dtype) - 2)
    dense = lazy.dense()
    Multiples.num_made = 0
    return lazy, dense


def assert_same(found, expected):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(as_dense(found), expected)


TAKEN = {
    "a list of rows": lambda x: x[[2, 0, 2]],
    "rows from the end": lambda x: x[torch.tensor([-1, -7])],
    "no rows": lambda x: x[torch.tensor([], dtype=torch.long)],
    "a mask": lambda x: x[torch.tensor([True, False, False, True, False, True, True])],
    "index_select": lambda x: x.index_select(-2, torch.tensor([6, 6])),
    "a clone": lambda x: x.clone(),
    "detached": lambda x: x.detach(),
    "rows below rows": lambda x: torch.cat([x, x[:2], x[:0]]),
    "plain rows below": lambda x: torch.cat([x, torch.tensor([[1, 2, 3]])], dim=-2),
}
MADE = {
    "a row": (lambda x: x[-2], 1),
    "a column": (lambda x: x[:, 1], 7),
    "columns": (lambda x: x[:, :2], 7),
    "a number": (lambda x: x[4, 2], 1),
    "a table of rows": (lambda x: x[torch.tensor([[0, 1], [5, 5]])], 7),
    "columns beside": (lambda x: torch.cat([x, x], dim=1), 14),
    "plain rows first": (lambda x: torch.cat([torch.ones(1, 3), x]), 7),
    "arithmetic": (lambda x: 2 * x + 1, 7),
    "another shape": (lambda x: x.unsqueeze(0).expand(2, 7, 3), 7),
    "the largest of each": (lambda x: x.amax(dim=-1), 7),
}


@pytest.mark.parametrize("question", TAKEN.values(), ids=TAKEN)
def test_rows_that_are_taken_and_joined_stay_lazy(question):
    lazy, dense = tables()
    found = question(lazy)
    assert isinstance(found, Multiples)
    assert Multiples.num_made == 0
    assert_same(found, question(dense))


@pytest.mark.parametrize(("question", "num_made"), MADE.values(), ids=MADE)
def test_what_else_is_asked_is_answered_from_the_dense_rows(question, num_made):
    lazy, dense = tables(dtype=torch.float)
    found = question(lazy)
    assert type(found) is Tensor
    assert Multiples.num_made == num_made
    assert_same(found, question(dense))


@given(
    num_rows=st.integers(0, 6),
    start=st.none() | st.integers(-8, 8),
    stop=st.none() | st.integers(-8, 8),
    step=st.integers(1, 3),
)
@settings(max_examples=25)
def test_any_slice_is_that_of_the_dense_rows(num_rows, start, stop, step):
    lazy, dense = tables(num_rows)
    found = lazy[start:stop:step]
    assert isinstance(found, Multiples)
    assert_same(found, dense[start:stop:step])
    assert_same(lazy[:, start:stop:step], dense[:, start:stop:step])


@pytest.mark.parametrize(
    "question",
    [
        lambda x: x.select(0, 7),
        lambda x: x.select(0, -8),
        lambda x: x[:0].select(0, 0),
        lambda x: x.select(2, 0),
        lambda x: torch.cat([x, x], dim=2),
        lambda x: x[torch.tensor([7])],
    ],
)
def test_rows_that_are_not_there_are_an_index_error(question):
    """Row 7 of seven was row 0."""
    for table in tables():
        with pytest.raises(IndexError, match="out of"):
            question(table)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.zero_(),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: torch.add(x, 1, out=x),
    ],
)
def test_a_change_in_place_is_refused(change):
    lazy, _ = tables()
    with pytest.raises(InputDataError, match=r"a dense copy by `arms.dense\(\)`"):
        change(lazy)
    assert Multiples.num_made == 0


@pytest.mark.parametrize("num_rows", [0, 1, 7])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_blocks_are_all_rows_a_few_at_a_time(monkeypatch, size, num_rows):
    monkeypatch.setattr(lazy_rows, "BLOCK_BYTES", size * 3 * 8 + 5)
    lazy, dense = tables(num_rows)
    blocks = list(row_blocks(lazy))
    assert [rows.start for rows, _ in blocks] == list(range(0, num_rows, size))
    for rows, block in blocks:
        assert type(block) is Tensor
        assert torch.equal(block, dense[rows])
        assert len(block) <= size
    assert [block for _, block in row_blocks(dense)] == [dense]
