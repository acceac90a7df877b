"""The next batch from a product space: lists of components instead of candidates."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_bkb.arms import BitArms, ProductArms
from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli.arguments import DEFAULT_ID, SuggestOptions
from botorch_bkb.cli.campaign import Campaign, match_ids, setting_bounds
from botorch_bkb.cli.features import Features, find_slip, LOOKS_NUMERIC, note_forgotten
from botorch_bkb.cli.molecules import distinguished, read_smiles
from botorch_bkb.cli.results import read_results, sort_results
from botorch_bkb.cli.tables import note, quoted, read_by_options, unit_trouble
from botorch_bkb.tables.columns import (
    find_column,
    is_no_number,
    is_numeric,
    listing,
    MAX_NUMBER,
    MISSING,
    NUMBER,
    require_column,
    require_ids,
    row_name,
    to_numbers,
)
from botorch_bkb.tables.files import BLANKS, CsvFormat, KINDS, read_cells


# Between the names of the components of one product.
JOIN = " + "
SMILES = "smiles"
# A comma inside a name, as of 1,4-dioxane, N,N-dimethylaniline or (R,R)-BINAP.
LOCANT = r"[^\W_]\d?['\u2032]*"
CUT_NAME = re.compile(
    rf"((?:^|,\s*|-(?=\d)){LOCANT},\s*{LOCANT}[-\s][^\d\s]|[(\[{{][^)\]}}]*,|\"|(?:^|,\s*)['\u2018-\u201f])"
    r"[^,]*"
)


class Products:
    """The products of components, and measurements.

    Its other attributes and its methods are those of :class:`Campaign`.

    Attributes:
        arms: The product space; elements that only results have are forbidden.
        names: The names of the elements of each component.
        failed: The products whose last measurement failed.
        last: The last table of results.
    """

    def __init__(self, args: SuggestOptions) -> None:
        self.args = args
        self.columns = names = [name for name, _ in args.component]
        options = [*args.smiles, *args.category]
        if not {*options} <= {*names}:
            raise InputDataError(
                "Expected --smiles and --category to name some of the components "
                f"{names}, but got {options}."
            )
        found = {name: _read_list(name, text, args) for name, text in args.component}
        lists = {name: own for name, (own, _) in found.items()}
        words = [name for name, own in lists.items() if not is_numeric(own.index)]
        told, self.failures, controls, self.last = read_results(
            args, None, names, names, words
        )
        results = told.results
        forms = [self.last.form, *(form for _, form in found.values())]
        known = {name: len(own) for name, own in lists.items()}
        for name in args.smiles:
            results[name] = _by_molecule(lists[name], results[name], args)
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
        positions = [_places(own, results[name]) for name, own in lists.items()]
        indices = self.arms.numbers(torch.from_numpy(np.stack(positions, axis=-1)))
        rows = told._replace(indices=indices.numpy())
        own, self.others, failed = sort_results(
            rows, self.failures, controls, self.ids_of, args
        )
        self.results, self.indices, self.rewards = own
        self.features = Features(self.arms, None, names)
        self.failed = torch.from_numpy(failed)
        self.form = next(filter(None, forms), None)
        self.sizes = torch.tensor([*known.values()])  # without those of the results
        self.num_candidates = math.prod(known.values())
        open_failed = self.arms.is_allowed(self.failed).sum()
        self.num_available = self.arms.num_allowed - int(open_failed)
        if not self.num_available:
            raise InputDataError(
                f"No combination is left: of {self.num_candidates:,}, the last "
                f"measurement of {int(open_failed):,} failed, and --forbid has the "
                "others. Forbid fewer, remove the rows of those that failed, or add "
                "elements."
            )

    def exclude(self, bandit: GPBandit) -> Tensor | None:
        """Retire products that failed; all others are available."""
        is_measured = np.isin(self.failed, self.indices)
        bandit.retire_arms(self.failed[~is_measured])
        # Measured ones may still be the best, but the next batch does without them.
        bandit.add_pending(self.failed[is_measured])
        bandit.fail(self.failed[is_measured])
        return None

    def counts(self, measured: Tensor) -> str:
        """Say how many products there are, and how many of them were measured."""
        search = "" if self.args.roles else "The search was complete. "
        positions = self.arms.components(measured).cpu()
        num_measured = (positions < self.sizes).all(dim=-1).sum()
        return (
            f"{search}{self.num_candidates:,} combinations, {num_measured:,} of "
            "them measured"
        )

    def columns_of(self, indices: Any) -> pd.DataFrame:
        """Return the names of the components of some products, a column each."""
        positions = self.arms.components(indices).numpy()
        columns = zip(self.arms.names, self.names, positions.T, strict=True)
        return pd.DataFrame({name: own[at] for name, own, at in columns})

    def ids_of(self, indices: Any) -> list[str]:
        """Return the names of some products, such as ``A3 + B1 + 60``."""
        return [*map(JOIN.join, self.columns_of(indices).astype("str").to_numpy())]

    names_of = columns_of

    def next_table(
        self, batch: pd.DataFrame, picks: Tensor
    ) -> tuple[pd.DataFrame, CsvFormat | None]:
        """Return the table that `suggest` writes, and the format of a CSV file."""
        parts = self.columns_of(batch.index.to_numpy())
        others = batch.drop(columns=self.args.id).reset_index(drop=True)
        table = pd.concat([parts, others], axis="columns")
        if self.args.per_measurement:
            table = table.loc[table.index.repeat(table["repeats"])]
            # RESULTS may be a batch with predictions that was filled in.
            table = table.drop(columns=self.args.columns_of_next)
            table = table.reindex(columns=self.last.frame.columns)
        return table, self.form


Candidates = Campaign | Products


def _read_list(
    name: str, text: str, args: SuggestOptions
) -> tuple[pd.DataFrame, CsvFormat | None]:
    """Return features of a component's elements, by their names, and a file's format.

    A table of one column is a list of values.
    """
    if not os.path.isfile(text):
        values = _split(name, text)
        return _listed(name, values, to_numbers(values), args), None
    path = Path(text)
    marks = args.separator, args.encoding, [*args.sheet]
    cells = read_cells(path, None, *marks).frame
    column = find_column(list(map(str, cells)), args.id) or str([*cells, args.id][0])
    is_list = {column, "", *args.drop} >= {*map(str, cells)}
    file = read_by_options(path, args if is_list else replace(args, id=column))
    require_column(file.frame, column, path, "--id")
    others = [str(each) for each in file.frame if each not in (column, *args.drop)]
    if name in args.smiles and others and column.casefold() != SMILES:
        smiles = find_column(others, SMILES)
        others = [smiles or SMILES]
        require_column(file.frame, others[0], path, f"--smiles {name}")
    elif not others or name in (*args.category, *args.smiles):
        if NUMBER.fullmatch(column.replace(",", ".")):
            raise InputDataError(
                f"Expected {path} to have a header, but its first row is {column!r}. "
                f"Write {name} above it."
            )
        if column.casefold() not in (name.casefold(), args.id, DEFAULT_ID, SMILES):
            note(f"{column!r} is the header of {path}, and no element of {name!r}")
        values = _texts(cells[column].dropna())
        values = values[values != ""]
        numbers = to_numbers(file.frame[column]).reindex(values.index)
        return _listed(name, values, numbers, args), file.form
    require_ids(file.frame[column], path)
    ids = pd.Index(file.typed.get(column, file.frame[column]))
    table = file.frame[others].set_axis(ids)
    if name in args.smiles:
        return table.set_axis([SMILES], axis="columns"), file.form
    for each in others:
        entries = file.frame[each]
        wrong = is_no_number(entries) | entries.isna()
        if wrong.any():
            cell = entries[wrong].astype("object").fillna("an empty cell").iloc[0]
            raise InputDataError(
                f"Column {each!r} of {path} has {cell} in {row_name(wrong)}, which is "
                "not a number. Correct it, or leave the column out by --drop "
                f"{quoted(each)}. Pass --smiles {quoted(name)} for molecules."
            )
    note_forgotten(table, args)
    return table.astype("float64"), file.form


def _split(name: str, text: str) -> pd.Series:
    """Return the elements of a list of values, some of them in quotation marks."""
    values = next(csv.reader([text.replace("\n", " ")], skipinitialspace=True))
    suffixes = {Path(value).suffix.lower() for value in values}
    if suffixes & {*KINDS} or (len(values) == 1 and suffixes.pop()[1:2].isalpha()):
        raise InputDataError(f"There is no file {text} for --component {name}.")
    if len(values) == 1 and '"' not in text and re.search("[;|\t]", text):
        raise InputDataError(
            f"--component {name} has {text!r}, which may be several elements. Write "
            f"commas between them, or put it in quotation marks: '{name}=\"{text}\"'."
        )
    cut = CUT_NAME.search(re.sub(r'"[^"]*"', "_", text))
    if cut:
        raise InputDataError(
            f"--component {name} has {cut.group().strip(', -')!r}, which may be one "
            "name. Put names with commas in quotation marks, inside those of the "
            f"shell: '{name}=THF,\"1,4-dioxane\"'. Or write a table of one column."
        )
    return _texts(values)


def _texts(values: Any) -> pd.Series:
    """Return texts as tables have them: without blanks around them, composed."""
    return pd.Series(values).astype("str").str.strip(BLANKS).str.normalize("NFC")


def _listed(
    name: str, values: pd.Series, numbers: pd.Series, args: SuggestOptions
) -> pd.DataFrame:
    """Return the elements of a list of values: numbers, SMILES or names."""
    # 007 is a name.
    is_number = (numbers.abs() <= MAX_NUMBER) & ~values.str.match(r"[+-]?0\d")
    if is_number.all() and name not in args.smiles:
        values = pd.to_numeric(numbers, downcast="integer")
    shown = listing([*map(str, values)])
    if values.empty or (values.isin(MISSING) | values.duplicated()).any():
        raise InputDataError(
            f"Expected different elements of --component {name}, none of them empty as "
            f"None, NA, - and ? are, but got {shown}. Write other words or numbers."
        )
    note(f"component {name!r} has the elements {shown}")
    own = pd.DataFrame(index=pd.Index(values))
    if name in args.smiles:
        own[SMILES] = values.array
    elif is_numeric(values) and name not in args.category:
        own[name] = values.to_numpy("float64")
    return own


def _by_molecule(own: pd.DataFrame, seen: pd.Series, args: SuggestOptions) -> pd.Series:
    """Return results' elements, by the name in the list if that is the molecule."""
    unknown = seen[(_places(own, seen) < 0) & seen.notna()].drop_duplicates()
    if unknown.empty:
        return seen
    both = pd.concat([own[SMILES], unknown.astype("str")])
    canonical, _ = read_smiles(both, args)
    listed = pd.Series(own.index, index=canonical[: len(own)].array)
    listed = listed[listed.index.notna() & ~listed.index.duplicated()]
    names = canonical[len(own) :].map(listed).set_axis(unknown.array).dropna()
    return seen.map(lambda each: names.get(each, each))


def _with_results(
    name: str, own: pd.DataFrame, seen: pd.Series, args: SuggestOptions
) -> pd.DataFrame:
    """Return a list with the elements that only results have, at its end."""
    if seen.isna().any():
        raise InputDataError(
            f"Expected every result to name its component {name!r}, but "
            f"{row_name(seen.isna())} does not. Fill it in."
        )
    cells = seen[_places(own, seen) < 0].drop_duplicates()
    if cells.empty:
        return own
    new = pd.Index(cells.array)
    if name in args.smiles:
        more = pd.DataFrame({SMILES: new.astype("str")}, index=new)
    elif own.columns.empty:
        more = pd.DataFrame(index=new)
    elif list(own.columns) == [name] and to_numbers(cells).notna().all():
        new = pd.Index(pd.to_numeric(to_numbers(cells), downcast="integer").array)
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
    if is_numeric(own.index):
        values = pd.Index(own.index.astype("float64")).sort_values()
        numbers = to_numbers(seen).fillna(math.inf).to_numpy()
        place = values.get_indexer(pd.Index(numbers), method="nearest")
        widths = np.array(np.ptp(values) or abs(values[0]))
        is_same = np.abs(values[place] - numbers) <= setting_bounds(numbers, widths)
        found = own.index.astype("float64").get_indexer(values[place])
        return np.where(is_same, found, -1)
    return match_ids(_texts(seen), _texts(own.index))


def _rule(text: str, lists: Mapping[str, pd.DataFrame]) -> dict[str, int]:
    """Return a forbidden combination from ``name=element,name=element``."""
    rule: dict[str, int] = {}
    known = "|".join(map(re.escape, lists))
    # Other commas than those before a component are part of an element.
    for part in re.split(rf',(?=[\s"]*(?:{known})\s*=)', text):
        name, _, element = map(str.strip, part.strip(' "').partition("="))
        found = -1
        if name in lists and name not in rule:
            found = int(_places(lists[name], pd.Series([element.strip(' "')]))[0])
        if found < 0:
            raise InputDataError(
                f"Expected --forbid to have parts such as acid=A3, with components of "
                f"{list(lists)}, each once, and their elements, but got {part!r}. "
                "Repeat --forbid for another combination."
            )
        rule[name] = found
    return rule


def _features(name: str, own: pd.DataFrame, args: SuggestOptions) -> Any:
    """Return the elements of a component as ``ProductArms`` takes them."""
    if own.columns.empty:
        return _names(name, _texts(own.index), args)
    rows = own.to_numpy()
    if name in args.smiles:
        smiles, found = read_smiles(own[SMILES], args)
        if found.invalid:
            text, reason = next(iter(found.invalid.items()))
            raise InputDataError(
                f"Expected the component {name!r} to have SMILES, but {text!r} {reason}"
                ". Correct it. An empty cell in a table means no molecule."
            )
        none = own.index[smiles.isna()].astype("str")
        if len(none):
            note(f"elements of {name!r} without a molecule: {listing([*none])}")
        rows = found.of(smiles)
    is_packed = args.bits and name in args.smiles
    codes = torch.tensor(distinguished(name, own.index, rows, is_packed))
    return BitArms(codes, is_packed) if name in args.smiles else codes


def _names(name: str, names: pd.Series, args: SuggestOptions) -> list[str]:
    """Return names; an error if one is probably a number or a slip, as in a table."""
    like = names.map(lambda each: bool(LOOKS_NUMERIC.fullmatch(each)))
    # Each is there once, so rare ones are no slips.
    slip = find_slip(names.value_counts(sort=False) + 1)
    if to_numbers(names).notna().any() or 2 * like.sum() >= len(names):
        slip = names[like].iloc[0], "looks like a number or a date"
    if slip is not None and name not in args.category:
        raise InputDataError(
            f"Component {name!r} has the element {slip[0]!r}, which {slip[1]}. Write "
            "numbers with a decimal point and without units, and names alike. Pass "
            f"--category {quoted(name)} if all elements are names."
        )
    return list(names)
