"""Tables in, tables out, and the rule that turns columns into features."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError


MAX_ONE_HOT_VALUES = 20
# Larger numbers overflow when they are squared and summed.
MAX_NUMBER = 1e100

Codes = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class FeatureTable:
    """Numeric features, and what was done to get them.

    Attributes:
        values: One float64 column per feature, no gaps, none constant.
        notes: One sentence per column that was dropped or coded.
    """

    values: pd.DataFrame
    notes: tuple[str, ...]


def read_table(path: Path, text_columns: Collection[str] = ()) -> pd.DataFrame:
    """Read a CSV file, perhaps compressed, or a Parquet file, by its suffix.

    Names of columns lose the spaces around them, and blank lines are left out; the
    index keeps the number of each row in the file, from zero.

    Args:
        path: The file.
        text_columns: Columns to keep as text, so that an id ``007`` stays one.

    Raises:
        InputDataError: If the file is missing, of another kind, or not readable, has
            rows longer than its header, or a column twice.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}.")
    try:
        if is_parquet(path):
            table = pd.read_parquet(path).reset_index(drop=True)
            # Of a damaged file: text that is none shows only where it is decoded.
            table.select_dtypes("str").to_numpy(dtype=object)
        else:
            table = _read_csv(path, text_columns)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    # Which of their many errors pandas, pyarrow and zlib raise is no matter here.
    except Exception as error:
        raise InputDataError(f"Could not read the table {path}: {error}") from error
    table.columns = pd.Index([str(name).strip() for name in table.columns])
    repeated = table.columns[table.columns.duplicated()]
    if len(repeated):
        raise InputDataError(
            f"{path} has the column {repeated[0]!r} more than once. Rename one of them."
        )
    for column in table.columns.intersection(list(text_columns)):
        table[column] = table[column].astype("str").where(table[column].notna())
        table[column] = table[column].str.strip()
    return table


def _read_csv(path: Path, text_columns: Collection[str]) -> pd.DataFrame:
    # With the names read apart: pandas renames columns of the same name, and takes the
    # first column for an index where the rows are longer than the header.
    names = pd.read_csv(path, header=None, nrows=1, dtype="str").iloc[0].fillna("")
    is_text = [name for name in names if name.strip() in text_columns]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # A column of mixed types is looked at later, value by value.
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)
        try:
            table = pd.read_csv(
                path,
                dtype=dict.fromkeys(is_text, "str"),
                index_col=False,
                skip_blank_lines=False,
            )
        except pd.errors.ParserWarning as warning:
            raise ValueError("row 1 has more fields than the header") from warning
    if len(names) == len(table.columns):
        table.columns = pd.Index(names)
    return table.dropna(how="all")


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file, by its suffix, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_parquet(path):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def is_parquet(path: Path) -> bool:
    """Tell a Parquet name from a CSV name.

    Raises:
        InputDataError: If it is neither.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".parquet"]:
        return True
    if suffixes[-1:] == [".csv"] or suffixes[-2:-1] == [".csv"]:
        return False
    raise InputDataError(
        f"Expected a table named *.csv, *.csv.gz or *.parquet, but got {path}."
    )


def require_column(table: pd.DataFrame, column: str, path: Path, option: str) -> None:
    """Refuse a table that lacks a column which an option names.

    Raises:
        InputDataError: If the column is missing.
    """
    if column not in table.columns:
        raise InputDataError(
            f"{path} has no column {column!r}, only {list(table.columns)}. Name it by "
            f"{option}."
        )


def feature_table(
    table: pd.DataFrame,
    *,
    exclude: Collection[str],
    drop: Collection[str] = (),
    codes: Codes | None = None,
) -> FeatureTable:
    """Turn a table's columns into numeric features.

    Numeric columns are features as they are. A text column is coded by ``codes`` where
    they name it, else by one column of 0 and 1 per value if it has at most 20 values.
    Constant columns are dropped with a note. Text among numbers is refused: it is
    likelier to be a slip than a kind.

    Args:
        table: The table.
        exclude: Columns that are no features: the reward, the id.
        drop: Columns that the user wants dropped.
        codes: The number of each value, by column.

    Raises:
        InputDataError: If there is no row, a value is missing, infinite, neither number
            nor text, or text among numbers, a text column has too many values, ``drop``
            or ``codes`` name something that is not there, or no feature is left.
    """
    codes = codes or {}
    _require_known(table, drop, "--drop")
    _require_known(table, codes, "--code")
    if table.empty:
        raise InputDataError("Expected a table of at least one row, but it has none.")
    columns = [c for c in table.columns if c not in exclude and c not in drop]
    notes: list[str] = []
    features: dict[str, pd.Series] = {}
    for name in columns:
        column = table[name]
        _require_complete(column)
        _require_plain(column)
        if name in codes:
            features[name] = _coded(column, codes[name])
        elif is_numeric(column):
            features[name] = to_numbers(column)
        else:
            one_hot = _one_hot(column)
            features.update(one_hot)
            notes.append(
                f"text column {name!r} became {len(one_hot)} columns of 0 and 1"
            )
    for name in [name for name, column in features.items() if column.nunique() == 1]:
        del features[name]
        notes.append(f"column {name!r} is constant and was dropped")
    if not features:
        raise InputDataError(
            "Expected at least one column that can be a feature, but none of "
            f"{list(table.columns)} is left."
        )
    return FeatureTable(pd.DataFrame(features), tuple(notes))


def reward_column(column: pd.Series) -> pd.Series:
    """Return a column of rewards as numbers.

    Raises:
        InputDataError: If a value is missing, infinite, huge, or no number.
    """
    rewards = to_numbers(column)
    wrong = ~(rewards.abs() <= MAX_NUMBER)
    if wrong.any():
        raise InputDataError(
            f"Column {column.name!r} has the reward {str(column[wrong].iloc[0])!r} in "
            f"{row_name(wrong)}, which is no finite number. Fill it or remove the row."
        )
    return rewards


def _require_known(table: pd.DataFrame, names: Collection[str], option: str) -> None:
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise InputDataError(
            f"{option} names {unknown[0]!r}, but the table's columns are "
            f"{list(table.columns)}."
        )


def _require_complete(column: pd.Series) -> None:
    bad = column.isna()
    if is_numeric(column):
        bad |= ~(to_numbers(column).abs() <= MAX_NUMBER)
    if bad.any():
        raise InputDataError(
            f"Column {column.name!r} has a missing, infinite or huge value in "
            f"{row_name(bad)}. Fill it, remove the row, or pass --drop {column.name}."
        )


def _require_plain(column: pd.Series) -> None:
    """Refuse what is neither number nor text, as only Parquet can hold it."""
    if is_numeric(column):
        return
    other = ~column.map(lambda value: isinstance(value, str)).astype("bool")
    other &= to_numbers(column).isna()
    if other.any():
        raise InputDataError(
            f"Column {column.name!r} has the value {column[other].iloc[0]} in "
            f"{row_name(other)}, which is neither a number nor text. Turn the column "
            f"into one of them, or pass --drop {column.name}."
        )


def is_numeric(column: pd.Series) -> bool:
    """Tell whether all values of a column are numbers or truth values, or missing."""
    if pd.api.types.is_complex_dtype(column):
        return False
    if pd.api.types.is_numeric_dtype(column):
        return True
    if column.dtype != object:
        return False
    # Decimals, and numbers too large for a computer's integers.
    present = column.dropna()
    is_text = present.map(lambda value: isinstance(value, str)).astype("bool")
    return not is_text.any() and bool(to_numbers(present).notna().all())


def to_numbers(column: pd.Series) -> pd.Series:
    """Return double precision numbers, NaN where a value is none."""
    if pd.api.types.is_numeric_dtype(column):
        return pd.Series(
            column.to_numpy(dtype="float64", na_value=np.nan),
            index=column.index,
            name=column.name,
        )
    return pd.to_numeric(column.map(str), errors="coerce").astype("float64")


def row_name(selected: pd.Series) -> str:
    """Name the first selected row as a reader of the file counts."""
    rows = selected.index.to_numpy("int64")
    return f"row {rows[selected].min() + 1} (the first under the header is row 1)"


def _coded(column: pd.Series, numbers: Mapping[str, float]) -> pd.Series:
    coded = column.astype("str").map(numbers).astype("float64")
    unknown = coded.isna()
    if unknown.any():
        value = column[unknown].iloc[0]
        raise InputDataError(
            f"--code gives no number for {value!r} in column {column.name!r}, "
            f"{row_name(unknown)}, only for {list(numbers)}."
        )
    return coded


def _one_hot(column: pd.Series) -> dict[str, pd.Series]:
    text = column.astype("str").str.strip()
    number = pd.to_numeric(text, errors="coerce").notna()
    if number.all():
        # Or the column would have been read as one of numbers.
        hidden = ~column.map(str.isprintable).astype("bool")
        hidden = hidden if hidden.any() else number
        raise InputDataError(
            f"Column {column.name!r} has numbers beside characters that no number has, "
            f"such as {column[hidden].iloc[0]!r} in {row_name(hidden)}. Correct them, "
            f"or pass --drop {column.name}."
        )
    if number.any():
        word, value = text[~number].iloc[:1], text[number].iloc[:1]
        raise InputDataError(
            f"Column {column.name!r} has the text {word.iloc[0]!r} in "
            f"{row_name(~number)}, and the number {value.iloc[0]} elsewhere. Correct "
            f"one of them, or pass --drop {column.name}, or --code "
            f"{column.name}:VALUE=NUMBER,... if the numbers are names."
        )
    values = sorted(text.unique())
    if len(values) > MAX_ONE_HOT_VALUES:
        raise InputDataError(
            f"Text column {column.name!r} has {len(values)} different values, more "
            f"than the {MAX_ONE_HOT_VALUES} that are coded as columns of 0 and 1. Pass "
            f"--drop {column.name}, or --code {column.name}:VALUE=NUMBER,..."
        )
    return {
        f"{column.name}={value}": (text == value).astype("float64") for value in values
    }
