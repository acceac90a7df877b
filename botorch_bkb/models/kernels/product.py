"""Kernels over product spaces: sums of products of one kernel per component."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import accumulate, product
from typing import Any, cast, NamedTuple, Self

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor
from typing_extensions import override

from botorch_bkb.models.kernels.learned import MixedKernel, SameKernel, WordsKernel
from botorch_bkb.models.kernels.tanimoto import TanimotoKernel
from botorch_bkb.models.utils.nystrom import dense_covariance
from botorch_bkb.models.utils.rows import as_dense, BitArms


# All Tanimoto similarities of so many elements are kept, in at most 32 MiB: they have
# no parameters, and every step of a fit needs them.
MOST_SIMILAR = 2048
# BoTorch's categorical kernel compares all pairs of rows, even for their diagonal.
DIAGONAL_ROWS = 2048


class Term(NamedTuple):
    """A product of scales and of kernels, each on one component."""

    scales: tuple[ScaleKernel, ...]
    factors: tuple[Kernel, ...]


class ComponentRows(list[Any]):
    """The rows of components by number, None where a column holds its own numbers.

    Copies of kernels share them. They may be joined by further rows, and never change.
    """

    def __init__(self, rows: Iterable[Tensor | None]) -> None:
        super().__init__(rows)
        self._similarities: dict[int, Tensor] = {}

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @torch.no_grad()
    def similarities(self, number: int) -> Tensor | None:
        """Return all Tanimoto similarities of a component; None if it is large."""
        rows, found = self[number], self._similarities.get(number)
        if not isinstance(rows, BitArms) or len(rows) > MOST_SIMILAR:
            return None
        if found is None or len(found) < len(rows):
            found = dense_covariance(TanimotoKernel(), rows)
            self._similarities[number] = found
        return found


class ComponentKernel(Kernel):
    r"""Covariances of products ``x = (x_1, x_2, ...)`` of components.

    ``k(x, z) = sum_t s_t prod_i k_ti(x_i, z_i)``. Its inputs are positions in the lists
    of components, one column per component, so that a kernel of a few distinct
    components is evaluated once for each. Other columns hold numbers.

    Args:
        components: The ``n_i x d_i`` rows of each component; None for a column of
            numbers.
        covar_module: A kernel of the components' columns side by side, made of scales,
            sums and products of kernels that act on the columns of one component each
            (``active_dims``), or on columns of numbers.

    Raises:
        UnsupportedError: If a part of the kernel acts on several components.
    """

    def __init__(
        self, components: Sequence[Tensor | None], covar_module: Kernel
    ) -> None:
        super().__init__()
        if not isinstance(components, ComponentRows):
            components = ComponentRows(components)
        self.components: ComponentRows = components
        self.covar_module = deepcopy(covar_module)
        widths = (1 if rows is None else rows.shape[-1] for rows in components)
        stops = list(accumulate(widths))
        for term in self.terms:
            for factor in term.factors:
                self._assign(factor, [0, *stops])

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """That of no batch; GPyTorch would ask all parts at every evaluation."""
        return torch.Size()

    @property
    def terms(self) -> list[Term]:
        """The products whose sum is the kernel."""
        return _terms(self.covar_module)

    @override
    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        left, right = map(as_dense, (x1, x2))
        total: Any = 0.0
        known: dict[Kernel, Tensor] = {}  # terms of a sum share factors
        for scales, factors in self.terms:
            value: Any = math.prod(scale.outputscale for scale in scales)
            for factor in factors:
                if factor not in known:
                    evaluate = self._variances if diag else self._covariance
                    known[factor] = evaluate(factor, left, right).to(left)
                value = value * known[factor]
            total = total + value
        return total

    @torch.no_grad()
    def tables(self, points: Tensor) -> list[list[Tensor]]:
        """Return, for each term, a table of every component with some products.

        The product of its tables' rows ``x_1, x_2, ...`` is what a term contributes to
        ``k(x, z)`` of each of ``m`` products ``z``.

        Args:
            points: The ``m x c`` positions.

        Returns:
            For each term ``c`` tables, ``n_i x m``.
        """
        if not len(points):
            none = [points.new_ones(len(rows), 0) for rows in self.components]
            return [none for _ in self.terms]
        found, size = [], len(points)
        for scales, factors in self.terms:
            tables = [points.new_ones(len(rows), size) for rows in self.components]
            tables[0] *= math.prod(scale.outputscale.item() for scale in scales)
            for factor in factors:
                rows = self.components[factor.component]
                seen, at = (
                    points[:, factor.component].long().unique(return_inverse=True)
                )
                table = dense_covariance(factor, rows[seen], rows).to(points)
                tables[factor.component] = tables[factor.component] * table.mT[:, at]
            found.append(tables)
        return found

    @torch.no_grad()
    def diagonals(self, like: Tensor) -> list[list[Tensor]]:
        """Return the same tables, ``n_i`` numbers each, for prior variances."""
        found = []
        for scales, factors in self.terms:
            diagonals = [like.new_ones(len(rows)) for rows in self.components]
            diagonals[0] *= math.prod(scale.outputscale.item() for scale in scales)
            for factor in factors:
                at = factor.component
                variances = _diagonal(factor, self.components[at])
                diagonals[at] = diagonals[at] * variances.to(like)
            found.append(diagonals)
        return found

    def _variances(self, factor: Kernel, left: Tensor, right: Tensor) -> Tensor:
        """Return the covariances of one component of pairs of products."""
        at = factor.component
        if at is None:
            return factor(left, right, diag=True)
        rows = self.components[at].to(left.device)
        left, right = (x[..., at].long() for x in (left, right))
        if torch.equal(left, right):
            seen, place = _distinct(left, len(rows))
            return _diagonal(factor, rows[seen])[place]
        pairs = torch.stack(torch.broadcast_tensors(left, right))
        seen, place = pairs.flatten(1).unique(dim=1, return_inverse=True)
        found = _diagonal(factor, *(rows[each] for each in seen))
        return found[place].reshape(pairs.shape[1:])

    def _covariance(self, factor: Kernel, left: Tensor, right: Tensor) -> Tensor:
        """Return the covariances of one component of two lists of products."""
        at = factor.component
        if at is None:
            return dense_covariance(factor, left, right)
        rows = self.components[at].to(left.device)
        (seen, row), (others, column) = (
            _distinct(x[..., at].detach().long(), len(rows)) for x in (left, right)
        )
        base = factor.base_kernel if isinstance(factor, MixedKernel) else None
        kept = None
        if type(base) is TanimotoKernel:
            kept = self.components.similarities(at)
        if kept is not None:
            kept = kept.to(left.device)[seen.unsqueeze(-1), others]
            K = cast(MixedKernel, factor).mixed(kept)
        else:
            K = dense_covariance(factor, rows[seen], rows[others])
        if row.dim() > 1 or column.dim() > 1:
            return K[row.unsqueeze(-1), column.unsqueeze(-2)]
        # Rows are copied whole, ten times as fast as numbers.
        return K.index_select(0, row).mT.contiguous().index_select(0, column).mT

    def _assign(self, factor: Kernel, limits: list[int]) -> None:
        """Note the component on whose columns a kernel acts, counted from zero.

        That is None for what takes the inputs themselves: kernels of numbers, and
        those that ask whether positions are equal.
        """
        if hasattr(factor, "component"):
            return
        columns = factor.active_dims
        if columns is None:
            columns = torch.arange(limits[-1])
        ends = torch.tensor(limits[1:-1])
        owner = torch.bucketize(columns.cpu(), ends, right=True).unique()
        are_numbers = all(self.components[n] is None for n in owner.tolist())
        of_codes = isinstance(factor, SameKernel | WordsKernel) and (
            len(owner) > 1 or isinstance(self.components[int(owner)], BitArms)
        )
        if are_numbers or of_codes:
            factor.component, factor.active_dims = None, owner.to(columns)
            return
        if len(owner) != 1:
            raise UnsupportedError(
                "Expected sums and products of kernels that act on one component each, "
                f"but {type(factor).__name__} acts on the components {owner.tolist()}. "
                "Set its `active_dims` to the columns of one component."
            )
        at = int(owner)
        start, stop = limits[at : at + 2]
        everything = torch.equal(columns, torch.arange(start, stop).to(columns))
        factor.component = at
        factor.active_dims = None if everything else columns - start


def _distinct(positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return positions below a size, each once, and the place of each one in them."""
    if positions.dim() == 1 and len(positions) >= size:  # all, rather than sort them
        return torch.arange(size, device=positions.device), positions
    return positions.unique(return_inverse=True)


def _diagonal(kernel: Kernel, *rows: Tensor) -> Tensor:
    """Return the variances of rows, or the covariances of two lists row by row."""
    parts = (
        kernel(*(each[start : start + DIAGONAL_ROWS] for each in rows), diag=True)
        for start in range(0, max(1, len(rows[0])), DIAGONAL_ROWS)
    )
    return torch.cat([*parts], dim=-1)


def _terms(kernel: Kernel) -> list[Term]:
    if isinstance(kernel, ScaleKernel):
        parts = _terms(kernel.base_kernel)
        return [Term((kernel, *part.scales), part.factors) for part in parts]
    if isinstance(kernel, AdditiveKernel):
        return [term for part in kernel.kernels for term in _terms(part)]
    if isinstance(kernel, ProductKernel):
        choices = product(*map(_terms, kernel.kernels))
        return [
            Term(
                tuple(scale for term in terms for scale in term.scales),
                tuple(factor for term in terms for factor in term.factors),
            )
            for terms in choices
        ]
    return [Term((), (kernel,))]


@torch.no_grad()
def check_kernel(kernel: Kernel, rows: Tensor) -> None:
    """Raise unless a kernel can be evaluated on a few rows."""
    parts = [] if isinstance(kernel, ComponentKernel) else kernel.modules()
    try:
        shape = tuple(dense_covariance(kernel, rows, rows).shape)
        found = "" if shape == 2 * (len(rows),) else f"covariances of shape {shape}"
        for part in parts:
            columns = getattr(part, "active_dims", None)
            size = rows.shape[-1] if columns is None else len(columns)
            if size == 1 < (getattr(part, "ard_num_dims", None) or 1):
                found = f"{part.ard_num_dims} lengthscales of one feature"
    except Exception as error:  # a kernel may raise anything
        found = f"the error {error!r}"
    if found:
        raise InputDataError(
            f"Expected `covar_module` to fit arms of {rows.shape[-1]} features, but "
            f"got {found}. Check its `ard_num_dims` and `active_dims`."
        )
