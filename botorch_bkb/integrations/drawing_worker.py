"""A program: SMILES in, structures out, as SVG.

Run by its path, so that a process of it loads RDKit and not torch. It reads a JSON list
of SMILES and writes one of pictures, null where RDKit cannot read a SMILES.
"""

from __future__ import annotations

import json
import sys

from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D


def draw(smiles: str, width: int, height: int) -> str | None:
    """Return a picture without a background; None if there is no molecule."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or mol.GetNumAtoms() == 0:
        return None
    drawing = rdMolDraw2D.MolDraw2DSVG(width, height)
    options = drawing.drawOptions()
    options.clearBackground = False  # type: ignore[assignment]
    # Yellow sulphur can hardly be seen, on white or turned over on black.
    options.useBWAtomPalette()
    rdMolDraw2D.PrepareAndDrawMolecule(drawing, mol)
    drawing.FinishDrawing()
    return drawing.GetDrawingText()


def main(width: int, height: int) -> None:
    """Answer the list of standard input on standard output."""
    with rdBase.BlockLogs():
        pictures = [draw(text, width, height) for text in json.load(sys.stdin)]
    json.dump(pictures, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
