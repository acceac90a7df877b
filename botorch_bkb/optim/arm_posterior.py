r"""The posterior of all arms at once, from cached features: the fast path.

The sparse posterior of section 3.1 of [calandriello2019bkb]_, in the units of the GP.
With inducing arms ``S``, ``K_S = L L^T``, features ``z(x) = L^{-1} k_S(x)`` and the
summed precisions ``W`` (number of pulls over lambda) of the pulled arms,

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

from collections.abc import Callable, Iterator

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.models.utils.nystrom import (
    check_residual,
    independent_points,
    span_tolerance,
)


# One chunk of features, of which three are alive at a time: what a processor's caches
# hold, and enough to fill an accelerator.
CHUNK_BYTES = 2**21
ACCELERATOR_CHUNK_BYTES = 2**28


class KernelRows:
    """Prior covariances of all arms with those that were ever inducing.

    Inducing arms come and go; the rows of those that stay or return are not evaluated
    twice. Past the byte budget nothing is kept.

    Args:
        num_arms: A.
        max_bytes: The byte budget.
        like: A tensor of the dtype and device to use.
    """

    def __init__(self, num_arms: int, max_bytes: int, like: Tensor) -> None:
        self.limit = max_bytes // max(num_arms * like.element_size(), 1)
        self.slots = torch.full((num_arms,), -1, dtype=torch.long, device=like.device)
        self.size = 0
        self.rows = like.new_empty(0, num_arms)

    def add(self, indices: Tensor, evaluate: Callable[[Tensor], Tensor]) -> bool:
        """Make sure that the rows of some arms are there, if the budget allows it."""
        missing = indices[self.slots[indices] < 0]
        needed = self.size + missing.shape[0]
        if needed > self.limit:
            return False
        if needed > self.rows.shape[0]:
            capacity = min(max(64, 2 * needed), self.limit)
            rows = self.rows.new_empty(capacity, self.rows.shape[1])
            rows[: self.size] = self.rows[: self.size]
            self.rows = rows
        if missing.numel():
            self.rows[self.size : needed] = evaluate(missing)
            self.slots[missing] = torch.arange(self.size, needed, device=indices.device)
            self.size = needed
        return True

    def select(self, indices: Tensor, arms: Tensor | slice) -> Tensor:
        """Return the covariances of inducing arms with some arms."""
        if isinstance(arms, slice):
            return self.rows[:, arms].index_select(0, self.slots[indices])
        return self.rows[self.slots[indices].unsqueeze(-1), arms]


class ArmPosterior:
    r"""Mean and variance of ``A`` arms under a sparse GP posterior.

    Memory: the ``m x A`` features and the kernel rows they come from are kept if they
    fit half of ``max_feature_bytes`` each, and are recomputed chunk by chunk where they
    are needed otherwise (same answers); beside
    them a few ``A``-dim vectors and three chunks (2 MiB each on a processor). Nothing
    is ever ``A x`` (number of pulls).

    Args:
        arms: An ``A x d`` tensor.
        covar_module: The kernel; its hyper-parameters are taken as they are.
        noise_variance: lambda.
        max_feature_bytes: The byte budget of cached features and kernel rows.
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
        self.max_feature_bytes = max_feature_bytes
        self.prior_variance = torch.cat(
            [self._prior_variance(arms[rows]) for rows in self._chunks(arms.shape[-1])]
        )
        bad = (~(self.prior_variance >= 0) | self.prior_variance.isinf()).nonzero()
        if bad.numel():
            row = int(bad[0])
            raise InputDataError(
                "Expected `covar_module` to give every arm a finite prior variance of "
                f"at least zero, but got {self.prior_variance[row].item()} for arm "
                f"{row}."
            )
        if not (self.prior_variance > 0).any():
            raise InputDataError(
                "Expected `covar_module` to give at least one arm a positive prior "
                "variance, but all are zero: nothing could be learned."
            )
        self.mean = torch.zeros_like(self.prior_variance)
        self._rows = KernelRows(arms.shape[0], max_feature_bytes // 2, self.mean)
        none = torch.empty(0, dtype=torch.long, device=arms.device)
        self.update(none, none, self.prior_variance[:0], self.prior_variance[:0])

    @property
    def variance(self) -> Tensor:
        """The ``A`` posterior variances."""
        return self.residual + self.projected

    @property
    def leverage_scores(self) -> Tensor:
        """The ``A`` ridge leverage scores, ``variance / noise_variance``."""
        return self.variance / self.noise_variance

    @torch.no_grad()
    def update(
        self,
        inducing_indices: Tensor,
        pulled_indices: Tensor,
        counts: Tensor,
        sums: Tensor,
    ) -> None:
        r"""Refactorize: new inducing arms, new data.

        Two triangular solves over all arms, ``O(A m^2)``.

        Args:
            inducing_indices: An ``m``-dim long tensor; arms that add nothing to the
                span of the others are left out.
            pulled_indices: A ``P``-dim long tensor of the arms with rewards.
            counts: The ``P`` numbers of pulls.
            sums: The ``P`` sums of (centered) rewards.

        Raises:
            InputDataError: If the kernel is not positive semi-definite on the arms.
        """
        K_ss = self.prior_covariance(inducing_indices, inducing_indices)
        kept = independent_points(K_ss)
        self.inducing_indices = inducing_indices[kept]
        self._row_of_arm = torch.full_like(self.mean, -1, dtype=torch.long)
        self._row_of_arm[self.inducing_indices] = torch.arange(
            kept.shape[0], device=kept.device
        )
        self.L = torch.linalg.cholesky(K_ss[kept][:, kept])
        self.pulled_indices = pulled_indices
        self.precisions = counts / self.noise_variance
        self._features: Tensor | None = None
        self._has_rows = self._rows.add(self.inducing_indices, self._kernel_rows)
        Z_p = self.features(pulled_indices)  # m x P
        V = torch.eye(kept.shape[0]).to(self.L) + (Z_p * self.precisions) @ Z_p.mT
        self.L_v = torch.linalg.cholesky(V)
        b = Z_p @ (sums / self.noise_variance)
        weights = torch.cholesky_solve(b.unsqueeze(-1), self.L_v).squeeze(-1)
        self._refresh_arms(weights)

    @property
    def log_det(self) -> float:
        """``log det(I + K / lambda)`` of the pulls, with the Nystrom Gram matrix."""
        return 2 * self.L_v.diagonal().log().sum().item()

    @property
    def effective_dimension(self) -> float:
        """The sum of the pulls' leverage scores; equation (5) of the COLT paper."""
        return (self.precisions * self.variance[self.pulled_indices]).sum().item()

    @property
    def pulled_in_span(self) -> Tensor:
        """For each pulled arm, whether the inducing arms explain all of it."""
        pulled = self.pulled_indices
        rtol = 100 * span_tolerance(self.residual.dtype)
        return self.residual[pulled] <= rtol * self.prior_variance[pulled]

    @property
    def is_exact(self) -> bool:
        """Whether this is the exact GP: every pulled arm is in the span."""
        return bool(self.pulled_in_span.all())

    def features(self, indices: Tensor) -> Tensor:
        """Return the ``m x k`` features of ``k`` arms."""
        if self._features is not None:
            return self._features[:, indices]
        return self._solve_features(indices, indices)

    def _solve_features(self, indices: Tensor, columns: Tensor | slice) -> Tensor:
        if self._has_rows:
            K = self._rows.select(self.inducing_indices, columns)
        else:
            K = self.prior_covariance(self.inducing_indices, indices)
        Z = torch.linalg.solve_triangular(self.L, K, upper=False)
        # Arms of S have their row of L: exact, where a solve leaves rounding behind.
        row = self._row_of_arm[indices]
        position = (row >= 0).nonzero().squeeze(-1)
        Z[:, position] = self.L[row[position]].mT
        return Z

    def dot(self, vector: Tensor) -> Tensor:
        """Return ``z(x)^T vector`` for every arm, an ``A``-dim tensor."""
        if self._features is not None:
            return vector @ self._features
        return torch.cat([vector @ Z for _, Z in self._feature_chunks()])

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

    def _kernel_rows(self, indices: Tensor) -> Tensor:
        """Return the prior covariances of some arms with all arms."""
        chunks = self._chunks(max(self.arms.shape[-1], indices.shape[0]))
        blocks = [self.prior_covariance(indices, rows) for rows in chunks]
        return torch.cat(blocks, dim=-1)

    @torch.no_grad()
    def prior_covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the prior covariances between two lists of arms."""
        covariance = self.covar_module(self.arms[left], self.arms[right])
        # A kernel may be careless about its dtype.
        return covariance.to_dense().to(self.arms)

    def _refresh_arms(self, weights: Tensor) -> None:
        num_arms, m = self.arms.shape[0], self.L.shape[0]
        self.mean = self.prior_variance.new_zeros(num_arms)
        self.residual = self.prior_variance.clone()
        self.projected = self.prior_variance.new_zeros(num_arms)
        if m == 0:
            return
        cache: Tensor | None = None
        if num_arms * m * self.L.element_size() <= self.max_feature_bytes // 2:
            cache = self.L.new_empty(m, num_arms)
        for rows, Z in self._feature_chunks():
            self.mean[rows] = weights @ Z
            self.residual[rows] -= Z.square().sum(dim=0)
            root = torch.linalg.solve_triangular(self.L_v, Z, upper=False)
            self.projected[rows] = root.square_().sum(dim=0)
            if cache is not None:
                cache[:, rows] = Z
        check_residual(self.residual, self.prior_variance)
        self.residual.clamp_(min=0.0)
        self.residual[self.inducing_indices] = 0.0
        self._features = cache

    def _feature_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        for arms in self._chunks(max(self.L.shape[0], 1)):
            columns = slice(int(arms[0]), int(arms[-1]) + 1)
            yield columns, self._solve_features(arms, columns)

    def _chunks(self, numbers_per_arm: int) -> tuple[Tensor, ...]:
        arms = torch.arange(self.arms.shape[0], device=self.arms.device)
        on_cpu = self.arms.device.type == "cpu"
        num_bytes = CHUNK_BYTES if on_cpu else ACCELERATOR_CHUNK_BYTES
        size = num_bytes // (numbers_per_arm * self.arms.element_size())
        return arms.split(max(size, 1))

    @torch.no_grad()
    def _prior_variance(self, arms: Tensor) -> Tensor:
        return self.covar_module(arms, diag=True).to(arms)
