"""Plates: batches whose arms share the values of some columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import ProductArms, ProductLimits, PullLimits
from botorch_bkb.bandits.surrogates import ArmSurrogate, StaticPosteriorAt
from botorch_bkb.models.utils.draws import PROGRESS, seeded_generator
from botorch_bkb.models.utils.rows import row_blocks, row_hashes
from botorch_bkb.posteriors.batch_rise import expected_rises


if TYPE_CHECKING:
    from botorch_bkb.bandits.gp_bandit import GPBandit


# So many values are compared: those of the largest bounds, so many standard deviations
# above the mean, among so many arms.
MOST_VALUES = 20
DEVIATIONS = 2.0
SHORTLIST_SIZE = 1024


def checked_columns(arms: Tensor, same: Sequence[int | str]) -> list[int]:
    """Return the numbers of columns, or of components that may be named."""
    names = arms.names if isinstance(arms, ProductArms) else []
    same = [same] if isinstance(same, (str, int)) else same
    columns = [names.index(each) if each in names else each for each in same]
    for each in columns:
        if each not in range(arms.shape[-1]):
            raise InputDataError(
                f"Expected `same` to hold numbers from 0 to {arms.shape[-1] - 1}, of "
                f"columns of `arms`, or names among {names}, but got {each!r}."
            )
    return [int(each) for each in columns]


def best_plate(
    bandit: GPBandit,
    surrogate: ArmSurrogate,
    posterior: StaticPosteriorAt,
    size: int,
    limits: PullLimits,
    columns: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return the batch of the value with the largest expected rise; see ``ask``."""
    moments, size = posterior.moments, min(size, limits.total(size))
    top = moments.largest_bounds(DEVIATIONS, SHORTLIST_SIZE, limits.allowed)
    arms = top.arms[top.values > -torch.inf]
    limits_of: Callable[[Any], PullLimits]
    found: list[Any]
    if isinstance(limits, ProductLimits):
        found = limits.mask.rows.components(arms)[:, columns].tolist()
        found = [*map(tuple, found)]

        def limits_of(value: Any) -> PullLimits:
            return limits.fixing(dict(zip(columns, value, strict=True)))
    else:
        blocks = row_blocks(moments.arms)
        hashes = torch.cat([row_hashes(block[:, columns]) for _, block in blocks])
        found = hashes[arms].tolist()

        def limits_of(value: Any) -> PullLimits:
            among = hashes == value
            among = among if limits.offered is None else among & limits.offered
            return bandit._pull_limits(among, size)

    batches = [
        bandit._select(
            surrogate, posterior, size, limits_of(v), generator.clone_state()
        )
        for v in list(dict.fromkeys(found))[:MOST_VALUES]
    ]
    if not batches:
        raise InputDataError("Expected an available arm for `same`, but none is left.")
    numbers = seeded_generator(surrogate.seed, PROGRESS, bandit.num_pulls)
    args = posterior.pending, bandit._table.competing(), numbers
    rises = expected_rises(moments, batches, *args)
    return batches[rises.index(max(rises))]
