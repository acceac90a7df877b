"""Prior covariances that are not evaluated twice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class KernelRows:
    """Prior covariances of all arms of a shard with arms that were ever inducing.

    Inducing arms come and go; the rows of those that stay or return are not evaluated
    twice. Which arms' rows stand where is known to the
    :class:`~botorch_bkb.posteriors.ArmPosterior`.

    Args:
        num_arms: How many arms the shard has.
        limit: The most rows; half as much room again is used while they move to more.
        like: A tensor of the dtype and device to use.
    """

    def __init__(self, num_arms: int, limit: int, like: Tensor) -> None:
        self.limit = limit
        self.size = 0
        self.rows = like.new_empty(0, num_arms)

    def add(self, num_rows: int, tiles: Iterable[tuple[slice, Tensor]]) -> None:
        """Keep the rows of more arms, which come in tiles of columns.

        Nothing has changed if a tile raises an error.
        """
        needed = self.size + num_rows
        if needed > len(self.rows):
            before, capacity = self.rows, min(max(64, 2 * needed), self.limit)
            self.rows = before.new_empty(capacity, before.shape[1])
            self.rows[: self.size] = before[: self.size]
        for columns, tile in tiles:
            self.rows[self.size : needed, columns] = tile
        self.size = needed

    def select(self, slots: Tensor, arms: Tensor | slice) -> Tensor:
        """Return the covariances in some rows with some arms of the shard."""
        if isinstance(arms, slice):
            return self.rows[:, arms].index_select(0, slots)
        return self.rows[slots.unsqueeze(-1), arms]


def positions_in(arms: Tensor, sought: Tensor) -> Tensor:
    """Return where arms stand in a list of distinct ones, -1 for those that do not."""
    ordered, order = arms.sort()
    place = positions_in_ascending(ordered, sought)
    return torch.where(place < 0, place, order[place]) if len(arms) else place


def positions_in_ascending(arms: Tensor, sought: Tensor) -> Tensor:
    """Return where arms stand in an ascending list, -1 for those that do not."""
    if not arms.numel():
        return torch.full_like(sought, -1)
    near = torch.searchsorted(arms, sought.contiguous())
    near.clamp_max_(len(arms) - 1)
    return torch.where(arms[near] == sought, near, -1)
