"""Prior covariances and their factors: evaluation, checks, tolerances, solves.

All kernels are evaluated by :func:`dense_covariance`. GPyTorch adds the low-rank matrix
of a linear kernel to a dense one by updating a Cholesky factor, which is cubic in the
number of points and, with a jitter, off by 1e-8. Here sums and products are of tensors,
and nothing is factorized. RBF and Matern-5/2 kernels without gradients are computed in
place, in half of GPyTorch's time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import reduce

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import NumericsWarning
from gpytorch import settings
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.lazy import LazyEvaluatedKernelTensor
from torch import nn, Tensor
from typing_extensions import override


# Points that add less than this share of their prior variance to the span of the
# inducing points are dropped: their coordinate is rounding noise. The result equals the
# pseudo-inverse of the papers, without a jitter.
SPAN_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}
# Factors that exist are not extended by points that add less than this share: without
# pivoting, rounding is larger.
APPEND_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}
# A residual this far below zero, as a share of the prior variance, is no rounding.
PSD_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2}

# The size of the diagonal blocks of a triangular solve on an accelerator.
BLOCK_SIZE = 128
# So many iterations find the leading singular vectors well enough for a bound.
NUM_SUBSPACE_ITERATIONS = 2
# Up to this condition of a diagonal block, its computed inverse is accurate enough.
MAX_CONDITION = 1e3

# A variance that rounding changes by more than this error of itself deserves a warning.
ROUNDING_THRESHOLD = 0.01


def check_prior_variance(prior_variance: Tensor, first: int = 0) -> None:
    """Raise if a prior variance, of arms from ``first`` on, is no finite variance."""
    bad = (~(prior_variance >= 0) | prior_variance.isinf()).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise InputDataError(
            "Expected `covar_module` to give every arm a finite prior variance of "
            f"at least zero, but got {prior_variance[row].item()} for arm "
            f"{first + row}."
        )


def check_largest_variance(prior_variance: float) -> None:
    """Raise unless the largest prior variance of arms is positive."""
    if not prior_variance > 0:
        raise InputDataError(
            "Expected `covar_module` to give at least one arm a positive prior "
            "variance, but all are zero: nothing could be learned."
        )


def least_residual(residual: Tensor, prior: Tensor) -> float:
    """Return the least variance left after conditioning, by prior variance."""
    if not residual.numel():
        return 1.0
    return (residual / prior.clamp_min(torch.finfo(prior.dtype).tiny)).min().item()


def check_residual(least: float, dtype: torch.dtype) -> None:
    """Raise unless the :func:`least_residual` is positive up to rounding."""
    if not least > -PSD_TOLERANCE[dtype]:
        raise InputDataError(
            "Expected `covar_module` to be positive semi-definite on these inputs, but "
            f"conditioning left a variance of {least:.1e} times the prior variance. "
            "Check the kernel, or repair its Gram matrix; in float32, try float64."
        )


class RoundingReport:
    """Warns if rounding changes variances, and again if it is ten times that."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._reported = ROUNDING_THRESHOLD / 10

    def note(self, error: float, arm: int) -> None:
        """Warn if the variance of an arm is off by this error of itself or more."""
        if error <= 10 * self._reported:
            return
        self._reported = error
        size = f"{error:.1%}" if error < 1 else f"{min(error, 1e6):.0f} times"
        warnings.warn(
            f"Rounding in {self.dtype} changes the variance of arm {arm} by about "
            f"{size} of itself, and its mean likewise: the rewards tell that arm from "
            "those nearby better than numbers of this precision can. Use float64 or a "
            "larger `noise_variance`, or merge arms that are all but equal.",
            NumericsWarning,
            stacklevel=2,
        )


def is_well_conditioned(inverse: Tensor) -> bool:
    """Return whether rows of ``L^{-1}`` leave features that rounding does not spoil.

    Of points of unit prior variance. ``|z|^2`` of an arm far from the points is wrong
    by the machine precision times the square of the inverse.
    """
    return bool(APPEND_TOLERANCE[inverse.dtype] * inverse.square().sum() < 1)


@torch.no_grad()
def independent_points(K_ss: Tensor) -> Tensor:
    """Select points whose Gram matrix is safely positive definite.

    The points keep their order if an ordinary Cholesky factorization is well
    conditioned. Otherwise a pivoted one orders them, and stops when no point adds to
    the span, by a share of its own prior variance.

    Args:
        K_ss: An ``m x m`` Gram matrix, possibly singular.

    Returns:
        A long tensor of at most ``m`` indices; the Gram matrix restricted to them has
        an ordinary Cholesky factor.

    Raises:
        InputDataError: If the matrix is clearly not positive semi-definite.
    """
    scale = K_ss.diagonal().clamp_min(0.0).sqrt()
    # Cauchy-Schwarz, k(x, x')^2 <= k(x, x) k(x', x'): also where variances are zero.
    bound = scale.unsqueeze(-1) * scale
    bound = (1 + PSD_TOLERANCE[K_ss.dtype]) * bound + 1e-30
    if not (K_ss.abs() <= bound).all():
        raise InputDataError(
            "Expected `covar_module` to be positive semi-definite on these inputs, but "
            "a covariance is NaN, or larger than the variances allow. Check the "
            "kernel, or repair its Gram matrix."
        )
    alive = (scale > 0).nonzero().squeeze(-1)  # no variance, nothing to add
    if alive.numel() == 0:
        return alive
    scale = scale[alive]
    K = K_ss[alive][:, alive] / (scale.unsqueeze(-1) * scale)
    rtol = SPAN_TOLERANCE[K.dtype]
    L, info = torch.linalg.cholesky_ex(K)
    if info == 0:
        eye = torch.eye(L.shape[0]).to(L)
        if is_well_conditioned(torch.linalg.solve_triangular(L, eye, upper=False)):
            return alive
    # Pivot by pivot: on an accelerator, every one would wait for the last.
    K = K.cpu()
    L, residual = torch.zeros_like(K), torch.ones(len(K), dtype=K.dtype)
    pivots: list[int] = []
    for j in range(K.shape[-1]):
        pivot = int(residual.argmax())
        if residual[pivot] <= rtol:
            break
        column = K[:, pivot] - L[:, :j] @ L[pivot, :j]
        L[:, j] = column / residual[pivot].sqrt()
        residual -= L[:, j].square()
        pivots.append(pivot)
        residual[pivots] = 0.0
    check_residual(least_residual(residual, torch.ones_like(residual)), K.dtype)
    return alive[pivots]


@torch.no_grad()
def psd_root(K: Tensor) -> Tensor:
    """Return ``R`` with ``R R^T = K``, for a matrix that may be singular to rounding.

    The Cholesky factor if there is one, else the symmetric square root; no jitter.
    """
    L, info = torch.linalg.cholesky_ex(K)
    if info == 0:
        return L
    values, vectors = torch.linalg.eigh(K)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.mT


class TriangularSolver:
    r"""Solves ``L X = B`` in place, for one ``L`` and many ``B``.

    On a CPU that is LAPACK's substitution. An accelerator substitutes at a fraction of
    the speed of its matrix products. There the diagonal blocks ``D`` of ``L`` are
    inverted once, and a solve consists of products: block by block, ::

        X_i = D_i^{-1} (B_i - sum_{j < i} L_ij X_j)

    If a block is badly conditioned, a step of iterative refinement follows each block:
    ``X_i += D_i^{-1} (R_i - D_i X_i)``, with ``R_i`` the bracket above.
    """

    def __init__(self, L: Tensor) -> None:
        self.L = L
        self._inverses: Tensor | None = None
        if L.device.type == "cpu" or not len(L):
            return
        # The last block is filled up with the identity.
        missing = -len(L) % BLOCK_SIZE
        padded = nn.functional.pad(L, (0, missing, 0, missing))
        padded.diagonal()[len(L) :] = 1.0
        starts = range(0, len(padded), BLOCK_SIZE)
        blocks = torch.stack(
            [padded[i : i + BLOCK_SIZE, i : i + BLOCK_SIZE] for i in starts]
        )
        eye = torch.eye(BLOCK_SIZE, dtype=L.dtype, device=L.device)
        self._inverses = torch.linalg.solve_triangular(
            blocks, eye.expand_as(blocks), upper=False
        )
        norms = [torch.linalg.matrix_norm(part) for part in (blocks, self._inverses)]
        self._refines = bool((norms[0] * norms[1] > MAX_CONDITION).any())

    def solve_(self, B: Tensor) -> Tensor:
        """Overwrite the ``M x k`` right-hand sides with the solutions; return them."""
        if self._inverses is None:
            return torch.linalg.solve_triangular(self.L, B, upper=False, out=B)
        for number, start in enumerate(range(0, len(self.L), BLOCK_SIZE)):
            rows = slice(start, start + BLOCK_SIZE)
            rest = B[rows]
            if start:
                rest.addmm_(self.L[rows, :start], B[:start], alpha=-1)
            inverse = self._inverses[number, : len(rest), : len(rest)]
            X = inverse @ rest
            if self._refines:
                rest.addmm_(self.L[rows, rows], X, alpha=-1)
                X.addmm_(inverse, rest)
            rest.copy_(X)
        return B


def dense_covariance(
    covar_module: Kernel, x1: Tensor, x2: Tensor | None = None
) -> Tensor:
    """Return the prior covariances of two lists of points, as a tensor.

    Sums, products and scales of kernels are evaluated part by part, other kernels as
    they are. For ``... x n x d`` and ``... x n' x d`` points, that is ``... x n x n'``;
    ``x2`` is ``x1`` if it is omitted.
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

    @property
    @override
    def batch_shape(self) -> torch.Size:
        return self.covar_module.batch_shape

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object
    ) -> Tensor:
        if diag:
            # OrthogonalAdditiveKernel takes one tensor only.
            return self.covar_module(x1, x1 if torch.equal(x1, x2) else x2, diag=True)
        return dense_covariance(self.covar_module, x1, x2)


def _is_evaluated_here(kernel: Kernel) -> bool:
    """Whether it is a sum, a product, an RBF or a Matern-5/2 kernel, maybe scaled."""
    if type(kernel).forward is ScaleKernel.forward:
        return _is_evaluated_here(kernel.base_kernel)
    if type(kernel).forward in (AdditiveKernel.forward, ProductKernel.forward):
        return len(kernel.kernels) > 1
    return _is_fast(kernel)


def _is_fast(kernel: Kernel) -> bool:
    is_known = type(kernel) is RBFKernel
    is_known |= type(kernel) is MaternKernel and kernel.nu == 2.5
    return is_known and not (kernel.batch_shape or torch.is_grad_enabled())


def _forward(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    """Do what the ``forward`` of a kernel that is evaluated here does, on tensors."""
    if _is_fast(kernel):
        return _of_distances(kernel, x1, x2)
    if type(kernel).forward is ScaleKernel.forward:
        outputscale = kernel.outputscale.unsqueeze(-1).unsqueeze(-1)
        return _forward(kernel.base_kernel, x1, x2) * outputscale
    is_sum = type(kernel).forward is AdditiveKernel.forward
    parts = (dense_covariance(part, x1, x2) for part in kernel.kernels)
    return reduce(torch.add if is_sum else torch.mul, parts)


def _of_distances(kernel: RBFKernel | MaternKernel, x1: Tensor, x2: Tensor) -> Tensor:
    """Return ``exp(-s^2)`` for ``s = r / sqrt(2)``, an RBF kernel of distances ``r``.

    Or ``(1 + s + s^2 / 3) exp(-s)`` for ``s = sqrt(5) r``, a Matern-5/2 kernel.
    """
    is_rbf = isinstance(kernel, RBFKernel)
    scale = (math.sqrt(0.5 if is_rbf else 5) / kernel.lengthscale).to(x1)
    if x1.shape[-2] == 1:  # a row of a large table: in few passes over it
        weights = scale.square().expand(1, x1.shape[-1])
        squared = ((x2 - x1).square_() @ weights.mT).mT
    else:
        center = x1.mean(dim=-2, keepdim=True)
        a, b = (x1 - center) * scale, (x2 - center) * scale
        # |a - b|^2 of all pairs as one matrix product.
        norms = [points.square().sum(dim=-1, keepdim=True) for points in (a, b)]
        left = torch.cat([-2 * a, norms[0], torch.ones_like(norms[0])], dim=-1)
        right = torch.cat([b, torch.ones_like(norms[1]), norms[1]], dim=-1)
        squared = (left @ right.mT).clamp_min_(0.0)
        if x1.shape == x2.shape and torch.equal(x1, x2):
            squared.diagonal(dim1=-2, dim2=-1).zero_()  # without rounding
    if is_rbf:
        return squared.neg_().exp_()
    s = squared.sqrt()
    factor = torch.add(s, squared, alpha=1 / 3, out=squared)
    decay = s.neg_().exp_()
    return torch.addcmul(decay, factor, decay, out=decay)


def explaining_rows(Z: Tensor, B: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Return the ``r x m`` rows ``R`` of a lower bound ``|R z|^2`` of ``z^T B z``.

    For orthonormal ``Q`` and ``T T^T = Q^T B Q``, ``z^T B z`` is at least ``|T^{-1} Q^T
    B z|^2``, and so is every partial sum. Subspace iterations make ``Q`` nearly the
    leading left singular vectors of ``B Z``. So the first rows explain most.

    ``Z`` are the ``m x k`` features of points for which the bound should be close,
    ``B`` multiplies features with a positive semi-definite matrix, and ``size`` is the
    largest number of rows.
    """
    BZ = B(Z)
    size = min(size, len(Z))
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(len(Z), size, generator=generator, dtype=torch.double).to(Z)
    for _ in range(NUM_SUBSPACE_ITERATIONS):
        Q = torch.linalg.qr(BZ @ (BZ.mT @ Q))[0]
    BQ = B(Q)
    T, info = torch.linalg.cholesky_ex(Q.mT @ BQ)
    kept = int(info) - 1 if int(info) else size  # the others explain nothing
    return torch.linalg.solve_triangular(T[:kept, :kept], BQ.mT[:kept], upper=False)
