"""The largest upper confidence bounds among products, looked at block by block."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from typing import NamedTuple, Self, TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms.product import ProductMask
from botorch_bkb.posteriors.arm_shard import Ranked


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64, 256, 512)
# What rounding may add to a bound in double precision, in prior standard deviations.
MARGIN = 1e-6


class Found(NamedTuple):
    """All products whose bounds reach a floor.

    Attributes:
        scale: The number of standard deviations.
        competes: Which products competed; all if None.
        ranked: The products, by falling bounds.
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

    def within(self, competes: ProductMask | None) -> Self:
        """Return what was found, of the products that compete only."""
        if competes is None:
            return self
        allowed = competes.allows(self.ranked.arms)
        values, arms = (column[allowed] for column in self.ranked)
        return self._replace(competes=competes, ranked=Ranked(values, arms))


class Search:
    """The largest bounds among the products that were looked at so far.

    Args:
        posterior: The posterior.
        scale: The number of standard deviations.
        size: How many bounds are kept.
        competes: Which products compete; all if None.
        floor: Lower bounds are dropped. It rises when ``size`` are larger.
    """

    def __init__(
        self,
        posterior: ProductPosterior,
        scale: float,
        size: int,
        competes: ProductMask | None,
        floor: float = -math.inf,
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.size = size
        self.competes = competes
        self.floor = floor
        self.found = Ranked(posterior.like, posterior.pulled_indices[:0])
        std = math.sqrt(posterior.max_prior_variance)
        self.margin = MARGIN * (1 + scale) * std + posterior.errors[0].item()

    @property
    def low(self) -> float:
        """A bound that is lower, as computed, is lower than the floor."""
        return self.floor - self.margin

    def add(self, indices: Tensor) -> None:
        """Look at more products."""
        for part in indices.split(self.posterior.chunk_size):
            more = self.bounds(part)
            if len(more.arms):
                pairs = zip(self.found, more, strict=True)
                self.found = Ranked(*(torch.cat(pair) for pair in pairs))
            if len(self.found.arms) >= 2 * self.size:
                self.cut()

    def cut(self) -> None:
        """Keep the largest bounds only, in order."""
        found = in_order(self.found)
        if len(found.arms) > self.size:
            found = found.first(self.size)
            self.floor = max(self.floor, found.values[-1].item())
        self.found = found

    def result(self, floor: float = -math.inf) -> Found:
        """Return what was found, if it reaches a floor."""
        self.cut()
        floor = max(floor, self.floor)
        reaches = self.found.values >= floor
        ranked = Ranked(*(column[reaches] for column in self.found))
        return Found(self.scale, self.competes, ranked, floor)

    def bounds(self, indices: Tensor) -> Ranked:
        """Return the bounds of the products that reach the floor."""
        posterior, scale = self.posterior, self.scale
        if self.competes is not None:
            indices = indices[self.competes.allows(indices)]
        if self.low > -math.inf:
            indices = self._reaching(indices)
        posterior.num_evaluated += len(indices)
        _, mean, residual, projected = posterior.moments(indices)
        return Ranked(mean + scale * (residual + projected).sqrt(), indices)

    def _reaching(self, indices: Tensor) -> Tensor:
        """Return the products that may reach the floor, given rows of R."""
        posterior, scale = self.posterior, self.scale
        K = sum_of_products(posterior.single, posterior.arms.components(indices))
        mean = K @ posterior.weights[0]
        variance = torch.full_like(mean, posterior.max_prior_variance)
        for stage in pairwise((*STAGES, sys.maxsize)):
            variance = variance + posterior.slack(stage)
            reaches = mean + scale * variance.clamp_min(0.0).sqrt() >= self.low
            if not reaches.all():
                indices, K = indices[reaches], K[reaches]
                mean, variance = mean[reaches], variance[reaches]
            if not scale:
                break
            known = K @ posterior.weights[1:][slice(*stage)].mT
            variance = variance - known.square().sum(dim=-1)
        return indices


def sum_of_products(tables: list[list[Tensor]], positions: Tensor) -> Tensor:
    """Return the sum over terms of the products of their tables' rows."""
    columns = tuple(positions.mT)
    return sum(products_of(term, columns) for term in tables)  # type: ignore[return-value]


def products_of(tables: list[Tensor], positions: tuple[Tensor, ...]) -> Tensor:
    """Return the products of tables' rows at some positions."""
    result = tables[0].index_select(0, positions[0])
    for table, at in zip(tables[1:], positions[1:], strict=True):
        part = table.index_select(0, at)
        result = result.mul_(part) if result.shape == part.shape else result * part
    return result


def in_order(ranked: Ranked) -> Ranked:
    """Return the products by falling bounds, the lowest index among ties."""
    arms, order = ranked.arms.sort()
    values, by_value = ranked.values[order].sort(descending=True, stable=True)
    return Ranked(values, arms[by_value])
