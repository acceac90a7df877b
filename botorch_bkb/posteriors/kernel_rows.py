"""Prior covariances that are not evaluated twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class KernelRows:
    """Prior covariances of all arms with those that were ever inducing.

    Inducing arms come and go; the rows of those that stay or return are not evaluated
    twice. Past the byte budget nothing more is kept.

    Args:
        num_arms: A.
        max_bytes: The byte budget; half as much again is used while the rows move to
            more room.
        like: A tensor of the dtype and device to use.
    """

    def __init__(self, num_arms: int, max_bytes: int, like: Tensor) -> None:
        self.limit = max_bytes // max(num_arms * like.element_size(), 1)
        self.slots = torch.full((num_arms,), -1, dtype=torch.long, device=like.device)
        self.size = 0
        self.rows = like.new_empty(0, num_arms)

    def add(self, indices: Tensor, evaluate: Callable[[Tensor], Tensor]) -> None:
        """Evaluate and keep the rows of some arms, if the budget allows it."""
        missing = indices[self.slots[indices] < 0]
        needed = self.size + missing.shape[0]
        if needed > self.limit or needed == self.size:
            return
        if needed > self.rows.shape[0]:
            capacity = min(max(64, 2 * needed), self.limit)
            rows = self.rows.new_empty(capacity, self.rows.shape[1])
            rows[: self.size] = self.rows[: self.size]
            self.rows = rows
        self.rows[self.size : needed] = evaluate(missing)
        self.slots[missing] = torch.arange(self.size, needed, device=indices.device)
        self.size = needed

    def extended(
        self,
        max_bytes: int,
        more: tuple[Tensor, ...],
        evaluate: Callable[[Tensor, Tensor], Tensor],
    ) -> KernelRows:
        """Return rows for more arms as well, or none if they outgrow the budget.

        Args:
            max_bytes: The byte budget.
            more: Chunks of the arms' indices, which follow those that are there.
            evaluate: The prior covariances of two lists of arms.
        """
        before = self.slots.shape[0]
        after = before + sum(len(arms) for arms in more)
        other = KernelRows(after, max_bytes, self.rows)
        if self.size > other.limit:
            return other
        other.size = self.size
        other.slots[:before] = self.slots
        other.rows = self.rows.new_empty(min(len(self.rows), other.limit), after)
        other.rows[: self.size, :before] = self.rows[: self.size]
        held = self.slots.argsort()[before - self.size :]
        for arms in more:
            other.rows[: self.size, arms] = evaluate(held, arms)
        return other

    def select(self, indices: Tensor, arms: Tensor | slice) -> Tensor:
        """Return the covariances of inducing arms that are there with some arms."""
        if isinstance(arms, slice):
            return self.rows[:, arms].index_select(0, self.slots[indices])
        return self.rows[self.slots[indices].unsqueeze(-1), arms]
