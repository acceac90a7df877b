"""Repeated rows: which rows are equal, and sums over the repeats."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from botorch_bkb.models.utils.lazy_rows import row_blocks


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
    inputs = torch.unique(inputs, dim=0)
    if points.shape[0] < inputs.shape[0]:
        return False
    points = torch.unique(points, dim=0)
    both = torch.unique(torch.cat([points, inputs]), dim=0)
    return both.shape[0] == points.shape[0]


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
