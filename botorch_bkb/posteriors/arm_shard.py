"""The moments and the cached features of arms in a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.arms import BitArms, StoredArms
from botorch_bkb.models.utils.nystrom import (
    check_prior_variance,
    dense_covariance,
    TriangularSolver,
)
from botorch_bkb.posteriors.basis import Basis, Move


# The size of a chunk of features or covariances, of which a few are alive at a time:
# what a core's caches hold, or more for passes that read features once.
CHUNK_BYTES = 2**20
PASS_CHUNK_BYTES = 2**24
# Of arms whose bits stay packed; every chunk unpacks the inducing ones.
PACKED_CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
# Up to CUDA 13.1 `solve_triangular` is slow with 524,281 columns or more.
ACCELERATOR_CHUNK_ARMS = 2**18
# The fewest arms of a chunk.
MIN_CHUNK = 16


class Ranked(NamedTuple):
    """Arms in order of their values, largest first, the lowest index among ties."""

    values: Tensor
    arms: Tensor

    def first(self, size: int) -> Ranked:
        """Return the first of them."""
        return Ranked(self.values[:size], self.arms[:size])

    @classmethod
    def merged(cls, parts: Iterable[Ranked]) -> Ranked:
        """Return one list of several, each in any order."""
        values, arms = map(torch.cat, zip(*parts, strict=True))
        arms, order = arms.sort()
        values, by_value = values[order].sort(descending=True, stable=True)
        return cls(values, arms[by_value])


def largest(values: Tensor, size: int) -> Ranked:
    """Return the largest values and their places, the lowest index among ties.

    NaN is larger than any number.
    """
    size = min(size, len(values))
    if not size:
        return Ranked(values[:0], torch.arange(0, device=values.device))
    if size == 1:  # `max` returns the first of the largest
        return Ranked(*values.max(dim=0, keepdim=True))
    least = values.topk(size).values[-1:]
    above = (values.isnan() | (values > least)).nonzero().squeeze(-1)[:size]
    ties = (values == least).nonzero().squeeze(-1)[: size - len(above)]
    positions = torch.cat([above, ties]).sort().values
    found, order = values[positions].sort(descending=True, stable=True)
    return Ranked(found, positions[order])


def expected_rise(
    mean: Tensor,  # k
    variance: Tensor,  # k
    noise_variance: float,
    top: Ranked,
    is_best: Tensor,  # k, bool
) -> Tensor:  # k
    r"""Return how much one more pull is expected to raise the largest mean.

    The knowledge gradient of [frazier2009]_ as if arms were independent: a pull of
    ``x`` moves its mean by a normal step of standard deviation
    ``s = v / sqrt(v + lambda)``, so ::

        E max(mean(x) + step, rest) - max(mean(x), rest) = s h(-|mean(x) - rest| / s)

    with ``h(z) = z Phi(z) + phi(z)`` and ``rest`` the largest mean of the others.

    Args:
        mean: The means of some arms.
        variance: Their variances.
        noise_variance: lambda.
        top: The two largest means of all arms that compete; one if there is one arm.
        is_best: Whether an arm is the first of these.
    """
    second = top.values[1] if len(top.values) > 1 else -math.inf
    rest = torch.where(is_best, second, top.values[0])
    step = variance / (variance + noise_variance).sqrt()
    z = -(mean - rest).abs() / step
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    gain = step * (z * torch.special.ndtr(z) + density)
    # Far below the best the two terms cancel, and rounding is negative.
    return torch.where(step > 0, gain, 0.0).nan_to_num(0.0).clamp_min(0.0)


class Pulls(NamedTuple):
    r"""Pulls without reward, as shards need them.

    With ``c(x)`` the covariances of an arm with the ``f`` pulled ones and ``C C^T`` the
    covariance of the means of their rewards, a variance falls by ``|C^{-1} c(x)|^2``.
    Entry ``j`` of this vector depends on the first ``j`` pulls only.

    Attributes:
        counts: The number of pulls of each arm, in their order.
        projected: Whether only the projected variance falls.
        points: The ``f x d`` rows of these arms; none if only the projected variance
            falls.
        vectors: ``M x f``: ``c(x)`` is their product with the features, plus the prior
            covariances with the points.
        C: The ``f x f`` lower Cholesky factor.
        room: How many rows ``C^{-1} c`` of all arms may be kept.
    """

    counts: dict[int, int]
    projected: bool
    points: Tensor
    vectors: Tensor
    C: Tensor
    room: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What says which pulls these are, one entry a row."""
        return (*((self.projected, *one) for one in self.counts.items()),)


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


class ArmShard:
    """Moments and features of arms in a row.

    Args:
        arms: The rows of all arms.
        start: The first of these arms.
        stop: The first arm after them.
        covar_module: The kernel.
        block_size: How many arms a block has, a power of two.

    Attributes:
        rows: The arms.
        moments: Prior variances, means, residuals and projected variances, ``4 x A``.
        scale: The largest prior variance.

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
        self.scale = prior.max().item()
        # The cache, a row per feature with room for more; none past the budget.
        self._features = self.moments[:0]
        self._size = 0
        # What features are solved from again; None where they are cached.
        self._basis: Basis | None = None
        self._forget()

    # Changes

    @torch.no_grad()
    def rebuild(
        self, basis: Basis, points: Tensor, inducing: Tensor, width: int
    ) -> None:
        """Compute the moments, and features if the cache has a width.

        Args:
            basis: The small matrices.
            points: The rows of its arms.
            inducing: The inducing arms.
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
        self._finish(inducing)

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
        """Make no residual negative; remember how far below zero they were."""
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
        competes: Tensor | None,
        pulls: Pulls | None = None,
    ) -> Ranked:
        """Return the arms of the largest bounds, see ``Posterior.largest_bounds``."""
        bounds = self.moments[1] + scale * self.variance_given(pulls).sqrt()
        if competes is not None:
            bounds.masked_fill_(~competes[self.rows], -math.inf)
        found = largest(bounds, size)
        return Ranked(found.values, found.arms + self.start)

    def largest_gain(
        self,
        noise_variance: float,
        top: Ranked,
        competes: Tensor | None,
        without: Tensor,
    ) -> float:
        """Return the largest knowledge gain, see ``ArmPosterior.largest_gain``."""
        is_open = self._competing(competes, without)
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
        self, draws: Draws, competes: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each draw's largest value, and its arm."""
        best = self.moments.new_full((draws.weights.shape[-1],), -torch.inf)
        arms = torch.full_like(best, self.start, dtype=torch.long)
        for rows, chunk in self._drawn_chunks(draws):
            if competes is not None:
                chunk.masked_fill_(~competes[self.rows][rows], -torch.inf)
            values, positions = chunk.max(dim=-1)
            # Strictly larger: ties go to the lower chunk, and NaN is the largest.
            better = ~(values <= best) & ~best.isnan()
            best = torch.where(better, values, best)
            arms = torch.where(better, positions + (self.start + rows.start), arms)
        return best, arms

    def expected_above(
        self, levels: Tensor, competes: Tensor | None, without: Tensor
    ) -> tuple[int, Tensor]:
        """Return how many arms compete, and how many are expected above ``l`` levels.

        The second are ``blocks x l`` numbers to be added up.
        """
        inside = self._competing(competes, without)
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

    def _competing(self, competes: Tensor | None, without: Tensor) -> Tensor:
        """Return which arms compete, without some."""
        found = torch.ones_like(self.moments[1], dtype=torch.bool)
        if competes is not None:
            found &= competes[self.rows]
        found[self._places(without)] = False
        return found

    def _is_here(self, indices: Tensor) -> Tensor:
        return (indices >= self.start) & (indices < self.start + self.num_arms)

    def _places(self, indices: Tensor) -> Tensor:
        """Return the places of those arms that are in this shard."""
        if self.num_arms == len(self.arms):
            return indices
        return indices[self._is_here(indices)] - self.start


def _aligned(matrix: Tensor) -> Tensor:
    """Return a copy in rows, whose memory layout does not depend on its source.

    The last bits of products depend on the layout, and may decide near-ties.
    """
    return matrix.clone(memory_format=torch.contiguous_format)
