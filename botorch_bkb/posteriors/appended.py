"""Arms that join the inducing ones beside a posterior that stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_bkb.models.utils.nystrom import append_tolerance, independent_points
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


class AppendedArms:
    r"""``f`` more inducing arms: the factor grows to ``[[L, 0], [B, C]]``.

    Args:
        posterior: The posterior; it is not changed.

    Attributes:
        indices: The ``f`` arms.
        B: The ``f x M`` features of these arms.
        C: The ``f x f`` lower Cholesky factor of their Schur complement.
    """

    def __init__(self, posterior: ArmPosterior) -> None:
        self.posterior = posterior
        self.indices = posterior.pulled_indices[:0]
        self.B = posterior.L_v.new_empty(0, posterior.L_v.shape[0])
        self.C = posterior.L_v.new_empty(0, 0)

    def features(self, arms: Tensor) -> Tensor:
        """Return the ``(M + f) x k`` features of some arms."""
        Z = self.posterior.features(arms)
        if self.indices.numel() == 0:
            return Z
        K = self.posterior.prior_covariance(self.indices, arms)
        return torch.cat([Z, self.coordinates(K - self.B @ Z)])

    def coordinates(self, residual: Tensor) -> Tensor:
        """Return the new features, ``f x k``.

        Args:
            residual: What the old ones leave of the ``f x k`` covariances.
        """
        return torch.linalg.solve_triangular(self.C, residual, upper=False)

    def append(self, arms: Tensor) -> None:
        """Append arms, but those in the span of the others."""
        Z = self.features(arms)
        prior = self.posterior.moments(arms)[0]
        # What is left of an arm in the span is rounding, and no variance.
        is_new = prior - Z.square().sum(dim=0) > append_tolerance(Z.dtype) * prior
        arms, Z = arms[is_new], Z[:, is_new]
        schur = self.posterior.prior_covariance(arms, arms) - Z.mT @ Z
        kept = independent_points(schur)
        corner = torch.linalg.cholesky(schur[kept][:, kept])
        self.border(arms[kept], Z[:, kept], corner)

    def border(self, arms: Tensor, Z: Tensor, corner: Tensor) -> None:
        """Append ``k`` arms whose factor is known.

        Args:
            arms: The arms.
            Z: Their ``(M + f) x k`` features.
            corner: The ``k x k`` factor of their own Schur complement.
        """
        M = self.B.shape[1]
        above = self.C.new_zeros(self.C.shape[0], corner.shape[0])
        below = torch.cat([Z[M:].mT, corner], dim=-1)
        self.C = torch.cat([torch.cat([self.C, above], dim=-1), below])
        self.B = torch.cat([self.B, Z[:M].mT])
        self.indices = torch.cat([self.indices, arms])
