"""The posterior of all arms at once, from cached features: the fast path.

The sparse posterior of section 3.1 of [calandriello2019bkb]_, in the units of the GP.
With inducing arms ``S``, ``K_S = L L^T``, features ``z(x) = L^{-1} k_S(x)`` and the
summed precisions ``W`` (number of pulls over lambda) of the pulled arms, ::

    V = I + Z^T W Z                            (the papers' V, divided by lambda)
    mean(x) = z(x)^T V^{-1} Z^T W ybar
    residual(x) = k(x, x) - |z(x)|^2            what S cannot explain
    projected(x) = z(x)^T V^{-1} z(x)           what noise leaves uncertain of the rest
    variance(x) = residual(x) + projected(x)
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.arms import StoredArms
from botorch_bkb.checks import as_number, check_device, check_modules, check_tensors
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.nystrom import (
    append_tolerance,
    check_largest_variance,
    check_relative_residual,
    independent_points,
    is_well_conditioned,
)
from botorch_bkb.models.utils.rounding import ROUNDING_THRESHOLD, RoundingReport
from botorch_bkb.posteriors.arm_shard import ArmShard, Factor, Move
from botorch_bkb.posteriors.feature_basis import (
    BasisChange,
    BasisPosterior,
    change_basis,
)
from botorch_bkb.posteriors.kernel_rows import positions_in, positions_in_ascending
from botorch_bkb.posteriors.moments import Moments
from botorch_bkb.posteriors.shards import (
    BLOCK_SIZE,
    LocalShards,
    PerArm,
    plan_shards,
    Ranked,
    Shards,
)
from botorch_bkb.posteriors.threads import threads_for


# Rounding adds up over incremental updates: start afresh after this many.
MAX_INCREMENTS = 64
# How much slower the full rebuild's products are than those of the increment's pass.
REBUILD_COST = 1.5


class Told(NamedTuple):
    """The data of the pulled arms.

    Attributes:
        arms: These arms, ascending.
        data: Their summed precisions and reward sums over lambda, ``2 x P``.
    """

    arms: Tensor
    data: Tensor

    @classmethod
    def of(cls, arms: Tensor, data: Tensor) -> Told:
        """Return the data of distinct arms in any order."""
        arms, order = arms.sort()
        return cls(arms, data[:, order])

    def at(self, arms: Tensor) -> Tensor:
        """Return the data of some arms, ``2 x k``; zero for those without."""
        place = positions_in_ascending(self.arms, arms)
        data = self.data.new_zeros(2, len(arms))
        data[:, place >= 0] = self.data[:, place[place >= 0]]
        return data

    def since(self, before: Told) -> Told | None:
        """Return what came after other data; None if an arm has lost pulls."""
        if torch.equal(self.arms, before.arms):
            more = self.data - before.data
        else:
            known = positions_in_ascending(self.arms, before.arms)
            if (known < 0).any():
                return None
            more = self.data.index_add(1, known, before.data, alpha=-1)
        place = more.any(dim=0).nonzero().squeeze(-1)
        more = more[:, place]
        return None if (more[0] <= 0).any() else Told(self.arms[place], more)


class ArmPosterior(Moments):
    r"""Mean and variance of ``A`` arms under a sparse GP posterior.

    This has the small matrices; what there is per arm stands in
    :class:`~botorch_bkb.posteriors.shards.Shards`, which this tells of every change and
    asks for answers that are small. The numbers do not depend on how many shards
    there are.

    Memory: the ``A x m`` features are kept if they fit half of ``max_feature_bytes``,
    and the kernel rows they come from as far as they fit a third of it (half while they
    move to more room). What does not fit is recomputed chunk by chunk where it is
    needed, with the same answers; without features every update is a full rebuild.
    Beside them are a few ``A``-dim vectors and three chunks (at most 16 MiB each on
    a processor). Nothing is ever ``A x`` (number of pulls). Beside the shards it is
    ``O(m^2 + P d)`` for ``P`` pulled arms.

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
        check_device(covar_module, arms)
        if not 0 < as_number(noise_variance) < math.inf:
            raise InputDataError(
                "Expected `noise_variance` to be a positive number, but got "
                f"{noise_variance!r}."
            )
        self.arms = arms
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.max_feature_bytes = max_feature_bytes
        self._like = arms.new_empty(0)
        self.shards = _shards_of(arms, covar_module, self._max_rows)
        self._scale = max(self.shards.ask(ArmShard.scale))
        check_largest_variance(self._scale)
        self._rounding_report = RoundingReport(self._like.dtype)
        none = torch.empty(0, dtype=torch.long, device=arms.device)
        self._held = none  # the arms whose kernel rows are kept, in their order
        # The arms of the basis when it was factorized, and which rows are theirs.
        self._slots_of_basis: tuple[Tensor, Tensor | None] | None = None
        self._width = 0  # of the shards' caches of features
        self._told = Told(none, self._like.new_empty(2, 0))
        self.update(none, none, self._like, self._like)

    @property
    @override
    def mean(self) -> Tensor:  # type: ignore[override]
        return self.shards.column(lambda shard: shard.mean)

    @property
    @override
    def prior_variance(self) -> Tensor:  # type: ignore[override]
        return self.shards.column(lambda shard: shard.prior_variance)

    @property
    def residual(self) -> Tensor:
        """The ``A`` variances that the inducing arms cannot explain."""
        return self.shards.column(lambda shard: shard.residual)

    @property
    def projected(self) -> Tensor:
        """The ``A`` variances of what they explain, under noise."""
        return self.shards.column(lambda shard: shard.projected)

    @property
    @override
    def variance(self) -> Tensor:
        return self.shards.column(lambda shard: shard.variance)

    @property
    @override
    def num_arms(self) -> int:
        return len(self.arms)

    @property
    @override
    def like(self) -> Tensor:
        return self._like

    @property
    @override
    def max_prior_variance(self) -> float:
        return self._scale

    @override
    def means(self, indices: Tensor) -> Tensor:
        return self.shards.ask_of(ArmShard.moments, indices)[:, 1]

    @override
    def variances(self, indices: Tensor) -> Tensor:
        _, _, residual, projected = self.moments(indices)
        return residual + projected

    def moments(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a few arms' prior variances, means, residuals and projected parts."""
        prior, mean, residual, projected = self.shards.ask_of(
            ArmShard.moments, indices
        ).mT
        return prior, mean, residual, projected

    @override
    def largest_bounds(
        self,
        scale: float,
        size: int,
        competes: Tensor | None = None,
        known: Ranked | None = None,
    ) -> Ranked:
        found = self.shards.ask(
            ArmShard.largest_bounds, size, scale, PerArm(competes), known
        )
        return Ranked.merged(found, size)

    def knowledge_gains(
        self, competes: Tensor | None, listed: Tensor
    ) -> tuple[float, Tensor]:
        """Return what a pull is expected to tell of the best arm.

        See :func:`~botorch_bkb.posteriors.knowledge_gain.knowledge_gain`.

        Args:
            competes: An ``A``-dim boolean tensor; all if None.
            listed: ``k`` arms, ascending.

        Returns:
            The most that an arm tells that competes and is not listed, minus infinity
            where there is none; and the ``k`` gains of those listed.
        """
        # On the CPU, so that no block waits for an accelerator.
        top = Ranked(*(part.cpu() for part in self.largest_bounds(0.0, 2, competes)))
        listed = listed.cpu()
        found = self.shards.ask(
            ArmShard.knowledge_gains, self.noise_variance, top, PerArm(competes), listed
        )
        return max(most for most, _ in found), torch.cat([gain for _, gain in found])

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
        data = torch.stack([counts, sums]).to(self._like) / self.noise_variance
        told = Told.of(pulled_indices, data)
        with threads_for(self._column_bytes * inducing_indices.shape[0]):
            change = self._increment(inducing_indices, told)
            self.pulled_indices = pulled_indices
            self.precisions = data[0]
            self._told = told
            if change is not None:
                self._advance(inducing_indices, change)
                error, arm = self._rounding()
                if error <= ROUNDING_THRESHOLD:
                    self._rounding_report.note(error, arm)
                    return
            self._rebuild(inducing_indices)

    def _rounding(self) -> tuple[float, int]:
        """Return the largest relative rounding error of a variance, and its arm.

        ``k(x, x) - |z|^2`` and incremental updates leave a rounding error of the prior
        variance. And what an arm adds to the span is lost where it is too little to
        be inducing, although its own pulls would tell it: with precision ``W`` they
        leave ``r / (1 + W r)`` of a residual ``r``.

        Raises:
            InputDataError: If a residual is clearly negative.
        """
        least, worst = (
            torch.tensor(self.shards.ask(ArmShard.soundness)).amin(dim=0).tolist()
        )
        check_relative_residual(worst, self._like.dtype)
        eps = torch.finfo(self._like.dtype).eps
        dropped = self._dropped
        if not dropped.numel() and 2 * eps * self._scale < ROUNDING_THRESHOLD * least:
            return 0.0, 0  # for less time than it takes to look at every arm
        # In the span by construction.
        exact = self.inducing_indices[: 0 if self._num_increments else None]
        _, _, r, projected = self.moments(dropped)
        W = self._told.at(dropped)[0]
        told = r / (1 + W * r)
        # The error of the dropped arm itself, and what the others lose by it.
        own = (r - told) / (projected + told)
        lost = torch.linalg.vector_norm((1 - told / r).nan_to_num(0.0))
        found = self.shards.ask(ArmShard.rounding, exact, dropped, own.maximum(lost))
        return max(found, key=lambda answer: answer[0])  # the first of the largest

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
        prior, _, residual, _ = self.moments(pulled)
        return residual <= append_tolerance(residual.dtype) * prior

    @property
    def is_exact(self) -> bool:
        """Whether this is the exact GP, with every pulled arm in the span."""
        return bool(self.pulled_in_span.all())

    @property
    @override
    def feature_bytes(self) -> int:  # type: ignore[override]
        """The size of all arms' features, kept or not."""
        return self._column_bytes * self._basis.size

    @property
    def _column_bytes(self) -> int:
        """The size of a number of every arm."""
        return self.num_arms * self._like.element_size()

    @property
    def _max_rows(self) -> int:
        """How many kernel rows the byte budget holds."""
        return self.max_feature_bytes // 3 // max(self._column_bytes, 1)

    @property
    def L_v(self) -> Tensor:
        """The ``M x M`` lower Cholesky factor of ``V``."""
        return self._basis.L_v

    def features(self, indices: Tensor) -> Tensor:
        """Return the ``M x k`` features of ``k`` arms.

        Features are known up to a rotation only; these have ``M >= m`` coordinates,
        see :mod:`~botorch_bkb.posteriors.feature_basis`.
        """
        if self._is_cached:
            return self._basis.project(self._stored_features(indices))
        return self._features_from(self._basis.L, self._basis.indices, indices)

    @property
    def _is_cached(self) -> bool:
        return self._width > 0

    def _stored_features(self, indices: Tensor) -> Tensor:
        """Return the cached ``M x k`` features of a few arms."""
        return self.shards.ask_of(ArmShard.features, indices).mT

    def _features_from(self, L: Tensor, basis: Tensor, arms: Tensor) -> Tensor:
        """Compute the ``M x k`` features of a few arms."""
        row = positions_in(basis, arms)
        is_basis = row >= 0
        Z = L.new_empty(L.shape[0], arms.shape[0])
        Z[:, is_basis] = L[row[is_basis]].mT
        K = self._prior_rows(basis, arms[~is_basis])
        Z[:, ~is_basis] = torch.linalg.solve_triangular(L, K, upper=False)
        return Z

    def project(self, coordinates: Tensor) -> Tensor:
        """Return columns of ``M`` coordinates as shards take them, without rotation.

        Their inner products with stored features are those with features.
        """
        return self._basis.project(coordinates)

    def covariance(self, left: Tensor, right: Tensor, projected: bool) -> Tensor:
        """Return posterior covariances between two lists of arms.

        Args:
            left: ``k`` arms.
            right: ``l`` arms.
            projected: Leave out the residual: ``z(x)^T V^{-1} z(x')``, the part through
                which a pull enters the sparse model.
        """
        Z_left, Z_right = self.features(left), self.features(right)
        root_left = torch.linalg.solve_triangular(self.L_v, Z_left, upper=False)
        root_right = torch.linalg.solve_triangular(self.L_v, Z_right, upper=False)
        covariance = root_left.mT @ root_right
        if projected:
            return covariance
        return covariance + self.prior_covariance(left, right) - Z_left.mT @ Z_right

    def _prior_rows(self, indices: Tensor, arms: Tensor) -> Tensor:
        """Return prior covariances of inducing arms with a few."""
        slots = self._slots(indices)
        if slots is None:
            return self.prior_covariance(indices, arms)
        return self.shards.ask_of(ArmShard.held_rows, arms, slots).mT

    def _slots(self, indices: Tensor) -> Tensor | None:
        """Return which kernel rows are those of some arms; None if one is missing."""
        of_basis = self._slots_of_basis
        if of_basis is not None and indices is of_basis[0]:
            return of_basis[1]
        slots = positions_in(self._held, indices)
        return slots if (slots >= 0).all() else None

    def _hold(self, indices: Tensor) -> None:
        """Evaluate and keep the kernel rows of some arms, if the budget allows it."""
        missing = indices[positions_in(self._held, indices) < 0]
        if len(missing) and len(self._held) + len(missing) <= self._max_rows:
            self.shards.change(ArmShard.add_rows, self.arms[missing])
            self._held = torch.cat([self._held, missing])

    @torch.no_grad()
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the prior covariances between two lists of arms."""
        arms = self.arms
        covariance = dense_covariance(self.covar_module, arms[left], arms[right])
        return covariance.to(arms)  # a kernel may be careless about its dtype

    def _rebuild(self, inducing_indices: Tensor) -> None:
        """Compute all from nothing; the inducing arms become the basis."""
        K_ss = self._prior_rows(inducing_indices, inducing_indices)
        kept = independent_points(K_ss)
        basis = self.inducing_indices = inducing_indices[kept]
        is_dropped = torch.ones_like(inducing_indices, dtype=torch.bool)
        is_dropped[kept] = False
        self._dropped = inducing_indices[is_dropped]  # what was to be inducing as well
        self._hold(basis)
        self._slots_of_basis = basis, self._slots(basis)
        self._num_increments = 0
        L = torch.linalg.cholesky(K_ss[kept][:, kept])
        Z_p = self._features_from(L, basis, self.pulled_indices)
        scatter, target = _moments(Z_p, Z_p, self._told.at(self.pulled_indices))
        inside = torch.ones_like(basis, dtype=torch.bool)
        none = L.new_empty(L.shape[0], 0)
        self._basis = BasisPosterior(basis, L, inside, none, scatter, target)
        room = self._room(len(basis))
        if room > self._width or room == 0:
            self._width = room
        self.shards.change(ArmShard.rebuild, self._factor(), basis, self._width)
        self._rounding_report.note(*self._rounding())

    def _factor(self) -> Factor:
        basis = self._basis
        return Factor(
            basis.indices.cpu(),
            self.arms[basis.indices],
            self._slots(basis.indices),
            basis.L,
            basis.L_v,
            basis.complement,
            basis.weights,
        )

    def _room(self, m: int) -> int:
        """Return for how many features the cache has room; 0 if for too few."""
        limit = self._max_room
        return min(m + max(32, m // 8), limit) if 0 < m <= limit else 0

    @property
    def _max_room(self) -> int:
        """How many features of all arms the byte budget holds."""
        return self.max_feature_bytes // (2 * self._column_bytes)

    def _increment(self, inducing_indices: Tensor, told: Told) -> BasisChange | None:
        """Return the change since the last update; None if a full rebuild is due."""
        if not self._is_cached or self._num_increments == MAX_INCREMENTS:
            return None
        more = told.since(self._told)
        if more is None:
            return None
        basis = self._basis
        joined, inside = inducing_indices[:0], basis.inside
        num_vectors = len(more.arms)
        if not torch.equal(inducing_indices, self.inducing_indices):
            place = positions_in(basis.indices, inducing_indices)
            joined = inducing_indices[place < 0]
            inside = torch.zeros_like(inside)
            inside[place[place >= 0]] = True
            num_turned = int((inside ^ basis.inside).sum())
            num_vectors += 2 * num_turned + 3 * len(joined)
        M = basis.size + len(joined)
        is_cheap = M * num_vectors <= REBUILD_COST * len(inducing_indices) ** 2
        if not is_cheap or self._width < M:
            return None
        border = self._border(joined)
        if border is None:
            return None
        cross, corner = border
        Z_b = self._stored_features(more.arms)
        scatter, target = _moments(Z_b, Z_b, more.data)
        scatter += basis.scatter
        target += basis.target
        if joined.numel():
            Z_p = self._stored_features(told.arms)
            K = self._prior_rows(joined, told.arms) - cross.mT @ Z_p
            new = torch.linalg.solve_triangular(corner, K, upper=False)
            side, _ = _moments(Z_p, new, told.data)
            below, new_target = _moments(new, new, told.data)
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
                scatter=scatter,
                target=target,
                pulled=Z_b,
                precisions=more.data[0],
            )
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None  # rounding has the last word; the rebuild pivots

    def _border(self, joined: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what arms that join the basis add to its factor.

        Returns:
            Their ``M x a`` features and the factor of their Schur complement; None if
            they are too close to the span of the others.
        """
        basis = self._basis
        if not joined.numel():
            return basis.L[:, :0], basis.L[:0, :0]
        cross = self._stored_features(joined)
        self._hold(joined)
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
        if not is_well_conditioned(inverse * self.moments(arms)[0].sqrt()):
            return None
        return cross, corner

    def _advance(self, inducing_indices: Tensor, change: BasisChange) -> None:
        """Apply a change to all arms."""
        M_0 = self._basis.size
        joined = change.after.indices[M_0:]
        move = Move(
            joined,
            self.arms[joined],
            self._slots(joined) if len(joined) else None,
            change.after.L[M_0:],
            torch.cat([change.vectors[:M_0], change.cross], dim=-1),
            change.vectors,
            change.signs,
            change.corner,
            change.turns,
        )
        self.shards.change(ArmShard.advance, move, inducing_indices)
        self._basis = change.after
        self._dropped = inducing_indices[:0]
        self._num_increments += 1
        self.inducing_indices = inducing_indices


def _shards_of(arms: Tensor, covar_module: Kernel, max_rows: int) -> Shards[ArmShard]:
    """Return what there is per arm: here, or where the arms are said to live."""
    if isinstance(arms, StoredArms) and arms.workers is not None:
        from botorch_bkb.posteriors.ray_shards import shards_on_ray

        return shards_on_ray(arms, arms.workers, covar_module, max_rows, BLOCK_SIZE)
    limits = plan_shards(len(arms), 1, BLOCK_SIZE)
    parts = [
        ArmShard(arms, start, stop, covar_module, max_rows, BLOCK_SIZE)
        for start, stop in pairwise(limits)
    ]
    return LocalShards(parts, limits)


def _moments(left: Tensor, right: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``left W right^T`` and ``right t`` for columns of features.

    Args:
        left: An ``M x P`` matrix.
        right: An ``a x P`` matrix.
        data: The ``2 x P`` summed precisions and reward sums over lambda.
    """
    return (left * data[0]) @ right.mT, right @ data[1]
