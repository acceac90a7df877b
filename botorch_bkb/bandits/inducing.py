"""Which pulled arms are inducing: what learners and bandits on a box share."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from botorch.exceptions.warnings import BotorchWarning
from torch import Tensor

from botorch_bkb.bandits.hyperparameters import Hyperparameters
from botorch_bkb.models.utils.leverage_scores import leverage_pivots
from botorch_bkb.posteriors import ArmPosterior
from botorch_bkb.posteriors.kernel_rows import positions_in_ascending


# More new arms than this in one update are sampled block by block.
BULK_SIZE = 256
# Where anything is learned, up to this many pulled arms are all inducing: a fit takes
# all of as many, and sampling saves nothing worth the accuracy.
MIN_INDUCING = 256


def is_bulk(num_new: int) -> bool:
    """Whether so many arms are new that they are sampled block by block."""
    return num_new > BULK_SIZE


def keeps_all(
    hyperparameters: Hyperparameters,
    num_pulled: int,
    min_inducing: int,
    max_inducing: int | None,
) -> bool:
    """Whether so many pulled arms are inducing without sampling."""
    most = min_inducing if max_inducing is None else min(min_inducing, max_inducing)
    return hyperparameters.learns and num_pulled <= most


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
        weights = counts[:stop].to(posterior.like)
        seen = torch.arange(stop, device=features.device)
        posterior.update(inducing, seen, weights, torch.zeros_like(weights))
        stop *= 2
    return sample(posterior.leverage_scores)


def within_ceiling(
    rows: Tensor,
    hyperparameters: Hyperparameters,
    features: Tensor,
    counts: Tensor,
    max_inducing: int | None,
) -> tuple[Tensor, bool]:
    """Return sampled rows, or the best few of them where they are too many.

    Args:
        rows: Those that were sampled, of all pulled arms.
        hyperparameters: Kernel and noise.
        features: The ``P x d`` pulled arms, in its units.
        counts: The ``P`` numbers of their pulls.
        max_inducing: The most rows to keep; None for no limit.

    Returns:
        The rows, ascending, and whether they were too many.
    """
    if max_inducing is None or len(rows) <= max_inducing:
        return rows, False
    kernel = hyperparameters.covar_module
    best = leverage_pivots(kernel, features[rows], counts[rows], max_inducing)
    return rows[best.sort().values], True


def warn_of_ceiling(num_inducing: int, num_pulled: int) -> None:
    """Say that fewer points are inducing than the law of leverage scores keeps."""
    warnings.warn(
        f"`max_inducing` took effect: {num_inducing:,} of {num_pulled:,} measured "
        "points are inducing, fewer than leverage scores would keep. Variances may be "
        "further from the exact ones than the theorems allow. Raise the ceiling, or "
        "check that the noise variance is not too small.",
        BotorchWarning,
        stacklevel=2,
    )


def in_stable_order(before: Tensor, after: Tensor) -> Tensor:
    """Return ascending ``after`` in the order of ``before``, new entries at the end."""
    place = positions_in_ascending(after, before)
    stays = place >= 0
    if len(before) == len(after) and stays.all():
        return before
    is_new = torch.ones_like(after, dtype=torch.bool)
    is_new[place[stays]] = False
    return torch.cat([before[stays], after[is_new]])
