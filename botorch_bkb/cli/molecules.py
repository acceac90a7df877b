"""Fingerprints of a column of SMILES, kept beside the table that has it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from tqdm import tqdm
from typing_extensions import override

from botorch_bkb.cli.progress import note, ticking
from botorch_bkb.integrations.chem import Molecules, read_molecules


# From so many molecules on it takes seconds: they are kept, and announced.
MIN_TO_CACHE = 2_000
# Of one core, by which a time is stated before the work begins.
MOLECULES_PER_SECOND = 4_000


@dataclass(frozen=True)
class FingerprintOptions:
    """The Morgan fingerprints that `suggest` makes of SMILES."""

    radius: int = 2
    num_bits: int = 2048
    counts: bool = False

    @override
    def __str__(self) -> str:
        kind = "counts" if self.counts else "bits"
        return f"Morgan fingerprints of radius {self.radius}, {self.num_bits:,} {kind}"


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """The molecules of a column.

    Attributes:
        names: The canonical SMILES of every row, missing where there is no molecule.
        codes: The fingerprints of the different molecules, in order of appearance.
        invalid: For rows without a molecule, the reason.
    """

    names: pd.Series
    codes: NDArray[np.uint8]
    invalid: dict[int, str]

    @classmethod
    def of(cls, molecules: Molecules, num_rows: int) -> Fingerprints:
        """Return the molecules of a column of so many rows."""
        name_of = dict(zip(molecules.rows.tolist(), molecules.smiles, strict=True))
        first = molecules.duplicates
        names = [name_of.get(first.get(row, row)) for row in range(num_rows)]
        return cls(pd.Series(names, dtype="str"), molecules.codes, molecules.invalid)


def side_by_side(parts: Sequence[Fingerprints]) -> Fingerprints:
    """Return the molecules of several columns as one, with all fingerprints."""
    if len(parts) == 1:
        return parts[0]
    table = pd.concat([part.names for part in parts], axis="columns")
    # A row lacks a molecule if one of its columns does. SMILES have no blanks.
    joined = table.fillna("").agg(" ".join, axis="columns")
    names = joined.where(table.notna().all(axis="columns"))
    rows = names.dropna().drop_duplicates().index
    codes = [part.codes[pd.factorize(part.names)[0][rows]] for part in parts]
    invalid = {row: reason for part in parts for row, reason in part.invalid.items()}
    return Fingerprints(names, np.concatenate(codes, axis=-1), invalid)


def read_fingerprints(
    column: pd.Series,
    options: FingerprintOptions,
    *,
    library: Path | None = None,
    quiet: bool = False,
) -> Fingerprints:
    """Read SMILES, or what an earlier call has kept of the same ones.

    Args:
        column: SMILES, white space around them ignored; empty cells are no molecules.
        options: What to make of them.
        library: The table beside which many are kept; None to keep none.
        quiet: Whether to show no progress.
    """
    smiles = column.astype("str").where(column.notna(), "").tolist()
    is_long, cache = len(smiles) >= MIN_TO_CACHE, None
    if library is not None and is_long:
        cache = cache_path(library, smiles, options)
        kept = _read_cache(cache)
        if kept is not None:
            note(f"fingerprints are those of {cache.name}")
            return kept
    if is_long:
        seconds = len(smiles) / MOLECULES_PER_SECOND / (os.cpu_count() or 1)
        megabytes = len(smiles) * options.num_bits / (1 if options.counts else 8) / 1e6
        note(
            f"{options} of {len(smiles):,} molecules: about {seconds:,.0f} s and "
            f"{megabytes:,.0f} MB"
        )
    hidden = True if quiet else None
    bar = tqdm(total=len(smiles), desc="Fingerprints", disable=hidden, leave=False)
    try:
        with bar, ticking(cast(Any, bar)):
            found = read_molecules(
                smiles, **asdict(options), skip_invalid=True, progress=bar.update
            )
    except RuntimeError as error:
        raise InputDataError(str(error)) from error
    fingerprints = Fingerprints.of(found, len(smiles))
    if cache is not None:
        _write_cache(cache, fingerprints)
    return fingerprints


def cache_path(library: Path, smiles: list[str], options: FingerprintOptions) -> Path:
    """Return where fingerprints are kept: a name for content and options."""
    digest = sha256("\n".join(smiles).encode(errors="surrogatepass"))
    digest.update(f"{options!r} {version('rdkit')}".encode())
    name = f"{library.name}.fingerprints-{digest.hexdigest()[:16]}.npz"
    return library.with_name(name)


def _write_cache(path: Path, fingerprints: Fingerprints) -> None:
    """Keep fingerprints in a file, or say why not."""
    text = json.dumps([fingerprints.names.fillna("").tolist(), fingerprints.invalid])
    # Written whole or not at all.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            words = np.frombuffer(text.encode(), dtype="uint8")
            np.savez(file, codes=fingerprints.codes, text=words)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        note(f"fingerprints are not kept: {error}")
        return
    note(f"fingerprints are kept in {path.name}")


def _read_cache(path: Path) -> Fingerprints | None:
    """Return what :func:`_write_cache` wrote; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as stored:
            codes, text = stored["codes"], bytes(stored["text"])
    # A damaged file raises many kinds of errors.
    except Exception as error:
        note(f"{path.name} cannot be read ({error}), and is made anew")
        return None
    names, invalid = json.loads(text)
    reasons = {int(row): reason for row, reason in invalid.items()}
    return Fingerprints(
        pd.Series(names, dtype="str").replace("", np.nan), codes, reasons
    )
