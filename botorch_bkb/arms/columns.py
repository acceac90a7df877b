"""Candidates in a table with columns of numbers, words and molecules."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from botorch_bkb.checks import check_positive
from botorch_bkb.models.kernels.learned import (
    columns_to_learn,
    ComponentKind,
    effects_to_learn,
)
from botorch_bkb.models.kernels.product import ComponentKernel, ComponentRows
from botorch_bkb.models.utils.rows import as_dense, BitArms, LazyRows


# A column of more words, all different, probably names the rows.
MOST_UNIQUE = 20
# From a word to bits or counts, or a function of words that returns a row for each.
LookUp = Mapping[str, Any] | Callable[[list[str]], Any]


@dataclass(frozen=True, eq=False)
class Column:
    """How the cells of a column become numbers.

    Attributes:
        name: The name of the column.
        kind: What its cells are. Ordered categories are numbers, in that order.
        codes: The code of each word, 0, 1, 2, ... in order of first appearance.
        look_up: The fingerprints of molecules.
        period: That of cyclic numbers.
    """

    name: str
    kind: ComponentKind
    codes: dict[str, int] = field(default_factory=dict)
    look_up: LookUp | None = None
    period: float = 0.0

    @property
    def grows(self) -> bool:
        """Whether new words get new codes, unlike the ranks of ordered categories."""
        return self.kind in ("categories", "molecules")

    def of(self, cells: Any) -> tuple[NDArray[Any], list[str]]:
        """Return the numbers of a column's cells, and the words that have no code yet.

        Raises:
            InputDataError: If a cell is missing, or of another kind than those before.
        """
        missing = np.flatnonzero(np.asarray(cells.isna()))
        if len(missing):
            raise self._error(f"no missing cell, but row {missing[0]} (from 0) has one")
        if not (self.grows or self.codes):
            if holds_words(cells):
                raise self._error(f"numbers, but got {str(cells.iloc[0])!r}")
            numbers = np.asarray(cells, dtype="float64")
            if not np.isfinite(numbers).all():
                raise self._error("finite numbers")
            return numbers, []
        places, labels = cells.factorize()
        words = [*map(_word, labels)]
        new = self.new_words(words, holds_words(cells))
        codes = self.codes | self.next_codes(new)
        return np.array([codes[word] for word in words], dtype="float64")[places], new

    def new_words(self, words: list[str], are_words: bool = True) -> list[str]:
        """Return those that have no code yet; raise if they cannot get one."""
        new = [*dict.fromkeys(word for word in words if word not in self.codes)]
        if (new and not self.grows) or not are_words:
            raise self._error(f"words such as {list(self.codes)[:5]}, but got {words}")
        return new

    def next_codes(self, words: list[str]) -> dict[str, int]:
        """Return the codes that new words will have."""
        return {word: len(self.codes) + n for n, word in enumerate(words)}

    def fingerprints(self, known: Tensor, words: list[str]) -> BitArms:
        """Return known fingerprints and those of further molecules, looked up."""
        look_up: Any = self.look_up
        unknown = [] if callable(look_up) else [w for w in words if w not in look_up]
        if unknown:
            raise self._error(f"a fingerprint of every molecule, but not of {unknown}")
        found = look_up(words) if callable(look_up) else [look_up[w] for w in words]
        try:
            found = found if isinstance(found, BitArms) else np.asarray(found)
        except ValueError as error:  # rows of several lengths
            raise self._error(f"fingerprints of one length, but {error}") from error
        like = known if isinstance(known, BitArms) else found
        is_fit = found.ndim == 2 and found.shape == (len(words), *like.shape[1:])
        if not is_fit or (
            isinstance(found, np.ndarray) and found.dtype.kind not in "biu"
        ):
            raise self._error(
                f"bits or counts of {len(words)} molecules, a row each of one length, "
                f"but got {found.dtype} of shape {tuple(found.shape)}"
            )
        if isinstance(found, np.ndarray):
            if found.size and not 0 <= found.min() <= found.max() <= 255:
                raise self._error("counts from 0 to 255")
            found = BitArms.of(torch.from_numpy(found.astype("uint8")), known.dtype)
        if not isinstance(known, BitArms):
            return found
        if known.is_packed and not found.is_packed:
            known = BitArms(known.bits(), is_packed=False, dtype=known.dtype)
        return torch.cat([known, found])  # type: ignore[return-value]

    def _error(self, expected: str) -> InputDataError:
        return InputDataError(f"Expected the column {self.name!r} to have {expected}.")


class TableArms(LazyRows):
    r"""Candidates in a table whose columns are numbers, words or molecules.

    To PyTorch it is an ``A x d`` tensor of floats with a column for each column of the
    table: numbers as they are, words as codes 0, 1, 2, ... in order of their first
    appearance, whose size and order mean nothing. The kernel that
    :class:`~botorch_bkb.GPBandit` learns for it has one factor for all columns of
    words, one for all columns of numbers, and one for each column of molecules or
    cyclic numbers. Copies of another floating dtype or device are such tables, too.

    Args:
        frame: A ``pandas.DataFrame``. Numbers and truth values are numbers, text and
            categorical columns are categories, and ordered categories are numbers.
        molecules: For columns of words that name molecules: a mapping from each word to
            bits or counts of a fingerprint, or a function from a list of distinct words
            to an ``n x b`` array of them, or to :class:`~botorch_bkb.arms.BitArms`. A
            fingerprint is stored once for each distinct molecule.
        cyclic: The periods of columns of numbers that start again, such as ``{"hour":
            24}``.
        dtype: The dtype of the model.

    Attributes:
        names: The names of the columns.
        columns: What each column is, :class:`Column`.
        rows: The fingerprints of a column of molecules and the codes of one of
            categories, by code; None of a column of numbers.
        numbers: The ``A x d`` tensor as it is stored.

    Raises:
        InputDataError: If a cell is missing or no finite number, an option names no
            such column, or a molecule has no fingerprint.

    Example:
        >>> arms = TableArms(frame, molecules={"ligand": fingerprints})
        >>> bandit = GPBandit(arms)
    """

    columns: tuple[Column, ...]
    rows: ComponentRows
    numbers: Tensor

    @staticmethod
    def __new__(
        cls,
        frame: Any,
        molecules: Mapping[Any, LookUp] | None = None,
        cyclic: Mapping[Any, float] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> TableArms:
        """Read the frame."""
        molecules = {str(name): each for name, each in (molecules or {}).items()}
        cyclic = {str(name): each for name, each in (cyclic or {}).items()}
        names = column_names(frame) or []
        others = [name for name in (*molecules, *cyclic) if name not in names]
        if others or not names:
            raise InputDataError(
                "Expected a frame with columns, and `molecules` and `cyclic` to name "
                f"some of them, but the columns are {names}, and got {others}."
            )
        columns = []
        for name, cells in zip(names, _cells(frame), strict=True):
            period = cyclic.get(name, 0.0)
            if name in cyclic:
                check_positive(f"cyclic[{name!r}]", period)
            codes = {} if name in molecules else _ranks(cells)
            kind: ComponentKind = (
                "categories" if holds_words(cells) and not codes else "numbers"
            )
            kind = "molecules" if name in molecules else kind
            kind = "cyclic" if name in cyclic else kind
            columns.append(Column(name, kind, codes, molecules.get(name), period))
        rows = ComponentRows(
            torch.empty(0, 1, dtype=dtype) if column.grows else None
            for column in columns
        )
        none = torch.empty(0, len(names), dtype=dtype)
        return _table(none, tuple(columns), rows).encoded(frame)

    @classmethod
    def of(cls, frame: Any) -> TableArms:
        """Return the table of a frame; warn of words that probably name the rows."""
        arms = cls(frame)
        for name, words in arms.words.items():
            if len(words) == len(arms) > MOST_UNIQUE:
                warnings.warn(
                    f"The column {name!r} has another word in each of {len(arms):,} "
                    "rows, from which nothing can be learned. Leave it out if it names "
                    "the rows, or pass the fingerprints of molecules: "
                    f"`TableArms(frame, molecules={{{name!r}: ...}})`.",
                    InputDataWarning,
                    stacklevel=4,
                )
        return arms

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def kinds(self) -> list[ComponentKind]:
        """What each column is."""
        return [column.kind for column in self.columns]

    @property
    def words(self) -> dict[str, list[str]]:
        """The words of each column that has some, by code."""
        return {each.name: list(each.codes) for each in self.columns if each.codes}

    def encoded(self, frame: Any) -> TableArms:
        """Return the rows of another frame with these columns, in any order.

        Words that are new get the next codes.

        Raises:
            InputDataError: As the constructor; or if columns are missing, or are others
                than these.
        """
        cells = _cells(frame.iloc[:, places_of(frame, self.names)])
        read = [column.of(c) for column, c in zip(self.columns, cells, strict=True)]
        self._learn([new for _, new in read])
        numbers = np.stack([numbers for numbers, _ in read], axis=-1)
        return self.with_numbers(torch.from_numpy(numbers).to(self.numbers))

    def with_numbers(self, values: Tensor) -> TableArms:
        """Return other rows of the same columns, ``k x d``."""
        return _table(values, self.columns, self.rows)

    def recoded(self, values: Tensor, words: Mapping[str, list[str]]) -> Tensor:
        """Return rows with the codes of these columns, given their words by code.

        Words that are new get the next codes.

        Raises:
            InputDataError: If a column of words has none, or a code has no word.
        """
        values = values.clone()
        parts = [
            (column, words.get(column.name, []), codes)
            for column, codes in zip(self.columns, values.mT, strict=True)
        ]
        for column, theirs, codes in parts:
            known = codes.new_tensor(range(len(theirs)))
            if column.codes and not torch.isin(codes, known).all():
                raise column._error(f"codes of the words {theirs}")
        self._learn([column.new_words(theirs) for column, theirs, _ in parts])
        for column, theirs, codes in parts:
            if theirs:
                own = values.new_tensor([column.codes[word] for word in theirs])
                codes.copy_(own[codes.long()])
        return values

    def kernel_of(self, covar_module: Kernel) -> ComponentKernel:
        """Return a kernel of this table.

        Args:
            covar_module: A kernel of the columns side by side: the numbers of a column,
                the codes of its words, or the fingerprints of its molecules.
        """
        return ComponentKernel(self.rows, covar_module)

    def interactions_to_learn(self) -> ComponentKernel:
        """Return :func:`columns_to_learn`, on numbers normalized to the unit cube."""
        return self.kernel_of(columns_to_learn(self._side_by_side()))

    def effects_to_learn(self) -> ComponentKernel:
        """Return :func:`effects_to_learn`, on numbers normalized to the unit cube."""
        return self.kernel_of(effects_to_learn(self._side_by_side()))

    def _side_by_side(self) -> Iterator[tuple[ComponentKind, range, float]]:
        """Yield what each column is, and its columns beside those of the others."""
        start = 0
        for column, rows in zip(self.columns, self.rows, strict=True):
            stop = start + (1 if rows is None else rows.shape[-1])
            yield column.kind, range(start, stop), column.period
            start = stop

    def _learn(self, new: Sequence[list[str]]) -> None:
        """Give new words of each column the next codes."""
        rows: dict[int, Tensor] = {}
        for number, words in enumerate(new):
            before, column = self.rows[number], self.columns[number]
            if column.look_up is not None and words:
                rows[number] = column.fingerprints(before, words)
            elif words:
                size = len(before) + len(words)
                rows[number] = torch.arange(size, dtype=self.dtype).unsqueeze(-1)
        # Nothing has changed if there was an error.
        for number, joined in rows.items():
            self.rows[number] = joined
            column = self.columns[number]
            column.codes.update(column.next_codes(new[number]))

    @override
    def dense(self) -> Tensor:
        return self.numbers

    @override
    def _rows(self, rows: Tensor | slice) -> TableArms:
        return self.with_numbers(self.numbers[rows])

    @override
    def _joined(self, parts: list[Tensor]) -> TableArms:
        return self.with_numbers(torch.cat([as_dense(part) for part in parts]))

    @override
    def _done(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        # Plain codes would count as numbers.
        if func is torch.ops.aten._to_copy.default:
            numbers = func(self.numbers, *args[1:], **kwargs)
            return self.with_numbers(numbers) if numbers.is_floating_point() else None
        return super()._done(func, *args, **kwargs)

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return _table, (self.numbers, self.columns, self.rows)

    @override
    def __repr__(self) -> str:  # type: ignore[override]
        kinds = zip(self.names, self.kinds, strict=True)
        columns = ", ".join(f"{name}: {kind}" for name, kind in kinds)
        return f"TableArms of {len(self)} rows ({columns})"


def column_names(arms: Any) -> list[str] | None:
    """Return the names of a frame's columns, which are distinct; None without names."""
    if not (hasattr(arms, "to_numpy") and hasattr(arms, "columns")):
        return None
    names = Counter(map(str, arms.columns))
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        raise InputDataError(
            f"Expected distinct names of columns, but got {repeated} more than once. "
            "Rename them, or pass `to_numpy()`, whose columns go by their order."
        )
    return list(names)


def by_name(arms: Any, names: list[str] | None) -> Any:
    """Return a frame's columns in the order of names; anything else as it is."""
    if column_names(arms) is None or names is None:
        return arms
    places = places_of(arms, names)
    check_cells(arms)
    return np.asarray(arms)[:, places]


def check_cells(frame: Any) -> None:
    """Raise if a column of a pandas frame has a cell that is not a finite number.

    Raises:
        InputDataError: It names the column.
    """
    names = column_names(frame) if hasattr(frame, "iloc") else None
    for name, cells in zip(names, _cells(frame), strict=True) if names else ():
        if not (isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "biu"):
            Column(name, "numbers").of(cells)


def places_of(frame: Any, names: list[str]) -> list[int]:
    """Return where a frame has the columns of some names, and no others.

    Raises:
        InputDataError: If columns are missing, or are others than these.
    """
    found = column_names(frame) or []
    missing = [name for name in names if name not in found]
    more = [name for name in found if name not in names]
    if missing or more:
        raise InputDataError(
            f"Expected the columns {names}, in any order, but the frame lacks "
            f"{missing} and has {more} beside them. Add or leave out columns."
        )
    return [found.index(name) for name in names]


def has_words(arms: Any) -> bool:
    """Whether arms are a frame with a column of words."""
    is_frame = hasattr(arms, "iloc") and hasattr(arms, "columns")
    return is_frame and any(map(holds_words, _cells(arms)))


def holds_words(cells: Any) -> bool:
    """Whether a column of a frame holds words, or else numbers.

    Raises:
        InputDataError: If it holds neither.
    """
    kind = cells.dtype.kind
    if hasattr(cells.dtype, "categories") or kind in "biuf":
        return kind not in "biuf"
    types = {cells.dtype.type}  # of all cells, except of objects
    if kind in "OU" and str not in types:
        types = {*map(type, cells.dropna())}
    if all(issubclass(each, str) for each in types):
        return True
    # NumPy counts spans of time as numbers.
    others = complex, np.complexfloating, np.timedelta64
    if all(issubclass(each, Number | np.bool_) for each in types) and not any(
        issubclass(each, others) for each in types
    ):
        return False
    raise InputDataError(
        f"Expected the column {str(cells.name)!r} to hold numbers or words, but got "
        f"{sorted(each.__name__ for each in types)}. Leave it out, or turn it into one "
        "of them, dates for instance into days since the first."
    )


def _cells(frame: Any) -> Iterator[Any]:
    """Yield the columns of a frame."""
    return (frame.iloc[:, number] for number in range(frame.shape[1]))


def _ranks(cells: Any) -> dict[str, int]:
    """Return the ranks of ordered categories."""
    is_ordered = getattr(cells.dtype, "ordered", False)
    levels = cells.dtype.categories if is_ordered else ()
    words = dict.fromkeys(map(_word, levels))
    return {word: rank for rank, word in enumerate(words)}


def _word(label: Any) -> str:
    """Return the name of a category; 60.0, beside an empty cell, is 60."""
    return f"{label:.15g}" if isinstance(label, float) else str(label)


def _table(
    values: Tensor, columns: tuple[Column, ...], rows: ComponentRows
) -> TableArms:
    arms: TableArms = Tensor._make_wrapper_subclass(
        TableArms, values.shape, dtype=values.dtype, device=values.device
    )
    arms.numbers, arms.columns, arms.rows = values, columns, rows
    return arms
