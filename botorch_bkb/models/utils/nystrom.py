r"""Nystrom features ``z(x) = L^{-1} k_S(x)`` and the factors they stand on.

Every posterior of this package is built from features of this form: the sparse (DTC)
model factors the Gram matrix ``K_S`` of its inducing points, the exact model factors
``K + W^{-1}``. Both can be extended by new points without touching what is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import NumericsWarning
from gpytorch.kernels import Kernel
from torch import nn, Tensor

from botorch_bkb.models.utils.covariance import dense_covariance


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


def check_residual(residual: Tensor, prior: Tensor) -> None:
    """Raise unless variances left after conditioning are positive up to rounding."""
    if residual.numel():
        worst = (residual / prior.clamp_min(torch.finfo(prior.dtype).tiny)).min()
        check_relative_residual(worst.item(), prior.dtype)


def check_relative_residual(worst: float, dtype: torch.dtype) -> None:
    """Raise unless the least residual by prior variance is positive, up to rounding."""
    if not worst > -PSD_TOLERANCE[dtype]:
        raise InputDataError(
            "Expected `covar_module` to be positive semi-definite on these inputs, but "
            f"conditioning left a variance of {worst:.1e} times the prior variance. "
            "Check the kernel, or repair its Gram matrix; in float32, try float64."
        )


class RoundingReport:
    """Warns if rounding changes variances, and again if it is ten times that.

    Args:
        dtype: In which the variances are computed.
    """

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


def span_tolerance(dtype: torch.dtype) -> float:
    """Return the relative Schur residual under which a point is in the span."""
    return SPAN_TOLERANCE[dtype]


def append_tolerance(dtype: torch.dtype) -> float:
    """Return the relative Schur residual under which a point is not appended."""
    return APPEND_TOLERANCE[dtype]


def is_well_conditioned(inverse: Tensor) -> bool:
    """Return whether rows of ``L^{-1}`` leave features that rounding does not spoil.

    Of points of unit prior variance. ``|z|^2`` of an arm far from the points is wrong
    by the machine precision times the square of the inverse.
    """
    return bool(append_tolerance(inverse.dtype) * inverse.square().sum() < 1)


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
    rtol = span_tolerance(K.dtype)
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
    check_residual(residual, torch.ones_like(residual))
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


def masked_cholesky(
    schur: Tensor,  # ... x q x q
    prior: Tensor,  # ... x q, prior variances
) -> tuple[Tensor, Tensor]:
    r"""Factor a batch of positive semi-definite matrices, skipping null directions.

    Column ``j`` of the factor is zero if point ``j`` adds nothing to the span of those
    before it, so that ``C C^T = schur`` for a singular matrix too. Differentiable.

    Returns:
        The lower triangular factor ``C`` (``... x q x q``) and a ``... x q`` boolean
        mask of the columns that were kept.
    """
    num_points = schur.shape[-1]
    if num_points == 0:
        return schur, torch.empty_like(prior, dtype=torch.bool)
    threshold = span_tolerance(schur.dtype) * prior
    columns: list[Tensor] = []
    kept: list[Tensor] = []
    rows = torch.arange(num_points, device=schur.device)
    for j in range(num_points):
        column = schur[..., j]
        for previous in columns:
            column = column - previous * previous[..., j : j + 1]
        pivot = column[..., j]
        keep = pivot > threshold[..., j]
        root = torch.where(keep, pivot, torch.ones_like(pivot)).sqrt().unsqueeze(-1)
        below = keep.unsqueeze(-1) & (rows >= j)
        columns.append(torch.where(below, column / root, torch.zeros_like(column)))
        kept.append(keep)
    return torch.stack(columns, dim=-1), torch.stack(kept, dim=-1)


# From a `... x q x d` tensor of points to their `... x m x q` features.
FeatureMap = Callable[[Tensor], Tensor]


@dataclass(eq=False, repr=False)
class KernelFeatures:
    r"""The map ``x -> L^{-1} k_S(x)``.

    Attributes:
        covar_module: The kernel ``k``.
        points: The ``m x d`` points ``S``.
        L: An ``m x m`` lower triangular factor.
    """

    covar_module: Kernel
    points: Tensor
    L: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """Return the ``... x m x q`` features of a ``... x q x d`` tensor of points."""
        # Flattened, a batch of arms is one matrix product; the points are not copied.
        flat = dense_covariance(
            self.covar_module, self.points, X.reshape(-1, X.shape[-1])
        )
        flat = torch.linalg.solve_triangular(self.L, flat, upper=False)
        return flat.reshape(flat.shape[0], *X.shape[:-1]).movedim(0, -2)


def solve_lower(L: Tensor, rhs: Tensor) -> Tensor:
    """Solve a lower triangular system; batched factors broadcast over the points."""
    if L.dim() > 2 or rhs.dim() == 2:
        return torch.linalg.solve_triangular(L, rhs, upper=False)
    # Broadcasting would copy L for every batch element: solve for all at once.
    columns = rhs.movedim(-2, 0)  # m x ... x q
    flat = torch.linalg.solve_triangular(L, columns.flatten(start_dim=1), upper=False)
    return flat.reshape(columns.shape).movedim(0, -2)


class TriangularSolver:
    r"""Solves ``L X = B`` in place, for one ``L`` and many ``B``.

    On a CPU that is LAPACK's substitution. An accelerator substitutes at a fraction of
    the speed of its matrix products. There the diagonal blocks ``D`` of ``L`` are
    inverted once, and a solve consists of products: block by block, ::

        X_i = D_i^{-1} (B_i - sum_{j < i} L_ij X_j)

    If a block is badly conditioned, a step of iterative refinement follows each block:
    ``X_i += D_i^{-1} (R_i - D_i X_i)``, with ``R_i`` the bracket above.

    Args:
        L: An ``M x M`` lower triangular matrix.
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


@dataclass(eq=False, repr=False)
class AppendedFeatures:
    r"""A feature map extended by ``q`` points: ``L_new = [[L, 0], [B, C]]``.

    Attributes:
        base: The map to extend.
        covar_module: The kernel ``k``.
        points: A ``... x q x d`` tensor, the new points.
        B: The ``... x q x m`` features of the new points under ``base``.
        C: A ``... x q x q`` lower triangular factor of their Schur complement.
        keep: A ``... x q`` mask; a masked point is in the span of those before it.
    """

    base: FeatureMap
    covar_module: Kernel
    points: Tensor
    B: Tensor
    C: Tensor
    keep: Tensor

    def __post_init__(self) -> None:
        """Make ``C`` invertible: ones on the diagonal of masked points."""
        self.C = self.C + torch.diag_embed((~self.keep).to(self.C))
        self.keep = self.keep.unsqueeze(-1)

    def appended(self, X: Tensor, z: Tensor) -> Tensor:
        """Return the new coordinates only, ``... x q' x q``, given ``z = base(X)``."""
        residual = dense_covariance(self.covar_module, self.points, X) - self.B @ z
        new = solve_lower(self.C, residual)
        return torch.where(self.keep, new, torch.zeros_like(new))

    def __call__(self, X: Tensor) -> Tensor:
        """Return the ``... x (m + q') x q`` features of ``... x q x d`` points."""
        z = self.base(X)
        new = self.appended(X, z)
        return torch.cat([z.expand(*new.shape[:-2], *z.shape[-2:]), new], dim=-2)
