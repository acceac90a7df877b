"""When to stop: the expected benefit of another batch."""

from __future__ import annotations

import math
from collections import Counter
from copy import copy
from typing import NamedTuple, TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_bkb.models.utils.draws import ASKS, PROGRESS, seeded_generator
from botorch_bkb.posteriors.batch_rise import expected_rises


if TYPE_CHECKING:
    from botorch_bkb.bandits.gp_bandit import GPBandit


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


def progress_of(bandit: GPBandit, n: int, batch: Tensor | None) -> Progress:
    """Return the progress of a bandit; see ``GPBandit.progress``."""
    if batch is not None and not len(batch):
        raise InputDataError("Expected `indices` of one arm at least, but got none.")
    if not bandit.num_pulls or bandit.drifts:
        error = UnsupportedError if bandit.drifts else InputDataError
        raise error(
            "Expected observations of an objective that does not change, but "
            + ("this one drifts." if bandit.drifts else "there are none yet.")
        )
    # A copy that has learned from all observations, for whose choices nothing changes.
    surrogate, bandit = bandit._predictor(), copy(bandit)
    bandit._surrogate = surrogate
    observations, time = bandit._observations, bandit.decision_time
    out = list(observations.pending.values())
    posterior = surrogate.at(observations, time, out)
    given, seed = posterior.given, surrogate.seed
    if batch is None:
        limits = bandit._pull_limits(bandit._table.offered()[0], n)
        generator = seeded_generator(seed, ASKS, bandit.num_batches)
        batch = bandit._select(surrogate, posterior, n, limits, generator)
    else:
        others = Counter(pull.arm for pull in out) - Counter(batch.tolist())
        given = posterior.moments.given(others)
    generator = seeded_generator(seed, PROGRESS, bandit.num_pulls)
    (rise,) = expected_rises(given, [batch], bandit._table.competing(), generator)
    best = bandit.maximizer_distribution(NUM_DRAWS, generator)
    table, measured = bandit._table, bandit.observed_arms
    is_new = ~torch.isin(table.first_equal(best.indices), table.first_equal(measured))
    share = calibrated(is_new.double().mean().item())
    return Progress(
        rise * surrogate.fit.units.std,
        share if table.has_others(measured) else 0.0,
        best.credible_set(LEVEL),
    )


def calibrated(share: float) -> float:
    """Return the probability of what is so in a share of the draws."""
    share = min(max(share, 0.5 / NUM_DRAWS), 1 - 0.5 / NUM_DRAWS)
    intercept, slope = PLATT
    odds = math.exp(intercept) * (share / (1 - share)) ** slope
    return odds / (1 + odds)
