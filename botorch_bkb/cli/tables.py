"""Tables in, tables out, and the rule that turns columns into features."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError


MAX_ONE_HOT_VALUES = 20

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

    Args:
        path: The file.
        text_columns: Columns to keep as text, so that an id ``007`` stays one.

    Raises:
        InputDataError: If the file is missing, of another kind, or not readable.
    """
    if not path.is_file():
        raise InputDataError(f"There is no table at {path}.")
    try:
        if is_parquet(path):
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype=dict.fromkeys(text_columns, "str"))
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (ValueError, OSError) as error:
        raise InputDataError(f"Could not read the table {path}: {error}") from error
    for column in table.columns.intersection(list(text_columns)):
        table[column] = table[column].astype("str").where(table[column].notna())
        table[column] = table[column].str.strip()
    return table


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
    Constant columns are dropped with a note.

    Args:
        table: The table.
        exclude: Columns that are no features: the reward, the id.
        drop: Columns that the user wants dropped.
        codes: The number of each value, by column.

    Raises:
        InputDataError: If a value is missing or infinite, a text column has too many
            values, ``drop`` or ``codes`` name something that is not there, or no
            feature is left.
    """
    codes = codes or {}
    _require_known(table, drop, "--drop")
    _require_known(table, codes, "--code")
    columns = [c for c in table.columns if c not in exclude and c not in drop]
    notes: list[str] = []
    features: dict[str, pd.Series] = {}
    for name in columns:
        column = table[name]
        _require_complete(column)
        if name in codes:
            features[name] = _coded(column, codes[name])
        elif pd.api.types.is_numeric_dtype(column):
            features[name] = column.astype("float64")
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


def _require_known(table: pd.DataFrame, names: Collection[str], option: str) -> None:
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise InputDataError(
            f"{option} names {unknown[0]!r}, but the table's columns are "
            f"{list(table.columns)}."
        )


def _require_complete(column: pd.Series) -> None:
    bad = column.isna().to_numpy()
    if pd.api.types.is_float_dtype(column):
        bad = bad | np.isinf(column.to_numpy(dtype="float64", na_value=np.nan))
    if bad.any():
        raise InputDataError(
            f"Column {column.name!r} has a missing or infinite value in "
            f"{row_name(bad)}. Fill it, remove the row, or pass --drop {column.name}."
        )


def row_name(selected: np.ndarray) -> str:
    """Name the first selected row as a reader of the file counts."""
    return f"row {int(selected.argmax()) + 1} (the first under the header is row 1)"


def _coded(column: pd.Series, numbers: Mapping[str, float]) -> pd.Series:
    coded = column.astype("str").map(numbers).astype("float64")
    unknown = coded.isna().to_numpy()
    if unknown.any():
        value = column[unknown].iloc[0]
        raise InputDataError(
            f"--code gives no number for {value!r} in column {column.name!r}, only for "
            f"{list(numbers)}."
        )
    return coded


def _one_hot(column: pd.Series) -> dict[str, pd.Series]:
    text = column.astype("str")
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
