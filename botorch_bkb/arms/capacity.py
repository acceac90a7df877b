"""How many more pulls each arm allows."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.models.utils.draws import draw_integers


class PullCounts(NamedTuple):
    """How often arms were pulled; an arm may come several times.

    Attributes:
        arms: A long tensor of arms.
        counts: Their numbers of pulls.
    """

    arms: Tensor
    counts: Tensor


class Capacity:
    """How many more pulls each of ``A`` arms allows.

    Args:
        num_arms: A.
        pulls: An ``A``-dim long tensor; None where no arm has a limit.
    """

    def __init__(self, num_arms: int, pulls: Tensor | None = None) -> None:
        self.num_arms = num_arms
        self.pulls = pulls

    @property
    def allowed(self) -> Tensor | None:
        """An ``A``-dim boolean tensor of the arms that may be pulled; None for all."""
        return None if self.pulls is None else self.pulls > 0

    @property
    def is_used_up(self) -> bool:
        """Whether no arm may be pulled any more."""
        return self.pulls is not None and not (self.pulls > 0).any()

    @property
    def least(self) -> int:
        """The least number of pulls of an arm that may be pulled."""
        return (
            UNLIMITED if self.pulls is None else int(self.pulls[self.pulls > 0].min())
        )

    def of(self, index: int) -> int:
        """Return how many pulls an arm allows."""
        return UNLIMITED if self.pulls is None else int(self.pulls[index])

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of a few arms may be pulled."""
        if self.pulls is None:
            return torch.ones_like(indices, dtype=torch.bool)
        return self.pulls[indices] > 0

    def total(self, enough: int) -> int:
        """Return how many pulls arms allow, counting no more than are enough of one."""
        return (
            UNLIMITED if self.pulls is None else int(self.pulls.clamp(max=enough).sum())
        )

    def draw(self, generator: torch.Generator) -> int:
        """Draw one of the arms that may be pulled, uniformly."""
        if self.pulls is None:
            return int(draw_integers(self.num_arms, 1, generator))
        allowed = (self.pulls > 0).nonzero().squeeze(-1)
        return int(allowed[int(draw_integers(len(allowed), 1, generator))])

    def copy(self) -> Self:
        """Return one that others may take pulls from."""
        pulls = None if self.pulls is None else self.pulls.clone()
        return type(self)(self.num_arms, pulls)

    def take(self, index: int, num_pulls: int) -> None:
        """Take pulls of an arm."""
        if self.pulls is not None:
            self.pulls[index] -= num_pulls

    def without(self, indices: Tensor) -> Self:
        """Return what is left after a pull of each arm, repeats included."""
        if self.pulls is None:
            return self
        taken = indices.bincount(minlength=self.num_arms)
        return type(self)(self.num_arms, self.pulls - taken)
