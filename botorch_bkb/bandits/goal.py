"""What a bandit is for: to collect reward, or to find the best arm."""

from __future__ import annotations

from typing import Literal

from botorch_bkb.checks import check_choice


Goal = Literal["regret", "best_arm"]


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
