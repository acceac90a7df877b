"""Plates: batches whose arms share the values of some columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import ProductArms, ProductLimits, PullLimits
from botorch_bkb.bandits.surrogates import ArmSurrogate, StaticPosteriorAt
from botorch_bkb.models.utils.draws import PROGRESS, seeded_generator
from botorch_bkb.models.utils.rows import find_replicates, row_blocks, row_hashes
from botorch_bkb.posteriors import ArmPosterior
from botorch_bkb.posteriors.batch_rise import BatchRise


if TYPE_CHECKING:
    from botorch_bkb.bandits.gp_bandit import GPBandit


# Of more values, those of the largest bounds are compared: so many values, among so
# many arms, with so many standard deviations above the mean.
MOST_VALUES = 20
SHORTLIST_SIZE = 1024
SHORTLIST_DEVIATIONS = 2.0


def checked_columns(arms: Tensor, same: Sequence[int | str]) -> list[int]:
    """Return the numbers of columns, or of components that may be named.

    Raises:
        InputDataError: If there is no such column.
    """
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
    """Return the batch of the value with the largest expected rise, the first of ties.

    Args:
        bandit: Chooses the batch of a value.
        surrogate: That of the bandit.
        posterior: The posterior at the time of the decision, with pending pulls.
        size: The most pulls.
        limits: How many pulls each arm allows.
        columns: The columns that the batch shares.
        generator: The source of randomness, the same for each value.
    """
    moments, size = posterior.moments, min(size, limits.total(size))
    plates: Iterator[PullLimits]
    if isinstance(limits, ProductLimits):
        plates = _product_plates(moments, limits, columns)
    else:
        groups = _groups(moments.arms, columns)
        allowed = limits.allowed
        values = (groups if allowed is None else groups[allowed]).unique()
        if len(values) > MOST_VALUES:
            values = _shortlist(groups[_top(moments, limits)].unsqueeze(-1))[:, 0]
        offered = torch.ones_like(groups, dtype=torch.bool)
        offered = offered if limits.offered is None else limits.offered
        plates = (
            bandit._pull_limits(offered & (groups == value), size) for value in values
        )
    numbers = seeded_generator(surrogate.seed, PROGRESS, bandit.num_pulls)
    competes = bandit._table.competing()
    rise = BatchRise(moments, posterior.pending, competes, size, numbers)
    best, best_rise = None, -math.inf
    for plate in plates:
        seeded = generator.clone_state()
        batch = bandit._select(surrogate, posterior, size, plate, seeded)
        if (found := rise(batch)) > best_rise:
            best, best_rise = batch, found
    if best is None:
        raise InputDataError(
            "Expected an available arm, but no value of `same` has one left."
        )
    return best


def _product_plates(
    posterior: ArmPosterior, limits: ProductLimits, columns: Sequence[int]
) -> Iterator[ProductLimits]:
    """Yield the limits of each value that is compared."""
    arms = limits.mask.rows
    sizes = [arms.sizes[column] for column in columns]
    values = (
        list(product(*map(range, sizes)))
        if math.prod(sizes) <= MOST_VALUES
        else (_shortlist(arms.components(_top(posterior, limits))[:, columns]).tolist())
    )
    for value in values:
        plate = limits.fixing(dict(zip(columns, value, strict=True)))
        if plate.num_open:
            yield plate


def _groups(arms: Tensor, columns: Sequence[int]) -> Tensor:
    """Return the first arm with the same values in some columns, for every arm."""
    parts = [row_hashes(block[:, columns]) for _, block in row_blocks(arms)]
    replicates = find_replicates(torch.cat(parts).unsqueeze(-1))
    return replicates.first[replicates.inverse]


def _top(posterior: ArmPosterior, limits: PullLimits) -> Tensor:
    """Return the available arms of the largest upper bounds."""
    top = posterior.largest_bounds(SHORTLIST_DEVIATIONS, SHORTLIST_SIZE, limits.allowed)
    return top.arms[top.values > -torch.inf]


def _shortlist(rows: Tensor) -> Tensor:
    """Return the first distinct rows, in order of the rows."""
    values, place = rows.unique(dim=0, return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(values[:, 0], len(rows))
    first = first.scatter_reduce(0, place, order, "amin")
    return values[first.argsort()[:MOST_VALUES].sort().values]
