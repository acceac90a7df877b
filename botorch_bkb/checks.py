"""Checks of arguments, one function each, called before anything changes.

Each raises an ``InputDataError``, or a ``BotorchTensorDimensionError`` if a shape is
wrong. The error names the argument, what was expected, what came and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.transforms.input import InputPerturbation
from botorch.utils.types import _DefaultType
from torch import Tensor


# The largest number whose square does not overflow.
LARGEST = 1e150


def _require(
    holds: bool, name: str, expected: str, value: Any, remedy: str = ""
) -> None:
    if not holds:
        remedy = remedy and f" {remedy}"
        raise InputDataError(
            f"Expected `{name}` to be {expected}, but got {value!r}.{remedy}"
        )


def as_number(value: Any) -> float:
    """Return a value as a number, NaN if it is not one."""
    if isinstance(value, str | bytes):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_truth(name: str, value: Any) -> bool:
    """Return True or False."""
    _require(isinstance(value, bool | np.bool_), name, "True or False", value)
    return bool(value)


def check_number(
    name: str, value: Any, least: float = -LARGEST, most: float = LARGEST
) -> float:
    """Return a number between two others."""
    holds = isinstance(value, Real) and least <= as_number(value) <= most
    _require(holds, name, f"a number from {least:g} to {most:g}", value)
    return float(value)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Return the least and the largest value, perhaps infinite; all if None."""
    ends = (-math.inf, math.inf) if value is None else value
    ends = [as_number(end) for end in ends] if np.iterable(ends) else []
    holds = len(ends) == 2 and ends[0] < ends[1]
    _require(holds, name, "two numbers, the smaller one first", value)
    return ends[0], ends[1]


def check_positive(name: str, value: Any, remedy: str = "") -> None:
    """Raise unless an argument is a positive finite number."""
    holds = 0 < as_number(value) < math.inf
    _require(holds, name, "positive and finite", value, remedy)


def check_not_negative(name: str, value: Any, remedy: str = "") -> None:
    """Raise unless an argument is a finite number of at least zero."""
    holds = 0 <= as_number(value) < math.inf
    _require(holds, name, "finite and not negative", value, remedy)


def check_fraction(name: str, value: Any) -> None:
    """Raise unless an argument is strictly between 0 and 1."""
    _require(0 < as_number(value) < 1, name, "strictly between 0 and 1", value)


def check_count(name: str, value: Any, most: float = math.inf) -> int:
    """Return a count from 0 to a largest one."""
    holds = is_integer(value) and 0 <= value <= most
    _require(holds, name, f"an integer from 0 to {most}", value)
    return int(value)


def check_size(name: str, value: int) -> None:
    """Raise unless an argument is an integer of at least 1."""
    holds = is_integer(value) and value >= 1
    _require(holds, name, "an integer of at least 1", value)


def check_choice(name: str, value: Any, meanings: Mapping[str, str]) -> None:
    """Raise unless an argument is one of a few words, given with their meanings."""
    *others, last = [f"{word!r} ({meaning})" for word, meaning in meanings.items()]
    holds = isinstance(value, str) and value in meanings
    _require(holds, name, f"{', '.join(others)} or {last}", value)


def check_time(time: Any, last: float = -math.inf) -> float:
    """Return a time as a number; raise if it is not finite, or before the last one."""
    value = as_number(time)
    since = f", not before {last:g}, the last known time" if last > -math.inf else ""
    holds = max(last, -LARGEST) <= value <= LARGEST
    _require(holds, "time", f"a finite number{since}", time)
    return value


def check_noise_variance(noise_variance: float | None) -> None:
    """Raise unless this is a positive number, or None."""
    if noise_variance is not None:
        check_positive(
            "noise_variance",
            noise_variance,
            "Pass None to learn it; for rewards without noise, pass a small part of "
            "their variance, such as 1e-6 of it.",
        )


def check_generator(generator: torch.Generator | None) -> None:
    """Raise unless this is a generator, or None."""
    holds = generator is None or isinstance(generator, torch.Generator)
    expected = "a torch.Generator, such as `torch.Generator().manual_seed(0)`"
    _require(holds, "generator", expected, generator)


def check_modules(kind: type, **values: Any) -> None:
    """Raise unless each argument is one module of a kind, or None.

    Args:
        kind: The class, such as ``Kernel``.
        **values: The arguments, by name.

    Raises:
        InputDataError: If one is something else.
        UnsupportedError: If one is a batch of modules.
    """
    for name, value in values.items():
        holds = value is None or isinstance(value, (kind, _DefaultType))
        remedy = f"Pass `{value.__name__}()`." if isinstance(value, type) else ""
        _require(holds, name, f"an object of class {kind.__name__}", value, remedy)
        # A mean has the attribute if its parameters come in batches.
        batch_shape = getattr(value, "batch_shape", ())
        # That of a used perturbation is its number of perturbations.
        if len(batch_shape) > 0 and not isinstance(value, InputPerturbation):
            raise UnsupportedError(
                f"Expected `{name}` to be one {kind.__name__}, but it is a batch of "
                f"shape {tuple(batch_shape)}. Leave out `batch_shape`, or pass "
                "`per_dim_lengthscales=False` to an OrthogonalAdditiveKernel in it."
            )


def check_tensors(**values: Any) -> None:
    """Raise unless each argument is a dense tensor of floats, or None."""
    for name, value in values.items():
        if value is not None:
            _check_floats(name, value)


def _check_floats(name: str, value: Any) -> None:
    found: Any = type(value).__name__
    if isinstance(value, Tensor):
        found = value.dtype if value.layout == torch.strided else value.layout
    if found not in (torch.float32, torch.float64):
        raise InputDataError(
            f"Expected `{name}` to be a dense tensor of dtype float64 or float32, but "
            f"got {found}. Use `torch.as_tensor({name}, dtype=torch.double)`, or "
            "`to_dense()` of a sparse tensor."
        )


def check_numbers(**values: Tensor | None) -> None:
    """Raise if a tensor of data holds NaN or infinity."""
    for name, value in values.items():
        if value is not None and not value.isfinite().all():
            first = (~value.isfinite()).nonzero()[0].tolist()
            raise InputDataError(
                f"Expected `{name}` without NaN and infinity, but {name}{first} is "
                f"{value[tuple(first)].item()}. Leave its row out of all data."
            )


def check_columns(of: str, X: Tensor, **columns: Tensor | None) -> None:
    """Raise unless columns hold a finite number for each row of ``... x n x d``."""
    for name, value in columns.items():
        if value is not None and value.shape[-2:] != (X.shape[-2], 1):
            raise BotorchTensorDimensionError(
                f"Expected `{name}` to be a column with a row for each row of `{of}`, "
                f"but got shapes {tuple(value.shape)} and {tuple(X.shape)}. Use "
                f"`{name}.reshape(-1, 1)`, and leave out rows that one of them lacks."
            )
    check_numbers(**{of: X}, **columns)


def check_training_data(
    model: str, train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None
) -> None:
    """Raise unless data are unbatched, of one output, and fit each other."""
    check_tensors(train_X=train_X, train_Y=train_Y, train_Yvar=train_Yvar)
    if train_X.dim() != 2 or train_Y.shape[1:].numel() != 1:
        raise UnsupportedError(
            "Expected unbatched `train_X` (n x d) and one output in `train_Y` "
            f"(n x 1), but got shapes {tuple(train_X.shape)} and "
            f"{tuple(train_Y.shape)}. Use a `ModelListGP` of `{model}`s for several "
            "outputs. For cross-validation, use `SingleTaskDTCGP.loo_posterior`, or "
            "`loo_cv` for exact models, in place of `batch_cross_validation`."
        )
    check_columns("train_X", train_X, train_Y=train_Y, train_Yvar=train_Yvar)


def check_arms(arms: Tensor) -> None:
    """Raise unless these are ``A x d`` finite features with ``A, d >= 1``."""
    _check_floats("arms", arms)
    if arms.dim() != 2 or 0 in arms.shape:
        raise BotorchTensorDimensionError(
            "Expected `arms` of shape A x d with at least one arm and one feature, but "
            f"got {tuple(arms.shape)}."
        )
    bad = (~arms.isfinite()).any(dim=-1).nonzero()
    if bad.numel():
        raise InputDataError(
            f"Expected finite `arms`, but {bad.shape[0]} rows hold NaN or infinity, "
            f"the first is row {int(bad[0])}. Impute or drop them."
        )


def check_bounds(bounds: Any) -> None:
    """Raise unless these are finite ``2 x d`` bounds, each lower below its upper."""
    _check_floats("bounds", bounds)
    if bounds.dim() != 2 or bounds.shape[0] != 2 or bounds.shape[1] == 0:
        raise BotorchTensorDimensionError(
            f"Expected `bounds` of shape 2 x d, but got {tuple(bounds.shape)}."
        )
    if not (bounds[1] > bounds[0]).all() or not bounds.isfinite().all():
        raise InputDataError(
            "Expected finite `bounds` with every upper one above the lower one, but "
            f"got {bounds.tolist()}."
        )


def check_points(points: Any, bounds: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``q x d`` points like the bounds; raise if one is outside.

    They are rounded to a dtype, as points are that were asked for in it.
    """
    points = as_tensor("points", points, "a tensor of points").to(dtype).to(bounds)
    if points.dim() != 2 or points.shape[-1] != bounds.shape[-1]:
        raise BotorchTensorDimensionError(
            f"Expected `points` of shape q x {bounds.shape[-1]}, but got "
            f"{tuple(points.shape)}."
        )
    inside = ((points >= bounds[0]) & (points <= bounds[1])).all(dim=-1)
    if not inside.all():
        row = int((~inside).nonzero()[0])
        raise InputDataError(
            f"Expected `points` inside `bounds`, but row {row} is "
            f"{points[row].tolist()}."
        )
    return points


def check_available(available: Any, num_arms: int) -> Tensor:
    """Return an ``A``-dim boolean tensor."""
    mask = as_tensor("available", available, "a boolean tensor")
    if mask.shape != (num_arms,) or mask.dtype != torch.bool:
        raise InputDataError(
            f"Expected `available` to be a boolean tensor of shape ({num_arms},), but "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    return mask


def check_indices(indices: Any, num_arms: int) -> list[int]:
    """Return arm indices as a list."""
    meaning = "row numbers of `arms` (`add_arms(rows)` returns those of rows)"
    arms = _integers("indices", indices, meaning)
    if arms and not 0 <= min(arms) <= max(arms) < num_arms:
        unknown = next(arm for arm in arms if not 0 <= arm < num_arms)
        raise InputDataError(
            f"Expected `indices` between 0 and {num_arms - 1}, but got {unknown}. "
            f"Indices are {meaning}."
        )
    return arms


def check_pull_ids(pull_ids: Any, num_pulls: int) -> list[int]:
    """Return the ids of pulls as a list; raise unless each pull has its own."""
    ids = _integers("pull_ids", pull_ids, "ids of pending pulls")
    if len(ids) != num_pulls or len(set(ids)) != num_pulls:
        raise InputDataError(
            f"Expected `pull_ids` to hold {num_pulls} different ids, one per pull, "
            f"but got {ids}."
        )
    return ids


def check_rewards(rewards: Any, num_pulls: int, dtype: torch.dtype) -> list[float]:
    """Return rewards as a list.

    Raises:
        BotorchTensorDimensionError: If there is not one reward per pull.
        InputDataError: If a reward is not a number, NaN, infinite, or so large that
            squares overflow in the dtype of the arms.
    """
    values = as_tensor("rewards", rewards, "real numbers").double()
    if values.dim() == 0 or values.shape[1:] == (1,):
        values = values.reshape(-1)
    if values.shape != (num_pulls,):
        raise BotorchTensorDimensionError(
            "Expected `rewards` to hold one number per index, i.e. shape "
            f"({num_pulls},) or ({num_pulls}, 1), but got {tuple(values.shape)}. One "
            "output only."
        )
    usable = values.abs() < 1e-6 * torch.finfo(dtype).max ** 0.5
    if not usable.all():
        position = int((~usable).nonzero()[0])
        raise InputDataError(
            f"Expected finite `rewards` whose squares fit {dtype}, but got "
            f"{values[position].item()} at position {position}. Use `fail` for a pull "
            "without a reward."
        )
    return values.tolist()


def check_known_noise(noise: Any, num_pulls: int, dtype: torch.dtype) -> list[float]:
    """Return the noise variances of results as a list, 0 for unknown ones.

    ``noise`` is one variance for all results or one each; None or NaN: not known.

    Raises:
        BotorchTensorDimensionError: If there is neither one number nor one per result.
        InputDataError: If a variance is not positive and finite in the arms' dtype.
    """
    if noise is None:
        return [0.0] * num_pulls
    values = as_tensor("noise_variance", noise, "real numbers").double()
    values = values.squeeze(-1) if values.dim() == 2 else values
    values = values.expand(num_pulls) if values.dim() == 0 else values
    if values.shape != (num_pulls,):
        raise BotorchTensorDimensionError(
            "Expected `noise_variance` to be a number, or to hold one per result, i.e. "
            f"shape ({num_pulls},), but got {tuple(values.shape)}."
        )
    most = min(LARGEST, 1e-12 * torch.finfo(dtype).max)
    usable = values.isnan() | ((values > 1 / most) & (values < most))
    if not usable.all():
        position = int((~usable).nonzero()[0])
        raise InputDataError(
            "Expected `noise_variance` to be positive and finite, the square of a "
            f"result's standard deviation, but got {values[position].item()} at "
            f"position {position}. Pass NaN if it is not known."
        )
    return values.nan_to_num(0.0).tolist()


def check_one(**given: object) -> None:
    """Raise an ``InputDataError`` unless one of the arguments is not None."""
    found = [name for name, each in given.items() if each is not None]
    if len(found) != 1:
        raise InputDataError(
            f"Expected one of {[*given]}, which say what was measured, but got {found}."
        )


def check_labels(name: str, labels: Any, num_pulls: int) -> list[str]:
    """Return the names of results as strings, empty for those without.

    ``labels`` is one name for all results or one each; None, NaN and "" for no name.

    Raises:
        BotorchTensorDimensionError: If there is neither one name nor one per result.
    """
    if labels is None:
        return [""] * num_pulls
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    names = [labels] * num_pulls if np.ndim(labels) == 0 else list(labels)
    if np.shape(names) != (num_pulls,):
        raise BotorchTensorDimensionError(
            f"Expected `{name}` to be a name, or to hold one per result, i.e. shape "
            f"({num_pulls},), but got {np.shape(names)}."
        )
    # A column of whole numbers with empty cells holds floats.
    words = [x if isinstance(x, str) else str(x).removesuffix(".0") for x in names]
    return ["" if word in ("None", "nan", "NaT", "<NA>") else word for word in words]


def _integers(name: str, values: Any, meaning: str) -> list[int]:
    found = as_tensor(name, values, meaning)
    if found.numel() == 0 and found.dim() <= 1:
        return []
    if found.dim() > 1 or found.is_floating_point() or found.dtype == torch.bool:
        raise InputDataError(
            f"Expected `{name}` to be a one-dimensional tensor or list of integers, "
            f"{meaning}, but got {found.dtype} of shape {tuple(found.shape)}."
        )
    return found.reshape(-1).tolist()


def as_tensor(name: str, values: Any, meaning: str) -> Tensor:
    """Return a dense tensor of real numbers.

    NumPy converts other values: a list of floats stays double, and a column of a table
    keeps its order, while torch would use its labels.
    """
    try:
        if not isinstance(values, Tensor):
            values = np.array(values)
            if values.dtype == object:  # of a column, whose cells may be numbers
                values = np.array(values.tolist())
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputDataError(
            f"Expected `{name}` to be {meaning}, but got {values!r}."
        ) from error
    if found.is_complex() or found.layout != torch.strided:
        raise InputDataError(
            f"Expected `{name}` to be {meaning}, but got a tensor of {found.dtype}, "
            f"{found.layout}."
        )
    return found.detach()
