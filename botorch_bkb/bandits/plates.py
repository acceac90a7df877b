"""Plates: batches whose arms share the values of some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import ProductArms, TableArms
from botorch_bkb.checks import as_number
from botorch_bkb.models.utils.rows import as_dense, row_blocks
from botorch_bkb.posteriors import Posterior


# At most 20 values are compared: those of the 1,024 best arms by mean + 2 standard
# deviations.
MOST_VALUES = 20
DEVIATIONS = 2.0
SHORTLIST_SIZE = 1024


def checked_columns(table: Any, same: Sequence[int | str]) -> list[int]:
    """Return the numbers of columns or components of a table, which may be named."""
    arms = table.rows
    has_names = isinstance(arms, ProductArms | TableArms)
    names = (arms.names if has_names else table.columns) or []
    same = list(same) if np.iterable(same) and not isinstance(same, str) else [same]
    columns = [names.index(each) if each in names else each for each in same]
    for each in columns:
        if as_number(each) not in range(arms.shape[-1]):
            raise InputDataError(
                f"Expected `same` to hold numbers from 0 to {arms.shape[-1] - 1}, of "
                f"columns of `arms`, or names among {names}, but got {each!r}."
            )
    return [int(each) for each in columns]


def plate_values(
    posterior: Posterior, arms: Tensor, allowed: Any, columns: Sequence[int]
) -> Tensor:
    """Return the values of columns that promising arms have, best first."""
    top = posterior.largest_bounds(DEVIATIONS, SHORTLIST_SIZE, allowed)
    rows = as_dense(arms[top.arms[top.values > -torch.inf]])[:, columns]
    distinct = list(dict.fromkeys(map(tuple, rows.tolist())))[:MOST_VALUES]
    return rows.new_tensor(distinct)


def plate_masks(arms: Tensor, columns: Sequence[int], values: Tensor) -> Tensor:
    """Return, for each row of values, which arms have these in the columns."""
    blocks = (block[:, columns] for _, block in row_blocks(arms))
    values = values.unsqueeze(1)
    return torch.cat([(block == values).all(dim=-1) for block in blocks], dim=-1)
