import re

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import Crippen

from botorch_bkb.__main__ import main
from botorch_bkb.cli.arguments import build_parser
from botorch_bkb.cli.simulate import load_problem
from botorch_bkb.cli.suggest import SuggestLoop


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(2, 60))
    return pd.DataFrame(
        {
            "x": x,
            "y": y,
            "kind": rng.choice(["a", "b"], size=60),
            "gain": 50 + 10 * np.sin(4 * x) - 20 * (y - 0.5) ** 2,
        }
    )


@pytest.fixture
def path(table, tmp_path):
    table.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def load(path, *words):
    words = ["simulate", str(path), "--reward", "gain", *words]
    return load_problem(build_parser().parse_args(words))


def simulate(path, output, *words):
    options = ["--reward", "gain", "--output", str(output), "--quiet", *words]
    assert main(["simulate", str(path), *options]) == 0
    return pd.read_csv(output / "rounds.csv")


def test_everything_may_be_measured(path, tmp_path, capsys):
    """Nothing is left to choose when the best candidate is named."""
    words = ["--max-repeats", "1", "--horizon", "60", "--batch-size", "25"]
    rounds = simulate(path, tmp_path, *words)
    assert rounds["num_pulls"].tolist() == [25, 50, 60]
    assert rounds["batch_size"].tolist() == [25, 25, 10]
    assert rounds["num_distinct"].iloc[-1] == 60
    printed = capsys.readouterr().out
    assert "suggest on table.csv, 60 candidates, 60 measurements, noise 0.1" in printed
    assert "text column 'kind' became 2 columns" in printed


def test_regret_is_in_standard_deviations_of_the_reward(table, path, tmp_path, capsys):
    rounds = simulate(path, tmp_path, "--horizon", "20")
    unit = table["gain"].std(ddof=0)
    assert f"standard deviations of 'gain', which is {unit:.4g}" in (
        capsys.readouterr().out
    )
    gap = (table["gain"].max() - table["gain"].mean()) / unit
    expected = gap * rounds["num_pulls"]
    assert rounds["uniform_cumulative_regret"].tolist() == pytest.approx(
        expected.tolist()
    )


def test_minimizing_finds_a_small_reward(table, path, tmp_path, capsys):
    simulate(path, tmp_path, "--minimize", "--horizon", "60", "--noise-std", "0.01")
    printed = capsys.readouterr().out
    row = int(re.search(r"Best candidate found: row (\d+),", printed)[1]) - 1
    assert table["gain"].rank()[row] <= 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--smiles", "text"], "has no column 'text'"),
        (["--max-repeats", "2", "--horizon", "121"], "allows 120 measurements of"),
    ],
)
def test_what_is_missing_or_asks_too_much_is_refused(
    path, tmp_path, capsys, words, message
):
    output = str(tmp_path / "out")
    command = ["simulate", str(path), "--reward", "gain", "--output", output, "--quiet"]
    assert main([*command, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def rehearsed_and_commanded(tmp_path, table, words):
    """Return three plates of five ids, of `simulate` and of the command."""
    table.to_csv(tmp_path / "table.csv", index=False)
    table.drop(columns="gain").to_csv(tmp_path / "arms.csv", index=False)
    words = [*words, "--batch-size", "5", "--max-repeats", "1"]
    problem, options, names = load(tmp_path / "table.csv", *words)
    loop = SuggestLoop(problem.arms, seed=1, **options)
    gains = table.set_index("id")["gain"]
    results = pd.DataFrame({"id": [], "reward": []})
    played, chosen = [], []
    for _ in range(3):
        results.to_csv(tmp_path / "results.csv", index=False)
        paths = ["--observations", str(tmp_path / "results.csv")]
        paths += ["--output", str(tmp_path / "next.csv"), "--seed", "1"]
        assert main(["suggest", str(tmp_path / "arms.csv"), *paths, *words]) == 0
        asked = loop.ask(100)
        loop.tell(asked, problem.mean_rewards[asked])
        played.append([names[arm] for arm in asked.tolist()])
        ids = pd.read_csv(tmp_path / "next.csv", dtype={"id": "str"})["id"]
        chosen.append(ids.tolist())
        told = pd.DataFrame({"id": ids, "reward": gains[ids].to_numpy()})
        results = pd.concat([results, told])
    return played, chosen


def test_suggest_plays_what_the_command_would_choose(tmp_path, table):
    table = table.assign(id=[f"a{row}" for row in range(len(table))])
    played, chosen = rehearsed_and_commanded(tmp_path, table, ["--drop", "y"])
    assert played == chosen


def bits_and_gains(num_rows=80, num_bits=70):
    rng = np.random.default_rng(0)
    bits = (rng.random((num_rows, num_bits)) < 0.3).astype(int)
    table = pd.DataFrame(bits).add_prefix("bit")
    table.insert(0, "id", [f"b{row:02}" for row in range(num_rows)])
    return table.assign(gain=bits @ rng.normal(size=num_bits))


@pytest.mark.parametrize("kernel", [None, "matern"])
def test_suggest_plays_bits_as_the_command_compares_them(tmp_path, kernel, capsys):
    words = [] if kernel is None else ["--kernel", kernel]
    played, chosen = rehearsed_and_commanded(tmp_path, bits_and_gains(), words)
    assert played == chosen
    said = capsys.readouterr().out
    assert said.count("columns of 0 and 1 are fingerprints") == (
        4 if kernel is None else 0
    )


SMILES = [
    "C" * head + group + "C" * tail
    for head in range(1, 5)
    for tail in range(1, 4)
    for group in ("O", "N", "S", "C(F)", "C(Cl)", "OC(=O)", "C#C")
]


def molecules_and_gains():
    names = sorted({Chem.CanonSmiles(text) for text in SMILES})
    gains = [Crippen.MolLogP(Chem.MolFromSmiles(name)) for name in names]
    ids = [f"m{row:02}" for row in range(len(names))]
    return pd.DataFrame({"id": ids, "smiles": names, "gain": gains})


@pytest.mark.parametrize(
    "words",
    [
        ["--bits", "--num-bits", "128"],
        ["--num-bits", "64", "--kernel", "rbf"],
    ],
)
def test_suggest_plays_molecules_as_the_command_does(tmp_path, words):
    words = ["--smiles", "smiles", *words]
    played, chosen = rehearsed_and_commanded(tmp_path, molecules_and_gains(), words)
    assert played == chosen


def test_one_molecule_written_twice_is_one_candidate(tmp_path, capsys):
    table = molecules_and_gains()
    first = table.iloc[3]
    again = Chem.MolToSmiles(Chem.MolFromSmiles(first["smiles"]), canonical=False)
    assert Chem.CanonSmiles(again) == first["smiles"]
    table.loc[len(table)] = ["again", f" {again} ", first["gain"] + 2]
    table.loc[len(table)] = ["bad", "C1CC", 100.0]
    table.drop(columns="id").to_csv(tmp_path / "table.csv", index=False)
    words = ["--smiles", "smiles", "--skip-invalid"]
    problem, _, names = load(tmp_path / "table.csv", *words)
    said = capsys.readouterr().out
    assert f"such as row {len(table) - 1} those of row 4" in said
    assert "rows without a molecule, skipped with their measurements: 1" in said
    gains = table["gain"].to_numpy()[:-2]
    expected = (gains - gains.mean()) / gains.std()
    np.testing.assert_allclose(problem.mean_rewards, expected)
    assert names == [f"row {row + 1}" for row in range(len(gains))]
    assert f"which is {gains.std():.4g}" in said


def test_the_goal_reaches_suggest(path):
    assert load(path, "--goal", "regret")[1]["goal"] == "regret"


def test_repetitions_are_campaigns_of_their_own(path, tmp_path, capsys):
    words = ["--horizon", "24", "--batch-size", "8", "--seed"]
    rounds = simulate(path, tmp_path / "all", "--repetitions", "2", *words, "5")
    last = rounds.groupby("seed").last()
    assert last.index.tolist() == [5, 6]
    assert (last["num_pulls"] == 24).all()
    assert "24 measurements, noise 0.1, repetitions 2\n" in capsys.readouterr().out
    alone = simulate(path, tmp_path / "one", *words, "6")
    among = rounds[rounds["seed"] == 6].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        alone.drop(columns="seconds"), among.drop(columns="seconds")
    )


REWARD = ["--reward", "gain"]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--reward", "cost"], "no column 'cost'"),
        ({"gain": 1.0}, REWARD, "'gain' to vary, but it is constant. Drop it if"),
        ({"gain": "high"}, REWARD, "'gain' has 'high' in row 1"),
        ({"gain": [np.nan, *range(59)]}, REWARD, "'gain' has an empty cell in row 1 ("),
        ({"gain": 1e308}, REWARD, "not a finite number up to 1e+100"),
    ],
)
def test_errors_are_one_line(table, tmp_path, capsys, change, words, message):
    table.assign(**change).to_csv(tmp_path / "t.csv", index=False)
    words = ["--quiet", "--output", str(tmp_path), *words]
    assert main(["simulate", str(tmp_path / "t.csv"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_ids_are_no_feature_and_name_the_best_arm(table, path, tmp_path, capsys):
    ids = [f"{number:04d}" for number in range(len(table))]
    table.assign(well=ids).to_csv(path, index=False)
    expected = simulate(path, tmp_path / "dropped", "--drop", "well", "--horizon", "30")
    best = int(re.search(r"candidate found: row (\d+)", capsys.readouterr().out)[1])
    rounds = simulate(path, tmp_path / "out", "--id", "well", "--horizon", "30")
    pd.testing.assert_frame_equal(
        rounds.drop(columns="seconds"), expected.drop(columns="seconds")
    )
    assert f"Best candidate found: {best - 1:04d}, " in capsys.readouterr().out
    options = ["--reward", "gain", "--output", str(tmp_path), "--quiet"]
    for name, part in [("plate", "Name it by --id"), ("kind", "more than once")]:
        assert main(["simulate", str(path), *options, "--id", name]) == 2
        assert part in capsys.readouterr().err
