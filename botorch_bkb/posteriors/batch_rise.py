"""How much a batch of measurements is expected to raise the best posterior mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_bkb.models.utils.draws import draw_normals
from botorch_bkb.posteriors.arm_sampler import JITTER, POOL_DEVIATIONS, POOL_SIZE
from botorch_bkb.posteriors.posterior import Posterior


# So many draws, and fewer of them for batches of thousands: their normal numbers.
NUM_DRAWS = 4096
NUM_NORMALS = 2**22


@torch.no_grad()
def expected_rises(
    posterior: Posterior,
    batches: Sequence[Tensor],
    allowed: Any,
    generator: torch.Generator,
) -> list[float]:
    r"""Return how much each batch is expected to raise the best posterior mean.

    The results ``y`` of a batch ``B`` move the posterior means of all arms by ::

        cov(x, B) (cov(B, B) + lambda I)^{-1} (y - mean(B)),

    a Gaussian vector before they are known. Where plates have offsets, the batch is one
    plate, so that all its results share one: its variance is added to every entry of
    ``cov(B, B)``. The rise ``E[max_x mean_after(x)] - max_x
    mean(x)`` is the average of draws, which all batches share. The maximum is over the
    batch, the arm of the best mean, and the 1,024 arms of the largest bounds ``mean + 3
    standard deviations``.

    Args:
        posterior: The posterior before the batch.
        batches: The arms of each batch, repeats included.
        allowed: Which arms may be the best, as ``posterior.largest_bounds`` takes it.
        generator: The source of randomness.
    """
    best = posterior.largest_bounds(0.0, 1, allowed).arms
    top = posterior.largest_bounds(POOL_DEVIATIONS, POOL_SIZE, allowed)
    pool = torch.cat([best, top.arms[top.values > -torch.inf]])
    size = max(map(len, batches))
    num_draws = max(min(NUM_DRAWS, NUM_NORMALS // size), 1)
    normals = draw_normals(size, num_draws, generator=generator).to(posterior.like)
    # Equal pulls have a singular covariance, which rounding may make indefinite.
    least = JITTER.get(posterior.like.dtype, 1e-3) * posterior.max_prior_variance
    noise = max(posterior.noise_variance, least)
    offset = posterior.result_variance - posterior.noise_variance
    rises = []
    for batch in batches:
        arms = torch.cat([pool, batch]).unique()
        K = posterior.covariance(batch, batch) + offset
        K.diagonal().add_(noise)
        cross = posterior.covariance(batch, arms)
        root = torch.linalg.cholesky(K)
        root = torch.linalg.solve_triangular(root, cross, upper=False)
        mean = posterior.means(arms)
        after = mean.unsqueeze(-1) + root.mT @ normals[: len(batch)]
        # The best arm's own mean does not change in expectation: less variance.
        rise = after.amax(dim=0) - after[mean.argmax()]
        rises.append(rise.mean().item())
    return rises
