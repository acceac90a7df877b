import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import Crippen

from botorch_bkb.__main__ import main
from botorch_bkb.arms import TableArms
from botorch_bkb.cli.arguments import build_parser
from botorch_bkb.cli.simulate import load_problem
from botorch_bkb.cli.suggest import SuggestLoop


@pytest.fixture
def table(_in_own_folder):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(2, 60))
    table = pd.DataFrame({"x": x, "y": y, "kind": rng.choice(["a", "b"], size=60)})
    table["gain"] = 50 + 10 * np.sin(4 * x) - 20 * (y - 0.5) ** 2
    table.to_csv("table.csv", index=False)
    return table


def load(*words):
    words = ["simulate", "table.csv", "--reward=gain", *words]
    return load_problem(build_parser().parse_args(words))


def simulate(*words):
    """Return the rounds, without the seconds that they took."""
    options = ["--reward=gain", "--output=out", "--quiet", *words]
    assert main(["simulate", "table.csv", *options]) == 0
    return pd.read_csv("out/rounds.csv").drop(columns="seconds")


def test_everything_may_be_measured(table, capsys):
    """Nothing is left to choose when the best candidate is named."""
    words = ["--max-repeats", "1", "--horizon", "60", "--batch-size", "25"]
    rounds = simulate(*words)
    assert rounds["num_pulls"].tolist() == [25, 50, 60]
    assert rounds["batch_size"].tolist() == [25, 25, 10]
    assert rounds["num_distinct"].iloc[-1] == 60
    printed = capsys.readouterr().out
    assert "suggest on table.csv, 60 candidates, 60 measurements, noise 0.1" in printed
    assert "column 'kind' has 2 words, compared as categories: " in printed
    unit = table["gain"].std(ddof=0)
    assert f"standard deviations of 'gain', which is {unit:.4g}" in printed
    gap = (table["gain"].max() - table["gain"].mean()) / unit
    expected = gap * rounds["num_pulls"]
    np.testing.assert_allclose(rounds["uniform_cumulative_regret"], expected)


def bits_and_gains(num_rows=80, num_bits=70):
    rng = np.random.default_rng(0)
    bits = (rng.random((num_rows, num_bits)) < 0.3).astype(int)
    table = pd.DataFrame(bits).add_prefix("bit")
    table.insert(0, "id", [f"b{row:02}" for row in range(num_rows)])
    return table.assign(gain=bits @ rng.normal(size=num_bits))


def molecules_and_gains():
    groups = ("O", "N", "S", "C(F)", "C(Cl)", "OC(=O)", "C#C")
    texts = [f"{'C' * head}{g}{'C' * 3}" for head in range(1, 5) for g in groups]
    names = sorted({Chem.CanonSmiles(text) for text in texts})
    gains = [Crippen.MolLogP(Chem.MolFromSmiles(name)) for name in names]
    ids = [f"m{row:02}" for row in range(len(names))]
    return pd.DataFrame({"id": ids, "smiles": names, "gain": gains})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("numbers", ["--drop", "y", "--drop", "kind", "--minimize"]),
        ("words", ["--cyclic", "y=0.5"]),
        ("bits", ["--kernel", "matern"]),
        ("molecules", ["--smiles", "smiles", "--bits", "--num-bits", "128"]),
    ],
)
def test_simulate_plays_what_suggest_would_choose(kind, words, table):
    """Two plates of four, of the loop and of the command."""
    numbered = table.assign(id=[f"a{row}" for row in range(len(table))])
    table = {
        "numbers": numbered,
        "words": numbered,
        "bits": bits_and_gains(),
        "molecules": molecules_and_gains(),
    }[kind]
    table.to_csv("table.csv", index=False)
    table.drop(columns="gain").to_csv("arms.csv", index=False)
    words = [*words, "--batch-size", "4", "--max-repeats", "1"]
    problem, options, names = load(*words)
    arms = problem.arms
    assert problem.maximize == options["maximize"] == ("--minimize" not in words)
    if kind == "words":  # a frame of the features will do
        assert isinstance(arms, TableArms)
        kinds = table["kind"].map(arms.words["kind"].index)
        np.testing.assert_array_equal(arms.dense()[:, 2], kinds)
    loop = SuggestLoop(arms, seed=1, **options)
    gains = table.set_index("id")["gain"]
    results = pd.DataFrame({"id": [], "reward": []})
    for _ in range(2):
        results.to_csv("results.csv", index=False)
        told = ["--observations=results.csv", "--seed=1"]
        assert main(["suggest", "arms.csv", *told, *words]) == 0
        asked = loop.ask(100)
        loop.tell(asked, problem.mean_rewards[asked])
        ids = pd.read_csv("next.csv", dtype={"id": "str"})["id"]
        assert ids.tolist() == [names[arm] for arm in asked.tolist()]
        told = pd.DataFrame({"id": ids, "reward": gains[ids].to_numpy()})
        results = pd.concat([results, told])


def test_one_molecule_written_twice_is_one_candidate(capsys):
    table = molecules_and_gains()
    first = table.iloc[3]
    again = Chem.MolToSmiles(Chem.MolFromSmiles(first["smiles"]), canonical=False)
    assert Chem.CanonSmiles(again) == first["smiles"]
    table.loc[len(table)] = ["again", f" {again} ", first["gain"] + 2]
    table.loc[len(table)] = ["bad", "C1CC", 100.0]
    table.drop(columns="id").to_csv("table.csv", index=False)
    words = ["--smiles", "smiles", "--skip-invalid"]
    problem, _, names = load(*words)
    said = capsys.readouterr().out
    assert f"such as row {len(table)} those of row 5" in said
    assert "rows without a molecule, skipped with their measurements: 1" in said
    gains = table["gain"].to_numpy(copy=True)[:-2]
    gains[3] += 1  # the mean of its results
    expected = (gains - gains.mean()) / gains.std()
    np.testing.assert_allclose(problem.mean_rewards, expected)
    assert names == [f"row {row + 2}" for row in range(len(gains))]
    assert f"which is {gains.std():.4g}" in said


def test_repetitions_are_campaigns_of_their_own(table, capsys):
    words = ["--horizon", "12", "--batch-size", "4", "--seed"]
    rounds = simulate("--repetitions", "2", *words, "5")
    last = rounds.groupby("seed").last()
    assert last.index.tolist() == [5, 6]
    assert (last["num_pulls"] == 12).all()
    assert "12 measurements, noise 0.1, repetitions 2\n" in capsys.readouterr().out
    alone = simulate(*words, "6")
    among = rounds[rounds["seed"] == 6].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, among)


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({"gain": 1.0}, [], "'gain' to vary, but it is constant. Drop it if"),
        ({"gain": "high"}, [], "'gain' has 'high' in row 2"),
        (
            {"gain": [np.nan, *range(59)]},
            [],
            "'gain' has an empty cell, or a word such as failed, in row 2 (",
        ),
        ({}, ["--max-repeats=2", "--horizon=121"], "allows 120 measurements of"),
    ],
)
def test_errors_are_one_line(table, capsys, change, words, message):
    table.assign(**change).to_csv("table.csv", index=False)
    words = ["--reward=gain", "--quiet", "--output=out", *words]
    assert main(["simulate", "table.csv", *words]) == 2
    assert not Path("out").exists()
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_names_are_no_formulas(table):
    table.rename(columns={"gain": "a_$_per_$_b"}).to_csv("table.csv", index=False)
    words = ["--reward=a_$_per_$_b", "--horizon=4", "--output=out", "--quiet"]
    assert main(["simulate", "table.csv", *words]) == 0
    assert Path("out/regret.png").stat().st_size > 10_000


def test_ids_are_no_feature_and_name_the_best_arm(table, capsys):
    ids = [f"{number:04d}" for number in range(len(table))]
    table.assign(well=ids).to_csv("table.csv", index=False)
    expected = simulate("--drop", "well", "--horizon", "12")
    best = int(re.search(r"candidate found: row (\d+)", capsys.readouterr().out)[1])
    rounds = simulate("--id", "well", "--horizon", "12")
    pd.testing.assert_frame_equal(rounds, expected)
    said = " ".join(capsys.readouterr().out.split())
    assert f"Best candidate found: {best - 2:04d}, " in said
    # The largest result, by the numbers that are printed.
    units = r"which is (\S+), results from the mean (\S+)\."
    deviation, mean = map(float, re.search(units, said).groups())
    largest = float(re.search(r"the best of all candidates has (\S+)\.", said)[1])
    assert mean + deviation * largest == pytest.approx(table["gain"].max(), rel=1e-2)


@pytest.mark.parametrize(
    ("command", "name"), [("simulate", "rounds.csv"), ("demo", "regret.png")]
)
def test_only_files_of_earlier_runs_are_replaced(command, name, table, capsys):
    words = ["--horizon=6", "--quiet", "--output=out"]
    words += ["--num-arms=20"] if command == "demo" else ["table.csv", "--reward=gain"]
    for _ in range(2):
        assert main([command, *words]) == 0
    path = Path("out") / name
    path.write_bytes(b"id,gain\n1,2\n")
    capsys.readouterr()
    assert main([command, *words]) == 2
    captured = capsys.readouterr()
    assert f"would replace {path}, which no earlier run wrote" in captured.err
    assert captured.out == ""
    assert path.read_bytes() == b"id,gain\n1,2\n"


@pytest.mark.parametrize(
    "command", [["demo"], ["simulate", "table.csv", "--reward=gain"]]
)
def test_an_output_that_is_no_folder_is_refused_before_the_work(command, capsys):
    Path("out").write_text("notes")
    assert main([*command, "--output=out"]) == 2
    assert "--output out is a file. Name a folder." in capsys.readouterr().err
