"""When to stop: the expected benefit of another batch."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


# Draws of the best arm: a standard error of a probability of 0.01 at most.
NUM_DRAWS = 2048
LEVEL = 0.95


class Platt(NamedTuple):
    """Platt scaling [platt1999]_: a line for the logarithm of the odds.

    Fitted models are too sure of their tails: of statements that hold in nine of ten
    draws, fewer come true. How many depends on the size of the campaign. The logarithm
    of the odds is the intercept, plus the slopes times the logarithms of the odds of
    the draws, of the number of measured arms, and of the number of arms.
    """

    intercept: float
    slope: float
    measured_slope: float = 0.0
    arms_slope: float = 0.0

    def __call__(self, share: float, num_measured: int = 1, num_arms: int = 1) -> float:
        """Return the probability of what is true in a share of the draws."""
        share = min(max(share, SHARES[0]), SHARES[1])
        measured = min(max(num_measured, MEASURED[0]), MEASURED[1])
        arms = min(max(num_arms, ARMS[0]), ARMS[1])
        odds = math.exp(self.intercept) * (share / (1 - share)) ** self.slope
        odds *= measured**self.measured_slope * arms**self.arms_slope
        return odds / (1 + odds)


# `python -m benchmarks progress` fits and checks these: that an arm without measurement
# is better than all others; that the best arm is the first of the draws, given its
# share; and that the best arm is among those of 95 % of the draws.
BETTER = Platt(4.4, 0.33, -2.14, 0.56)
BEST = Platt(-0.64, 0.63)
HELD = Platt(2.93, 0.0, arms_slope=-0.28)
# The sizes of its campaigns, and shares of its draws. Others are taken for the ends.
MEASURED, ARMS, SHARES = (10, 55), (50, 3000), (0.02, 0.98)

# Half of a 95 % interval: of Student's t distribution with four degrees of freedom, as
# errors have heavier tails than a normal distribution. The same command counts the true
# means inside.
DEVIATIONS_OF_95_PERCENT = 2.78


class Progress(NamedTuple):
    """The expected benefit of another batch, by the model.

    Attributes:
        expected_rise: How much a batch is expected to improve the best posterior mean
            of all arms, given pending pulls; in the unit of the rewards, 0 or more.
        probability_unmeasured: The probability that some arm without observations has
            a higher true mean than every arm with observations, by joint draws given
            the observations, ``GPBandit.maximizer_distribution``. All probabilities are
            calibrated on the pools of ``python -m benchmarks progress``. This one then
            agrees with the next two: it is at least the probability of arms that all
            have no observations, and at most the rest if all have some.
        best_arms: The fewest arms that are the best one in 95 % of these draws, most
            likely first.
        probability_held: The probability that the best arm is one of these, at least
            that of the first.
        probability_best: The probability that it is the first of these.
    """

    expected_rise: float
    probability_unmeasured: float
    best_arms: Tensor
    probability_held: float
    probability_best: float


def calibrated_best(share: float) -> float:
    """Return the probability of the arm that is the best in the largest share of draws.

    No more than this share, or all arms of few draws each would get more than 1.
    """
    return min(share, BEST(share))
