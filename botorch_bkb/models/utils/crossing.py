"""Where a count crosses a threshold for the first time."""

from __future__ import annotations

import math
from collections.abc import Callable


UNLIMITED = 2**31 - 1


def first_crossing(crosses: Callable[[int], bool], estimate: float) -> int:
    """Return the least ``n >= 1`` for which a monotone condition holds.

    ``UNLIMITED`` if it is as large as that.

    Args:
        crosses: The condition, false up to some ``n`` and true from there on.
        estimate: The crossing by a closed formula, right up to rounding; NaN or
            infinite where the condition never holds.
    """
    if not estimate < UNLIMITED:
        return UNLIMITED
    high = math.floor(max(estimate, 0.0)) + 1
    low, step = high - 1, 1
    # Rounding may swallow many small terms of a sum: steps double.
    while not crosses(high):
        if high >= UNLIMITED:
            return UNLIMITED
        low, high, step = high, high + step, 2 * step
    step = 1
    while low > 0 and crosses(low):
        low, high, step = max(low - step, 0), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if crosses(middle) else (middle, high)
    return min(high, UNLIMITED)
