"""Batch rules, and the greedy loop that fills a batch.

Inside a batch the mean is frozen and variances fall with every pull already chosen. The
rules bound ``var_start(x) / var_now(x)``, by which the width has to grow to stay valid,
from the variances at the start of the batch alone. The pull that crosses the threshold
is the last one of its batch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import PullLimits
from botorch_bkb.checks import check_size
from botorch_bkb.posteriors import Posterior
from botorch_bkb.posteriors.upper_bounds import Choices, first_crossing, UpperBounds


# The most pulls of a batch, unless a caller or the rule says otherwise.
MAX_BATCH_SIZE = 10_000


class OpenBatch:
    """The progress of one batch under its rule; this one only its size closes.

    Attributes:
        is_closed: Whether the last pull taken crossed the rule.
    """

    is_closed = False

    def take(self, index: int, wanted: int) -> int:
        """Take pulls of one arm in a row, up to the one that closes the batch.

        Args:
            index: The arm.
            wanted: How many pulls are wanted, at least one.

        Returns:
            How many were taken, at least one.
        """
        return wanted


class BatchRule(ABC):
    """A rule that closes batches.

    Attributes:
        ratio_threshold: C-tilde, the bound on ``var_start / var_now`` that the rule
            guarantees, for widths that need it; 1 where there is none.
        keeps_inducing_points: Whether pulls of a batch reduce the projected variance
            only, as the proofs of [calandriello2020bbkb]_ need. Otherwise they
            condition the whole posterior.
        opens_with_one_pull: Whether the very first batch, before any reward, is the
            uniformly drawn arm alone, as in the papers.
        size: The number of pulls of every batch; None if it depends on the posterior.
    """

    ratio_threshold: float = 1.0
    keeps_inducing_points: bool = True
    opens_with_one_pull: bool = True
    size: int | None = None

    @abstractmethod
    def open(self, posterior: Posterior, pending_scores: Tensor) -> OpenBatch:
        """Start a batch.

        Args:
            posterior: The posterior at the start of the batch.
            pending_scores: The leverage scores of the pulls still pending, each frozen
                at the start of its own batch.
        """


def check_batch_rule(batch_rule: BatchRule | None) -> None:
    """Raise unless this is a batch rule, or None."""
    if batch_rule is not None and not isinstance(batch_rule, BatchRule):
        raise InputDataError(
            "Expected `batch_rule` to be a rule of `botorch_bkb.optim`, such as "
            f"`FixedSize(96)`, but got {batch_rule!r}."
        )


@dataclass(frozen=True)
class FixedSize(BatchRule):
    """Batches of a fixed size, such as the wells of a plate.

    Nothing bounds the variance ratio, so no regret guarantee covers sizes above one.
    Chosen arms condition the whole posterior.
    """

    size: int = 1
    keeps_inducing_points = False
    opens_with_one_pull = False

    def __post_init__(self) -> None:
        check_size("size", self.size)

    @override
    def open(self, posterior: Posterior, pending_scores: Tensor) -> OpenBatch:
        return OpenBatch()


@dataclass(frozen=True)
class _ThresholdRule(BatchRule):
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.ratio_threshold < math.inf:
            raise InputDataError(
                "Expected `ratio_threshold` to be a finite number of at least 1, but "
                f"got {self.ratio_threshold}. The authors' code uses 2."
            )


@dataclass(frozen=True)
class SumRule(_ThresholdRule):
    r"""BBKB's rule: close when ``1 + sum_s var_start(x_s) / lambda`` exceeds C-tilde.

    Line 5 of algorithm 1 in [calandriello2020bbkb]_, with the squared deviation: the
    algorithm box prints sigma, the proofs (Lemmas 4, 7 and 8) use sigma squared.

    Args:
        ratio_threshold: C-tilde.
    """

    @override
    def open(self, posterior: Posterior, pending_scores: Tensor) -> OpenBatch:
        total = 1.0 + pending_scores.sum().item()
        return _Sum(total, self.ratio_threshold, posterior.leverage_score)


@dataclass(frozen=True)
class ProductRule(_ThresholdRule):
    r"""GP-BUCB's rule: close when ``prod_s (1 + var_start(x_s) / lambda)`` exceeds C.

    Never a longer batch than the sum rule's, by Weierstrass' inequality; section 3 of
    the BBKB paper, [desautels2014gpbucb]_.
    """

    @override
    def open(self, posterior: Posterior, pending_scores: Tensor) -> OpenBatch:
        # The product crosses where the sum of logarithms does.
        total = pending_scores.log1p().sum().item()
        threshold = math.log(self.ratio_threshold)
        return _Sum(
            total, threshold, lambda index: math.log1p(posterior.leverage_score(index))
        )


class _Sum(OpenBatch):
    """Adds the scores of pulls to a total, up to a threshold."""

    def __init__(
        self, total: float, threshold: float, score: Callable[[int], float]
    ) -> None:
        self.total = total
        self.threshold = threshold
        self.score = cache(score)  # frozen at the start of the batch
        self.is_closed = total > threshold

    @override
    def take(self, index: int, wanted: int) -> int:
        score = self.score(index)
        taken = first_crossing(
            lambda n: self.total + n * score > self.threshold, wanted
        )
        self.total += taken * score
        self.is_closed = self.total > self.threshold
        return taken


def fill_batch(
    choices: Choices, batch: OpenBatch, size: int, first: int | None
) -> list[int]:
    """Choose arms one by one until the batch closes.

    Args:
        choices: What to choose next.
        batch: When it closes.
        size: The most pulls.
        first: The first arm, if it is chosen already.

    Returns:
        Arm indices in order of choice, at least one.

    Raises:
        InputDataError: If no arm allows a pull.
    """
    chosen: list[int] = []
    index = choices.best() if first is None else first
    while index is not None:
        left = size - len(chosen)
        # What ends the batch needs no update that only the next choice would see.
        is_single = left == 1 or (first is not None and not chosen)
        wanted = 1 if is_single else min(left, choices.num_repeats(index))
        taken = batch.take(index, wanted)
        chosen.extend([index] * taken)
        if taken == left or batch.is_closed:
            break
        choices.pull(index, taken)
        index = choices.best()
    if not chosen:
        raise InputDataError(
            "Expected at least one arm that may still be pulled, but `available` and "
            "`max_repeats` leave none. Allow more repeats or stop here."
        )
    return chosen


def optimize_batch_ucb(
    posterior: Posterior,
    confidence_width: float,
    batch_rule: BatchRule,
    *,
    projected: bool,
    pending_indices: Tensor,
    pending_scores: Tensor,
    limits: PullLimits | None = None,
    max_size: int = MAX_BATCH_SIZE,
) -> Tensor:
    r"""Choose a batch of arms greedily by upper confidence bounds.

    Each pick is the arm of the largest ``mean_start(x) + w sqrt(var_now(x) / lambda)``,
    the lowest index among ties: line 4 of algorithm 1 in the BBKB paper. The result is
    that of a loop that recomputes everything at every pull.

    Args:
        posterior: The posterior given all rewards.
        confidence_width: w, in the papers' scaling.
        batch_rule: When to close the batch.
        projected: Whether chosen arms reduce the projected variance only, as with the
            fixed inducing points of the BBKB paper. Otherwise, and with pending pulls,
            they condition the joint posterior, residual included.
        pending_indices: A long tensor of the pulls still without reward, repeats
            included. They reduce the variance.
        pending_scores: Their leverage scores, each frozen at the start of its batch.
        limits: How many pulls each arm still allows; None for no limit.
        max_size: The most pulls, if the rule has no size.

    Returns:
        A long tensor of arm indices in order of choice, at least one; repeated arms
        repeat.

    Raises:
        InputDataError: If no arm allows a pull.

    Memory and time: ``O(A)``, plus ``O(pool^2)`` a pick.
    """
    scale = confidence_width / math.sqrt(posterior.noise_variance)
    if limits is None:
        limits = PullLimits.unlimited(posterior.like, posterior.num_arms)
    given = posterior.given(Counter(pending_indices.tolist()))
    projected &= given is posterior
    bounds = UpperBounds(given, scale, projected, limits.copy())
    batch = batch_rule.open(posterior, pending_scores)
    size = max_size if batch_rule.size is None else batch_rule.size
    return posterior.pulled_indices.new_tensor(fill_batch(bounds, batch, size, None))
