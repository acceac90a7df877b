"""What a bandit is for: to collect reward, or to find the best arm."""

from __future__ import annotations

from typing import Literal

from botorch_bkb.checks import check_choice


Goal = Literal["regret", "best_arm"]

# The longest that a learned model may choose known arms only: a share of all pulls, and
# not fewer than some.
NEW_ARM_SHARE = 1 / 8
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


def new_arm_is_due(num_since_new: int, num_pulls: int) -> bool:
    """Whether so few arms were new that a learned model is not to be trusted alone.

    A fit to few arms may be wrong and sure of it. Repeating the best of these shows
    nothing new, and under bounds of a constant width no other arm is ever chosen. A new
    arm in every eighth of all pulls makes their number grow with the logarithm of all
    pulls, as slowly as the pulls of inferior arms under the rules of [lai1985]_.

    Args:
        num_since_new: The number of pulls since the last one of an arm that was new.
        num_pulls: The number of all pulls.
    """
    return num_since_new >= max(NEW_ARM_PATIENCE, int(NEW_ARM_SHARE * num_pulls))
