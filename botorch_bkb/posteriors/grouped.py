r"""Results that share offsets, or are of earlier campaigns: what they tell of arms.

Result ``r`` of an arm in group ``g`` of campaign ``s`` is ``y_r = f(x_r) + b_g +
d_s(x_r) + noise``, with offsets ``b ~ N(0, R R^T)`` and, if the campaign is an earlier
one, a discrepancy ``d_s ~ GP(0, rho_s^2 k)``. With the features ``Z`` of its results,
their precisions ``W``, and a matrix ``E`` with the row of ``R`` of each result's
offset, or the sum of several, the results of one campaign have the scatter and the
target ::

    S = Z W Z^T - C N^{-1} C^T,     t = Z W y - C N^{-1} E^T W y,
    C = Z W E,                      N = I + E^T W E,

after the offsets are integrated out, and ``(I + rho^2 S)^{-1} S`` and ``(I + rho^2
S)^{-1} t`` after the discrepancy as well. Campaigns add up. The posterior ``V = I + S``
over all arms, of which none has an offset, keeps its form.

The offsets of a campaign's groups average to zero over its results, so predictions are
for the average of its groups. As rewards are centered, the level of all arms is known.

A *control* is a sample that is not an arm. Its value is one more offset, of a wide
prior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


class _Block(NamedTuple):
    """The results of one campaign, offsets integrated out.

    Attributes:
        scatter: S.
        target: t.
        C: ``C L^{-T}`` with ``L L^T = N``.
        u: ``L^{-1} E^T W y``.
        root: ``L^{-1} R^T``, so that offsets are ``root^T (u - C^T weights)``.
        rho_squared: The variance of the discrepancy, in prior variances.
    """

    scatter: Tensor
    target: Tensor
    C: Tensor
    u: Tensor
    root: Tensor
    rho_squared: float

    def solve(self, right: Tensor) -> Tensor:
        """Return ``(I + rho^2 S)^{-1}`` times a matrix."""
        eye = torch.eye(len(self.scatter)).to(right)
        return torch.linalg.solve(eye + self.rho_squared * self.scatter, right)


@dataclass(frozen=True, eq=False)
class GroupedResults:
    """``n`` results of arms and of controls, in groups and campaigns.

    Attributes:
        places: The place of each result's arm among the pulled arms, -1 for a control.
        precisions: Their precisions.
        sums: Their (centered) rewards times these.
        campaigns: The campaign of each, 0 for the present one.
        effects: ``n x G``: which offsets each result has, 0 or 1.
        offset_root: ``G x G``, the root ``R`` of the prior covariance of offsets.
        offset_variance: The prior variance of the offset of a new group.
        rho_squared: The variance of each campaign's discrepancy, 0 for the present one.
    """

    places: Tensor
    precisions: Tensor
    sums: Tensor
    campaigns: Tensor
    effects: Tensor
    offset_root: Tensor
    offset_variance: float
    rho_squared: list[float]

    def to(self, like: Tensor) -> GroupedResults:
        """Return the results in another dtype, or on another device."""
        names = "precisions", "sums", "effects", "offset_root"
        moved = {name: getattr(self, name).to(like) for name in names}
        return replace(self, **moved)

    def scatter_and_target(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``S`` and ``t``, given the ``M x P`` features of the pulled arms."""
        scatters, targets = [], []
        for block in self._blocks(Z):
            S = block.solve(block.scatter) if block.rho_squared else block.scatter
            t = block.solve(block.target) if block.rho_squared else block.target
            scatters.append((S + S.mT) / 2)
            targets.append(t)
        return torch.stack(scatters).sum(dim=0), torch.stack(targets).sum(dim=0)

    def offsets(self, Z: Tensor, L_v: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of the ``G`` offsets, and covariances within campaigns.

        Args:
            Z: The ``M x P`` features of the pulled arms.
            L_v: The factor of ``V``.
            weights: The weights of the posterior mean.
        """
        covariance = torch.zeros_like(self.offset_root)
        mean = covariance.diagonal().clone()
        for campaign, block in enumerate(self._blocks(Z)):
            # The discrepancy adds to the weights: both as this campaign has them.
            M, rho = block.solve(torch.eye(len(L_v)).to(Z)), block.rho_squared
            own = weights + rho * (M @ (block.target - block.scatter @ weights))
            half = torch.linalg.solve_triangular(L_v, M.mT @ block.C, upper=False)
            spread = half.mT @ half + rho * block.C.mT @ M @ block.C
            spread = block.root.mT @ (torch.eye(len(spread)).to(Z) + spread)
            is_own = self.effects[self.campaigns == campaign].any(dim=0)
            mean += is_own * (block.root.mT @ (block.u - block.C.mT @ own))
            covariance += is_own.outer(is_own) * (spread @ block.root)
        return mean, covariance

    def left_out(
        self, arms: Tensor, Z: Tensor, L_v: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return how means and covariances change without some arms' present results.

        Args:
            arms: The places of these arms among the pulled ones.
            Z: The ``M x P`` features of the pulled arms.
            L_v: The factor of ``V``.
            weights: The weights of the posterior mean.
            own: The ``M x k`` features of the arms in question.
        """
        block = next(self._blocks(Z))
        rows = (self.campaigns == 0) & torch.isin(self.places, arms)
        W, E = self.precisions[rows], self.effects[rows] @ block.root.mT
        # With offsets, a result is of its arm less what its group's others tell.
        each = Z[:, self.places[rows]] - block.C @ E.mT
        halves = torch.linalg.solve_triangular(
            L_v, torch.cat([each, own], dim=-1), upper=False
        )
        half, ours = halves.tensor_split([len(W)], dim=-1)
        gap = self.sums[rows] / W - each.mT @ weights - E @ block.u
        known = torch.diag(1 / W) - half.mT @ half - E @ E.mT
        cross = half.mT @ ours
        solved = torch.linalg.solve(known, torch.cat([gap[:, None], cross], dim=-1))
        return -cross.mT @ solved[:, 0], cross.mT @ solved[:, 1:]

    def worth(self, Z: Tensor, noise_variance: float) -> list[float]:
        """Return how many present results would tell as much as each campaign's.

        The number of its results, times the ratio of what they tell of the arms, in
        nats, and of what they would tell if they were of the present campaign.
        """

        def nats(scatter: Tensor) -> float:
            return torch.logdet(torch.eye(len(Z)).to(Z) + scatter).item()

        found = []
        for campaign, block in enumerate(self._blocks(Z)):
            places = self.places[(self.campaigns == campaign) & (self.places >= 0)]
            full = Z[:, places] @ Z[:, places].mT / noise_variance
            share = nats(block.solve(block.scatter)) / max(nats(full), 1e-12)
            found.append(len(places) * share)
        return found

    def _blocks(self, Z: Tensor) -> Iterator[_Block]:
        """Yield the blocks of the campaigns, the present one first."""
        for campaign, rho_squared in enumerate(self.rho_squared):
            rows = self.campaigns == campaign
            places, W, sums = self.places[rows], self.precisions[rows], self.sums[rows]
            Z_r = torch.where(places >= 0, Z[:, places], 0.0)
            E = self.effects[rows] @ self.offset_root
            N = torch.eye(E.shape[-1]).to(Z) + E.mT @ (W.unsqueeze(-1) * E)
            L = torch.linalg.cholesky(N)
            C = (Z_r * W) @ E
            C = torch.linalg.solve_triangular(L, C.mT, upper=False).mT
            u = torch.linalg.solve_triangular(
                L, (E.mT @ sums).unsqueeze(-1), upper=False
            ).squeeze(-1)
            yield _Block(
                (Z_r * W) @ Z_r.mT - C @ C.mT,
                Z_r @ sums - C @ u,
                C,
                u,
                torch.linalg.solve_triangular(L, self.offset_root.mT, upper=False),
                rho_squared,
            )
