"""Which arms tell most of the best one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms import PullCounts, PullLimits


if TYPE_CHECKING:
    from botorch_bkb.posteriors.arm_posterior import ArmPosterior
    from botorch_bkb.posteriors.shards import Ranked


def best_arm_limits(
    posterior: ArmPosterior,
    limits: PullLimits,
    used: PullCounts,
    pending: Tensor,
    size: int,
) -> PullLimits:
    """Return the capacities of a batch of distinct arms that tell most of the best one.

    Arms that were never pulled, and of the others those whose next pull gains more than
    that of any new arm. Where these are fewer than ``size``, the pulled ones of the
    largest gain fill up, as far as there are any. Every arm allows one pull at most.

    Args:
        posterior: What is known of the arms.
        limits: How many pulls each arm allows; the best is sought of those on offer.
        used: The pulls so far, told and pending.
        pending: The arms of the pending ones, an arm as often as it is out.
        size: The size of the batch.
    """
    is_open = limits.left > 0
    is_known = ~is_open if limits.offered is None else limits.offered & ~is_open
    is_known[used.arms] = True
    # The others are new, and alike but for their gain.
    arms = is_known.nonzero().squeeze(-1)
    allowed = is_open[arms]
    most, gain = posterior.knowledge_gains(limits.offered, arms)
    if len(pending):
        out, counts = pending.unique(return_counts=True)
        place = torch.searchsorted(arms, out)
        gain[place] = _gain_when_told(posterior, limits.offered, out, counts)
    num_new = limits.num_open - int(allowed.sum())
    chosen = allowed & (gain > (most if num_new else -math.inf))
    missing = min(size, limits.num_open) - num_new - int(chosen.sum())
    if missing > 0:
        rest = gain.masked_fill(chosen | ~allowed, -math.inf)
        # Stable: the lowest index among ties.
        chosen[rest.sort(descending=True, stable=True).indices[:missing]] = True
    is_open[arms] = chosen
    return PullLimits(is_open.int())


def _gain_when_told(
    posterior: ArmPosterior, competes: Tensor | None, arms: Tensor, counts: Tensor
) -> Tensor:
    """Return the gains of arms after the pulls of their own that are pending.

    Their rewards are not known, but the variance that they leave is.
    """
    top = posterior.largest_bounds(0.0, 2, competes)
    mean = posterior.means(arms)
    rest = torch.full_like(mean, top.values[0].item())
    rest[arms == top.arms[0]] = top.values[1] if len(top.values) > 1 else -math.inf
    variance, noise_variance = posterior.variances(arms), posterior.noise_variance
    left = variance / (1 + counts * variance / noise_variance)
    return _expected_rise(mean, left, noise_variance, rest)


def knowledge_gain(
    mean: Tensor,  # A
    variance: Tensor,  # A
    noise_variance: float,
    top: Ranked,
    start: int = 0,
) -> Tensor:  # A
    r"""Return how much one more pull is expected to raise the largest mean.

    The knowledge gradient of [frazier2009]_ as if arms were independent: a pull of
    ``x`` moves its mean by a normal step of deviation ``s = v / sqrt(v + lambda)``,
    so ::

        E max(mean(x) + step, rest) - max(mean(x), rest) = s h(-|mean(x) - rest| / s)

    with ``h(z) = z Phi(z) + phi(z)`` and ``rest`` the largest mean of the others.
    Correlation adds to the gain of new arms more than to that of pulled ones, whose
    own mean is all that is left to learn; so this is no unfair to repeats.

    Args:
        mean: The means of arms in a row.
        variance: Their variances.
        noise_variance: lambda.
        top: The two largest means of all arms that compete, and whose these are; one
            where there is one arm.
        start: The first of the arms.
    """
    rest = torch.full_like(mean, top.values[0].item())
    best = int(top.arms[0]) - start
    if 0 <= best < len(mean):
        rest[best] = top.values[1] if len(top.values) > 1 else -math.inf
    return _expected_rise(mean, variance, noise_variance, rest)


def _expected_rise(
    mean: Tensor, variance: Tensor, noise_variance: float, rest: Tensor
) -> Tensor:
    """Return how much a pull is expected to raise the largest of its mean and rest."""
    step = variance / (variance + noise_variance).sqrt()
    z = -(mean - rest).abs() / step
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    gain = step * (z * torch.special.ndtr(z) + density)
    # Far below the best the two terms cancel, and rounding is negative.
    return torch.where(step > 0, gain, 0.0).nan_to_num(0.0).clamp_min(0.0)


def split_gain(
    gain: Tensor,  # A
    competes: Tensor | None,  # A, bool
    listed: Tensor,  # k, long
) -> tuple[Tensor, Tensor]:
    """Return the largest gain of arms that are not listed, and the gains of the others.

    Args:
        gain: The gains of arms in a row.
        competes: Which of them compete; all if None.
        listed: Places among them. They do not count for the largest.

    Returns:
        A 0-dim tensor, minus infinity if no arm is left, and a ``k``-dim one.
    """
    others = gain if competes is None else gain.masked_fill(~competes, -math.inf)
    others = others.index_fill(0, listed.to(gain.device), -math.inf)
    most = others.amax() if len(others) else others.new_tensor(-math.inf)
    return most, gain[listed]
