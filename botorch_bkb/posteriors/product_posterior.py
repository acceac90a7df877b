r"""The posterior of all products of components, none of which is written out.

For a kernel that is a sum of products over components, the kernel rows of ``m``
inducing products are elementwise products of small ``n_i x m`` tables, and posterior
means of all products are matrix products. With ``L L^T = K_S`` and ``V = I + U diag(s)
U^T`` (see :mod:`~botorch_bkb.posteriors.basis`), ::

    variance(x) = k(x, x) - |R k_S(x)|^2,    R = diag(sqrt(s / (1 + s))) U^T L^{-1}

and every partial sum over rows of ``R`` bounds the variance from above. So the largest
upper confidence bounds are found by one pass for means; products that may reach the
best bounds found so far get some rows of ``R``, and the few that are left get their
exact variances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from botorch_bkb.arms.product import ProductArms, ProductMask, scattered_step
from botorch_bkb.models.kernels.product import ComponentKernel
from botorch_bkb.models.utils.nystrom import dense_covariance, independent_points
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_shard import largest, Ranked
from botorch_bkb.posteriors.basis import Basis, sums_of


# Means of so many products are computed at once.
BLOCK_SIZE = 2**20
# The last components are joined until they have so many combinations.
LAST_SIZE = 512
# Numbers in the kernel rows of products whose variances are computed at once.
CHUNK_NUMBERS = 2**22
# Rows of R after which products are dropped.
STAGES = (0, 4, 16, 64, 256, 512)
NUM_ITERATIONS = 2
NUM_SAMPLED = 2048
# Picking the kernel rows of a product costs as much as products with so many rows of R.
GATHERING_COST = 64
# What rounding may add to a bound, in prior standard deviations.
MARGIN = 1e-6
# The search starts from so many scattered products, and the neighbours of the best.
NUM_SCATTERED = 2**14
NUM_STARTS = 16
NUM_ROUNDS = 4
# A pass keeps at least so many products for the questions that follow.
KEPT_SIZE = 4096


# Standard deviations added to means, who competed, the largest bounds, and a bound
# that no other product exceeds.
Found = tuple[float, ProductMask | None, Ranked, float]


class ProductPosterior(ArmPosterior):
    r"""Mean and variance of all products under a sparse GP posterior.

    Memory: ``O(sum_i n_i m + m^2)``, blocks of 2^20 products, and the products whose
    bounds are computed exactly. Time of a pass over ``A`` products: ``2 A m``
    operations for means, and ``O(m^2)`` for each product that is evaluated exactly: few
    of them once there are observations, all of them if the bounds are too wide.

    Args:
        arms: The product space.
        covar_module: A :class:`~botorch_bkb.models.kernels.product.ComponentKernel`.
        noise_variance: lambda.

    Attributes:
        basis: The small matrices.
        pulled_indices: The ``P`` products with rewards, ascending.
        data: Their summed precisions, and reward sums over lambda, ``2 x P``.
        num_evaluated: The number of products whose exact variances the last pass
            computed.
    """

    max_feature_bytes = 0

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
        self.num_evaluated = 0
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
    ) -> None:
        """Move to other inducing products and data, as ``ArmPosterior.update``."""
        data = torch.stack([counts, sums]).to(self.like) / self.noise_variance
        self.pulled_indices, order = pulled_indices.sort()
        self.data = data[:, order]
        K = self.prior_covariance(inducing_indices, inducing_indices)
        kept = independent_points(K)
        self.inducing_indices = indices = inducing_indices[kept]
        L = torch.linalg.cholesky(K[kept][:, kept])
        K = self.prior_covariance(indices, self.pulled_indices)
        Z = torch.linalg.solve_triangular(L, K, upper=False)
        inside = torch.ones_like(indices, dtype=torch.bool)
        scatter, target = sums_of(Z, Z, self.data)
        self.basis = Basis(indices, L, inside, L[:, :0], scatter, target)
        self.log_det = 2 * self.basis.L_v.diagonal().log().sum().item()
        self._tables = self.covar_module.tables(self.arms[indices])
        upper = L.mT
        weights = self.basis.weights.unsqueeze(-1)
        self.alpha = torch.linalg.solve_triangular(upper, weights, upper=True)[:, 0]
        self.feature_bytes = self.num_arms * len(L) * L.element_size()  # never held
        self.root = self._leading_rows()
        self._found: Found | None = None

    def _leading_rows(self) -> Tensor:
        """Return rows of R, those first that explain most of scattered products.

        For ``B = I - V^{-1}``, orthonormal ``Q`` and ``T T^T = Q^T B Q``, the sum
        ``z^T B z`` is at least ``|T^{-1} Q^T B z|^2``, and so is every partial sum.
        Subspace iterations make ``Q`` nearly the leading left singular vectors of ``B
        Z`` for the features ``Z`` of scattered products.
        """
        basis, size = self.basis, min(STAGES[-1], len(self.basis.L))
        sample = self.scattered()
        Z = self.features(sample[:: max(1, len(sample) // NUM_SAMPLED)])
        Z -= basis.solve(Z)
        generator = torch.Generator().manual_seed(0)
        Q = torch.randn(len(Z), size, generator=generator, dtype=torch.double).to(Z)
        for _ in range(NUM_ITERATIONS):
            Q = torch.linalg.qr(Z @ (Z.mT @ Q))[0]
        BQ = Q - basis.solve(Q)
        T, info = torch.linalg.cholesky_ex(Q.mT @ BQ)
        kept = int(info) - 1 if int(info) else size  # the others explain nothing
        rows = torch.linalg.solve_triangular(T[:kept, :kept], BQ.mT[:kept], upper=False)
        return torch.linalg.solve_triangular(basis.L.mT, rows.mT, upper=True).mT

    # Answers for some products

    @override
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the ``k x l`` prior covariances between two lists of products."""
        with torch.no_grad():
            x1, x2 = self.arms[left], self.arms[right]
            return dense_covariance(self.covar_module, x1, x2).to(self.like)

    @override
    def features(self, indices: Tensor) -> Tensor:
        """Return the ``m x k`` features of ``k`` products."""
        L = self.basis.L
        return torch.linalg.solve_triangular(L, self.rows(indices).mT, upper=False)

    @override
    def moments(self, indices: Tensor) -> Tensor:
        """Return prior variances, means, residuals and projected parts, ``4 x k``."""
        parts = indices.split(self.chunk_size)
        return torch.cat([self._moments(part) for part in parts], dim=-1)

    @override
    def means(self, indices: Tensor) -> Tensor:
        parts = indices.split(self.chunk_size)
        return torch.cat([self.rows(part) @ self.alpha for part in parts])

    def _moments(self, indices: Tensor) -> Tensor:
        K = self.rows(indices)
        Z = torch.linalg.solve_triangular(self.basis.L, K.mT, upper=False)
        prior = self.prior(indices)
        residual = (prior - Z.square().sum(dim=0)).clamp_min(0.0)
        mean = K @ self.alpha
        Z = torch.linalg.solve_triangular(self.basis.L_v, Z, upper=False)
        return torch.stack([prior, mean, residual, Z.square().sum(dim=0)])

    def rows(self, indices: Tensor) -> Tensor:
        """Return the prior covariances with the inducing products, ``k x m``."""
        return _sum_of_products(self._tables, self.arms.components(indices))

    def prior(self, indices: Tensor) -> Tensor:
        """Return the prior variances of some products."""
        return _sum_of_products(self._diagonals, self.arms.components(indices))

    def scattered(self) -> Tensor:
        """Return products at distances of the golden ratio, ascending."""
        size = min(self.num_arms, NUM_SCATTERED)
        step = scattered_step(self.num_arms)
        numbers = torch.arange(size, device=self.arms.device)
        return (numbers * step % self.num_arms).unique()

    def neighbours(self, indices: Tensor) -> Tensor:
        """Return the products that differ from some in one component at most."""
        found = []
        for at, size in enumerate(self.arms.sizes):
            positions = self.arms.components(indices).repeat_interleave(size, dim=0)
            element = torch.arange(size, device=positions.device)
            positions[:, at] = element.repeat(len(indices))
            found.append(self.arms.numbers(positions))
        return torch.cat(found).unique()

    @property
    def chunk_size(self) -> int:
        """How many products are evaluated at once."""
        return max(1, CHUNK_NUMBERS // max(1, len(self.basis.L)))

    # The largest of all products

    @override
    def largest_bounds(
        self,
        scale: float,
        size: int,
        competes: ProductMask | None = None,  # type: ignore[override]
        known: Ranked | None = None,
    ) -> Ranked:
        if competes is not None and competes.among is not None:
            search = _Search(self, scale, size, competes)
            return in_order(search.bounds(competes.among)).first(size)
        size = min(size, self.num_arms)
        if self._found is not None and self._found[0] == scale:
            _, before, _, floor = self._found
            if competes is before or (
                competes is not None and competes.is_part_of(before)
            ):
                found = self._largest_found(size, competes, known)
                is_enough = len(found.arms) == size and found.values[-1] >= floor
                if is_enough or floor == -math.inf:
                    return found
        more = 0 if known is None else len(known.arms)
        most = max(KEPT_SIZE, 4 * (size + more))
        self._found = scale, competes, *self._pass(scale, most, competes)
        return self._largest_found(size, competes, known)

    def _largest_found(
        self, size: int, competes: ProductMask | None, known: Ranked | None
    ) -> Ranked:
        """Return the largest bounds among the products that the last pass has found."""
        _, before, ranked, _ = cast(Found, self._found)
        if competes is not None and competes is not before:
            allowed = competes.allows(ranked.arms)
            ranked = Ranked(ranked.values[allowed], ranked.arms[allowed])
        if known is not None:
            others = ~torch.isin(ranked.arms, known.arms)
            ranked = Ranked(
                torch.cat([ranked.values[others], known.values]),
                torch.cat([ranked.arms[others], known.arms]),
            )
        return in_order(ranked).first(size)

    def _pass(
        self, scale: float, size: int, competes: ProductMask | None
    ) -> tuple[Ranked, float]:
        """Return the ``size`` largest bounds, and one that no other product exceeds."""
        self.num_evaluated = 0
        search = _Search(self, scale, size, competes)
        if not len(self.pulled_indices):
            # Nothing tells products apart yet: scattered ones stand for all.
            return in_order(search.bounds(self.scattered())), -math.inf
        search.start()
        floor, search.found = search.floor, search.found.first(0)
        waiting: list[Tensor] = []
        for block in self._candidates(search):
            waiting.append(block)
            if sum(map(len, waiting)) >= self.chunk_size:
                search.add(torch.cat(waiting))
                waiting = []
        search.add(torch.cat([self.pulled_indices[:0], *waiting]))
        return in_order(search.found), max(floor, search.floor)

    def _candidates(self, search: _Search) -> Iterator[Tensor]:
        """Yield the products whose means let them reach the floor, block by block."""
        sizes, tables = self.arms.sizes, self._tables
        first = len(sizes) - 1
        while first > 0 and math.prod(sizes[first:]) < LAST_SIZE:
            first -= 1
        num_last = math.prod(sizes[first:])
        num_first = self.num_arms // num_last
        device = self.arms.device
        last = torch.unravel_index(torch.arange(num_last, device=device), sizes[first:])
        # Rows of the first components' table, times the mean's weights or a row of R,
        # and a column for each of the last components' combinations.
        weights = torch.cat([self.alpha.unsqueeze(0), self.root])
        weights = weights.repeat(1, len(tables))
        right = torch.cat([_products(term[first:], last).mT for term in tables])
        size = max(1, BLOCK_SIZE // num_last)
        bonus = search.scale * math.sqrt(self.max_prior_variance) + search.margin
        for start in tqdm(
            range(0, num_first, size),
            desc=f"{self.num_arms:,} products",
            delay=5,
            leave=False,
            disable=None,
        ):
            rows = torch.arange(start, min(start + size, num_first), device=device)
            left = weights.new_ones(len(rows), weights.shape[-1])
            if first:
                at = torch.unravel_index(rows, sizes[:first])
                left *= torch.cat([_products(term[:first], at) for term in tables], -1)
            mean = (left * weights[0]) @ right
            found = (mean >= search.floor - bonus).flatten().nonzero().squeeze(-1)
            variance = torch.full_like(mean, self.max_prior_variance)
            for first_row, last_row in pairwise(STAGES):
                # While many are left, products with all cost less than picking some.
                rows_now = last_row - first_row
                share = len(found) / mean.numel()
                if share * (rows_now + GATHERING_COST) <= rows_now or not search.scale:
                    break
                for row in weights[1 + first_row : 1 + last_row]:
                    variance -= ((left * row) @ right).square_()
                std = variance.clamp_min(0.0).sqrt_()
                reaches = mean + search.scale * std >= search.floor - search.margin
                found = reaches.flatten().nonzero().squeeze(-1)
            if len(found):
                yield found + start * num_last


class _Search:
    """The largest bounds among the products that were looked at so far.

    Attributes:
        found: The products with the ``size`` largest bounds so far, in any order.
        floor: At least ``size`` products have bounds as large; minus infinity at first.
        margin: What rounding may change a bound by.
    """

    def __init__(
        self,
        posterior: ProductPosterior,
        scale: float,
        size: int,
        competes: ProductMask | None,
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.size = size
        self.competes = competes
        self.found = Ranked(posterior.like, posterior.pulled_indices[:0])
        self.floor = -math.inf
        self.margin = MARGIN * (1 + scale) * math.sqrt(posterior.max_prior_variance)

    def start(self) -> None:
        """Look at scattered products, and at those that differ little from the best."""
        posterior, size = self.posterior, self.size
        indices = posterior.scattered()
        if self.competes is not None:
            indices = indices[self.competes.allows(indices)]
        if len(indices) > 2 * size:
            # Any products give a floor: those of large means a high one.
            best = largest(posterior.means(indices), 2 * size).arms
            indices = indices[best.sort().values]
        self.add(indices)
        for _ in range(NUM_ROUNDS):
            before = self.floor
            near = posterior.neighbours(in_order(self.found).first(NUM_STARTS).arms)
            self.add(near[~torch.isin(near, self.found.arms)])
            if self.floor == before:
                break

    def add(self, indices: Tensor) -> None:
        """Look at more products."""
        for part in indices.split(self.posterior.chunk_size):
            more = self.bounds(part)
            pairs = zip(self.found, more, strict=True)
            self.found = Ranked(*(torch.cat(pair) for pair in pairs))
            if len(self.found.arms) > self.size:
                self.found = in_order(self.found).first(self.size)
                self.floor = max(self.floor, self.found.values[-1].item())

    def bounds(self, indices: Tensor) -> Ranked:
        """Return the bounds of the products that reach the floor."""
        posterior, scale = self.posterior, self.scale
        if self.competes is not None:
            indices = indices[self.competes.allows(indices)]
        K = posterior.rows(indices)
        mean = K @ posterior.alpha
        if not scale:
            return Ranked(mean, indices)
        variance = posterior.prior(indices)
        low = self.floor - self.margin
        for stages in pairwise((*STAGES, None)):
            reaches = mean + scale * variance.clamp_min(0.0).sqrt() >= low
            if not reaches.all():
                indices, K = indices[reaches], K[reaches]
                mean, variance = mean[reaches], variance[reaches]
            if low > -math.inf:
                known = K @ posterior.root[slice(*stages)].mT
                variance = variance - known.square().sum(dim=-1)
        posterior.num_evaluated += len(indices)
        _, mean, residual, projected = posterior.moments(indices)
        return Ranked(mean + scale * (residual + projected).sqrt(), indices)


def _sum_of_products(tables: list[list[Tensor]], positions: Tensor) -> Tensor:
    """Return the sum over terms of the products of their tables' rows."""
    columns = tuple(positions.mT)
    return sum(_products(term, columns) for term in tables)  # type: ignore[return-value]


def _products(tables: list[Tensor], positions: tuple[Tensor, ...]) -> Tensor:
    """Return the products of tables' rows at some positions."""
    result = tables[0][positions[0]]
    for table, at in zip(tables[1:], positions[1:], strict=True):
        result = result * table[at]
    return result


def in_order(ranked: Ranked) -> Ranked:
    """Return the products by falling bounds, the lowest index among ties."""
    arms, order = ranked.arms.sort()
    values, by_value = ranked.values[order].sort(descending=True, stable=True)
    return Ranked(values, arms[by_value])
