"""Where a count crosses a threshold for the first time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable


UNLIMITED = sys.maxsize


def first_crossing(crosses: Callable[[int], bool], estimate: float) -> int:
    """Return the least ``n >= 1`` for which a monotone condition holds.

    Args:
        crosses: The condition, false up to some ``n`` and true from there on.
        estimate: The crossing by a closed formula, right up to rounding; NaN or
            infinite where the condition never holds.
    """
    if not estimate < 2**53:
        return UNLIMITED
    n = max(1, math.floor(estimate) + 1)
    while n > 1 and crosses(n - 1):
        n -= 1
    while not crosses(n):
        n += 1
    return n
