"""Which arms an experiment has, and how its parameters name them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ax.core.parameter import ChoiceParameter, FixedParameter
from ax.core.search_space import SearchSpace
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from typing_extensions import override


Parameters = Mapping[str, Any]
MAX_GRID_SIZE = 2_000_000


class ArmSource(ABC):
    """Which arms there are, and how Ax's parameters name them."""

    @abstractmethod
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the ``A x d`` arms."""

    @abstractmethod
    def parameters(self, index: int) -> dict[str, Any]:
        """Return Ax's parameters of an arm."""

    @abstractmethod
    def index(self, parameters: Parameters) -> int:
        """Return the arm of Ax's parameters."""


@dataclass
class ArmFile(ArmSource):
    """A table of arms in a file, named by an integer parameter: the row number.

    The experiment needs ``RangeParameterConfig(name="arm", bounds=(0, A - 1),
    parameter_type="int")``. What is stored is the path and a checksum.

    Args:
        path: A ``*.npy`` file with an ``A x d`` array, or a ``*.csv``, ``*.csv.gz`` or
            ``*.parquet`` table of numbers.
        parameter: The name of the parameter.
        checksum: The SHA-256 of the file; None to take it from the file as it is now.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file has another checksum, or is none of these.
    """

    path: str
    parameter: str = "arm"
    checksum: str | None = None

    def __post_init__(self) -> None:
        """Take the checksum, or check it."""
        self.path = str(self.path)
        found = hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        if self.checksum is not None and self.checksum != found:
            raise InputDataError(
                f"Expected {self.path} to be the table that the experiment began with "
                f"(SHA-256 {self.checksum[:12]}...), but it has changed to "
                f"{found[:12]}.... Indices of arms would mean other rows."
            )
        self.checksum = found
        self._num_arms = 0

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms.

        Raises:
            InputDataError: If the file is no table of numbers, or the parameter does
                not range over its rows.
        """
        if self.path.endswith(".npy"):
            values = np.load(self.path, allow_pickle=False)
        else:
            read = pd.read_parquet if self.path.endswith(".parquet") else pd.read_csv
            try:
                values = read(self.path).to_numpy(dtype="float64")
            except (TypeError, ValueError) as error:
                raise InputDataError(
                    f"Expected {self.path} to be a table of numbers only: {error}"
                ) from error
        arms = torch.tensor(values, dtype=torch.float64)
        parameter = search_space.parameters.get(self.parameter)
        bounds = (getattr(parameter, "lower", None), getattr(parameter, "upper", None))
        if bounds != (0, len(arms) - 1):
            raise InputDataError(
                f"Expected an integer parameter {self.parameter!r} from 0 to "
                f"{len(arms) - 1}, the rows of {self.path}, but got {parameter}."
            )
        self._num_arms = len(arms)
        return arms

    @override
    def parameters(self, index: int) -> dict[str, Any]:
        return {self.parameter: index}

    @override
    def index(self, parameters: Parameters) -> int:
        return int(parameters[self.parameter])


@dataclass
class ChoiceGrid(ArmSource):
    """The product of all choice parameters of an experiment, at most two million.

    Numbers are features as they are, other values one 0/1 column each.
    """

    def __post_init__(self) -> None:
        """Start without a search space."""
        self._values: dict[str, list[Any]] = {}
        self._fixed: dict[str, Any] = {}

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms, the last parameter fastest.

        Raises:
            UnsupportedError: If a parameter is neither a choice nor fixed.
            InputDataError: If there are too many combinations.
        """
        columns: list[Tensor] = []
        for name, parameter in search_space.parameters.items():
            if isinstance(parameter, FixedParameter):
                self._fixed[name] = parameter.value
            elif isinstance(parameter, ChoiceParameter):
                self._values[name] = list(parameter.values)
                columns.append(_features(parameter))
            else:
                raise UnsupportedError(
                    f"Expected choice parameters only, but {name!r} is a "
                    f"{type(parameter).__name__}. Use an ArmFile for a table of arms."
                )
        size = math.prod(len(values) for values in self._values.values())
        if not columns or size > MAX_GRID_SIZE:
            raise InputDataError(
                f"Expected 1 to {MAX_GRID_SIZE:,} combinations of choices, but got "
                f"{size if columns else 0:,}. Use an ArmFile for a part of them."
            )
        rows = [torch.arange(len(column)) for column in columns]
        grid = torch.cartesian_prod(*rows).reshape(size, len(columns))
        return torch.cat(
            [column[grid[:, i]] for i, column in enumerate(columns)], dim=-1
        )

    @override
    def parameters(self, index: int) -> dict[str, Any]:
        chosen = {}
        for name, values in reversed(self._values.items()):
            index, position = divmod(index, len(values))
            chosen[name] = values[position]
        return {**self._fixed, **dict(reversed(chosen.items()))}

    @override
    def index(self, parameters: Parameters) -> int:
        index = 0
        for name, values in self._values.items():
            index = index * len(values) + values.index(parameters[name])
        return index


def _features(parameter: ChoiceParameter) -> Tensor:
    """Return a row of features for each value of a choice parameter."""
    values = list(parameter.values)
    if all(isinstance(value, int | float) for value in values):
        return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    return torch.eye(len(values), dtype=torch.float64)
