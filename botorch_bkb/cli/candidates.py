"""What the model sees of the candidates: features, or fingerprints that stay packed."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.arms import BitArms, ParquetArms
from botorch_bkb.cli.campaign import Campaign, stays_in_file
from botorch_bkb.cli.columns import is_numeric, listing, row_name
from botorch_bkb.cli.features import feature_columns, feature_table, FeatureTable
from botorch_bkb.cli.files import parquet_columns
from botorch_bkb.cli.molecules import (
    FingerprintOptions,
    Fingerprints,
    read_fingerprints,
    side_by_side,
)
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import require_column


# Of so many columns of 0 and 1, and nothing else, a fingerprint is made unasked.
MIN_BITS = 64
MAX_COUNT = 255
NUM_ROWS_SHOWN = 10

KernelName = Literal["tanimoto", "matern", "rbf"]


@dataclass(frozen=True)
class Candidates:
    """The candidates as the model sees them.

    Attributes:
        campaign: The tables, each molecule one row.
        arms: A row of features per row of ``campaign.arms``.
        kernel: What compares them; None for the bandit's own choice.
        sources: The column from which each feature comes, but bits that are compared
            as one.
        names: What these features are called.
    """

    campaign: Campaign
    arms: Tensor
    kernel: KernelName | None
    sources: tuple[str, ...]
    names: tuple[str, ...]


def read_candidates(campaign: Campaign, args: argparse.Namespace) -> Candidates:
    """Make features of the candidates' columns, as the options of `suggest` say.

    Raises:
        InputDataError: If a SMILES cannot be read, or a column is no feature.
    """
    if stays_in_file(args.arms, args):
        library = library_arms(args.arms, args)
        columns = tuple(library.source.columns)
        return Candidates(campaign, library, args.kernel, columns, columns)
    if args.smiles:
        return _of_molecules(campaign, args)
    bits = fingerprint_columns(campaign.arms, args)
    features = read_features(campaign.arms, args, beside=bits)
    arms, kernel = _numbers(features), args.kernel
    if bits:
        arms, kernel = _packed(campaign.arms[bits], arms), "tanimoto"
    return Candidates(
        campaign, arms, kernel, features.sources, tuple(map(str, features.values))
    )


def library_arms(path: Path, args: argparse.Namespace) -> ParquetArms:
    """Return the features of a table that stays in its file, and say so.

    Raises:
        InputDataError: If an option wants more than numbers as they are, or a column
            holds something else.
    """
    if args.code or args.category or args.drop_incomplete:
        raise InputDataError(
            "--code, --category and --drop-incomplete need the table in memory, but "
            f"{path} is too large for that: its columns are features as they are. "
            "Compute them beforehand."
        )
    names = feature_columns(parquet_columns(path), args)
    arms = ParquetArms([path], names, dtype=torch.double, quiet=args.quiet)
    note(
        f"{path.name} is too large to be read as a whole: its {len(names):,} columns "
        "of numbers stay in the file, and are read a part at a time"
    )
    return arms


def read_features(
    table: pd.DataFrame, args: argparse.Namespace, beside: Collection[str] = ()
) -> FeatureTable:
    """Return the features of the columns that are no fingerprint, and print notes."""
    codes = dict(args.code)
    options = {"--drop": args.drop, "--code": codes, "--category": args.category}
    for option, names in options.items():
        for name in names:
            require_column(table, name, args.arms, option)
    others = [name for name in feature_columns(table, args) if name not in beside]
    features = feature_table(table[others], codes, args.category)
    for text in features.notes:
        note(text)
    if features.values.empty and not beside:
        raise InputDataError(
            "Expected at least one column that can be a feature, and values that "
            f"differ, but none of {list(table.columns)} is left."
        )
    return features


def fingerprint_columns(table: pd.DataFrame, args: argparse.Namespace) -> list[str]:
    """Return the columns that are compared by a Tanimoto kernel; none by others.

    Raises:
        InputDataError: If that is asked for, and there are none.
    """
    if args.kernel not in (None, "tanimoto"):
        return []
    names = feature_columns(table, args)
    coded = {*dict(args.code), *args.category}
    bits = [name for name in names if name not in coded and _is_whole(table[name], 1)]
    if args.kernel is None:
        return names if len(bits) == len(names) >= MIN_BITS else []
    if not bits and all(_is_whole(table[name], MAX_COUNT) for name in names):
        bits = names
    if not bits:
        raise InputDataError(
            "--kernel tanimoto needs columns of 0 and 1, or only columns of whole "
            f"numbers from 0 to {MAX_COUNT}, but there are none. Molecules are named "
            "by --smiles."
        )
    return bits


def _is_whole(column: pd.Series, largest: int) -> bool:
    """Whether all cells are whole numbers from 0 to another."""
    if not is_numeric(column) or column.dtype == object:
        return False
    return bool(((column >= 0) & (column <= largest) & (column % 1 == 0)).all())


def _packed(bits: pd.DataFrame, others: Tensor) -> BitArms:
    """Return columns of 0 and 1, or of counts, as fingerprints beside others."""
    counts = bits.to_numpy(dtype="uint8", copy=True)
    is_packed = int(counts.max()) <= 1
    beside = " times a Matern kernel on the others" if others.shape[-1] else ""
    kind = f"{counts.shape[-1]:,} columns of {'0 and 1' if is_packed else 'counts'}"
    note(
        f"the {kind} are compared as fingerprints, by a Tanimoto kernel{beside} "
        "(--kernel matern or rbf for another)"
    )
    # Rows are filled up with zeros, which no similarity sees.
    codes = np.packbits(counts, axis=-1) if is_packed else counts
    return BitArms(codes, is_packed, others)


def _numbers(features: FeatureTable) -> Tensor:
    return torch.from_numpy(features.values.to_numpy(dtype="float64", copy=True))


def _of_molecules(campaign: Campaign, args: argparse.Namespace) -> Candidates:
    options = FingerprintOptions(args.radius, args.num_bits, args.counts)
    parts = []
    for column in args.smiles:
        parts.append(_read_molecules(campaign, args, column, options))
        _check_results(campaign, args, column, options, parts[-1].names)
    found = side_by_side(parts)
    campaign = _without_invalid(campaign, args, parts, found)
    molecule = pd.factorize(found.names.dropna())[0]
    others = read_features(campaign.arms, args, beside=args.smiles)
    # The same molecule at another temperature is another candidate.
    keys = others.values.reset_index(drop=True).assign(molecule=molecule)
    of_rows = keys.groupby(list(keys.columns), sort=False).ngroup()
    group = np.asarray(of_rows, dtype=np.int64)
    rows = _first_rows(campaign, args, group)
    campaign = campaign.regrouped(group, rows)
    molecule, codes = molecule[rows], found.codes
    if not np.array_equal(molecule, np.arange(len(codes))):
        codes = codes[molecule]
    kernel: KernelName = args.kernel or "tanimoto"
    is_tanimoto = kernel == "tanimoto"
    beside = " times a Matern kernel on the other columns" if others.sources else ""
    by = f", compared by a Tanimoto kernel{beside}" if is_tanimoto else ""
    note(f"column {', '.join(map(repr, args.smiles))} became {options}{by}")
    arms = BitArms(codes, not options.counts, _numbers(others)[torch.from_numpy(rows)])
    # Other kernels have a lengthscale per bit.
    bits = [
        (name, f"bit {n}")
        for name in args.smiles
        for n in range(0 if is_tanimoto else args.num_bits)
    ]
    return Candidates(
        campaign,
        arms,
        kernel,
        sources=(*(source for source, _ in bits), *others.sources),
        names=(*(name for _, name in bits), *map(str, others.values)),
    )


def _read_molecules(
    campaign: Campaign, args: argparse.Namespace, name: str, options: FingerprintOptions
) -> Fingerprints:
    """Read the SMILES of the candidates, and of those that are no longer there."""
    column, num_candidates = campaign.arms[name], campaign.num_candidates
    found = read_fingerprints(
        column.iloc[:num_candidates], options, library=args.arms, quiet=args.quiet
    )
    if num_candidates == len(column):
        return found
    more = read_fingerprints(column.iloc[num_candidates:], options, quiet=args.quiet)
    is_new = ~pd.Index(more.names.dropna().unique()).isin(found.names)
    invalid = {num_candidates + row: reason for row, reason in more.invalid.items()}
    return Fingerprints(
        pd.concat([found.names, more.names], ignore_index=True),
        np.concatenate([found.codes, more.codes[is_new]]),
        found.invalid | invalid,
    )


def _check_results(
    campaign: Campaign,
    args: argparse.Namespace,
    column: str,
    options: FingerprintOptions,
    names: pd.Series,
) -> None:
    """Refuse results whose SMILES are not those of the candidates that they name."""
    if column not in campaign.results:
        return
    told, place = campaign.results[column], campaign.indices.numpy()
    own = campaign.arms[column].to_numpy()[place]
    canonical = names.to_numpy()[place]
    # Most are written alike, which needs no RDKit.
    is_wrong = told.notna() & (told != own) & names.notna().to_numpy()[place]
    if is_wrong.any():
        read = read_fingerprints(told[is_wrong], options, quiet=True).names
        is_wrong[is_wrong] = read.to_numpy() != canonical[is_wrong]
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        raise InputDataError(
            f"The results have the SMILES {told.iloc[row][:80]!r} in "
            f"{row_name(is_wrong)}, but the molecule of "
            f"{campaign.arms[args.id].iloc[place[row]]} is {own[row][:80]!r} in "
            f"{args.arms}. Correct one of them."
        )


def _without_invalid(
    campaign: Campaign,
    args: argparse.Namespace,
    parts: Sequence[Fingerprints],
    found: Fingerprints,
) -> Campaign:
    """Leave rows out that are no molecule, or refuse them."""
    invalid, table = found.invalid, campaign.arms
    if not invalid:
        return campaign
    is_valid = found.names.notna().to_numpy()
    if not args.skip_invalid or not is_valid[: campaign.num_candidates].any():
        row = min(invalid)
        columns = zip(args.smiles, parts, strict=True)
        column = next(name for name, part in columns if row in part.invalid)
        text = table[column].fillna("").iloc[row]
        place = row_name(pd.Series(np.arange(len(table)) == row, table.index))
        raise InputDataError(
            f"Expected a molecule in every row of column {column!r}, but "
            f"{text[:80]!r} in {place} {invalid[row]}; there are {len(invalid):,} such "
            f"rows of {len(table):,}. Correct them, or pass --skip-invalid."
        )
    # As a reader of the file counts.
    numbers = table.index.get_level_values(-1) + 1
    shown = [f"{numbers[row]} ({reason})" for row, reason in invalid.items()]
    lost = int((~is_valid[campaign.indices.numpy()]).sum())
    note(
        f"{len(invalid):,} rows without a molecule are skipped, with {lost:,} "
        f"measurements: {listing(shown, NUM_ROWS_SHOWN)}"
    )
    group = np.where(is_valid, np.cumsum(is_valid) - 1, -1)
    return campaign.regrouped(group, np.flatnonzero(is_valid))


def _first_rows(
    campaign: Campaign, args: argparse.Namespace, group: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first available row of each group, or else the first."""
    order = np.argsort(~campaign.available.numpy(), kind="stable")
    rows = order[np.unique(group[order], return_index=True)[1]]
    again = np.setdiff1d(np.arange(len(group)), rows)
    if len(again):
        ids = campaign.arms[args.id]
        note(
            f"{len(again):,} rows are the candidate of another row, as RDKit writes "
            f"their SMILES, such as {ids.iloc[again[0]]} that of "
            f"{ids.iloc[rows[group[again[0]]]]}: each is one candidate, with the "
            "measurements of all"
        )
    return rows
