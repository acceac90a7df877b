"""Repeated rows: which rows are equal, and sums over the repeats."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from botorch_bkb.models.utils.lazy_rows import row_blocks


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


class Twins(NamedTuple):
    """The rows of an ``A x d`` table that are equal to another one, ``k`` of them.

    Attributes:
        rows: A ``k``-dim long tensor of row numbers, ascending.
        first: A ``k``-dim long tensor: the lowest number of an equal row.
    """

    rows: Tensor
    first: Tensor


@torch.no_grad()
def find_twins(table: Tensor) -> Twins:
    """Find the rows that are equal, in every number, to another row of a large table.

    Of floats, or of 64-bit integers.

    Sorts one 64-bit hash per row, and compares the rows whose hashes are equal.
    """
    ordered, order = row_hashes(table).sort(stable=True)
    after = (ordered[1:] == ordered[:-1]).nonzero().squeeze(-1) + 1
    suspects = order[torch.cat([after - 1, after]).unique()].sort().values
    _, inverse = table[suspects].unique(dim=0, return_inverse=True)
    first = torch.full_like(suspects, table.shape[0])
    first = first.scatter_reduce(0, inverse, suspects, reduce="amin")[inverse]
    has_twin = inverse.bincount()[inverse] > 1
    return Twins(suspects[has_twin], first[has_twin])


def row_hashes(table: Tensor) -> Tensor:
    """Return a 64-bit number for each row, the same for equal rows, in one pass."""
    hashes = table.new_zeros(len(table), dtype=torch.int64)
    for rows, block in row_blocks(table):
        mixed = hashes[rows]
        for column in block.unbind(-1):
            if column.dtype != torch.int64:
                column = (column.double() + 0.0).view(torch.int64)  # -0.0 equals 0.0
            mixed = (mixed ^ column) * -7046029254386353131  # wraps around: exact
            mixed ^= mixed >> 29
        hashes[rows] = mixed
    return hashes


def first_of_twins(twins: Twins, allowed: Tensor) -> Tensor:
    """Return which rows are allowed and the first allowed one among their equals.

    Args:
        twins: The twins of a table, or of its first rows.
        allowed: A boolean tensor over the rows of the table.
    """
    rows, first = twins.rows[allowed[twins.rows]], twins.first[allowed[twins.rows]]
    lowest = torch.full_like(allowed, allowed.shape[0], dtype=torch.long)
    lowest = lowest.scatter_reduce(0, first, rows, reduce="amin")[first]
    allowed = allowed.clone()
    allowed[rows] = rows == lowest
    return allowed
