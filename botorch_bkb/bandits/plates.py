"""Plates: batches whose arms share the values of some columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import ProductArms, ProductLimits, PullLimits
from botorch_bkb.bandits.policies import Decision
from botorch_bkb.bandits.surrogates import ArmSurrogate
from botorch_bkb.checks import as_number
from botorch_bkb.models.utils.draws import PROGRESS, seeded_generator
from botorch_bkb.models.utils.rows import as_dense, row_blocks
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
    same = list(same) if np.iterable(same) and not isinstance(same, str) else [same]
    columns = [names.index(each) if each in names else each for each in same]
    for each in columns:
        if as_number(each) not in range(arms.shape[-1]):
            raise InputDataError(
                f"Expected `same` to hold numbers from 0 to {arms.shape[-1] - 1}, of "
                f"columns of `arms`, or names among {names}, but got {each!r}."
            )
    return [int(each) for each in columns]


def best_plate(
    bandit: GPBandit,
    surrogate: ArmSurrogate,
    posterior: Decision,
    size: int,
    limits: PullLimits,
    columns: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return the batch of the value with the largest expected rise; see ``ask``."""
    moments, size = posterior.moments, min(size, limits.total(size))
    top = moments.largest_bounds(DEVIATIONS, SHORTLIST_SIZE, limits.allowed)
    best = top.arms[top.values > -torch.inf]
    rows = as_dense(bandit.arms[best])[:, columns]
    found = list(dict.fromkeys(map(tuple, rows.tolist())))[:MOST_VALUES]
    plates: Iterable[PullLimits]
    if isinstance(limits, ProductLimits):
        fixed = ([*map(int, value)] for value in found)
        plates = (limits.fixing(dict(zip(columns, v, strict=True))) for v in fixed)
    else:
        values = rows.new_tensor(found).unsqueeze(1)
        blocks = (block[:, columns] for _, block in row_blocks(bandit.arms))
        masks = torch.cat([(block == values).all(dim=-1) for block in blocks], dim=-1)
        masks = masks if limits.available is None else masks & limits.available
        plates = (bandit._pull_limits(mask, size) for mask in masks)
    batches = [
        bandit._select(surrogate, posterior, size, plate, generator.clone_state())
        for plate in plates
    ]
    if not batches:
        raise InputDataError("Expected an available arm for `same`, but none is left.")
    numbers = seeded_generator(surrogate.seed, PROGRESS, bandit.num_pulls)
    competes = bandit._table.competing()
    rises = expected_rises(posterior.given, batches, competes, numbers)
    return batches[rises.index(max(rises))]
