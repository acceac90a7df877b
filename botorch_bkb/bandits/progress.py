"""When to stop: the expected benefit of another batch."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


# Draws of the best arm: a standard error of a probability of 0.01 at most.
NUM_DRAWS = 2048
LEVEL = 0.95
# The intercept and slope of Platt scaling: of the logarithms of odds.
PLATT = (0.1, 0.3)


class Progress(NamedTuple):
    """The expected benefit of another batch, by the model.

    Attributes:
        expected_rise: How much a batch is expected to improve the best posterior mean
            of all arms, given pending pulls; in the unit of the rewards, 0 or more.
        probability_unmeasured: The probability that some arm without observations has
            a higher true mean than every arm with observations, by joint draws given
            the observations, ``GPBandit.maximizer_distribution``. Fitted models are too
            sure of their tails, so this share of the draws is calibrated by Platt
            scaling [platt1999]_ on the pools of ``python -m benchmarks progress``.
        best_arms: The fewest arms that are the best one in 95 % of these draws, most
            likely first. In the benchmark, they hold the best arm less often.
    """

    expected_rise: float
    probability_unmeasured: float
    best_arms: Tensor


def calibrated(share: float) -> float:
    """Return the probability of an event that occurs in a share of the draws."""
    share = min(max(share, 0.5 / NUM_DRAWS), 1 - 0.5 / NUM_DRAWS)
    intercept, slope = PLATT
    odds = math.exp(intercept) * (share / (1 - share)) ** slope
    return odds / (1 + odds)
