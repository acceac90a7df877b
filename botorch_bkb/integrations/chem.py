"""From molecules to arms; needs the extra ``chem`` (RDKit).

Example:
    >>> found = read_molecules(table["smiles"], descriptors=True)
    >>> numbers = torch.from_numpy(found.descriptors)
    >>> bandit = GPBandit(BitArms(found.codes, numbers=numbers))
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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


WORKER = Path(__file__).with_name("rdkit_worker.py")
# Rows of one process: a second or two of work.
CHUNK_SIZE = 10_000
# RDKit runs out of memory or numbers above them.
MAX_RADIUS, MAX_BITS = 100, 2**16
# Size, polarity, flexibility and rings: the properties that RDKit registers, but those
# of connectivity and shape, which take most of their time.
DESCRIPTORS = (
    *("exactmw", "amw", "lipinskiHBA", "lipinskiHBD", "NumRotatableBonds", "NumHBD"),
    *("NumHBA", "NumHeavyAtoms", "NumAtoms", "NumHeteroatoms", "NumAmideBonds"),
    *("FractionCSP3", "NumRings", "NumAromaticRings", "NumAliphaticRings"),
    *("NumSaturatedRings", "NumHeterocycles", "NumAromaticHeterocycles"),
    *("NumSaturatedHeterocycles", "NumAliphaticHeterocycles", "NumSpiroAtoms"),
    *("NumBridgeheadAtoms", "NumAtomStereoCenters", "NumUnspecifiedAtomStereoCenters"),
    *("labuteASA", "tpsa", "CrippenClogP", "CrippenMR"),
)
# A value is far if it is this many times the range of the middle 99 % outside of it.
FAR = 4.0


@dataclass(frozen=True, eq=False)
class Molecules:
    """Different molecules and their fingerprints.

    Attributes:
        rows: The first row of each of the ``n`` molecules.
        smiles: Their canonical SMILES.
        codes: Their fingerprints, ``n x num_bits / 8`` packed bits or ``n x num_bits``
            counts, as ``uint8``.
        descriptors: Their ``n x 28`` descriptors, of the names ``DESCRIPTORS``, if they
            were asked for; else ``n x 0``.
        is_counts: Whether ``codes`` are counts.
        duplicates: For rows that repeat a molecule, its first row.
        invalid: For rows that are not a molecule, the reason.
    """

    rows: NDArray[np.int64]
    smiles: list[str]
    codes: NDArray[np.uint8]
    descriptors: NDArray[np.float64]
    is_counts: bool
    duplicates: dict[int, int]
    invalid: dict[int, str]

    def arms(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the ``n x num_bits`` fingerprints alone, for ``TanimotoKernel``."""
        codes = self.codes if self.is_counts else np.unpackbits(self.codes, axis=1)
        return torch.from_numpy(codes).to(dtype)


def read_molecules(
    smiles: Sequence[str],
    *,
    radius: int = 2,
    num_bits: int = 2048,
    counts: bool = False,
    descriptors: bool = False,
    skip_invalid: bool = False,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Molecules:
    r"""Read SMILES and compute Morgan fingerprints, [rogers2010ecfp]_ (ECFP4).

    Molecules with the same canonical SMILES of RDKit are one. Salts and mixtures stay
    as they are written. Counts above 255 are 255.

    Args:
        smiles: ``N`` strings; white space around them is ignored.
        radius: The number of bonds around an atom, from 1 to 100; 2 is ECFP4.
        num_bits: The length of a fingerprint, a multiple of 8 up to 65,536.
        counts: Whether to count how often a fragment occurs.
        descriptors: Whether to compute descriptors, too. One that RDKit cannot compute
            is 0. A value that is far from those of other molecules is replaced by the
            nearest one that is not, since models scale a feature by its range.
        skip_invalid: Whether rows that are not a molecule are reported in ``invalid``
            instead of raising an error.
        num_workers: The number of processes; None for one per core.
        progress: Called with the number of rows done since the last call.

    Raises:
        ImportError: If RDKit is not installed.
        InputDataError: If a row is not a string, cannot be read, or has more than 1,000
            heavy atoms, or an option is out of range.
    """
    check_size("radius", radius)
    check_size("num_bits", num_bits)
    if radius > MAX_RADIUS or num_bits > MAX_BITS or num_bits % 8:
        raise InputDataError(
            f"Expected `radius` to be at most {MAX_RADIUS}, and `num_bits` to be a "
            f"multiple of 8 up to {MAX_BITS:,}, but got {radius} and {num_bits:,}."
        )
    if num_workers is None:
        num_workers = os.cpu_count() or 1
    check_size("num_workers", num_workers)
    width = num_bits if counts else num_bits // 8
    kind = "counts" if counts else "bits"
    names = DESCRIPTORS if descriptors else ()
    options = [kind, str(radius), str(num_bits), *names]

    first: dict[str, int] = {}
    duplicates: dict[int, int] = {}
    invalid: dict[int, str] = {}
    # Allocated for all rows at once: rows that are not written take no memory.
    codes = np.empty((len(smiles), width), dtype=np.uint8)
    values = np.empty((len(smiles), len(names)))
    answers = _ask_workers(smiles, options, num_workers, progress)
    for row, (name, answer, numbers) in enumerate(answers):
        if name is None:
            invalid[row] = answer
        elif name in first:
            duplicates[row] = first[name]
        else:
            codes[len(first)] = np.frombuffer(bytes.fromhex(answer), dtype=np.uint8)
            values[len(first)] = numbers
            first[name] = row
    if invalid and not skip_invalid:
        row = min(invalid)
        text = smiles[row] if len(smiles[row]) <= 80 else smiles[row][:77] + "..."
        raise InputDataError(
            f"Expected a molecule in every row, but the SMILES {text!r} of row {row} "
            f"{invalid[row]}; there are {len(invalid):,} such rows of {len(smiles):,}. "
            "Correct them, or pass `skip_invalid=True`."
        )
    return Molecules(
        rows=np.fromiter(first.values(), dtype=np.int64, count=len(first)),
        smiles=list(first),
        codes=codes[: len(first)],
        descriptors=_without_far(values[: len(first)]),
        is_counts=counts,
        duplicates=duplicates,
        invalid=invalid,
    )


def _without_far(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace far values of each column, unless nearly all of them are equal."""
    if not values.size:
        return values
    values = np.where(np.isfinite(values), values, 0.0)
    low, high = np.quantile(values, [0.005, 0.995], axis=0)
    reach = np.where(high > low, FAR * (high - low), np.inf)
    return values.clip(low - reach, high + reach)


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
        InputDataError: If a row is not a string or cannot be read.
    """
    check_size("width", width)
    check_size("height", height)
    pictures = list(_ask_workers(smiles, ["draw", str(width), str(height)]))
    if None in pictures:
        row = pictures.index(None)
        raise InputDataError(
            "Expected SMILES of molecules, but RDKit cannot draw "
            f"{smiles[row][:80]!r} of row {row}."
        )
    return pictures


def _ask_workers(
    smiles: Sequence[str],
    options: Sequence[str],
    num_workers: int = 1,
    progress: Callable[[int], object] | None = None,
) -> Iterator[Any]:
    """Yield the answer of the worker program for each row."""
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
    # -P: the program must not import modules from its folder.
    command = [sys.executable, "-P", str(WORKER), *options]

    def ask(start: int) -> list[Any]:
        chunk = [text.strip() for text in smiles[start : start + CHUNK_SIZE]]
        done = subprocess.run(
            command, input=json.dumps(chunk).encode(), stdout=subprocess.PIPE
        )
        if done.returncode:
            raise RuntimeError(
                f"RDKit ended with exit code {done.returncode} on rows {start} to "
                f"{start + len(chunk) - 1}."
            )
        if progress is not None:
            progress(len(chunk))
        return json.loads(done.stdout)

    with ThreadPoolExecutor(num_workers) as threads:
        for answers in threads.map(ask, range(0, len(smiles), CHUNK_SIZE)):
            yield from answers
