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
    draws, fewer come true. How many depends on the size of the campaign.

    Attributes:
        sizes: The range of the campaigns to which the numbers were fitted. Smaller and
            larger campaigns are taken for its ends.
        intercept: The logarithm of the odds at even draws and size 1.
        slope: How they grow with the logarithm of the odds of the draws.
        size_slope: How they grow with the logarithm of the size.
    """

    sizes: tuple[float, float]
    intercept: float
    slope: float
    size_slope: float

    def __call__(self, share: float, size: float) -> float:
        """Return the probability of what is true in a share of the draws."""
        share = min(max(share, 0.5 / NUM_DRAWS), 1 - 0.5 / NUM_DRAWS)
        size = min(max(size, self.sizes[0]), self.sizes[1])
        odds = math.exp(self.intercept) * (share / (1 - share)) ** self.slope
        odds *= size**self.size_slope
        return odds / (1 + odds)


# `python -m benchmarks progress` fits and checks these. Of the share of the arms that
# are measured: that one of the others is better than they are. Of the number of arms,
# and the share of the first of the draws: that it is the best arm, and that the best
# arm is among those of 95 % of the draws.
BETTER = Platt((1 / 300, 1 / 8), -5.90, 0.20, -1.66)
BEST = Platt((440, 3000), 6.61, 0.62, -1.01)
HELD = Platt((440, 3000), 16.47, 0.19, -2.01)

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
            calibrated on the pools of ``python -m benchmarks progress``.
        best_arms: The fewest arms that are the best one in 95 % of these draws, most
            likely first.
        probability_held: The probability that the best arm is one of these.
        probability_best: The probability that it is the first of these.
    """

    expected_rise: float
    probability_unmeasured: float
    best_arms: Tensor
    probability_held: float
    probability_best: float


def calibrated_best(share: float, num_arms: int) -> float:
    """Return the probability of the arm that is the best in the largest share of draws.

    No more than this share, or all arms of few draws each would get more than 1.
    """
    return min(share, BEST(share, num_arms))
