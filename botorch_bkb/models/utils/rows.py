"""Rows of tables: tables without a dense copy, equal rows, sums over repeats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.utils._pytree import tree_map
from typing_extensions import override


aten = torch.ops.aten
# The dense rows of a block, where something is asked of all of them.
BLOCK_BYTES = 2**24
# The numbers of a table's two dimensions.
ROWS, COLUMNS = (0, -2), (1, -1)


class LazyRows(Tensor):
    """An ``A x d`` tensor whose rows are computed when they are taken.

    To PyTorch it is a tensor of that shape and of a floating dtype. Taking rows of it
    and joining rows to it leave it as it is; other operations use its dense copy. It
    does not change.
    """

    # Results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the rows as an ``A x d`` tensor of floats."""

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A plain tensor of the dtype and device."""

    @abstractmethod
    def _rows(self, rows: Tensor | slice) -> Tensor:
        """Return some of the rows: a vector of numbers, a mask or a slice."""

    @abstractmethod
    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Return rows below these, which are the first of the parts."""

    def _done(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of an operation; None if it needs the dense rows."""
        if func in (aten.detach.default, aten.alias.default, aten.clone.default):
            return self._rows(slice(None))
        if func in (
            aten.new_empty.default,
            aten.new_zeros.default,
            aten.new_full.default,
        ):
            return func(self._like, *args[1:], **kwargs)
        if func is aten.cat.default:
            return self._joined(args[0]) if (*args[1:], 0)[0] in ROWS else None
        if func is aten.select.int and args[1] in ROWS:
            if not -len(self) <= args[2] < len(self):
                return None  # which is an error
            row = args[2] % len(self)
            return as_dense(self._rows(slice(row, row + 1)))[0]
        if func is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dim() == 1:
            return self._rows(args[1][0])
        if func is aten.index_select.default and args[1] in ROWS:
            return self._rows(args[2])
        if func is aten.slice.Tensor:
            dim, *limits = args[1:] or (0,)
            return self._rows(slice(*limits or (None,))) if dim in ROWS else None
        return None

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do what needs no dense rows, and all else on them."""
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise _change_in_place(func)
        first = args[0][0] if func is aten.cat.default else args[0]
        if isinstance(first, LazyRows):
            done = first._done(func, *args, **kwargs)
            if done is not None:
                return done
        return func(*tree_map(as_dense, args), **tree_map(as_dense, kwargs))

    @override
    def __setitem__(self, index: Any, value: Any) -> None:
        """Refuse, where a row that was taken would be changed in place of this one."""
        raise _change_in_place("__setitem__")

    @override
    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _change_in_place(func: Any) -> InputDataError:
    return InputDataError(
        "Expected these arms to stay as they are, but got a change in place "
        f"({func}). Take a dense copy by `arms.dense()`."
    )


def as_dense(value: Any) -> Any:
    """Return such rows as a plain tensor, and anything else as it is."""
    return value.dense() if isinstance(value, LazyRows) else value


def row_blocks(table: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of all rows and these rows, dense: all at once of a tensor."""
    if not isinstance(table, LazyRows):
        yield slice(0, len(table)), table
        return
    size = max(BLOCK_BYTES // (table.element_size() * max(table.shape[-1], 1)), 1)
    for start in range(0, len(table), size):
        rows = slice(start, min(start + size, len(table)))
        yield rows, as_dense(table[rows])


# Rows whose hashes are computed at once.
HASHED_ROWS = 2**16


class Replicates(NamedTuple):
    """The unique rows of an ``n x d`` tensor, ``P`` of them.

    Attributes:
        inverse: An ``n``-dim long tensor; row ``i`` repeats unique row ``inverse[i]``.
        first: A ``P``-dim long tensor, the number of one row per unique row.
    """

    inverse: Tensor
    first: Tensor


@torch.no_grad()
def find_replicates(X: Tensor) -> Replicates:
    """Find the repeated rows of an ``n x d`` tensor."""
    unique, inverse = torch.unique(X, dim=0, return_inverse=True)
    rows = torch.arange(X.shape[0], device=X.device)
    first = rows.new_zeros(unique.shape[0])
    first.scatter_reduce_(0, inverse, rows, reduce="amin", include_self=False)
    return Replicates(inverse=inverse, first=first)


def sum_replicates(values: Tensor, inverse: Tensor, num_unique: int) -> Tensor:
    """Add an ``n``-dim tensor over the repeats of each of ``num_unique`` inputs."""
    return values.new_zeros(num_unique).index_add(0, inverse, values)


def covers(points: Tensor, inputs: Tensor) -> bool:
    """Whether every row of ``inputs`` is among the rows of ``points``."""
    both = torch.cat([points, inputs])
    return len(both.unique(dim=0)) == len(points.unique(dim=0))


class Duplicates(NamedTuple):
    """The rows of an ``A x d`` table that are equal to another one, ``k`` of them.

    Attributes:
        rows: A ``k``-dim long tensor of row numbers, ascending.
        first: A ``k``-dim long tensor: the lowest number of an equal row.
    """

    rows: Tensor
    first: Tensor


@torch.no_grad()
def find_duplicates(table: Tensor) -> Duplicates:
    """Find the rows of floats or 64-bit integers that are equal to another row.

    Holds one 64-bit hash a row, and compares the rows whose hashes come again in a
    second pass.
    """
    # NumPy's sort takes no memory beside them.
    ordered = row_hashes(table).cpu().numpy()
    ordered.sort()
    again = torch.from_numpy(ordered[1:][ordered[1:] == ordered[:-1]]).unique()
    del ordered
    suspects = rows_of_hashes(table, again.to(table.device))
    _, inverse = table[suspects].unique(dim=0, return_inverse=True)
    first = torch.full_like(suspects, table.shape[0])
    first = first.scatter_reduce(0, inverse, suspects, reduce="amin")[inverse]
    has_duplicate = inverse.bincount()[inverse] > 1
    return Duplicates(suspects[has_duplicate], first[has_duplicate])


def row_hashes(table: Tensor) -> Tensor:
    """Return a 64-bit number for each row, the same for equal rows, in one pass."""
    hashes = table.new_zeros(len(table), dtype=torch.int64)
    for rows, block in row_blocks(table):
        hashes[rows] = _hashes(block)
    return hashes


def rows_of_hashes(table: Tensor, hashes: Tensor) -> Tensor:
    """Return the rows of a table that have one of some hashes, in one pass."""
    found = [torch.empty(0, dtype=torch.long, device=hashes.device)]
    if len(hashes):
        for rows, block in row_blocks(table):
            is_sought = torch.isin(_hashes(block), hashes)
            found.append(rows.start + is_sought.nonzero().squeeze(-1))
    return torch.cat(found)


def _hashes(block: Tensor) -> Tensor:
    hashes = []
    for part in block.split(HASHED_ROWS):
        mixed = part.new_zeros(len(part), dtype=torch.int64)
        for column in part.unbind(-1):
            if column.dtype != torch.int64:
                column = (column.double() + 0.0).view(torch.int64)  # -0.0 equals 0.0
            mixed = (mixed ^ column) * -7046029254386353131  # wraps around: exact
            mixed ^= mixed >> 29
        hashes.append(mixed)
    return torch.cat(hashes)


def first_equal(duplicates: Duplicates, indices: Tensor) -> Tensor:
    """Return the lowest row that is equal to each row."""
    if not len(duplicates.rows):
        return indices
    place = positions_in(duplicates.rows, indices, is_ascending=True)
    return torch.where(place < 0, indices, duplicates.first[place])


def later_duplicates(duplicates: Duplicates, is_allowed: Tensor) -> Tensor:
    """Return the rows that are allowed beside an allowed equal one of lower number.

    Args:
        duplicates: The ``k`` duplicates of a table.
        is_allowed: Which of these are, a ``k``-dim boolean tensor.
    """
    rows, first = duplicates.rows[is_allowed], duplicates.first[is_allowed]
    groups, place = first.unique(return_inverse=True)
    lowest = groups.scatter_reduce(0, place, rows, "amin", include_self=False)[place]
    return rows[rows != lowest]


def positions_in(arms: Tensor, sought: Tensor, is_ascending: bool = False) -> Tensor:
    """Return the places of arms in a list of distinct arms, -1 for missing ones.

    Args:
        arms: The list.
        sought: Arms, in any order.
        is_ascending: Whether the list is in order.
    """
    if not len(arms):
        return torch.full_like(sought, -1)
    ordered, order = (arms, None) if is_ascending else arms.sort()
    near = torch.searchsorted(ordered, sought.contiguous()).clamp_max_(len(arms) - 1)
    place = near if order is None else order[near]
    return torch.where(ordered[near] == sought, place, -1)
