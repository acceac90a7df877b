r"""Choosing a batch of arms by upper confidence bounds, exactly and lazily.

Inside a batch the mean and the width are frozen, and variances fall with every pull
already chosen (hallucination, GP-BUCB). Each pick is the arm of the largest

    mean_start(x) + w sqrt(var_now(x) / lambda),

the lowest index among ties: line 4 of algorithm 1 in the BBKB paper. The result is that
of a loop that recomputes everything at every pull. It is faster because upper bounds
only fall, so that only a small pool of arms has to be kept exact, and because
consecutive pulls of one arm have a closed form.
"""

from __future__ import annotations

import math

from torch import Tensor

from botorch_bkb.arms import PullLimits
from botorch_bkb.arms.pull_limits import UNLIMITED
from botorch_bkb.optim.batch_rules import BatchRule, fill_batch, FixedSize
from botorch_bkb.posteriors import ArmPosterior
from botorch_bkb.posteriors.upper_bounds import UpperBounds


def optimize_batch_ucb(
    posterior: ArmPosterior,
    confidence_width: float,
    batch_rule: BatchRule,
    *,
    grow: bool,
    pending_indices: Tensor,
    pending_scores: Tensor,
    capacity: Tensor | None = None,
    first: int | None = None,
) -> Tensor:
    r"""Choose a batch of arms greedily by upper confidence bounds.

    Args:
        posterior: The posterior given all rewards.
        confidence_width: w, in the papers' scaling.
        batch_rule: When to close the batch. One that sets no size may take an arm that
            is all but known more often than anybody can use; ``Capped`` limits it.
        grow: Whether chosen arms join the inducing points inside the batch.
        pending_indices: A long tensor of the pulls still without reward, repeats
            included. They shrink the variance and always join the inducing points.
        pending_scores: Their leverage scores, each frozen at the start of its batch.
        capacity: An ``A``-dim long tensor, the pulls each arm still allows; None for no
            limit.
        first: The first arm, if it is chosen already (the uniform draw that opens a
            run); a rule that waits for its reward then closes at once.

    Returns:
        A long tensor of arm indices in order of choice, at least one; repeated arms
        repeat.

    Raises:
        InputDataError: If no arm allows a pull.

    Memory and time: ``O(A)``, plus ``O(pool^2)`` a pick. Where inducing points grow
    without holding all pulled arms (then no bound is known to fall), and with pulls
    pending under fixed inducing points, a pick passes over all features: ``O(A (m +
    f))`` time and ``O(A f)`` memory for ``f`` appended arms. Where over 1,024 arms
    compete, it passes over those of 32,768 of them, then of eight times as many while
    that is at most a quarter of all, then of all.
    """
    if first is not None and batch_rule.opens_with_one_pull:
        batch_rule = FixedSize(1)
    scale = confidence_width / math.sqrt(posterior.noise_variance)
    if capacity is None:
        limits = PullLimits.unlimited(posterior.like, posterior.num_arms)
    else:
        limits = PullLimits(capacity.clamp_max(UNLIMITED).int())
    bounds = UpperBounds(posterior, scale, grow, pending_indices, limits)
    batch = batch_rule.open(posterior, pending_scores)
    return fill_batch(bounds, batch, first, posterior.pulled_indices)
