"""The table of a bandit's arms, and limits on their pulls."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_bkb.arms.columns import (
    by_name,
    check_cells,
    column_names,
    has_words,
    TableArms,
)
from botorch_bkb.checks import check_arms, check_available, check_indices
from botorch_bkb.models.utils.draws import draw_integers
from botorch_bkb.models.utils.rows import (
    as_dense,
    BitArms,
    Duplicates,
    find_duplicates,
    find_replicates,
    first_equal,
    later_duplicates,
    LazyRows,
    row_blocks,
    row_hashes,
    rows_of_hashes,
)


UNLIMITED = 2**31 - 1


class PullCounts(NamedTuple):
    """A number of pulls of each of some arms; an arm may come twice.

    Attributes:
        arms: A long tensor of arms.
        counts: Their numbers of pulls.
    """

    arms: Tensor
    counts: Tensor


class PullLimits:
    """How many more pulls each of ``A`` arms allows.

    Args:
        left: An ``A``-dim integer tensor, never negative; ``UNLIMITED`` if there is no
            limit.
        available: An ``A``-dim boolean tensor of the arms on offer, whether they allow
            a pull or not; None for all. The others allow no pull.

    Attributes:
        is_open: An ``A``-dim boolean tensor of the arms that allow a pull.
        num_open: Their number.
        most: How many pulls they allow, if ``left`` has no other number.
        left: The numbers of pulls that some of them allow.
    """

    def __init__(self, left: Tensor, available: Tensor | None = None) -> None:
        self.available = available
        self.is_open = left > 0 if available is None else available & (left > 0)
        self.num_open = int(torch.count_nonzero(self.is_open))
        self.most = int(left.max())
        others = (self.is_open & (left < self.most)).nonzero().squeeze(-1)
        self.left = dict(zip(others.tolist(), left[others].tolist(), strict=True))

    @classmethod
    def unlimited(cls, like: Tensor, num_arms: int) -> PullLimits:
        """Return no limits for arms on the device of a tensor."""
        one = like.new_tensor(UNLIMITED, dtype=torch.int32)
        return cls(one.expand(num_arms))

    @property
    def allowed(self) -> Tensor | None:
        """An ``A``-dim boolean tensor of the arms that allow a pull; None for all."""
        return None if self.num_open == len(self.is_open) else self.is_open

    @property
    def least(self) -> int:
        """The least number of pulls of an arm that allows one."""
        return min([self.most, *self.left.values()])

    def of(self, index: int) -> int:
        """Return how many pulls an arm that allows one allows."""
        return self.left.get(index, self.most)

    def allows(self, indices: Tensor) -> Tensor:
        """Return whether each of some arms allows a pull."""
        return self.is_open[indices]

    def total(self, enough: int) -> int:
        """Return the total of pulls left, each arm capped at ``enough``."""
        others = sum(min(left, enough) for left in self.left.values())
        return others + (self.num_open - len(self.left)) * min(self.most, enough)

    def draw(self, generator: torch.Generator) -> int:
        """Draw one of the arms that allow a pull, uniformly."""
        return self.numbered(int(draw_integers(self.num_open, 1, generator)))

    def numbered(self, number: int) -> int:
        """Return the arm of a number among those that allow a pull."""
        if self.allowed is None:
            return number
        count = self.is_open.cumsum(0, dtype=torch.int32)
        return int(torch.searchsorted(count, number + 1))

    def take(self, index: int, num_pulls: int) -> bool:
        """Take pulls of an arm that allows them; return whether it allows no more."""
        left = self.of(index)
        if left == UNLIMITED:
            return False
        self.left[index] = left - num_pulls
        if left == num_pulls:
            del self.left[index]
            self._close(index)
            self.num_open -= 1
        return left == num_pulls

    def _close(self, index: int) -> None:
        self.is_open[index] = False

    def copy(self) -> Self:
        """Return one that others may take pulls from."""
        other = copy(self)
        other.left = dict(self.left)
        other.is_open = self.is_open.clone()
        return other

    def closed(self, indices: Tensor) -> Self:
        """Return limits where some arms allow no pull."""
        other = self.copy()
        other.is_open[indices] = False
        other.num_open = int(torch.count_nonzero(other.is_open))
        for index in indices.tolist():
            other.left.pop(index, None)
        return other

    def thinned(self, size: int) -> Self:
        """Return limits of a sample of the open arms, the same each time."""
        if self.num_open <= size:
            return self
        other, arms = copy(self), self.is_open.nonzero().squeeze(-1)
        # Steps of a fixed length could match the rows of a grid.
        order = torch.randperm(len(arms), generator=torch.Generator().manual_seed(0))
        kept = arms[order[:size].to(arms.device)]
        other.is_open = torch.zeros_like(self.is_open)
        other.is_open[kept], other.num_open = True, size
        other.available = other.is_open.clone()
        other.left = {arm: n for arm, n in self.left.items() if other.is_open[arm]}
        return other


@dataclass(frozen=True)
class ArmTable:
    """``A`` arms, some of them retired; changes return another table.

    Attributes:
        rows: The ``A x d`` features.
        is_retired: An ``A``-dim boolean tensor.
        duplicates: The rows that are equal to others, except those added later.
        num_given: The number of rows at the beginning; the others were added later.
        columns: Their names, if the arms came as a frame.
    """

    rows: Tensor
    is_retired: Tensor
    duplicates: Duplicates
    num_given: int
    columns: list[str] | None = None

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Return the table of ``A x d`` rows, none of them retired."""
        is_retired = rows.new_zeros(len(rows), dtype=torch.bool)
        duplicates = find_duplicates(comparable_rows(rows))
        return cls(rows, is_retired, duplicates, len(rows))

    @property
    def indices(self) -> Tensor:
        """The ``A`` indices of the arms."""
        return torch.arange(len(self.rows), device=self.is_retired.device)

    def find(self, arms: Any) -> tuple[Tensor, Tensor]:
        """Return the indices of arms, new ones at the end, and the new rows.

        Raises:
            BotorchTensorDimensionError: If they have another number of features.
            InputDataError: If they are of another dtype, or a number is not finite.
        """
        return match_rows(self.rows, self.checked(arms))

    def checked(self, arms: Any) -> Tensor:
        """Return arms that fit the table; raises as :meth:`find` does."""
        table = self.rows if isinstance(self.rows, TableArms) else None
        if table is not None and column_names(arms) is not None:
            return table.encoded(arms)
        arms = as_arms(by_name(arms, self.columns), takes_words=table is not None)
        if arms.shape[-1] != self.rows.shape[-1]:
            raise BotorchTensorDimensionError(
                f"Expected `arms` of {self.rows.shape[-1]} features, like those that "
                f"are there, but got {arms.shape[-1]}."
            )
        if arms.dtype != self.rows.dtype:
            # A row that is rounded would not be found in the table.
            raise InputDataError(
                f"Expected `arms` of dtype {self.rows.dtype}, like those that are "
                f"there, but got {arms.dtype}."
            )
        if table is not None:  # words of another one have other codes
            words = arms.words if isinstance(arms, TableArms) else table.words
            return table.with_numbers(table.recoded(as_dense(arms), words))
        return arms.to(self.rows.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the rows that were added, and what identifies the others."""
        return {
            "num_given": self.num_given,
            "checksum": checksum(self.rows[: self.num_given]),
            "added": as_dense(self.rows[self.num_given :]).clone(),
            "retired": self.is_retired.nonzero().squeeze(-1),
            "columns": self.columns,
            "words": self.rows.words if isinstance(self.rows, TableArms) else {},
        }

    def loaded(self, state: dict[str, Any]) -> Self:
        """Return the table in the state that :meth:`state_dict` returned.

        Raises:
            InputDataError: If it is the state of other arms.
        """
        given, added = self.rows[: self.num_given], state["added"]
        is_same_dtype = added.dtype == given.dtype
        fits = state["num_given"] == self.num_given
        columns = state.get("columns") or self.columns  # version 1.0 saved no names
        if self.columns not in (None, columns):
            raise InputDataError(
                f"Expected the columns {self.columns}, but those of the saved bandit "
                f"are {columns}. Construct the bandit with these."
            )
        if isinstance(given, TableArms) and fits:
            # Words of added rows may have other codes here.
            words, same = state["words"], as_dense(given)
            fits = torch.equal(given.recoded(same, words), same)
            added = given.recoded(added, words)
        if not fits or not is_same_sum(
            checksum(given), state["checksum"], is_same_dtype
        ):
            raise InputDataError(
                f"Expected the state of a bandit over these {self.num_given} arms, but "
                f"it is that of {state['num_given']} arms, of others, or in another "
                "order: results would go to wrong arms. Construct the bandit with the "
                f"arms of the saved one, in their order and of dtype {added.dtype}."
            )
        rows = as_arms(torch.cat([given, added.to(given)]), takes_words=True)
        retired = check_indices(state["retired"], len(rows))
        is_retired = rows.new_zeros(len(rows), dtype=torch.bool)
        is_retired[torch.tensor(retired, dtype=torch.long, device=rows.device)] = True
        return replace(self, rows=rows, is_retired=is_retired, columns=columns)

    def appended(self, rows: Tensor, is_retired: bool) -> Self:
        """Return a table of more arms, after the others."""
        flags = self.is_retired.new_full((len(rows),), is_retired)
        return replace(
            self,
            rows=torch.cat([self.rows, rows]),
            is_retired=torch.cat([self.is_retired, flags]),
        )

    def retire(self, indices: Tensor, is_retired: bool = True) -> Self:
        """Return a table where arms are retired, or are no longer."""
        flags = self.is_retired.clone()
        flags[indices] = is_retired
        return replace(self, is_retired=flags)

    def offered(
        self, available: Any = None, arms: Any = None
    ) -> tuple[Tensor | None, Tensor]:
        """Return which arms can be pulled now (None for all), and new rows among them.

        Args:
            available: An ``A``-dim boolean tensor; all that are not retired if None.
            arms: Arms in place of those of the table. New ones are counted from its
                end.

        Raises:
            InputDataError: If both are given, or one does not fit the table.
        """
        if arms is None:
            none = self.rows[:0]
            if available is None:
                return (~self.is_retired if self.is_retired.any() else None), none
            available = check_available(available, len(self.rows))
            return available.to(self.is_retired.device) & ~self.is_retired, none
        if available is not None:
            raise InputDataError(
                "Expected `available` or `arms`, but got both. Leave unavailable arms "
                "out of `arms`."
            )
        indices, new = self.find(arms)
        offered = self.is_retired.new_zeros(len(self.rows) + len(new))
        offered[indices] = True
        return offered, new

    def first_equal(self, indices: Tensor) -> Tensor:
        """Return the first arm with the features of each arm.

        Arms that were added later are not compared.
        """
        return first_equal(self.duplicates, indices)

    def has_others(self, measured: Tensor) -> bool:
        """Whether an arm other than these, and their equals, may be the best."""
        left = self.first_equal(self.competing().nonzero().squeeze(-1))
        return not torch.isin(left, self.first_equal(measured)).all()

    def competing(
        self, pulled: Tensor | None = None, also: Tensor | None = None
    ) -> Tensor:
        """Return which arms may be the best: each row once, not retired unless all are.

        Args:
            pulled: Arms to which that is limited, unless none of them competes.
            also: Measured arms, which compete in place of their equals. Forbidden
                products count if they were measured.
        """
        allowed = ~self.is_retired | self.is_retired.all()
        if pulled is not None:
            among = torch.zeros_like(allowed)
            among[pulled] = allowed[pulled]
            allowed = among if among.any() else allowed
        rows, first = self.duplicates
        if len(rows):
            if also is not None:
                is_measured = allowed[rows] & torch.isin(rows, also)
                has_measured = torch.isin(first, first[is_measured])
                allowed[rows[has_measured & ~is_measured]] = False
            allowed[later_duplicates(self.duplicates, allowed[rows])] = False
        return allowed

    def draw_competing(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw arms that may be the best, uniformly."""
        arms = self.competing().nonzero().squeeze(-1)
        return arms[draw_integers(len(arms), size, generator).to(arms.device)]

    def pull_limits(
        self,
        available: Tensor | None,
        max_repeats: int | None,
        used: PullCounts,
        min_size: int = 1,
    ) -> PullLimits:
        """Return how many more pulls each arm allows.

        Args:
            available: Which arms can be pulled now; some may follow those of the table.
            max_repeats: The most pulls of one arm; None for no limit.
            used: The pulls so far.
            min_size: Arms with an equal one of lower index are closed if so many arms
                are left without them.

        Raises:
            InputDataError: If no arm may be pulled.
        """
        num_arms = len(self.rows) if available is None else len(available)
        most = UNLIMITED if max_repeats is None else min(max_repeats, UNLIMITED)
        left = used.arms.new_tensor(most, dtype=torch.int32).expand(num_arms)
        if max_repeats is not None:
            left = left.index_add(0, used.arms, -used.counts.to(left)).clamp_min_(0)
        limits = PullLimits(left, available)
        if limits.num_open == 0:
            raise InputDataError(
                "Expected an available arm, but all are unavailable, retired "
                "or have had their repeats. Allow more repeats, or add arms."
            )
        if not len(self.duplicates.rows):
            return limits
        later = later_duplicates(self.duplicates, limits.allows(self.duplicates.rows))
        merged = limits.closed(later)
        return merged if merged.num_open >= min_size else limits


def match_rows(table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Find rows in a table, equal in every number.

    Args:
        table: An ``A x d`` tensor.
        rows: A ``k x d`` tensor.

    Returns:
        The ``k`` indices of the rows in the table with the new ones at its end, the
        lowest where rows are equal; and the new rows, each once.
    """
    seen = comparable_rows(table)
    sought = comparable_rows(torch.cat([table[:0], rows]))
    known = rows_of_hashes(seen, row_hashes(sought))
    both = torch.cat([seen[known], sought])
    inverse, first = find_replicates(both)
    first = first[inverse][len(known) :]
    is_new = first == torch.arange(len(known), len(both)).to(first)
    indices = torch.cat([known, len(table) + is_new.cumsum(0) - 1])
    return indices[first], rows[is_new]


def as_arms(arms: Any, *, takes_words: bool = False) -> Tensor:
    """Return the arms of a bandit, bytes as :class:`BitArms`.

    What is stored is checked as it is read. A DataFrame of numbers or a NumPy array
    becomes a tensor, a DataFrame with words a :class:`TableArms` if they are taken.

    Raises:
        BotorchTensorDimensionError: If they are not ``A x d`` with ``A, d >= 1``.
        InputDataError: If they are no floats or bytes, or one is not finite.
    """
    if has_words(arms):
        arms = TableArms.of(arms) if takes_words else TableArms(arms)
    if isinstance(arms, TableArms) and not takes_words:
        raise InputDataError(
            f"Expected `arms` to hold numbers, but got {arms!r}. Use a GPBandit, whose "
            "kernel compares words, or encode them, for instance by "
            "`pandas.get_dummies`."
        )
    check_cells(arms)
    if hasattr(arms, "to_numpy") or isinstance(arms, np.ndarray):
        values = np.asarray(arms)
        dtype = values.dtype if values.dtype in (np.float32, np.uint8) else np.float64
        try:
            if values.dtype.kind in "cmM":
                raise TypeError(f"got {values.dtype}")
            values = np.ascontiguousarray(values, dtype=dtype)
            # A frame of one column shows its own memory, which is not writable.
            arms = torch.from_numpy(values if values.flags.writeable else values.copy())
        except (TypeError, ValueError) as error:
            raise InputDataError(
                f"Expected `arms` to hold numbers, but {error}. Leave out columns of "
                "ids, and encode dates and text, for instance by `pandas.get_dummies`."
            ) from error
    if isinstance(arms, Tensor) and arms.dtype == torch.uint8 and arms.dim() == 2:
        arms = BitArms.of(arms)
    has_bits = isinstance(arms, BitArms) and 0 not in arms.shape
    if has_bits or isinstance(arms, TableArms):
        if arms.numbers.shape[-1]:
            check_arms(arms.numbers)
    elif isinstance(arms, BitArms) or not isinstance(arms, LazyRows):
        check_arms(as_dense(arms))
    return arms


def comparable_rows(rows: Tensor) -> Tensor:
    """Return rows that are equal where these are, few numbers each."""
    return rows.words() if isinstance(rows, BitArms) else rows


def checksum(arms: Tensor) -> Tensor:
    """Return four sums over rows that tell tables of arms apart, ``4 x d``.

    The weighted sum of the numbers, with weights that are far apart for neighbours, and
    that of their absolute values, which bounds what rounding changes. Then the same for
    the numbers in single precision, which a table of another dtype shares.
    """
    total = arms.new_zeros(4, arms.shape[-1], dtype=torch.float64)
    for rows, block in row_blocks(arms):
        numbers = torch.arange(rows.start, rows.stop).to(total)
        weights = 1 + (numbers * 0.6180339887498949).frac()  # between 1 and 2
        for pair, values in zip(total.split(2), (block, block.float()), strict=True):
            values = values.double()
            pair += torch.stack([weights @ values, weights @ values.abs()])
    return total


def is_same_sum(found: Tensor, expected: Tensor, is_same_dtype: bool) -> bool:
    """Whether two results of :func:`checksum` are of the same numbers, in one order.

    Those of version 1.0 have no sums in single precision, so they fit one dtype only.
    """
    found, expected = (
        sums[:2] if is_same_dtype else sums[2:] for sums in (found, expected)
    )
    if found.shape != expected.shape:
        return False
    difference = found[0] - expected[0].to(found)
    return bool((difference.abs() <= 1e-12 * found[1]).all())
