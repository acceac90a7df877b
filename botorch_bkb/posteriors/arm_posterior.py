"""The posterior of all arms at once, from cached features: the fast path.

Its parts: the algebra of small matrices (:mod:`~botorch_bkb.posteriors.basis`), the
numbers of all arms (:class:`~botorch_bkb.posteriors.shards.ArmShard`), and here the
planner of updates and the questions.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.nystrom import (
    check_largest_variance,
    check_residual,
    dense_covariance,
    independent_points,
    ROUNDING_THRESHOLD,
    RoundingReport,
)
from botorch_bkb.models.utils.rows import positions_in
from botorch_bkb.posteriors.basis import Basis, change_basis, Joined
from botorch_bkb.posteriors.grouped import GroupedResults
from botorch_bkb.posteriors.posterior import Draws, Ranked, StaticPosterior
from botorch_bkb.posteriors.shards import arm_shards, ArmShard, threads_for


# Rounding adds up over incremental updates: rebuild after this many.
MAX_INCREMENTS = 64
# How much slower the full rebuild's products are than those of the increment's pass.
REBUILD_COST = 1.5
# So many points beside the arms are predicted at once.
POINTS_AT_ONCE = 2**13


class ArmPosterior(StaticPosterior):
    r"""Mean and variance of ``A`` arms under a sparse GP posterior.

    Memory: the ``A x m`` features are kept if they fit half of ``max_feature_bytes``;
    a batch may copy some of them. Else they are recomputed chunk by chunk where they
    are needed, with the same answers, and every update is a full rebuild. Beside them
    are a few ``A``-dim vectors, three chunks (at most 16 MiB each on a processor) and
    ``O(m^2 + P d)`` numbers for ``P`` pulled arms. Numbers per arm and pull without
    reward are kept in the other half, and computed again chunk by chunk beyond it.

    Args:
        arms: An ``A x d`` tensor.
        covar_module: The kernel; its hyperparameters are taken as they are.
        noise_variance: lambda.
        max_feature_bytes: The byte budget of cached features.

    Attributes:
        basis: The small matrices.
        pulled_indices: The ``P`` arms with rewards, ascending.
        data: Their summed precisions, and reward sums over lambda, ``2 x P``.
        feature_bytes: The size of all arms' features, kept or not.

    Raises:
        InputDataError: If a prior variance is not finite, or none is positive.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel,
        noise_variance: float,
        max_feature_bytes: int = 2**31,
    ) -> None:
        self.arms = arms
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.num_arms = len(arms)
        self.like = arms.new_empty(0)
        self.shards = arm_shards(arms, covar_module)
        self._column_bytes = len(arms) * arms.element_size()
        self.room = max_feature_bytes // (2 * self._column_bytes)
        self._width = 0  # how many features the shards have room for; 0 for no cache
        self.max_prior_variance = max(
            self.shards.ask(lambda shard: shard.max_prior_variance)
        )
        check_largest_variance(self.max_prior_variance)
        self._report = RoundingReport(self.like.dtype)
        none = torch.empty(0, dtype=torch.long, device=arms.device)
        self.update(none, none, self.like, self.like)

    # Updates

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
        r"""Move to other inducing arms and data, as ``StaticPosterior.update``.

        If the features are cached and little has changed: one pass over them, ``O(A m
        (b + d + e))`` for ``b`` arms with new pulls, ``d`` that are no longer inducing
        and ``e`` that are new (see :mod:`~botorch_bkb.posteriors.basis`). Otherwise,
        if results share offsets, and every 64 updates against rounding, the full
        rebuild: two triangular solves over all arms, ``O(A m^2)``. The results agree up
        to rounding.
        """
        data = torch.stack([counts, sums]).to(self.like) / self.noise_variance
        pulled, order = pulled_indices.sort()
        data = data[:, order]
        with threads_for(self._column_bytes * len(inducing_indices)):
            is_done = grouped is self.grouped is None and self._increment(
                inducing_indices, pulled, data
            )
            self.pulled_indices, self.data, self.grouped = pulled, data, grouped
            error, arm = self._rounding() if is_done else (math.inf, 0)
            if error > ROUNDING_THRESHOLD:
                self._rebuild(inducing_indices)
                error, arm = self._rounding()
        self._report.note(error, arm)
        self.log_det = 2 * self.basis.L_v.diagonal().log().sum().item()
        self.feature_bytes = self._column_bytes * len(self.basis.L)

    def _rebuild(self, inducing_indices: Tensor) -> None:
        """Compute all from nothing; the inducing arms become the basis."""
        K_ss = self.prior_covariance(inducing_indices, inducing_indices)
        kept = independent_points(K_ss)
        indices = self.inducing_indices = inducing_indices[kept]
        is_dropped = torch.ones_like(inducing_indices, dtype=torch.bool)
        is_dropped[kept] = False
        self._dropped = inducing_indices[is_dropped]  # what was to be inducing as well
        self._num_increments = 0
        L = torch.linalg.cholesky(K_ss[kept][:, kept])
        Z = self._solved_features(L, indices, self.pulled_indices)
        scatter, target = self.scatter_and_target(Z)
        inside = torch.ones_like(indices, dtype=torch.bool)
        basis = Basis(indices, L, inside, L[:, :0], scatter, target)
        self.basis = basis
        # Room for so many features and some more, if the budget allows it.
        m, most = len(indices), self.room
        width = min(m + max(32, m // 8), most) if 0 < m <= most else 0
        if width > self._width or width == 0:
            self._width = width
        self.shards.change(ArmShard.rebuild, basis, self.arms[indices], self._width)

    def _increment(
        self, inducing_indices: Tensor, pulled: Tensor, data: Tensor
    ) -> bool:
        """Apply the change since the last update; False if a rebuild is due."""
        if not self._width or self._num_increments == MAX_INCREMENTS:
            return False
        added = _added(self.pulled_indices, self.data, pulled, data)
        if added is None:
            return False
        (arms, more), basis = added, self.basis
        place = positions_in(basis.indices, inducing_indices)
        joined = inducing_indices[place < 0]
        inside = torch.zeros_like(basis.inside)
        inside[place[place >= 0]] = True
        num_turned = int((inside ^ basis.inside).sum())
        num_vectors = len(arms) + 2 * num_turned + 3 * len(joined)
        M = len(basis.L) + len(joined)
        is_cheap = M * num_vectors <= REBUILD_COST * len(inducing_indices) ** 2
        if not is_cheap or self._width < M:
            return False
        border = None
        if len(joined):
            border = Joined(
                joined,
                self._cached_features(joined),
                self.prior_covariance(joined, joined),
                self.moments(torch.cat([basis.indices, joined]))[0].sqrt(),
                self._cached_features(pulled),
                self.prior_covariance(joined, pulled),
                data,
            )
        change = change_basis(basis, inside, self._cached_features(arms), more, border)
        if change is None:
            return False
        self.basis, move = change
        self.shards.change(ArmShard.advance, move, self.arms[joined], inducing_indices)
        self.inducing_indices = inducing_indices
        self._dropped = inducing_indices[:0]
        self._num_increments += 1
        return True

    def _rounding(self) -> tuple[float, int]:
        """Return the largest relative rounding error of a variance, and its arm.

        ``k(x, x) - |z|^2`` and increments are off by rounding of the prior variance.
        An arm that is too near the span to be inducing keeps its residual ``r``, of
        which its own pulls would leave ``r / (1 + W r)``.
        """
        found = torch.tensor(self.shards.ask(ArmShard.soundness))
        least, worst = found.amin(dim=0).tolist()
        check_residual(worst, self.like.dtype)
        eps, dropped = torch.finfo(self.like.dtype).eps, self._dropped
        noise = 2 * eps * self.max_prior_variance
        if not len(dropped) and noise < ROUNDING_THRESHOLD * least:
            return 0.0, 0  # for less time than it takes to look at every arm
        # In the span by construction.
        exact = self.inducing_indices[: 0 if self._num_increments else None]
        _, _, r, projected = self.moments(dropped)
        place = positions_in(self.pulled_indices, dropped, is_ascending=True)
        W = torch.zeros_like(r)
        W[place >= 0] = self.data[0, place[place >= 0]]
        told = r / (1 + W * r)
        # The error of the dropped arm itself, and what the others lose by it.
        own = (r - told) / (projected + told)
        lost = torch.linalg.vector_norm((1 - told / r).nan_to_num(0.0))
        answers = self.shards.ask(ArmShard.rounding, exact, dropped, own.maximum(lost))
        return max(answers, key=lambda answer: answer[0])  # the first of the largest

    # Questions

    @property
    def mean(self) -> Tensor:
        """The ``A`` posterior means."""
        return self.shards.column(lambda shard: shard.moments[1])

    @property
    def variance(self) -> Tensor:
        """The ``A`` posterior variances."""
        return self.shards.column(lambda shard: shard.variance)

    @property
    def leverage_scores(self) -> Tensor:
        """The ``A`` ridge leverage scores, ``variance / noise_variance``."""
        return self.variance / self.noise_variance

    @override
    def _moments(self, indices: Tensor) -> Tensor:
        return self.shards.ask_of(ArmShard.moments_of, indices).mT

    @override
    def largest_bounds(
        self, scale: float, size: int, allowed: Tensor | None = None
    ) -> Ranked:
        args = size, scale, allowed, self.pulls
        found = self.shards.ask(ArmShard.largest_bounds, *args)
        return Ranked.merged(found).first(size)

    def largest_gain(
        self, top: Ranked, allowed: Tensor | None, without: Tensor
    ) -> float:
        """Return the largest expected rise of the best mean; minus infinity for none.

        Args:
            top: The two largest means of all arms that compete.
            allowed: An ``A``-dim boolean tensor; all if None.
            without: Arms that do not count.
        """
        args = self.result_variance, top, allowed, without
        return max(self.shards.ask(ArmShard.largest_gain, *args))

    def drawn(self, draws: Draws) -> Tensor:
        """Return the values of all arms, ``num_draws x A``."""
        return torch.cat(self.shards.ask(ArmShard.drawn, draws), dim=-1)

    def best_of_draws(self, draws: Draws, allowed: Tensor | None) -> Tensor:
        """Return each draw's arm of the largest value, the lowest index among ties."""
        found = self.shards.ask(ArmShard.best_of_draws, draws, allowed)
        # The first shard of the largest value: ties go to the lowest index.
        best = torch.stack([values for values, _ in found]).argmax(dim=0)
        arms = torch.stack([arms for _, arms in found])
        return arms.gather(0, best.unsqueeze(0)).squeeze(0)

    def expected_above(
        self, levels: Tensor, allowed: Tensor | None, without: Tensor
    ) -> tuple[int, Tensor]:
        """Return how many arms compete, and how many are expected above each level.

        The arguments are those of :meth:`largest_gain`, and the ``l`` levels.
        """
        found = self.shards.ask(ArmShard.expected_above, levels, allowed, without)
        number = sum(number for number, _ in found)
        return number, torch.cat([sums for _, sums in found]).sum(dim=0)

    @torch.no_grad()
    def moments_of_points(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the posterior means and variances of points that need not be arms.

        In chunks, ``O(k m (d + m))``.

        Args:
            points: A ``k x d`` tensor in the units of the kernel.
        """
        basis, kernel = self.basis, self.covar_module
        means, variances = [self.like], [self.like]
        inducing = self.arms[basis.indices]
        for start in range(0, len(points), POINTS_AT_ONCE):
            x = points[start : start + POINTS_AT_ONCE]
            K = dense_covariance(kernel, inducing, x).to(self.like)
            Z = basis.project(torch.linalg.solve_triangular(basis.L, K, upper=False))
            root = torch.linalg.solve_triangular(basis.L_v, Z, upper=False)
            prior = kernel(x, diag=True).to(self.like)
            residual = (prior - Z.square().sum(dim=0)).clamp_min(0.0)
            means.append(Z.mT @ basis.weights)
            variances.append(residual + root.square().sum(dim=0))
        return torch.cat(means), torch.cat(variances)

    @override
    def features(self, indices: Tensor) -> Tensor:
        basis = self.basis
        if self._width:
            return basis.project(self._cached_features(indices))
        return self._solved_features(basis.L, basis.indices, indices)

    def _cached_features(self, indices: Tensor) -> Tensor:
        """Return features in the coordinates of the basis, not projected."""
        return self.shards.ask_of(ArmShard.features, indices).mT

    def _solved_features(self, L: Tensor, basis: Tensor, indices: Tensor) -> Tensor:
        """Compute the ``M x k`` features of a few arms, given the basis arms."""
        row = positions_in(basis, indices)
        is_basis = row >= 0
        Z = L.new_empty(len(L), len(indices))
        Z[:, is_basis] = L[row[is_basis]].mT
        K = self.prior_covariance(basis, indices[~is_basis])
        Z[:, ~is_basis] = torch.linalg.solve_triangular(L, K, upper=False)
        return Z


def _added(
    arms: Tensor, data: Tensor, more_arms: Tensor, more_data: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return the arms with more pulls, and these; None if an arm has lost pulls."""
    known = positions_in(more_arms, arms, is_ascending=True)
    if (known < 0).any():
        return None
    added = more_data.index_add(1, known, data, alpha=-1)
    place = added.any(dim=0).nonzero().squeeze(-1)
    added = added[:, place]
    return None if (added[0] <= 0).any() else (more_arms[place], added)
