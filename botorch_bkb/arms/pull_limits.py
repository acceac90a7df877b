"""How many more pulls each arm allows."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.models.utils.draws import draw_integers


# Arms of a mask whose numbers are in memory at once.
BLOCK_SIZE = 2**16


class PullCounts(NamedTuple):
    """A number of pulls of each of some arms.

    Attributes:
        arms: A long tensor of arms.
        counts: Their numbers of pulls.
    """

    arms: Tensor
    counts: Tensor

    def merged(self) -> PullCounts:
        """Return the sums of distinct arms, ascending."""
        arms, place = self.arms.unique(return_inverse=True)
        counts = self.counts.new_zeros(len(arms)).index_add_(0, place, self.counts)
        return PullCounts(arms, counts)


class PullLimits:
    """How many more pulls each of ``A`` arms allows.

    Most arms allow the same number, and the others are listed: memory is that of the
    arms that were pulled, and a bit for each arm where some are not offered.

    Args:
        num_arms: A.
        usual: How many pulls an arm allows that is not listed.
        offered: An ``A``-dim boolean tensor: arms that are not offered allow no pull.
            None where all are.
        listed: Distinct arms, ascending, and what these allow instead.
        device: The device of the arms. Masks and lists of arms must be there.

    Attributes:
        num_usual: How many arms are offered and not listed.
    """

    def __init__(
        self,
        num_arms: int,
        usual: int = UNLIMITED,
        offered: Tensor | None = None,
        listed: PullCounts | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_arms = num_arms
        self.device = device
        self.usual = usual
        self.offered = offered
        if listed is None:
            none = torch.empty(0, dtype=torch.long, device=device)
            listed = PullCounts(none, none)
        arms, counts = listed
        self.num_usual = num_arms - len(arms)
        if offered is not None:
            counts = counts * offered[arms]
            self.num_usual = int(offered.sum()) - int(offered[arms].sum())
        self.listed = PullCounts(arms, counts)

    @classmethod
    def of_pulls(cls, pulls: Tensor) -> Self:
        """Return what an ``A``-dim long tensor says of every arm."""
        usual = int(pulls.max())
        arms = (pulls != usual).nonzero().squeeze(-1)
        listed = PullCounts(arms, pulls[arms])
        return cls(len(pulls), usual, None, listed, pulls.device)

    @property
    def num_open(self) -> int:
        """The number of arms that may be pulled."""
        num_listed = int((self.listed.counts > 0).sum())
        return num_listed + (self.num_usual if self.usual > 0 else 0)

    @property
    def allowed(self) -> Tensor | None:
        """An ``A``-dim boolean tensor of the arms that may be pulled; None for all."""
        if self.num_open == self.num_arms:
            return None
        arms, counts = self.listed
        if self.offered is None or self.usual <= 0:
            allowed = torch.full(
                (self.num_arms,), self.usual > 0, dtype=torch.bool, device=self.device
            )
        else:
            allowed = self.offered.clone()
        allowed[arms] = counts > 0
        return allowed

    @property
    def is_used_up(self) -> bool:
        """Whether no arm may be pulled any more."""
        return self.num_open == 0

    @property
    def least(self) -> int:
        """The least number of pulls of an arm that may be pulled."""
        counts = self.listed.counts[self.listed.counts > 0]
        least = self.usual if self.num_usual and self.usual > 0 else UNLIMITED
        return min(least, int(counts.min())) if len(counts) else least

    def of(self, index: int) -> int:
        """Return how many pulls an arm allows."""
        arms = self.listed.arms
        if self.offered is None and not len(arms):
            return self.usual
        return int(self.of_arms(torch.tensor([index], device=self.device)))

    def of_arms(self, indices: Tensor) -> Tensor:
        """Return how many pulls each of a few arms allows."""
        arms, counts = self.listed
        found = torch.full_like(indices, self.usual)
        if self.offered is not None:
            found *= self.offered[indices]
        if len(arms):
            place = torch.searchsorted(arms, indices).clamp_max_(len(arms) - 1)
            found = torch.where(arms[place] == indices, counts[place], found)
        return found

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of a few arms may be pulled."""
        return self.of_arms(indices) > 0

    def total(self, enough: int) -> int:
        """Return how many pulls arms allow, counting no more than are enough of one."""
        listed = int(self.listed.counts.clamp(max=enough).sum())
        return listed + self.num_usual * max(min(self.usual, enough), 0)

    def draw(self, generator: torch.Generator) -> int:
        """Draw one of the arms that may be pulled, uniformly."""
        return self.numbered(int(draw_integers(self.num_open, 1, generator)))

    def numbered(self, number: int) -> int:
        """Return the arm of a number among those that may be pulled."""
        allowed = self.allowed
        if allowed is None:
            return number
        # Not the numbers of all arms at once.
        for start in range(0, self.num_arms, BLOCK_SIZE):
            block = allowed[start : start + BLOCK_SIZE]
            num_open = int(block.sum())
            if number < num_open:
                break
            number -= num_open
        return start + int(block.nonzero()[number])

    def copy(self) -> Self:
        """Return one that others may take pulls from."""
        arms, counts = self.listed
        return self._with(PullCounts(arms, counts.clone()))

    def take(self, index: int, num_pulls: int) -> None:
        """Take pulls of an arm."""
        left = self.of(index)
        if left == UNLIMITED:
            return
        arms, counts = self.listed
        place = int((arms < index).sum())
        if place < len(arms) and arms[place] == index:
            counts[place] = left - num_pulls
            return
        self.num_usual -= 1
        self.listed = PullCounts(
            torch.cat([arms[:place], arms.new_tensor([index]), arms[place:]]),
            torch.cat(
                [counts[:place], counts.new_tensor([left - num_pulls]), counts[place:]]
            ),
        )

    def with_listed(self, arms: Tensor, counts: Tensor) -> Self:
        """Return one that lists some arms, distinct and in any order, with others."""
        kept = ~torch.isin(self.listed.arms, arms)
        arms = torch.cat([self.listed.arms[kept], arms])
        counts = torch.cat([self.listed.counts[kept], counts])
        arms, order = arms.sort()
        return self._with(PullCounts(arms, counts[order]))

    def _with(self, listed: PullCounts) -> Self:
        return type(self)(self.num_arms, self.usual, self.offered, listed, self.device)

    def without(self, indices: Tensor) -> Self:
        """Return what is left after a pull of each arm, repeats included."""
        arms, counts = indices.unique(return_counts=True)
        left = self.of_arms(arms)
        is_limited = left < UNLIMITED
        return self.with_listed(arms[is_limited], (left - counts)[is_limited])
