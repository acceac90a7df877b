"""Results in several files, and molecules in several columns."""

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


RNG = np.random.default_rng(4)
ARMS = pd.DataFrame(
    {"id": [f"R{n:02d}" for n in range(30)], "heat": RNG.uniform(20, 90, 30).round(2)}
)
RESULTS = pd.DataFrame(
    {"id": ARMS["id"][::3], "reward": RNG.normal(40, 5, 10).round(2), "plate": 1}
)


def suggest(folder, *words, arms=ARMS, code=0):
    arms.to_csv(folder / "arms.csv", index=False)
    output = folder / "next.csv"
    options = ["--output", output, "--batch-size", 4, *words]
    assert main([str(w) for w in ("suggest", folder / "arms.csv", *options)]) == code
    return pd.read_csv(output, sep=None, engine="python") if code == 0 else None


def write(folder, table, name, **options):
    (folder / name).parent.mkdir(exist_ok=True)
    table.to_csv(folder / name, index=False, **options)
    return "--observations", folder / name


@pytest.mark.parametrize("names", [("a.csv", "b.csv"), ("a/x.csv", "b/x.csv")])
def test_the_rows_of_all_tables_of_results_count(names, tmp_path, capsys):
    expected = suggest(tmp_path, *write(tmp_path, RESULTS, "all.csv"))
    said = capsys.readouterr().out
    halves = RESULTS[:4], RESULTS[4:].assign(reader="B")
    forms = {}, {"sep": ";", "decimal": ","}
    words = [
        word
        for half, name, form in zip(halves, names, forms, strict=True)
        for word in write(tmp_path, half, name, **form)
    ]
    found = suggest(tmp_path, *words)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert "10 of them measured, 10 measurements in all" in said
    assert "10 of them measured, 10 measurements in all" in capsys.readouterr().out


def test_a_fault_names_its_row_and_its_file(tmp_path, capsys):
    wrong = RESULTS[4:].assign(reward=["1", "2", "3", "high", "5", "6"])
    words = *write(tmp_path, RESULTS[:4], "a.csv"), *write(tmp_path, wrong, "b.csv")
    suggest(tmp_path, *words, code=2)
    assert "'high' in row 4 of b.csv" in capsys.readouterr().err
    words = *write(tmp_path, RESULTS, "a.csv"), *write(tmp_path, RESULTS, "a.csv")
    suggest(tmp_path, *words, code=2)
    assert "names a table twice" in capsys.readouterr().err
    words = *write(tmp_path, RESULTS, "a.csv"), "--observations", tmp_path / "none.csv"
    suggest(tmp_path, *words)
    assert "none.csv: it is skipped" in capsys.readouterr().out


def test_candidates_that_have_left_inform_from_several_tables(tmp_path, capsys):
    told = RESULTS.merge(ARMS)
    words = *write(tmp_path, told[:4], "a.csv"), *write(tmp_path, told[4:], "b.csv")
    suggest(tmp_path, *words, arms=ARMS.drop(index=[0, 18]))
    said = capsys.readouterr().out
    assert "candidates that are no longer in arms.csv: 2 (R00, R18)" in said
    assert "10 measurements in all" in said


def test_a_batch_to_append_has_the_form_of_the_last_table(tmp_path):
    words = [
        *write(tmp_path, RESULTS[:4].assign(reader="B"), "a.csv"),
        *write(tmp_path, RESULTS[4:], "b.csv", sep=";"),
    ]
    suggest(tmp_path, *words, "--per-measurement")
    text = (tmp_path / "next.csv").read_text()
    assert text.splitlines()[0] == "id;reward;plate"


def test_every_column_of_molecules_counts(tmp_path, capsys):
    pytest.importorskip("rdkit")
    acids = [f"OC(=O){'C' * n}" for n in range(1, 6)]
    amines = ["NC1CC1", "NCc1ccccc1", "NC1CCOCC1"]
    pairs = [(acid, amine) for acid in acids for amine in amines]
    arms = pd.DataFrame(pairs, columns=["acid", "amine"])
    arms.insert(0, "id", [f"P{n}" for n in range(len(arms))])
    results = arms[["id"]].assign(reward=[float(n % 3) + n / 50 for n in range(15)])
    told = write(tmp_path, results[:9], "r.csv")
    batch = suggest(tmp_path, *told, "--smiles", "acid", "--smiles=amine", arms=arms)
    said = capsys.readouterr().out
    assert "column 'acid', 'amine' became Morgan fingerprints" in said
    assert "15 candidates" in said
    assert batch["id"].iloc[0] in ("P11", "P14")  # the amine of the best results
    wrong = arms.assign(amine=arms["amine"].mask(arms["id"] == "P7", "N(("))
    suggest(tmp_path, *told, "--smiles=acid", "--smiles=amine", arms=wrong, code=2)
    assert "column 'amine', but 'N((' in row 8 " in capsys.readouterr().err
    words = "--smiles=acid", "--smiles=amine", "--skip-invalid", "--report"
    suggest(tmp_path, *told, *words, tmp_path / "page.html", arms=wrong)
    assert "skipped with their measurements: 1. Rows: 8 (" in capsys.readouterr().out
