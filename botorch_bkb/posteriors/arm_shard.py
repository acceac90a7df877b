"""The moments, the cached features and the kernel rows of arms in a row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.arms import BitArms, StoredArms
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.nystrom import check_prior_variance
from botorch_bkb.models.utils.triangular import TriangularSolver
from botorch_bkb.posteriors.kernel_rows import KernelRows
from botorch_bkb.posteriors.knowledge_gain import knowledge_gain, split_gain
from botorch_bkb.posteriors.shards import largest, PerArm, Ranked


# The size of a chunk of features or covariances, of which a few are alive at a time:
# what a core's caches hold; more for passes that read features once; enough to fill an
# accelerator.
CHUNK_BYTES = 2**20
PASS_CHUNK_BYTES = 2**24
# Of arms whose bits stay packed; every chunk unpacks the inducing ones.
PACKED_CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
# Up to CUDA 13.1 `solve_triangular` is slow with 524,281 columns or more.
ACCELERATOR_CHUNK_ARMS = 2**18
# The fewest arms of a chunk.
MIN_CHUNK = 16


class Factor(NamedTuple):
    """The posterior's small matrices, from which moments of arms are computed.

    Attributes:
        arms: The ``M`` basis arms, on the CPU: the place of a chunk among them is found
            without waiting for an accelerator.
        points: Their rows.
        slots: Which kernel rows are theirs; None where these are not kept.
        L: The ``M x M`` lower Cholesky factor of their Gram matrix.
        L_v: That of ``V``.
        complement: Which directions are left out, see
            :class:`~botorch_bkb.posteriors.feature_basis.BasisPosterior`.
        weights: The ``M`` weights of the mean.
    """

    arms: Tensor
    points: Tensor
    slots: Tensor | None
    L: Tensor
    L_v: Tensor
    complement: Tensor
    weights: Tensor

    def project(self, coordinates: Tensor) -> Tensor:
        """Return what is not left out of the columns of an ``M x k`` matrix."""
        if self.complement.shape[-1] == 0:
            return coordinates
        return coordinates - self.complement @ (self.complement.mT @ coordinates)


class Move(NamedTuple):
    """What a shard needs of a ``feature_basis.BasisChange``.

    Attributes:
        arms: The arms that joined the basis, at its end.
        points: Their rows.
        slots: Which kernel rows are theirs; None where these are not kept.
        L: Their rows of the factor, ``a x M``.
        left: ``M_0 x (r + a)``: the old coordinates of the directions, and of the arms.
        vectors: ``M x r``, see there.
        signs: ``2 x r``, see there.
        corner: The ``a x a`` factor of the new arms' Schur complement.
        turns: Whether residuals change.
    """

    arms: Tensor
    points: Tensor
    slots: Tensor | None
    L: Tensor
    left: Tensor
    vectors: Tensor
    signs: Tensor
    corner: Tensor
    turns: bool


class Draws(NamedTuple):
    """What draws of all arms are made of, see ``arm_sampler``.

    Attributes:
        vectors: ``M x (n + f)``: the weights of ``n`` draws, and the features of ``f``
            appended arms.
        points: The rows of these.
        C: The ``f x f`` factor of their Schur complement.
        weights: The ``f x n`` weights of their features.
    """

    vectors: Tensor
    points: Tensor
    C: Tensor
    weights: Tensor

    @property
    def size(self) -> int:
        """The number of draws, ``n``."""
        return self.weights.shape[-1]


class ArmShard:
    """Moments and features of arms in a row.

    Args:
        arms: The rows of all arms.
        start: The first of these arms.
        stop: The first arm after them.
        covar_module: The kernel.
        max_rows: The most kernel rows.
        block_size: How many arms a block has, a power of two.

    Raises:
        InputDataError: If a prior variance is negative or not finite.
    """

    def __init__(
        self,
        arms: Tensor,
        start: int,
        stop: int,
        covar_module: Kernel,
        max_rows: int,
        block_size: int,
    ) -> None:
        self.arms = arms
        self.start = start
        self.num_arms = stop - start
        self.covar_module = covar_module
        self.block_size = block_size
        moments = arms.new_empty(4, self.num_arms)
        for rows in self.chunks(arms.shape[-1]):
            moments[0, rows] = self._prior_variance(rows)
        check_prior_variance(moments[0], start)
        self._moments = moments
        self._forget()
        self.worst_residual = self._worst_residual()
        self._rows = KernelRows(self.num_arms, max_rows, self.mean)
        # The cache, a row per feature with room for more; none past the budget.
        self._features = self._new_cache(0)
        self._size = 0
        # From what features are solved for again; None where they are cached.
        self._factor: Factor | None = None
        self._solver = TriangularSolver(moments[:0, :0])

    # Changes

    @torch.no_grad()
    def add_rows(self, points: Tensor) -> None:
        """Keep the kernel rows of more arms."""
        self._rows.add(len(points), self._tiles(points))

    @torch.no_grad()
    def rebuild(self, factor: Factor, inducing: Tensor, width: int) -> None:
        """Compute the moments, and features if the cache has a width."""
        if len(self._features) != width:
            # Gone before its successor comes.
            self._features = self._new_cache(0)
            self._features = self._new_cache(width)
        self._forget()
        self._factor = None if width else factor
        self._solver = TriangularSolver(factor.L)
        self._size = factor.L.shape[0]
        self._fill(factor)
        self._finish(inducing)

    @torch.no_grad()
    def advance(self, move: Move, inducing: Tensor) -> None:
        """Apply a change of the basis, in one pass over the features."""
        M_0, M = move.left.shape[0], move.vectors.shape[0]
        num_vectors = move.vectors.shape[-1]
        left, signs = _aligned(move.left.mT), _aligned(move.signs)
        for rows in self.chunks(max(M_0, 1), PASS_CHUNK_BYTES):
            # One product reads the old features once, for the new ones as well.
            products = left @ self._features[:M_0, rows]
            moves = products[:num_vectors]
            if M > M_0:
                K = self._covariance(move.points, move.slots, rows)
                K = K - products[num_vectors:]
                new = torch.linalg.solve_triangular(move.corner, K, upper=False)
                self._features[M_0:M, rows] = new
                moves.addmm_(move.vectors[M_0:].mT, new)
            self.mean[rows] = moves[-1]
            projected, residual = signs @ moves.square_()
            self.projected[rows] += projected
            if move.turns:
                self.residual[rows] += residual
        self.projected.clamp_(min=0.0)
        if M > M_0:
            own = self._is_here(move.arms)
            self._features[:M, move.arms[own] - self.start] = move.L[own].mT
            self._size = M
        if move.turns:
            self._finish(inducing)

    # Questions

    def scale(self) -> float:
        """Return the largest prior variance."""
        return self.prior_variance.max().item()

    def moments(self, indices: Tensor) -> Tensor:
        """Return prior variance, mean, residual and projected variance, ``k x 4``."""
        return self._moments.index_select(1, indices - self.start).mT

    def arm_at(self, place: int) -> int:
        """Return which arm stands at a place."""
        return self.start + place

    def place_of(self, index: int) -> int | None:
        """Return where an arm stands; None if it is not here."""
        place = index - self.start
        return place if 0 <= place < self.num_arms else None

    # The moments are rows of one table, so that a few arms' are one gather.

    @property
    def prior_variance(self) -> Tensor:
        """The prior variances."""
        return self._moments[0]

    @property
    def mean(self) -> Tensor:
        """The posterior means."""
        return self._moments[1]

    @property
    def residual(self) -> Tensor:
        """The variances that the inducing arms cannot explain."""
        return self._moments[2]

    @property
    def projected(self) -> Tensor:
        """The variances of what they explain, under noise."""
        return self._moments[3]

    @property
    def variance(self) -> Tensor:
        """The posterior variances."""
        return self.residual + self.projected

    def features(self, indices: Tensor) -> Tensor:
        """Return the cached features of a few arms, ``k x M``."""
        found = self._features[: self._size].index_select(1, indices - self.start)
        return _aligned(found.mT)

    def held_rows(self, indices: Tensor, slots: Tensor) -> Tensor:
        """Return kernel rows' entries of a few arms, ``k x`` rows."""
        return _aligned(self._rows.select(slots, indices - self.start).mT)

    def cached_bytes(self) -> int:
        """Return the size of what is cached."""
        return self._features.nbytes + self._rows.rows.nbytes

    def soundness(self) -> tuple[float, float]:
        """Return the least variance, and the least residual over prior variance."""
        least = self.variance.amin()
        return least.item(), self.worst_residual

    def rounding(
        self, exact: Tensor, known: Tensor, errors: Tensor
    ) -> tuple[float, int]:
        """Return the largest relative rounding error of a variance, and its arm.

        Args:
            exact: Arms whose residual has none.
            known: Arms whose error is known.
            errors: These errors.
        """
        noise = torch.finfo(self.mean.dtype).eps * self.prior_variance
        noise[exact[self._is_here(exact)] - self.start] = 0.0
        error = noise / (self.projected + (self.residual - 4 * noise).clamp_min(0))
        own = self._is_here(known)
        error[known[own] - self.start] = errors[own]
        worst, arm = error.nan_to_num(0.0).max(dim=0)  # no prior variance, no error
        return worst.item(), self.start + int(arm)

    def largest_bounds(
        self, size: int, scale: float, competes: PerArm, known: Ranked | None
    ) -> Ranked:
        """Return the arms of the largest ``mean + scale sqrt(variance)``.

        Args:
            size: How many, at most.
            scale: The number of standard deviations.
            competes: Which arms compete; minus infinity for all others. All if None.
            known: Arms whose bounds are known, in any order; None for none.
        """
        bounds = self.mean + scale * self.variance.sqrt()
        if competes.values is not None:
            bounds.masked_fill_(~competes.values, -math.inf)
        if known is not None:
            own = self._is_here(known.arms)
            bounds[known.arms[own] - self.start] = known.values[own]
        found = largest(bounds, size)
        return Ranked(found.values, found.arms + self.start)

    def knowledge_gains(
        self,
        noise_variance: float,
        top: Ranked,
        competes: PerArm,
        listed: Tensor,
    ) -> tuple[float, Tensor]:
        """Return what a pull tells of the best arm, see ``ArmPosterior``.

        Args:
            noise_variance: lambda.
            top: The two largest means of all arms that compete.
            competes: Which arms of the shard compete; all if None.
            listed: Arms, of other shards too, ascending, on the CPU.

        Returns:
            The most of an arm that is not listed, and the gains of those here that are.
        """
        listed = listed[self._is_here(listed)] - self.start
        found = []
        for start in range(0, self.num_arms, self.block_size):
            rows = slice(start, min(start + self.block_size, self.num_arms))
            variance = self.residual[rows] + self.projected[rows]
            mean, first = self.mean[rows], self.start + start
            gain = knowledge_gain(mean, variance, noise_variance, top, first)
            own = listed[(listed >= start) & (listed < rows.stop)] - start
            allowed = None if competes.values is None else competes.values[rows]
            found.append(split_gain(gain, allowed, own))
        most = torch.stack([most for most, _ in found]).max()
        return most.item(), torch.cat([gain for _, gain in found])

    def dot(self, vector: Tensor) -> Tensor:
        """Return the features' inner products with an ``M``-dim projected vector."""
        result = torch.empty_like(self.mean)
        num_bytes = PASS_CHUNK_BYTES if self._factor is None else None
        for rows in self.chunks(max(self._size, 1), num_bytes):
            torch.mv(self._coordinates(rows).mT, vector, out=result[rows])
        return result

    @torch.no_grad()
    def prior_rows(self, points: Tensor) -> Tensor:
        """Return the prior covariances of some points with all arms."""
        found = self.mean.new_empty(len(points), self.num_arms)
        for rows, tile in self._tiles(points):
            found[:, rows] = tile
        return found

    def drawn(self, draws: Draws) -> Tensor:
        """Return values of all arms, ``num_draws x A``."""
        values = self.mean.new_empty(draws.size, self.num_arms)
        for rows, chunk in self._drawn_chunks(draws):
            values[:, rows] = chunk
        return values

    def best_of_draws(self, draws: Draws, competes: PerArm) -> tuple[Tensor, Tensor]:
        """Return each draw's largest value, and its arm."""
        best = self.mean.new_full((draws.size,), -torch.inf)
        arms = torch.full_like(best, self.start, dtype=torch.long)
        for rows, chunk in self._drawn_chunks(draws):
            if competes.values is not None:
                chunk.masked_fill_(~competes.values[rows], -torch.inf)
            values, positions = chunk.max(dim=-1)
            # Strictly larger: ties go to the lower chunk, and NaN is the largest.
            better = ~(values <= best) & ~best.isnan()
            best = torch.where(better, values, best)
            arms = torch.where(better, positions + (self.start + rows.start), arms)
        return best, arms

    def expected_above(
        self, levels: Tensor, competes: PerArm, without: Tensor
    ) -> tuple[int, Tensor]:
        """Return how many arms compete, and how many are expected above levels.

        Args:
            levels: ``l`` values.
            competes: Which arms compete; all if None.
            without: Arms that do not.

        Returns:
            The number, and ``blocks x l`` numbers to be added up.
        """
        inside = torch.ones_like(self.mean, dtype=torch.bool)
        if competes.values is not None:
            inside &= competes.values
        inside[without[self._is_here(without)] - self.start] = False
        sums = []
        for start in range(0, len(self.mean), self.block_size):
            rows = slice(start, start + self.block_size)
            mean, some = self.mean[rows], inside[rows]
            std = (self.residual[rows] + self.projected[rows]).sqrt()
            std = std.clamp_min(torch.finfo(std.dtype).tiny)
            shares = [torch.special.ndtr((mean - b) / std) for b in levels]
            above = [(share * some).sum() for share in shares]
            sums.append(torch.stack(above))
        return int(inside.sum()), torch.stack(sums)

    def chunks(
        self, numbers_per_arm: int, num_bytes: int | None = None
    ) -> Iterator[slice]:
        """Yield slices of the arms.

        Args:
            numbers_per_arm: How many numbers a chunk holds of each arm.
            num_bytes: The size of a chunk.
        """
        most_arms = self.block_size
        if self.arms.device.type != "cpu":
            num_bytes, most_arms = ACCELERATOR_CHUNK_BYTES, ACCELERATOR_CHUNK_ARMS
        elif num_bytes is None:
            num_bytes = CHUNK_BYTES
            if isinstance(self.arms, BitArms):
                num_bytes = PACKED_CHUNK_BYTES
                numbers_per_arm = max(numbers_per_arm, self.arms.shape[-1] // 8)
        most = num_bytes // (numbers_per_arm * self.arms.element_size())
        size = 2 ** (max(most, MIN_CHUNK).bit_length() - 1)
        size = min(size, most_arms)
        stop = self.num_arms
        for start in range(0, stop, size):
            yield slice(start, min(start + size, stop))

    def _tiles(self, points: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the arms, and their prior covariances with some points."""
        for rows in self.chunks(max(points.shape)):
            yield rows, self._covariance(points, None, rows)

    def _new_cache(self, width: int) -> Tensor:
        """Return room for features, whose rows are aligned alike in every shard."""
        stride = -(-self.num_arms // MIN_CHUNK) * MIN_CHUNK
        return self.mean.new_empty(width, stride)

    def _forget(self) -> None:
        """Make the moments those of the prior."""
        self.mean.zero_()
        self.residual.copy_(self.prior_variance)
        self.projected.zero_()

    def _fill(self, factor: Factor) -> None:
        """Compute the moments, which must be those of the prior, and cache features."""
        solver = TriangularSolver(factor.L_v)
        for rows in self.chunks(max(factor.L.shape[0], 1)):
            Z = self._solved(rows, factor)
            if len(self._features):
                self._features[: Z.shape[0], rows] = Z
            Z = factor.project(Z)
            torch.mv(Z.mT, factor.weights, out=self.mean[rows])
            # On rows that are stored one after another, a third to a tenth of the time
            # of `vector_norm`.
            self.residual[rows] -= Z.square().sum(dim=0)
            solver.solve_(Z)
            self.projected[rows] = Z.square().sum(dim=0)

    def _finish(self, inducing: Tensor) -> None:
        """Make no residual negative; remember how far below zero they were."""
        self.worst_residual = self._worst_residual()
        self.residual.clamp_(min=0.0)
        self.residual[inducing[self._is_here(inducing)] - self.start] = 0.0

    def _worst_residual(self) -> float:
        tiny = torch.finfo(self.prior_variance.dtype).tiny
        return (self.residual / self.prior_variance.clamp_min(tiny)).min().item()

    def _coordinates(self, rows: slice) -> Tensor:
        """Return the ``M x k`` features of some arms in a row."""
        if self._factor is None:
            return self._features[: self._size, rows]
        return self._solved(rows, self._factor)

    def _solved(self, rows: slice, factor: Factor) -> Tensor:
        """Compute the ``M x k`` features of some arms in a row."""
        K = self._covariance(factor.points, factor.slots, rows)
        Z = self._solver.solve_(K)
        # Arms of the basis have their row of L, exact where a solve leaves rounding.
        start = self.start + rows.start
        own = (factor.arms >= start) & (factor.arms < self.start + rows.stop)
        if own.any():
            Z[:, factor.arms[own] - start] = factor.L[own].mT
        return Z

    @torch.no_grad()
    def _covariance(self, points: Tensor, slots: Tensor | None, rows: slice) -> Tensor:
        """Return prior covariances of points with some arms, as they are kept."""
        if slots is not None:
            return self._rows.select(slots, rows)
        covariance = dense_covariance(self.covar_module, points, self._taken(rows))
        return covariance.to(self.prior_variance)  # kernels may not keep the dtype

    @torch.no_grad()
    def _prior_variance(self, rows: slice) -> Tensor:
        return self.covar_module(self._taken(rows), diag=True).to(self.arms)

    def _taken(self, rows: slice) -> Tensor:
        """Return the rows of some arms."""
        taken = self.arms[self.start + rows.start : self.start + rows.stop]
        return taken.dense() if isinstance(taken, StoredArms) else taken

    def _drawn_chunks(self, draws: Draws) -> Iterator[tuple[slice, Tensor]]:
        """Yield which arms, and their ``num_draws x chunk`` values."""
        size, num_appended = draws.size, len(draws.points)
        vectors = _aligned(draws.vectors.mT)
        for rows in self.chunks(max(*draws.vectors.shape, 1)):
            products = vectors @ self._coordinates(rows)
            values = products[:size].add_(self.mean[rows])
            if num_appended:
                K = self._covariance(draws.points, None, rows)
                K = K - products[size:]
                new = torch.linalg.solve_triangular(draws.C, K, upper=False)
                values.addmm_(draws.weights.mT, new)
            yield rows, values

    def _is_here(self, indices: Tensor) -> Tensor:
        return (indices >= self.start) & (indices < self.start + self.num_arms)


def _aligned(matrix: Tensor) -> Tensor:
    """Return a copy in rows, which stands in memory alike whatever it was a part of.

    The last bits of products depend on it: with it they are those of any shards.
    """
    return matrix.clone(memory_format=torch.contiguous_format)
