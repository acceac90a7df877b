"""A kernel that is a table: an empirical covariance over the arms."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_tensors


# Relative to the largest eigenvalue: what rounding explains, in double precision.
PSD_TOLERANCE = 1e-8


class PrecomputedKernel(Kernel):
    """Covariances looked up in a table; inputs are arm indices.

    As in section 5.2 of the TV-GP-UCB paper. An empirical covariance is *about the
    empirical mean*: subtract that mean from the rewards.

    Args:
        covariance: An ``A x A`` table, symmetric and positive semi-definite up to
            rounding. :func:`nearest_covariance` repairs one that is not.
        **kwargs: Options of ``gpytorch.kernels.Kernel``; ``active_dims`` names the
            column of arm indices.

    Raises:
        BotorchTensorDimensionError: If the table is not square.
        InputDataError: If it is no tensor of floats, holds NaN or infinity, or is not
            symmetric and positive semi-definite; later, if an input is not an arm
            index.

    Example:
        >>> kernel = PrecomputedKernel(nearest_covariance(readings.T.cov()))
        >>> arms = torch.arange(len(readings.T), dtype=torch.double).unsqueeze(-1)
        >>> bandit = BBKB(arms, covar_module=kernel, noise_variance=0.5)
    """

    def __init__(self, covariance: Tensor, **kwargs: Any) -> None:
        """Take the arguments that the class describes."""
        super().__init__(**kwargs)
        _check_table(covariance)
        asymmetry = (covariance - covariance.mT).abs().max().item()
        scale = covariance.abs().max().clamp_min(1e-300).item()
        lowest = torch.linalg.eigvalsh((covariance + covariance.mT) / 2)[0].item()
        if asymmetry > PSD_TOLERANCE * scale or lowest < -PSD_TOLERANCE * scale:
            raise InputDataError(
                "Expected `covariance` to be symmetric and positive semi-definite, but "
                f"entries differ by up to {asymmetry:.1e} from the transpose and the "
                f"smallest eigenvalue is {lowest:.1e}. `nearest_covariance` repairs it."
            )
        self.register_buffer("covariance", covariance)

    # GPyTorch reads these from parameters. This kernel has none.
    @property
    @override
    def device(self) -> torch.device:
        return self.covariance.device

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self.covariance.dtype

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        left, right = self._indices(x1), self._indices(x2)
        if diag:
            return self.covariance[left, right].to(x1)
        return self.covariance[left.unsqueeze(-1), right.unsqueeze(-2)].to(x1)

    def _indices(self, x: Tensor) -> Tensor:
        """Return the ``... x n`` long indices of ``... x n x 1`` inputs."""
        num_arms = self.covariance.shape[0]
        indices = x.round().long()
        is_index = (indices == x) & (indices >= 0) & (indices < num_arms)
        if x.shape[-1] != 1 or not is_index.all():
            raise InputDataError(
                f"Expected inputs of one column, arm indices from 0 to {num_arms - 1}, "
                f"but got {x.shape[-1]} columns from {x.min().item():g} to "
                f"{x.max().item():g}. Do not scale or transform the column."
            )
        return indices.squeeze(-1)


def nearest_covariance(covariance: Tensor) -> Tensor:
    """Return the nearest symmetric positive semi-definite table, in Frobenius norm.

    The symmetric part with negative eigenvalues set to zero: a repair of ``A x A``
    tables that were estimated pair by pair from readings with gaps.

    Raises:
        BotorchTensorDimensionError: If the table is not square.
        InputDataError: If it is no tensor of floats, or holds NaN or infinity.
    """
    _check_table(covariance)
    eigenvalues, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    repaired = (vectors * eigenvalues.clamp_min(0.0)) @ vectors.mT
    return (repaired + repaired.mT) / 2


def _check_table(covariance: Tensor) -> None:
    check_tensors(covariance=covariance)
    if covariance.dim() != 2 or covariance.shape[0] != covariance.shape[1]:
        raise BotorchTensorDimensionError(
            f"Expected `covariance` of shape A x A, but got {tuple(covariance.shape)}."
        )
    if not covariance.isfinite().all():
        raise InputDataError(
            "Expected finite `covariance`, but it holds NaN or infinity. Impute "
            "missing readings, or estimate pairwise and use `nearest_covariance`."
        )
