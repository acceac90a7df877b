"""The largest upper confidence bounds among products, looked at block by block."""

from __future__ import annotations

import math
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from botorch_bkb.arms.product_table import ProductMask
from botorch_bkb.posteriors.posterior import Ranked


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64, 256)
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
        lowered: Those of them whose bounds have fallen since, in such lists.
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
        self.lowered: list[Ranked] = []
        self._more: list[Ranked] = []
        self._num_more = 0
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
        bounds = self.upper(posterior, indices)
        reach = bounds >= self.floor
        self._more.append(self._allowed(Ranked(bounds[reach], indices[reach])))
        self._num_more += len(self._more[-1].arms)
        if self._num_more >= 2 * self.size:
            self.join()

    def exact(
        self, posterior: ProductPosterior, size: int, available: ProductMask | None
    ) -> tuple[Ranked, Search]:
        """Return the largest exact bounds, larger than all that were not found.

        And this search with these bounds. Pulls without reward only lower them, so it
        serves a posterior given more of these, and each product is evaluated again
        only if it may be among the best.

        Args:
            posterior: The posterior.
            size: How many, at most.
            available: Which products compete.
        """
        best = Search(posterior, self.scale, size, available, self.floor)
        left, fallen = [self.ranked, *self.lowered], []
        heads = [ranked.head for ranked in left]
        while max(heads) >= best.floor and max(heads) > -math.inf:
            i = heads.index(max(heads))
            part = left[i].first(posterior.chunk_size)
            part = left[i].first(int((part.values >= best.floor).count_nonzero()))
            left[i] = left[i].after(len(part.arms))
            heads[i] = left[i].head
            fallen.append(best.evaluate(posterior, part))
        if not fallen:
            return best.ranked, self
        # To sort all of them again would take longer than to evaluate some.
        after, lists = copy(self), [*left[1:], Ranked.merged(fallen)]
        after.ranked, after.lowered = left[0], [one for one in lists if len(one.arms)]
        return best.ranked, after

    def evaluate(self, posterior: ProductPosterior, known: Ranked) -> Ranked:
        """Look at exact bounds of products, given upper ones; return upper ones now.

        Products that may not be chosen are not evaluated, nor are those whose upper
        bounds from the posterior are low.
        """
        bounds, arms = known.values.to(posterior.like, copy=True), known.arms
        is_open = torch.ones_like(arms, dtype=torch.bool)
        if self.available is not None:
            is_open = self.available.allows(arms)
        bounds[is_open] = bounds[is_open].minimum(self.upper(posterior, arms[is_open]))
        reach = (is_open & (bounds >= self.floor)).nonzero().squeeze(-1)
        posterior.evaluated.append(len(reach))
        _, mean, residual, projected = posterior.moments(arms[reach])
        exact = mean + self.scale * (residual + projected).sqrt()
        self._more.append(Ranked(exact, arms[reach]))
        self.cut()
        # Computed again, beside other products, it may be rounded up.
        bounds[reach] = exact + self.margin
        return Ranked(bounds, arms)

    def _allowed(self, ranked: Ranked) -> Ranked:
        if self.available is None:
            return ranked
        allowed = self.available.allows(ranked.arms)
        return Ranked(ranked.values[allowed], ranked.arms[allowed])

    def cut(self) -> None:
        """Keep the largest bounds only, in order."""
        ranked = Ranked.merged([self.ranked, *self._more])
        self._more, self._num_more = [], 0
        if len(ranked.arms) > self.size:
            self.floor = max(self.floor, ranked.values[self.size].item())
            ranked = ranked.first(self.size)
        reaches = ranked.values >= self.floor
        self.ranked = Ranked(*(column[reaches] for column in ranked))

    def join(self) -> None:
        """Keep the largest of what was added, in that order: needs less memory."""
        values, arms = map(torch.cat, zip(*self._more, strict=True))
        if len(values) > self.size:
            least = values.kthvalue(len(values) - self.size).values.item()
            self.floor = max(self.floor, least)
        kept = values > self.floor
        ties = (values == self.floor).nonzero().squeeze(-1)
        kept[ties[: self.size - int(kept.count_nonzero())]] = True
        self._more = [Ranked(values[kept], arms[kept])]
        self._num_more = len(self._more[0].arms)

    def upper(self, posterior: ProductPosterior, indices: Tensor) -> Tensor:
        """Return upper bounds: close ones, unless they are below the floor."""
        tables, components = posterior.single, posterior.arms.components
        parts = (
            self._leading(posterior, sum_of_products(tables, components(chunk)))
            for chunk in indices.split(posterior.chunk_size)
        )
        return torch.cat([*parts])

    def _leading(self, posterior: ProductPosterior, K: Tensor) -> Tensor:
        """Return upper bounds given rows of R, few of them for a low bound.

        Rounding makes them too small by the margin at most, which is added.
        """
        mean = K @ posterior.weights[0]
        variance = torch.full_like(mean, posterior.max_prior_variance)
        bounds = mean + self.scale * variance.sqrt()
        left = torch.arange(len(K), device=K.device)
        for stage in pairwise((0, *STAGES[2:])) if self.scale else ():
            reach = (bounds[left] >= self.low).nonzero().squeeze(-1)
            if len(reach) < len(left):
                left, K = left[reach], K[reach]
                mean, variance = mean[reach], variance[reach]
            known = K @ posterior.weights[1:][slice(*stage)].mT
            variance = variance - known.square().sum(dim=-1)
            variance = (variance + posterior.slack(stage)).clamp_min(0.0)
            bounds[left] = mean + self.scale * variance.sqrt()
        return bounds + self.margin


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
