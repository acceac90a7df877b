"""How much a batch of measurements is expected to raise the best posterior mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from botorch_bkb.posteriors.arm_sampler import JITTER, POOL_DEVIATIONS, POOL_SIZE


# So many draws, and fewer of them for batches of thousands: their normal numbers.
NUM_DRAWS = 4096
NUM_NORMALS = 2**22


class BatchRise:
    r"""The expected rise of the best posterior mean by a batch, in units of the GP.

    The results ``y`` of a batch ``B`` move the posterior means of all arms by ::

        cov(x, B) (cov(B, B) + lambda I)^{-1} (y - mean(B)),

    a Gaussian vector before they are known. The rise ``E[max_x mean_after(x)] - max_x
    mean(x)`` is the average of draws, which all batches share. The maximum is over the
    batch, the arm of the best mean, and the 1,024 arms of the largest bounds ``mean + 3
    standard deviations``. Pending pulls lower the covariance first.

    Args:
        posterior: The posterior given all observations.
        pending: The arms of pending pulls, repeats included.
        competes: Which arms may be the best, as ``posterior.largest_bounds`` takes it.
        size: The largest size of a batch.
        generator: The source of randomness.
    """

    def __init__(
        self,
        posterior: ArmPosterior,
        pending: Tensor,
        competes: Any,
        size: int,
        generator: torch.Generator,
    ) -> None:
        self.posterior = posterior
        self.pending = pending
        best = posterior.largest_bounds(0.0, 1, competes).arms
        top = posterior.largest_bounds(POOL_DEVIATIONS, POOL_SIZE, competes)
        self.pool = torch.cat([best, top.arms[top.values > -torch.inf]])
        num_draws = max(min(NUM_DRAWS, NUM_NORMALS // size), 1)
        normals = draw_normals(size, num_draws, generator=generator)
        self.normals = normals.to(posterior.like)

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> float:
        """Return the expected rise by a batch, a long tensor with repeats."""
        posterior = self.posterior
        pulls = torch.cat([self.pending, batch])
        arms = torch.cat([self.pool, batch]).unique()
        K = posterior.covariance(pulls, pulls, projected=False)
        # Equal pulls have a singular covariance, which rounding may make indefinite.
        least = JITTER.get(K.dtype, 1e-3) * posterior.max_prior_variance
        K.diagonal().add_(max(posterior.noise_variance, least))
        L = torch.linalg.cholesky(K)
        cross = posterior.covariance(pulls, arms, projected=False)
        root = torch.linalg.solve_triangular(L, cross, upper=False)
        # The rows of the batch are what its results add to those of pending pulls.
        moves = root[len(self.pending) :].mT @ self.normals[: len(batch)]
        mean = posterior.means(arms)
        after = mean.unsqueeze(-1) + moves
        # The best arm's own mean does not change in expectation: less variance.
        return (after.amax(dim=0) - after[mean.argmax()]).mean().item()
