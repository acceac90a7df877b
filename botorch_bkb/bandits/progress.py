"""When to stop: the expected benefit of another batch."""

from __future__ import annotations

from collections import Counter
from copy import copy, deepcopy
from typing import cast, NamedTuple, TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_bkb.bandits.surrogates import StaticPosteriorAt
from botorch_bkb.models.utils.draws import ASKS, PROGRESS, seeded_generator
from botorch_bkb.posteriors.batch_rise import expected_rises


if TYPE_CHECKING:
    from botorch_bkb.bandits.gp_bandit import GPBandit


# Draws of the best arm: a standard error of a probability of 0.01 at most.
NUM_DRAWS = 2048
LEVEL = 0.95


class Progress(NamedTuple):
    """The expected benefit of another batch, by the model.

    Attributes:
        expected_rise: How much a batch is expected to improve the best posterior mean
            of all arms, given pending pulls; in the unit of the rewards, 0 or more.
        probability_unmeasured: The probability that some arm without observations has
            a higher true mean than every arm with observations.
        best_arms: The fewest arms that hold the best one with a probability of 95 %,
            most likely first. Like the probability, these are from joint draws given
            the observations, ``GPBandit.maximizer_distribution``. Both depend on the
            tails of a fitted model, and are less reliable than the expected rise.
    """

    expected_rise: float
    probability_unmeasured: float
    best_arms: Tensor


def progress_of(bandit: GPBandit, n: int, batch: Tensor | None) -> Progress:
    """Return the progress of a bandit; see ``GPBandit.progress``."""
    if not bandit.num_pulls or bandit.drifts:
        error = UnsupportedError if bandit.drifts else InputDataError
        raise error(
            "Expected observations of an objective that does not change, but "
            + ("this one drifts." if bandit.drifts else "there are none yet.")
        )
    # A copy that has learned from all observations, for whose choices nothing changes.
    bandit = copy(bandit)
    bandit.confidence = deepcopy(bandit.confidence)
    bandit._surrogate = surrogate = bandit._predictor()
    observations, time = bandit._observations, bandit.decision_time
    out = list(observations.pending.values())
    posterior = cast(StaticPosteriorAt, surrogate.at(observations, time, out))
    pending, seed = posterior.pending, surrogate.seed
    if batch is None:
        limits = bandit._pull_limits(bandit._table.offered()[0], n)
        generator = seeded_generator(seed, ASKS, bandit.num_batches)
        batch = bandit._select(surrogate, posterior, n, limits, generator)
    else:
        left = Counter(pending.tolist()) - Counter(batch.tolist())
        pending = pending.new_tensor(list(left.elements()))
    generator = seeded_generator(seed, PROGRESS, bandit.num_pulls)
    args = pending, bandit._table.competing(), generator
    (rise,) = expected_rises(posterior.moments, [batch], *args)
    best = bandit.maximizer_distribution(NUM_DRAWS, generator)
    is_measured = torch.isin(best.indices, bandit.observed_arms)
    return Progress(
        rise * surrogate.hyperparameters.scale,
        1 - is_measured.double().mean().item(),
        best.credible_set(LEVEL),
    )
