"""Rows of bits or of counts of one byte, which stay as they are stored."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import nn, Tensor
from typing_extensions import override

from botorch_bkb.models.utils.rows import as_dense, aten, COLUMNS, LazyRows


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

        A sum over what is not zero: ``O(n)`` a bit that is set, where a matrix product
        takes ``O(n d)`` a row. Exact.
        """
        column, value, starts = self._nonzero()
        table = others.bits().mT
        if value is not None:
            # A row of the table for every count that a column has.
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

    @property
    @override
    def _like(self) -> Tensor:
        return self.numbers

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
        InputDataError: If they hold what that cannot hold.
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
