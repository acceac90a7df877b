r"""Variances as pulls are added that have no reward yet.

A *hallucinated* pull brings the mean that is known already, so that means stay and
variances fall (GP-BUCB): for a few arms, whose covariance matrix is kept
(:class:`PoolPosterior`), or for all (:class:`HallucinatedPosterior`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from botorch_bkb.models.utils.nystrom import span_tolerance
from botorch_bkb.posteriors.appended import AppendedArms
from botorch_bkb.posteriors.arm_posterior import ArmPosterior


# So few that a pool's product with them stays below the size from which BLAS libraries
# start threads, which cost more than the product.
MAX_DOWNDATES = 64


class PoolPosterior:
    r"""The bounds of a few arms as pulls without reward are added.

    ``n`` pulls of an arm turn a covariance ``M`` into ``M - n m m^T / (lambda + n p)``,
    ``m`` the arm's column and ``p`` its variance. With fixed inducing arms ``M`` is the
    projected covariance, beside which the residual stays; with inducing arms that grow
    on the exact GP it is the whole covariance, and nothing is left beside it.

    In NumPy on the processor: on a hundred numbers PyTorch's overhead is most of the
    time, and an accelerator's launches are all of it.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        indices: The ``k`` arms of the pool, ascending.
        pulls: The pulls so far, by arm.
        grow: Whether pulled arms join the inducing arms.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        scale: float,
        indices: Tensor,
        pulls: dict[int, int],
        grow: bool,
    ) -> None:
        self.noise_variance = posterior.noise_variance
        self.scale = scale
        self.indices = indices
        self.arms: list[int] = indices.tolist()
        self.position = {arm: position for position, arm in enumerate(self.arms)}
        covariance = posterior.covariance(indices, indices, projected=not grow)
        if pulls:
            arms = torch.tensor(list(pulls), device=indices.device)
            counts = covariance.new_tensor(list(pulls.values()))
            K = posterior.covariance(arms, arms, projected=not grow)
            cross = posterior.covariance(arms, indices, projected=not grow)
            L = torch.linalg.cholesky(K + torch.diag(self.noise_variance / counts))
            root = torch.linalg.solve_triangular(L, cross, upper=False)
            covariance -= root.mT @ root
        self.covariance = covariance.cpu().numpy()
        # Rounding can leave a variance of zero below it, and a bound that is NaN.
        self.projected = self.covariance.diagonal().clip(min=0.0)
        self.mean = posterior.mean[indices].cpu().numpy()
        self.residual = posterior.residual[indices].cpu().numpy()
        if grow:
            self.residual = np.zeros_like(self.residual)
        # The downdates m sqrt(n / (lambda + n p)) not yet in `covariance`.
        self.downdates = np.empty((MAX_DOWNDATES, len(self.arms)), self.mean.dtype)
        self.num_downdates = 0
        self._refresh()

    def __contains__(self, index: int) -> bool:
        """Whether an arm is in the pool."""
        return index in self.position

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        position = int(self.bounds.argmax())
        return self.bounds.item(position), self.arms[position]

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        position = self.position[index]
        own = self.bounds[position]
        self.bounds[position] = -math.inf
        best = self.best()
        self.bounds[position] = own
        return best

    def variances(self, index: int) -> tuple[float, float]:
        """Return the residual and the projected variance of an arm."""
        position = self.position[index]
        return self.residual.item(position), self.projected.item(position)

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        self.mean[self.position[index]] = -math.inf
        self._refresh()

    def append(self, index: int) -> None:
        """Do nothing: the covariance of the exact GP knows arms that join."""

    def pull(self, index: int, num_pulls: int) -> None:
        """Add pulls of one arm of the pool, without rewards."""
        position = self.position[index]
        p = self.projected.item(position)
        if p <= 0:
            return
        if self.num_downdates == MAX_DOWNDATES:
            self.covariance -= self.downdates.T @ self.downdates
            self.num_downdates = 0
        earlier = self.downdates[: self.num_downdates]
        column = self.covariance[position] - earlier[:, position] @ earlier
        column *= math.sqrt(num_pulls / (self.noise_variance + num_pulls * p))
        self.downdates[self.num_downdates] = column
        self.num_downdates += 1
        self.projected -= column * column
        np.maximum(self.projected, 0.0, out=self.projected)
        self._refresh()

    def _refresh(self) -> None:
        self.bounds = self.mean + self.scale * np.sqrt(self.residual + self.projected)


class FeatureRows:
    """Features of some arms, old and appended ones.

    Args:
        posterior: The posterior.
        indices: The ``k`` arms; None for all.
        Z: Their ``M x k`` features, if they are not all: of thousands of arms,
            gathering takes longer than a product with them.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        indices: Tensor | None = None,
        Z: Tensor | None = None,
    ) -> None:
        self.posterior = posterior
        self.indices = indices
        self.Z = Z
        num_arms = posterior.mean.shape[0] if indices is None else indices.shape[0]
        self.appended = posterior.mean.new_empty(0, num_arms)

    def dot(self, vector: Tensor) -> Tensor:
        """Return ``z(x)^T vector`` of the arms, appended features included."""
        m = vector.shape[0] - self.appended.shape[0]
        Z = self.Z
        result = self.posterior.dot(vector[:m]) if Z is None else vector[:m] @ Z
        return result + vector[m:] @ self.appended

    def append(self, feature: Tensor) -> None:
        """Add the feature of one more inducing arm."""
        self.appended = torch.cat([self.appended, feature.unsqueeze(0)])


class HallucinatedPosterior:
    r"""The variances of all arms as pulls without reward and inducing arms are added.

    Holds ``R`` with ``V_now^{-1} = R R^T`` and the arms appended to the inducing arms;
    ``V`` and the features are those of
    :class:`~botorch_bkb.posteriors.ArmPosterior`. Every change passes over the
    features of all arms, ``O(A (m + f))``.

    Args:
        posterior: The posterior at the start of the batch; it is not changed.
        scale: The number of standard deviations of the bounds.
        allowed: An ``A``-dim boolean tensor of the arms that may be pulled, or None.
    """

    def __init__(
        self, posterior: ArmPosterior, scale: float, allowed: Tensor | None
    ) -> None:
        self.posterior = posterior
        self.scale = scale
        self.mean = posterior.mean
        if allowed is not None:
            self.mean = self.mean.masked_fill(~allowed, -math.inf)
        self._bounds: Tensor | None = None
        self._seen: set[int] = set()  # arms that are inducing or in their span
        # The posterior's own tensors until the first change.
        self.residual, self.projected = posterior.residual, posterior.projected
        self._is_changed = False

    def _begin(self) -> None:
        """Prepare for changes; the choice that ends a batch makes none."""
        if self._is_changed:
            return
        self._is_changed = True
        posterior = self.posterior
        self.residual = self.residual.clone()
        self.projected = self.projected.clone()
        m = posterior.L_v.shape[0]
        eye = torch.eye(m).to(posterior.L_v)
        self.R = torch.linalg.solve_triangular(posterior.L_v, eye, upper=False).mT
        self.appended = AppendedArms(posterior)
        self.rows = FeatureRows(posterior)
        # Pulled arms outside the span of S change V once it grows.
        is_outside = ~posterior.pulled_in_span
        outside = posterior.pulled_indices[is_outside]
        self.Z_outside = posterior.features(outside)
        self.pulled = FeatureRows(posterior, outside, self.Z_outside)
        self.precisions = posterior.precisions[is_outside]

    def __contains__(self, index: int) -> bool:
        """Whether an arm is tracked: all are."""
        return True

    def best(self) -> tuple[float, int]:
        """Return the largest bound and its arm, the lowest index among ties."""
        bounds = self._refreshed_bounds()
        index = int(bounds.argmax())
        return bounds[index].item(), index

    def rival(self, index: int) -> tuple[float, int]:
        """Return the largest bound among the other arms, and its arm."""
        bounds = self._refreshed_bounds()
        own = bounds[index].clone()
        bounds[index] = -math.inf
        best = self.best()
        bounds[index] = own
        return best

    def variances(self, index: int) -> tuple[float, float]:
        """Return the residual and the projected variance of an arm."""
        return self.residual[index].item(), self.projected[index].item()

    def close(self, index: int) -> None:
        """Let an arm never be the best again."""
        closed = torch.tensor([index], device=self.mean.device)
        self.mean = self.mean.index_fill(0, closed, -math.inf)
        self._bounds = None

    def append(self, index: int) -> None:
        r"""Append an arm to the inducing points, unless it is in their span.

        With ``a(x)`` the new feature and, over the pulled arms, ``g = Z^T W a`` and
        ``s = 1 + a^T W a - |R^T g|^2``, ``V`` grows to ``[[V, g], [g^T, 1 + a^T W a]]``
        and ``projected(x)`` by ``(a(x) - z(x)^T V^{-1} g)^2 / s``.
        """
        if index in self._seen:
            return
        self._seen.add(index)
        self._begin()
        arm = torch.tensor([index], device=self.mean.device)
        z = self.appended.features(arm).squeeze(-1)
        m = self.posterior.L_v.shape[0]
        prior = self.posterior.prior_variance[index]
        residual = self.posterior.residual[index] - z[m:].square().sum()
        if residual <= span_tolerance(z.dtype) * prior:
            return
        self._bounds = None
        root = residual.sqrt()
        a_pulled = self._new_feature(self.pulled, index, z, root)
        a = self._new_feature(self.rows, index, z, root)
        weighted = self.precisions * a_pulled
        g = self.Z_outside @ weighted
        h = self.R.mT @ torch.cat([g, self.pulled.appended @ weighted])
        Rh = self.R @ h
        s = 1 + (weighted @ a_pulled) - h.square().sum()
        self.projected += (a - self.rows.dot(Rh)).square() / s
        self.residual = (self.residual - a.square()).clamp_min(0.0)
        self.pulled.append(a_pulled)
        self.rows.append(a)
        corner = (1 / s.sqrt()).reshape(1, 1)
        self.R = _bordered(self.R, -Rh.unsqueeze(-1) * corner, corner)
        self.appended.border(arm, z.unsqueeze(-1), root.reshape(1, 1))

    def pull(self, index: int, num_pulls: int) -> None:
        r"""Add pulls of one arm, without rewards.

        With ``p = projected(x)`` of the arm, ``n`` pulls turn ``p`` into
        ``p lambda / (lambda + n p)`` and lower any ``projected(x')`` by
        ``n c(x, x')^2 / (lambda + n p)``, ``c = z(x)^T V^{-1} z(x')``.
        """
        self._begin()
        noise = self.posterior.noise_variance
        arm = torch.tensor([index], device=self.mean.device)
        u = self.R.mT @ self.appended.features(arm).squeeze(-1)
        p = u.square().sum()
        if p <= 0:
            return
        self._bounds = None
        Ru = self.R @ u
        shrink = num_pulls / (noise + num_pulls * p)
        self.projected -= shrink * self.rows.dot(Ru).square()
        self.projected.clamp_(min=0.0)
        # 1 - sqrt(lambda / (lambda + n p)) without cancellation.
        ratio = num_pulls * p / (noise + num_pulls * p)
        alpha = ratio / (1 + (1 - ratio).sqrt())
        self.R = self.R - torch.outer(Ru, u * (alpha / p))

    def _refreshed_bounds(self) -> Tensor:
        if self._bounds is None:
            variance = self.residual + self.projected
            self._bounds = self.mean + self.scale * variance.sqrt()
        return self._bounds

    def _new_feature(
        self, arms: FeatureRows, index: int, z: Tensor, root: Tensor
    ) -> Tensor:
        column = self.posterior.prior_column(index, arms.indices)
        return (column - arms.dot(z)) / root


def _bordered(block: Tensor, side: Tensor, corner: Tensor) -> Tensor:
    """Return ``[[block, side], [0, corner]]``."""
    below = torch.cat([block.new_zeros(1, block.shape[1]), corner], dim=-1)
    return torch.cat([torch.cat([block, side], dim=-1), below])
