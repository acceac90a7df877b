"""Which arms an experiment has, and how its parameters name them."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from ax.core.parameter import (
    ChoiceParameter,
    FixedParameter,
    ParameterType,
    RangeParameter,
)
from ax.core.parameter_constraint import ParameterConstraint
from ax.core.search_space import SearchSpace
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor
from typing_extensions import override

from botorch_bkb.cli.columns import is_numeric
from botorch_bkb.cli.tables import read_table, require_column, require_ids


Parameters = Mapping[str, Any]
MAX_GRID_SIZE = 2_000_000
_FOLDERS: list[Path] = []
_CONSTRAINT_TOLERANCE = 1e-8  # Ax's own


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
        """Return the arm of Ax's parameters.

        Raises:
            InputDataError: If no arm has them; it names the parameter.
        """

    def values(self, name: str, num_arms: int) -> tuple[list[Any], Tensor]:
        """Return the values of a parameter, and which of them every arm has.

        Args:
            name: The parameter.
            num_arms: ``A``.
        """
        values = [self.parameters(index)[name] for index in range(num_arms)]
        return values, torch.arange(num_arms)


def allowed_arms(
    arms: ArmSource,
    num_arms: int,
    fixed: Parameters,
    constraints: Sequence[ParameterConstraint],
) -> Tensor:
    """Return which arms have fixed parameters and fulfil constraints, ``A`` booleans.

    Args:
        arms: What the arms are, loaded.
        num_arms: ``A``.
        fixed: Values of some parameters.
        constraints: Linear ones of numeric parameters.

    Raises:
        InputDataError: If there is no such parameter or value, or no arm is left.
    """
    allowed = torch.ones(num_arms, dtype=torch.bool)
    names = arms.parameters(0).keys()
    for name, wanted in fixed.items():
        if name not in names:
            raise InputDataError(
                f"Expected `fixed_parameters` of {sorted(names)}, but got {name!r}."
            )
        values, positions = arms.values(name, num_arms)
        if wanted not in values:
            raise InputDataError(_not_among(name, wanted, values))
        allowed &= torch.tensor([value == wanted for value in values])[positions]
    for constraint in constraints:
        total = torch.zeros(num_arms, dtype=torch.float64)
        for name, weight in constraint.constraint_dict.items():
            values, positions = arms.values(name, num_arms)
            terms = torch.tensor(values, dtype=torch.float64)
            total += weight * terms[positions]
        excess = total - constraint.bound
        if constraint.is_equality:
            excess = excess.abs()
        allowed &= excess <= _CONSTRAINT_TOLERANCE
    if not allowed.any():
        raise InputDataError(
            f"Expected an arm with `fixed_parameters` {dict(fixed)} that fulfils "
            f"`parameter_constraints` {list(constraints)}, but there is none."
        )
    return allowed


def register_folder(folder: str | os.PathLike[str]) -> None:
    """Look for the tables of stored experiments in a folder as well, by their names.

    For an experiment that has moved: an :class:`ArmFile` whose path leads nowhere is
    looked for here, and its checksum says whether what is found is its table.
    """
    _FOLDERS.append(Path(folder))


@dataclass
class ArmFile(ArmSource):
    """A table of arms in a file, named by an integer parameter: the row number.

    The experiment needs ``RangeParameterConfig(name="arm", bounds=(0, A - 1),
    parameter_type="int")``. What is stored is the path and a checksum.

    Args:
        path: A ``*.npy`` file with an ``A x d`` array, or a table of numbers of any
            kind that the command line reads: see "Tables for suggest".
        parameter: The name of the parameter.
        checksum: The SHA-256 of the file; None to take it from the file as it is now.
        id: The column that names the arms and is no feature; see ``ids``.
        folder: Where a relative path starts, should it lead nowhere from the current
            folder; None for what is the current folder now. See also
            :func:`register_folder`.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file has another checksum.

    Example:
        >>> table.to_csv("arms.csv", index=False)  # compound, mass, charge
        >>> arms = ArmFile("arms.csv", id="compound")
        >>> node = BanditNode("my_bandit", arms)
        >>> for number, parameters in client.get_next_trials(max_trials=8).items():
        ...     compound = arms.ids[parameters["arm"]]
    """

    path: str
    parameter: str = "arm"
    checksum: str | None = None
    id: str | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        """Take the checksum, or check it."""
        self.path = str(self.path)
        self.folder = str(Path.cwd() if self.folder is None else self.folder)
        found = hashlib.sha256(self._file().read_bytes()).hexdigest()
        if self.checksum is not None and self.checksum != found:
            raise InputDataError(
                f"Expected {self._file()} to be the table that the experiment began "
                f"with (SHA-256 {self.checksum[:12]}...), but it has changed to "
                f"{found[:12]}.... Indices of arms would mean other rows."
            )
        self.checksum = found
        self._num_arms = 0
        self._ids: list[str] = []
        self._fixed: dict[str, Any] = {}

    def _file(self) -> Path:
        """Return where the file is."""
        places = [Path(self.path), Path(self.folder or "") / self.path]
        places += [folder / Path(self.path).name for folder in _FOLDERS]
        for place in places:
            if place.is_file():
                return place
        raise FileNotFoundError(
            f"Expected the table of arms {self.path}, from {Path.cwd()} or "
            f"{self.folder}, but there is none. If it has moved, call "
            "`register_folder` of botorch_bkb.integrations.ax with its folder first."
        )

    @property
    def ids(self) -> list[str]:
        """What the column ``id`` calls the arms, in order.

        Raises:
            InputDataError: If there is no such column, or it repeats or lacks a name.
        """
        if not self._ids:
            self._read()
        return self._ids

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms.

        Raises:
            InputDataError: If the file is no table of numbers, or the parameter does
                not range over its rows.
            UnsupportedError: If there are other parameters that are not fixed.
        """
        arms = torch.tensor(self._read(), dtype=torch.float64)
        for name, other in search_space.parameters.items():
            if isinstance(other, FixedParameter):
                self._fixed[name] = other.value
            elif name != self.parameter:
                raise UnsupportedError(
                    f"Expected {self.parameter!r}, the row of {self.path}, to be the "
                    f"only parameter that is not fixed, but {name!r} is a "
                    f"{type(other).__name__}. Make it a column of the table."
                )
        parameter = search_space.parameters.get(self.parameter)
        if (
            not isinstance(parameter, RangeParameter)
            or parameter.parameter_type != ParameterType.INT
            or (parameter.lower, parameter.upper) != (0, len(arms) - 1)
        ):
            raise InputDataError(
                f"Expected an integer parameter {self.parameter!r} from 0 to "
                f"{len(arms) - 1}, the rows of {self.path}, without `step_size`, but "
                f"got {parameter}."
            )
        self._num_arms = len(arms)
        return arms

    def _read(self) -> np.ndarray[Any, Any]:
        """Return the features, and take the ids."""
        file = self._file()
        if file.suffix == ".npy":
            if self.id is not None:
                raise InputDataError(
                    f"Expected a table with a column `id` {self.id!r}, but {self.path} "
                    "is an array. Use a *.csv or *.parquet file."
                )
            return np.asarray(np.load(file, allow_pickle=False))
        table = read_table(file, [self.id]).frame
        if self.id is not None:
            require_column(table, self.id, file, "`id`")
            require_ids(table[self.id], file)
            self._ids = table.pop(self.id).tolist()
        for name, column in table.items():
            if not is_numeric(column):
                raise InputDataError(
                    f"Expected {self.path} to be a table of numbers only, but column "
                    f"{name!r} has {column.iloc[0]!r}. A column that names the arms is "
                    "`ArmFile(..., id=...)`."
                )
            if self.id is None and _looks_like_ids(column):
                warnings.warn(
                    f"Column {name!r} of {self.path} looks like the names of the arms, "
                    "but is a feature. If it is none, pass "
                    f"`ArmFile(..., id={name!r})`.",
                    InputDataWarning,
                    stacklevel=4,
                )
        return table.to_numpy(dtype="float64")

    @override
    def parameters(self, index: int) -> dict[str, Any]:
        return {self.parameter: index, **self._fixed}

    @override
    def index(self, parameters: Parameters) -> int:
        index = _value_of(self.parameter, parameters)
        if index not in range(self._num_arms):
            raise InputDataError(
                _not_among(self.parameter, index, range(self._num_arms))
            )
        return int(index)

    @override
    def values(self, name: str, num_arms: int) -> tuple[list[Any], Tensor]:
        rows = torch.arange(num_arms)
        if name in self._fixed:
            return [self._fixed[name]], torch.zeros_like(rows)
        return rows.tolist(), rows


@dataclass
class ChoiceGrid(ArmSource):
    """The product of all choice parameters of an experiment, at most two million.

    Numbers are features as they are, and ordered text counts from zero; text and
    numbers without order have one 0/1 column per value. (Ax takes two values for
    ordered whatever they are: of text, they have a column each.)
    """

    def __post_init__(self) -> None:
        """Start without a search space."""
        self._values: dict[str, list[Any]] = {}
        self._fixed: dict[str, Any] = {}

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms, the last parameter fastest.

        Raises:
            UnsupportedError: If a parameter is neither a choice nor fixed, or these
                are the arms of another experiment already.
            InputDataError: If there are too many combinations.
        """
        columns: list[Tensor] = []
        values: dict[str, list[Any]] = {}
        fixed: dict[str, Any] = {}
        for name, parameter in search_space.parameters.items():
            if isinstance(parameter, FixedParameter):
                fixed[name] = parameter.value
            elif isinstance(parameter, ChoiceParameter):
                values[name] = list(parameter.values)
                columns.append(self._features(parameter))
            else:
                raise UnsupportedError(
                    f"Expected choice parameters only, but {name!r} is a "
                    f"{type(parameter).__name__}. Use an ArmFile for a table of arms."
                )
        size = math.prod(len(column) for column in columns)
        if not columns or size > MAX_GRID_SIZE:
            raise InputDataError(
                f"Expected 1 to {MAX_GRID_SIZE:,} combinations of choices, but got "
                f"{size if columns else 0:,}. Use an ArmFile for a part of them."
            )
        if self._values and (self._values, self._fixed) != (values, fixed):
            raise UnsupportedError(
                "Expected the choices that this ChoiceGrid was loaded with, but got "
                f"{values}. Use a new one for another experiment."
            )
        self._values, self._fixed = values, fixed
        rows = [torch.arange(len(column)) for column in columns]
        grid = torch.cartesian_prod(*rows).reshape(size, len(columns))
        return torch.cat(
            [column[grid[:, i]] for i, column in enumerate(columns)], dim=-1
        )

    def _features(self, parameter: ChoiceParameter) -> Tensor:
        """Return a row of features for each value of a choice parameter."""
        values = list(parameter.values)
        is_number = all(isinstance(value, int | float) for value in values)
        if not (parameter.is_ordered if len(values) > 2 else is_number):
            return torch.eye(len(values), dtype=torch.float64)
        numbers = values if is_number else range(len(values))
        return torch.tensor(list(numbers), dtype=torch.float64).unsqueeze(-1)

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
            value = _value_of(name, parameters)
            if value not in values:
                raise InputDataError(_not_among(name, value, values))
            index = index * len(values) + values.index(value)
        return index

    @override
    def values(self, name: str, num_arms: int) -> tuple[list[Any], Tensor]:
        rows = torch.arange(num_arms)
        if name in self._fixed:
            return [self._fixed[name]], torch.zeros_like(rows)
        for other, values in reversed(self._values.items()):
            if other == name:
                break
            rows = rows // len(values)
        return values, rows % len(values)


def _looks_like_ids(column: pd.Series) -> bool:
    """Whether a column has the name of ids, or counts the rows."""
    called = str(column.name).casefold()
    steps = np.diff(column.to_numpy(dtype="float64"))
    is_count = column.iloc[0] in (0, 1) and bool((steps == 1).all())
    return called in ("id", "index") or called.endswith("_id") or is_count


def _value_of(name: str, parameters: Parameters) -> Any:
    if name not in parameters:
        raise InputDataError(f"Expected parameter {name!r}, but got {parameters}.")
    return parameters[name]


def _not_among(name: str, value: Any, values: Sequence[Any]) -> str:
    shown = [str(known) for known in values[:5]]
    if len(values) > 5:
        shown += ["...", str(values[-1])]
    return f"Expected {name!r} among {', '.join(shown)}, but got {value!r}."
