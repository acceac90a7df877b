"""Bandits that draw their arms one by one instead of maximizing a bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule, PracticalBKBWidth
from botorch_bkb.bandits.inducing import SparseBandit
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.optim.batch_rules import BatchRule


class RandomizedBandit(SparseBandit):
    """A bandit on the posterior of BKB whose picks do not depend on each other.

    Any batch rule closes its batches, by the variances at their start. The confidence
    schedule only serves ``confidence_bound``.
    """

    @abstractmethod
    def _picks(self, left: Tensor | None, pending: Sequence[Pull]) -> Iterator[int]:
        """Yield arms to pull, without end.

        Args:
            left: The ``A`` numbers of pulls that arms still allow, of which at least
                one is positive; kept up to date between picks. None for no limit.
            pending: Pulls without reward.
        """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBKBWidth()

    @override
    def _choose(
        self,
        rule: BatchRule,
        capacity: Tensor | None,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        scores = self._posterior.mean.new_tensor([pull.score for pull in pending])
        batch = rule.open(self._posterior, scores, projected=True)
        left = None if capacity is None else capacity.clone()
        picks = self._picks(left, pending)
        chosen: list[int] = []
        while not chosen or not batch.is_closed:
            if left is not None and not (left > 0).any():
                break
            index = first if first is not None and not chosen else next(picks)
            batch.take(index, 1)
            chosen.append(index)
            if left is not None:
                left[index] -= 1
            if first is not None and rule.opens_with_one_pull:
                break
        return self._indices(chosen)
