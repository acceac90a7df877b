r"""Upper bounds of the standard deviations of all products, from those of a few.

A posterior variance is ``|T phi(x)|^2``, where ``phi(x)`` is the feature of ``x``
whose inner products are the kernel, and ``T`` is a contraction: results only lower a
variance. So the standard deviations of two products differ at most by their distance,
::

    std(x) <= std(c) + |phi(x) - phi(c)|

Each component's values are split into cells around centres, and standard deviations
are computed for combinations of centres only. For constant prior variances the squared
distance of products is at most the sum of those of their components.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TYPE_CHECKING

import torch
from torch import Tensor


if TYPE_CHECKING:
    from botorch_bkb.posteriors.product_posterior import ProductPosterior


# One combination of centres for so many products, and no more than these.
CELL_SIZE, MAX_CELLS = 512, 2**21


class Places(NamedTuple):
    """Where combinations of some components' values are.

    Attributes:
        cells: The numbers of their cells.
        squared: Their squared distances from the centres.
    """

    cells: Tensor
    squared: Tensor


class Cells:
    """Cells of products, with upper bounds of the standard deviations at their centres.

    Args:
        posterior: The posterior. If prior variances differ between products, there is
            one cell, whose bound is the largest prior standard deviation.
        first: So many components make the rows of :meth:`bounds`, the others columns.
    """

    def __init__(self, posterior: ProductPosterior, first: int) -> None:
        arms, single = posterior.arms, posterior.single[0][0]
        self.largest = math.sqrt(posterior.max_prior_variance)
        diagonals = [diagonal for term in posterior._diagonals for diagonal in term]
        is_alike = all(d.min() == d.max() for d in diagonals)
        number = _number_of_centres(arms.sizes, posterior.num_arms) if is_alike else 1
        centres, self.parts = [], list[Places]()
        for column, size in enumerate(arms.sizes):
            axis = posterior.inducing_indices.new_zeros(size, len(arms.sizes))
            axis[:, column] = torch.arange(size)
            chosen, part = _split(posterior, arms.numbers(axis), number)
            centres.append(chosen)
            self.parts.append(Places(part.cells, part.squared.to(single) * is_alike))
        self.sizes = [len(chosen) for chosen in centres]
        shape = -1, math.prod(self.sizes[first:])
        self.stds = single.new_full(self.sizes, self.largest).view(shape)
        if is_alike:
            grid = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1)
            parts = grid.flatten(0, -2).split(posterior.chunk_size)
            stds = [posterior.upper_stds(positions) for positions in parts]
            self.stds = torch.cat(stds).view(shape)

    def places(
        self, positions: Iterable[Tensor], like: Tensor, first: int = 0
    ) -> Places:
        """Return where values of the components from ``first`` on are.

        Args:
            positions: The positions in these components.
            like: As many integers, if there are no components.
            first: The first component.
        """
        cells = torch.zeros_like(like)
        squared = torch.zeros_like(like, dtype=self.stds.dtype)
        for column, at in enumerate(positions, start=first):
            cells = cells * self.sizes[column] + self.parts[column].cells[at]
            squared = squared + self.parts[column].squared[at]
        return Places(cells, squared)

    def bounds(self, rows: Places, columns: Places) -> Tensor:
        """Return upper bounds of standard deviations, rows by columns."""
        bounds = (rows.squared.unsqueeze(-1) + columns.squared).sqrt_()
        bounds += self.stds[rows.cells].index_select(-1, columns.cells)
        return bounds.clamp_max_(self.largest)


def _number_of_centres(sizes: Sequence[int], num_products: int) -> int:
    """Return how many centres each component has, or all of its values."""
    most, number = min(num_products // CELL_SIZE, MAX_CELLS), 1
    while number < max(sizes):
        if math.prod(min(size, number + 1) for size in sizes) > most:
            break
        number += 1
    return number


def _split(
    posterior: ProductPosterior, products: Tensor, number: int
) -> tuple[Tensor, Places]:
    """Return centres among products on an axis, and the place of each product.

    Each next centre is the product that is farthest from those before.
    """
    centres = [0]
    cells = torch.zeros_like(products)
    squared = _squared(posterior, products, products[:1])
    while len(centres) < min(number, len(products)):
        centres.append(int(squared.argmax()))
        others = _squared(posterior, products, products[centres[-1:]])
        cells[others < squared] = len(centres) - 1
        squared = squared.minimum(others)
    return cells.new_tensor(centres), Places(cells, squared)


def _squared(posterior: ProductPosterior, products: Tensor, centre: Tensor) -> Tensor:
    """Return squared distances from a product, if prior variances are constant.

    Rounding may make them too large, not too small.
    """
    covariance = posterior.prior_covariance(products, centre)[:, 0]
    largest = (1 + 4 * torch.finfo(covariance.dtype).eps) * posterior.max_prior_variance
    return 2 * (largest - covariance).clamp_min(0.0)
