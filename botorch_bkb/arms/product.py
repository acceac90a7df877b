"""Product spaces: every combination of components, none of them written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.table import ArmTable, checksum, PullCounts, PullLimits, UNLIMITED
from botorch_bkb.checks import check_arms, check_indices
from botorch_bkb.models.kernels.learned import product_to_learn
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.bits import BitArms
from botorch_bkb.models.utils.draws import draw_integers
from botorch_bkb.models.utils.rows import LazyRows


MOST_ROWS = 10_000_000
# Product numbers are 64-bit integers, of which sums and products are taken.
MOST_PRODUCTS = 10**12
# So many products in turn are looked at for one that is allowed.
MOST_PROBES = 2**20

Forbidden = Sequence[Mapping[str, int]] | Callable[[Tensor], Tensor]


class ProductArms(LazyRows):
    r"""All combinations of one element of each of ``c`` lists, by product number.

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
        is_category: Whether a component is a list of categories.
        sizes: The numbers ``n_i`` of their elements.
        forbidden: As above.

    Raises:
        BotorchTensorDimensionError: If a component has no rows or other dimensions.
        InputDataError: If numbers are not finite, categories are repeated, or a
            forbidden mapping names an unknown component or position.
    """

    names: list[str]
    tables: list[Tensor]
    is_category: list[bool]
    sizes: tuple[int, ...]
    forbidden: Forbidden

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
        arms.is_category = [is_category for _, is_category in found]
        if not callable(forbidden):
            for each in forbidden:
                arms._check_forbidden(each)
        arms.forbidden = forbidden
        return arms

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
        kernel = product_to_learn(self.tables, self.is_category)
        tables = []
        for rows, is_category in zip(self.tables, self.is_category, strict=True):
            if not is_category and not isinstance(rows, BitArms):
                low, high = rows.amin(dim=0), rows.amax(dim=0)
                rows = (rows - low) / torch.where(high > low, high - low, 1.0)
            tables.append(rows)
        return ComponentKernel(tables, kernel)

    def is_allowed(self, indices: Tensor) -> Tensor:
        """Return whether each of some products is not forbidden."""
        positions = self.components(indices)
        if callable(self.forbidden):
            return ~self.forbidden(positions).to(positions.device)
        found = torch.ones_like(indices, dtype=torch.bool)
        for columns, numbers in self._rules:
            sizes = [self.sizes[column] for column in columns]
            found &= ~torch.isin(_ravel(positions[:, columns], sizes), numbers)
        return found

    @cached_property
    def num_allowed(self) -> int:
        """The number of products that are not forbidden; all if they are too many."""
        if len(self) > MOST_ROWS or self.forbidden == ():
            return len(self)
        blocks = torch.arange(len(self), device=self.device).split(2**20)
        return sum(int(self.is_allowed(block).sum()) for block in blocks)

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
        for name, position in each.items():
            if name not in self.names:
                raise InputDataError(
                    "Expected `forbidden` to name components, which are "
                    f"{self.names}, but got {name!r}."
                )
            check_indices([position], self.sizes[self.names.index(name)])

    @override
    def dense(self) -> Tensor:
        if len(self) > MOST_ROWS:
            raise UnsupportedError(
                f"Expected an operation on some of {len(self):,} products, but it uses "
                "all. Take those that you need by product number."
            )
        return self.components(torch.arange(len(self))).to(self.dtype)

    @property
    @override
    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)

    @override
    def _rows(self, rows: Tensor | slice) -> Tensor:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if (start, stop, step) == (0, len(self), 1):
                return self
            rows = torch.arange(start, stop, step)
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(-1)
        return self.components(rows).to(self.dtype)

    @override
    def _joined(self, parts: list[Tensor]) -> Tensor:
        if any(len(part) for part in parts[1:]):
            raise UnsupportedError(
                "Expected no arms beside those of a product space. Add elements to its "
                "components, and forbid their other products if need be."
            )
        return self


@dataclass(frozen=True)
class ProductTable:
    """A product space, some of its products retired; the interface of ``ArmTable``."""

    rows: ProductArms
    retired: Tensor

    @classmethod
    def of(cls, rows: ProductArms) -> Self:
        """Return the table of a product space, nothing of it retired."""
        return cls(rows, torch.empty(0, dtype=torch.long, device=rows.device))

    @property
    def num_arms(self) -> int:
        """The number of products."""
        return len(self.rows)

    @property
    def indices(self) -> Tensor:
        """All product numbers; an error if they are too many to write out."""
        if self.num_arms > MOST_ROWS:
            raise UnsupportedError(
                f"Expected some product numbers, but this asks for all "
                f"{self.num_arms:,}. Name the products."
            )
        return torch.arange(self.num_arms, device=self.retired.device)

    @property
    def is_retired(self) -> Tensor:  # noqa: D102
        return torch.isin(self.indices, self.retired)

    def find(self, arms: Any) -> tuple[Tensor, Tensor]:
        """Return the product numbers of ``k x c`` positions; none is new."""
        positions = torch.as_tensor(arms)
        sizes = torch.tensor(self.rows.sizes)
        shape = (positions.shape[0], len(sizes))
        if positions.shape != shape:
            raise BotorchTensorDimensionError(
                f"Expected positions of products, k x {len(sizes)}, but got "
                f"{tuple(positions.shape)}."
            )
        is_whole = positions == positions.round()
        if not (is_whole & (positions >= 0) & (positions < sizes)).all():
            raise InputDataError(
                "Expected positions in the lists of components, which have "
                f"{self.rows.sizes} elements. Add other elements to the lists."
            )
        return self.rows.numbers(positions), self.rows._like

    def state_dict(self) -> dict[str, Any]:
        """Return what identifies the space, and the retired products."""
        sums = [checksum(as_numbers(rows)) for rows in self.rows.tables]
        return {"sizes": self.rows.sizes, "checksums": sums, "retired": self.retired}

    def loaded(self, state: dict[str, Any]) -> Self:
        """Return the table in the state that :meth:`state_dict` returned."""
        own = self.state_dict()
        fits = tuple(state.get("sizes", ())) == own["sizes"] and all(
            torch.allclose(saved.to(mine), mine, rtol=1e-6)
            for saved, mine in zip(state["checksums"], own["checksums"], strict=True)
        )
        if not fits:
            raise InputDataError(
                "Expected the state of a bandit over this product space, but it has "
                "other components. Construct the bandit with those of the saved one."
            )
        return replace(self, retired=state["retired"].to(self.retired))

    def retire(self, indices: Tensor, is_retired: bool = True) -> Self:
        """Return a table where products are retired, or are no longer."""
        others = self.retired[~torch.isin(self.retired, indices)]
        retired = torch.cat([others, indices.unique()]) if is_retired else others
        return replace(self, retired=retired.sort().values)

    def offered(
        self, available: Any = None, arms: Any = None
    ) -> tuple[Tensor | None, Tensor]:
        """Return what ``ask`` was given; an error unless that is nothing."""
        if available is not None or arms is not None:
            raise UnsupportedError(
                "Expected neither `available` nor `arms`, since all products compete. "
                "Use `forbidden` of the product space, or `retire_arms`."
            )
        return None, self.rows._like

    def competing(self, pulled: Tensor | None = None) -> Any:
        """Return which products may be the best.

        Args:
            pulled: Products to which that is limited, unless none of them is in play.
        """
        mask = ProductMask(self.rows, self.retired)
        if pulled is not None and mask.allows(pulled).any():
            return replace(mask, among=pulled)
        return mask

    def draw_competing(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw products that are not retired, uniformly."""
        limits = ProductLimits(self.competing(), UNLIMITED, {})
        drawn = [limits.draw(generator) for _ in range(size)]
        return torch.tensor(drawn, device=self.retired.device)

    def pull_limits(
        self,
        offered: Tensor | None,
        max_repeats: int | None,
        used: PullCounts,
        min_size: int = 1,
    ) -> ProductLimits:
        """Return how many more pulls each product allows."""
        most = UNLIMITED if max_repeats is None else max_repeats
        arms, place = used.arms.unique(return_inverse=True)
        counts = torch.zeros_like(arms).index_add_(0, place, used.counts.to(arms))
        full = arms[counts >= most]
        left = dict(zip(arms.tolist(), (most - counts).tolist(), strict=True))
        mask = ProductMask(self.rows, torch.cat([self.retired, full]).unique())
        return ProductLimits(mask, most, left)


@dataclass(frozen=True, eq=False)
class ProductMask:
    """Which products may be chosen.

    Attributes:
        rows: The product space.
        closed: Products that may not, ascending.
        among: The only products that may; None for all.
    """

    rows: ProductArms
    closed: Tensor
    among: Tensor | None = None

    def is_part_of(self, other: ProductMask | None) -> bool:
        """Whether every product that is available here is available there."""
        if other is None:
            return True
        return other.among is None and bool(torch.isin(other.closed, self.closed).all())

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of some products may be chosen."""
        found = ~torch.isin(indices, self.closed) & self.rows.is_allowed(indices)
        return found if self.among is None else found & torch.isin(indices, self.among)


class ProductLimits(PullLimits):
    """How many more pulls each product allows.

    Args:
        mask: Which products allow a pull.
        most: How many, unless ``left`` has another number.
        left: How many more pulls products with pulls allow.

    Attributes:
        num_open: The number of products that allow a pull; at least that if they are
            too many to be counted.
    """

    offered = None

    def __init__(self, mask: ProductMask, most: int, left: dict[int, int]) -> None:
        self.mask = mask
        self.most = most
        self.left_of = left
        num_closed = int(mask.rows.is_allowed(mask.closed).sum())
        self.num_open = mask.rows.num_allowed - num_closed

    @property
    @override
    def allowed(self) -> Any:
        return self.mask

    @property
    @override
    def least(self) -> int:
        return min([self.most, *(left for left in self.left_of.values() if left > 0)])

    @override
    def of(self, index: int) -> int:
        allowed = self.allows(self.mask.closed.new_tensor([index]))
        return self.left_of.get(index, self.most) if allowed else 0

    @override
    def allows(self, indices: Tensor) -> Tensor:
        return self.mask.allows(indices)

    @override
    def total(self, enough: int) -> int:
        return min(enough, self.num_open) if self.most == 1 else enough

    @override
    def draw(self, generator: torch.Generator) -> int:
        size = len(self.mask.rows)
        return self.numbered(int(draw_integers(size, 1, generator)))

    @override
    def numbered(self, number: int) -> int:
        """Return the first product that allows a pull in a scattered order.

        Args:
            number: Where the order begins.
        """
        size = len(self.mask.rows)
        step = scattered_step(size)
        order = torch.arange(min(size, MOST_PROBES), device=self.mask.closed.device)
        for start in range(0, len(order), 1024):
            indices = (number + order[start : start + 1024] * step) % size
            allowed = indices[self.allows(indices)]
            if len(allowed):
                return int(allowed[0])
        raise InputDataError(
            f"Expected an available product, but none of {len(order):,} is. "
            "Check `forbidden`, retired products and `max_repeats`."
        )

    @override
    def copy(self) -> ProductLimits:
        return ProductLimits(self.mask, self.most, dict(self.left_of))

    @override
    def take(self, index: int, num_pulls: int) -> bool:
        left = self.left_of.get(index, self.most)
        if left == UNLIMITED:
            return False
        self.left_of[index] = left - num_pulls
        if left == num_pulls:
            self.mask = self.closed(self.mask.closed.new_tensor([index])).mask
            self.num_open -= 1
        return left == num_pulls

    @override
    def closed(self, indices: Tensor) -> ProductLimits:
        closed = torch.cat([self.mask.closed, indices]).unique()
        mask = replace(self.mask, closed=closed)
        return ProductLimits(mask, self.most, self.left_of)

    @override
    def without(self, indices: Tensor) -> ProductLimits:
        other = self.copy()
        for index in indices.tolist():
            other.take(index, 1)
        return other

    def once(self, used: Tensor, size: int) -> ProductLimits:
        """Return limits of one pull of every product, new ones if there are enough."""
        new = self.closed(used)
        limits = new if new.num_open >= size else self
        return ProductLimits(limits.mask, 1, {})


def scattered_step(size: int) -> int:
    """Return a step near the golden ratio whose multiples pass through all numbers."""
    step = int(size * (math.sqrt(5) - 1) / 2) + 1
    while math.gcd(step, size) > 1:
        step += 1
    return step


def table_of(arms: Tensor) -> ArmTable | ProductTable:
    """Return the table of arms or of a product space."""
    return ProductTable.of(arms) if isinstance(arms, ProductArms) else ArmTable.of(arms)


def as_numbers(rows: Tensor) -> Tensor:
    """Return what tells the rows of a component apart, as numbers."""
    return rows.words().double() if isinstance(rows, BitArms) else rows


def _ravel(positions: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the numbers of ``k x j`` positions in lists of some sizes."""
    number = torch.zeros_like(positions[:, 0])
    for size, column in zip(sizes, positions.mT, strict=True):
        number = number * size + column
    return number


def _table(name: str, values: Any, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """Return the rows of a component, and whether it is a list of categories."""
    if isinstance(values, BitArms):
        return values, False
    if not isinstance(values, Tensor):
        values = np.asarray(values)
        if values.dtype.kind in "OUS":
            if len(set(values.tolist())) < len(values):
                raise InputDataError(
                    f"Expected distinct categories of {name!r}, but some are equal."
                )
            return torch.arange(len(values), dtype=dtype).unsqueeze(-1), True
        values = torch.from_numpy(values)
    if values.dim() == 1:
        values = values.to(dtype).unsqueeze(-1)
    if not values.is_floating_point() and values.min() >= 0 and values.max() <= 255:
        return BitArms.of(values.to(torch.uint8), dtype=dtype), False
    check_arms(values)
    return values.to(dtype), False
