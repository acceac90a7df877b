"""Rows of tables: lazy and packed tables, equal rows, sums over repeats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import nn, Tensor
from torch.utils._pytree import tree_map
from typing_extensions import override


aten = torch.ops.aten
# Bytes of the dense rows of a block, in passes over all rows.
BLOCK_BYTES = 2**24
# Rows whose hashes are computed at once.
HASHED_ROWS = 2**16
# The numbers of a table's two dimensions.
ROWS, COLUMNS = (0, -2), (1, -1)
# Operations that leave rows as they are stored: copies, new tensors of the same dtype,
# and operations along a dimension, which is that of the rows by default.
COPIES = aten.detach.default, aten.alias.default, aten.clone.default
NEW = aten.new_empty.default, aten.new_zeros.default, aten.new_full.default
TAKES = aten.select.int, aten.index_select.default, aten.slice.Tensor


class LazyRows(Tensor):
    """An ``A x d`` tensor whose rows are computed when they are taken.

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
    def _like(self) -> Tensor:
        """A plain tensor of the dtype and device."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    @abstractmethod
    def _rows(self, rows: Tensor | slice) -> Tensor:
        """Return some of the rows: a vector of numbers, a mask or a slice."""

    @abstractmethod
    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Return rows below these, which are the first of the parts."""

    def _done(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the result of an operation; None if it needs the dense rows."""
        if func in COPIES:
            return self._rows(slice(None))
        if func in NEW:
            return func(self._like, *args[1:], **kwargs)
        if func is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dim() == 1:
            return self._rows(args[1][0])
        dim, *where = args[1:] or (0,)
        if func not in (aten.cat.default, *TAKES) or dim not in ROWS:
            return None
        if func is aten.cat.default:
            return self._joined(args[0])
        if func is aten.index_select.default:
            return self._rows(*where)
        if func is aten.slice.Tensor:
            return self._rows(slice(*where or (None,)))
        (row,) = where
        if not -len(self) <= row < len(self):
            return None  # the dense rows raise the error
        row %= len(self)
        return as_dense(self._rows(slice(row, row + 1)))[0]

    @classmethod
    @override
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return the result of an operation, of dense rows only if it needs them."""
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
        """Raise an error: the change would reach only a copy of the row."""
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
    """Return lazy rows as a plain tensor, and anything else unchanged."""
    return value.dense() if isinstance(value, LazyRows) else value


def row_numbers(rows: Tensor | slice, num_rows: int) -> Tensor:
    """Return the numbers, from 0 on, of the rows that a slice, mask or vector takes."""
    if isinstance(rows, slice):
        start, stop, step = rows.indices(num_rows)
        return torch.arange(start, max(start, stop), step)
    if rows.dtype == torch.bool:
        return rows.nonzero().squeeze(-1)
    rows = torch.where(rows < 0, rows + num_rows, rows)
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
        raise IndexError(f"Expected rows of {num_rows:,} arms, but got {rows}.")
    return rows


def row_blocks(table: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of all rows and their dense rows; one slice of a plain tensor."""
    if not isinstance(table, LazyRows):
        yield slice(0, len(table)), table
        return
    size = max(BLOCK_BYTES // (table.element_size() * max(table.shape[-1], 1)), 1)
    for start in range(0, len(table), size):
        rows = slice(start, min(start + size, len(table)))
        yield rows, as_dense(table[rows])


class BitArms(LazyRows):
    r"""An ``A x d`` tensor of fingerprints, packed bits or counts of one byte.

    Beside the ``d - e`` columns of the fingerprint there may be ``e`` other numbers,
    such as a temperature. To PyTorch it is a tensor of a floating dtype. Rows that are
    taken of it and added to it stay packed; other operations use its dense copy.
    Memory: ``A (d - e) / 8`` bytes of bits, ``A (d - e)`` of counts.

    Args:
        codes: An ``A x c`` tensor or array of ``uint8``: the bits packed as by
            ``numpy.packbits``, or the counts.
        is_packed: Whether they are bits, ``8 c`` of them a row. Or else counts.
        numbers: An ``A x e`` tensor of the other columns, which come last.
        dtype: What the rows are when they are unpacked.

    Attributes:
        codes: As above, a tensor.
        is_packed: As above.
        numbers: As above; ``A x 0`` if omitted.
        num_bits: The ``d - e`` columns of the fingerprint.

    Raises:
        BotorchTensorDimensionError: If shapes do not fit.
        InputDataError: If ``codes`` are not ``uint8``, or ``dtype`` is no float32 or
            float64.

    Example:
        >>> arms = BitArms(np.packbits(fingerprints, axis=1))
        >>> bandit = BBKB(arms)  # learns the variance of a Tanimoto kernel, and noise
    """

    codes: Tensor
    is_packed: bool
    numbers: Tensor
    num_bits: int

    @staticmethod
    def __new__(
        cls,
        codes: Any,
        is_packed: bool = True,
        numbers: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> BitArms:
        """Wrap ``codes`` without a copy."""
        codes = torch.as_tensor(codes)
        if codes.dtype != torch.uint8 or dtype not in (torch.float32, torch.float64):
            raise InputDataError(
                "Expected `codes` of dtype uint8 and `dtype` float32 or float64, but "
                f"got {codes.dtype} and {dtype}."
            )
        if numbers is None:
            numbers = torch.empty(len(codes), 0)
        if codes.dim() != 2 or numbers.dim() != 2 or len(codes) != len(numbers):
            raise BotorchTensorDimensionError(
                "Expected `codes` of shape A x c and `numbers` of shape A x e, but got "
                f"{tuple(codes.shape)} and {tuple(numbers.shape)}."
            )
        num_bits = (8 if is_packed else 1) * codes.shape[1]
        arms: BitArms = Tensor._make_wrapper_subclass(
            cls,
            (len(codes), num_bits + numbers.shape[1]),
            dtype=dtype,
            device=codes.device,
        )
        arms.codes, arms.is_packed, arms.num_bits = codes, is_packed, num_bits
        arms.numbers = numbers.to(device=codes.device, dtype=dtype)
        return arms

    @classmethod
    def of(cls, counts: Tensor, dtype: torch.dtype = torch.float64) -> Self:
        """Return ``A x d`` counts or bits of dtype ``uint8``, packed if they are bits.

        Bits whose number is no multiple of eight are counts: nothing else is packed.
        """
        if counts.shape[-1] % 8 or counts.numel() == 0 or int(counts.max()) > 1:
            return cls(counts, is_packed=False, dtype=dtype)
        codes = np.packbits(counts.cpu().numpy(), axis=-1)
        return cls(torch.from_numpy(codes).to(counts.device), dtype=dtype)

    @override
    def dense(self) -> Tensor:
        columns = [self.bits().to(self.dtype), self.numbers]
        return columns[0] if not self.numbers.shape[1] else torch.cat(columns, dim=-1)

    def bits(self) -> Tensor:
        """Return the fingerprints, ``A x (d - e)``, as ``uint8``."""
        if not self.is_packed:
            return self.codes
        unpacked = np.unpackbits(self.codes.cpu().numpy(), axis=-1)
        return torch.from_numpy(unpacked).to(self.device)

    def fingerprints(self) -> BitArms:
        """Return the arms without their other numbers."""
        return BitArms(self.codes, self.is_packed, dtype=self.dtype)

    def with_numbers(self, numbers: Tensor) -> BitArms:
        """Return the arms with other numbers, ``A x e``, in place of theirs."""
        return BitArms(self.codes, self.is_packed, numbers, self.dtype)

    def words(self) -> Tensor:
        """Return rows of ``int64`` that are equal where the arms are, ``A x w``."""
        num_bytes = self.codes.shape[1]
        codes = self.codes
        if num_bytes % 8:
            codes = nn.functional.pad(codes, (0, 8 - num_bytes % 8))
        words = codes.contiguous().view(torch.int64)
        # -0.0 equals 0.0.
        numbers = (self.numbers.double() + 0.0).view(torch.int64)
        return torch.cat([words, numbers], dim=-1) if numbers.shape[1] else words

    def totals(self) -> Tensor:
        """Return the ``A`` sums of the fingerprints."""
        if not self.is_packed:
            return self.codes.sum(dim=-1, dtype=self.dtype)
        totals = np.bitwise_count(self.codes.cpu().numpy()).sum(axis=-1)
        return torch.from_numpy(totals).to(self.numbers)

    def in_common(self, others: BitArms) -> Tensor:
        """Return ``sum_i min(x_i, y_i)`` of ``n`` others and these, ``n x A``.

        A sum over the nonzero entries: ``O(n)`` for each, while a matrix product takes
        ``O(n d)`` for each row. Exact.
        """
        column, value, starts = self._nonzero()
        table = others.bits().mT
        if value is not None:
            # One row per distinct (column, count) pair.
            keys = column * 256 + value
            is_there = np.zeros(256 * self.num_bits, dtype="bool")
            is_there[keys] = True
            there = torch.from_numpy(np.flatnonzero(is_there)).to(table.device)
            table = table[there // 256].minimum((there % 256).unsqueeze(-1))
            column = (is_there.cumsum() - 1)[keys]
        is_exact_in_single = (255 if value is not None else 1) * self.num_bits < 2**24
        table = table.float() if is_exact_in_single else table.double()
        common = nn.functional.embedding_bag(
            torch.from_numpy(column).to(table.device),
            table.contiguous(),
            torch.from_numpy(starts).to(table.device),
            mode="sum",
        )
        return common.mT.to(self.dtype)

    def _nonzero(self) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
        """Return columns and values (of counts) that are not 0, and starts of rows."""
        codes = np.ascontiguousarray(self.codes.cpu().numpy()).reshape(-1)
        place = np.flatnonzero(codes != 0)
        value = None if self.is_packed else codes[place].astype("int64")
        if self.is_packed:
            # Most bytes are zero, so only the others are unpacked.
            bit = np.flatnonzero(np.unpackbits(codes[place]).view("bool"))
            place = (place * 8)[bit >> 3] + (bit & 7)
        starts = np.searchsorted(place, np.arange(len(self)) * self.num_bits)
        return place % self.num_bits, value, starts

    @override
    def _rows(self, rows: Any) -> BitArms:
        return BitArms(self.codes[rows], self.is_packed, self.numbers[rows], self.dtype)

    @override
    def _joined(self, parts: list[Tensor]) -> BitArms:
        codes, numbers = [], []
        for part in parts:
            if not isinstance(part, BitArms) or part.is_packed != self.is_packed:
                part = _encoded(as_dense(part), self)
            codes.append(part.codes)
            numbers.append(part.numbers)
        return BitArms(torch.cat(codes), self.is_packed, torch.cat(numbers), self.dtype)

    @override
    def _done(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if func is aten._to_copy.default:
            return self._copied(**kwargs)
        if func is aten.index_select.default and args[1] in COLUMNS:
            return _selected(self, args[2])
        return super()._done(func, *args, **kwargs)

    def _copied(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **_: Any,
    ) -> BitArms | None:
        """Return the arms on another device or of another dtype, still packed."""
        dtype = self.dtype if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            return None
        codes = self.codes.to(device)
        return BitArms(codes, self.is_packed, self.numbers.to(device, dtype), dtype)

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return BitArms, (self.codes, self.is_packed, self.numbers, self.dtype)

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        kind = "bits" if self.is_packed else "counts"
        return (
            f"BitArms of {len(self)} rows, {self.num_bits} {kind} and "
            f"{self.numbers.shape[1]} numbers"
        )


def _encoded(rows: Tensor, like: BitArms) -> BitArms:
    """Return dense rows in the form of packed ones.

    Raises:
        InputDataError: If a value is no bit, or no count up to 255.
    """
    counts, numbers = rows[:, : like.num_bits], rows[:, like.num_bits :]
    codes = counts.to(torch.uint8)
    if not (codes == counts).all() or (like.is_packed and (codes > 1).any()):
        kind = "bits" if like.is_packed else "counts up to 255"
        raise InputDataError(
            f"Expected rows of {kind} in the first {like.num_bits} columns, like those "
            "that are there, but got other numbers."
        )
    if like.is_packed:
        packed = np.packbits(codes.cpu().numpy(), axis=-1)
        codes = torch.from_numpy(packed).to(codes.device)
    return BitArms(codes, like.is_packed, numbers, like.dtype)


def _selected(arms: BitArms, index: Tensor) -> Tensor | None:
    """Return the columns of the fingerprint, or those beside it; None if others."""
    columns = index.tolist()
    if columns == list(range(arms.num_bits)):
        return arms.fingerprints()
    if min(columns, default=0) >= arms.num_bits:
        return arms.numbers.index_select(1, index - arms.num_bits)
    return None


class Replicates(NamedTuple):
    """The unique rows of an ``n x d`` tensor, ``P`` of them.

    Attributes:
        inverse: An ``n``-dim long tensor; row ``i`` repeats unique row ``inverse[i]``.
        first: A ``P``-dim long tensor, the number of one row per unique row.
    """

    inverse: Tensor
    first: Tensor


@torch.no_grad()
def find_replicates(X: Tensor) -> Replicates:
    """Find the repeated rows of an ``n x d`` tensor, or numbers of a vector."""
    dim = 0 if X.dim() > 1 else None  # of a vector, many times as fast
    unique, inverse = torch.unique(X, dim=dim, return_inverse=True)
    rows = torch.arange(X.shape[0], device=X.device)
    first = rows.new_zeros(unique.shape[0])
    first.scatter_reduce_(0, inverse, rows, reduce="amin", include_self=False)
    return Replicates(inverse=inverse, first=first)


def sum_replicates(values: Tensor, inverse: Tensor, num_unique: int) -> Tensor:
    """Add an ``n``-dim tensor over the repeats of each of ``num_unique`` inputs."""
    return values.new_zeros(num_unique).index_add(0, inverse, values)


def covers(points: Tensor, inputs: Tensor) -> bool:
    """Whether every row of ``inputs`` is among the rows of ``points``."""
    both = torch.cat([points, inputs])
    return len(both.unique(dim=0)) == len(points.unique(dim=0))


class Duplicates(NamedTuple):
    """The rows of an ``A x d`` table that are equal to another one, ``k`` of them.

    Attributes:
        rows: A ``k``-dim long tensor of row numbers, ascending.
        first: A ``k``-dim long tensor: the lowest number of an equal row.
    """

    rows: Tensor
    first: Tensor


@torch.no_grad()
def find_duplicates(table: Tensor) -> Duplicates:
    """Find the rows of floats or 64-bit integers that are equal to another row.

    Holds one 64-bit hash a row, and compares the rows whose hashes come again in a
    second pass.
    """
    # NumPy's sort takes no memory beside them.
    ordered = row_hashes(table).cpu().numpy()
    ordered.sort()
    again = torch.from_numpy(ordered[1:][ordered[1:] == ordered[:-1]]).unique()
    del ordered
    suspects = rows_of_hashes(table, again.to(table.device))
    inverse, first = find_replicates(table[suspects])  # suspects are ascending
    has_duplicate = inverse.bincount()[inverse] > 1
    return Duplicates(suspects[has_duplicate], suspects[first[inverse[has_duplicate]]])


def row_hashes(table: Tensor) -> Tensor:
    """Return a 64-bit number for each row, the same for equal rows, in one pass."""
    hashes = table.new_zeros(len(table), dtype=torch.int64)
    for rows, block in row_blocks(table):
        hashes[rows] = _hashes(block)
    return hashes


def rows_of_hashes(table: Tensor, hashes: Tensor) -> Tensor:
    """Return the rows of a table that have one of some hashes, in one pass."""
    found = [torch.empty(0, dtype=torch.long, device=hashes.device)]
    if len(hashes):
        for rows, block in row_blocks(table):
            is_sought = torch.isin(_hashes(block), hashes)
            found.append(rows.start + is_sought.nonzero().squeeze(-1))
    return torch.cat(found)


def _hashes(block: Tensor) -> Tensor:
    hashes = []
    for part in block.split(HASHED_ROWS):
        mixed = part.new_zeros(len(part), dtype=torch.int64)
        for column in part.unbind(-1):
            if column.dtype != torch.int64:
                column = (column.double() + 0.0).view(torch.int64)  # -0.0 equals 0.0
            mixed = (mixed ^ column) * -7046029254386353131  # wraps around: exact
            mixed ^= mixed >> 29
        hashes.append(mixed)
    return torch.cat(hashes)


def first_equal(duplicates: Duplicates, indices: Tensor) -> Tensor:
    """Return the lowest row that is equal to each row."""
    if not len(duplicates.rows):
        return indices
    place = positions_in(duplicates.rows, indices, is_ascending=True)
    return torch.where(place < 0, indices, duplicates.first[place])


def later_duplicates(duplicates: Duplicates, is_allowed: Tensor) -> Tensor:
    """Return duplicates that are equal to one of a lower number, both allowed.

    ``is_allowed`` is a ``k``-dim boolean tensor, for the ``k`` duplicates.
    """
    rows, first = duplicates.rows[is_allowed], duplicates.first[is_allowed]
    groups, place = first.unique(return_inverse=True)
    lowest = groups.scatter_reduce(0, place, rows, "amin", include_self=False)[place]
    return rows[rows != lowest]


def positions_in(arms: Tensor, sought: Tensor, is_ascending: bool = False) -> Tensor:
    """Return the places of sought arms in a list of distinct arms, -1 for missing ones.

    The list need not be in order, but it is faster if it is and ``is_ascending``.
    """
    if not len(arms):
        return torch.full_like(sought, -1)
    ordered, order = (arms, None) if is_ascending else arms.sort()
    near = torch.searchsorted(ordered, sought.contiguous()).clamp_max_(len(arms) - 1)
    place = near if order is None else order[near]
    return torch.where(ordered[near] == sought, place, -1)
