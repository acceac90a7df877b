"""Several outcomes as one score: the desirability of [derringer1980]_."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_bkb.checks import check_choice, check_number, check_positive


@dataclass(frozen=True)
class Desirability:
    r"""The weighted geometric mean of linear ramps, a score from 0 to 1.

    An outcome ``y`` with the range from ``low`` to ``high`` has the desirability ``d =
    (y - low) / (high - low)``, clipped to ``[0, 1]``; if it is minimized, ``d = (high -
    y) / (high - low)``, clipped. The score is ``prod_i d_i^(w_i / sum_j w_j)``: 0 if an
    outcome is at the bad end of its range, 1 if all are at the good end.

    Args:
        objectives: For each outcome, by its name: ``(direction, low, high)`` or
            ``(direction, low, high, weight)``. The direction is ``"max"`` or ``"min"``,
            and the default weight is 1.

    Raises:
        InputDataError: If there is no outcome, a direction is unknown, ``low`` is not
            less than ``high``, or a weight is not positive.

    Example:
        >>> score = Desirability({"yield": ("max", 0, 100), "cost": ("min", 0, 40, 2)})
        >>> bandit.tell(indices, score(results))
    """

    objectives: Mapping[str, tuple[Any, ...]]

    def __post_init__(self) -> None:
        """Check the objectives."""
        if not self.objectives:
            raise InputDataError("Expected `objectives` to name an outcome, got none.")
        for name, objective in self.objectives.items():
            if len(objective) not in (3, 4):
                raise InputDataError(
                    f"Expected (direction, low, high) or (direction, low, high, weight)"
                    f" for the outcome {name!r}, but got {objective!r}."
                )
            direction, low, high, weight = _complete(objective)
            meanings = {"max": "large values are good", "min": "small values are good"}
            check_choice(f"direction of {name}", direction, meanings)
            low = check_number(f"low of {name}", low)
            if not low < check_number(f"high of {name}", high):
                raise InputDataError(
                    f"Expected the range of {name!r} to go from a smaller to a larger "
                    f"number, but got {low:g} to {high:g}. Exchange them, and give the "
                    "direction by max or min."
                )
            check_positive(f"weight of {name}", weight)

    def __call__(self, outcomes: Any) -> Tensor:
        """Return the scores of ``n`` candidates.

        Args:
            outcomes: A DataFrame with a column per outcome (others are ignored), or an
                ``n x k`` tensor or array, in the order of the objectives.

        Returns:
            An ``n``-dim tensor, in double precision unless ``outcomes`` is a tensor of
            floats; NaN where an outcome is missing.

        Raises:
            BotorchTensorDimensionError: If it has not ``k`` columns.
            InputDataError: If a DataFrame lacks an outcome.
        """
        if hasattr(outcomes, "columns"):
            lacks = [name for name in self.objectives if name not in outcomes.columns]
            if lacks:
                raise InputDataError(
                    f"Expected a column for each outcome, but {lacks} are missing."
                )
            outcomes = outcomes[list(self.objectives)].to_numpy("float64")
        if not isinstance(outcomes, Tensor):
            outcomes = torch.from_numpy(np.array(outcomes, dtype="float64"))
        if not outcomes.is_floating_point():
            outcomes = outcomes.double()
        if outcomes.dim() != 2 or outcomes.shape[-1] != len(self.objectives):
            raise BotorchTensorDimensionError(
                f"Expected `outcomes` of shape n x {len(self.objectives)}, but got "
                f"{tuple(outcomes.shape)}."
            )
        objectives = [_complete(each) for each in self.objectives.values()]
        total = sum(weight for *_, weight in objectives)
        score = torch.ones_like(outcomes[:, 0])
        for (direction, low, high, weight), y in zip(
            objectives, outcomes.mT, strict=True
        ):
            ramp = y - low if direction == "max" else high - y
            score *= (ramp / (high - low)).clamp(0.0, 1.0) ** (weight / total)
        return score


def _complete(objective: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an objective with its weight."""
    return (*objective, 1.0)[:4]
