r"""The posterior of all products of components, none of which is written out.

For a kernel that is a sum of products over components, the kernel rows of ``m``
inducing products are elementwise products of small ``n_i x m`` tables, and posterior
means of all products are matrix products. With ``L L^T = K_S`` and ``V = I + U diag(s)
U^T`` (see :mod:`~botorch_bkb.posteriors.basis`), ::

    variance(x) = k(x, x) - |R k_S(x)|^2,    R = diag(sqrt(s / (1 + s))) U^T L^{-1}

and every partial sum over rows of ``R`` bounds the variance from above. So the largest
upper confidence bounds are found by one pass for means; products that may reach the
best bounds found so far get some rows of ``R``, and the few that are left get their
exact variances. Means and rows of ``R`` are computed in single precision, with a margin
for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import cast, Self

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from botorch_bkb.arms.product import ProductArms, scattered_step
from botorch_bkb.arms.product_table import ProductMask
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.nystrom import explaining_rows, independent_points
from botorch_bkb.posteriors.basis import Basis
from botorch_bkb.posteriors.grouped import GroupedResults
from botorch_bkb.posteriors.posterior import Ranked, StaticPosterior
from botorch_bkb.posteriors.product_cells import Cells
from botorch_bkb.posteriors.product_search import (
    products_of,
    Search,
    STAGES,
    sum_of_products,
)


# Means of so many products are computed at once: they fit a processor's cache.
BLOCK_SIZE = 2**18
# So many rows of R are multiplied with a block at once.
NUM_TOGETHER = 4
# The last components are joined until they have so many combinations.
LAST_SIZE = 64
# Numbers in the kernel rows of products that are computed at once.
CHUNK_NUMBERS = 2**19
NUM_SAMPLED = 2048
# Picking the kernel rows of a product costs as much as products with so many rows of R.
GATHERING_COST = 256
# Single precision is used if rounding adds less prior standard deviations to a bound.
MAX_MARGIN = 0.05
# So many scattered products tell which bounds are among the largest.
NUM_SCATTERED = 2**13
# A pass keeps this share of all products, within limits.
KEPT_SHARE, MIN_KEPT, MAX_KEPT = 1 / 64, 2**15, 2**21
# It ends with no more than this times as many.
CUT = 4
# The next pass for a batch keeps so many times as many.
GROWTH = 4


class ProductPosterior(StaticPosterior):
    r"""Mean and variance of all products under a sparse GP posterior.

    Memory: ``O(sum_i n_i m + m^2)``, blocks of 2^18 products, and the bounds that a
    pass keeps, some millions at most. Time of a pass over ``A`` products: ``2 A m``
    operations for means and for each row of ``R``, and ``O(m^2)`` for each product that
    is evaluated exactly: few of them, more if the bounds are wide.

    Args:
        arms: The product space.
        covar_module: A :class:`~botorch_bkb.models.kernels.product.ComponentKernel`.
        noise_variance: lambda.

    Attributes:
        basis: The small matrices.
        pulled_indices: The ``P`` products with rewards, ascending.
        data: Their summed precisions, and reward sums over lambda, ``2 x P``.
        found: The largest bounds of the last pass; None if there was none yet.
        earlier: Those of a pass given fewer pulls without reward: bounds only fall.
    """

    def __init__(
        self, arms: ProductArms, covar_module: Kernel, noise_variance: float
    ) -> None:
        self.arms: ProductArms = arms
        self.covar_module = kernel = cast(ComponentKernel, covar_module)
        self.noise_variance = noise_variance
        self.num_arms = len(arms)
        self.like = arms._like
        self._diagonals = kernel.diagonals(self.like)
        parts = (math.prod(d.max().item() for d in t) for t in self._diagonals)
        self.max_prior_variance = sum(parts)
        none = torch.empty(0, dtype=torch.long, device=arms.device)
        self.update(none, none, self.like, self.like)

    @torch.no_grad()
    @override
    def update(
        self,
        inducing_indices: Tensor,
        pulled_indices: Tensor,
        counts: Tensor,
        sums: Tensor,
        grouped: GroupedResults | None = None,
    ) -> None:
        data = torch.stack([counts, sums]).to(self.like) / self.noise_variance
        self.pulled_indices, order = pulled_indices.sort()
        self.data, self.grouped = data[:, order], grouped
        K = self.prior_covariance(inducing_indices, inducing_indices)
        kept = independent_points(K)
        self.inducing_indices = indices = inducing_indices[kept]
        L = torch.linalg.cholesky(K[kept][:, kept])
        K = self.prior_covariance(indices, self.pulled_indices)
        Z = torch.linalg.solve_triangular(L, K, upper=False)
        inside = torch.ones_like(indices, dtype=torch.bool)
        scatter, target = self.scatter_and_target(Z)
        self.basis = Basis(indices, L, inside, L[:, :0], scatter, target)
        self.log_det = 2 * self.basis.L_v.diagonal().log().sum().item()
        self._tables = self.covar_module.tables(self.arms[indices])
        weights = self.basis.weights.unsqueeze(-1)
        self.alpha = torch.linalg.solve_triangular(L.mT, weights, upper=True)[:, 0]
        self.lost_rows = L[:0]
        self.feature_bytes = self.num_arms * len(L) * L.element_size()  # never held
        self.root = self._leading_rows()
        self.earlier: Search | None = None
        # How many at a time, shared with the posteriors given more pulls.
        self.evaluated: list[int] = []
        self._prepare()

    @property
    def num_evaluated(self) -> int:
        """How many exact variances were computed since the last update."""
        return sum(self.evaluated)

    @override
    def given(self, pulls: Mapping[int, int], projected: bool = False) -> Self:
        other = super().given(pulls, projected)
        if other.pulls is None or other is self:
            return other
        # The pulls' covariances with any product, of its rows with S and the pulls.
        L, C = self.basis.L, other.pulls.C
        rows = torch.linalg.solve_triangular(L.mT, other.pulls.vectors, upper=True)
        own = torch.eye(len(C)).to(C) * (not other.pulls.projected)
        rows = torch.cat([rows.mT, own], dim=-1)
        other.lost_rows = torch.linalg.solve_triangular(C, rows, upper=False)
        arms = self.inducing_indices.new_tensor(list(other.pulls.counts))
        points = self.arms[torch.cat([self.inducing_indices, arms])]
        other._tables = self.covar_module.tables(points)
        other.earlier = self.found or self.earlier
        other._prepare()
        return other

    def _prepare(self) -> None:
        """Compute what a pass needs: tables, and the rows that bound variances."""
        self.found: Search | None = None
        lost = self.lost_rows
        rows = torch.cat([self.alpha.unsqueeze(0), self.root])
        rows = torch.nn.functional.pad(rows, (0, lost.shape[-1] - rows.shape[-1]))
        first = 1 + STAGES[2]  # few products are near enough to lose much by pulls
        rows = torch.cat([rows[:first], lost, rows[first:]])
        # Rounding errors add up as random ones do.
        sums = math.sqrt(rows.shape[-1]) * self.max_prior_variance * rows.abs().sum(-1)
        tolerance = MAX_MARGIN * math.sqrt(self.max_prior_variance)
        dtype = rows.dtype
        if sums[0] * torch.finfo(torch.float).eps < tolerance:
            dtype = torch.float
        self.errors = sums * torch.finfo(dtype).eps
        self.weights, errors = rows.to(dtype), self.errors[1:]
        std = math.sqrt(self.max_prior_variance)
        slack = (2 * std * errors + 3 * errors.square()).cumsum(dim=0)
        self._slack = [0.0, *slack.tolist()]
        self.single = [[table.to(dtype) for table in term] for term in self._tables]

    def _leading_rows(self) -> Tensor:
        """Return rows of R, those first that explain most of scattered products.

        See :func:`~botorch_bkb.models.utils.nystrom.explaining_rows`, ``B = I -
        V^{-1}``.
        """
        basis, Z = self.basis, self.features(self.scattered(NUM_SAMPLED))
        rows = explaining_rows(Z, lambda Z: Z - basis.solve(Z), STAGES[-1])
        return torch.linalg.solve_triangular(basis.L.mT, rows.mT, upper=True).mT

    # Answers for some products

    @override
    def features(self, indices: Tensor) -> Tensor:
        L = self.basis.L
        K = self.rows(indices)[:, : len(L)]
        return torch.linalg.solve_triangular(L, K.mT, upper=False)

    @override
    def moments(self, indices: Tensor) -> Tensor:
        parts = indices.split(self.chunk_size)
        return torch.cat([self._moments(part) for part in parts], dim=-1)

    @override
    def _moments(self, indices: Tensor) -> Tensor:
        K, L = self.rows(indices), self.basis.L
        Z = torch.linalg.solve_triangular(L, K[:, : len(L)].mT, upper=False)
        prior = sum_of_products(self._diagonals, self.arms.components(indices))
        residual = (prior - Z.square().sum(dim=0)).clamp_min(0.0)
        mean = K[:, : len(L)] @ self.alpha
        Z = torch.linalg.solve_triangular(self.basis.L_v, Z, upper=False)
        projected = Z.square().sum(dim=0) - (K @ self.lost_rows.mT).square().sum(dim=1)
        return torch.stack([prior, mean, residual, projected.maximum(-residual)])

    def rows(self, indices: Tensor) -> Tensor:
        """Return the prior covariances with the inducing products, ``k x m``.

        Beside them those with the pulls without reward of :meth:`given`.
        """
        return sum_of_products(self._tables, self.arms.components(indices))

    def scattered(
        self, size: int, allowed: ProductMask | None = None, start: int = 0
    ) -> Tensor:
        """Return products at distances of the golden ratio, ascending.

        Args:
            size: How many, at most.
            allowed: The product space is that of this mask, if there is one.
            start: How many others come before these.
        """
        arms = self._space(allowed)
        num_arms = arms.num_matching
        step = scattered_step(num_arms)
        size = max(0, min(num_arms - start, size))
        numbers = torch.arange(size, device=self.arms.device) * step
        return arms.matching((start * step % num_arms + numbers) % num_arms).unique()

    def _space(self, allowed: ProductMask | None) -> ProductArms:
        return self.arms if allowed is None else allowed.rows

    @property
    def chunk_size(self) -> int:
        """How many products are evaluated at once."""
        return max(1, CHUNK_NUMBERS // max(1, len(self.basis.L)))

    # The largest of all products

    @override
    def largest_bounds(
        self, scale: float, size: int, allowed: ProductMask | None = None
    ) -> Ranked:
        if allowed is not None and allowed.among is not None:
            search = Search(self, scale, self.num_arms, allowed)
            search.add(self, allowed.among)
            search.cut()
            return search.exact(self, size, allowed)[0]
        size = min(size, self.num_arms)
        return self.find(scale, size, allowed, size)[0]

    @override
    def shortlist(
        self, scale: float, size: int, allowed: ProductMask | None
    ) -> tuple[Ranked, tuple[float, int]]:
        found, last = self.find(scale, size + 1, allowed, 1)
        # Bounds of other products are no larger, but are rounded differently.
        rest = found.values[size].item() if len(found.arms) > size else last.floor
        eps = torch.finfo(self.like.dtype).eps
        rounding = (1 + scale) * math.sqrt(eps * self.max_prior_variance)
        return found.first(size), (rest - rounding, self.num_arms)

    def find(
        self,
        scale: float,
        size: int,
        allowed: ProductMask | None,
        enough: int,
    ) -> tuple[Ranked, Search]:
        """Return the largest bounds, and the pass that has found them.

        Args:
            scale: The number of standard deviations.
            size: How many, at most.
            allowed: Which products compete; all if None.
            enough: How many will do, if they are known without another pass.
        """
        if not len(self.pulled_indices):
            first = self._prior_pass(scale, enough, allowed)
            return first.exact(self, size, allowed)[0], first
        target = min(int(KEPT_SHARE * self.num_arms), MAX_KEPT)
        target = max(target, MIN_KEPT, 2 * enough)
        earlier = [one for one in (self.found, self.earlier) if one is not None]
        known = next((one for one in earlier if one.covers(scale, allowed)), None)
        while True:
            if known is None:
                known = self._pass(scale, target, allowed)
            ranked, self.found = known.exact(self, size, allowed)
            if len(ranked.arms) >= enough or known.floor == -math.inf:
                return ranked, self.found
            # The batch has lowered all of these bounds.
            target, known = max(target, GROWTH * known.size // CUT), None

    def _prior_pass(
        self, scale: float, enough: int, allowed: ProductMask | None
    ) -> Search:
        """Return scattered products, which stand for all: nothing tells them apart.

        Block by block, since few may compete. Only these are kept.
        """
        search = Search(self, scale, self.num_arms, allowed)
        target, space = NUM_SCATTERED, self._space(allowed)
        for start in range(0, space.num_matching, NUM_SCATTERED):
            search.add(self, self.scattered(NUM_SCATTERED, allowed, start))
            if start + NUM_SCATTERED >= target:
                search.cut()
                if len(search.ranked.arms) >= enough:
                    break
                target *= 4
        search.cut()
        return search

    def _pass(self, scale: float, target: int, allowed: ProductMask | None) -> Search:
        """Return about ``target`` of the largest bounds."""
        sample = self.scattered(NUM_SCATTERED, allowed)
        num_arms = self._space(allowed).num_matching
        rank = math.ceil(target * len(sample) / num_arms)
        start = Search(self, scale, len(sample), allowed)
        start.add(self, sample)
        start.cut()
        best = start.exact(self, rank + 1, allowed)[0].values
        floor = best[rank].item() - start.margin if len(best) > rank else -math.inf
        search = Search(self, scale, CUT * target, allowed, floor)
        for indices in self._candidates(search):
            search.add(self, indices)
        search.join()
        search.cut()
        return search

    def _candidates(self, search: Search) -> Iterator[Tensor]:
        """Yield products that may reach the floor."""
        sizes, tables = self.arms.sizes, self.single
        first = len(sizes) - 1
        while first > 0 and math.prod(sizes[first:]) < LAST_SIZE:
            first -= 1
        num_last = math.prod(sizes[first:])
        num_first = self.num_arms // num_last
        device = self.arms.device
        space = self._space(search.available)
        ends = torch.arange(num_last, device=device)
        ends = ends[space.matches(torch.unravel_index(ends, sizes[first:]), first)]
        last = torch.unravel_index(ends, sizes[first:])
        # Rows of the first components' table, times the mean's weights or a row of R,
        # and a column for each of the last components' combinations.
        weights = self.weights.repeat(1, len(tables))
        columns = torch.cat([products_of(term[first:], last) for term in tables], -1)
        right, cells = columns.mT, Cells(self, first)
        column_places = cells.places(last, ends, first)
        size = max(1, BLOCK_SIZE // num_last)
        for start in tqdm(
            range(0, num_first, size),
            desc=f"{self.num_arms:,} products",
            delay=5,
            leave=False,
            disable=None,
        ):
            rows = torch.arange(start, min(start + size, num_first), device=device)
            if first:
                rows = rows[space.matches(torch.unravel_index(rows, sizes[:first]))]
                if not len(rows):
                    continue
            left = weights.new_ones(len(rows), weights.shape[-1])
            at = torch.unravel_index(rows, sizes[:first]) if first else ()
            std = cells.bounds(cells.places(at, rows), column_places)
            if first:
                terms = [products_of(term[:first], at) for term in tables]
                left *= torch.cat(terms, dim=-1)
            row, column = self._reaching(search, weights, left, right, std)
            yield rows[row] * num_last + ends[column]

    def _reaching(
        self, search: Search, weights: Tensor, left: Tensor, right: Tensor, std: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the rows and columns of a block's products that may reach the floor.

        Args:
            search: The search.
            weights: Those of the mean and the rows of R, for every column of ``left``.
            left: Rows of the first components' table.
            right: Columns of the last components' table.
            std: Upper bounds of the products' standard deviations.
        """
        mean = (left * weights[0]) @ right
        reaches = torch.add(mean, std, alpha=search.scale) >= search.low
        variance = torch.full_like(mean, self.max_prior_variance)
        kept = torch.arange(len(left), device=left.device)
        for stage in pairwise(STAGES):
            # While many are left, products with all cost less than picking some.
            rows = weights[1:][slice(*stage)]
            share = int(reaches.count_nonzero()) / reaches.numel()
            is_few = share * (len(rows) + GATHERING_COST) <= len(rows)
            if is_few or not search.scale or search.low == -math.inf:
                break
            alive = reaches.any(dim=-1).nonzero().squeeze(-1)
            if len(alive) < len(kept):
                kept, left = kept[alive], left[alive]
                mean, variance = mean[alive], variance[alive]
                reaches = reaches[alive]
            for some in rows.split(NUM_TOGETHER):
                parts = (left * some.unsqueeze(1)).flatten(0, 1) @ right
                variance -= parts.square_().view(len(some), *mean.shape).sum(dim=0)
            variance += self.slack(stage)
            std = variance.clamp_min(0.0).sqrt_()
            reaches &= torch.add(mean, std, alpha=search.scale) >= search.low
        row, column = reaches.nonzero().mT
        return kept[row], column

    def upper_stds(self, positions: Tensor) -> Tensor:
        """Return upper bounds of standard deviations, given the leading rows of R."""
        K = sum_of_products(self.single, positions)
        known = (K @ self.weights[1:].mT).square().sum(dim=-1)
        variance = self.max_prior_variance + self._slack[-1] - known
        return variance.clamp_min(0.0).sqrt()

    def slack(self, stage: tuple[int, int]) -> float:
        """Return how much too large rounding may make the squares of some rows."""
        start, stop = (min(row, len(self._slack) - 1) for row in stage)
        return self._slack[stop] - self._slack[start]
