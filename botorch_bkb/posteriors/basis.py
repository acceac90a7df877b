r"""The algebra of the sparse posterior: small matrices, whatever the number of arms.

The sparse (DTC) posterior of section 3.1 of [calandriello2019bkb]_, in the units of the
GP. With inducing arms ``S``, ``K_S = L L^T``, features ``z(x) = L^{-1} k_S(x)`` and the
summed precisions ``W`` (number of pulls over lambda) of the pulled arms, ::

    V = I + Z^T W Z                            (the papers' V, divided by lambda)
    mean(x) = z(x)^T V^{-1} Z^T W ybar
    residual(x) = k(x, x) - |z(x)|^2            what S cannot explain
    projected(x) = z(x)^T V^{-1} z(x)           what noise leaves uncertain of the rest
    variance(x) = residual(x) + projected(x)

**Increments.** The basis stays while inducing arms change. Let ``L L^T`` be the Gram
matrix of ``M`` basis arms and ``z_B(x) = L^{-1} k_B(x)`` the features of an arm. The
inducing arms are some of the basis arms. Their features span a subspace of the ``M``
coordinates, with orthogonal projection ``Q``. The posterior needs only the projected
features ``Q z_B(x)``: their inner products are those of ``z(x)``. So ::

    V = I + Q (sum_i W_i z_B(x_i) z_B(x_i)^T) Q

is block diagonal, the identity outside the subspace. With ``U`` an orthonormal basis of
the directions that leave the subspace, ::

    |Q z|^2          falls by  |U^T z|^2,
    z^T Q V^{-1} Q z falls by  |C^{-1} U^T V^{-1} z|^2,    C C^T = U^T V^{-1} U,

and rises likewise by directions that enter it; new pulls lower the second form by
Woodbury's identity. So a change of ``d`` dropped, ``e`` added and ``b`` pulled arms is
``2 d + 2 e + b`` inner products with every arm's features, in any order of the arms;
the full rebuild is ``2 m`` of them. The directions are cheap: ``L^{-1} e_j`` is
orthogonal to the features of all basis arms but ``j``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from botorch_bkb.models.utils.nystrom import is_well_conditioned


class Basis:
    r"""The small matrices of the posterior, in the coordinates of the basis.

    Args:
        indices: The ``M`` basis arms.
        L: The ``M x M`` lower Cholesky factor of their Gram matrix.
        inside: An ``M``-dim mask of those that are inducing, ``S``.
        complement: An ``M x c`` orthonormal basis of the coordinates' directions
            orthogonal to the features of ``S``.
        scatter: The ``M x M`` sum of ``W_i z_B(x_i) z_B(x_i)^T`` over pulled arms.
        target: The ``M``-dim sum of ``z_B(x_i)`` times the arm's rewards over lambda.

    Attributes:
        L_v: The ``M x M`` lower Cholesky factor of ``V``.
        weights: The ``M`` weights of the mean, ``V^{-1} Z^T W ybar``.
    """

    def __init__(
        self,
        indices: Tensor,
        L: Tensor,
        inside: Tensor,
        complement: Tensor,
        scatter: Tensor,
        target: Tensor,
    ) -> None:
        self.indices = indices
        self.L = L
        self.inside = inside
        self.complement = complement
        self.scatter = scatter
        self.target = target
        V = self.project(self.project(scatter).mT).clone()
        V.diagonal().add_(1.0)
        self.L_v = torch.linalg.cholesky(V)
        self.weights = self.solve(self.project(target.unsqueeze(-1))).squeeze(-1)

    def project(self, coordinates: Tensor) -> Tensor:
        """Return ``Q X`` for the columns of an ``M x k`` matrix."""
        if self.complement.shape[-1] == 0:
            return coordinates
        return coordinates - self.complement @ (self.complement.mT @ coordinates)

    def solve(self, coordinates: Tensor) -> Tensor:
        """Return ``V^{-1} X`` for the columns of an ``M x k`` matrix."""
        return torch.cholesky_solve(coordinates, self.L_v)

    def contribution(self, directions: Tensor) -> Tensor:
        r"""Return ``V^{-1} U C^{-T}``, ``C C^T = U^T V^{-1} U``, of directions ``U``.

        The inner products of its ``k`` columns with ``z`` square to what the
        directions, orthonormal and inside the subspace, contribute to ``z^T Q V^{-1} Q
        z``.
        """
        if directions.shape[-1] == 0:
            return directions
        solved = self.solve(directions)
        return _right_solve(directions.mT @ solved, solved)


class Joined(NamedTuple):
    """Arms that join the basis, at its end.

    Attributes:
        arms: The ``a`` arms.
        cross: Their ``M_0 x a`` features in the basis before.
        gram: Their ``a x a`` Gram matrix.
        scale: The prior standard deviations of the ``M_0`` basis arms and of these.
        pulled: The ``M_0 x P`` features of all pulled arms in the basis before.
        rows: The ``a x P`` prior covariances with the pulled arms.
        data: The ``2 x P`` summed precisions, and reward sums over lambda.
    """

    arms: Tensor
    cross: Tensor
    gram: Tensor
    scale: Tensor
    pulled: Tensor
    rows: Tensor
    data: Tensor


class Move(NamedTuple):
    r"""What a change adds to the posterior of every arm.

    Attributes:
        joined: The ``a`` arms that joined the basis, at its end.
        L: Their rows of the factor, ``a x M``.
        old: ``M_0 x (r + a)``: the first ``M_0`` rows of ``vectors``, and the features
            of the arms that joined, in the coordinates before.
        vectors: ``M x r``; the last one is the mean's weights. Their inner
            products with the features of an arm, squared, times the signs are added.
        signs: ``2 x r`` numbers in ``{-1, 0, 1}``, for ``z^T Q V^{-1} Q z`` and for
            the residual ``k(x, x) - |Q z|^2``.
        turns: Whether the span of the inducing arms, and so a residual, changes.
    """

    joined: Tensor
    L: Tensor
    old: Tensor
    vectors: Tensor
    signs: Tensor
    turns: bool


def sums_of(left: Tensor, right: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``left W right^T`` and ``right W ybar`` for columns of features."""
    return (left * data[0]) @ right.mT, right @ data[1]


def change_basis(
    before: Basis, inside: Tensor, pulled: Tensor, more: Tensor, joined: Joined | None
) -> tuple[Basis, Move] | None:
    r"""Return the posterior with other inducing arms and more pulls, and the change.

    Args:
        before: The posterior before.
        inside: A mask of the ``M_0`` basis arms that are inducing afterwards, as those
            that join are.
        pulled: The ``M_0 x b`` features, in the basis before, of the arms with more
            pulls.
        more: The ``2 x b`` increases of their precisions and reward sums.
        joined: The arms that join the basis.

    Returns:
        The change, or None if rounding would spoil it; then the rebuild pivots.
    """
    scatter, target = sums_of(pulled, pulled, more)
    scatter += before.scatter
    target += before.target
    L, indices, was_inside = before.L, before.indices, before.inside
    M_0, cross = len(L), L[:, :0]
    if joined is not None:
        found = _bordered(L, scatter, target, joined)
        if found is None:
            return None
        (L, scatter, target), cross = found, joined.cross
        indices = torch.cat([indices, joined.arms])
        is_new = torch.ones_like(joined.arms, dtype=torch.bool)
        was_inside = torch.cat([was_inside, ~is_new])
        inside = torch.cat([inside, is_new])
    complement, dropped, added = before.complement, L[:, :0], L[:, :0]
    turns = joined is not None or not torch.equal(inside, was_inside)
    if turns:
        complement, dropped, added = _directions(
            L, ~was_inside & ~inside, was_inside & ~inside, inside & ~was_inside
        )
    try:
        after = Basis(indices, L, inside, complement, scatter, target)
        lost = before.contribution(dropped[:M_0])
        # New pulls act on the directions that stay: neither dropped nor added.
        gain = before.solve(before.project(pulled))
        if turns:
            gain -= lost @ (lost.mT @ pulled)
        woodbury = _right_solve(torch.diag(1 / more[0]) + pulled.mT @ gain, gain)
        gained = after.contribution(added)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    old = torch.cat([lost, woodbury], dim=-1)
    if len(L) > M_0:
        old = torch.cat([old, old.new_zeros(len(L) - M_0, old.shape[-1])])
    # Which way the squares of each block's vectors move the two variances.
    blocks = [  # vectors, sign for the projected variance, sign for the residual
        (old, -1, 0),
        (gained, 1, 0),
        (dropped, 0, 1),
        (added, 0, -1),
        (after.weights.unsqueeze(-1), 0, 0),
    ]
    vectors = torch.cat([block for block, _, _ in blocks], dim=-1)
    signs = torch.cat(
        [L.new_tensor([own]).mT.expand(2, block.shape[-1]) for block, *own in blocks],
        dim=-1,
    )
    both = torch.cat([vectors[:M_0], cross], dim=-1)
    return after, Move(indices[M_0:], L[M_0:], both, vectors, signs, turns)


def _bordered(
    L: Tensor, scatter: Tensor, target: Tensor, joined: Joined
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the factor and the sums with arms that join; None if too near the span."""
    cross, data = joined.cross, joined.data
    corner, info = torch.linalg.cholesky_ex(joined.gram - cross.mT @ cross)
    if info != 0:
        return None
    # The new rows of the factor's inverse, C^{-1} (-B L^{-1}, I), in unit variance.
    coefficients = torch.linalg.solve_triangular(L.mT, cross, upper=True)
    inverse = torch.cat([-coefficients.mT, torch.eye(len(corner)).to(corner)], dim=-1)
    inverse = torch.linalg.solve_triangular(corner, inverse, upper=False)
    if not is_well_conditioned(inverse * joined.scale):
        return None
    new = joined.rows - cross.mT @ joined.pulled
    new = torch.linalg.solve_triangular(corner, new, upper=False)
    side, _ = sums_of(joined.pulled, new, data)
    below, added = sums_of(new, new, data)
    L = torch.cat([L, L.new_zeros(cross.shape)], dim=-1)
    L = torch.cat([L, torch.cat([cross.mT, corner], dim=-1)])
    scatter = torch.cat([scatter, side], dim=-1)
    scatter = torch.cat([scatter, torch.cat([side.mT, below], dim=-1)])
    return L, scatter, torch.cat([target, added])


def _directions(
    L: Tensor, idle: Tensor, dropped: Tensor, added: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the complement of the span afterwards, what left it and what entered it.

    Given the basis arms that are not inducing before and afterwards, those that are
    inducing no more, and those that become inducing.
    """
    groups = [mask.nonzero().squeeze(-1) for mask in (idle, dropped, added)]
    eye = torch.eye(L.shape[0]).to(L)
    normals = [
        torch.linalg.solve_triangular(L, eye[:, group], upper=False) for group in groups
    ]
    left = torch.linalg.qr(torch.cat(normals, dim=-1)).Q
    num_outside = groups[0].shape[0] + groups[1].shape[0]
    complement, entered = left[:, :num_outside], left[:, num_outside:]
    others = torch.cat([normals[0], normals[2], normals[1]], dim=-1)
    gone = torch.linalg.qr(others).Q[:, others.shape[-1] - groups[1].shape[0] :]
    return complement, gone, entered


def _right_solve(gram: Tensor, matrix: Tensor) -> Tensor:
    """Return ``matrix C^{-T}`` with ``C C^T = gram``."""
    C = torch.linalg.cholesky(gram)
    return torch.linalg.solve_triangular(C.mT, matrix, upper=True, left=False)
