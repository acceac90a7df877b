"""The arms of an experiment, the parameters that name them, and what is refused."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from ax.core.experiment import Experiment
from ax.core.objective import Objective
from ax.core.parameter import (
    ChoiceParameter,
    FixedParameter,
    ParameterType,
    RangeParameter,
)
from ax.core.parameter_constraint import ParameterConstraint
from ax.core.search_space import SearchSpace
from ax.core.types import ComparisonOp
from ax.utils.common.sympy import parse_objective_expression
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from botorch_bkb.arms import ProductArms, TableArms
from botorch_bkb.arms.columns import has_words
from botorch_bkb.arms.table import as_arms
from botorch_bkb.bandits.roles import AtLeast, AtMost, Maximize, Minimize, Role
from botorch_bkb.tables.columns import (
    is_numeric,
    read_table,
    require_column,
    require_ids,
)


Parameters = Mapping[str, Any]
MAX_TABLE_SIZE = 100_000
DISCRETE_REMEDY = (
    "Give a range a `step_size`, or list its values as a choice (Ax allows 1,000); "
    "leave out derived parameters."
)
_FOLDERS: list[Path] = []
_CONSTRAINT_TOLERANCE = 1e-8  # Ax's own


class ArmSource(ABC):
    """A set of arms: the product of the values of Ax's parameters."""

    # The last parameter varies fastest. Fixed parameters have one value.
    _values: Mapping[str, Sequence[Any]] = MappingProxyType({})
    # Those of a product space; None of a table.
    _constraints: Sequence[ParameterConstraint] | None = None

    @abstractmethod
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the ``A x d`` arms of an experiment, the same at every call."""

    def _bind(self, values: Mapping[str, Sequence[Any]]) -> None:
        if self._values and self._values != values:
            raise UnsupportedError(
                f"Expected the parameters that this {type(self).__name__} was loaded "
                f"with, but got {values}. Use a new one for another experiment."
            )
        self._values = values

    def _shape(self) -> list[int]:
        return [len(values) for values in self._values.values()]

    def parameters(self, index: int) -> dict[str, Any]:
        """Return Ax's parameters of an arm."""
        positions = map(int, np.unravel_index(index, self._shape()))
        items = zip(self._values.items(), positions, strict=True)
        return {name: values[position] for (name, values), position in items}

    def index(self, parameters: Parameters) -> int:
        """Return the arm of Ax's parameters, or raise an ``InputDataError``."""
        positions = []
        for name, values in self._values.items():
            value = parameters.get(name)
            if value not in values:
                shown = [str(known) for known in values[:5]]
                if len(values) > 5:
                    shown += ["...", str(values[-1])]
                raise InputDataError(
                    f"Expected {name!r} among {', '.join(shown)}, but got {value!r}."
                )
            positions.append(values.index(value))
        return int(np.ravel_multi_index(positions, self._shape()))

    def allowed(
        self, fixed: Parameters, constraints: Sequence[ParameterConstraint]
    ) -> Tensor | None:
        """Return which of the ``A`` arms have fixed parameters and fulfil constraints.

        None if nothing limits the arms.

        Raises:
            InputDataError: If no arm is left.
        """
        if not fixed and not constraints:
            return None
        grid = np.meshgrid(*self._values.values(), indexing="ij", sparse=True)
        axes = dict(zip(self._values, grid, strict=True))
        allowed = np.ones(self._shape(), dtype=bool)
        for name, value in fixed.items():
            allowed &= axes[name] == value if name in axes else False
        for constraint in constraints:
            allowed &= _fulfils(constraint, axes)
        if not allowed.any():
            raise InputDataError(
                f"Expected an arm with `fixed_parameters` {dict(fixed)} that fulfils "
                f"`parameter_constraints` {list(constraints)}, but there is none. The "
                f"parameters are {list(self._values)}."
            )
        return torch.from_numpy(allowed.ravel())


def register_folder(folder: str | os.PathLike[str]) -> None:
    """Also look for the tables of stored experiments in this folder, by their names.

    The checksum of an :class:`ArmFile` tells whether a file is its table.
    """
    _FOLDERS.append(Path(folder))


@dataclass
class ArmFile(ArmSource):
    """A table of arms in a file, named by an integer parameter: the row number.

    The experiment needs ``RangeParameterConfig(name="arm", bounds=(0, A - 1),
    parameter_type="int")``. The absolute path and a checksum are stored. A table that
    has moved is found in the current folder and in those of :func:`register_folder`.

    Args:
        path: A ``*.npy`` file with an ``A x d`` array, or a table of numbers and words
            of any kind that the command line reads: see "Tables for suggest".
        parameter: The name of the parameter.
        checksum: The SHA-256 of the file; None to compute it now.
        id: The column that names the arms and is not a feature.

    Attributes:
        ids: The names of the arms in that column, in order.

    Raises:
        FileNotFoundError: If there is no such file.
        InputDataError: If the file has another checksum, a cell is missing, or a column
            without the option ``id`` has another word in each row.

    Example:
        >>> table.to_csv("arms.csv", index=False)  # compound, mass, charge
        >>> arms = ArmFile("arms.csv", id="compound")
        >>> node = BanditNode(arms)
        >>> for number, parameters in client.get_next_trials(max_trials=8).items():
        ...     compound = arms.ids[parameters["arm"]]
    """

    path: str
    parameter: str = "arm"
    checksum: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        """Take the checksum, or check it."""
        self.path = str(Path(self.path).absolute())
        found = hashlib.sha256(self._file().read_bytes()).hexdigest()
        if self.checksum is not None and self.checksum != found:
            raise InputDataError(
                f"Expected {self._file()} to be the table of the first trial (SHA-256 "
                f"{self.checksum[:12]}...), but it has changed to {found[:12]}.... "
                "Restore it: indices of arms would mean other rows."
            )
        self.checksum = found
        self.ids: list[str] = []
        self._read()

    def _file(self) -> Path:
        path = Path(self.path)
        for place in (path, *(folder / path.name for folder in [Path(), *_FOLDERS])):
            if place.is_file():
                return place
        raise FileNotFoundError(
            f"Expected the table of arms {path}, but there is none. If it has moved, "
            "first call `botorch_bkb.integrations.ax.register_folder` with its folder."
        )

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms.

        Raises:
            InputDataError: If the parameter does not range over the rows of the file.
            UnsupportedError: If there are other parameters that are not fixed, or
                these are the arms of another experiment already.
        """
        arms = self._read()
        values: dict[str, Sequence[Any]] = {}
        for name, other in search_space.parameters.items():
            if isinstance(other, FixedParameter):
                values[name] = [other.value]
            elif name == self.parameter:
                values[name] = range(len(arms))
            else:
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
        self._bind(values)
        return arms

    def _read(self) -> Tensor:
        """Return the features, and keep the ids."""
        file = self._file()
        if file.suffix == ".npy" and self.id is None:
            return as_arms(np.load(file, allow_pickle=False).astype("float64"))
        table = read_table(file, [self.id]).frame
        if self.id is not None:
            require_column(table, self.id, file, "`id`")
            require_ids(table[self.id], file)
            self.ids = table.pop(self.id).tolist()
        for name, column in table.items():
            if not is_numeric(column) and column.is_unique:
                raise InputDataError(
                    f"Expected {self.path} to be a table of numbers and of words that "
                    f"come again, but column {name!r} has {column.iloc[0]!r} and other "
                    "words. A column that names the arms is `ArmFile(..., id=...)`."
                )
        if has_words(table):
            return TableArms(table)
        return as_arms(table.to_numpy(dtype="float64"))


@dataclass
class ChoiceGrid(ArmSource):
    """The product of all choices and integer ranges of an experiment.

    Numbers are features as they are (with ``scaling="log"``, their logarithms), and
    ordered text counts from zero; text and numbers without order are categories, as in
    :class:`~botorch_bkb.arms.TableArms`. Ax treats two values as ordered; two words are
    categories. More than 100,000 combinations are a
    :class:`~botorch_bkb.arms.ProductArms`, which is never written out. Parameter
    constraints are its forbidden products.
    """

    @override
    def load(self, search_space: SearchSpace) -> Tensor:
        """Return the arms, the last parameter fastest.

        Raises:
            UnsupportedError: If a parameter is neither discrete nor fixed, or these are
                the arms of another experiment already.
        """
        blocks: dict[str, Any] = {}
        values: dict[str, Sequence[Any]] = {}
        for name, parameter in search_space.parameters.items():
            if isinstance(parameter, FixedParameter):
                values[name] = [parameter.value]
            elif isinstance(parameter, ChoiceParameter):
                values[name] = list(parameter.values)
                blocks[name] = _features(parameter)
            elif isinstance(parameter, RangeParameter) and (
                parameter.cardinality() <= MAX_TABLE_SIZE
            ):
                values[name] = range(int(parameter.lower), int(parameter.upper) + 1)
                numbers = torch.tensor(values[name], dtype=torch.float64).unsqueeze(-1)
                blocks[name] = numbers.log() if parameter.log_scale else numbers
            else:
                raise UnsupportedError(
                    f"Expected choices, and ranges of at most {MAX_TABLE_SIZE:,} "
                    f"integers, but {name!r} is a {type(parameter).__name__} of type "
                    f"{parameter.parameter_type.name}. {DISCRETE_REMEDY}"
                )
        self._bind(values)
        if math.prod(self._shape()) > MAX_TABLE_SIZE:
            self._constraints = list(search_space.parameter_constraints)
            varied = {name: each for name, each in blocks.items() if len(each) > 1}
            forbidden = self._is_forbidden if self._constraints else ()
            return ProductArms(varied, forbidden=forbidden)
        if all(isinstance(block, Tensor) for block in blocks.values()):
            return product_rows([torch.empty(1, 0).double(), *blocks.values()])
        lists = [np.ravel(block).tolist() for block in blocks.values()]
        product = pd.MultiIndex.from_product(lists, names=list(blocks))
        return TableArms(product.to_frame(index=False))

    def _is_forbidden(self, positions: Tensor) -> Tensor:
        """Return which products violate the constraints."""
        varied = [name for name, values in self._values.items() if len(values) > 1]
        places = dict(zip(varied, positions.cpu().numpy().T, strict=True))
        constraints = self._constraints or ()
        values = {
            name: np.asarray(self._values[name])[places.get(name, 0)]
            for name in set().union(*(each.constraint_dict for each in constraints))
        }
        fulfils = [_fulfils(each, values) for each in constraints]
        return torch.from_numpy(~np.all(fulfils, axis=0))

    @override
    def allowed(
        self, fixed: Parameters, constraints: Sequence[ParameterConstraint]
    ) -> Tensor | None:
        if self._constraints is None:
            return super().allowed(fixed, constraints)
        if fixed or list(constraints) != self._constraints:
            raise UnsupportedError(
                f"Expected no `fixed_parameters` for more than {MAX_TABLE_SIZE:,} "
                f"combinations, and the `parameter_constraints` that the bandit began "
                f"with, {self._constraints}, but got {dict(fixed)} and "
                f"{list(constraints)}. Use a new node, and constraints in the place of "
                "fixed parameters."
            )
        return None


def _fulfils(constraint: ParameterConstraint, values: Mapping[str, Any]) -> Any:
    """Return whether parameters' values fulfil a linear constraint."""
    terms = constraint.constraint_dict.items()
    excess = sum(weight * values[name] for name, weight in terms) - constraint.bound
    excess = np.abs(excess) if constraint.is_equality else excess
    return excess <= _CONSTRAINT_TOLERANCE


def _features(parameter: ChoiceParameter) -> Tensor | list[str]:
    """Return the values of a choice parameter, ``n x 1`` numbers or words."""
    values = list(parameter.values)
    is_number = all(isinstance(value, int | float) for value in values)
    if not (parameter.is_ordered if len(values) > 2 else is_number):
        return list(map(str, values))
    numbers = values if is_number else range(len(values))
    return torch.tensor(list(numbers), dtype=torch.float64).unsqueeze(-1)


def without_words(arms: TableArms) -> Tensor:
    """Return arms with a 0/1 column for each word, as version 1.0 had them."""
    columns = zip(arms.numbers.mT, arms.kinds, strict=True)
    blocks = [
        one_hot(column.long()) if kind == "categories" else column.unsqueeze(-1)
        for column, kind in columns
    ]
    return torch.cat([block.to(arms.numbers) for block in blocks], dim=-1)


def product_rows(blocks: Sequence[Tensor]) -> Tensor:
    """Return all combinations of a row of each block, the last block fastest."""
    rows = [torch.arange(len(block)) for block in blocks]
    places = torch.cartesian_prod(*rows).reshape(-1, len(rows)).unbind(-1)
    pairs = zip(blocks, places, strict=True)
    return torch.cat([block[place] for block, place in pairs], dim=-1)


def outcome_roles(
    experiment: Experiment,
) -> tuple[dict[str, list[Role]], dict[str, float]]:
    """Return the roles of metrics, by name, and the objective thresholds.

    Names are sorted, since databases may change the order of metrics.

    Raises:
        UnsupportedError: If there is no objective, an objective or a constraint is not
            one metric times a number, a bound is relative, or there is a target of
            pruning or a preference profile.
    """
    config = experiment.optimization_config
    if config is None:
        raise UnsupportedError(
            "Expected an experiment with an objective, but it has none. Use "
            "`client.configure_optimization`."
        )
    weights = [weight for _, weight in config.objective.metric_weights]
    roles: dict[str, list[Role]] = {
        name: [Minimize() if weight < 0 else Maximize()]
        for name, weight in zip(config.objective.metric_names, weights, strict=True)
    }
    if not _is_linear(config.objective, roles):
        # Ax 1.3.1 would use the metric itself in place of its square.
        raise UnsupportedError(
            "Expected objectives that are metrics, with a minus to minimize them, but "
            f"got {config.objective.expression!r}, which is not linear, or is a sum. "
            "Complete trials with that value, as a metric of its own."
        )
    for name in ("pruning_target_parameterization", "preference_profile_name"):
        if getattr(config, name, None):
            raise UnsupportedError(
                f"Expected an experiment without `{name}`, which bandits do not "
                f"support, but got {getattr(config, name)}. Leave it out."
            )
    for each in config.all_constraints:
        if each.relative or len(each.metric_names) > 1:
            raise UnsupportedError(
                "Expected constraints of one metric by a number, such as 'cost <= 2', "
                f"but got {each.expression!r}. Write a number in place of `baseline`, "
                "with `relative=False` for an `OutcomeConstraint`. Complete trials "
                "with the value of a sum, as a metric of its own."
            )
    for each in config.outcome_constraints:
        limit = (AtMost if each.op == ComparisonOp.LEQ else AtLeast)(each.bound)
        roles.setdefault(each.metric_names[0], []).append(limit)
    thresholds = {one.metric_names[0]: one.bound for one in config.objective_thresholds}
    return dict(sorted(roles.items())), dict(sorted(thresholds.items()))


def _is_linear(objective: Objective, roles: Mapping[str, Sequence[Role]]) -> bool:
    """Whether each objective is one metric times a number."""
    goals = [f"{'-' * (own == [Minimize()])}{name}" for name, own in roles.items()]
    if objective.expression == ", ".join(goals):
        return True  # also for names that sympy cannot parse
    parsed = parse_objective_expression(objective.expression)
    parts = parsed if isinstance(parsed, tuple) else (parsed,)
    terms = [[*part.as_coefficients_dict()] for part in parts]
    return all(len(own) == 1 and own[0].is_Symbol for own in terms)


def check_search_space(search_space: SearchSpace) -> None:
    """Raise an ``UnsupportedError`` if a parameter has a role beyond its value."""
    for name, parameter in search_space.parameters.items():
        is_task = getattr(parameter, "is_task", False)
        is_plain = not (parameter.is_fidelity or is_task or parameter.is_hierarchical)
        if not is_plain or parameter.is_disabled:
            raise UnsupportedError(
                f"Expected parameters without a role, but {name!r} is a fidelity, a "
                "task or disabled, or has `dependent_parameters`, which bandits do not "
                "support. Leave it out."
            )
