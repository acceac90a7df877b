"""Several outcomes as one score: the desirability of [derringer1980]_."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_bkb.checks import as_number


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
        InputDataError: If there is no outcome, a direction is unknown, a range is
            infinite or empty, or a weight is not positive.

    Example:
        >>> score = Desirability({"yield": ("max", 0, 100), "cost": ("min", 0, 40, 2)})
        >>> bandit.tell(indices, score(results))
    """

    objectives: Mapping[str, tuple[Any, ...]]

    def __post_init__(self) -> None:
        if not self.objectives:
            raise InputDataError("Expected `objectives` to name an outcome, got none.")
        for name, objective in self.objectives.items():
            direction, *numbers = (*objective, 1.0)[:4]
            low, high, weight = (*map(as_number, numbers), *[math.nan] * 3)[:3]
            is_right = direction in ("max", "min") and 0 < weight < math.inf
            if not (is_right and -math.inf < low < high < math.inf):
                raise InputDataError(
                    f"Expected the objective {name!r} to be (direction, low, high) or "
                    "(direction, low, high, weight), with the direction 'max' or 'min',"
                    f" low < high and a positive weight, but got {objective!r}."
                )

    def __call__(self, outcomes: Any) -> Tensor:
        """Return the ``n`` scores, NaN where an outcome is missing.

        Args:
            outcomes: A DataFrame with a column per outcome (others are ignored), or an
                ``n x k`` tensor or array, in the order of the objectives.

        Raises:
            BotorchTensorDimensionError: If it does not have ``k`` columns.
        """
        if hasattr(outcomes, "columns"):
            outcomes = outcomes[list(self.objectives)]
        if not isinstance(outcomes, Tensor):
            outcomes = torch.tensor(np.asarray(outcomes, dtype="float64"))
        objectives = [(*objective, 1.0)[:4] for objective in self.objectives.values()]
        if outcomes.dim() != 2 or outcomes.shape[-1] != len(objectives):
            raise BotorchTensorDimensionError(
                f"Expected `outcomes` of shape n x {len(objectives)}, but got "
                f"{tuple(outcomes.shape)}."
            )
        total = sum(weight for *_, weight in objectives)
        powers = []
        for y, (direction, low, high, weight) in zip(
            outcomes.mT, objectives, strict=True
        ):
            ramp = (y - low if direction == "max" else high - y) / (high - low)
            powers.append(ramp.clamp(0.0, 1.0) ** (weight / total))
        return torch.stack(powers).prod(dim=0)
