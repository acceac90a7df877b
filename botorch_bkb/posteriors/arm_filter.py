"""The exact posterior of a function that drifts, over all pairs of arms."""

from __future__ import annotations

import math
from copy import copy
from typing import Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_tensors
from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.models.utils.nystrom import check_residual, psd_root
from botorch_bkb.posteriors.drifting import DriftingPosterior


# At this scale the numbers that it multiplies are rescaled, before they overflow.
MIN_SCALE = 1e-12


class ArmFilter(DriftingPosterior):
    r"""The exact posterior over ``A`` arms that drift.

    Equations (7) and (8) of [bogunovic2016tvgpucb]_. ``O(A^2)`` time for every
    observation and every change of time, ``O(A^2)`` memory, both independent of how
    much was observed before. Times are real numbers; several observations at one time,
    or none for long, are fine.

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
        # The variance that the last reward leaves of its arm, by the formula.
        self._variance_left = 0.0
        # The accumulated rounding error of the variances, in double.
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
        eps = draw_normals(num_draws, root.shape[-1], generator=generator).to(root)
        return self.mean + eps @ root.mT

    @override
    def _decay(self, retained: float) -> None:
        self.mean = math.sqrt(retained) * self.mean
        self._scale *= retained
        self._excess = retained * self._excess
        if self._expansion is not None:
            self._expansion.mean *= math.sqrt(retained)
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
        weight = (reward - self.mean[index].item()) / total  # the innovation's
        if self._expansion is not None:
            K = self.prior_covariance
            self._expansion.condition(K, index, self._scale, weight, total)
        self.mean = self.mean + column * weight
        before = self._removed.diagonal().to(torch.float64, copy=True)
        self._removed.addr_(column, column, alpha=1 / (self._scale * total))
        self._keep_account(index, column.double(), total, before)
        removed = self._scale * self._removed.diagonal()
        check_residual(self.prior_variance - removed, self.prior_variance)
        self.log_det += math.log1p(variance / self.noise_variance)
        self._variance_left = variance * self.noise_variance / total

    def _keep_account(
        self, index: int, column: Tensor, total: float, before: Tensor
    ) -> None:
        """Track the rounding error of the variances through an update.

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
        last = (
            abs(variance / self._variance_left - 1) if self._variance_left > 0 else 0.0
        )
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
        self, K: Tensor, index: int, scale: float, weight: float, total: float
    ) -> None:
        """Follow an update: the column of an arm is ``K_{:P} u``."""
        if index not in self.arms:
            self.arms.append(index)
            self.mean = torch.nn.functional.pad(self.mean, (0, 1))
            self.removed = torch.nn.functional.pad(self.removed, (0, 1, 0, 1))
        u = self.removed @ K[self.arms, index].double() * -scale
        u[self.arms.index(index)] += 1.0
        self.mean += u * weight
        self.removed.addr_(u, u, alpha=1 / (scale * total))


def _bordered(table: Tensor, rows: Tensor, corner: Tensor) -> Tensor:
    """Return a symmetric table with ``k`` more rows and columns."""
    top = torch.cat([table, rows.mT], dim=-1)
    return torch.cat([top, torch.cat([rows, corner], dim=-1)])
