import re

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from rdkit import Chem
from rdkit.Chem import Crippen

from botorch_bkb.__main__ import main
from botorch_bkb.acquisition import DeviationWidth
from botorch_bkb.acquisition.confidence import (
    ChowdhuryGopalanWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.arms import BitArms
from botorch_bkb.cli.arguments import BANDIT_NAMES, build_parser
from botorch_bkb.cli.simulate import build_bandit, load_rehearsal
from botorch_bkb.optim.batch_rules import FixedSize, SumRule


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


def arguments(path, *words):
    return build_parser().parse_args(
        ["simulate", str(path), "--reward", "gain", *words]
    )


def simulate(path, output, *words):
    options = ["--reward", "gain", "--output", str(output), "--quiet", *words]
    assert main(["simulate", str(path), *options]) == 0
    return pd.read_csv(output / "rounds.csv")


def test_suggest_may_measure_everything(path, tmp_path):
    """Nothing is left to choose when the best arm is named."""
    words = ["--bandit", "suggest", "--max-repeats", "1", "--horizon", "60"]
    rounds = simulate(path, tmp_path, *words)
    assert rounds["num_distinct"].iloc[-1] == 60


@pytest.mark.parametrize("bandit", BANDIT_NAMES)
def test_every_bandit_runs(bandit, path, tmp_path, capsys):
    rounds = simulate(path, tmp_path, "--bandit", bandit, "--horizon", "30")
    assert rounds["num_pulls"].iloc[-1] == 30
    assert (rounds["bandit"] == bandit).all()
    assert (rounds["seed"] == 0).all()
    printed = capsys.readouterr().out
    assert f"{bandit} on table.csv, 60 candidates, 30 measurements, noise" in printed
    assert "text column 'kind' became 2 columns" in printed


def test_rounds_tell_the_width(path, tmp_path):
    """In the papers' convention, sqrt(beta lambda) of beta standard deviations."""
    words = ["--confidence", "1.5", "--noise-variance", "0.3"]
    rounds = simulate(path, tmp_path, *words, "--horizon", "20")
    np.testing.assert_allclose(rounds["confidence_width"], 1.5 * 0.3**0.5, rtol=1e-12)


def test_regret_is_in_standard_deviations_of_the_reward(table, path, tmp_path, capsys):
    rounds = simulate(path, tmp_path, "--bandit", "uniform", "--horizon", "20")
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


def build(path, *words, **changed):
    args = arguments(path, *words)
    vars(args).update(changed)
    (name,) = args.bandit
    return build_bandit(name, args, load_rehearsal(args), torch.Generator())


def test_the_model_follows_the_options(path):
    bandit = build(path, "--drop", "kind")
    assert isinstance(bandit.covar_module, RBFKernel)
    assert bandit.covar_module.lengthscale.item() == pytest.approx(np.sqrt(2))
    assert bandit.noise_variance == pytest.approx(0.2)
    words = ["--kernel", "matern", "--lengthscale", "3", "--noise-variance", "1"]
    bandit = build(path, *words)
    assert isinstance(bandit.covar_module, MaternKernel)
    assert bandit.covar_module.lengthscale.item() == pytest.approx(3)
    assert bandit.noise_variance == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], PracticalBBKBWidth(norm_bound=1.0, failure_probability=1e-3)),
        (
            ["--bandit", "bkb", "--horizon", "1"],
            PracticalBKBWidth(norm_bound=1.0, failure_probability=0.5),
        ),
        (
            ["--bandit", "gpucb", "--horizon", "100"],
            ChowdhuryGopalanWidth(norm_bound=1.0, failure_probability=0.01),
        ),
        (["--confidence", "1.5"], DeviationWidth(1.5)),
    ],
)
def test_the_confidence_width_follows_the_options(path, words, expected):
    assert build(path, *words).confidence == expected


def test_the_batch_rule_follows_the_options(path):
    assert build(path).batch_rule == SumRule(2.0)
    assert build(path, "--batch-size", "7").batch_rule == FixedSize(7)


def test_the_inducing_points_follow_the_options(path):
    sampling = build(path, max_inducing=9)._surrogate.sampling
    assert sampling.max_inducing == 9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-inducing", "9", "--bandit", "gpucb"], "only to suggest, bbkb, bkb,"),
        (["--goal", "regret"], "does not apply to --bandit bbkb, only to suggest"),
        (["--kernel", "tanimoto"], "--kernel tanimoto does not apply to --bandit bbkb"),
        (["--smiles", "text", "--bandit", "suggest"], "has no column 'text'"),
        (
            ["--max-repeats", "2", "--horizon", "121"],
            "allows 120 measurements of",
        ),
    ],
)
def test_what_means_nothing_or_asks_too_much_is_refused(
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
    args = arguments(
        tmp_path / "table.csv", "--bandit", "suggest", "--id", "id", *words
    )
    rehearsal = load_rehearsal(args)
    loop = build_bandit("suggest", args, rehearsal, torch.Generator().manual_seed(1))
    seed = int(torch.randint(2**31, (1,), generator=torch.Generator().manual_seed(1)))
    gains = table.set_index("id")["gain"]
    results = pd.DataFrame({"id": [], "reward": []})
    played, chosen = [], []
    for _ in range(3):
        results.to_csv(tmp_path / "results.csv", index=False)
        paths = ["--observations", str(tmp_path / "results.csv")]
        paths += ["--output", str(tmp_path / "next.csv"), "--seed", str(seed)]
        assert main(["suggest", str(tmp_path / "arms.csv"), *paths, *words]) == 0
        asked = loop.ask(100)
        loop.tell(asked, rehearsal.problem.mean_rewards[asked])
        played.append([rehearsal.arm_names[arm] for arm in asked.tolist()])
        ids = pd.read_csv(tmp_path / "next.csv", dtype={"id": "str"})["id"]
        chosen.append(ids.tolist())
        told = pd.DataFrame({"id": ids, "reward": gains[ids].to_numpy()})
        results = pd.concat([results, told])
    return played, chosen


def test_suggest_plays_what_the_command_would_choose(tmp_path, table):
    table = table.assign(id=[f"a{row}" for row in range(len(table))])
    played, chosen = rehearsed_and_commanded(
        tmp_path, table, ["--code", "kind:a=1,b=2"]
    )
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


def test_the_kernels_of_bits_are_different_ones(tmp_path):
    table = bits_and_gains()
    table.to_csv(tmp_path / "table.csv", index=False)
    words = ["--bandit", "suggest", "bbkb", "--id", "id"]
    rehearsal = load_rehearsal(arguments(tmp_path / "table.csv", *words))
    bits = table.drop(columns=["id", "gain"]).to_numpy()
    assert isinstance(rehearsal.problem.arms, BitArms)
    arms = rehearsal.problem.arms
    np.testing.assert_array_equal(arms.bits()[:, :70], bits)
    # The others play standardized numbers.
    assert rehearsal.features.shape == (80, 70)
    np.testing.assert_allclose(rehearsal.features.std(dim=0, correction=0), 1)


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
        ["--counts", "--num-bits", "128"],
        ["--num-bits", "64", "--kernel", "rbf"],
    ],
)
def test_suggest_plays_molecules_as_the_command_does(tmp_path, words):
    words = ["--smiles", "smiles", *words]
    played, chosen = rehearsed_and_commanded(tmp_path, molecules_and_gains(), words)
    assert played == chosen


def test_one_molecule_written_twice_is_one_arm_of_their_mean(tmp_path, capsys):
    table = molecules_and_gains()
    first = table.iloc[3]
    again = Chem.MolToSmiles(Chem.MolFromSmiles(first["smiles"]), canonical=False)
    assert Chem.CanonSmiles(again) == first["smiles"]
    table.loc[len(table)] = ["again", f" {again} ", first["gain"] + 2]
    table.loc[len(table)] = ["bad", "C1CC", 100.0]
    table.drop(columns="id").to_csv(tmp_path / "table.csv", index=False)
    words = ["--smiles", "smiles", "--bandit", "suggest", "--skip-invalid"]
    rehearsal = load_rehearsal(arguments(tmp_path / "table.csv", *words))
    said = capsys.readouterr().out
    assert f"such as row {len(table) - 1} those of row 4" in said
    assert "1 rows without a molecule are skipped, with their" in said
    gains = table["gain"].to_numpy()[:-2].copy()
    gains[3] += 1
    expected = (gains - gains.mean()) / gains.std()
    np.testing.assert_allclose(rehearsal.problem.mean_rewards, expected)
    assert rehearsal.arm_names == [f"row {row + 1}" for row in range(len(gains))]
    assert f"which is {gains.std():.4g}" in said


def test_suggest_plays_whole_plates_of_distinct_arms(path, tmp_path):
    rounds = simulate(path, tmp_path, "--bandit", "suggest", "--horizon", "50")
    assert rounds["batch_size"].tolist() == [50]
    assert rounds["num_distinct"].tolist() == [50]
    words = ["--bandit", "suggest", "--batch-size", "8", "--horizon", "20"]
    rounds = simulate(path, tmp_path, *words)
    assert rounds["batch_size"].tolist() == [8, 8, 4]


def test_the_goal_reaches_suggest(path):
    assert build(path, "--bandit", "suggest", "--goal", "regret").goal == "regret"


def test_bandits_and_repetitions_are_compared(path, tmp_path, capsys):
    names = ["suggest", "thompson", "bbkb", "uniform"]
    words = ["--horizon", "24", "--batch-size", "8", "--seed", "5"]
    rounds = simulate(
        path, tmp_path / "all", "--bandit", *names, "--repetitions", "2", *words
    )
    assert rounds["bandit"].unique().tolist() == names
    last = rounds.groupby(["bandit", "seed"], sort=False).last()
    assert last.index.tolist() == [(name, seed) for name in names for seed in (5, 6)]
    assert (last["num_pulls"] == 24).all()
    assert "24 measurements, noise 0.1, repetitions 2\n" in capsys.readouterr().out
    # A run does not depend on what is played beside it.
    alone = simulate(path, tmp_path / "one", "--bandit", "bbkb", *words[:-1], "6")
    among = rounds[(rounds["bandit"] == "bbkb") & (rounds["seed"] == 6)]
    pd.testing.assert_frame_equal(
        alone.drop(columns="seconds"),
        among.drop(columns="seconds").reset_index(drop=True),
    )


REWARD = ["--reward", "gain"]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--reward", "cost"], "no column 'cost'"),
        ({"gain": 1.0}, REWARD, "'gain' to vary, but it is constant. Drop a feature"),
        ({"gain": "high"}, REWARD, "'gain' has 'high' in row 1"),
        ({"gain": np.nan}, REWARD, "'gain' has an empty cell in row 1 ("),
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
