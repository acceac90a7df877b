"""Tables of arms that are no dense tensors: rows are made when they are taken."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.utils._pytree import tree_map
from typing_extensions import override


aten = torch.ops.aten
# The dense rows of a block, where something is asked of all of them.
BLOCK_BYTES = 2**24
# The numbers of a table's two dimensions.
ROWS, COLUMNS = (0, -2), (1, -1)


class LazyRows(Tensor):
    """An ``A x d`` tensor of which rows are made when they are taken.

    To PyTorch it is a tensor of that shape and of a floating dtype. Taking rows of it
    and joining rows to it leave it as it is; other operations use its dense copy. It
    does not change.
    """

    # Results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the rows as an ``A x d`` tensor of floats."""

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A plain tensor of the dtype and device."""

    @abstractmethod
    def _rows(self, rows: Tensor | slice) -> Tensor:
        """Return some of the rows: a vector of numbers, a mask or a slice."""

    @abstractmethod
    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Return rows below these, which are the first of the parts."""

    def _done(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of an operation; None if it needs the dense rows."""
        if func in (aten.detach.default, aten.alias.default, aten.clone.default):
            return self._rows(slice(None))
        if func in (
            aten.new_empty.default,
            aten.new_zeros.default,
            aten.new_full.default,
        ):
            return func(self._like, *args[1:], **kwargs)
        if func is aten.cat.default:
            return self._joined(args[0]) if (*args[1:], 0)[0] in ROWS else None
        if func is aten.select.int and args[1] in ROWS:
            if not -len(self) <= args[2] < len(self):
                return None  # which is an error
            row = args[2] % len(self)
            return as_dense(self._rows(slice(row, row + 1)))[0]
        if func is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dim() == 1:
            return self._rows(args[1][0])
        if func is aten.index_select.default and args[1] in ROWS:
            return self._rows(args[2])
        if func is aten.slice.Tensor:
            dim, *limits = args[1:] or (0,)
            return self._rows(slice(*limits or (None,))) if dim in ROWS else None
        return None

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do what needs no dense rows, and all else on them."""
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise _change_in_place(func)
        first = args[0][0] if func is aten.cat.default else args[0]
        if isinstance(first, LazyRows):
            done = first._done(func, *args, **kwargs)
            if done is not None:
                return done
        return func(*tree_map(as_dense, args), **tree_map(as_dense, kwargs))

    @override
    def __setitem__(self, index: Any, value: Any) -> None:
        """Refuse, where a row that was taken would be changed in place of this one."""
        raise _change_in_place("__setitem__")

    @override
    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _change_in_place(func: Any) -> InputDataError:
    return InputDataError(
        "Expected these arms to stay as they are, but got a change in place "
        f"({func}). Take a dense copy by `arms.dense()`."
    )


def as_dense(value: Any) -> Any:
    """Return such rows as a plain tensor, and anything else as it is."""
    return value.dense() if isinstance(value, LazyRows) else value


def row_blocks(table: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of all rows and these rows, dense: all at once of a tensor."""
    if not isinstance(table, LazyRows):
        yield slice(0, len(table)), table
        return
    size = max(BLOCK_BYTES // (table.element_size() * max(table.shape[-1], 1)), 1)
    for start in range(0, len(table), size):
        rows = slice(start, min(start + size, len(table)))
        yield rows, as_dense(table[rows])
