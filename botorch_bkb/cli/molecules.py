"""Fingerprints of a column of SMILES, kept beside the table that has it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from tqdm import tqdm
from typing_extensions import override

from botorch_bkb.cli.progress import note, ticking
from botorch_bkb.integrations.chem import find_molecules, Molecules


# From so many molecules on it takes seconds: they are kept, and announced.
MIN_TO_CACHE = 2_000
# Of one core, by which a time is stated before the work begins.
MOLECULES_PER_SECOND = 4_000
# Of the files: 41 MB of 2,048 counts.
ROWS_OF_A_GROUP = 20_000
# Another one makes fingerprints anew.
CACHE_VERSION = 1


@dataclass(frozen=True)
class FingerprintOptions:
    """What `suggest` makes of SMILES.

    Attributes:
        radius: That of Morgan fingerprints.
        num_bits: Their length.
        counts: Whether fragments are counted.
    """

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


def read_fingerprints(
    column: pd.Series,
    options: FingerprintOptions,
    *,
    library: Path | None = None,
    quiet: bool = False,
) -> Fingerprints:
    """Read SMILES, or what an earlier call has read of the same ones.

    Args:
        column: SMILES, white space around them ignored; empty cells are no molecules.
        options: What to make of them.
        library: The table that has them, beside which fingerprints are kept.
        quiet: Whether to show no progress.

    Raises:
        ImportError: If RDKit is not installed.
        InputDataError: If RDKit breaks down.
    """
    smiles = column.astype("str").where(column.notna(), "").tolist()
    cache = None
    if library is not None and len(smiles) >= MIN_TO_CACHE:
        cache = cache_path(library, smiles, options)
        found = _read_cache(cache, len(smiles))
        if found is not None:
            note(f"fingerprints are those of {cache.name}")
            return found
    if len(smiles) >= MIN_TO_CACHE:
        seconds = len(smiles) / MOLECULES_PER_SECOND / (os.cpu_count() or 1)
        megabytes = len(smiles) * options.num_bits / (1 if options.counts else 8) / 1e6
        note(
            f"{options} of {len(smiles):,} molecules: about {seconds:,.0f} s and "
            f"{megabytes:,.0f} MB"
        )
    fingerprints = _compute(smiles, options, quiet)
    if cache is not None:
        _write_cache(cache, fingerprints)
    return fingerprints


def _compute(
    smiles: list[str], options: FingerprintOptions, quiet: bool
) -> Fingerprints:
    bar = tqdm(
        total=len(smiles),
        desc="Fingerprints",
        unit=" molecules",
        disable=True if quiet else None,
        leave=False,
    )
    try:
        with bar, ticking(cast(Any, bar)):
            molecules = find_molecules(
                smiles,
                radius=options.radius,
                num_bits=options.num_bits,
                counts=options.counts,
                progress=bar.update,
            )
    except RuntimeError as error:
        raise InputDataError(str(error)) from error
    return Fingerprints.of(molecules, len(smiles))


def cache_path(library: Path, smiles: list[str], options: FingerprintOptions) -> Path:
    """Return where fingerprints are kept: a name for content and options."""
    # Late: RDKit is no part of the command line's extra.
    from importlib.metadata import version

    digest = sha256("\n".join(smiles).encode(errors="surrogatepass"))
    digest.update(f"{options!r} {CACHE_VERSION} {version('rdkit')}".encode())
    return library.with_name(
        f"{library.name}.fingerprints-{digest.hexdigest()[:16]}.parquet"
    )


def _write_cache(path: Path, fingerprints: Fingerprints) -> None:
    """Write a row of the file for every row of the column, or say why not."""
    names, codes = fingerprints.names, fingerprints.codes
    molecule = pd.factorize(names)[0]
    reasons = [fingerprints.invalid.get(row) for row in range(len(names))]
    bytes_type = pa.binary(codes.shape[1])
    schema = pa.schema(
        [("smiles", pa.string()), ("reason", pa.string()), ("fingerprint", bytes_type)]
    )
    # Written whole or not at all.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            for start in range(0, len(names), ROWS_OF_A_GROUP):
                rows = slice(start, start + ROWS_OF_A_GROUP)
                place = molecule[rows]
                data = pa.py_buffer(np.ascontiguousarray(codes[place.clip(min=0)]))
                arrays = [
                    pa.array(names.iloc[rows], type=pa.string(), from_pandas=True),
                    pa.array(reasons[rows], type=pa.string()),
                    pa.FixedSizeBinaryArray.from_buffers(
                        bytes_type, len(place), [None, data]
                    ),
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        note(f"fingerprints are not kept: {error}")
        return
    note(f"fingerprints are kept in {path.name}")


def _read_cache(path: Path, num_rows: int) -> Fingerprints | None:
    """Return what :func:`_write_cache` wrote; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        with pq.ParquetFile(path) as file:
            texts = file.read(columns=["smiles", "reason"])
            names = texts["smiles"].to_pandas().astype("str")
            if len(names) != num_rows:
                return None
            molecule, found = pd.factorize(names)
            is_first = np.zeros(num_rows, dtype="bool")
            is_first[np.unique(molecule, return_index=True)[1]] = True
            is_first &= molecule >= 0
            width = file.schema_arrow.field("fingerprint").type.byte_width
            codes = np.empty((len(found), width), dtype="uint8")
            row, place = 0, 0
            for batch in file.iter_batches(ROWS_OF_A_GROUP, columns=["fingerprint"]):
                column = batch.column(0)
                data = np.frombuffer(column.buffers()[1], dtype="uint8")
                data = data.reshape(-1, width)[
                    column.offset : column.offset + len(batch)
                ]
                new = data[is_first[row : row + len(batch)]]
                codes[place : place + len(new)] = new
                row, place = row + len(batch), place + len(new)
            reasons = texts["reason"].to_pandas()
    # Which of pyarrow's many errors a damaged file raises is no matter here.
    except Exception as error:
        note(f"{path.name} cannot be read ({error}), and is made anew")
        return None
    # What reading took, which pyarrow keeps for another time.
    pa.default_memory_pool().release_unused()
    invalid = {int(row): str(reasons[row]) for row in np.flatnonzero(reasons.notna())}
    return Fingerprints(names, codes, invalid)
