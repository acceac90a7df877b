"""Bandits that draw their arms one by one instead of maximizing a bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor
from typing_extensions import override

from botorch_bkb.acquisition.confidence import ConfidenceSchedule, PracticalBKBWidth
from botorch_bkb.arms import Capacity
from botorch_bkb.bandits.inducing import SparseBandit
from botorch_bkb.bandits.ledger import Pull
from botorch_bkb.optim.batch_rules import BatchRule
from botorch_bkb.optim.batch_ucb import fill_batch
from botorch_bkb.posteriors.upper_bounds import Choices


class RandomizedBandit(SparseBandit):
    """A bandit on the posterior of BKB whose picks do not depend on each other.

    Any batch rule closes its batches, by the variances at their start. The confidence
    schedule only serves ``confidence_bound``.
    """

    @abstractmethod
    def _picks(self, left: Capacity, pending: Sequence[Pull]) -> Iterator[int]:
        """Yield arms to pull, without end.

        Args:
            left: How many pulls arms still allow, one at least; kept up to date
                between picks.
            pending: Pulls without reward.
        """

    @override
    def default_confidence(self) -> ConfidenceSchedule:
        return PracticalBKBWidth()

    @override
    def _choose(
        self,
        rule: BatchRule,
        capacity: Capacity,
        first: int | None,
        pending: Sequence[Pull],
    ) -> Tensor:
        scores = self.arms.new_tensor([pull.score for pull in pending])
        batch = rule.open(self._posterior, scores, projected=True)
        left = capacity.copy()
        choices = _Picks(self._picks(left, pending), left)
        return fill_batch(choices, batch, rule, first, self._posterior.pulled_indices)


class _Picks(Choices):
    def __init__(self, picks: Iterator[int], left: Capacity) -> None:
        self.picks = picks
        self.left = left

    @override
    def best(self) -> int | None:
        return None if self.left.is_used_up else next(self.picks)

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        self.left.take(index, num_pulls)
