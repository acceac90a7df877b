r"""Which arms tell most of the best one.

References:
    [frazier2009] P. I. Frazier, W. B. Powell, S. Dayanik. The knowledge-gradient policy
    for correlated normal beliefs. INFORMS Journal on Computing 2009.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_bkb.arms import Capacity, PullCounts
from botorch_bkb.models.utils.crossing import UNLIMITED
from botorch_bkb.posteriors.moments import Moments


def best_arm_capacity(
    posterior: Moments,
    capacity: Capacity,
    offered: Tensor | None,
    used: PullCounts,
    size: int,
) -> Capacity:
    """Return the capacities of a batch that is to find the best arm on offer.

    Args:
        posterior: What is known of the arms.
        capacity: How many pulls each arm allows.
        offered: Which arms can be pulled now; None for all.
        used: The pulls so far, told and pending.
        size: The size of the batch.
    """
    counts = used.counts.new_zeros(posterior.num_arms)
    counts.index_add_(0, used.arms, used.counts)
    if offered is None:
        offered = torch.ones_like(counts, dtype=torch.bool)
    pulls = capacity.pulls
    if pulls is None:
        pulls = torch.full_like(counts, UNLIMITED)
    gain = knowledge_gain(
        posterior.mean, posterior.variance, posterior.noise_variance, offered
    )
    return Capacity(len(counts), worth_pulling(pulls, counts, gain, size))


def knowledge_gain(
    mean: Tensor,  # A
    variance: Tensor,  # A
    noise_variance: float,
    competes: Tensor,  # A, bool
) -> Tensor:  # A
    r"""Return how much one more pull is expected to raise the largest mean.

    The knowledge gradient of [frazier2009]_ as if arms were independent: a pull of
    ``x`` moves its mean by a normal step of deviation ``s = v / sqrt(v + lambda)``,
    so ::

        E max(mean(x) + step, rest) - max(mean(x), rest) = s h(-|mean(x) - rest| / s)

    with ``h(z) = z Phi(z) + phi(z)`` and ``rest`` the largest mean of the others.
    Correlation adds to the gain of new arms more than to that of pulled ones, whose
    own mean is all that is left to learn; so this is no unfair to repeats.
    """
    top = mean.masked_fill(~competes, -math.inf).topk(min(2, len(mean)))
    rest = torch.full_like(mean, top.values[0].item())
    rest[top.indices[0]] = top.values[-1] if len(mean) > 1 else -math.inf
    step = variance / (variance + noise_variance).sqrt()
    z = -(mean - rest).abs() / step
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    gain = step * (z * torch.special.ndtr(z) + density)
    return torch.where(step > 0, gain, 0.0).nan_to_num(0.0)


def worth_pulling(
    capacity: Tensor,  # A, long
    used: Tensor,  # A, long: pulls told and pending
    gain: Tensor,  # A
    size: int,
) -> Tensor:  # A, long
    """Return the capacities of a batch of distinct arms that tell most of the best one.

    Arms that were never pulled, and of the others those whose next pull gains more than
    that of any new arm. Where these are fewer than ``size``, the pulled ones of the
    largest gain fill up; only where all arms are fewer does an arm repeat.
    """
    allowed = capacity > 0
    is_new = allowed & (used == 0)
    most = gain[is_new].max() if is_new.any() else gain.new_tensor(-math.inf)
    is_open = is_new | (allowed & (gain > most))
    missing = min(size, int(allowed.sum())) - int(is_open.sum())
    if missing > 0:
        rest = gain.masked_fill(is_open | ~allowed, -math.inf)
        # Stable: the lowest index among ties.
        is_open[rest.sort(descending=True, stable=True).indices[:missing]] = True
    num_open = max(int(is_open.sum()), 1)
    return is_open * capacity.clamp(max=max(1, math.ceil(size / num_open)))
