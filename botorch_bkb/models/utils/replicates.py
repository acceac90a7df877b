"""Repeated rows: which unique input each row is, and sums over the repeats."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
