import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_bkb.__main__ import main
from botorch_bkb.acquisition.confidence import (
    BBKBWidth,
    ChowdhuryGopalanWidth,
    ConstantWidth,
    LogWidth,
    PracticalBBKBWidth,
    PracticalBKBWidth,
)
from botorch_bkb.cli.arguments import BANDIT_NAMES, build_parser
from botorch_bkb.cli.simulate import BANDITS, build_bandit, load_problem
from botorch_bkb.optim.batch_rules import FixedSize, ProductRule, SumRule


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


@pytest.mark.parametrize("bandit", BANDIT_NAMES)
def test_every_bandit_runs(bandit, path, tmp_path, capsys):
    rounds = simulate(path, tmp_path, "--bandit", bandit, "--horizon", "30")
    assert rounds["num_pulls"].iloc[-1] == 30
    printed = capsys.readouterr().out
    assert BANDITS[bandit].__name__ in printed
    assert "standard deviations" in printed
    assert "text column 'kind' became 2 columns" in printed


def test_csv_and_parquet_give_the_same_run(table, path, tmp_path):
    table.to_parquet(tmp_path / "table.parquet", index=False)
    csv, parquet = (
        simulate(tmp_path / name, tmp_path / name[-3:], "--horizon", "20")
        for name in ["table.csv", "table.parquet"]
    )
    pd.testing.assert_frame_equal(
        csv.drop(columns="seconds"), parquet.drop(columns="seconds")
    )


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
    (line,) = [line for line in printed.splitlines() if "best arm found" in line]
    row = int(line.split()[-1]) - 1
    assert table["gain"].rank()[row] <= 3


def test_columns_can_be_dropped_and_coded(path):
    problem, notes, _ = load_problem(
        arguments(path, "--drop", "x", "--code", "kind:a=1,b=2")
    )
    assert problem.arms.shape == (60, 2)
    (note,) = notes
    assert "standardized" in note


def test_the_model_follows_the_options(path):
    def build(*words):
        args = arguments(path, "--drop", "kind", *words)
        problem, _, _ = load_problem(args)
        return build_bandit(args, problem, torch.Generator())

    bandit = build()
    assert isinstance(bandit.covar_module, RBFKernel)
    assert bandit.covar_module.lengthscale.item() == pytest.approx(np.sqrt(2))
    assert bandit.noise_variance == pytest.approx(0.2)
    bandit = build("--kernel", "matern", "--lengthscale", "3", "--noise-variance", "1")
    assert isinstance(bandit.covar_module, MaternKernel)
    assert bandit.covar_module.lengthscale.item() == pytest.approx(3)
    assert bandit.noise_variance == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], PracticalBBKBWidth(norm_bound=1.0, failure_probability=1e-3)),
        (
            ["--norm-bound", "2", "--failure-probability", "0.1"],
            PracticalBBKBWidth(norm_bound=2.0, failure_probability=0.1),
        ),
        (
            ["--bandit", "bkb", "--horizon", "1"],
            PracticalBKBWidth(norm_bound=1.0, failure_probability=0.5),
        ),
        (
            ["--confidence", "theorem"],
            BBKBWidth(norm_bound=1.0, failure_probability=1e-3),
        ),
        (
            ["--confidence", "theorem", "--bandit", "gpucb", "--horizon", "100"],
            ChowdhuryGopalanWidth(norm_bound=1.0, failure_probability=0.01),
        ),
        (["--confidence", "constant:1.5"], ConstantWidth(1.5)),
        (["--confidence", "log:0.8:4"], LogWidth(0.8, 4.0)),
    ],
)
def test_the_confidence_width_follows_the_options(path, words, expected):
    args = arguments(path, *words)
    problem, _, _ = load_problem(args)
    assert build_bandit(args, problem, torch.Generator()).confidence == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], SumRule(2.0)),
        (["--ratio-threshold", "3"], SumRule(3.0)),
        (["--bandit", "gpbucb", "--ratio-threshold", "3"], ProductRule(3.0)),
        (["--batch-size", "7"], FixedSize(7)),
    ],
)
def test_the_batch_rule_follows_the_options(path, words, expected):
    args = arguments(path, *words)
    problem, _, _ = load_problem(args)
    assert build_bandit(args, problem, torch.Generator()).batch_rule == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--bandit", "bkb", "--ratio-threshold", "3"],
        ["--bandit", "gpucb", "--oversampling", "3"],
        ["--bandit", "gpbucb", "--resampling", "coupled"],
    ],
)
def test_an_option_without_meaning_is_refused(path, words):
    args = arguments(path, *words)
    problem, _, _ = load_problem(args)
    with pytest.raises(UnsupportedError, match=f"{words[2]} means nothing to"):
        build_bandit(args, problem, torch.Generator())


def test_threads_are_torchs(path, tmp_path):
    before = torch.get_num_threads()
    try:
        simulate(path, tmp_path, "--horizon", "3", "--threads", "1")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--reward", "cost"], "no column 'cost'"),
        ({"gain": 1.0}, [], "'gain' to vary"),
        ({"gain": "high"}, [], "'gain' has the reward 'high' in row 1"),
        ({"x": np.nan}, [], "'x' has a missing, infinite or huge value in row 1"),
        ({}, ["--bandit", "bkb", "--ratio-threshold", "2"], "means nothing"),
    ],
)
def test_errors_are_one_line(table, tmp_path, capsys, change, words, message):
    table.assign(**change).to_csv(tmp_path / "t.csv", index=False)
    words = ["--reward", "gain", "--quiet", "--output", str(tmp_path), *words]
    assert main(["simulate", str(tmp_path / "t.csv"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
