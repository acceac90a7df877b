"""The rules that turn the columns of candidates into features."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import BitArms, ParquetArms, TableArms
from botorch_bkb.cli.arguments import KernelName, SuggestOptions
from botorch_bkb.cli.molecules import distinguished, Fingerprints
from botorch_bkb.cli.tables import AVAILABLE_WORDS, note, quoted
from botorch_bkb.integrations.chem import DESCRIPTORS
from botorch_bkb.tables.columns import (
    days,
    is_no_number,
    is_numeric,
    is_text,
    listing,
    MAX_NUMBER,
    require_column,
    row_name,
    to_numbers,
    WRITE_NUMBERS,
)


# So many columns of 0 and 1 without others are compared as fingerprints by default.
MIN_BITS = 64
MAX_COUNT = 255
# Names of columns that are seldom settings.
OF_STOCK = re.compile("avail|stock|inventory", re.IGNORECASE)
OF_ORDERS = re.compile("supplier|vendor|price|comment|remark|barcode", re.IGNORECASE)
# Of a column that no option names.
MAX_WORDS = 20
# Faults in one message.
NUM_FAULTS_SHOWN = 5
# Values are crowded if all but one in a hundred at either end lie in one hundredth of
# their column's range.
CROWD_SHARE, FAR_SHARE, MIN_CROWD = 0.01, 0.01, 8
# A word that occurs once is probably a slip if others occur that often.
USUAL_COUNT = 5
# 20 C, 1,200, 20-25, 1:10, 3.2.2026 and 3 Feb 2026, but neither 2-propanol nor A4.
LOOKS_NUMERIC = re.compile(
    r"\W*\d(?:[\d\s.,'\u2019:/\u00d7*±~^\u2013-]*\d)?\s*(?:(?:[^\W\d_]|[°%‰]).{0,11})?"
    r"|\d+[-./ ]+[^\W\d_]{3,9}[-./, ]+\d+"
)


@dataclass(frozen=True)
class Features:
    """The candidates as the model sees them: numbers, fingerprints, or a table of both.

    Attributes:
        arms: A row of features per candidate.
        kernel: The kernel that compares them; None for the bandit's default.
        columns: The columns or components that are features; those of fingerprints
            that are not ``TableArms`` are no such column.
        names: The names of the features that have a lengthscale each.
    """

    arms: Tensor
    kernel: KernelName | None
    columns: Sequence[str]
    names: Sequence[str] = ()

    def shared_columns(self, args: SuggestOptions) -> list[int] | None:
        """Return the numbers of the features of --same; None without."""
        arms, shared = self.arms, list[int]()
        num_bits = arms.num_bits if isinstance(arms, BitArms) else 0
        for name in args.same:
            if name in self.columns:
                shared.append(num_bits + self.columns.index(name))
            elif name in args.smiles and num_bits:
                shared += range(num_bits)
            else:
                raise InputDataError(
                    "Expected --same to name columns that are features, such as "
                    f"{listing([*self.columns, *args.smiles], 5)}, but got {name!r}."
                )
        return shared or None


def table_features(
    rows: pd.DataFrame, molecules: Mapping[str, Fingerprints], args: SuggestOptions
) -> Features:
    """Make features of the candidates' columns, by the options of `suggest`."""
    if rows.index.nlevels == 1:  # messages name the file of a row
        rows = rows.set_axis(pd.MultiIndex.from_product([[args.arms.name], rows.index]))
    note_forgotten(rows, args)
    smiles, periods = [*molecules], dict(args.cyclic)
    bits = [] if smiles else fingerprint_columns(rows, args)
    beside = [*smiles, *bits]
    options = {"--drop": args.drop, "--category": args.category, "--cyclic": periods}
    for option, named in options.items():
        for name in named:
            require_column(rows, name, args.arms, option)
            if name in smiles:
                raise InputDataError(
                    f"--smiles and {option} name {name!r}. Leave it out of one of them."
                )
    others = [name for name in feature_columns(rows, args) if name not in beside]
    table = feature_table(rows[others], args.category)
    if table.empty and not beside:
        raise InputDataError(
            "Expected at least one column that can be a feature and is not constant, "
            f"but there is none among {list(rows.columns)}. Add one."
        )
    columns = [str(name) for name in table]
    words = [name for name in columns if not is_numeric(table[name])]
    for name, _ in args.cyclic:
        if name not in others or name in words or len(periods) < len(args.cyclic):
            raise InputDataError(
                "Expected --cyclic to name features of numbers, each once, but got "
                f"{name!r}. Leave out the option, or write numbers."
            )
    periods = {name: period for name, period in periods.items() if name in columns}
    special = [*words, *periods, *smiles[1:]]
    if special and (bits or args.kernel not in (None, "tanimoto")):
        word = quoted(special[0])
        leave = f"{word} of --smiles" if special[0] in smiles else f"pass --drop {word}"
        raise InputDataError(
            f"--kernel {args.kernel} compares numbers, or one column of molecules, but "
            f"{special[0]!r} is a column of words, cyclic numbers or more molecules, "
            f"which --kernel does not fit. Leave out --kernel, or {leave}."
        )
    kernel = args.kernel or ("tanimoto" if beside else None)
    by = ", compared by a Tanimoto kernel" if kernel == "tanimoto" else ""
    by += " each" if smiles[1:] else ""
    described = list[str]()
    if not special and any(own.descriptors.size for own in molecules.values()):
        described = [f"RDKit {name}" for name in DESCRIPTORS]
    beside_bits = ["the descriptors"] * bool(described)
    beside_bits += ["the other columns"] * bool(columns)
    if by and beside_bits and not special:
        by += f" and a Matern kernel of {' and '.join(beside_bits)}"
    if smiles:
        shown = f"column{'s' * bool(smiles[1:])} {', '.join(map(repr, smiles))}"
        kind = "bits" if args.bits else "counts"
        kind += f", and {len(described)} descriptors" if described else ""
        note(
            f"{shown} became Morgan fingerprints of radius {args.radius}, "
            f"{args.num_bits:,} {kind}{by}"
        )
    if special:
        frame = pd.concat([rows[smiles], table], axis="columns")
        look_ups = {
            name: partial(_bit_arms, name, own, args.bits)
            for name, own in molecules.items()
        }
        names = [name for name in columns if name not in special]
        return Features(TableArms(frame, look_ups, periods), None, [*frame], names)
    numbers = torch.from_numpy(table.to_numpy(dtype="float64", copy=True))
    if not beside:
        return Features(numbers, kernel, columns, columns)
    if bits:
        codes = rows[bits].to_numpy(dtype="uint8", copy=True)
        is_packed = int(codes.max()) <= 1
        if is_packed:  # rows are filled up with zeros, which change no similarity
            codes = np.packbits(codes, axis=-1)
        kind = "0 and 1" if is_packed else "counts"
        note(
            f"{len(bits):,} columns of {kind} are fingerprints{by} (--kernel matern or "
            "rbf for another)"
        )
    else:
        (name,) = smiles
        codes, is_packed = molecules[name].of(rows[name]), args.bits
    if described:
        values = torch.from_numpy(molecules[name].descriptors_of(rows[name]))
        numbers = torch.cat([numbers, values], dim=-1)
    arms = BitArms(codes, is_packed, numbers)
    # Other kernels than Tanimoto's have a lengthscale per bit.
    num_bits = 0 if kernel == "tanimoto" else arms.num_bits
    names = [*(f"bit {n}" for n in range(num_bits)), *columns, *described]
    return Features(arms, kernel, columns, names)


def _bit_arms(
    name: str, found: Fingerprints, is_packed: bool, smiles: list[str]
) -> BitArms:
    """Return the fingerprints of molecules of a column, none of them equal."""
    rows = distinguished(name, smiles, found.of(smiles), is_packed)
    return BitArms(rows, is_packed)


def library_features(columns: Sequence[str], args: SuggestOptions) -> Features:
    """Return the features of a table that stays in its file, and say so."""
    path = args.arms
    if args.category or args.drop_incomplete or args.cyclic:
        raise InputDataError(
            "--category, --cyclic and --drop-incomplete need the table in memory, but "
            f"{path} is too large for that: its columns are features as they are. "
            "Compute them beforehand."
        )
    names = feature_columns(columns, args)
    arms = ParquetArms([path], names, dtype=torch.double, quiet=args.quiet)
    note(
        f"{path.name} is too large to be read as a whole: its {len(names):,} columns "
        "of numbers stay in the file, and are read a part at a time (--kernel tanimoto "
        "reads columns of fingerprints, and compares these)"
    )
    own = tuple(arms.source.columns)
    return Features(arms, args.kernel, own, own)


def fingerprint_columns(table: pd.DataFrame, args: SuggestOptions) -> list[str]:
    """Return the columns that a Tanimoto kernel compares."""
    if args.kernel not in (None, "tanimoto"):
        return []
    names = feature_columns(table, args)
    others = [n for n in names if n not in (*args.category, *dict(args.cyclic))]
    bits = [name for name in others if _is_whole(table[name], 1)]
    if args.kernel is None:
        return names if len(bits) == len(names) >= MIN_BITS else []
    if not bits and all(_is_whole(table[name], MAX_COUNT) for name in names):
        bits = names
    if not bits:
        raise InputDataError(
            "--kernel tanimoto needs columns of 0 and 1, or only columns of whole "
            f"numbers from 0 to {MAX_COUNT}, but there are none. Pass --smiles for "
            "molecules, or leave out --kernel."
        )
    return bits


def _is_whole(column: pd.Series, largest: int) -> bool:
    """Whether all cells are whole numbers from 0 to another."""
    if not is_numeric(column) or column.dtype == object:
        return False
    return bool(((column >= 0) & (column <= largest) & (column % 1 == 0)).all())


def feature_columns(names: Iterable[Hashable], args: SuggestOptions) -> list[str]:
    """Return the columns of candidates that are features, by the options."""
    # Measurements are often kept in a copy of the candidates' table.
    others = {args.id, *args.drop, *args.outcome_columns}
    others.update(filter(None, (args.available, args.noise_column, args.group)))
    return [str(name) for name in names if name not in others]


def note_forgotten(table: pd.DataFrame, args: SuggestOptions) -> None:
    """Name features that are probably no settings, with the options that help."""
    for name in feature_columns(table, args):
        column, word, hint = table[name], quoted(name), ""
        words = {*column.str.casefold()} if is_text(column) else set()
        if OF_STOCK.search(name) or (words and words <= {*AVAILABLE_WORDS}):
            if args.command == "suggest" and not args.component:
                hint = f"; --available {word} if it says what is available"
        elif 2 * len(words) <= len(column) and not OF_ORDERS.search(name):
            continue
        if name not in (*args.smiles, *args.category) and column.nunique() > 1:
            note(f"column {name!r} is a feature (--drop {word} leaves it out{hint})")


def feature_table(
    table: pd.DataFrame, categories: Collection[str] = ()
) -> pd.DataFrame:
    """Turn a table's columns into features, and print how.

    Columns of numbers and dates become float64. A column of text, which is of
    categories, has at most 20 different words or is one of ``categories``. Constant
    columns are dropped.
    """
    gaps = _gaps(table)
    if gaps:
        first, bad = next(iter(gaps.items()))
        name, cell = quoted(first), table[first][bad].iloc[0]
        has, fill = f"the number {cell}, beyond {MAX_NUMBER:g},", "Correct it"
        if cell != cell:
            has = "an empty cell"
            fill = "If it is a setting, fill it (NA, None and the like count as empty)"
            fill += ". If the setting does not apply there, write the column's median "
            fill += f"(or a word such as without, and --category {name}), and add a "
            fill += "column of yes and no that says so"
        more = f"Columns with such cells: {listing(list(gaps))}. " * (len(gaps) > 1)
        raise InputDataError(
            f"Column {first!r} has {has} in {row_name(bad)}. {more}{fill}. If it is a "
            f"comment, pass --drop {name}, or --drop-incomplete for all columns with "
            "such cells. Or remove the row."
        )
    notes: list[str] = []
    features: dict[str, pd.Series] = {}
    faults = []
    for key, column in table.items():
        name, said = str(key), ""
        try:
            if is_numeric(column) and name not in categories:
                values = to_numbers(column)
            else:
                values, said = _read_text(column, name in categories)
        except InputDataError as error:
            faults.append(str(error))
            continue
        if values.nunique() > 1:
            features[name] = values
        else:
            said = f"column {name!r} is constant and was dropped"
        notes.append(said)
    if faults:
        raise InputDataError(" ".join(faults[:NUM_FAULTS_SHOWN]))
    for text in [*notes, *map(_crowd, features.values())]:
        note(text)
    return pd.DataFrame(features, index=table.index)


def _crowd(column: pd.Series) -> str:
    """Return a note if a few far values leave the others a small part of the range."""
    if not is_numeric(column):
        return ""
    values = np.sort(column.to_numpy())
    num_far = max(1, int(FAR_SHARE * len(values)))
    inner = values[num_far : len(values) - num_far]
    # Equal values are those of a column that marks something rare.
    most = CROWD_SHARE * np.ptp(values)
    if len(inner) < MIN_CROWD or not 0 < np.ptp(inner) <= most:
        return ""
    distance = (column - inner.mean()).abs()
    is_farthest = distance == distance.max()
    return (
        f"column {column.name!r} is scaled by its range from {values[0]:g} to "
        f"{values[-1]:g}, but nearly all of its {len(values):,} values are near "
        f"{inner.mean():g}, and the model can hardly distinguish them. Correct "
        f"{column[is_farthest].iloc[0]:g} in {row_name(is_farthest)} if it is a slip. "
        "Otherwise replace the column by its logarithm"
    )


def drop_incomplete(table: pd.DataFrame, args: SuggestOptions) -> None:
    """Add the columns with missing values to ``args.drop``, and say so."""
    kept = {*args.smiles, *args.category}
    columns = [name for name in feature_columns(table, args) if name not in kept]
    names = list(_gaps(table[columns]))
    args.drop = [*args.drop, *names]
    if names:
        note(
            f"--drop-incomplete: {len(names):,} columns with missing values are left "
            f"out: {listing(names)}"
        )


def _gaps(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the rows with a missing, infinite or huge value, by column."""
    gaps = {}
    for name, column in table.items():
        bad = column.isna()
        if is_numeric(column):
            bad |= ~(to_numbers(column).abs() <= MAX_NUMBER)
        if bad.any():
            gaps[str(name)] = bad
    return gaps


def _read_text(column: pd.Series, is_category: bool) -> tuple[pd.Series, str]:
    """Return the days or words of a column that is not of numbers, and a note."""
    # Parquet has others, and candidates from two tables may be of both kinds.
    other = ~column.map(lambda cell: isinstance(cell, str | Number)).astype("bool")
    if other.any():
        raise InputDataError(
            f"Column {column.name!r} has the value {column[other].iloc[0]} in "
            f"{row_name(other)}, which is neither a number nor text. Turn the column "
            f"into one of them, or pass --drop {quoted(column.name)}."
        )
    text = column.astype("str")
    dates = None if is_category else days(text)
    if dates is not None:
        first = text[dates == 0].iloc[0][:10]
        return dates, (
            f"column {text.name!r} holds dates, which became days since {first}"
        )
    if not is_category:
        _require_names(text)
    counts = text.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    shown = listing([f"{value} ({count})" for value, count in counts.items()])
    return text, (
        f"column {text.name!r} has {len(counts):,} words, compared as categories: "
        f"{shown}"
    )


def _require_names(text: pd.Series) -> None:
    """Raise an error if text is probably a number, a slip or an id, and not a name."""
    values, name = text.drop_duplicates(), quoted(text.name)
    is_like_number = values.map(lambda value: bool(LOOKS_NUMERIC.fullmatch(value)))
    wrong, remedy = None, "Correct it if it is a slip"
    is_mostly_numbers = 2 * is_like_number.sum() >= max(1, len(values))
    has_numbers = to_numbers(values).notna().any()
    if has_numbers or (is_mostly_numbers and not is_no_number(values).all()):
        wrong, why = is_no_number(text), "stands among numbers"
        remedy = f"{WRITE_NUMBERS}. Write dates as 2026-01-31"
    elif is_mostly_numbers:
        wrong = text.isin(values[is_like_number])
        why = "looks like a number or a date"
        remedy = f"{WRITE_NUMBERS}. Write dates as 2026-01-31"
    elif len(values) > MAX_WORDS:
        wrong = text == values.iloc[-1]
        why = f"is one of {len(values)} different words; more than {MAX_WORDS} are "
        why += "probably ids"
        remedy = f"Pass --id {name} if it names the rows"
    else:
        slip = find_slip(text.value_counts(sort=False))
        if slip is not None:
            wrong, why = text == slip[0], slip[1]
    if wrong is not None:
        raise InputDataError(
            f"Text column {text.name!r} has {text[wrong].iloc[0]!r} in "
            f"{row_name(wrong)}, which {why}. {remedy}. Pass --category {name} if "
            f"its values are names, or --drop {name}."
        )


def find_slip(counts: pd.Series) -> tuple[str, str] | None:
    """Return a value that is probably misspelt, and why."""
    counts = counts.sort_values(ascending=False, kind="stable")
    first: dict[str, str] = {}
    for value in counts.index:
        folded = unicodedata.normalize("NFKC", value).casefold()
        usual = first.setdefault("".join(folded.split()), value)
        if usual != value:
            return value, f"differs from {usual!r} in case or spaces only"
    is_word = counts.index.str.casefold().isin(AVAILABLE_WORDS)
    for value in counts.index[(counts == 1) & ~is_word]:
        usual_count = counts.drop(value).median()
        if usual_count >= USUAL_COUNT:
            return value, f"occurs once where others occur {usual_count:g} times"
    return None
