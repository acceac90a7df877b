r"""The posterior of all arms at once, from cached features: the fast path.

The sparse posterior of section 3.1 of [calandriello2019bkb]_, in the units of the GP.
With inducing arms ``S``, ``K_S = L L^T``, features ``z(x) = L^{-1} k_S(x)`` and the
summed precisions ``W`` (number of pulls over lambda) of the pulled arms, ::

    V = I + Z^T W Z                            (the papers' V, divided by lambda)
    mean(x) = z(x)^T V^{-1} Z^T W ybar
    residual(x) = k(x, x) - |z(x)|^2            what S cannot explain
    projected(x) = z(x)^T V^{-1} z(x)           what noise leaves uncertain of the rest
    variance(x) = residual(x) + projected(x)

References:
    [calandriello2019bkb] D. Calandriello, L. Carratino, A. Lazaric, M. Valko, L.
    Rosasco. Gaussian process optimization with adaptive sketching: scalable and no
    regret. COLT 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import as_number, check_modules, check_tensors
from botorch_bkb.models.utils.bits import BitArms
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.nystrom import (
    append_tolerance,
    check_prior_variance,
    check_residual,
    independent_points,
    is_well_conditioned,
)
from botorch_bkb.models.utils.rounding import ROUNDING_THRESHOLD, RoundingReport
from botorch_bkb.posteriors.feature_basis import (
    BasisChange,
    BasisPosterior,
    change_basis,
)
from botorch_bkb.posteriors.kernel_rows import KernelRows
from botorch_bkb.posteriors.moments import Moments
from botorch_bkb.posteriors.threads import threads_for


# The size of a chunk of features, of which three are alive at a time: what a core's
# caches hold; more for passes that read features once; enough to fill an accelerator.
CHUNK_BYTES = 2**20
PASS_CHUNK_BYTES = 2**24
# Of arms whose bits stay packed; every chunk unpacks the inducing ones.
PACKED_CHUNK_BYTES = 2**22
ACCELERATOR_CHUNK_BYTES = 2**28
# Rounding adds up over incremental updates: start afresh after this many.
MAX_INCREMENTS = 64
# How much slower the full rebuild's products are than those of the increment's pass.
REBUILD_COST = 1.5


class ArmPosterior(Moments):
    r"""Mean and variance of ``A`` arms under a sparse GP posterior.

    Memory: the ``A x m`` features are kept if they fit half of ``max_feature_bytes``,
    and the kernel rows they come from as far as they fit a third of it (half while they
    move to more room). What does not fit is recomputed chunk by chunk where it is
    needed, with the same answers; without features every update is a full rebuild.
    Beside them are a few ``A``-dim vectors and three chunks (at most 16 MiB each on
    a processor). Nothing is ever ``A x`` (number of pulls).

    Args:
        arms: An ``A x d`` tensor.
        covar_module: The kernel; its hyper-parameters are taken as they are.
        noise_variance: lambda.
        max_feature_bytes: The byte budget of cached features and kernel rows.

    Raises:
        InputDataError: If an argument is of another type or out of range.
        UnsupportedError: If the kernel is a batch.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel,
        noise_variance: float,
        max_feature_bytes: int = 2**31,
    ) -> None:
        check_tensors(arms=arms)
        check_modules(Kernel, covar_module=covar_module)
        if not 0 < as_number(noise_variance) < math.inf:
            raise InputDataError(
                "Expected `noise_variance` to be a positive number, but got "
                f"{noise_variance!r}."
            )
        self.arms = arms
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.max_feature_bytes = max_feature_bytes
        self._all_arms = torch.arange(arms.shape[0], device=arms.device)
        self.prior_variance = torch.cat(
            [self._prior_variance(arms[rows]) for rows in self._chunks(arms.shape[-1])]
        )
        check_prior_variance(self.prior_variance)
        self.mean = torch.zeros_like(self.prior_variance)
        self._scale = self.prior_variance.max().item()
        self._rounding_report = RoundingReport(self.mean.dtype)
        self._rows = KernelRows(arms.shape[0], max_feature_bytes // 3, self.mean)
        # The cache, one row per arm with room for more columns; none past the budget.
        self._features = arms.new_empty(arms.shape[0], 0)
        none = torch.empty(0, dtype=torch.long, device=arms.device)
        self.update(none, none, self.prior_variance[:0], self.prior_variance[:0])

    @property
    @override
    def variance(self) -> Tensor:
        return self.residual + self.projected

    @override
    def variances(self, indices: Tensor) -> Tensor:
        return self.residual[indices] + self.projected[indices]

    @torch.no_grad()
    def update(
        self,
        inducing_indices: Tensor,
        pulled_indices: Tensor,
        counts: Tensor,
        sums: Tensor,
    ) -> None:
        r"""Move to other inducing arms and data.

        Where the features are cached and little has changed, one pass over them,
        ``O(A m (b + d + e))`` for ``b`` arms with new pulls, ``d`` that are no longer
        inducing and ``e`` that are new (see
        :mod:`~botorch_bkb.posteriors.feature_basis`). Otherwise, and every 64 updates
        against rounding, the full rebuild: two triangular solves over all arms, ``O(A
        m^2)``. The results agree up to rounding.

        Args:
            inducing_indices: An ``m``-dim long tensor; arms that add nothing to the
                span of the others are left out.
            pulled_indices: A ``P``-dim long tensor of the arms with rewards.
            counts: The ``P`` numbers of pulls.
            sums: The ``P`` sums of (centered) rewards.

        Raises:
            InputDataError: If the kernel is not positive semi-definite on the arms.
        """
        data = self.mean.new_zeros(2, self.arms.shape[0])
        data[:, pulled_indices] = torch.stack([counts, sums]).to(data)
        data /= self.noise_variance
        with threads_for(self.mean.nbytes * inducing_indices.shape[0]):
            change = self._increment(inducing_indices, data)
            self.pulled_indices = pulled_indices
            self.precisions = data[0, pulled_indices]
            self._data = data
            if change is None:
                self._rebuild(inducing_indices)
            else:
                self._advance(inducing_indices, change)
            error, arm = self._rounding(inducing_indices)
            if self._num_increments and error > ROUNDING_THRESHOLD:
                self._rebuild(inducing_indices)
                error, arm = self._rounding(inducing_indices)
            self._finish(error, arm)

    @torch.no_grad()
    def extended(self, arms: Tensor) -> ArmPosterior:
        """Return the posterior of more arms beside these, given the same data.

        ``O(k m^2)`` for ``k`` more arms, and a copy of what is cached; where the byte
        budget cannot hold all features any longer, a full rebuild. This posterior stays
        as it is.

        Args:
            arms: A ``k x d`` tensor; their indices follow those that are there.

        Raises:
            InputDataError: If the kernel is not positive semi-definite on the arms.
        """
        other, num_arms = copy(self), self.arms.shape[0]
        other.arms = torch.cat([self.arms, arms])
        other._all_arms = torch.arange(other.arms.shape[0], device=arms.device)
        added = [self._prior_variance(arms), arms.new_zeros(arms.shape[0])]
        other.prior_variance = torch.cat([self.prior_variance, added[0]])
        check_prior_variance(other.prior_variance)
        other._scale = other.prior_variance.max().item()
        other.mean = torch.cat([self.mean, added[1]])
        other.residual = torch.cat([self.residual, added[0]])
        other.projected = torch.cat([self.projected, added[1]])
        other._data = torch.cat([self._data, torch.stack(2 * added[1:])], dim=-1)
        outside = torch.full_like(other._all_arms[num_arms:], -1)
        other._row_of_arm = torch.cat([self._row_of_arm, outside])
        M = self._basis.size
        with threads_for(other.mean.nbytes * M):
            other._rows = self._rows.extended(
                self.max_feature_bytes // 3,
                other._chunks(max(self._rows.size, 1), PASS_CHUNK_BYTES, num_arms),
                other.prior_covariance,
            )
            room = min(self._features.shape[1], other._max_room)
            if room < M and self._is_cached:
                other._rebuild(self.inducing_indices)
            else:
                other._features = arms.new_empty(other.arms.shape[0], room)
                if room:
                    other._features[:num_arms, :M] = self._stored_features()
                other._fill(other._features, num_arms)
            other._finish(*other._rounding(self.inducing_indices))
        return other

    def _finish(self, error: float, arm: int) -> None:
        """Report the largest rounding error, and make no variance negative."""
        check_residual(self.residual, self.prior_variance)
        self._rounding_report.note(error, arm)
        self.residual.clamp_(min=0.0)
        self.residual[self.inducing_indices] = 0.0
        self.projected.clamp_(min=0.0)

    def _rounding(self, wanted: Tensor) -> tuple[float, int]:
        """Return the largest relative rounding error of a variance, and its arm.

        ``k(x, x) - |z|^2`` and incremental updates leave a rounding error of the prior
        variance. And what an arm adds to the span is lost where it is too little to
        be inducing, although its own pulls would tell it: with precision ``W`` they
        leave ``r / (1 + W r)`` of a residual ``r``.

        Args:
            wanted: The arms that were to be inducing.
        """
        eps = torch.finfo(self.mean.dtype).eps
        dropped = wanted[~torch.isin(wanted, self.inducing_indices)]
        least = (self.residual + self.projected).amin().item()
        if not dropped.numel() and 2 * eps * self._scale < ROUNDING_THRESHOLD * least:
            return 0.0, 0  # for less time than it takes to look at every arm
        noise = eps * self.prior_variance
        if self._num_increments == 0:
            noise[self.inducing_indices] = 0.0  # in the span by construction
        residual, projected = self.residual.clamp_min(0), self.projected.clamp_min(0)
        error = noise / (projected + (residual - 4 * noise).clamp_min(0))
        if dropped.numel():
            r, W = residual[dropped], self._data[0, dropped]
            told = r / (1 + W * r)
            # The error of the dropped arm itself, and what the others lose by it.
            own = (r - told) / (projected[dropped] + told)
            lost = torch.linalg.vector_norm((1 - told / r).nan_to_num(0.0))
            error[dropped] = own.maximum(lost)
        worst, arm = error.nan_to_num(0.0).max(dim=0)  # no prior variance, no error
        return worst.item(), int(arm)

    def projected_score(self, index: int) -> float:
        """Return the leverage score of an arm without its residual."""
        return (self.projected[index] / self.noise_variance).item()

    @property
    @override
    def log_det(self) -> float:  # type: ignore[override]
        """``log det(I + K / lambda)`` of the pulls, with the Nystrom Gram matrix."""
        return 2 * self.L_v.diagonal().log().sum().item()

    @property
    @override
    def effective_dimension(self) -> float:  # type: ignore[override]
        """The sum of the pulls' leverage scores; equation (5) of the COLT paper."""
        return (self.precisions * self.variances(self.pulled_indices)).sum().item()

    @property
    def pulled_in_span(self) -> Tensor:
        """For each pulled arm, whether the inducing arms explain all of it."""
        pulled = self.pulled_indices
        rtol = append_tolerance(self.residual.dtype)
        return self.residual[pulled] <= rtol * self.prior_variance[pulled]

    @property
    def is_exact(self) -> bool:
        """Whether this is the exact GP, with every pulled arm in the span."""
        return bool(self.pulled_in_span.all())

    @property
    @override
    def feature_bytes(self) -> int:  # type: ignore[override]
        """The size of all arms' features, kept or not."""
        return self.mean.nbytes * self._basis.size

    @property
    def L_v(self) -> Tensor:
        """The ``M x M`` lower Cholesky factor of ``V``."""
        return self._basis.L_v

    def features(self, indices: Tensor) -> Tensor:
        """Return the ``M x k`` features of ``k`` arms.

        Features are known up to a rotation only; these have ``M >= m`` coordinates,
        see :mod:`~botorch_bkb.posteriors.feature_basis`.
        """
        if not self._is_cached:
            return self._features_from(self._basis.L, self._basis.indices, indices)
        return self._basis.project(self._stored_features().index_select(0, indices).mT)

    @property
    def _is_cached(self) -> bool:
        return self._features.shape[1] > 0

    def _stored_features(self) -> Tensor:
        """Return the cached ``A x M`` features of the basis."""
        return self._features[:, : self._basis.size]

    def _solve_features(self, columns: slice) -> Tensor:
        """Compute the ``M x k`` features of some arms in a row."""
        basis = self._basis
        K = self._prior_rows(basis.indices, columns)
        Z = torch.linalg.solve_triangular(basis.L, K, upper=False)
        # Arms of the basis have their row of L, exact where a solve leaves rounding.
        row = self._row_of_arm[columns]
        position = (row >= 0).nonzero().squeeze(-1)
        Z[:, position] = basis.L[row[position]].mT
        return Z

    def _features_from(self, L: Tensor, basis: Tensor, arms: Tensor) -> Tensor:
        """Compute the ``M x k`` features of a few arms, without kernel rows."""
        row = self._row_of_arm[arms]
        is_basis = row >= 0
        Z = L.new_empty(L.shape[0], arms.shape[0])
        Z[:, is_basis] = L[row[is_basis]].mT
        K = self.prior_covariance(basis, arms[~is_basis])
        Z[:, ~is_basis] = torch.linalg.solve_triangular(L, K, upper=False)
        return Z

    def dot(self, vector: Tensor) -> Tensor:
        """Return the ``A`` inner products of the features with an ``M``-dim vector."""
        if not self._is_cached:
            products = [vector @ self._solve_features(rows) for rows in self._slices()]
            return torch.cat(products)
        projected = self._basis.project(vector.unsqueeze(-1)).squeeze(-1)
        return self._stored_features() @ projected

    def inner_products(self, vectors: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield, chunk by chunk, the arms' inner products with several vectors.

        Args:
            vectors: An ``M x k`` matrix.

        Yields:
            Which arms, and their ``chunk x k`` inner products.
        """
        projected = self._basis.project(vectors)
        for arms in self._chunks(max(*vectors.shape, 1)):
            rows = slice(int(arms[0]), int(arms[-1]) + 1)
            if self._is_cached:
                yield rows, self._stored_features()[rows] @ projected
            else:
                yield rows, self._solve_features(rows).mT @ projected

    def covariance(self, left: Tensor, right: Tensor, projected: bool) -> Tensor:
        """Return posterior covariances between two lists of arms.

        Args:
            left: ``k`` arms.
            right: ``l`` arms.
            projected: As in :meth:`covariance_column`.
        """
        Z_left, Z_right = self.features(left), self.features(right)
        root_left = torch.linalg.solve_triangular(self.L_v, Z_left, upper=False)
        root_right = torch.linalg.solve_triangular(self.L_v, Z_right, upper=False)
        covariance = root_left.mT @ root_right
        if projected:
            return covariance
        return covariance + self.prior_covariance(left, right) - Z_left.mT @ Z_right

    def covariance_column(self, index: int, projected: bool) -> Tensor:
        r"""Return the posterior covariances of all arms with one arm.

        Args:
            index: The arm.
            projected: Leave out the residual: ``z(x)^T V^{-1} z(x_index)``, the part
                through which a pull enters the sparse model.
        """
        one = torch.tensor([index], device=self.arms.device)
        z = self.features(one)
        covariance = self.dot(torch.cholesky_solve(z, self.L_v).squeeze(-1))
        if projected:
            return covariance
        return covariance + self.prior_column(index) - self.dot(z.squeeze(-1))

    def prior_column(self, index: int, indices: Tensor | None = None) -> Tensor:
        """Return the prior covariances of one arm with all arms, or with some."""
        one = torch.tensor([index], device=self.arms.device)
        if indices is not None:
            return self.prior_covariance(one, indices).squeeze(0)
        return self._kernel_rows(one).squeeze(0)

    def _prior_rows(self, indices: Tensor, arms: Tensor | slice) -> Tensor:
        """Return prior covariances of inducing arms with some, from memory if there."""
        if (self._rows.slots[indices] >= 0).all():
            return self._rows.select(indices, arms)
        return self.prior_covariance(indices, self._all_arms[arms])

    def _kernel_rows(self, indices: Tensor) -> Tensor:
        """Return the prior covariances of some arms with all arms."""
        numbers_per_arm = max(self.arms.shape[-1], indices.shape[0])
        chunks = self._chunks(numbers_per_arm, PASS_CHUNK_BYTES)
        blocks = [self.prior_covariance(indices, rows) for rows in chunks]
        return torch.cat(blocks, dim=-1)

    @torch.no_grad()
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the prior covariances between two lists of arms."""
        arms = self.arms
        covariance = dense_covariance(self.covar_module, arms[left], arms[right])
        return covariance.to(arms)  # a kernel may be careless about its dtype

    def _rebuild(self, inducing_indices: Tensor) -> None:
        """Factorize from nothing; the inducing arms become the basis."""
        K_ss = self.prior_covariance(inducing_indices, inducing_indices)
        kept = independent_points(K_ss)
        basis = self.inducing_indices = inducing_indices[kept]
        self._rows.add(basis, self._kernel_rows)
        m = kept.shape[0]
        self._row_of_arm = torch.full_like(self.mean, -1, dtype=torch.long)
        self._row_of_arm[basis] = torch.arange(m, device=basis.device)
        self._num_increments = 0
        room = self._room(m)
        before, self._features = self._features, self.arms.new_empty(len(self.mean), 0)
        L = torch.linalg.cholesky(K_ss[kept][:, kept])
        Z_p = self._features_from(L, basis, self.pulled_indices)
        scatter, target = _moments(Z_p, Z_p, self._data[:, self.pulled_indices])
        self._basis = BasisPosterior(basis, L, L.new_empty(m, 0), scatter, target)
        if room > before.shape[1] or room == 0:
            del before  # gone before its successor comes
            before = L.new_empty(len(self.mean), room)
        self.mean = torch.zeros_like(self.prior_variance)
        self.residual = self.prior_variance.clone()
        self.projected = torch.zeros_like(self.prior_variance)
        self._fill(before)
        self._features = before

    def _room(self, m: int) -> int:
        """Return for how many features the cache has room; 0 if for too few."""
        limit = self._max_room
        return min(m + max(32, m // 8), limit) if 0 < m <= limit else 0

    @property
    def _max_room(self) -> int:
        """How many features of all arms the byte budget holds."""
        return self.max_feature_bytes // (2 * self.mean.nbytes)

    def _fill(self, cache: Tensor, first: int = 0) -> None:
        """Compute the moments of the arms from ``first`` on, and cache their features.

        Args:
            cache: Where to; nothing is cached if it has no columns.
            first: The arms before it are left as they are. The moments of the others
                must be those of the prior.
        """
        basis = self._basis
        for rows in self._slices(first=first):
            Z = self._solve_features(rows)
            if cache.shape[1]:
                cache[rows, : basis.size] = Z.mT
            Z = basis.project(Z)
            root = torch.linalg.solve_triangular(basis.L_v, Z, upper=False)
            torch.mv(Z.mT, basis.weights, out=self.mean[rows])
            # Takes a third of the time of squaring and summing.
            self.residual[rows] -= torch.linalg.vector_norm(Z, dim=0).square()
            self.projected[rows] = torch.linalg.vector_norm(root, dim=0).square()

    def _increment(self, inducing_indices: Tensor, data: Tensor) -> BasisChange | None:
        """Return the change since the last update; None if a full rebuild is due."""
        if not self._is_cached or self._num_increments == MAX_INCREMENTS:
            return None
        basis = self._basis
        position = self._row_of_arm[inducing_indices]
        joined = inducing_indices[position < 0]
        M = basis.size + joined.shape[0]
        inside = torch.zeros(M, dtype=torch.bool, device=data.device)
        stays = inside.clone()
        inside[self._row_of_arm[self.inducing_indices]] = True
        stays[position[position >= 0]] = True
        stays[basis.size :] = True
        more = data - self._data
        pulled = (more != 0).any(dim=0).nonzero().squeeze(-1)
        num_vectors = (
            2 * int((inside ^ stays).sum()) + pulled.shape[0] + joined.shape[0]
        )
        is_cheap = M * num_vectors <= REBUILD_COST * inducing_indices.shape[0] ** 2
        if not is_cheap or self._features.shape[1] < M or (more[0, pulled] <= 0).any():
            return None
        Z = self._stored_features()
        cross = Z.index_select(0, joined).mT
        self._rows.add(joined, self._kernel_rows)
        schur = self._prior_rows(joined, joined) - cross.mT @ cross
        corner, info = torch.linalg.cholesky_ex(schur)
        if info != 0:
            return None
        # The new rows of the factor's inverse, C^{-1} (-B L^{-1}, I), in unit variance.
        coefficients = torch.linalg.solve_triangular(basis.L.mT, cross, upper=True)
        eye = torch.eye(joined.shape[0]).to(corner)
        inverse = torch.cat([-coefficients.mT, eye], dim=-1)
        inverse = torch.linalg.solve_triangular(corner, inverse, upper=False)
        arms = torch.cat([basis.indices, joined])
        # Near the span's tolerance the order of arms matters: the rebuild pivots.
        if not is_well_conditioned(inverse * self.prior_variance[arms].sqrt()):
            return None
        Z_b = Z.index_select(0, pulled).mT
        scatter, target = _moments(Z_b, Z_b, more[:, pulled])
        scatter += basis.scatter
        target += basis.target
        if joined.numel():
            seen = data[0].nonzero().squeeze(-1)
            Z_p = Z.index_select(0, seen).mT
            K = self._prior_rows(joined, seen) - cross.mT @ Z_p
            new = torch.linalg.solve_triangular(corner, K, upper=False)
            side, _ = _moments(Z_p, new, data[:, seen])
            below, new_target = _moments(new, new, data[:, seen])
            scatter = torch.cat(
                [
                    torch.cat([scatter, side], dim=-1),
                    torch.cat([side.mT, below], dim=-1),
                ]
            )
            target = torch.cat([target, new_target])
        try:
            return change_basis(
                basis,
                joined=joined,
                cross=cross,
                corner=corner,
                inside=inside,
                stays=stays,
                scatter=scatter,
                target=target,
                pulled=Z_b,
                precisions=more[0, pulled],
            )
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None  # rounding has the last word; the rebuild pivots

    def _advance(self, inducing_indices: Tensor, change: BasisChange) -> None:
        """Apply a change to all arms, in one pass over their features."""
        M_0, M = self._basis.size, change.after.size
        joined = change.after.indices[M_0:]
        num_vectors = change.vectors.shape[-1]
        # One product reads the old features once, for the new ones as well.
        left = torch.cat([change.vectors[:M_0], change.cross], dim=-1)
        for rows in self._slices(PASS_CHUNK_BYTES):
            Z = self._features[rows, :M]
            products = Z[:, :M_0] @ left
            moves = products[:, :num_vectors]
            if M > M_0:
                K = self._prior_rows(joined, rows).mT - products[:, num_vectors:]
                new = torch.linalg.solve_triangular(
                    change.corner.mT, K, upper=True, left=False
                )
                Z[:, M_0:] = new
                moves = moves.addmm_(new, change.vectors[M_0:])
            self.mean[rows] = moves[:, -1]
            moved = moves.square() @ change.signs
            self.projected[rows] += moved[:, 0]
            self.residual[rows] += moved[:, 1]
        self._basis = change.after
        self._num_increments += 1
        self._row_of_arm[joined] = torch.arange(M_0, M, device=joined.device)
        self._features[joined, :M] = change.after.L[M_0:]
        self.inducing_indices = inducing_indices

    def _slices(self, num_bytes: int | None = None, first: int = 0) -> Iterator[slice]:
        for arms in self._chunks(max(self._basis.size, 1), num_bytes, first):
            yield slice(int(arms[0]), int(arms[-1]) + 1)

    def _chunks(
        self, numbers_per_arm: int, num_bytes: int | None = None, first: int = 0
    ) -> tuple[Tensor, ...]:
        if self.arms.device.type != "cpu":
            num_bytes = ACCELERATOR_CHUNK_BYTES
        elif num_bytes is None:
            num_bytes = CHUNK_BYTES
            if isinstance(self.arms, BitArms):
                num_bytes = PACKED_CHUNK_BYTES
                numbers_per_arm = max(numbers_per_arm, self.arms.shape[-1] // 8)
        size = num_bytes // (numbers_per_arm * self.arms.element_size())
        return self._all_arms[first:].split(max(size, 1))

    @torch.no_grad()
    def _prior_variance(self, arms: Tensor) -> Tensor:
        return self.covar_module(arms, diag=True).to(arms)


def _moments(left: Tensor, right: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``left W right^T`` and ``right t`` for columns of features.

    Args:
        left: An ``M x P`` matrix.
        right: An ``a x P`` matrix.
        data: The ``2 x P`` summed precisions and reward sums over lambda.
    """
    return (left * data[0]) @ right.mT, right @ data[1]
