"""The kernel of fingerprints."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.utils.rows import BitArms


class TanimotoKernel(Kernel):
    r"""Similarity of bits and counts, ``sum_i min(x_i, y_i) / sum_i max(x_i, y_i)``.

    The MinMax kernel of [ralaivola2005graph]_, positive semi-definite on non-negative
    features; on bits the Tanimoto kernel. Costs one matrix product on bits, and on
    packed rows (``BitArms``) a sum over the bits that are set. Two rows of zeros have
    the similarity 1, a row of zeros and another have 0. Nothing is learned;
    ``ScaleKernel`` gives it a variance.

    Args:
        **kwargs: Options of ``gpytorch.kernels.Kernel``; ``active_dims`` names the
            columns of the fingerprint.

    Raises:
        InputDataError: If a feature is negative, when the kernel is evaluated.

    Example:
        >>> bandit = BBKB(fingerprints, covar_module=ScaleKernel(TanimotoKernel()))
    """

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        if isinstance(x1, BitArms) and isinstance(x2, BitArms):
            if not diag:
                return _packed_covariance(x1, x2)
            if torch.equal(x1.codes, x2.codes):
                return torch.ones_like(x1[:, 0])
        check_non_negative(x1)
        if x2 is not x1:
            check_non_negative(x2)
        if diag:
            smaller = torch.minimum(x1, x2).sum(dim=-1)
            return _ratio(smaller, torch.maximum(x1, x2).sum(dim=-1))
        totals = x1.sum(dim=-1).unsqueeze(-1) + x2.sum(dim=-1).unsqueeze(-2)
        if x1.requires_grad or x2.requires_grad or not (_is_bits(x1) and _is_bits(x2)):
            # `sum_i |x_i - y_i|`: no tensor of n x n' x d numbers.
            smaller = (totals - torch.cdist(x1, x2, p=1.0)) / 2
        else:
            # Exact in single precision too, and in half the time.
            smaller = (x1.float() @ x2.float().mT).to(x1)
        return _ratio(smaller, totals - smaller)


def _packed_covariance(x1: BitArms, x2: BitArms) -> Tensor:
    """Return the similarities of packed rows; the shorter list is unpacked."""
    if len(x1) > len(x2):
        return _packed_covariance(x2, x1).mT
    totals = x1.totals(), x2.totals()
    smaller = x2.in_common(x1)
    larger = totals[0].unsqueeze(-1) + totals[1]
    ratio = smaller.div_(larger.sub_(smaller))
    is_empty = [bool((total == 0).any()) for total in totals]
    return ratio.nan_to_num_(nan=1.0) if all(is_empty) else ratio


def check_non_negative(x: Tensor) -> None:
    """Raise unless all features are at least zero."""
    if not (x >= 0).all():
        raise InputDataError(
            "Expected features of at least zero, bits or counts, for `TanimotoKernel`, "
            f"but got {x.min().item():g}. Do not standardize the columns of a "
            "fingerprint; `active_dims` names them if there are others."
        )


def _is_bits(x: Tensor) -> bool:
    return bool((x * x == x).all())


def _ratio(smaller: Tensor, larger: Tensor) -> Tensor:
    """Return ``smaller / larger``, and 1 where both are zero."""
    is_empty = larger == 0
    ratio = smaller / torch.where(is_empty, torch.ones_like(larger), larger)
    return torch.where(is_empty, torch.ones_like(ratio), ratio)
