"""What a bandit is for: to collect reward, or to find the best arm.

References:
    [lai1985] T. L. Lai, H. Robbins. Asymptotically efficient adaptive allocation rules.
    Advances in Applied Mathematics 1985.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from botorch_bkb.checks import check_choice


Goal = Literal["regret", "best_arm"]

# Where anything is learned and the goal is regret, a new arm is due when it was not
# pulled for an eighth of all pulls, and for five.
NEW_ARM_SHARE = 8
NEW_ARM_PATIENCE = 5


def check_goal(goal: str | None) -> None:
    """Raise an ``InputDataError`` unless this goal exists, or is None."""
    if goal is not None:
        check_choice(
            "goal",
            goal,
            {
                "regret": "collect reward, repeats welcome",
                "best_arm": "find the best, distinct arms in a batch",
            },
        )


def new_arm_is_due(pulled: Tensor) -> bool:
    """Whether only known arms were pulled for longer than a learned model deserves.

    A fit to few arms may be wrong and sure of it. Who then repeats the best of these
    learns nothing that could show it, and bounds of a constant width never let another
    arm in. So an eighth of all pulls is the longest without a new arm: their number
    grows with the logarithm of all pulls, as the pulls of every inferior arm do under a
    rule that is good for every problem ([lai1985]_).

    Args:
        pulled: The arms of all pulls in order, repeats included.
    """
    num_last = max(NEW_ARM_PATIENCE, len(pulled) // NEW_ARM_SHARE)
    if len(pulled) <= num_last:
        return False
    return bool(torch.isin(pulled[-num_last:], pulled[:-num_last]).all())
