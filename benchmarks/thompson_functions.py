"""The test functions of the Thompson sampling paper, section 5."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bumps:
    """A sum of Gaussian bumps of one width, on a box.

    Attributes:
        name: What to call it.
        bounds: The ``2 x d`` box. The paper names none; the issue does for f1 and f2.
        centers: The ``k x d`` centers, the highest bump last.
        heights: The ``k`` heights.
        squared_width: The variance of the Gaussian.
    """

    name: str
    bounds: Tensor
    centers: Tensor
    heights: Tensor
    squared_width: float = 1.0

    def __call__(self, points: Tensor) -> Tensor:
        """Return the ``...`` values of ``... x d`` points."""
        return self._bumps(points).sum(dim=-1)

    @property
    def maximizer(self) -> Tensor:
        """The global maximizer, a ``d``-dim tensor.

        Near the center of the highest bump, but not on it: the others pull. A fixed
        point of the mean shift, to which the iteration contracts.
        """
        point = self.centers[-1]
        for _ in range(200):
            weights = self._bumps(point)
            point = (weights.unsqueeze(-1) * self.centers).sum(dim=0) / weights.sum()
        return point

    def relative_error(self, points: Tensor) -> Tensor:
        """Return ``|x - x*| / |x*|`` of ``... x d`` points."""
        best = self.maximizer
        return (points - best).norm(dim=-1) / best.norm()

    def _bumps(self, points: Tensor) -> Tensor:
        squared = (points.unsqueeze(-2) - self.centers).square().sum(dim=-1)
        return self.heights * (-squared / (2 * self.squared_width)).exp()


def box(high: float, dimension: int) -> Tensor:
    """Return ``[0, high]^d``."""
    return torch.tensor([[0.0], [high]], dtype=torch.double).repeat(1, dimension)


def bimodal(dimension: int) -> Bumps:
    """Return f1 (one dimension) or f2 (two): bumps at 2 and 5, one twice as high."""
    ends = torch.tensor([[2.0], [5.0]], dtype=torch.double).repeat(1, dimension)
    scale = (2 * math.pi) ** (-dimension / 2)
    heights = torch.tensor([5.0, 10.0], dtype=torch.double) * scale
    return Bumps(f"f{dimension}", box(7.0, dimension), ends, heights)


def flat(beta: float) -> Bumps:
    """Return f_beta: one bump at 5 of height beta, on [0, 10]."""
    center = torch.tensor([[5.0]], dtype=torch.double)
    height = torch.tensor([beta], dtype=torch.double)
    return Bumps(f"f_beta, beta = {beta:g}", box(10.0, 1), center, height, 4.0)
