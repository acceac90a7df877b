"""Per-arm state (moments, cached features), split into ranges of arms: shards.

A shard is an object in this process or in one of Ray's workers. Its methods are passed
as ``ArmShard.rebuild``, so that their arguments and answers are typed.
:meth:`Shards.change` calls a method that changes a shard, on all shards alike.
:meth:`Shards.ask` calls one that changes nothing. Arguments and answers are small.

Shards are made of whole blocks of arms, and passes go over chunks that never cross a
block. So numbers depend on the number of shards and their places up to floating-point
rounding, and choices are the same unless two arms are equal up to rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar, TypeVarTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import BitArms, StoredArms
from botorch_bkb.models.utils.nystrom import (
    check_prior_variance,
    dense_covariance,
    TriangularSolver,
)
from botorch_bkb.posteriors.basis import Basis, Move
from botorch_bkb.posteriors.posterior import (
    Draws,
    expected_rise,
    largest,
    Pulls,
    Ranked,
)


# Arms of a block. Chunks are of a power of two arms, which divides it.
BLOCK_SIZE = 2**16
# Below this many bytes of features, waking and joining threads for the many small
# operations of an update costs more than they save.
MIN_SHARED_BYTES = 2**24
# The size of a chunk of features or covariances, of which a few are alive at a time:
# what a core's caches hold, or more for passes that read features once.
CHUNK_BYTES = 2**20
PASS_CHUNK_BYTES = 2**24
# For arms whose bits stay packed: every chunk unpacks the inducing arms.
PACKED_CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
# Up to CUDA 13.1 `solve_triangular` is slow with 524,281 columns or more.
ACCELERATOR_CHUNK_ARMS = 2**18
# The fewest arms of a chunk.
MIN_CHUNK = 16


class ArmShard:
    """Moments and cached features of a range of arms.

    Args:
        arms: The rows of all arms.
        start: The first of these arms.
        stop: The first arm after them.
        covar_module: The kernel.
        block_size: How many arms a block has, a power of two.

    Attributes:
        rows: The arms.
        moments: Prior variances, means, residuals and projected variances, ``4 x A``.
        max_prior_variance: The largest prior variance of these arms.

    Raises:
        InputDataError: If a prior variance is negative or not finite.
    """

    @torch.no_grad()
    def __init__(
        self,
        arms: Tensor,
        start: int,
        stop: int,
        covar_module: Kernel,
        block_size: int,
    ) -> None:
        self.arms = arms
        self.start = start
        self.rows = slice(start, stop)
        self.num_arms = stop - start
        self.covar_module = covar_module
        self.block_size = block_size
        self.moments = arms.new_zeros(4, self.num_arms)
        prior = self.moments[0]
        for rows in self.chunks(arms.shape[-1]):
            prior[rows] = covar_module(self._taken(rows), diag=True).to(arms)
        check_prior_variance(prior, start)
        self.max_prior_variance = prior.max().item()
        # The cached features, one row each, with room for more rows. No rows if the
        # features exceed the budget.
        self._features = self.moments[:0]
        self._size = 0
        # What features are computed from again; None where they are cached.
        self._basis: Basis | None = None
        self._forget()

    # Changes

    @torch.no_grad()
    def rebuild(self, basis: Basis, points: Tensor, width: int) -> None:
        """Compute the moments, and features if the cache has a width.

        Args:
            basis: The small matrices.
            points: The rows of its arms, all of which are inducing.
            width: How many features the cache has room for; 0 for no cache.
        """
        self._forget()
        if len(self._features) != width:
            # Free the old cache first. Rows are aligned alike in every shard.
            self._features = self.moments[:0]
            stride = -(-self.num_arms // MIN_CHUNK) * MIN_CHUNK
            self._features = self.moments.new_empty(width, stride)
        self._basis, self._points = basis, points
        # On the CPU, the place of a chunk among them is found without waiting.
        self._basis_arms = basis.indices.cpu()
        self._solver, solver_v = TriangularSolver(basis.L), TriangularSolver(basis.L_v)
        self._size = len(basis.L)
        prior, mean, residual, projected = self.moments
        for rows in self.chunks(max(self._size, 1)):
            Z = self._coordinates(rows)
            if width:
                self._features[: self._size, rows] = Z
            Z = basis.project(Z)
            torch.mv(Z.mT, basis.weights, out=mean[rows])
            # A third to a tenth of the time of `vector_norm`, on contiguous rows.
            residual[rows] = prior[rows] - Z.square().sum(dim=0)
            solver_v.solve_(Z)
            projected[rows] = Z.square().sum(dim=0)
        if width:
            self._basis = None
        self._finish(basis.indices)

    @torch.no_grad()
    def advance(self, move: Move, points: Tensor, inducing: Tensor) -> None:
        """Apply a change of the basis, in one pass over the features.

        ``points`` are the rows of the arms that joined.
        """
        self._forget()
        M_0, (M, num_vectors) = len(move.old), move.vectors.shape
        old, signs = _aligned(move.old.mT), _aligned(move.signs)
        corner = move.L[:, M_0:]
        _, mean, residual, projected = self.moments
        for rows in self.chunks(max(M_0, 1), PASS_CHUNK_BYTES):
            # One product reads the old features once, for the new ones as well.
            products = old @ self._features[:M_0, rows]
            moves = products[:num_vectors]
            if M > M_0:
                K = self._covariance(points, rows) - products[num_vectors:]
                new = torch.linalg.solve_triangular(corner, K, upper=False)
                self._features[M_0:M, rows] = new
                moves.addmm_(move.vectors[M_0:].mT, new)
            mean[rows] = moves[-1]
            added = signs @ moves.square_()
            projected[rows] += added[0]
            if move.turns:
                residual[rows] += added[1]
        projected.clamp_(min=0.0)
        if M > M_0:
            own = self._is_here(move.joined)
            self._features[:M, move.joined[own] - self.start] = move.L[own].mT
            self._size = M
        if move.turns:
            self._finish(inducing)

    def _forget(self) -> None:
        """Keep nothing of pulls without reward."""
        self._kept: tuple[tuple[Any, ...], list[Tensor]] = ((), [])
        self._lost = self.moments[0, :0]

    def _finish(self, inducing: Tensor) -> None:
        """Clamp residuals at zero, and keep the most negative one for the check."""
        prior, _, residual, _ = self.moments
        tiny = torch.finfo(prior.dtype).tiny
        self._worst_residual = (residual / prior.clamp_min(tiny)).min().item()
        residual.clamp_(min=0.0)
        residual[self._places(inducing)] = 0.0

    # Questions

    def moments_of(self, indices: Tensor) -> Tensor:
        """Return prior variance, mean, residual and projected variance, ``k x 4``."""
        return self.moments.index_select(1, self._places(indices)).mT

    @property
    def variance(self) -> Tensor:
        """The posterior variances."""
        return self.moments[2] + self.moments[3]

    def variance_given(self, pulls: Pulls | None) -> Tensor:
        """Return the posterior variances given pulls without reward."""
        if pulls is None:
            return self.variance
        _, _, residual, projected = self.moments
        lost = self._lost_by(pulls)
        if pulls.projected:
            return residual + (projected - lost).clamp_(min=0.0)
        return (residual + projected - lost).clamp_(min=0.0)

    def _lost_by(self, pulls: Pulls) -> Tensor:
        """Return how much variances fall, and keep rows for more pulls after these."""
        key, rows = self._kept
        if key == pulls.key:
            return self._lost
        if not rows or key != pulls.key[: len(key)]:
            key, rows = (), []
            self._lost = torch.zeros_like(self.moments[0])
        start, stop = len(key), len(pulls.C)
        size = max(self._size, stop)
        num_bytes = PASS_CHUNK_BYTES if self._basis is None else None
        if stop > pulls.room:
            self._kept = (), []  # before other tensors are made
            for at in self.chunks(size, num_bytes):
                found = self._rows_of(pulls, 0, at, [])
                self._lost[at] = found.square().sum(dim=0)
            self._kept = pulls.key, []
            return self._lost
        new = self.moments.new_empty(stop - start, self.num_arms)
        for at in self.chunks(size, num_bytes):
            new[:, at] = self._rows_of(pulls, start, at, rows)
        for row in new:
            self._lost.addcmul_(row, row)
        self._kept = pulls.key, [*rows, new]
        return self._lost

    def _rows_of(
        self, pulls: Pulls, start: int, at: slice, known: list[Tensor]
    ) -> Tensor:
        """Return rows of ``C^{-1} c`` of some arms, given the rows before them."""
        found = pulls.vectors[:, start:].mT @ self._coordinates(at)
        if not pulls.projected:
            found += self._covariance(pulls.points[start:], at)
        if start:
            earlier = torch.cat([rows[:, at] for rows in known])
            found -= pulls.C[start:, :start] @ earlier
        corner = pulls.C[start:, start:]
        return torch.linalg.solve_triangular(corner, found, upper=False)

    def features(self, indices: Tensor) -> Tensor:
        """Return the cached features of a few arms, ``k x M``."""
        found = self._features[: self._size].index_select(1, self._places(indices))
        return _aligned(found.mT)

    def soundness(self) -> tuple[float, float]:
        """Return the least variance, and the least residual over prior variance."""
        return self.variance.amin().item(), self._worst_residual

    def rounding(
        self, exact: Tensor, known: Tensor, errors: Tensor
    ) -> tuple[float, int]:
        """Return the largest relative rounding error of a variance, and its arm.

        Given arms whose residual has none, and those whose error is known.
        """
        prior, _, residual, projected = self.moments
        noise = torch.finfo(prior.dtype).eps * prior
        noise[self._places(exact)] = 0.0
        error = noise / (projected + (residual - 4 * noise).clamp_min(0))
        error[self._places(known)] = errors[self._is_here(known)]
        worst, arm = error.nan_to_num(0.0).max(dim=0)  # no prior variance, no error
        return worst.item(), self.start + int(arm)

    def largest_bounds(
        self,
        size: int,
        scale: float,
        allowed: Tensor | None,
        pulls: Pulls | None = None,
    ) -> Ranked:
        """Return the arms of the largest bounds, see ``Posterior.largest_bounds``."""
        bounds = self.moments[1] + scale * self.variance_given(pulls).sqrt()
        if allowed is not None:
            bounds.masked_fill_(~allowed[self.rows], -math.inf)
        found = largest(bounds, size)
        return Ranked(found.values, found.arms + self.start)

    def largest_gain(
        self,
        noise_variance: float,
        top: Ranked,
        allowed: Tensor | None,
        without: Tensor,
    ) -> float:
        """Return the largest knowledge gain, see ``ArmPosterior.largest_gain``."""
        is_open = self._competing(allowed, without)
        is_best = torch.zeros_like(is_open)
        is_best[self._places(top.arms[:1])] = True
        found = []
        for start in range(0, self.num_arms, self.block_size):
            rows = slice(start, start + self.block_size)
            _, mean, residual, projected = self.moments[:, rows]
            variance = residual + projected
            gain = expected_rise(mean, variance, noise_variance, top, is_best[rows])
            found.append(gain.masked_fill_(~is_open[rows], -math.inf).amax())
        return torch.stack(found).max().item()

    def drawn(self, draws: Draws) -> Tensor:
        """Return values of all arms, ``num_draws x A``."""
        return torch.cat([chunk for _, chunk in self._drawn_chunks(draws)], dim=-1)

    def best_of_draws(
        self, draws: Draws, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each draw's largest value, and its arm."""
        best = self.moments.new_full((draws.weights.shape[-1],), -torch.inf)
        arms = torch.full_like(best, self.start, dtype=torch.long)
        for rows, chunk in self._drawn_chunks(draws):
            if allowed is not None:
                chunk.masked_fill_(~allowed[self.rows][rows], -torch.inf)
            values, positions = chunk.max(dim=-1)
            # Strictly larger: ties go to the lower chunk, and NaN is the largest.
            better = ~(values <= best) & ~best.isnan()
            best = torch.where(better, values, best)
            arms = torch.where(better, positions + (self.start + rows.start), arms)
        return best, arms

    def expected_above(
        self, levels: Tensor, allowed: Tensor | None, without: Tensor
    ) -> tuple[int, Tensor]:
        """Return how many arms compete, and how many are expected above ``l`` levels.

        The second are ``blocks x l`` numbers to be added up.
        """
        inside = self._competing(allowed, without)
        sums = []
        for start in range(0, self.num_arms, self.block_size):
            rows = slice(start, start + self.block_size)
            _, mean, residual, projected = self.moments[:, rows]
            std = (residual + projected).sqrt()
            std = std.clamp_min(torch.finfo(std.dtype).tiny)
            shares = [torch.special.ndtr((mean - b) / std) for b in levels]
            sums.append(torch.stack([(share * inside[rows]).sum() for share in shares]))
        return int(inside.sum()), torch.stack(sums)

    # Passes over the arms

    def chunks(
        self, numbers_per_arm: int, num_bytes: int | None = None
    ) -> Iterator[slice]:
        """Yield slices of arms, given how many numbers a chunk holds of each arm."""
        most_arms = self.block_size
        if self.arms.device.type != "cpu":
            num_bytes, most_arms = ACCELERATOR_CHUNK_BYTES, ACCELERATOR_CHUNK_ARMS
        elif num_bytes is None:
            num_bytes = CHUNK_BYTES
            if isinstance(self.arms, BitArms):
                num_bytes = PACKED_CHUNK_BYTES
                numbers_per_arm = max(numbers_per_arm, self.arms.shape[-1] // 8)
        most = num_bytes // (numbers_per_arm * self.arms.element_size())
        if isinstance(self.arms, StoredArms):  # rows that are taken become dense
            row_bytes = self.arms.shape[-1] * self.arms.element_size()
            most = min(most, PASS_CHUNK_BYTES // row_bytes)
        size = 2 ** (max(most, MIN_CHUNK).bit_length() - 1)
        size = min(size, most_arms)
        stop = self.num_arms
        for start in range(0, stop, size):
            yield slice(start, min(start + size, stop))

    def _coordinates(self, rows: slice) -> Tensor:
        """Return the ``M x k`` features of some arms in a row, cached or computed."""
        basis = self._basis
        if basis is None or not self._size:
            return self._features[: self._size, rows]
        Z = self._solver.solve_(self._covariance(self._points, rows))
        # Arms of the basis have their row of L, exact where a solve leaves rounding.
        arms, start = self._basis_arms, self.start + rows.start
        own = (arms >= start) & (arms < self.start + rows.stop)
        if own.any():
            Z[:, arms[own] - start] = basis.L[own].mT
        return Z

    def _covariance(self, points: Tensor, rows: slice) -> Tensor:
        """Return the prior covariances of points with some arms."""
        with torch.no_grad():
            K = dense_covariance(self.covar_module, points, self._taken(rows))
        return K.to(self.moments)  # kernels may not keep the dtype

    def _taken(self, rows: slice) -> Tensor:
        """Return the rows of some arms."""
        taken = self.arms[self.start + rows.start : self.start + rows.stop]
        return taken.dense() if isinstance(taken, StoredArms) else taken

    def _drawn_chunks(self, draws: Draws) -> Iterator[tuple[slice, Tensor]]:
        """Yield which arms, and their ``num_draws x chunk`` values."""
        size, num_appended = draws.weights.shape[-1], len(draws.points)
        vectors = _aligned(draws.vectors.mT)
        for rows in self.chunks(max(*draws.vectors.shape, 1)):
            products = vectors @ self._coordinates(rows)
            values = products[:size].add_(self.moments[1, rows])
            if num_appended:
                K = self._covariance(draws.points, rows) - products[size:]
                new = torch.linalg.solve_triangular(draws.C, K, upper=False)
                values.addmm_(draws.weights.mT, new)
            yield rows, values

    def _competing(self, allowed: Tensor | None, without: Tensor) -> Tensor:
        """Return which arms compete, without some."""
        found = torch.ones_like(self.moments[1], dtype=torch.bool)
        if allowed is not None:
            found &= allowed[self.rows]
        found[self._places(without)] = False
        return found

    def _is_here(self, indices: Tensor) -> Tensor:
        return (indices >= self.start) & (indices < self.start + self.num_arms)

    def _places(self, indices: Tensor) -> Tensor:
        """Return the places of those arms that are in this shard."""
        if self.num_arms == len(self.arms):
            return indices
        return indices[self._is_here(indices)] - self.start


T = TypeVar("T")
Args = TypeVarTuple("Args")


def plan_shards(num_arms: int, num_shards: int, block_size: int) -> list[int]:
    """Return where shards start, and the number of arms: whole blocks each, or none."""
    num_blocks = math.ceil(num_arms / block_size)
    size = math.ceil(num_blocks / num_shards) * block_size
    return [*range(0, num_arms, size), num_arms]


class Shards(ABC):
    """Per-arm state, split into ranges of arms.

    Attributes:
        limits: Where the shards start, and the number of arms.
    """

    limits: list[int]

    @abstractmethod
    def change(self, method: Callable[[ArmShard, *Args], None], *args: *Args) -> None:
        """Call a method that changes a shard, on all shards."""

    @abstractmethod
    def ask(self, method: Callable[[ArmShard, *Args], T], *args: *Args) -> list[T]:
        """Return the answers of all shards, in their order."""

    def ask_of(
        self, method: Callable[[ArmShard, Tensor], Tensor], indices: Tensor
    ) -> Tensor:
        """Return the rows of a table for a few arms, in their order.

        Args:
            method: Returns the rows of those of the arms that are in a shard.
            indices: The arms.
        """
        parts = self.ask(method, indices)
        if len(parts) == 1:
            return parts[0]
        inner = torch.tensor(self.limits[1:-1], device=indices.device)
        shard = torch.bucketize(indices, inner, right=True)
        return torch.cat(parts)[shard.argsort(stable=True).argsort()]

    def column(self, method: Callable[[ArmShard], Tensor]) -> Tensor:
        """Return a number of every arm."""
        parts = self.ask(method)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class LocalShards(Shards):
    """Shards in this process.

    Args:
        parts: The shards.
        limits: Where they start, and the number of arms.
    """

    def __init__(self, parts: list[ArmShard], limits: list[int]) -> None:
        self.parts = parts
        self.limits = limits

    @override
    def change(self, method: Callable[[ArmShard, *Args], None], *args: *Args) -> None:
        for part in self.parts:
            method(part, *args)

    @override
    def ask(self, method: Callable[[ArmShard, *Args], T], *args: *Args) -> list[T]:
        return [method(part, *args) for part in self.parts]


def arm_shards(arms: Tensor, covar_module: Kernel) -> Shards:
    """Return the shards of arms: one in this process, or those of Ray's workers."""
    if isinstance(arms, StoredArms) and arms.workers is not None:
        from botorch_bkb.posteriors.ray_shards import shards_on_ray

        return shards_on_ray(arms, arms.workers, covar_module, BLOCK_SIZE)
    limits = plan_shards(len(arms), 1, BLOCK_SIZE)
    parts = [
        ArmShard(arms, start, stop, covar_module, BLOCK_SIZE)
        for start, stop in pairwise(limits)
    ]
    return LocalShards(parts, limits)


@contextmanager
def threads_for(num_bytes: int) -> Iterator[None]:
    """Limit PyTorch to one thread for a while, if the work is small.

    Args:
        num_bytes: How much data the work passes over.
    """
    num_threads = torch.get_num_threads()
    if num_threads == 1 or num_bytes >= MIN_SHARED_BYTES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _aligned(matrix: Tensor) -> Tensor:
    """Return a copy in rows, whose memory layout does not depend on its source.

    The last bits of products depend on the layout, and may decide near-ties.
    """
    return matrix.clone(memory_format=torch.contiguous_format)
