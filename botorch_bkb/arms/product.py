"""Product spaces: every combination of components, none of them written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import (
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_arms
from botorch_bkb.models.kernels.learned import ComponentKind, product_to_learn
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.rows import BitArms, LazyRows, row_numbers


MOST_ROWS = 10_000_000
# Product numbers are 64-bit integers, of which sums and products are taken.
MOST_PRODUCTS = 10**12

Forbidden = Sequence[Mapping[str, int]] | Callable[[Tensor], Tensor]


class ProductArms(LazyRows):
    r"""All combinations of one element of each of ``c`` lists, called products.

    The last component varies fastest: product ``(i, j, k)`` of ``n_1 x n_2 x n_3`` has
    the number ``(i n_2 + j) n_3 + k``. To PyTorch it is an ``A x c`` tensor of
    positions in the lists, of which nothing is stored.

    Args:
        components: The lists by name. A list of strings: categories. A tensor, array
            or list of floats, ``n`` or ``n x d``: numbers. Integers or booleans, ``n x
            d``, or :class:`~botorch_bkb.arms.BitArms`: fingerprints, counts or bits.
        forbidden: Products that are never selected. Either a list of mappings from the
            names of some components to positions, each of which forbids all products
            with these elements; or a function from ``k x c`` positions to ``k``
            booleans, which is called for blocks of products.
        dtype: The dtype of the model.

    Attributes:
        names: The names of the components.
        tables: Their rows: ``n_i x d_i`` tensors or ``BitArms``.
        categories: Their categories; None of a component of numbers or fingerprints.
        sizes: The numbers ``n_i`` of their elements.
        forbidden: As above.
        fixed: The positions of the components that are fixed, see :meth:`fixing`.

    Raises:
        BotorchTensorDimensionError: If a component has no rows or other dimensions.
        InputDataError: If numbers are not finite, categories are repeated, or a
            forbidden mapping names an unknown component or position.
    """

    names: list[str]
    tables: list[Tensor]
    categories: list[list[str] | None]
    sizes: tuple[int, ...]
    forbidden: Forbidden
    fixed: Mapping[int, int] = MappingProxyType({})

    @staticmethod
    def __new__(
        cls,
        components: Mapping[str, Any],
        forbidden: Forbidden = (),
        dtype: torch.dtype = torch.float64,
    ) -> ProductArms:
        """Check the components."""
        if not components:
            raise InputDataError("Expected at least one component, but got none.")
        found = [_table(name, each, dtype) for name, each in components.items()]
        sizes = tuple(len(rows) for rows, _ in found)
        shape = (math.prod(sizes), len(sizes))
        if shape[0] > MOST_PRODUCTS:
            most = f"at most {MOST_PRODUCTS:.0e} combinations"
            raise InputDataError(f"Expected {most}, but got {shape[0]:.0e}.")
        device = found[0][0].device
        arms: ProductArms = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        arms.names, arms.sizes = list(components), sizes
        arms.tables = [rows for rows, _ in found]
        arms.categories = [categories for _, categories in found]
        if not callable(forbidden):
            rules: Any = forbidden
            forbidden = tuple(rules) if isinstance(rules, Iterable) else (rules,)
            for each in forbidden:
                arms._check_forbidden(each)
        arms.forbidden = forbidden
        return arms

    @property
    def kinds(self) -> list[ComponentKind]:
        """What each component is."""
        return [
            "molecules"
            if isinstance(rows, BitArms)
            else "numbers"
            if categories is None
            else "categories"
            for rows, categories in zip(self.tables, self.categories, strict=True)
        ]

    def components(self, indices: Any) -> Tensor:
        """Return the ``k x c`` positions of products in the lists of components."""
        if not isinstance(indices, Tensor):
            indices = torch.tensor(np.asarray(indices), dtype=torch.long)
        indices = indices.to(self.device)
        return torch.stack(torch.unravel_index(indices, self.sizes), dim=-1)

    def numbers(self, positions: Tensor) -> Tensor:
        """Return the product numbers of ``k x c`` positions."""
        return _ravel(positions.long(), self.sizes)

    def kernel_of(self, covar_module: Kernel) -> ComponentKernel:
        """Return a kernel of the components' columns as a kernel of products."""
        return ComponentKernel(self.tables, covar_module)

    def kernel_to_learn(self) -> ComponentKernel:
        """Return the default kernel, on numbers normalized to the unit cube."""
        kernel = product_to_learn(self.kinds, self.tables)
        tables = []
        for rows, kind in zip(self.tables, self.kinds, strict=True):
            if kind == "numbers":
                low, high = rows.amin(dim=0), rows.amax(dim=0)
                rows = (rows - low) / torch.where(high > low, high - low, 1.0)
            tables.append(rows)
        return ComponentKernel(tables, kernel)

    def fixing(self, fixed: Mapping[int, int]) -> ProductArms:
        """Return the space of the products with these positions of some components."""
        arms: ProductArms = Tensor._make_wrapper_subclass(
            ProductArms, self.shape, dtype=self.dtype, device=self.device
        )
        vars(arms).update(vars(self), fixed=fixed)
        vars(arms).pop("num_allowed", None)
        return arms

    @property
    def num_matching(self) -> int:
        """The number of products that match the fixed components."""
        return len(self) // math.prod(self.sizes[column] for column in self.fixed)

    def matching(self, numbers: Tensor) -> Tensor:
        """Turn indices among the products that match into product numbers."""
        if not self.fixed:
            return numbers
        sizes = [1 if n in self.fixed else size for n, size in enumerate(self.sizes)]
        positions = torch.stack(torch.unravel_index(numbers, sizes), dim=-1)
        for column, position in self.fixed.items():
            positions[:, column] = position
        return self.numbers(positions)

    def matches(self, positions: Sequence[Tensor], first: int = 0) -> Tensor:
        """Return which positions, from component ``first`` on, match the fixed ones."""
        found = torch.ones_like(positions[0], dtype=torch.bool)
        for column, position in self.fixed.items():
            if first <= column < first + len(positions):
                found &= positions[column - first] == position
        return found

    def is_allowed(self, indices: Tensor) -> Tensor:
        """Return whether each of some products matches and is not forbidden."""
        positions = self.components(indices)
        found = self.matches(positions.unbind(-1))
        if callable(self.forbidden):
            banned = torch.as_tensor(self.forbidden(positions), dtype=torch.bool)
            return found & ~banned.to(found.device).reshape(found.shape)
        for columns, numbers in self._rules:
            sizes = [self.sizes[column] for column in columns]
            found &= ~torch.isin(_ravel(positions[:, columns], sizes), numbers)
        return found

    @cached_property
    def num_allowed(self) -> int:
        """The number of allowed products; an upper bound if more than 10^7 match."""
        size = self.num_matching
        if size > MOST_ROWS or self.forbidden == ():
            return size
        blocks = torch.arange(size, device=self.device).split(2**20)
        return sum(int(self.is_allowed(self.matching(b)).sum()) for b in blocks)

    @cached_property
    def _rules(self) -> list[tuple[list[int], Tensor]]:
        """The forbidden combinations by the components that they name."""
        rules: dict[tuple[int, ...], list[int]] = {}
        for each in self.forbidden:  # type: ignore[union-attr]
            columns = sorted(self.names.index(name) for name in each)
            row = torch.tensor([[each[self.names[column]] for column in columns]])
            number = int(_ravel(row, [self.sizes[column] for column in columns]))
            rules.setdefault(tuple(columns), []).append(number)
        device = self.device
        return [(list(k), torch.tensor(v, device=device)) for k, v in rules.items()]

    def _check_forbidden(self, each: Mapping[str, int]) -> None:
        if not isinstance(each, Mapping) or not each:
            raise InputDataError(
                "Expected `forbidden` to be a list of mappings, each from the names of "
                f"some components to positions, but one is {each!r}. Leave empty ones "
                "out, and put a single one into a list."
            )
        for name, position in each.items():
            if name not in self.names:
                raise InputDataError(
                    "Expected `forbidden` to name components, which are "
                    f"{self.names}, but got {name!r}."
                )
            size = self.sizes[self.names.index(name)]
            if position not in range(size):
                raise InputDataError(
                    f"Expected `forbidden` to have positions in the list {name!r}, "
                    f"0 to {size - 1}, but got {position!r}."
                )

    @override
    def dense(self) -> Tensor:
        if len(self) > MOST_ROWS:
            raise UnsupportedError(
                f"Expected an operation on some of {len(self):,} products, but it uses "
                "all. Take those that you need by product number."
            )
        return self.components(torch.arange(len(self))).to(self.dtype)

    @override
    def _rows(self, rows: Tensor | slice) -> Tensor:
        everything = 0, len(self), 1
        if isinstance(rows, slice) and rows.indices(len(self)) == everything:
            return self.fixing(self.fixed)
        return self.components(row_numbers(rows, len(self))).to(self.dtype)

    @override
    def _joined(self, parts: list[Tensor]) -> Tensor:
        if any(len(part) for part in parts[1:]):
            raise UnsupportedError(
                "Expected no arms beside those of a product space. Add elements to its "
                "components, and forbid their other products if need be."
            )
        return self


def scattered_step(size: int) -> int:
    """Return a step near the golden ratio whose multiples pass through all numbers."""
    step = int(size * (math.sqrt(5) - 1) / 2) + 1
    while math.gcd(step, size) > 1:
        step += 1
    return step


def as_numbers(rows: Tensor) -> Tensor:
    """Return rows as floats, for checksums."""
    return rows.words().double() if isinstance(rows, BitArms) else rows


def _ravel(positions: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the numbers of ``k x j`` positions in lists of some sizes."""
    number = torch.zeros_like(positions[:, 0])
    for size, column in zip(sizes, positions.mT, strict=True):
        number = number * size + column
    return number


def _table(
    name: str, values: Any, dtype: torch.dtype
) -> tuple[Tensor, list[str] | None]:
    """Return the rows of a component, and its categories if it is a list of them."""
    if isinstance(values, BitArms):
        return values, None
    if not isinstance(values, Tensor):
        values = np.asarray(values)
        if values.dtype.kind in "OUS":
            categories = [str(value) for value in values.flatten()]
            if values.ndim != 1 or len(set(categories)) < len(categories):
                raise InputDataError(
                    f"Expected one list of distinct categories of {name!r}, or numbers"
                    ", but some are equal, or there are several columns."
                )
            rows = torch.arange(len(categories), dtype=dtype).unsqueeze(-1)
            return rows, categories
        values = torch.from_numpy(values)
    if values.dim() == 1:
        values = values.to(dtype).unsqueeze(-1)
    if not values.is_floating_point():
        if values.numel() and not 0 <= values.min() <= values.max() <= 255:
            raise InputDataError(
                f"Expected counts or bits of {name!r}, from 0 to 255, but its integers "
                f"go from {values.min()} to {values.max()}. Write numbers as floats."
            )
        return BitArms.of(values.to(torch.uint8), dtype=dtype), None
    check_arms(values)
    return values.to(dtype), None
