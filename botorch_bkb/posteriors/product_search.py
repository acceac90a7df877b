"""The largest upper confidence bounds among products, looked at block by block."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms.product_table import ProductMask
from botorch_bkb.posteriors.posterior import Ranked


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64)
# With more than four times as many inducing products, the variance given the results of
# this many near ones is another upper bound.
NUM_NEAR = 128
# Products with the same near results are a group, and share a Cholesky factor. They are
# bounded so unless that costs more than exact variances: the squared number of inducing
# products for each product, against this number for each group.
GROUP_COST = 2**26
# What rounding may add to a bound in double precision, in prior standard deviations.
MARGIN = 1e-6


class Search:
    """The largest bounds among the products that were looked at so far.

    Args:
        posterior: The posterior.
        scale: The number of standard deviations.
        size: How many bounds are kept.
        available: Which products compete; all if None.
        floor: Lower bounds are dropped. It rises when ``size`` are larger.

    Attributes:
        ranked: The products found, by falling bounds, which may be too large.
    """

    def __init__(
        self,
        posterior: ProductPosterior,
        scale: float,
        size: int,
        available: ProductMask | None,
        floor: float = -math.inf,
    ) -> None:
        self.scale = scale
        self.size = size
        self.available = available
        self.floor = floor
        self.ranked = Ranked(posterior.like, posterior.pulled_indices[:0])
        self._more: list[Ranked] = []
        std = math.sqrt(posterior.max_prior_variance)
        self.margin = MARGIN * (1 + scale) * std + posterior.errors[0].item()

    def covers(self, scale: float, available: ProductMask | None) -> bool:
        """Whether these are bounds of that scale, of all products that compete."""
        if self.available is None or scale != self.scale:
            return scale == self.scale
        return available is not None and available.is_part_of(self.available)

    @property
    def low(self) -> float:
        """A bound that is lower, as computed, is lower than the floor."""
        return self.floor - self.margin

    def add(self, posterior: ProductPosterior, indices: Tensor) -> None:
        """Look at upper bounds of more products."""
        self._more.append(self._allowed(self.upper(posterior, indices)))
        if sum(len(more.arms) for more in self._more) >= self.size:
            self.cut()

    def evaluate(self, posterior: ProductPosterior, upper: Ranked) -> None:
        """Look at the exact bounds of more products, given upper ones in order."""
        parts = (column.split(posterior.chunk_size) for column in upper)
        for part in zip(*parts, strict=True):
            bounds, indices = self._allowed(Ranked(*part))
            if len(bounds) and bounds[0] < self.floor:
                break
            posterior.count_evaluated(len(indices))
            _, mean, residual, projected = posterior.moments(indices)
            std = (residual + projected).sqrt()
            self._more.append(Ranked(mean + self.scale * std, indices))
            self.cut()

    def _allowed(self, ranked: Ranked) -> Ranked:
        if self.available is None:
            return ranked
        allowed = self.available.allows(ranked.arms)
        return Ranked(ranked.values[allowed], ranked.arms[allowed])

    def cut(self) -> None:
        """Keep the largest bounds only, in order."""
        ranked = Ranked.merged([self.ranked, *self._more])
        self._more = []
        if len(ranked.arms) > self.size:
            self.floor = max(self.floor, ranked.values[self.size].item())
            ranked = ranked.first(self.size)
        reaches = ranked.values >= self.floor
        self.ranked = Ranked(*(column[reaches] for column in ranked))

    def upper(self, posterior: ProductPosterior, indices: Tensor) -> Ranked:
        """Return the products that may reach the floor, and upper bounds."""
        chunks = indices.split(posterior.chunk_size)
        parts = [self._leading(posterior, chunk) for chunk in chunks]
        ranked = Ranked(*map(torch.cat, zip(*parts, strict=True)))
        if self.scale and len(posterior.basis.L) > 4 * NUM_NEAR:
            ranked = self._near(posterior, ranked)
        return Ranked(ranked.values + self.margin, ranked.arms)

    def _leading(self, posterior: ProductPosterior, indices: Tensor) -> Ranked:
        """Return the products that reach the floor given rows of R, and their bounds.

        As computed: rounding may make them too small by the margin.
        """
        scale = self.scale
        K = sum_of_products(posterior.single, posterior.arms.components(indices))
        bounds = mean = K @ posterior.weights[0]
        variance = torch.full_like(mean, posterior.max_prior_variance)
        for stage in pairwise((0, *STAGES[2:])) if scale else ():
            known = K @ posterior.weights[1:][slice(*stage)].mT
            variance = variance - known.square().sum(dim=-1)
            variance = (variance + posterior.slack(stage)).clamp_min(0.0)
            bounds = mean + scale * variance.sqrt()
            reach = (bounds >= self.low).nonzero().squeeze(-1)
            if len(reach) < len(indices):
                indices, K, bounds = indices[reach], K[reach], bounds[reach]
                mean, variance = mean[reach], variance[reach]
        return Ranked(bounds.to(posterior.like), indices)

    def _near(self, posterior: ProductPosterior, upper: Ranked) -> Ranked:
        """Return bounds from the results of near products: fewer leave more variance.

        Products that differ in one component only use the same results, and share their
        Cholesky factor.
        """
        arms, indices = posterior.arms, upper.arms
        positions = arms.components(indices)
        groups = []
        for column in range(len(arms.sizes)):
            others = positions.clone()
            others[:, column] = 0
            found = arms.numbers(others).unique(return_inverse=True, return_counts=True)
            groups.append((len(found[2]), column, *found[1:]))
        _, column, group, counts = min(groups, key=lambda group: group[:2])
        if len(posterior.basis.L) ** 2 * len(indices) < GROUP_COST * len(counts):
            return upper
        bounds = posterior.like.new_empty(len(indices))
        for members in group.argsort().split(counts.tolist()):
            mean, variance = posterior.given_near(positions[members], column, NUM_NEAR)
            bounds[members] = mean + self.scale * variance.sqrt()
        reach = bounds >= self.low
        return Ranked(bounds[reach], indices[reach])


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
