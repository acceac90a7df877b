"""Which pulled arms are inducing: what learners and bandits on a box share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.models.utils.draws import draw_uniforms
from botorch_bkb.posteriors import ArmPosterior


# More new arms than this in one update are sampled block by block.
BULK_SIZE = 256


def is_bulk(num_new: int) -> bool:
    """Whether so many arms are new that they are sampled block by block."""
    return num_new > BULK_SIZE


def coupled_uniforms(
    uniforms: Tensor, num_arms: int, generator: torch.Generator
) -> Tensor:
    """Return one number for each arm, those that are there unchanged."""
    missing = num_arms - len(uniforms)
    if not missing:
        return uniforms
    new = draw_uniforms(missing, generator)
    return torch.cat([uniforms.to(new.device), new])


def sample_in_blocks(
    hyperparameters: Hyperparameters,
    features: Tensor,  # n x d
    counts: Tensor,  # n
    sample: Callable[[Tensor], Tensor],
    max_feature_bytes: int = 2**31,
) -> Tensor:  # m, long
    """Sample inducing rows as if many new rewards had come in doubling blocks.

    At once, every new row would have the score of the prior, and all would be kept: a
    table of 10,000 historical results would make 10,000 inducing points.

    Args:
        hyperparameters: Kernel and noise.
        features: The pulled points, in its units.
        counts: The numbers of their pulls.
        sample: The law: which rows are kept, given the leverage scores of the first.
        max_feature_bytes: The byte budget of cached features.

    Returns:
        The rows that are kept.
    """
    posterior = ArmPosterior(
        features,
        hyperparameters.covar_module,
        hyperparameters.noise_variance,
        max_feature_bytes,
    )
    stop = BULK_SIZE
    while stop < len(features):
        inducing = sample(posterior.leverage_scores[:stop])
        weights = counts[:stop].to(posterior.mean)
        seen = torch.arange(stop, device=features.device)
        posterior.update(inducing, seen, weights, torch.zeros_like(weights))
        stop *= 2
    return sample(posterior.leverage_scores)


def in_stable_order(before: Tensor, after: Tensor) -> Tensor:
    """Return ``after`` in the order of ``before``, new entries at the end."""
    kept = before[torch.isin(before, after)]
    return torch.cat([kept, after[~torch.isin(after, before)]])
