"""Libraries of molecules and of bits, to the next plate."""

import re
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator, rdMolDescriptors

from botorch_bkb import GPBandit
from botorch_bkb.__main__ import main
from botorch_bkb.arms import BitArms, TableArms
from botorch_bkb.cli import molecules
from botorch_bkb.integrations.chem import DESCRIPTORS
from tests.cli.tables import next_batch


SMILES = [
    "C" * head + group + "C" * tail
    for head in range(1, 5)
    for tail in range(3)
    for group in ("O", "N", "S", "C(=O)", "C(F)", "C(Cl)", "OC(=O)", "C#C")
]
ODD = ["CCO ethanol", "C\u00d6", "NA", "None", "nan", "1", "=1", "[Na+].[Cl-]"]
BAD = {
    "": "is empty",
    "C1CC": "cannot be read by RDKit",
    "C" * 100_000: "has 100,000 characters",
}


def log_p(smiles):
    return rdMolDescriptors.CalcCrippenDescriptors(Chem.MolFromSmiles(smiles))[0]


@pytest.fixture
def library():
    names = sorted(set(map(Chem.CanonSmiles, SMILES)))
    ids = [f"m{row}" for row in range(len(names))]
    return pd.DataFrame({"id": ids, "smiles": names})


def results_of(library, rows):
    table = library.iloc[rows]
    return table.assign(reward=[log_p(text) for text in table["smiles"]])


@pytest.mark.parametrize("words", [(), ("--kernel", "tanimoto")])
def test_a_library_of_smiles_gives_the_next_plate(words, library, capsys):
    """With descriptors, unless a kernel of fingerprints is asked for."""
    rows = list(range(0, len(library), 4))
    results = results_of(library, rows)
    found = next_batch(library, results, "--smiles", "smiles", *words)
    generator = rdFingerprintGenerator.GetMorganGenerator(2, fpSize=2048)
    counts = [
        generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(text))
        for text in library["smiles"]
    ]
    numbers = None
    if not words:
        properties = rdMolDescriptors.Properties(DESCRIPTORS)
        mols = map(Chem.MolFromSmiles, library["smiles"])
        numbers = torch.tensor([[*properties.ComputeProperties(mol)] for mol in mols])
    codes = np.stack(counts).astype("uint8")
    arms = BitArms(codes, is_packed=False, numbers=numbers)
    bandit = GPBandit(arms, seed=0)
    bandit.add_observations(rows, torch.tensor(results["reward"].to_numpy()))
    picks = bandit.ask(5)
    assert found["id"].tolist() == library["id"].iloc[picks.tolist()].tolist()
    mean, variance = bandit.predict(picks)
    np.testing.assert_allclose(found["mean"], mean)
    np.testing.assert_allclose(found["std"], variance.sqrt())
    said = capsys.readouterr().out
    became = "column 'smiles' became Morgan fingerprints of radius 2, 2,048 counts"
    assert became in said
    kernels = "a Tanimoto kernel and a Matern kernel of the descriptors."
    assert (kernels in said) == ("28 descriptors" in said) == (not words)
    assert "Fit: noise is" in said


def test_a_row_without_a_molecule_is_named_or_skipped(library, capsys):
    library.loc[7, "smiles"] = text = "C" * 100_000
    next_batch(library, None, "--smiles", "smiles", code=2)
    error = capsys.readouterr().err
    assert f"in row 9 (the header counts, as in a spreadsheet) {BAD[text]}" in error
    assert "there are 1 such rows of 89. Correct them, or pass --skip-invalid" in error
    assert error.count("\n") == 1
    assert len(error) < 400
    results = results_of(library.drop(index=7), list(range(10)))
    results = pd.concat([results, pd.DataFrame({"id": ["m7"], "reward": [1.0]})])
    words = "--smiles", "smiles", "--skip-invalid"
    found = next_batch(library, results, *words, size=80)
    assert "m7" not in set(found["id"])
    said = capsys.readouterr().out
    assert "skipped with their measurements: 1. Rows: 9" in said
    assert BAD[text] in said
    assert "88 candidates, 10 of them measured" in said


def test_one_molecule_written_twice_is_one_candidate(library, capsys):
    first = Chem.CanonSmiles("CCOC")
    row = library.index[library["smiles"] == first][0]
    library["stock"] = "yes"
    library.loc[row, "stock"] = "no"
    library.loc[len(library)] = ["other way", "COCC", "yes"]
    results = results_of(library, [0, 9, 30, 50, 70])
    results.loc[500] = ["m" + str(row), first, "no", 3.0]
    results.loc[501] = ["other way", first, "no", 5.0]
    words = ["--smiles", "smiles", "--available", "stock", "--max-repeats", "3"]
    found = next_batch(library, results, *words, size=88 * 3)
    said = capsys.readouterr().out
    assert "rows with the molecule and settings of another row: 1," in said
    assert f"such as m{row} those of other way" in said
    assert "89 candidates, 6 of them measured, 7 measurements in all" in said
    assert f"m{row}" not in set(found["id"])
    # Two of its three measurements are made.
    assert found.set_index("id")["repeats"].get("other way", 0) <= 1


def test_a_molecule_written_twice_may_name_itself(library, capsys):
    library = library.drop(columns="id")
    library.loc[len(library)] = Chem.MolToSmiles(
        Chem.MolFromSmiles(library["smiles"][0]), canonical=False, rootedAtAtom=1
    )
    results = library.iloc[[0, 9, 30, 50, 89]].assign(reward=[1.0, 4.0, 2.0, 5.0, 3.0])
    words = ["--id", "smiles", "--smiles", "smiles", "--max-repeats", 1]
    batch = next_batch(library, results, *words, size=85)
    assert len(batch) == 85
    assert "89 candidates, 4 of them measured" in capsys.readouterr().out


def test_without_rdkit_it_is_said_what_to_install(library, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    next_batch(library, None, "--smiles", "smiles", code=2)
    assert "Install it with pip install" in capsys.readouterr().err


def test_another_column_beside_the_molecule_is_learned_too(library, capsys):
    table = pd.concat([library, library], ignore_index=True)
    table["id"] = [f"x{row}" for row in range(len(table))]
    table["temperature"] = np.repeat([20.0, 80.0], len(library))
    table["pressure"] = np.tile([1.0, 2.0], len(library))
    results = results_of(table, list(range(0, len(table), 3)))
    results["reward"] += results["temperature"] / 10
    found = next_batch(table, results, "--smiles", "smiles", size=12)
    said = capsys.readouterr().out
    assert "and a Matern kernel of the descriptors and the other columns" in said
    # Two temperatures of a molecule are two candidates.
    assert "of another row" not in said
    hot = table.set_index("id")["temperature"].loc[found["id"]] == 80
    assert hot.mean() > 0.8


def test_molecules_that_left_the_library_inform(library, capsys):
    rows = list(range(0, 40, 2))
    results = results_of(library, rows)
    whole = next_batch(library, results, "--smiles", "smiles")
    rest = library.drop(index=rows)
    capsys.readouterr()
    again = next_batch(rest, results, "--smiles", "smiles")
    said = capsys.readouterr().out
    assert "candidates that are no longer in arms.csv: 20" in said
    # The fit is the same, whichever table the molecules stand in.
    both = whole.merge(again, on="id")
    assert len(both) >= 3
    np.testing.assert_allclose(both["mean_x"], both["mean_y"], rtol=1e-6)
    results.loc[results.index[0], "smiles"] = "C1CC"
    next_batch(rest, results, "--smiles", "smiles", code=2)
    said = "of results.csv (the header counts, as in a spreadsheet)"
    assert said in capsys.readouterr().err


def test_a_column_says_why(library):
    results = results_of(library, list(range(0, len(library), 4)))
    found = next_batch(library, results, "--smiles", "smiles", "--goal", "regret")
    best = results["reward"].max()
    for _, pick in found.iterrows():
        kind = pick["why"].split(":")[0]
        assert kind in ("promising", "uncertain", "to learn", "repeat")
        assert kind not in ("uncertain", "to learn") or pick["mean"] < best


def test_a_report_draws_molecules_whose_ids_are_their_smiles(library, capsys):
    results = results_of(library, [0, 9, 30, 50, 70])[["smiles", "reward"]]
    words = ["--id=smiles", "--smiles=smiles", "--report=r.html", "--bits"]
    next_batch(library[["smiles"]], results, *words, "--radius=1")
    assert Path("r.html").read_text().count("structure of") == 5
    assert "radius 1, 2,048 bits" in capsys.readouterr().out


def test_results_may_write_a_molecule_in_another_way_but_not_another(library, capsys):
    row = library.index[library["smiles"] == Chem.CanonSmiles("CCOC")][0]
    results = results_of(library, [0, 9, row, 50, 70])
    plain = next_batch(library, results, "--smiles", "smiles")
    results.loc[row, "smiles"] = "COCC"
    results.loc[0, "smiles"] = None
    again = next_batch(library, results, "--smiles", "smiles")
    pd.testing.assert_frame_equal(again, plain)
    for other in ("CCOCC", "C1CC"):
        results.loc[row, "smiles"] = other
        capsys.readouterr()
        next_batch(library, results, "--smiles", "smiles", code=2)
        error = capsys.readouterr().err
        assert f"have the SMILES {other!r} in row 4 " in error
        assert f"but the molecule of m{row} is 'CCOC' in" in error
        assert error.count("\n") == 1


def test_rewards_whose_squares_underflow_are_no_traceback(library):
    results = results_of(library, [0, 9, 30, 50, 70])
    results["reward"] *= 1e-300
    found = next_batch(library, results, "--smiles", "smiles")
    assert len(found) == 5
    assert not found["why"].str.contains("nan|inf").any()


# --- bits


def bit_table(num_bits, num_rows=60):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, size=(num_rows, num_bits))
    table = pd.DataFrame(bits).add_prefix("bit")
    table.insert(0, "id", [f"b{row}" for row in range(num_rows)])
    rewards = bits @ rng.normal(size=num_bits)
    results = pd.DataFrame({"id": table["id"], "reward": rewards}).iloc[::3]
    return table, results


def test_a_table_of_bits_is_compared_as_fingerprints(capsys):
    table, results = bit_table(66)
    found = next_batch(table, results)
    said = capsys.readouterr().out
    assert "66 columns of 0 and 1 are fingerprints, compared by a Tanimoto" in said
    assert "why" in found
    bits = torch.tensor(table.drop(columns="id").to_numpy()).to(torch.uint8)
    bandit = GPBandit(BitArms.of(bits), seed=0)
    told = torch.arange(0, 60, 3)
    bandit.add_observations(told, torch.tensor(results["reward"].to_numpy()))
    picks = bandit.ask(5)
    assert found["id"].tolist() == table["id"].iloc[picks.tolist()].tolist()
    np.testing.assert_allclose(found["mean"], bandit.predict(picks)[0])


@pytest.mark.parametrize(
    ("num_bits", "other"), [(63, None), (64, [0.5, 1.5]), (64, ["a", "b"])]
)
def test_other_tables_are_compared_as_numbers(num_bits, other, capsys):
    table, results = bit_table(num_bits)
    if other is not None:
        table["other"] = np.tile(other, 30)
    next_batch(table, results)
    said = capsys.readouterr().out
    assert "Tanimoto" not in said
    is_of_words = other == ["a", "b"]
    assert ("'other' has 2 words, compared as categories" in said) == is_of_words


def test_bits_and_counts_are_compared_as_fingerprints_if_asked(capsys):
    table, results = bit_table(16)
    heat = np.linspace(20, 80, len(table))
    rewards = results["reward"] + heat[::3]
    words = "--kernel", "tanimoto"
    next_batch(table.assign(heat=heat), results.assign(reward=rewards), *words)
    said = capsys.readouterr().out
    assert "16 columns of 0 and 1" in said
    assert "a Tanimoto kernel and a Matern kernel of the other columns" in said
    counts = table.drop(columns="id") * 3 + 2
    next_batch(counts.assign(id=table["id"]), results, *words)
    assert "16 columns of counts" in capsys.readouterr().out
    next_batch((counts / 2).assign(id=table["id"]), results, *words, code=2)
    assert "--kernel tanimoto needs columns of 0 and 1" in capsys.readouterr().err


# --- what people have


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.sampled_from([*BAD, *SMILES, *ODD]),
            st.text(alphabet="CNOFcn()[]=#123+-@/\\.%\"',; \t", max_size=12),
            st.text(max_size=6),
        ),
        min_size=4,
        max_size=24,
    ),
    st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]),
)
def test_never_a_traceback_and_never_a_wrong_molecule(cells, encoding):
    cells = [cell.encode("utf-8", "ignore").decode() for cell in cells]
    cells = [re.sub("[\r\n\0]", " ", cell) for cell in cells] + SMILES[:4]
    ids = [f"m{row}" for row in range(len(cells))]
    table = pd.DataFrame({"id": ids, "smiles": cells})
    words = ["--smiles=smiles", "--skip-invalid", "--separator=comma"]
    table.to_csv("fuzz.csv", index=False, encoding=encoding)
    Path("next.csv").unlink(missing_ok=True)
    code = main(["suggest", "fuzz.csv", *words])
    assert code in (0, 2)
    if code == 2:
        return
    chosen = pd.read_csv("next.csv")["id"]
    with rdBase.BlockLogs():
        for name in chosen:
            text = table.set_index("id")["smiles"][name].strip()
            assert " " not in text
            assert Chem.MolFromSmiles(text).GetNumAtoms() > 0
        # No molecule is lost, but for those that another row has.
        valid = [text.strip() for text in table["smiles"]]
        mols = [
            Chem.MolFromSmiles(text)
            for text in valid
            if text and text.isascii() and text.split() == [text] and len(text) < 10_000
        ]
        different = {Chem.MolToSmiles(mol) for mol in mols if mol is not None}
    assert len(chosen) == len(different - {""})


@pytest.mark.parametrize(
    ("words", "has_left"), [(["--with-columns"], True), (["--per-measurement"], False)]
)
def test_columns_are_those_of_the_candidate_where_rows_are_left_out(
    library, words, has_left
):
    """Rows that are no molecule, or that of another row, stand before the others."""
    before = [
        pd.DataFrame({"id": ["bad", "same"], "smiles": ["ethanol", "OCC"]}),
        pd.DataFrame({"id": ["first"], "smiles": ["CCO"]}),
    ]
    different = library[library["smiles"] != "CCO"]
    table = pd.concat([*before, different], ignore_index=True)
    table["dose"] = [f"{row:03d}" for row in range(len(table))]
    results = results_of(table.drop(columns="dose"), range(1, len(table), 4))
    if has_left:
        table = table.drop(index=9)
    options = ["--smiles", "smiles", "--skip-invalid", "--drop", "dose", *words]
    next_batch(table, results, *options, size=12)
    found = pd.read_csv("next.csv", dtype=str)
    expected = table.set_index("id").loc[found["id"]]
    assert found["smiles"].tolist() == expected["smiles"].tolist()
    if words == ["--with-columns"]:
        assert found["dose"].tolist() == expected["dose"].tolist()


def test_a_worker_that_breaks_down_is_an_error_of_one_line(
    library, capsys, monkeypatch
):
    def broken(*args, **options):
        raise RuntimeError("RDKit ended with exit code -11 on rows 0 to 88.")

    monkeypatch.setattr(molecules, "read_molecules", broken)
    next_batch(library, None, "--smiles", "smiles", code=2)
    assert capsys.readouterr().err.count("\n") == 1


# --- columns of molecules, words and angles


LIGANDS = ["CCO", "CC[NH3+]", "C[C@H](O)C(=O)O", "C[C@@H](O)C(=O)O", "c1ccccc1"]


def reactions():
    """Return 120 reactions, and results of 24 with a word that no candidate has."""
    rows = product(LIGANDS, ["CO", "CN"], ["hot", "cold"], [1.0, 2.0], [0, 120, 240])
    names = ["ligand", "solvent", "oven", "time", "angle"]
    table = pd.DataFrame(rows, columns=names)
    table.insert(0, "id", [f"r{row}" for row in range(len(table))])
    results = table[::5].assign(reward=np.sin(np.arange(24)))
    gone = results.index[:2]
    results.loc[gone, "oven"] = "broken"
    return table.drop(index=gone), results


@pytest.mark.parametrize("bits", [False, True])
def test_each_column_has_its_kernel_and_each_order_the_same_batch(bits, capsys):
    table, results = reactions()
    words = ["--cyclic=angle=360", "--smiles", "ligand", "solvent", *["--bits"] * bits]
    found = next_batch(table, results, *words, "--kernel=tanimoto", "--report=r.html")
    said = capsys.readouterr().out
    assert "columns 'ligand', 'solvent' became Morgan fingerprints" in said
    assert "column 'oven' has 3 words, compared as categories: " in said
    assert "2,048 bits" in said or not bits
    assert "of 'ligand' with the features of an earlier one: C[C@@H]" in said
    page = Path("r.html").read_text()
    for part in ("weight (ligand)", "lengthscale (oven)", "lengthscale (angle)"):
        assert part in page
    generator = rdFingerprintGenerator.GetMorganGenerator(2, fpSize=2048)
    prints = {
        Chem.CanonSmiles(text): generator.GetCountFingerprintAsNumPy(
            Chem.MolFromSmiles(text)
        )
        for text in [*LIGANDS, "CO", "CN"]
    }
    prints = {text: np.minimum(row, 1 if bits else 255) for text, row in prints.items()}
    marks = {text: np.append(row, np.zeros(8)) for text, row in prints.items()}
    marks[Chem.CanonSmiles(LIGANDS[3])][2048] = 1
    names = list(table.columns[1:])
    rows = pd.concat([table, results[:2]])[names].astype({"angle": "float"})
    for name in names[:2]:
        rows[name] = rows[name].map(Chem.CanonSmiles)
    ligands = {text: row.astype("uint8") for text, row in marks.items()}
    solvents = {text: row.astype("uint8") for text, row in prints.items()}
    arms = TableArms(rows, {"ligand": ligands, "solvent": solvents}, {"angle": 360})
    bandit = GPBandit(arms, seed=0)
    places = [*range(118, 120), *map([*table["id"]].index, results["id"][2:])]
    bandit.add_observations(places, results["reward"].to_numpy())
    bandit.retire_arms([118, 119])
    picks = bandit.ask(5)
    assert found["id"].tolist() == table["id"].iloc[picks.tolist()].tolist()
    np.testing.assert_allclose(found["mean"], bandit.predict(picks)[0])
    other_order = table.sort_values("oven", kind="stable")
    again = next_batch(other_order, results[::-1], *words)
    both = found.merge(again, on="id")
    assert len(both) >= 4
    np.testing.assert_allclose(both["mean_x"], both["mean_y"], rtol=1e-4)


def test_a_kernel_of_numbers_beside_two_columns_of_molecules(capsys):
    table, results = reactions()
    words, smiles = ["--kernel=matern", "--drop=oven"], ["--smiles", "solvent"]
    next_batch(table, results, *words, *smiles, "ligand", code=2)
    remedy = "Leave out --kernel, or ligand of --smiles."
    assert remedy in capsys.readouterr().err
    wrong = table.assign(ligand=table["ligand"].mask(table["id"] == "r7", "N(("))
    next_batch(wrong, results, *smiles, "ligand", code=2)
    assert "column 'ligand', but 'N((' in row 7 " in capsys.readouterr().err
    results["reward"] = results["angle"]  # a fit to noise alone warns
    next_batch(table, results, *words, *smiles, "--drop=ligand")
    next_batch(table, results, *words, *smiles, "ligand", "--drop=ligand", code=2)
    assert "--smiles and --drop name 'ligand'. Leave it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cyclic=oven=2"], "numbers, each once, but got 'oven'"),
        (["--cyclic=time=2", "--cyclic=time=3"], "each once, but got 'time'"),
        (["--cyclic=time=2", "--drop=time"], "each once, but got 'time'"),
        (["--cyclic=day=7"], "no column 'day'"),
    ],
)
def test_kernels_and_angles_that_do_not_fit_are_refused(words, message, capsys):
    table, results = reactions()
    next_batch(table.drop(columns=["ligand", "solvent"]), results, *words, code=2)
    assert message in capsys.readouterr().err
