"""The next batch from a product space: lists of components instead of candidates."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError

from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.cli.features import note_forgotten
from botorch_bkb.cli.molecules import read_smiles
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.results import (
    check_copies,
    check_output,
    COLUMNS_OF_NEXT,
    last_failures,
    note_unused_columns,
    read_results,
    read_rewards,
)
from botorch_bkb.cli.tables import (
    find_column,
    is_numeric,
    listing,
    outcome_columns,
    read_by_options,
    require_column,
    require_ids,
    row_name,
    unit_trouble,
)


# Between the names of the components of one product.
JOIN = " + "
SMILES = "smiles"


class ProductIds:
    """The names of products, such as ``A3 + B1 + 60``, made when they are needed."""

    def __init__(self, arms: ProductArms, names: Sequence[pd.Index]) -> None:
        self.arms = arms
        self.names = names

    def parts(self, indices: Any) -> pd.DataFrame:
        """Return the names of the components of products, a column each."""
        positions = self.arms.components(indices).numpy()
        columns = zip(self.arms.names, self.names, positions.T, strict=True)
        return pd.DataFrame({name: own[at] for name, own, at in columns})

    def __getitem__(self, indices: Any) -> Any:
        parts = self.parts(np.atleast_1d(indices)).astype("str")
        found = parts.agg(JOIN.join, axis="columns").to_numpy()
        return found if np.ndim(indices) else found[0]


class Products:
    """A product space with its results.

    Its attributes that a :class:`~botorch_bkb.cli.campaign.Campaign` has too mean the
    same.

    Attributes:
        arms: The product space; elements that only results have are forbidden.
        ids: The names of its products.
        results: The results that did not fail.
        indices: The product of each.
        rewards: The result of each, NaN while it is in flight.
        failed: The products whose last measurement failed.
        form: The format of the last CSV file of results.
        num_candidates: The number of products.
    """

    id_column = "id"

    def __init__(self, args: argparse.Namespace) -> None:
        names = [name for name, _ in args.component]
        unknown = [name for name in args.smiles if name not in names]
        if len({*names}) < len(names) or unknown:
            raise InputDataError(
                "Expected --component to name each component once, and --smiles to "
                f"name some of them, but got {names} and {args.smiles}."
            )
        outcomes = outcome_columns(args)
        taken = {*names}.intersection([*COLUMNS_OF_NEXT, *outcomes])
        if taken:
            raise InputDataError(
                f"Expected other names of components than {sorted(taken)}, which are "
                "columns of the results or of the batch. Rename them."
            )
        results, is_failed, last = read_results(args, names, is_numbered=True)
        note_unused_columns(results, [*names, *outcomes, args.round, args.noise_column])
        check_copies(results, args)
        lists = {name: _read_list(name, text, args) for name, text in args.component}
        known = {name: len(own) for name, own in lists.items()}
        for name in names:
            lists[name] = _with_results(name, lists[name], results[name], args)
        self.names = [own.index for own in lists.values()]
        rules: list[Mapping[str, int]] = [
            {name: position}
            for name, own in lists.items()
            for position in range(known[name], len(own))
        ]
        rules += [_rule(text, lists) for text in args.forbid]
        tables = {name: _features(name, own, args) for name, own in lists.items()}
        self.arms = ProductArms(tables, forbidden=rules)
        self.ids = ProductIds(self.arms, self.names)
        check_output(args, results, None, names)
        rewards = read_rewards(results, args)
        positions = [_places(own, results[name]) for name, own in lists.items()]
        indices = self.arms.numbers(torch.from_numpy(np.stack(positions, axis=-1)))
        numbers = indices.numpy()
        self.failed = torch.from_numpy(last_failures(numbers, is_failed, self.ids))
        self.results = results[~is_failed]
        self.indices = numbers[~is_failed]
        self.rewards = rewards.to_numpy(dtype="float64")[~is_failed]
        self.form = last.form
        self.num_candidates = math.prod(known.values())

    @property
    def num_available(self) -> int:
        """The number of products that can be chosen."""
        return self.arms.num_allowed - len(self.failed)

    def columns_of(self, indices: Any) -> pd.DataFrame:
        """Return the names of the components of products, a column each."""
        return self.ids.parts(indices)


def _read_list(name: str, text: str, args: argparse.Namespace) -> pd.DataFrame:
    """Return the elements of a component: their features, by their names."""
    path = Path(text)
    if not path.is_file():
        values = pd.Series([value.strip() for value in text.split(",")])
        is_file_name = "," not in text and path.suffix[1:2].isalpha()
        if is_file_name or (values == "").any() or values.duplicated().any():
            raise InputDataError(
                f"Expected --component {name}=FILE or --component {name}=20,40,60 with "
                f"different elements, but there is no file {text}."
            )
        numbers = pd.to_numeric(values, errors="coerce")
        if numbers.isna().any():
            return pd.DataFrame(index=pd.Index(values, dtype="object"))
        features = numbers.to_numpy(dtype="float64")
        return pd.DataFrame({name: features}, index=pd.Index(numbers))
    table = read_by_options(path, args).frame
    column = find_column(list(table.columns), args.id) or str(table.columns[0])
    require_ids(table[column], path)
    table = table.set_index(column)
    if name in args.smiles:
        smiles = find_column(list(table.columns), SMILES)
        require_column(table, smiles or SMILES, path, f"--smiles {name}")
        return table[[smiles]].set_axis([SMILES], axis="columns")
    table = table.drop(columns=[each for each in args.drop if each in table])
    words = [each for each in table.columns if not is_numeric(table[each])]
    if words or table.isna().any(axis=None):
        raise InputDataError(
            f"Expected {path} to have a column of ids and columns of numbers without "
            f"empty cells, but {words or 'a number'} is not. Pass --smiles {name} for "
            "molecules, and --drop for columns that are not features."
        )
    note_forgotten(table, args)
    return table.astype("float64")


def _with_results(
    name: str, own: pd.DataFrame, seen: pd.Series, args: argparse.Namespace
) -> pd.DataFrame:
    """Return a list with the elements that only results have, at its end."""
    if seen.isna().any():
        raise InputDataError(
            f"Expected every result to name its component {name!r}, but "
            f"{row_name(seen.isna())} does not. Fill it in."
        )
    new = pd.Index(seen[_places(own, seen) < 0].unique())
    if new.empty:
        return own
    if name in args.smiles:
        more = pd.DataFrame({SMILES: new.astype("str")}, index=new)
    elif own.columns.empty:
        more = pd.DataFrame(index=new)
    elif list(own.columns) == [name] and _as_numbers(new).notna().all():
        new = pd.Index(pd.to_numeric(_as_numbers(new), downcast="integer"))
        more = pd.DataFrame({name: new}, index=new)
    else:
        raise InputDataError(
            f"The results have {str(new[0])!r} in column {name!r}, which is not in the "
            "list of this component. Correct it, or add it to the list (--forbid keeps "
            "it from being chosen)."
        )
    note(
        f"{len(new):,} elements of {name!r} are only in the results "
        f"({listing([str(each) for each in new], 3)}): they train the model, and are "
        "not chosen"
    )
    lists = {"the results": pd.Series(new), "the list": pd.Series(own.index)}
    note(unit_trouble(name, lists))
    return pd.concat([own, more])


def _places(own: pd.DataFrame, seen: pd.Series) -> Any:
    """Return the positions of results' elements in a list, -1 for unknown ones."""
    if is_numeric(pd.Series(own.index)):
        numbers = pd.Index(_as_numbers(seen))
        return pd.Index(own.index.astype("float64")).get_indexer(numbers)
    return pd.Index(own.index.astype("str")).get_indexer(seen.astype("str"))


def _as_numbers(cells: Any) -> pd.Series:
    text = pd.Series(cells).astype("str").str.replace(",", ".")
    return pd.to_numeric(text, errors="coerce").astype("float64")


def _rule(text: str, lists: Mapping[str, pd.DataFrame]) -> dict[str, int]:
    """Return a forbidden combination from ``name=element,name=element``."""
    rule = {}
    for part in text.split(","):
        name, _, element = (each.strip() for each in part.partition("="))
        found = -1
        if name in lists:
            found = int(_places(lists[name], pd.Series([element]))[0])
        if found < 0:
            raise InputDataError(
                f"Expected --forbid to have parts such as acid=A3, with components of "
                f"{list(lists)} and their elements, but got {part!r}."
            )
        rule[name] = found
    return rule


def _features(name: str, own: pd.DataFrame, args: argparse.Namespace) -> Any:
    """Return the elements of a component as ``ProductArms`` takes them."""
    if own.columns.empty:
        return [str(each) for each in own.index]
    if name not in args.smiles:
        return torch.from_numpy(own.to_numpy(dtype="float64", copy=True))
    smiles, found = read_smiles(own[SMILES], args)
    if found.invalid:
        text, reason = next(iter(found.invalid.items()))
        raise InputDataError(
            f"Expected the component {name!r} to have SMILES, but {text!r} {reason}. "
            "Correct it."
        )
    codes = torch.tensor(found.of(smiles))
    return BitArms(codes, is_packed=args.bits)
