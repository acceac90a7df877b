"""From molecules to arms; needs the extra ``chem`` (RDKit).

Example:
    >>> molecules = read_molecules(table["smiles"])
    >>> bandit = BBKB(molecules.arms(), covar_module=TanimotoKernel())
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_bkb.checks import check_size


WORKER = Path(__file__).with_name("morgan_worker.py")
DRAWING_WORKER = Path(__file__).with_name("drawing_worker.py")
# A second or two of work, and a few hundred kilobytes of answer.
CHUNK_SIZE = 10_000
# Far above what is of use; RDKit runs out of memory or numbers somewhere above them.
MAX_RADIUS, MAX_BITS = 100, 2**16


@dataclass(frozen=True, eq=False)
class Molecules:
    """Different molecules and their fingerprints.

    Attributes:
        rows: The row of the list at which each of the ``n`` molecules stands first.
        smiles: Their canonical SMILES.
        codes: Their fingerprints, ``n x num_bits / 8`` packed bits or ``n x num_bits``
            counts, as ``uint8``.
        is_counts: Whether ``codes`` are counts.
        duplicates: For rows that repeat a molecule, the row at which it stands first.
        invalid: For rows that are no molecule, the reason.
    """

    rows: NDArray[np.int64]
    smiles: list[str]
    codes: NDArray[np.uint8]
    is_counts: bool
    duplicates: dict[int, int]
    invalid: dict[int, str]

    def arms(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the ``n x num_bits`` fingerprints, for ``TanimotoKernel``."""
        codes = self.codes if self.is_counts else np.unpackbits(self.codes, axis=1)
        return torch.from_numpy(codes).to(dtype)


def read_molecules(
    smiles: Sequence[str],
    *,
    radius: int = 2,
    num_bits: int = 2048,
    counts: bool = False,
    skip_invalid: bool = False,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Molecules:
    r"""Read SMILES and compute Morgan fingerprints, [rogers2010ecfp]_ (ECFP4).

    Molecules that are the same after RDKit's canonicalization are one. Salts and
    mixtures stay as they are written. Counts above 255 are 255.

    Args:
        smiles: ``N`` strings; white space around them is ignored.
        radius: The number of bonds around an atom, from 1 to 100; 2 is ECFP4.
        num_bits: The length of a fingerprint, a multiple of 8 up to 65,536.
        counts: Whether to count how often a fragment occurs.
        skip_invalid: Whether rows that are no molecule are left out; they are an error
            if not.
        num_workers: The number of processes. None: one a core.
        progress: Called with the number of rows done since the last call.

    Raises:
        ImportError: If RDKit is not installed.
        InputDataError: If a row is no string, cannot be read, or has more than 1,000
            heavy atoms (with ``skip_invalid``: if no row is left), or an option is out
            of range.
    """
    molecules = find_molecules(smiles, radius, num_bits, counts, num_workers, progress)
    _check_rows(smiles, molecules, skip_invalid)
    return molecules


def find_molecules(
    smiles: Sequence[str],
    radius: int = 2,
    num_bits: int = 2048,
    counts: bool = False,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Molecules:
    """Do what :func:`read_molecules` does, but refuse no row for what it holds.

    Arguments and errors are the same; rows that are no molecule are only reported, even
    if all are.
    """
    check_size("radius", radius)
    check_size("num_bits", num_bits)
    if radius > MAX_RADIUS:
        raise InputDataError(
            f"Expected `radius` to be at most {MAX_RADIUS}, but got {radius}."
        )
    if num_bits % 8 or num_bits > MAX_BITS:
        raise InputDataError(
            f"Expected `num_bits` to be a multiple of 8 up to {MAX_BITS:,}, but got "
            f"{num_bits:,}."
        )
    if num_workers is None:
        num_workers = os.cpu_count() or 1
    check_size("num_workers", num_workers)
    _check_smiles(smiles)
    kind = "counts" if counts else "bits"
    width = num_bits if counts else num_bits // 8

    def ask_worker(start: int) -> tuple[list[str | None], list[str | None], bytes]:
        chunk = [text.strip() for text in smiles[start : start + CHUNK_SIZE]]
        answer = _run_worker(WORKER, [str(radius), str(num_bits), kind], chunk, start)
        names, _, codes = answer.partition(b"\n")
        if progress is not None:
            progress(len(chunk))
        canonical, reasons = json.loads(names)
        return canonical, reasons, codes

    first: dict[str, int] = {}
    duplicates: dict[int, int] = {}
    invalid: dict[int, str] = {}
    # Of all rows, so that nothing is joined: what is not written takes no memory.
    codes = np.empty((len(smiles), width), dtype=np.uint8)
    starts = range(0, len(smiles), CHUNK_SIZE)
    with ThreadPoolExecutor(num_workers) as threads:
        for start, answer in zip(starts, threads.map(ask_worker, starts), strict=True):
            canonical, reasons, data = answer
            read = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
            num_before = len(first)
            new: list[int] = []
            rows = [row for row, name in enumerate(canonical, start) if name]
            invalid |= {
                row: str(reason) for row, reason in enumerate(reasons, start) if reason
            }
            for position, row in enumerate(rows):
                name = str(canonical[row - start])
                if name in first:
                    duplicates[row] = first[name]
                else:
                    first[name] = row
                    new.append(position)
            codes[num_before : len(first)] = read[new]
    return Molecules(
        rows=np.fromiter(first.values(), dtype=np.int64, count=len(first)),
        smiles=list(first),
        codes=codes[: len(first)],
        is_counts=counts,
        duplicates=duplicates,
        invalid=invalid,
    )


def draw_molecules(
    smiles: Sequence[str], *, width: int = 220, height: int = 150
) -> list[str]:
    """Draw structures by RDKit.

    Args:
        smiles: ``n`` SMILES, such as those of :class:`Molecules`; white space around
            them is ignored.
        width: That of a picture, in pixels.
        height: Its height.

    Returns:
        The ``n`` pictures, SVG with a transparent background.

    Raises:
        ImportError: If RDKit is not installed.
        InputDataError: If a row is no string or cannot be read.
    """
    check_size("width", width)
    check_size("height", height)
    _check_smiles(smiles)
    stripped = [text.strip() for text in smiles]
    answer = _run_worker(DRAWING_WORKER, [str(width), str(height)], stripped, 0)
    pictures: list[Any] = json.loads(answer)
    if None in pictures:
        row = pictures.index(None)
        raise InputDataError(
            "Expected SMILES of molecules, but RDKit cannot draw "
            f"{smiles[row][:80]!r} of row {row}."
        )
    return pictures


def _check_smiles(smiles: Sequence[str]) -> None:
    if importlib.util.find_spec("rdkit") is None:
        raise ImportError(
            "Molecules need RDKit, which is not installed. Install it with "
            'pip install "botorch_bkb[chem]".'
        )
    for row, text in enumerate(smiles):
        if not isinstance(text, str):
            raise InputDataError(
                f"Expected SMILES to be strings, but row {row} is {text!r}."
            )


def _run_worker(
    worker: Path, words: Sequence[str], smiles: Sequence[str], start: int
) -> bytes:
    """Return what a worker answers to SMILES, of which ``start`` is the first row."""
    # -P: modules beside the program are no modules of its own.
    command = [sys.executable, "-P", str(worker), *words]
    done = subprocess.run(
        command, input=json.dumps(smiles).encode(), stdout=subprocess.PIPE
    )
    if done.returncode:
        raise RuntimeError(
            f"RDKit ended with exit code {done.returncode} on rows {start} to "
            f"{start + len(smiles) - 1}."
        )
    return done.stdout


def _check_rows(
    smiles: Sequence[str], molecules: Molecules, skip_invalid: bool
) -> None:
    invalid, is_any = molecules.invalid, len(molecules.rows) > 0
    if invalid and not (skip_invalid and is_any):
        row = min(invalid)
        text = smiles[row] if len(smiles[row]) <= 80 else smiles[row][:77] + "..."
        raise InputDataError(
            f"Expected a molecule in every row, but the SMILES {text!r} of row {row} "
            f"{invalid[row]}; there are {len(invalid):,} such rows of "
            f"{len(smiles):,}. Correct them, or pass `skip_invalid=True`."
        )
    if not is_any:
        raise InputDataError("Expected at least one SMILES, but got none.")
