"""A program: SMILES in, a line each; fingerprints and canonical SMILES out.

Run by its path, so that a process of it loads RDKit and not torch. What it writes is
one JSON line with the canonical SMILES, or the reason why there is none, followed by
the fingerprints of the molecules that there are, packed bits or counts of one byte.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator


# Canonical SMILES take a time that is quadratic in the number of atoms.
MAX_ATOMS = 1000
MAX_LENGTH = 10 * MAX_ATOMS


def parse(text: str) -> Chem.Mol | str:
    """Return a molecule, or what is wrong with its SMILES."""
    if not text:
        return "is empty"
    if text.split() != [text]:
        return "holds a space, after which RDKit would read nothing"
    if not (text.isascii() and text.isprintable()):
        return "holds a character that no SMILES has"
    if len(text) > MAX_LENGTH:
        return f"has {len(text):,} characters, more than {MAX_LENGTH:,}"
    mol = Chem.MolFromSmiles(text)
    if mol is None:
        return "cannot be read by RDKit"
    if mol.GetNumAtoms() == 0:
        return "has no atoms"
    if mol.GetNumAtoms() > MAX_ATOMS:
        return f"has {mol.GetNumAtoms():,} heavy atoms, more than {MAX_ATOMS:,}"
    return mol


def main(radius: int, num_bits: int, counts: bool) -> None:
    """Answer the lines of standard input on standard output."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius, fpSize=num_bits)
    canonical: list[str | None] = []
    reasons: list[str | None] = []
    fingerprints: list[bytes] = []
    with rdBase.BlockLogs():
        for line in json.load(sys.stdin):
            mol = parse(line)
            if isinstance(mol, str):
                canonical.append(None)
                reasons.append(mol)
                continue
            canonical.append(Chem.MolToSmiles(mol))
            reasons.append(None)
            if counts:
                row = generator.GetCountFingerprintAsNumPy(mol)
                row = np.minimum(row, 255).astype(np.uint8)
            else:
                row = np.packbits(generator.GetFingerprintAsNumPy(mol))
            fingerprints.append(row.tobytes())
    sys.stdout.buffer.write(json.dumps([canonical, reasons]).encode() + b"\n")
    sys.stdout.buffer.writelines(fingerprints)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "counts")
