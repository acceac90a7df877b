"""The units of arms' features: minima and ranges."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_bkb.arms.columns import TableArms
from botorch_bkb.arms.product import ProductArms
from botorch_bkb.models.utils.rows import BitArms, row_blocks


def feature_units(arms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ``d`` minima and ranges of the features, for normalization.

    Codes of words and packed fingerprints have no units to take out: 0 and 1. A
    constant feature becomes 0.
    """
    if isinstance(arms, ProductArms):  # its kernel normalizes the components
        zeros = arms.new_zeros(arms.shape[-1])
        return zeros, zeros + 1
    numbers = arms.numbers if isinstance(arms, BitArms) else arms
    limits = [(rows.amin(dim=0), rows.amax(dim=0)) for _, rows in row_blocks(numbers)]
    low, high = (torch.stack(ends) for ends in zip(*limits, strict=True))
    low, high = low.amin(dim=0), high.amax(dim=0)
    width = torch.where(high > low, high - low, 1.0).to(low)
    if isinstance(arms, TableArms):  # its kernel knows the period of cyclic numbers
        others = torch.tensor([kind != "numbers" for kind in arms.kinds])
        low[others], width[others] = 0.0, 1.0
    num_bits = arms.shape[-1] - numbers.shape[-1]
    zeros = low.new_zeros(num_bits)
    return torch.cat([zeros, low]), torch.cat([zeros + 1, width])


def extreme_arms(arms: Tensor) -> Tensor:
    """Return a few arms, ascending, with the same :func:`feature_units` as all."""
    numbers = arms.numbers if isinstance(arms, BitArms) else arms
    if numbers.shape[-1] == 0:
        return torch.empty(0, dtype=torch.long)
    found = []
    for rows, block in row_blocks(numbers):
        ends = torch.stack([block.argmin(dim=0), block.argmax(dim=0)]).unique()
        found.append((rows.start + ends, block[ends]))
    indices, extremes = (torch.cat(parts) for parts in zip(*found, strict=True))
    ends = torch.stack([extremes.argmin(dim=0), extremes.argmax(dim=0)]).unique()
    return indices[ends]
