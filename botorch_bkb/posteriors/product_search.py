"""The largest upper confidence bounds among products, looked at block by block."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple, TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms.product_table import ProductMask
from botorch_bkb.posteriors.posterior import Ranked


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64)
# With over four times as many inducing products, results of so many near ones bound
# variances, too, unless that costs more than exact variances. An exact one costs the
# squared number of inducing products, and a group of products with the same near ones:
NUM_NEAR = 128
GROUP_COST = 2**26
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
        self._more: list[Ranked] = []
        self._num_more = 0
        std = math.sqrt(posterior.max_prior_variance)
        self.margin = MARGIN * (1 + scale) * std + posterior.errors[0].item()

    @property
    def low(self) -> float:
        """A bound that is lower, as computed, is lower than the floor."""
        return self.floor - self.margin

    def add(self, indices: Tensor) -> None:
        """Look at upper bounds of more products."""
        self._keep(self._allowed(self.upper(indices)))
        if self._num_more >= self.size:
            self.cut()

    def evaluate(self, upper: Ranked) -> None:
        """Look at the exact bounds of more products, given upper ones in order."""
        posterior, size = self.posterior, self.posterior.chunk_size
        parts = zip(*(column.split(size) for column in upper), strict=True)
        for part in parts:
            bounds, indices = self._allowed(Ranked(*part))
            if len(bounds) and bounds[0] < self.floor:
                break
            posterior.count_evaluated(len(indices))
            _, mean, residual, projected = posterior.moments(indices)
            std = (residual + projected).sqrt()
            self._keep(Ranked(mean + self.scale * std, indices))
            self.cut()

    def _allowed(self, ranked: Ranked) -> Ranked:
        if self.competes is None:
            return ranked
        allowed = self.competes.allows(ranked.arms)
        return Ranked(ranked.values[allowed], ranked.arms[allowed])

    def _keep(self, more: Ranked) -> None:
        self._more.append(more)
        self._num_more += len(more.arms)

    def cut(self) -> None:
        """Keep the largest bounds only, in order."""
        found = Ranked.merged([self.found, *self._more])
        self._more, self._num_more = [], 0
        if len(found.arms) > self.size:
            self.floor = max(self.floor, found.values[self.size].item())
            found = found.first(self.size)
        reaches = found.values >= self.floor
        self.found = Ranked(*(column[reaches] for column in found))

    def upper(self, indices: Tensor) -> Ranked:
        """Return the products that may reach the floor, and upper bounds."""
        posterior = self.posterior
        parts = [self._leading(part) for part in indices.split(posterior.chunk_size)]
        ranked = Ranked(*map(torch.cat, zip(*parts, strict=True)))
        if self.scale and len(posterior.basis.L) > 4 * NUM_NEAR:
            ranked = self._near(ranked)
        return Ranked(ranked.values + self.margin, ranked.arms)

    def _leading(self, indices: Tensor) -> Ranked:
        """Return the products that reach the floor given rows of R, and their bounds.

        As computed: rounding may make them too small by the margin.
        """
        posterior, scale = self.posterior, self.scale
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

    def _near(self, upper: Ranked) -> Ranked:
        """Return bounds from the results of near products: fewer leave more variance.

        Products that differ in one component only use the same results, and share their
        Cholesky factor.
        """
        posterior, arms = self.posterior, self.posterior.arms
        indices = upper.arms
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
