"""The table of a product space, and limits on the pulls of products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any, Self

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms.columns import by_name, column_names, TableArms
from botorch_bkb.arms.product import as_numbers, MOST_ROWS, ProductArms, scattered_step
from botorch_bkb.arms.table import (
    ArmTable,
    as_arms,
    checksum,
    is_same_sum,
    PullCounts,
    PullLimits,
    UNLIMITED,
)
from botorch_bkb.checks import as_tensor
from botorch_bkb.models.utils.draws import draw_integers


# So many products in turn are looked at for one that is allowed.
MOST_PROBES = 2**20


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
    def indices(self) -> Tensor:
        """All product numbers; an error if they are too many to write out."""
        if len(self.rows) > MOST_ROWS:
            raise UnsupportedError(
                f"Expected some product numbers, but this asks for all "
                f"{len(self.rows):,}. Name the products."
            )
        return torch.arange(len(self.rows), device=self.retired.device)

    @property
    def is_retired(self) -> Tensor:  # noqa: D102
        return torch.isin(self.indices, self.retired)

    def find(self, arms: Any) -> tuple[Tensor, Tensor]:
        """Return the product numbers of ``k x c`` positions; none is new."""
        positions = by_name(arms, self.rows.names)
        positions = as_tensor("arms", positions, "positions of products").double()
        sizes = torch.tensor(self.rows.sizes)
        if positions.dim() != 2 or positions.shape[1] != len(sizes):
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
        rows = self.rows
        return {
            "components": dict(zip(rows.names, rows.categories, strict=True)),
            "sizes": list(rows.sizes),
            "dtype": str(rows.dtype),
            "checksums": [checksum(table) for table in rows.tables],
            "retired": self.retired,
        }

    def loaded(self, state: dict[str, Any]) -> Self:
        """Return the table in the state that :meth:`state_dict` returned."""
        own = self.state_dict()
        # In their order, by which products are numbered.
        fits = [*state["components"].items()] == [*own["components"].items()]
        fits = fits and state["sizes"] == own["sizes"]
        for saved, table in zip(state["checksums"], self.rows.tables, strict=False):
            # Version 1.0 added up the words of packed bits.
            mine = checksum(table if len(saved) > 2 else as_numbers(table))
            fits &= is_same_sum(mine, saved, state["dtype"] == own["dtype"])
        if not fits:
            raise InputDataError(
                "Expected the state of a bandit over this product space, but it has "
                "other components, or others in their lists. Construct the bandit with "
                f"those of the saved one, in their order and with {state['dtype']}."
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

    def first_equal(self, indices: Tensor) -> Tensor:  # noqa: D102
        return indices

    def has_others(self, measured: Tensor) -> bool:
        """Whether a product other than these distinct ones may be the best."""
        mask = self.competing()
        return mask.num_open > int(mask.allows(measured).sum())

    def competing(
        self, pulled: Tensor | None = None, also: Tensor | None = None
    ) -> ProductMask:
        """Return which products may be the best: not retired, unless all are.

        Args:
            pulled: Products to which that is limited, unless all are retired. They were
                measured, so forbidden ones count, too.
            also: Products that count although they may be forbidden.
        """
        if also is not None:
            also = also[~self.rows.is_allowed(also)]
            also = also if len(also) else None
        mask = ProductMask(self.rows, self.retired, also=also)
        if mask.num_open == 0:
            mask = ProductMask(self.rows, self.retired[:0], also=also)
        among = replace(mask, among=pulled)
        return mask if pulled is None or not among.allows(pulled).any() else among

    def draw_competing(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw products that are not retired, uniformly."""
        mask = self.competing()
        drawn = [mask.draw(generator) for _ in range(size)]
        return torch.tensor(drawn, device=self.retired.device)

    def pull_limits(
        self,
        available: Tensor | None,
        max_repeats: int | None,
        used: PullCounts,
        min_size: int = 1,
    ) -> ProductLimits:
        """Return how many more pulls each product allows."""
        most = UNLIMITED if max_repeats is None else max_repeats
        arms, place = used.arms.unique(return_inverse=True)
        counts = torch.zeros_like(arms).index_add_(0, place, used.counts.to(arms))
        left = dict(zip(arms.tolist(), (most - counts).tolist(), strict=True))
        mask = ProductMask(self.rows, self.retired).without(arms[counts >= most])
        limits = ProductLimits(mask, most, left)
        if limits.num_open == 0:
            raise InputDataError(
                "Expected an allowed product, but all are forbidden, retired or have "
                "had their repeats. Allow more repeats, or add elements."
            )
        return limits


@dataclass(frozen=True, eq=False)
class ProductMask:
    """Which products may be chosen.

    Attributes:
        rows: The product space.
        closed: Products that may not, ascending.
        among: The only products that may, forbidden ones too; None for all allowed.
        also: Forbidden products that may; None for none.
    """

    rows: ProductArms
    closed: Tensor
    among: Tensor | None = None
    also: Tensor | None = None

    def is_part_of(self, other: ProductMask) -> bool:
        """Whether every product that is available here is available there."""
        if other.among is not None or self.also is not other.also:
            return False
        if not other.rows.fixed.items() <= self.rows.fixed.items():
            return False
        return bool(torch.isin(other.closed, self.closed).all())

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of some products may be chosen."""
        if self.among is None:
            is_in = self.rows.is_allowed(indices)
            if self.also is not None:
                is_in |= torch.isin(indices, self.also)
        else:
            is_in = torch.isin(indices, self.among)
        return is_in & ~torch.isin(indices, self.closed)

    @cached_property
    def num_open(self) -> int:
        """The number of products; an upper bound beyond 10^7 products."""
        return self.rows.num_allowed - int(self.rows.is_allowed(self.closed).sum())

    def without(self, indices: Tensor) -> ProductMask:
        """Return the mask of the other products."""
        return replace(self, closed=torch.cat([self.closed, indices]).unique())

    def draw(self, generator: torch.Generator) -> int:
        """Draw one of the products, uniformly."""
        return self.numbered(int(draw_integers(self.rows.num_matching, 1, generator)))

    def numbered(self, number: int) -> int:
        """Return the first of the products in a scattered order.

        Args:
            number: Where the order begins.
        """
        size = self.rows.num_matching
        step = scattered_step(size)
        order = torch.arange(min(size, MOST_PROBES), device=self.closed.device)
        for part in order.split(1024):
            indices = self.rows.matching((number + part * step) % size)
            allowed = indices[self.allows(indices)]
            if len(allowed):
                return int(allowed[0])
        raise InputDataError(
            f"Expected an available product, but none of {len(order):,} is. "
            "Check `forbidden`, retired products and `max_repeats`."
        )


class ProductLimits(PullLimits):
    """How many more pulls each product allows.

    Args:
        mask: Which products allow a pull.
        most: How many, unless ``left`` has another number.
        left: How many more pulls some products allow.
    """

    available = None

    def __init__(self, mask: ProductMask, most: int, left: Mapping[int, int]) -> None:
        self.mask = mask
        self.most = most
        is_open = mask.allows(mask.closed.new_tensor(list(left))).tolist()
        self.left = dict(compress(left.items(), is_open))
        self.num_open = mask.num_open

    @property
    @override
    def allowed(self) -> Any:
        return self.mask

    @override
    def allows(self, indices: Tensor) -> Tensor:
        return self.mask.allows(indices)

    @override
    def draw(self, generator: torch.Generator) -> int:
        return self.mask.draw(generator)

    @override
    def numbered(self, number: int) -> int:
        return self.mask.numbered(number)

    @override
    def _close(self, index: int) -> None:
        self.mask = self.mask.without(self.mask.closed.new_tensor([index]))

    @override
    def copy(self) -> ProductLimits:
        return ProductLimits(self.mask, self.most, self.left)

    @override
    def closed(self, indices: Tensor) -> ProductLimits:
        return ProductLimits(self.mask.without(indices), self.most, self.left)

    @override
    def thinned(self, size: int) -> ProductLimits:
        return self  # the posterior of products does that

    def fixing(self, fixed: Mapping[int, int]) -> ProductLimits:
        """Return limits where other positions of components allow no pull."""
        mask = replace(self.mask, rows=self.mask.rows.fixing(fixed))
        return ProductLimits(mask, self.most, self.left)

    def once(self, used: Tensor) -> ProductLimits:
        """Return limits of one pull of every product, of new ones if there are some."""
        new = self.mask.without(used)
        return ProductLimits(new if new.num_open else self.mask, 1, {})


def table_of(arms: Any) -> ArmTable | ProductTable:
    """Return the table of arms, of which those of a frame keep names, or a table."""
    if isinstance(arms, ArmTable | ProductTable):
        return arms
    if isinstance(arms, ProductArms):
        return ProductTable.of(arms)
    rows = as_arms(arms, takes_words=True)
    names = rows.names if isinstance(rows, TableArms) else column_names(arms)
    return replace(ArmTable.of(rows), columns=names)
