"""The posterior of a drifting function over a finite set of arms, filtered in time.

The function forgets at rate ``eps`` per unit of time: ``f_{t+1} = sqrt(1 - eps) f_t +
sqrt(eps) g_{t+1}``, every ``g`` an independent draw from the GP with covariance ``K``
over the arms. That is a linear state-space model, so equations (7) and (8) of
[bogunovic2016tvgpucb]_ are a Kalman filter: over a gap of ``D``,

    mean <- (1 - eps)^(D / 2) mean
    C    <- (1 - eps)^D C + (1 - (1 - eps)^D) K

and every observation is an update of rank one. Here the state is the weights of a few
inducing arms.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Self

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_bkb.checks import check_number, check_time, is_integer
from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.models.utils.nystrom import (
    APPEND_TOLERANCE,
    check_largest_variance,
    check_prior_variance,
    check_residual,
    dense_covariance,
    is_well_conditioned,
    least_residual,
    psd_root,
    PSD_TOLERANCE,
    RoundingReport,
)


# Inducing arms are reviewed after this many observations.
REVIEW_INTERVAL = 64
CHUNK_BYTES = 2**24


class SparseArmKalmanFilter:
    r"""The sparse posterior over drifting arms, with a few inducing arms.

    With inducing arms ``S``, features ``z(x) = L^{-1} k_S(x)`` and weights ``theta`` of
    mean ``mu`` and covariance ``Sigma``, ::

        mean(x) = z(x)^T mu,    var(x) = k(x, x) - |z(x)|^2 + z(x)^T Sigma z(x).

    This is exact while ``S`` holds every arm that was pulled: an arm joins ``S`` when
    it is pulled. The approximation is that arms leave. The *leverage* of an inducing
    arm is ``1 - var(d_j | data) / var(d_j)``, with ``d_j`` its value less its
    prediction from the other inducing arms. A pull of age ``D`` adds about ``(1 -
    eps)^D r / (r + lambda)``, with ``r`` the variance of ``d_j``. If the leverage is
    under ``tolerance``, or is the least of too many, the arm leaves: ``d_j`` goes back
    to its prior and the rest of the posterior stays. An arm that leaves with leverage
    ``tau`` changes the variance of no arm by more than ``(tau + sqrt(tau)) k(x, x)``,
    and its mean by no more than ``sqrt(k(x, x))`` times the mean of ``d_j`` over its
    prior standard deviation, whose expected square is ``tau``; both errors fade as
    ``(1 - eps)^D``.

    An observation costs one pass over the features, ``O(A m)``. Every 64 observations,
    and when the remembered variance has halved, the inducing arms are reviewed, which
    is ``O(A m^2)`` if some leave.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel at one time.
        noise_variance: lambda.
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time.
        tolerance: The leverage under which an inducing arm leaves.
        max_inducing: The most inducing arms; memory is ``A x max_inducing``.

    Attributes:
        prior_variance: The ``A`` prior variances.
        time: The time of the moments; None before the first observation.
        mean: The ``A`` posterior means at that time.
        log_det: ``log det(I + K / lambda)`` of all observations with the covariances of
            the drifting function, twice the mutual information (14).

    Raises:
        InputDataError: If ``tolerance`` or ``max_inducing`` is out of range, or a prior
            variance is not finite, or none is positive.
    """

    def __init__(
        self,
        arms: Tensor,
        covar_module: Kernel,
        noise_variance: float,
        forgetting_rate: float,
        tolerance: float = 1e-3,
        max_inducing: int = 512,
    ) -> None:
        check_number("tolerance", tolerance, 0.0, 1.0)
        if not is_integer(max_inducing) or max_inducing < 2:
            raise InputDataError(
                "Expected `max_inducing` to be a whole number of at least 2, but got "
                f"{max_inducing!r}."
            )
        with torch.no_grad():
            prior_variance = covar_module(arms, diag=True).to(arms)
        check_prior_variance(prior_variance)
        check_largest_variance(prior_variance.max().item())
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance
        self.forgetting_rate = forgetting_rate
        self.time: float | None = None
        self.mean = torch.zeros_like(prior_variance)
        self.log_det = 0.0
        self._report = RoundingReport(prior_variance.dtype)  # copies share it
        self.arms = arms
        self.covar_module = covar_module
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        self.inducing_indices = torch.empty(0, dtype=torch.long, device=arms.device)
        self._L = arms.new_empty(0, 0)
        self._cache = arms.new_empty(arms.shape[0], 0)
        self._room = 0  # columns of a cache of its own
        self._mu = arms.new_empty(0)
        self._Sigma = arms.new_empty(0, 0)
        self._squared = torch.zeros_like(prior_variance)  # |z|^2
        self._projected = torch.zeros_like(prior_variance)  # z^T Sigma z
        self._num_since_review, self._retained_since_review = 0, 1.0

    @property
    def variance(self) -> Tensor:
        """The ``A`` posterior variances at ``time``."""
        residual = (self.prior_variance - self._squared).clamp_min(0.0)
        return residual + self._projected.clamp_min(0.0)

    def copy(self) -> Self:
        """Return a copy whose later observations do not change this one.

        It shares the features until it has more of its own.
        """
        other = copy(self)
        other._cache = self._features
        return other

    @torch.no_grad()
    def extended(self, arms: Tensor) -> Self:
        """Return one over ``k x d`` more arms, after the others, and the same data.

        Nothing is replayed: given the observed arms, the data say nothing more about
        any other arm. ``O(k m^2)``, and a copy of the features.
        """
        num_arms, m = self._features.shape
        arms = arms.to(self.arms)
        K = dense_covariance(self.covar_module, self.arms[self.inducing_indices], arms)
        features = torch.linalg.solve_triangular(self._L, K.to(arms), upper=False).mT
        prior = self.covar_module(arms, diag=True).to(arms)
        squared = features.square().sum(dim=-1)
        check_prior_variance(prior)
        check_residual(least_residual(prior - squared, prior), prior.dtype)
        projected = ((features @ self._Sigma) * features).sum(dim=-1)
        other = copy(self)
        other.prior_variance = torch.cat([self.prior_variance, prior])
        other.mean = torch.cat([self.mean, features @ self._mu])
        other.arms = torch.cat([self.arms, arms])
        other._squared = torch.cat([self._squared, squared])
        other._projected = torch.cat([self._projected, projected])
        if self.is_exact:
            other.max_inducing = len(other.arms)
        other._cache = features.new_empty(len(other.arms), self._room)
        other._cache[:num_arms, :m] = self._features
        other._cache[num_arms:, :m] = features
        return other

    @torch.no_grad()
    def draw_values(
        self,
        num_draws: int,
        generator: torch.Generator,
        indices: Tensor | None = None,
    ) -> Tensor:
        """Return ``num_draws x k`` joint draws of arms at ``time``, in ``O(k^3)``.

        Of all arms if ``indices`` is None.
        """
        if indices is None:
            indices = torch.arange(len(self.arms), device=self.arms.device)
        x, Z = self.arms[indices], self._features[indices]
        K = dense_covariance(self.covar_module, x, x).to(x)
        root = psd_root(K - Z @ Z.mT + Z @ self._Sigma @ Z.mT)
        eps = draw_normals(num_draws, root.shape[-1], generator=generator).to(root)
        return self.mean[indices] + eps @ root.mT

    @property
    def is_exact(self) -> bool:
        """Whether every arm can stay inducing, equations (7) and (8) of the paper."""
        return self.tolerance == 0 and self.max_inducing >= len(self.arms)

    @property
    def _features(self) -> Tensor:
        """The ``A x m`` features."""
        return self._cache[:, : self._L.shape[0]]

    @torch.no_grad()
    def observe(self, indices: Tensor, rewards: Tensor, time: float) -> None:
        """Take in rewards of one time.

        Args:
            indices: A ``q``-dim long tensor of arms, repeats allowed; may be empty.
            rewards: Their ``q`` rewards.
            time: When; not before an earlier observation.

        Raises:
            InputDataError: If the prior covariance turns out not to be positive
                semi-definite, which ends this posterior.
        """
        self.advance(time)
        for index, reward in zip(indices.tolist(), rewards.tolist(), strict=True):
            self._condition(index, reward)
            # A reward does not inform about the residual outside the span: relative to
            # the variance, that is lost by rounding.
            prior, finfo = self.prior_variance[index], torch.finfo(self.mean.dtype)
            residual = (prior - self._squared[index]).clamp_min(finfo.eps * prior)
            projected = self._projected[index].clamp_min(finfo.tiny)
            self._report.note((residual / projected).item(), index)

    @torch.no_grad()
    def advance(self, time: float) -> None:
        """Move on to a time without an observation: what is remembered decays.

        Raises:
            InputDataError: If the time goes back or is not finite.
        """
        retained = self._retained(time)
        self.time = time
        if retained == 1:
            return
        self.mean = math.sqrt(retained) * self.mean
        self._projected = retained * self._projected + (1 - retained) * self._squared
        self._mu = math.sqrt(retained) * self._mu
        self._Sigma = retained * self._Sigma
        self._Sigma.diagonal().add_(1 - retained)
        self._retained_since_review *= retained
        is_due = self._num_since_review >= REVIEW_INTERVAL
        if is_due or self._retained_since_review < 0.5:
            self._review(self.max_inducing)

    @torch.no_grad()
    def predict(self, time: float) -> tuple[Tensor, Tensor]:
        """Return the ``A`` means and variances at a time, ``O(A)``; nothing changes.

        Raises:
            InputDataError: If the time is before the last observation.
        """
        retained = self._retained(time)
        variance = retained * self.variance + (1 - retained) * self.prior_variance
        return math.sqrt(retained) * self.mean, variance.clamp_min(0.0)

    def _retained(self, time: float) -> float:
        """Return ``(1 - eps)^D`` for the gap since the last observation."""
        if self.time is None:
            return 1.0
        check_time(time, self.time)
        return float((1 - self.forgetting_rate) ** (time - self.time))

    def _condition(self, index: int, reward: float) -> None:
        """Take in one reward: the Kalman gain of one arm."""
        if not (self.inducing_indices == index).any():
            prior = self.prior_variance[index].item()
            residual = prior - self._squared[index].item()
            # Closer to the span, its new feature would be mostly rounding.
            if residual > APPEND_TOLERANCE[self.mean.dtype] * prior:
                if len(self.inducing_indices) >= self.max_inducing:
                    self._review(self.max_inducing - self.max_inducing // 8 - 1)
                self._join(index)
        features = self._features
        z = features[index]
        gain = self._Sigma @ z
        variance = (z @ gain).clamp_min(0.0).item()
        total = variance + self.noise_variance
        column = features @ gain
        weight = (reward - self.mean[index].item()) / total  # the innovation's
        self.mean = self.mean + column * weight
        self._projected = self._projected - column.square() / total
        self._mu = self._mu + gain * weight
        self._Sigma = self._Sigma - torch.outer(gain, gain) / total
        self.log_det += math.log1p(variance / self.noise_variance)
        self._num_since_review += 1

    def _join(self, index: int) -> None:
        """Make an arm inducing, unless rounding of its features would spoil others."""
        m, features = self._L.shape[0], self._features
        joined = torch.tensor([index], device=self.arms.device)
        z = features[index].clone()
        column = self._prior_covariance(joined).squeeze(0) - features @ z
        corner = (self.prior_variance[index] - z.square().sum()).sqrt()
        least = least_residual(corner, self.prior_variance[index])
        check_residual(least, corner.dtype)
        column /= corner
        column[self.inducing_indices] = 0.0
        column[index] = corner
        squared = self._squared + column.square()
        worst = least_residual(self.prior_variance - squared, self.prior_variance)
        if not worst > -PSD_TOLERANCE[squared.dtype]:
            # The row that it adds to L^{-1}, in units of the prior variance.
            row = torch.linalg.solve_triangular(
                self._L, -z.unsqueeze(0), upper=False, left=False
            )
            row = torch.cat([row.squeeze(0), row.new_ones(1)]) / corner
            arms = torch.cat([self.inducing_indices, joined])
            if is_well_conditioned(row * self.prior_variance[arms].sqrt()):
                check_residual(worst, squared.dtype)  # raises
            return
        if m == self._room:
            self._room = min(max(64, 2 * m), self.max_inducing)
        if m == self._cache.shape[1]:  # that it may share
            cache = features.new_empty(features.shape[0], self._room)
            cache[:, :m] = features
            self._cache = cache
        self._cache[:, m] = column
        self._L = torch.nn.functional.pad(self._L, (0, 1, 0, 1))
        self._L[m, :m], self._L[m, m] = z, corner
        self._mu = torch.nn.functional.pad(self._mu, (0, 1))
        self._Sigma = torch.nn.functional.pad(self._Sigma, (0, 1, 0, 1))
        self._Sigma[m, m] = 1.0
        self._squared = squared
        self._projected = self._projected + column.square()
        self.inducing_indices = torch.cat([self.inducing_indices, joined])

    def _review(self, max_size: int) -> None:
        """Drop arms of too little leverage, and the least ones beyond ``max_size``."""
        self._num_since_review, self._retained_since_review = 0, 1.0
        keep = self._lasting(max_size)
        if len(keep) == len(self.inducing_indices):
            return
        S = self.inducing_indices[keep]
        # theta_new = T theta for T = L_new^{-1} L_old, whose rows are orthonormal: the
        # other directions go back to their prior.
        L = torch.linalg.cholesky(self._L[keep] @ self._L[keep].mT)
        T = torch.linalg.solve_triangular(L, self._L[keep], upper=False)
        self._mu, self._Sigma = T @ self._mu, T @ self._Sigma @ T.mT
        old, self._L = self._features, L
        self._room = min(len(keep) + 64, self.max_inducing)
        self._cache = old.new_empty(old.shape[0], self._room)
        root = psd_root(self._Sigma) if len(keep) else self._Sigma
        self.mean = torch.zeros_like(self.mean)
        self._squared = torch.zeros_like(self.mean)
        self._projected = torch.zeros_like(self.mean)
        size = max(1, CHUNK_BYTES // (max(old.shape[1], 1) * old.element_size()))
        for start in range(0, old.shape[0], size):
            rows = slice(start, start + size)
            new = old[rows] @ T.mT
            self._cache[rows, : len(keep)] = new
            self.mean[rows] = new @ self._mu
            self._squared[rows] = new.square().sum(dim=-1)
            self._projected[rows] = (new @ root).square().sum(dim=-1)
        self._cache[S, : len(keep)] = L
        self.inducing_indices = S

    def _lasting(self, max_size: int) -> list[int]:
        """Return the positions of the inducing arms that stay."""
        m = self._L.shape[0]
        inverse = torch.linalg.solve_triangular(
            self._L, torch.eye(m).to(self._L), upper=False
        )
        # Of d_j: the prior precision is Q_jj, and G_jj / Q_jj^2 the variance now.
        Q, G = inverse.mT @ inverse, inverse.mT @ self._Sigma @ inverse
        keep = list(range(m))
        while keep:
            leverage = (1 - G.diagonal() / Q.diagonal()).clamp_min(0.0)  # by rounding
            least = int(leverage.argmin())
            if leverage[least] >= self.tolerance and len(keep) <= max_size:
                break
            rest = [row for row in range(len(keep)) if row != least]
            # The others' precision and covariance without this arm.
            move = Q[rest, least] / Q[least, least]
            g = G[rest, least]
            G = (
                G[rest][:, rest]
                - torch.outer(move, g)
                - torch.outer(g, move)
                + G[least, least] * torch.outer(move, move)
            )
            Q = Q[rest][:, rest] - torch.outer(Q[rest, least], move)
            del keep[least]
        return keep

    def _prior_covariance(self, indices: Tensor) -> Tensor:
        """Return the prior covariances of a few arms with all."""
        covariance = dense_covariance(self.covar_module, self.arms[indices], self.arms)
        return covariance.to(self.arms)
