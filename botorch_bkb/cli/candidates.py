"""The candidates as the model sees them: features, or fingerprints that stay packed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.arms import BitArms, ParquetArms, ProductArms
from botorch_bkb.cli.campaign import Campaign
from botorch_bkb.cli.features import feature_columns, note_forgotten, read_features
from botorch_bkb.cli.progress import note
from botorch_bkb.cli.tables import is_numeric, listing


# So many columns of 0 and 1 without others are compared as fingerprints by default.
MIN_BITS = 64
MAX_COUNT = 255

KernelName = Literal["tanimoto", "matern", "rbf"]


@dataclass(frozen=True)
class Candidates:
    """The candidates as the model sees them.

    Attributes:
        arms: A row of features per row of ``Campaign.rows``.
        kernel: The kernel that compares them; None for the bandit's default.
        sources: The column from which each feature comes, except for fingerprints that
            a Tanimoto kernel compares.
        names: The names of these features.
    """

    arms: Tensor
    kernel: KernelName | None
    sources: tuple[str, ...]
    names: tuple[str, ...]

    def shared_columns(self, args: argparse.Namespace) -> list[Any] | None:
        """Return the features, or components, of --same; None without."""
        if isinstance(self.arms, ProductArms):
            return args.same or None
        sources, shared = self.sources, []
        num_bits = self.arms.shape[-1] - len(sources)
        for name in args.same:
            columns = [num_bits + n for n, own in enumerate(sources) if own == name]
            if name in args.smiles and num_bits:
                place, width = args.smiles.index(name), num_bits // len(args.smiles)
                columns = [*range(place * width, (place + 1) * width)]
            if not columns:
                raise InputDataError(
                    "Expected --same to name columns that are features, such as "
                    f"{listing(list(dict.fromkeys(sources)), 5)}, but got {name!r}."
                )
            shared += columns
        return shared or None


def read_candidates(campaign: Campaign, args: argparse.Namespace) -> Candidates:
    """Make features of the candidates' columns, by the options of `suggest`."""
    if campaign.is_large:
        library = _library_arms(campaign, args)
        columns = tuple(library.source.columns)
        return Candidates(library, args.kernel, columns, columns)
    note_forgotten(campaign.rows, args)
    bits = [] if args.smiles else fingerprint_columns(campaign.rows, args)
    beside = [*args.smiles, *bits]
    features, sources = read_features(campaign.rows, args, beside)
    numbers = torch.from_numpy(features.to_numpy(dtype="float64", copy=True))
    names = tuple(map(str, features))
    kernel: KernelName | None = "tanimoto" if bits else args.kernel
    times = " times a Matern kernel of the other columns" if sources else ""
    by = f", compared by a Tanimoto kernel{times}"
    if bits:
        codes, is_packed = _packed(campaign.rows[bits])
        kind = "0 and 1" if is_packed else "counts"
        note(
            f"{len(bits):,} columns of {kind} are fingerprints{by} (--kernel matern or "
            "rbf for another)"
        )
        return Candidates(BitArms(codes, is_packed, numbers), kernel, sources, names)
    if not args.smiles:
        return Candidates(numbers, kernel, sources, names)
    kernel = args.kernel or "tanimoto"
    molecules = campaign.fingerprints.items()
    parts = [found.of(campaign.rows[name]) for name, found in molecules]
    codes = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    by = by if kernel == "tanimoto" else ""
    shown = ", ".join(map(repr, args.smiles))
    kind = "bits" if args.bits else "counts"
    note(
        f"column {shown} became Morgan fingerprints of radius {args.radius}, "
        f"{args.num_bits:,} {kind}{by}"
    )
    if kernel != "tanimoto":
        # These have a lengthscale per bit.
        num_bits = range(args.num_bits)
        sources = (*(name for name in args.smiles for _ in num_bits), *sources)
        names = (*(f"bit {n}" for _ in args.smiles for n in num_bits), *names)
    return Candidates(BitArms(codes, args.bits, numbers), kernel, sources, names)


def _library_arms(campaign: Campaign, args: argparse.Namespace) -> ParquetArms:
    """Return the features of a table that stays in its file, and say so."""
    path: Path = args.arms
    if args.category or args.drop_incomplete:
        raise InputDataError(
            f"--category and --drop-incomplete need the table in memory, but {path} is "
            "too large for that: its columns are features as they are. Compute them "
            "beforehand."
        )
    names = feature_columns(campaign.columns, args)
    arms = ParquetArms([path], names, dtype=torch.double, quiet=args.quiet)
    note(
        f"{path.name} is too large to be read as a whole: its {len(names):,} columns "
        "of numbers stay in the file, and are read a part at a time"
    )
    return arms


def fingerprint_columns(table: pd.DataFrame, args: argparse.Namespace) -> list[str]:
    """Return the columns that a Tanimoto kernel compares."""
    if args.kernel not in (None, "tanimoto"):
        return []
    names = feature_columns(table, args)
    others = [name for name in names if name not in args.category]
    bits = [name for name in others if _is_whole(table[name], 1)]
    if args.kernel is None:
        return names if len(bits) == len(names) >= MIN_BITS else []
    if not bits and all(_is_whole(table[name], MAX_COUNT) for name in names):
        bits = names
    if not bits:
        raise InputDataError(
            "--kernel tanimoto needs columns of 0 and 1, or only columns of whole "
            f"numbers from 0 to {MAX_COUNT}, but there are none. Pass --smiles for "
            "molecules, or another --kernel."
        )
    return bits


def _is_whole(column: pd.Series, largest: int) -> bool:
    """Whether all cells are whole numbers from 0 to another."""
    if not is_numeric(column) or column.dtype == object:
        return False
    return bool(((column >= 0) & (column <= largest) & (column % 1 == 0)).all())


def _packed(bits: pd.DataFrame) -> tuple[NDArray[np.uint8], bool]:
    """Return columns of 0 and 1 packed, or counts as they are, and whether packed."""
    counts = bits.to_numpy(dtype="uint8", copy=True)
    is_packed = int(counts.max()) <= 1
    # Rows are filled up with zeros, which change no similarity.
    return (np.packbits(counts, axis=-1) if is_packed else counts), is_packed
