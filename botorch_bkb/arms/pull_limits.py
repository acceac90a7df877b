"""How many more pulls each arm allows."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_bkb.models.utils.draws import draw_integers


UNLIMITED = 2**31 - 1


class PullCounts(NamedTuple):
    """A number of pulls of each of some arms; an arm may come twice.

    Attributes:
        arms: A long tensor of arms.
        counts: Their numbers of pulls.
    """

    arms: Tensor
    counts: Tensor


class PullLimits:
    """How many more pulls each of ``A`` arms allows, in four bytes an arm.

    Args:
        left: An ``A``-dim int32 tensor, never negative; ``UNLIMITED`` if there is no
            limit.
        offered: An ``A``-dim boolean tensor of the arms on offer, whether they allow a
            pull or not; None for all. The others allow no pull.

    Attributes:
        num_open: The number of arms that allow a pull.
    """

    def __init__(self, left: Tensor, offered: Tensor | None = None) -> None:
        self.left = left if offered is None else left * offered
        self.offered = offered
        self.num_open = int(torch.count_nonzero(self.left))

    @classmethod
    def unlimited(cls, like: Tensor, num_arms: int) -> PullLimits:
        """Return no limits for arms on the device of a tensor."""
        one = like.new_tensor(UNLIMITED, dtype=torch.int32)
        return cls(one.expand(num_arms))  # no memory: a pull changes no such number

    @property
    def allowed(self) -> Tensor | None:
        """An ``A``-dim boolean tensor of the arms that allow a pull; None for all."""
        return None if self.num_open == len(self.left) else self.left > 0

    @property
    def is_used_up(self) -> bool:
        """Whether no arm may be pulled any more."""
        return self.num_open == 0

    @property
    def least(self) -> int:
        """The least number of pulls of an arm that allows one."""
        return int(self.left[self.left > 0].min())

    def of(self, index: int) -> int:
        """Return how many pulls an arm allows."""
        return int(self.left[index])

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of some arms allows a pull."""
        return self.left[indices] > 0

    def total(self, enough: int) -> int:
        """Return how many pulls arms allow, counting no more than are enough of one."""
        return int(self.left.clamp(max=enough).sum())

    def draw(self, generator: torch.Generator) -> int:
        """Draw one of the arms that allow a pull, uniformly."""
        return self.numbered(int(draw_integers(self.num_open, 1, generator)))

    def numbered(self, number: int) -> int:
        """Return the arm of a number among those that allow a pull."""
        allowed = self.allowed
        if allowed is None:
            return number
        return int(torch.searchsorted(allowed.cumsum(0, dtype=torch.int32), number + 1))

    def copy(self) -> PullLimits:
        """Return one that others may take pulls from."""
        other = copy(self)
        if self.left.stride(0):
            other.left = self.left.clone()
        return other

    def take(self, index: int, num_pulls: int) -> None:
        """Take pulls of an arm."""
        left = self.of(index)
        if left == UNLIMITED:
            return
        self.left[index] = left - num_pulls
        self.num_open -= left == num_pulls

    def closed(self, indices: Tensor) -> PullLimits:
        """Return limits where some arms allow no pull."""
        return PullLimits(self.left.index_fill(0, indices, 0), self.offered)

    def without(self, indices: Tensor) -> PullLimits:
        """Return what is left after a pull of each arm, repeats included."""
        taken = (self.left[indices] < UNLIMITED).to(self.left)
        return PullLimits(self.left.index_add(0, indices, -taken), self.offered)
