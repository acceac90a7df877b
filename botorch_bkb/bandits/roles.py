"""Roles of outcomes: what is maximized, minimized, aimed at, or limited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_not_negative, check_number


# Hypervolumes of more objectives take too long.
MOST_OBJECTIVES = 4


class Role:
    """What is wanted of an outcome.

    Attributes:
        best: The outcome of the largest utility.
    """

    best: float

    def utility(self, outcome: Tensor) -> Tensor:
        """Return how good values of the outcome are: large is good."""
        return math.copysign(1.0, self.best) * outcome

    def optimistic_utility(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the largest utility of an outcome from ``low`` to ``high``."""
        return self.utility(low.new_tensor(self.best).clamp(low, high))


class Objective(Role):
    """An outcome that is optimized."""


@dataclass(frozen=True)
class Limit(Role):
    """An outcome that has to stay within a limit, where its utility is not negative.

    Args:
        limit: The limit, in units of the outcome.
    """

    limit: float

    def __post_init__(self) -> None:
        check_number("limit", self.limit)

    @override
    def utility(self, outcome: Tensor) -> Tensor:
        return super().utility(outcome - self.limit)


@dataclass(frozen=True)
class Maximize(Objective):
    """Large values of the outcome are good."""

    best = math.inf


@dataclass(frozen=True)
class Minimize(Objective):
    """Small values of the outcome are good."""

    best = -math.inf


@dataclass(frozen=True)
class Target(Objective):
    """Values of the outcome near a target are good.

    Args:
        value: The target, in units of the outcome.
        tolerance: Values that are no farther from the target are equally good.
    """

    value: float
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_number("value", self.value)
        check_not_negative("tolerance", self.tolerance)

    @property
    @override
    def best(self) -> float:  # type: ignore[override]
        """The target."""
        return self.value

    @override
    def utility(self, outcome: Tensor) -> Tensor:
        return -((outcome - self.value).abs() - self.tolerance).clamp_min(0.0)


@dataclass(frozen=True)
class AtMost(Limit):
    """The outcome must not exceed a limit.

    Args:
        limit: The limit, in units of the outcome.
    """

    best = -math.inf


@dataclass(frozen=True)
class AtLeast(Limit):
    """The outcome must not fall below a limit.

    Args:
        limit: The limit, in units of the outcome.
    """

    best = math.inf


def checked_roles(
    outcomes: Mapping[str, Role | Sequence[Role]],
) -> dict[str, tuple[Role, ...]]:
    """Return the roles of each outcome; raise if they cannot be met together.

    One to four outcomes have to be objectives.
    """
    roles: dict[str, tuple[Role, ...]] = {}
    if not isinstance(outcomes, Mapping):
        raise InputDataError(
            "Expected `outcomes` with the role of each by name, such as `{'yield': "
            f"Maximize()}}`, but got {outcomes!r}."
        )
    for name, given in dict(outcomes).items():
        own: Any = (given,) if isinstance(given, Role) else given
        is_list = isinstance(own, Sequence) and not isinstance(own, str) and len(own)
        if not is_list or not all(isinstance(role, Role) for role in own):
            raise InputDataError(
                f"Expected the outcome {name!r} to have a role, such as `Maximize()` "
                f"or `AtMost(2.0)`, or a list of roles, but got {given!r}."
            )
        if sum(isinstance(role, Objective) for role in own) > 1:
            raise InputDataError(
                f"Expected at most one objective of the outcome {name!r}, but got "
                f"{given!r}. Keep one of them, and limits."
            )
        least = max((r.limit for r in own if isinstance(r, AtLeast)), default=-math.inf)
        most = min((r.limit for r in own if isinstance(r, AtMost)), default=math.inf)
        if least > most:
            raise InputDataError(
                f"Expected limits of the outcome {name!r} that some value meets, but "
                f"got at least {least:.12g} and at most {most:.12g}. Correct one."
            )
        roles[name] = tuple(own)
    number = len(objectives_of(roles))
    if not 1 <= number <= MOST_OBJECTIVES:
        raise InputDataError(
            f"Expected one to {MOST_OBJECTIVES} outcomes to be maximized, minimized or "
            f"near a target, but got {number} of them. Make the others limits."
        )
    return roles


def objectives_of(
    roles: Mapping[str, Sequence[Role]],
) -> list[tuple[str, Objective]]:
    """Return the objectives, with the names of their outcomes."""
    pairs = [(name, role) for name, own in roles.items() for role in own]
    return [(name, role) for name, role in pairs if isinstance(role, Objective)]
