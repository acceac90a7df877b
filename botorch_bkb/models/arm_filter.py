r"""The posterior of a drifting function over a finite set of arms, filtered in time.

The function forgets at rate ``eps`` per unit of time: ``f_{t+1} = sqrt(1 - eps) f_t +
sqrt(eps) g_{t+1}``, every ``g`` an independent draw from the GP with covariance ``K``
over the arms. That is a linear state-space model, so equations (7) and (8) of
[bogunovic2016tvgpucb]_ are a Kalman filter: over a gap of ``D``,

    mean <- (1 - eps)^(D / 2) mean
    C    <- (1 - eps)^D C + (1 - (1 - eps)^D) K

and every observation is an update of rank one. :class:`ArmFilter` does this for all
arms, :class:`SparseArmFilter` for a few inducing arms, whose values determine what data
on them say of all others.

References:
    [bogunovic2016tvgpucb] I. Bogunovic, J. Scarlett, V. Cevher. Time-varying Gaussian
    process bandit optimization. AISTATS 2016.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import Self

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.checks import as_number, check_modules, check_tensors
from botorch_bkb.models.utils.covariance import dense_covariance
from botorch_bkb.models.utils.nystrom import (
    append_tolerance,
    check_prior_variance,
    check_residual,
    is_well_conditioned,
    psd_root,
)
from botorch_bkb.models.utils.rounding import RoundingReport


# The inducing arms are looked through after this many observations.
REVIEW_INTERVAL = 64
CHUNK_BYTES = 2**24
# Before the numbers under a scale this small become too large, in float32 as well.
MIN_SCALE = 1e-12


class DriftingPosterior(ABC):
    r"""The posterior over arms that drift, moved on from observation to observation.

    Attributes:
        prior_variance: The ``A`` prior variances.
        noise_variance: lambda.
        forgetting_rate: ``eps``, per unit of time.
        time: The time of the moments; None before the first observation.
        mean: The ``A`` posterior means at that time.
        log_det: ``log det(I + K / lambda)`` of all observations with the covariances of
            the drifting function, twice the mutual information (14).
    """

    def __init__(
        self, prior_variance: Tensor, noise_variance: float, forgetting_rate: float
    ) -> None:
        if not 0 < as_number(noise_variance) < math.inf:
            raise InputDataError(
                "Expected `noise_variance` to be a positive number, but got "
                f"{noise_variance!r}. For exact rewards, use a small one."
            )
        check_forgetting_rate(forgetting_rate)
        check_prior_variance(prior_variance)
        self.prior_variance = prior_variance
        self.noise_variance = noise_variance
        self.forgetting_rate = forgetting_rate
        self.time: float | None = None
        self.mean = torch.zeros_like(prior_variance)
        self.log_det = 0.0
        self._rounding_report = RoundingReport(prior_variance.dtype)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The ``A`` posterior variances at ``time``."""

    @abstractmethod
    def draw_values(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Return a ``num_draws x A`` tensor of joint draws of the arms at ``time``."""

    @abstractmethod
    def _decay(self, kept: float) -> None:
        """Move on while the share ``kept`` of the variance is remembered."""

    @abstractmethod
    def _condition(self, index: int, reward: float) -> None:
        """Take in one reward."""

    @abstractmethod
    def _rounding(self, index: int) -> float:
        """Return by which share of itself the variance of this arm is rounding.

        Args:
            index: The arm of the last reward.
        """

    @abstractmethod
    def copy(self) -> Self:
        """Return one that takes other observations from here on."""

    @abstractmethod
    def extended(self, arms: Tensor, covariance: Tensor) -> Self:
        r"""Return one over more arms, after the others, that has the same observations.

        Given the arms that were observed, what was observed says nothing more about any
        other arm, now or before. So nothing is replayed.

        Args:
            arms: The ``k x d`` new arms.
            covariance: The ``k x (A + k)`` prior covariances of the new arms with all.

        Raises:
            InputDataError: If the prior covariance turns out not to be positive
                semi-definite.
        """

    def _widened(self, prior_variance: Tensor, mean: Tensor, variance: Tensor) -> Self:
        """Return a shallow copy with ``k`` more moments, after checks."""
        check_prior_variance(prior_variance)
        check_residual(variance, prior_variance)
        other = copy(self)
        other.prior_variance = torch.cat([self.prior_variance, prior_variance])
        other.mean = torch.cat([self.mean, mean])
        return other

    @torch.no_grad()
    def observe(self, indices: Tensor, rewards: Tensor, time: float) -> None:
        """Take in rewards of one time.

        Args:
            indices: A ``q``-dim long tensor of arms, repeats allowed; may be empty.
            rewards: Their ``q`` rewards.
            time: When; not before an earlier observation.

        Raises:
            BotorchTensorDimensionError: If ``rewards`` does not fit ``indices``.
            InputDataError: If a reward is not finite, an arm is unknown, or the time
                goes back. Nothing has changed then. Or if the prior covariance turns
                out not to be positive semi-definite, which ends this posterior.
        """
        if indices.dim() != 1 or rewards.shape != indices.shape:
            raise BotorchTensorDimensionError(
                "Expected one reward per arm, but got `indices` of shape "
                f"{tuple(indices.shape)} and `rewards` of shape {tuple(rewards.shape)}."
            )
        num_arms = self.mean.shape[0]
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < (
            num_arms
        ):
            raise InputDataError(
                f"Expected `indices` from 0 to {num_arms - 1}, but got "
                f"{indices.tolist()}."
            )
        if not rewards.isfinite().all():
            raise InputDataError(
                f"Expected finite `rewards`, but got {rewards.tolist()}. Leave failed "
                "measurements out."
            )
        self.advance(time)
        for index, reward in zip(indices.tolist(), rewards.tolist(), strict=True):
            self._condition(index, reward)
            self._rounding_report.note(self._rounding(index), index)

    @torch.no_grad()
    def advance(self, time: float) -> None:
        """Move on to a time without an observation.

        Raises:
            InputDataError: If the time goes back or is not finite.
        """
        kept = self._remembered(time)
        if kept < 1:
            self._decay(kept)
        self.time = time

    @torch.no_grad()
    def predict(self, time: float) -> tuple[Tensor, Tensor]:
        """Return the ``A`` means and variances at a time, given what was observed.

        ``O(A)``: the decision at a time needs only its variances.

        Args:
            time: When; not before the last observation.

        Raises:
            InputDataError: If the time is before the last observation.
        """
        kept = self._remembered(time)
        variance = kept * self.variance + (1 - kept) * self.prior_variance
        return math.sqrt(kept) * self.mean, variance.clamp_min(0.0)

    def _remembered(self, time: float) -> float:
        """Return ``(1 - eps)^D`` for the gap since the last observation."""
        check_time(time)
        if self.time is None:
            return 1.0
        if time < self.time:
            raise InputDataError(
                f"Expected `time` not before {self.time:g}, the time of the last "
                f"observation, but got {time:g}. Bring observations in order of time."
            )
        return float((1 - self.forgetting_rate) ** (time - self.time))


class ArmFilter(DriftingPosterior):
    r"""The exact posterior over ``A`` arms that drift; equations (7) and (8).

    ``O(A^2)`` time for every observation and every change of time, ``O(A^2)`` memory,
    both independent of how much was observed before. Times are real numbers; several
    observations at one time, or none for long, are fine.

    Args:
        prior_covariance: The ``A x A`` covariance ``K`` of the function at one time.
        noise_variance: lambda.
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time.
        extensible: Whether :meth:`extended` is wanted, which takes ``P^2`` more of time
            and memory for ``P`` observed arms.

    Attributes:
        prior_covariance: ``K``.

    Raises:
        BotorchTensorDimensionError: If ``prior_covariance`` is not square.
        InputDataError: If ``noise_variance`` or ``forgetting_rate`` is out of range, or
            ``prior_covariance`` no tensor of floats.
    """

    def __init__(
        self,
        prior_covariance: Tensor,
        noise_variance: float,
        forgetting_rate: float,
        extensible: bool = False,
    ) -> None:
        check_tensors(prior_covariance=prior_covariance)
        shape = tuple(prior_covariance.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise BotorchTensorDimensionError(
                f"Expected `prior_covariance` of shape A x A, but got {shape}."
            )
        super().__init__(prior_covariance.diagonal(), noise_variance, forgetting_rate)
        self.prior_covariance = prior_covariance
        # C = K - scale * R: what the data have removed decays by the scale alone.
        self._removed = torch.zeros_like(prior_covariance)
        self._scale = 1.0
        self._told = 0.0  # what the last reward had to leave of its arm's variance
        # By how much rounding has left the variances too large, in double.
        self._excess = torch.zeros_like(self.prior_variance, dtype=torch.float64)
        self._expansion = _Expansion(prior_covariance) if extensible else None

    @property
    def covariance(self) -> Tensor:
        """The ``A x A`` posterior covariance at ``time``."""
        return self.prior_covariance - self._scale * self._removed

    @property
    @override
    def variance(self) -> Tensor:
        removed = self._scale * self._removed.diagonal()
        return (self.prior_variance - removed).clamp_min(0.0)

    @override
    def copy(self) -> Self:
        other = copy(self)
        other._removed = self._removed.clone()
        if self._expansion is not None:
            other._expansion = self._expansion.copy()
        return other

    @override
    @torch.no_grad()
    def extended(self, arms: Tensor, covariance: Tensor) -> Self:
        """Return one over more arms; ``O(A k P)`` for ``P`` observed arms.

        Raises:
            UnsupportedError: If this one was not made to be extensible.
        """
        if self._expansion is None:
            raise UnsupportedError(
                "Expected a filter made with `extensible=True`, but this one keeps no "
                "more than the moments of the arms that it has."
            )
        num_arms = self.mean.shape[0]
        K_new, corner = covariance[:, :num_arms], covariance[:, num_arms:]
        seen = self._expansion.arms
        k = K_new[:, seen].double()
        weights = k @ self._expansion.removed
        rows = (weights @ self.prior_covariance[seen].double()).to(K_new)
        own = (weights @ k.mT).to(K_new)
        prior = corner.diagonal()
        mean = (k @ self._expansion.mean).to(K_new)
        other = self._widened(prior, mean, prior - self._scale * own.diagonal())
        other._removed = _bordered(self._removed, rows, own)
        other.prior_covariance = _bordered(self.prior_covariance, K_new, corner)
        other._expansion = self._expansion.copy()
        excess = torch.zeros_like(prior, dtype=torch.float64)
        other._excess = torch.cat([self._excess, excess])
        return other

    @override
    @torch.no_grad()
    def draw_values(self, num_draws: int, generator: torch.Generator) -> Tensor:
        root = psd_root(self.covariance)
        eps = _normal(num_draws, root.shape[-1], generator).to(root)
        return self.mean + eps @ root.mT

    @override
    def _decay(self, kept: float) -> None:
        self.mean = math.sqrt(kept) * self.mean
        self._scale *= kept
        self._excess = kept * self._excess
        if self._expansion is not None:
            self._expansion.mean *= math.sqrt(kept)
        if self._scale < MIN_SCALE:
            self._removed *= self._scale
            if self._expansion is not None:
                self._expansion.removed *= self._scale
            self._scale = 1.0

    @override
    def _condition(self, index: int, reward: float) -> None:
        removed = self._removed[:, index]
        column = self.prior_covariance[:, index] - self._scale * removed
        variance = column[index].clamp_min(0.0).item()
        total = variance + self.noise_variance
        surprise = (reward - self.mean[index].item()) / total
        if self._expansion is not None:
            K = self.prior_covariance
            self._expansion.condition(K, index, self._scale, surprise, total)
        self.mean = self.mean + column * surprise
        before = self._removed.diagonal().to(torch.float64, copy=True)
        self._removed.addr_(column, column, alpha=1 / (self._scale * total))
        self._keep_account(index, column.double(), total, before)
        removed = self._scale * self._removed.diagonal()
        check_residual(self.prior_variance - removed, self.prior_variance)
        self.log_det += math.log1p(variance / self.noise_variance)
        self._told = variance * self.noise_variance / total

    def _keep_account(
        self, index: int, column: Tensor, total: float, before: Tensor
    ) -> None:
        """Add what an update should have removed and did not.

        In float32 a part of the variance below 1e-8 of its sum is lost, the next as
        well, and in thousands of pulls they add up. An error E in the covariance
        becomes ``(I - g e^T) E (I - g e^T)^T`` by an update of gain ``g``; what is lost
        of one arm is lost of those nearby, so E is taken to be of rank one.
        """
        root = self._excess.sign() * self._excess.abs().sqrt()
        root = root - column * (root[index] / total)
        removed = self._scale * (self._removed.diagonal().double() - before)
        self._excess = root * root.abs() + (column.square() / total - removed)

    @override
    def _rounding(self, index: int) -> float:
        removed = self._scale * self._removed[index, index].item()
        variance = self.prior_variance[index].item() - removed
        last = abs(variance / self._told - 1) if self._told > 0 else 0.0
        excess = self._excess[index].item()
        tiny = torch.finfo(self.mean.dtype).tiny
        return max(last, abs(excess) / max(variance - excess, tiny))


class _Expansion:
    r"""The moments by the ``P`` arms that were observed, which serve any other arm.

    The mean is ``K_{:P} mean``, what the data have removed ``K_{:P} removed K_{P:}``:
    no inverse of ``K_PP``, which is singular to rounding where the kernel is smooth. In
    double whatever the arms are.
    """

    def __init__(self, like: Tensor) -> None:
        self.arms: list[int] = []
        self.mean = like.new_zeros(0, dtype=torch.float64)
        self.removed = like.new_zeros(0, 0, dtype=torch.float64)

    def copy(self) -> _Expansion:
        other = copy(self)
        other.arms = list(self.arms)
        other.mean, other.removed = self.mean.clone(), self.removed.clone()
        return other

    def condition(
        self, K: Tensor, index: int, scale: float, surprise: float, total: float
    ) -> None:
        """Follow an update: the column of an arm is ``K_{:P} u``."""
        if index not in self.arms:
            self.arms.append(index)
            self.mean = torch.nn.functional.pad(self.mean, (0, 1))
            self.removed = torch.nn.functional.pad(self.removed, (0, 1, 0, 1))
        u = self.removed @ K[self.arms, index].double() * -scale
        u[self.arms.index(index)] += 1.0
        self.mean += u * surprise
        self.removed.addr_(u, u, alpha=1 / (scale * total))


class SparseArmFilter(DriftingPosterior):
    r"""The posterior over drifting arms that stands on a few inducing ones.

    The values of the inducing arms ``S`` drift by the same law, and given them what
    they were before says nothing more about the other arms. So the filter over ``S``
    alone, with the features ``z(x) = L^{-1} k_S(x)`` and weights ``theta`` of mean
    ``mu`` and covariance ``P``, ::

        mean(x) = z(x)^T mu,    var(x) = k(x, x) - |z(x)|^2 + z(x)^T P z(x),

    which is the variance of DTC, is exact while ``S`` holds every arm that was pulled,
    and an arm joins ``S`` when it is pulled.

    What is approximate is that arms leave. The *leverage* of an inducing arm is the
    share of the variance of ``d_j``, its value less what the other inducing arms say of
    it, that the data have removed: ``1 - var(d_j | data) / var(d_j)``. A single pull
    starts near ``r / (r + lambda)``, with ``r`` the variance of ``d_j``, and a pull of
    age ``D`` has ``(1 - eps)^D`` of that. Where the leverage is under ``tolerance``, or
    is the least of too many, the arm leaves: ``d_j`` goes back to its prior and the
    rest of the posterior stays. Leaving with leverage ``tau`` changes the variance of
    no arm by more than ``(tau + sqrt(tau)) k(x, x)``, and its mean by no more than
    ``sqrt(k(x, x))`` times the mean of ``d_j`` over its prior deviation, whose expected
    square is ``tau``; both errors fade as ``(1 - eps)^D``.

    An observation costs one pass over the features, ``O(A m)``, whatever was observed
    before; every 64 observations, and when the variance remembered has halved, the
    inducing arms are looked through, which is ``O(A m^2)`` if some leave.

    Args:
        arms: The ``A x d`` arms.
        covar_module: The kernel at one time.
        noise_variance: lambda.
        forgetting_rate: ``eps`` in ``[0, 1]``, per unit of time.
        tolerance: The leverage under which an inducing arm leaves.
        max_inducing: The most inducing arms; memory is ``A x max_inducing``.

    Raises:
        InputDataError: If an argument is out of range.
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
        check_tensors(arms=arms)
        check_modules(Kernel, covar_module=covar_module)
        if not 0 <= as_number(tolerance) < 1:
            raise InputDataError(
                f"Expected `tolerance` from 0 to 1, but got {tolerance!r}. At 0 no "
                "inducing arm leaves while there is room."
            )
        if not isinstance(max_inducing, int) or max_inducing < 2:
            raise InputDataError(
                "Expected `max_inducing` to be at least 2, a whole number, but got "
                f"{max_inducing!r}."
            )
        with torch.no_grad():
            prior_variance = covar_module(arms, diag=True).to(arms)
        super().__init__(prior_variance, noise_variance, forgetting_rate)
        self.arms = arms
        self.covar_module = covar_module
        self.tolerance = tolerance
        self.max_inducing = max_inducing
        self.inducing_indices = torch.empty(0, dtype=torch.long, device=arms.device)
        self._position: dict[int, int] = {}
        self._L = arms.new_empty(0, 0)
        self._cache = arms.new_empty(arms.shape[0], 0)
        self._room = 0  # columns of a cache of its own
        self._mu = arms.new_empty(0)
        self._P = arms.new_empty(0, 0)
        self._squared = torch.zeros_like(prior_variance)  # |z|^2
        self._projected = torch.zeros_like(prior_variance)  # z^T P z
        self._num_unseen, self._kept = 0, 1.0

    @property
    @override
    def variance(self) -> Tensor:
        residual = (self.prior_variance - self._squared).clamp_min(0.0)
        return residual + self._projected.clamp_min(0.0)

    @override
    def copy(self) -> Self:
        """Return one that shares the features until it has more of its own."""
        other = copy(self)
        other._position = dict(self._position)
        other._cache = self._features
        return other

    @override
    @torch.no_grad()
    def extended(self, arms: Tensor, covariance: Tensor) -> Self:
        """Return one over more arms, ``O(k m^2)`` and a copy of the features."""
        num_arms, m = self._features.shape
        features = torch.linalg.solve_triangular(
            self._L, covariance[:, self.inducing_indices].mT, upper=False
        ).mT
        prior = covariance[:, num_arms:].diagonal()
        squared = features.square().sum(dim=-1)
        mean = features @ self._mu
        other = self._widened(prior, mean, prior - squared)
        other.arms = torch.cat([self.arms, arms])
        other._position = dict(self._position)
        other._squared = torch.cat([self._squared, squared])
        projected = ((features @ self._P) * features).sum(dim=-1)
        other._projected = torch.cat([self._projected, projected])
        other._cache = features.new_empty(num_arms + len(arms), self._room)
        other._cache[:num_arms, :m] = self._features
        other._cache[num_arms:, :m] = features
        return other

    @override
    @torch.no_grad()
    def draw_values(self, num_draws: int, generator: torch.Generator) -> Tensor:
        """Return joint draws of the weights' part, without the residual."""
        root = psd_root(self._P)
        eps = _normal(num_draws, root.shape[-1], generator).to(root)
        return self.mean + (eps @ root.mT) @ self._features.mT

    @property
    def _features(self) -> Tensor:
        """The ``A x m`` features."""
        return self._cache[:, : self._L.shape[0]]

    @override
    def _decay(self, kept: float) -> None:
        self.mean = math.sqrt(kept) * self.mean
        self._projected = kept * self._projected + (1 - kept) * self._squared
        self._mu = math.sqrt(kept) * self._mu
        self._P = kept * self._P
        self._P.diagonal().add_(1 - kept)
        self._kept *= kept
        if self._num_unseen >= REVIEW_INTERVAL or self._kept < 0.5:
            self._review(self.max_inducing)

    @override
    def _condition(self, index: int, reward: float) -> None:
        if index not in self._position:
            prior = self.prior_variance[index].item()
            residual = prior - self._squared[index].item()
            # Nearer to the span its features are mostly rounding.
            if residual > append_tolerance(self.mean.dtype) * prior:
                if len(self._position) >= self.max_inducing:
                    self._review(self.max_inducing - self.max_inducing // 8 - 1)
                self._join(index)
        features = self._features
        z = features[index]
        gain = self._P @ z
        variance = (z @ gain).clamp_min(0.0).item()
        total = variance + self.noise_variance
        column = features @ gain
        surprise = (reward - self.mean[index].item()) / total
        self.mean = self.mean + column * surprise
        self._projected = self._projected - column.square() / total
        self._mu = self._mu + gain * surprise
        self._P = self._P - torch.outer(gain, gain) / total
        self.log_det += math.log1p(variance / self.noise_variance)
        self._num_unseen += 1

    @override
    def _rounding(self, index: int) -> float:
        # What is not of the inducing arms' span, as far as numbers go, is not told.
        prior, projected = self.prior_variance[index], self._projected[index]
        rest = (prior - self._squared[index]).clamp_min(
            torch.finfo(prior.dtype).eps * prior
        )
        return (rest / projected.clamp_min(torch.finfo(prior.dtype).tiny)).item()

    def _inverse_row(self, index: int, corner: float) -> Tensor:
        """Return what joining adds to ``L^{-1}``, in units of the prior variance."""
        z = self._features[index].unsqueeze(-1)
        coefficients = torch.linalg.solve_triangular(self._L.mT, z, upper=True)
        scale = self.prior_variance[self.inducing_indices].sqrt()
        row = torch.cat(
            [
                -coefficients.squeeze(-1) * scale,
                self.prior_variance[index : index + 1].sqrt(),
            ]
        )
        return row / corner

    def _join(self, index: int) -> None:
        """Make an arm inducing; what is new about it has its prior.

        Where rounding of its features would take more than all of another arm's
        variance it stays out, and the report on rounding counts what is lost.
        """
        m, features = self._L.shape[0], self._features
        one = torch.tensor([index], device=self.arms.device)
        z = features[index].clone()
        column = self._prior_covariance(one).squeeze(0) - features @ z
        corner = (self.prior_variance[index] - z.square().sum()).sqrt()
        check_residual(corner.reshape(1), self.prior_variance[index].reshape(1))
        column /= corner
        column[self.inducing_indices] = 0.0
        column[index] = corner
        squared = self._squared + column.square()
        try:
            check_residual(self.prior_variance - squared, self.prior_variance)
        except InputDataError:
            row = self._inverse_row(index, corner.item())
            if is_well_conditioned(row):
                raise
            return  # rounding alone: the arm's features would spoil those of others
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
        self._P = torch.nn.functional.pad(self._P, (0, 1, 0, 1))
        self._P[m, m] = 1.0
        self._squared = squared
        self._projected = self._projected + column.square()
        self.inducing_indices = torch.cat([self.inducing_indices, one])
        self._position[index] = m

    def _review(self, max_size: int) -> None:
        """Let arms of too little leverage leave, and the least beyond ``max_size``."""
        self._num_unseen, self._kept = 0, 1.0
        keep = self._lasting(max_size)
        if len(keep) == len(self._position):
            return
        S = self.inducing_indices[keep]
        # theta_new = T theta for T = L_new^{-1} L_old, whose rows are orthonormal: the
        # other directions go back to their prior.
        L = torch.linalg.cholesky(self._L[keep] @ self._L[keep].mT)
        T = torch.linalg.solve_triangular(L, self._L[keep], upper=False)
        self._mu, self._P = T @ self._mu, T @ self._P @ T.mT
        old, self._L = self._features, L
        self._room = min(len(keep) + 64, self.max_inducing)
        self._cache = old.new_empty(old.shape[0], self._room)
        root = psd_root(self._P) if len(keep) else self._P
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
        self._position = {int(arm): row for row, arm in enumerate(S)}

    def _lasting(self, max_size: int) -> list[int]:
        """Return the positions of the inducing arms that stay."""
        m = self._L.shape[0]
        inverse = torch.linalg.solve_triangular(
            self._L, torch.eye(m).to(self._L), upper=False
        )
        # Of d_j: the prior precision is Q_jj, and G_jj / Q_jj^2 the variance now.
        Q, G = inverse.mT @ inverse, inverse.mT @ self._P @ inverse
        keep = list(range(m))
        while keep:
            leverage = 1 - G.diagonal() / Q.diagonal()
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


def check_forgetting_rate(forgetting_rate: float) -> None:
    """Raise an ``InputDataError`` unless this is a forgetting rate."""
    if not 0 <= as_number(forgetting_rate) <= 1:
        raise InputDataError(
            "Expected `forgetting_rate` between 0 (nothing drifts) and 1 (nothing "
            f"is remembered), but got {forgetting_rate!r}."
        )


def check_time(time: float) -> None:
    """Raise an ``InputDataError`` unless a time is finite."""
    if not math.isfinite(as_number(time)):
        raise InputDataError(f"Expected a finite `time`, but got {time!r}.")


def _bordered(table: Tensor, rows: Tensor, corner: Tensor) -> Tensor:
    """Return a symmetric table with ``k`` more rows and columns."""
    top = torch.cat([table, rows.mT], dim=-1)
    return torch.cat([top, torch.cat([rows, corner], dim=-1)])


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(
        rows,
        columns,
        generator=generator,
        device=generator.device,
        dtype=torch.float64,
    )
