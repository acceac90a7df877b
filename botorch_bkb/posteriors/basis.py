r"""The algebra of the sparse posterior: small matrices, whatever the number of arms.

The sparse (DTC) posterior of section 3.1 of [calandriello2019bkb]_, in the units of the
GP. With inducing arms ``S``, ``K_S = L L^T``, features ``z(x) = L^{-1} k_S(x)`` and the
summed precisions ``W`` (number of pulls over lambda) of the pulled arms, ::

    V = I + Z^T W Z                            (the papers' V, divided by lambda)
    mean(x) = z(x)^T V^{-1} Z^T W ybar
    residual(x) = k(x, x) - |z(x)|^2            what S cannot explain
    projected(x) = z(x)^T V^{-1} z(x)           what noise leaves uncertain of the rest
    variance(x) = residual(x) + projected(x)

**Inducing arms come and go inside a basis that stays.** Let ``L L^T`` be the Gram
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

import numpy as np
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


class Move(NamedTuple):
    r"""What a change adds to the posterior of every arm.

    Attributes:
        joined: The ``a`` arms that joined the basis, at its end.
        L: Their rows of the factor, ``a x M``.
        corner: The ``a x a`` factor of their Schur complement.
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
    corner: Tensor
    old: Tensor
    vectors: Tensor
    signs: Tensor
    turns: bool


def sums_of(left: Tensor, right: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``left W right^T`` and ``right W ybar`` for columns of features.

    Args:
        left: An ``M x P`` matrix.
        right: An ``a x P`` matrix.
        data: The ``2 x P`` summed precisions, and reward sums over lambda.
    """
    return (left * data[0]) @ right.mT, right @ data[1]


def bordered_sums(
    scatter: Tensor, target: Tensor, old: Tensor, new: Tensor, data: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums over the pulled arms with ``a`` more coordinates.

    Args:
        scatter: The ``M x M`` sums without, as in :class:`Basis`.
        target: The ``M`` sums without.
        old: The ``M x P`` features without.
        new: The ``a x P`` features more.
        data: As in :func:`sums_of`.
    """
    side, _ = sums_of(old, new, data)
    below, more = sums_of(new, new, data)
    above = torch.cat([scatter, side], dim=-1)
    scatter = torch.cat([above, torch.cat([side.mT, below], dim=-1)])
    return scatter, torch.cat([target, more])


def border(basis: Basis, cross: Tensor, gram: Tensor, scale: Tensor) -> Tensor | None:
    """Return the factor of the Schur complement of ``a`` arms that join a basis.

    Args:
        basis: The basis before.
        cross: Their ``M x a`` features.
        gram: Their ``a x a`` Gram matrix.
        scale: The prior standard deviations of the ``M`` basis arms and of these.

    Returns:
        An ``a x a`` matrix; None if they are too close to the span of the others.
    """
    corner, info = torch.linalg.cholesky_ex(gram - cross.mT @ cross)
    if info != 0:
        return None
    # The new rows of the factor's inverse, C^{-1} (-B L^{-1}, I), in unit variance.
    coefficients = torch.linalg.solve_triangular(basis.L.mT, cross, upper=True)
    eye = torch.eye(len(gram)).to(corner)
    inverse = torch.cat([-coefficients.mT, eye], dim=-1)
    inverse = torch.linalg.solve_triangular(corner, inverse, upper=False)
    # Near the span's tolerance the order of arms matters: the rebuild pivots.
    return corner if is_well_conditioned(inverse * scale) else None


def change_basis(
    before: Basis,
    *,
    joined: Tensor,
    cross: Tensor,
    corner: Tensor,
    inside: Tensor,
    scatter: Tensor,
    target: Tensor,
    pulled: Tensor,
    precisions: Tensor,
) -> tuple[Basis, Move]:
    r"""Return the posterior with other inducing arms and more pulls, and the change.

    Args:
        before: The posterior before.
        joined: The ``a`` arms that join the basis, at its end.
        cross: Their ``M_0 x a`` features in the basis before.
        corner: The ``a x a`` lower factor of their Schur complement.
        inside: A mask of the ``M_0`` basis arms that are inducing afterwards, as those
            that join are.
        scatter: As in :class:`Basis`, afterwards.
        target: As in :class:`Basis`, afterwards.
        pulled: The ``M_0 x b`` features, in the basis before, of the arms with more
            pulls.
        precisions: The ``b`` increases of their summed precisions.
    """
    L, indices, was_inside = before.L, before.indices, before.inside
    M_0, M = len(L), len(L) + len(joined)
    complement, dropped, added = before.complement, L[:, :0], L[:, :0]
    if M > M_0:
        L = torch.cat([L, L.new_zeros(M_0, M - M_0)], dim=-1)
        L = torch.cat([L, torch.cat([cross.mT, corner], dim=-1)])
        indices = torch.cat([indices, joined])
        is_new = torch.ones_like(joined, dtype=torch.bool)
        was_inside = torch.cat([was_inside, ~is_new])
        inside = torch.cat([inside, is_new])
    turns = M > M_0 or not torch.equal(inside, was_inside)
    if turns:
        complement, dropped, added = _directions(
            L, ~was_inside & ~inside, was_inside & ~inside, inside & ~was_inside
        )
    after = Basis(indices, L, inside, complement, scatter, target)
    lost = before.contribution(dropped[:M_0])
    # New pulls act on the directions that stay: neither dropped nor added.
    gain = before.solve(before.project(pulled))
    if turns:
        gain -= lost @ (lost.mT @ pulled)
    woodbury = _right_solve(torch.diag(1 / precisions) + pulled.mT @ gain, gain)
    old = torch.cat([lost, woodbury], dim=-1)
    if M > M_0:
        old = torch.cat([old, old.new_zeros(M - M_0, old.shape[-1])])
    weights = after.weights.unsqueeze(-1)
    blocks = [old, after.contribution(added), dropped, added, weights]
    sizes = [block.shape[-1] for block in blocks]
    of_kinds = np.array([[-1, 1, 0, 0, 0], [0, 0, 1, -1, 0]])
    signs = L.new_tensor(of_kinds.repeat(sizes, axis=1))
    vectors = torch.cat(blocks, dim=-1)
    both = torch.cat([vectors[:M_0], cross], dim=-1)
    return after, Move(joined, L[M_0:], corner, both, vectors, signs, turns)


def _directions(
    L: Tensor, idle: Tensor, dropped: Tensor, added: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return orthonormal directions, given which basis arms are not inducing.

    Args:
        L: The factor of the basis.
        idle: Those that are not inducing, before and afterwards.
        dropped: Those that are inducing no more.
        added: Those that become inducing.

    Returns:
        What the features of the inducing arms do not span afterwards, and the
        directions that left and that entered their span.
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
