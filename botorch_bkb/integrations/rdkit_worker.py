"""A program: SMILES in; fingerprints and descriptors, or pictures, out.

It is run by its path, so that its process loads RDKit and not torch. It reads a JSON
list of SMILES, and writes one. ``draw WIDTH HEIGHT`` writes SVG pictures, null if RDKit
cannot read the molecule. ``bits RADIUS NUM_BITS DESCRIPTOR ...``, or ``counts``, writes
lists of a canonical SMILES, its fingerprint, the hexadecimal digits of packed bits or
of counts of one byte, and its descriptors, the properties with these names of RDKit; or
of null, the reason, and no descriptor.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator, rdMolDescriptors
from rdkit.Chem.Draw import rdMolDraw2D


# The time of canonical SMILES is quadratic in the number of atoms.
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


def draw(smiles: str, width: int, height: int) -> str | None:
    """Return a picture without a background; None if SMILES are not a molecule."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or mol.GetNumAtoms() == 0:
        return None
    drawing = rdMolDraw2D.MolDraw2DSVG(width, height)
    options = drawing.drawOptions()
    options.clearBackground = False  # type: ignore[assignment]
    # Yellow sulphur is hardly visible on white, and inverted on black.
    options.useBWAtomPalette()
    rdMolDraw2D.PrepareAndDrawMolecule(drawing, mol)
    drawing.FinishDrawing()
    return drawing.GetDrawingText()


def main(kind: str, first: int, second: int, descriptors: list[str]) -> None:
    """Answer the list of standard input on standard output."""
    smiles = json.load(sys.stdin)
    if kind == "draw":
        json.dump([draw(text, first, second) for text in smiles], sys.stdout)
        return
    generator = rdFingerprintGenerator.GetMorganGenerator(first, fpSize=second)
    # Without names they would be all that RDKit has.
    properties = descriptors and rdMolDescriptors.Properties(descriptors)
    answers: list[tuple[str | None, str, list[float]]] = []
    for mol in map(parse, smiles):
        if isinstance(mol, str):
            answers.append((None, mol, []))
            continue
        if kind == "counts":
            row = np.minimum(generator.GetCountFingerprintAsNumPy(mol), 255)
        else:
            row = np.packbits(generator.GetFingerprintAsNumPy(mol))
        code = row.astype(np.uint8).tobytes().hex()
        values = [*properties.ComputeProperties(mol)] if properties else []
        answers.append((Chem.MolToSmiles(mol), code, values))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    with rdBase.BlockLogs():
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
