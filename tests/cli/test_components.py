"""`suggest --component`: batches from combinations of lists, round after round."""

import re

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


ACIDS = pd.DataFrame(
    {
        "id": ["001", "002", "003", "004"],
        "smiles": ["CC(=O)O", "c1ccccc1C(=O)O", "CCC(=O)O", "O=C(O)c1ccncc1"],
    }
)
SOLVENTS = pd.DataFrame({"id": ["water", "ether", "DMF"], "boils": [100, 35, 153]})


@pytest.fixture
def folder(tmp_path):
    ACIDS.to_csv("acids.csv", index=False)
    SOLVENTS.to_csv("solvents.csv", index=False)
    return tmp_path


COMMAND = [
    "suggest",
    "--component=acid=acids.csv",
    "--component=solvent=solvents.csv",
    "--component=temperature=20,40,60,80",
    "--component=base=none,weak",
    "--smiles",
    "acid",
    "--observations=results.csv",
    "--reward=yield",
    "--forbid=solvent=ether,temperature=80",
    "--forbid=solvent=ether, temperature = 60",
    "--batch-size=6",
    "--num-bits=64",
    "--quiet",
]
NAMES = ["acid", "solvent", "temperature", "base"]


def read(path):
    return pd.read_csv(path, dtype={"acid": str})


def measured(batch):
    acid = batch["acid"].map(dict(zip(ACIDS["id"], [0, 20, 5, 30], strict=True)))
    noise = np.linspace(0, 1, len(batch))
    return acid + batch["temperature"] / 4 + 5 * (batch["base"] == "weak") + noise


def test_results_have_known_noise_and_logarithms(folder, bandits, capsys):
    assert main(COMMAND) == 0
    results = read("next.csv")[NAMES].assign(**{"yield": [1.0, 10, 100, 5, 7, 9]})
    results.assign(sd=[0.5, None, 1, 1, 1, 2]).to_csv("results.csv", index=False)
    assert main([*COMMAND, "--noise-std=sd", "--log-reward"]) == 0
    told = bandits[-1].state_dict()["observations"]
    assert told["told_rewards"][:3] == [0.0, 1.0, 2.0]
    slopes = np.array([0.5, 0, 0.01]) / np.log(10)
    np.testing.assert_allclose(told["told_noise"][:3], slopes**2)
    results.assign(sd=-1).to_csv("results.csv", index=False)
    assert main([*COMMAND, "--noise-std=sd", "--output=other.csv"]) == 2
    assert "--noise-std has '-1' in row 1 of results.csv" in capsys.readouterr().err


def test_a_row_per_measurement_can_be_filled_in(folder):
    command = [word for word in COMMAND if "batch-size" not in word]
    command += ["--per-measurement", "--batch-size=90"]
    assert main(command) == 0
    batch = read("next.csv")
    assert list(batch.columns) == [*NAMES, "yield"]
    assert len(batch) == 80  # so many are allowed, and each comes once
    assert batch["yield"].isna().all()
    batch.assign(**{"yield": measured(batch)}).to_csv("results.csv", index=False)
    assert main([*command, "--output=other.csv"]) == 0


def test_a_campaign_of_several_rounds(folder, capsys):
    rounds = []
    for number in range(4):
        assert main([*COMMAND, f"--output={number}.csv", "--report=r.html"]) == 0
        batch = read(f"{number}.csv")
        assert list(batch.columns[:5]) == [*NAMES, "repeats"]
        assert len(batch) == 6
        assert not ((batch["solvent"] == "ether") & (batch["temperature"] > 50)).any()
        rounds.append(batch[NAMES].assign(**{"yield": measured(batch)}))
        pd.concat(rounds).to_csv("results.csv", index=False)
    seen = pd.concat(rounds)
    assert not seen[NAMES].duplicated().any()
    assert set(seen["acid"]) <= set(ACIDS["id"])
    # The best acid is found, and the model says so.
    assert (rounds[-1]["acid"] == "004").sum() >= 3
    printed = capsys.readouterr().out
    assert "96 combinations, 18 of them measured" in printed
    assert "of 96 combinations were evaluated exactly" in printed
    page = (folder / "r.html").read_text()
    assert "acid x solvent x temperature x base" in page
    assert " + ".join(map(str, rounds[-1][NAMES].iloc[0])) in page


def test_results_of_other_elements_train_the_model_and_are_not_chosen(folder, capsys):
    rows = [
        ("CCCC(=O)O", "DMF", 70.5, "strong", 90.0),
        ("001", "DMF", 20, "none", 10.0),
        ("002", "water", 40, "weak", "failed"),
        ("004", "water", 40, "weak", None),
        ("003", "water", 80, "none", 12.0),
        ("003", "DMF", 80, "none", "failed"),
        ("003", "DMF", 80, "none", 14.0),
    ]
    table = pd.DataFrame(rows, columns=[*NAMES, "yield"])
    table.to_csv("results.csv", index=False)
    command = [word for word in COMMAND if "batch-size" not in word]
    assert main([*command, "--batch-size=200", "--max-repeats=1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"measurement failed: 1 \(002 \+ water \+ 40.*\)", printed)
    batch = read("next.csv")
    # 96 less 16 forbidden, and five that failed last, are in flight or measured.
    assert len(batch) == 96 - 16 - 5
    assert not batch[NAMES].duplicated().any()
    assert "1 in flight" in printed
    told = table.iloc[1:][NAMES].astype({"temperature": float})
    both = batch[NAMES].astype({"temperature": float}).merge(told)
    assert both.empty
    assert set(batch["temperature"]) == {20, 40, 60, 80}
    assert set(batch["base"]) == {"none", "weak"}


def test_numbers_with_decimals_and_a_batch_of_all_that_is_left(folder, capsys):
    lists = ["--component=pH=6.5,7,7.5", "--component=base=none,weak"]
    words = ["--reward=yield", "--batch-size=9", "--max-repeats=1"]
    assert main(["suggest", *lists, *words]) == 0
    assert set(pd.read_csv("next.csv")["pH"]) == {6.5, 7.0, 7.5}
    assert "--max-repeats 1 leaves only 6 of 9 measurements" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["acids.csv"], "either a table CANDIDATES or lists"),
        (["--available=stock"], "--available needs a table of candidates"),
        (["--component=acid=1,2"], "name each component once"),
        (["--component=x=none.csv"], "there is no file none.csv"),
        (["--component=x=0.5,1.5,0.5"], "different elements.*0.5,1.5,0.5"),
        (["--component=yield=1,2"], r"other names of components than \['yield'\]"),
        ([f"--forbid=base={base}" for base in ("none", "weak")], "all are forbidden"),
        (["--component=ligand=acids.csv"], "Pass --smiles ligand for molecules"),
        (["--forbid=acid=009"], "parts such as acid=A3.*'acid=009'"),
        (["--smiles=boron"], "--smiles to name some of them"),
    ],
)
def test_what_is_no_product_space_is_refused(folder, capsys, more, message):
    assert main([*COMMAND, *more]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("001", "acetone", 20, "none", 1.0)], "'acetone' in column 'solvent'"),
        ([("no molecule", "DMF", 20, "none", 1.0)], "'acid' to have SMILES"),
        ([("001", None, 20, "none", 1.0)], "name its component 'solvent'"),
    ],
)
def test_results_of_unknown_elements_are_refused(folder, capsys, rows, message):
    pd.DataFrame(rows, columns=[*NAMES, "yield"]).to_csv("results.csv", index=False)
    assert main(COMMAND) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "next.csv").exists()
