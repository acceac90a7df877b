import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from rdkit import Chem
from rdkit.Chem import Descriptors, rdFingerprintGenerator

from botorch_bkb.integrations import chem
from botorch_bkb.integrations.chem import DESCRIPTORS, draw_molecules, read_molecules


SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "Cc1ccccc1", "O=C=O", "CCCC"]
BAD = {
    "": "is empty",
    "C1CC": "cannot be read by RDKit",
    "CCO ethanol": "holds a space",
    "CC\tO": "holds a space",
    "C" * 100_000: "has 100,000 characters",
    "C" * 2000: "has 2,000 heavy atoms",
    "(" * 5000: "cannot be read by RDKit",
    "CC\x00O": "holds a character that no SMILES has",
    "C\ud800": "holds a character that no SMILES has",
    "Ж": "holds a character that no SMILES has",
}


@pytest.mark.parametrize(
    ("radius", "num_bits", "counts"), [(2, 2048, False), (3, 512, True)]
)
def test_fingerprints_are_rdkit_s(radius, num_bits, counts):
    molecules = read_molecules(SMILES, radius=radius, num_bits=num_bits, counts=counts)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius, fpSize=num_bits)
    mols = [Chem.MolFromSmiles(text) for text in SMILES]
    if counts:
        expected = [generator.GetCountFingerprintAsNumPy(mol) for mol in mols]
    else:
        expected = [generator.GetFingerprintAsNumPy(mol) for mol in mols]
    arms = molecules.arms(torch.float32)
    assert arms.dtype == torch.float32
    np.testing.assert_array_equal(arms, np.stack(expected))
    assert molecules.smiles == [Chem.MolToSmiles(mol) for mol in mols]
    assert molecules.codes.nbytes == len(SMILES) * num_bits // (1 if counts else 8)


def test_descriptors_are_rdkit_s():
    rows = [*SMILES, "OCC", "[Na+].[Cl-]", "*", "C**C", "[H][H]"]
    found = read_molecules(rows, descriptors=True)
    mols = [Chem.MolFromSmiles(text) for text in found.smiles]
    assert found.descriptors.shape == (len(mols), len(DESCRIPTORS))
    assert np.isfinite(found.descriptors).all()
    for name, descriptor in {
        "exactmw": Descriptors.ExactMolWt,
        "CrippenClogP": Descriptors.MolLogP,
        "tpsa": Descriptors.TPSA,
        "NumAromaticRings": Descriptors.NumAromaticRings,
    }.items():
        column = found.descriptors[:, DESCRIPTORS.index(name)]
        np.testing.assert_allclose(column, [*map(descriptor, mols)], rtol=1e-6)
    assert read_molecules(rows).descriptors.shape == (len(mols), 0)


def test_one_far_molecule_leaves_the_others_a_part_of_the_range():
    rows = ["C" * (1 + n % 20) + "O" * (n // 20) for n in range(400)]
    weight = DESCRIPTORS.index("exactmw")
    plain, far = (
        read_molecules([*rows, *more], descriptors=True).descriptors[:, weight]
        for more in ([], ["C" * 900])
    )
    np.testing.assert_array_equal(far[:-1], plain)
    low, high = np.quantile(far, [0.005, 0.995])
    assert far[-1] == pytest.approx(high + 4 * (high - low))


def test_equal_molecules_are_one_and_chunks_change_nothing(monkeypatch):
    """Salts and mixtures stay as they are written."""
    rows = ["OCC", *SMILES, " CCO ", "C1=CC=CC=C1", "CC(=O)[O-].[Na+]"]
    whole = read_molecules(rows)
    assert whole.duplicates == {1: 0, 9: 0, 10: 2}
    assert whole.rows.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 11]
    assert whole.smiles[-1] == rows[-1]
    monkeypatch.setattr(chem, "CHUNK_SIZE", 3)
    done = []
    parts = read_molecules(rows, num_workers=2, progress=done.append)
    assert sorted(done) == [3, 3, 3, 3]
    assert parts.duplicates == whole.duplicates
    assert parts.smiles == whole.smiles
    np.testing.assert_array_equal(parts.rows, whole.rows)
    np.testing.assert_array_equal(parts.codes, whole.codes)


def test_what_is_no_molecule_is_refused_by_row():
    with pytest.raises(InputDataError, match=r"of row 2 is empty; there are 1 such"):
        read_molecules([*SMILES[:2], "", *SMILES[2:]])


def test_what_is_no_molecule_can_be_left_out():
    rows = [text for pair in zip(BAD, BAD, strict=True) for text in (*pair, "CCO")]
    molecules = read_molecules(rows, skip_invalid=True)
    assert molecules.smiles == ["CCO"]
    assert len(molecules.invalid) == 2 * len(BAD)
    for row, reason in molecules.invalid.items():
        assert reason.startswith(BAD[rows[row]])


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        (["CCO", None], {}, "row 1 is None"),
        (["CCO"], {"num_bits": 100}, "multiple of 8"),
        (["CCO"], {"radius": 101}, "Expected `radius` to be at most 100.* but got 101"),
    ],
)
def test_bad_arguments_are_refused(rows, options, match):
    with pytest.raises(InputDataError, match=match):
        read_molecules(rows, **options)


def test_without_rdkit_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"need RDKit, .*botorch_bkb\[chem\]"):
        read_molecules(["CCO"])


def test_structures_are_drawn():
    """A bond is a path between two atoms; heteroatoms are letters."""
    pictures = draw_molecules([*SMILES, " CCO "], width=300, height=200)
    space = "{http://www.w3.org/2000/svg}"
    for text, picture in zip(SMILES, pictures, strict=False):
        svg = ElementTree.fromstring(picture)
        assert svg.tag == f"{space}svg"
        assert (svg.get("width"), svg.get("height")) == ("300px", "200px")
        bonds = {
            word
            for path in svg.iter(f"{space}path")
            for word in path.get("class", "").split()
            if word.startswith("bond-")
        }
        assert len(bonds) == Chem.MolFromSmiles(text).GetNumBonds()
        assert svg.find(f"{space}rect") is None  # no background
    assert pictures[-1] == pictures[0]


def test_what_is_no_molecule_is_not_drawn():
    with pytest.raises(InputDataError, match="cannot draw 'C1CC' of row 1"):
        draw_molecules(["CCO", "C1CC"])
