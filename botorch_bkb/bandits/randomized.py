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
from botorch_bkb.optim.batch_ucb import fill_batch
from botorch_bkb.posteriors.upper_bounds import Choices


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
        scores = self.arms.new_tensor([pull.score for pull in pending])
        batch = rule.open(self._posterior, scores, projected=True)
        left = None if capacity is None else capacity.clone()
        choices = _Picks(self._picks(left, pending), left)
        return fill_batch(choices, batch, rule, first, self._posterior.pulled_indices)


class _Picks(Choices):
    def __init__(self, picks: Iterator[int], left: Tensor | None) -> None:
        self.picks = picks
        self.left = left

    @override
    def best(self) -> int | None:
        if self.left is not None and not (self.left > 0).any():
            return None
        return next(self.picks)

    @override
    def pull(self, index: int, num_pulls: int) -> None:
        if self.left is not None:
            self.left[index] -= num_pulls
