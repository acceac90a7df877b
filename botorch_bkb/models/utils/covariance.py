r"""Prior covariances: the one place of the package where kernels are evaluated.

GPyTorch adds the low-rank matrix of a linear kernel to a dense one by updating a
Cholesky factor, which is cubic in the number of points and, with a jitter, off by 1e-8.
Here sums and products are of tensors, and nothing is factorized. The Matern-5/2 kernel
without gradients is computed in place, in half of GPyTorch's time.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add, mul

import torch
from gpytorch import settings
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator import to_dense
from torch import Tensor
from typing_extensions import override


def dense_covariance(
    covar_module: Kernel, x1: Tensor, x2: Tensor | None = None
) -> Tensor:
    """Return the prior covariances of two lists of points, as a tensor.

    Sums, products and scales of kernels are evaluated part by part, other kernels as
    they are.

    Args:
        covar_module: Any kernel.
        x1: A ``batch_shape x n x d`` tensor.
        x2: A ``batch_shape x n' x d`` tensor; ``x1`` if omitted.

    Returns:
        A ``batch_shape x n x n'`` tensor.
    """
    x2 = x1 if x2 is None else x2
    if not _is_evaluated_here(covar_module):
        return covar_module(x1, x2).to_dense()
    if covar_module.active_dims is not None:
        x1 = x1.index_select(-1, covar_module.active_dims)
        x2 = x2.index_select(-1, covar_module.active_dims)
    with settings.lazily_evaluate_kernels(False):
        return _forward(covar_module, x1, x2)


def lazy_covariance(covar_module: Kernel, x: Tensor) -> LazyEvaluatedKernelTensor:
    """Return the prior covariances of ``... x n x d`` points, evaluated when needed.

    What is needed of them, a block or the diagonal, is evaluated by
    :func:`dense_covariance`.
    """
    return _DenseKernel(covar_module)(x)


class _DenseKernel(Kernel):
    """A kernel whose matrices are tensors."""

    def __init__(self, covar_module: Kernel) -> None:
        super().__init__()
        self.covar_module = covar_module

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object
    ) -> Tensor:
        if diag:
            return self.covar_module(x1, x2, diag=True)
        return dense_covariance(self.covar_module, x1, x2)


def _is_evaluated_here(kernel: Kernel) -> bool:
    """Whether a kernel is a sum, a product or a Matern-5/2 kernel, maybe scaled."""
    if type(kernel).forward is ScaleKernel.forward:
        return _is_evaluated_here(kernel.base_kernel)
    is_sum_or_product = type(kernel).forward in (
        AdditiveKernel.forward,
        ProductKernel.forward,
    )
    return is_sum_or_product or _is_fast_matern(kernel)


def _is_fast_matern(kernel: Kernel) -> bool:
    return (
        type(kernel) is MaternKernel
        and kernel.nu == 2.5
        and len(kernel.batch_shape) == 0
        and not torch.is_grad_enabled()
    )


def _forward(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """Do what the kernel's ``forward`` does, on tensors."""
    forward = type(kernel).forward
    if forward is ScaleKernel.forward:
        outputscale = kernel.outputscale.unsqueeze(-1).unsqueeze(-1)
        return _forward(kernel.base_kernel, x1, x2) * outputscale
    if _is_fast_matern(kernel):
        return _matern(kernel, x1, x2)
    if forward not in (AdditiveKernel.forward, ProductKernel.forward):
        return to_dense(kernel.forward(x1, x2))
    parts = [dense_covariance(part, x1, x2) for part in kernel.kernels]
    return reduce(add if forward is AdditiveKernel.forward else mul, parts)


def _matern(kernel: MaternKernel, x1: Tensor, x2: Tensor) -> Tensor:
    """Return ``(1 + s + s^2 / 3) exp(-s)`` for scaled distances ``s = sqrt(5) r``."""
    center, scale = x1.mean(dim=-2, keepdim=True), math.sqrt(5) / kernel.lengthscale
    a, b = (x1 - center) * scale, (x2 - center) * scale
    # |a - b|^2 of all pairs as one matrix product.
    norms = [points.square().sum(dim=-1, keepdim=True) for points in (a, b)]
    left = torch.cat([-2 * a, norms[0], torch.ones_like(norms[0])], dim=-1)
    right = torch.cat([b, torch.ones_like(norms[1]), norms[1]], dim=-1)
    squared = (left @ right.mT).clamp_min_(0.0)
    s = squared.sqrt()
    covariance = s.neg().exp_()
    return covariance.mul_(squared.div_(3).add_(s).add_(1))
