"""The largest upper confidence bounds among products, looked at block by block."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from typing import NamedTuple, TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms.product_table import ProductMask
from botorch_bkb.posteriors.arm_shard import Ranked


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64, 256, 512)
# What rounding may add to a bound in double precision, in prior standard deviations.
MARGIN = 1e-6


class Found(NamedTuple):
    """What a pass has found: all products whose bounds may exceed a floor.

    Attributes:
        scale: The number of standard deviations.
        competes: Which products competed; all if None.
        ranked: The products, by falling bounds, which may be too large.
        floor: No other bound exceeds it.
    """

    scale: float
    competes: ProductMask | None
    ranked: Ranked
    floor: float

    def covers(self, scale: float, competes: ProductMask | None) -> bool:
        """Whether these are bounds of that scale, of all products that compete."""
        if competes is None:
            return scale == self.scale and self.competes is None
        return scale == self.scale and competes.is_part_of(self.competes)


class Search:
    """The largest bounds among the products that were looked at so far.

    Args:
        posterior: The posterior.
        scale: The number of standard deviations.
        size: How many bounds are kept.
        competes: Which products compete; all if None.
        floor: Lower bounds are dropped. It rises when ``size`` are larger.
        is_exact: Whether the bounds are exact, or from the first rows of R.
    """

    def __init__(
        self,
        posterior: ProductPosterior,
        scale: float,
        size: int,
        competes: ProductMask | None,
        floor: float = -math.inf,
        is_exact: bool = True,
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.size = size
        self.competes = competes
        self.floor = floor
        self.is_exact = is_exact
        self.found = Ranked(posterior.like, posterior.pulled_indices[:0])
        self._more: list[Ranked] = []
        self._num_more = 0
        std = math.sqrt(posterior.max_prior_variance)
        self.margin = MARGIN * (1 + scale) * std + posterior.errors[0].item()

    @property
    def low(self) -> float:
        """A bound that is lower, as computed, is lower than the floor."""
        return self.floor - self.margin

    def add(self, indices: Tensor) -> None:
        """Look at more products."""
        posterior = self.posterior
        for part in indices.split(posterior.chunk_size):
            positions = posterior.arms.components(part)
            self.add_rows(part, sum_of_products(posterior.single, positions))

    def add_rows(self, indices: Tensor, K: Tensor) -> None:
        """Look at more products, given their kernel rows in single precision."""
        more = self._bounds(indices, K)
        self._more.append(more)
        self._num_more += len(more.arms)
        if self._num_more >= self.size:
            self.cut()

    def cut(self) -> None:
        """Keep the largest bounds only, in order."""
        columns = zip(self.found, *self._more, strict=True)
        found = in_order(Ranked(*map(torch.cat, columns)))
        self._more, self._num_more = [], 0
        if len(found.arms) > self.size:
            self.floor = max(self.floor, found.values[self.size].item())
            found = found.first(self.size)
        reaches = found.values >= self.floor
        self.found = Ranked(*(column[reaches] for column in found))

    def _bounds(self, indices: Tensor, K: Tensor) -> Ranked:
        """Return the bounds of the products that may reach the floor."""
        posterior, scale = self.posterior, self.scale
        bounds = K[:, :0]
        if not self.is_exact or self.floor > -math.inf:
            bounds, indices = self._upper(indices, K)
        if self.competes is not None:
            allowed = self.competes.allows(indices)
            indices, bounds = indices[allowed], bounds[allowed]
        if not self.is_exact:
            return Ranked(bounds + self.margin, indices)
        posterior.num_evaluated += len(indices)
        _, mean, residual, projected = posterior.moments(indices)
        return Ranked(mean + scale * (residual + projected).sqrt(), indices)

    def _upper(self, indices: Tensor, K: Tensor) -> Ranked:
        """Return the products that reach the floor given rows of R, and their bounds.

        As computed: rounding may make them too small by the margin.
        """
        posterior, scale = self.posterior, self.scale
        bounds = mean = K @ posterior.weights[0]
        variance = torch.full_like(mean, posterior.max_prior_variance)
        stops = (*STAGES[2:], sys.maxsize) if self.is_exact else STAGES[2:5]
        for stage in pairwise((0, *stops)):
            if scale:
                known = K @ posterior.weights[1:][slice(*stage)].mT
                variance = variance - known.square().sum(dim=-1)
                variance = (variance + posterior.slack(stage)).clamp_min(0.0)
                bounds = mean + scale * variance.sqrt()
            reach = (bounds >= self.low).nonzero().squeeze(-1)
            if len(reach) < len(indices):
                indices, K, bounds = indices[reach], K[reach], bounds[reach]
                mean, variance = mean[reach], variance[reach]
            if not scale:
                break
        return Ranked(bounds.to(posterior.like), indices)


def sum_of_products(tables: list[list[Tensor]], positions: Tensor) -> Tensor:
    """Return the sum over terms of the products of their tables' rows."""
    columns = tuple(positions.mT)
    return sum(products_of(term, columns) for term in tables)  # type: ignore[return-value]


def products_of(tables: list[Tensor], positions: tuple[Tensor, ...]) -> Tensor:
    """Return the products of tables' rows at some positions."""
    result = tables[0].index_select(0, positions[0])
    for table, at in zip(tables[1:], positions[1:], strict=True):
        result *= table.index_select(0, at)
    return result


def in_order(ranked: Ranked) -> Ranked:
    """Return the products by falling bounds, the lowest index among ties."""
    arms, order = ranked.arms.sort()
    values, by_value = ranked.values[order].sort(descending=True, stable=True)
    return Ranked(values, arms[by_value])
