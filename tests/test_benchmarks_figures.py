"""The papers' figures: what is left is run, once, and rows make tables and pictures."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import figures, thompson_decay
from benchmarks.ablations import accuracy, VARIANTS
from benchmarks.bbkb import growth, thinned
from benchmarks.practice_rows import RowFile
from benchmarks.problems import load_problem
from benchmarks.regret import Choices, play
from tests.reference import exact_posterior
from tests.test_benchmarks import options


class Run(NamedTuple):
    name: str
    seed: int


class Toy:
    """Rows that say how often a run was done; run `slow` is said to take a minute."""

    keys = Run._fields
    repetitions = 3
    played: list[Run] = []  # noqa: RUF012

    def __init__(self, smoke):
        self.smoke = smoke

    def runs(self, repetitions):
        return [Run(name, seed) for seed in range(repetitions) for name in "ba"]

    def seconds(self, run):
        return 60.0 if run.name == "b" else 1.0

    def play(self, run):
        self.played.append(run)
        if len(self.played) == 4:
            raise KeyboardInterrupt
        return pd.DataFrame({"x": [1.0, 1 / 3], "times": self.played.count(run)})

    def report(self, rows, record):
        record.write_table(rows.groupby("name")["x"].sum().reset_index(), "toy")


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(figures, "FIGURES", {"toy": Toy})
    monkeypatch.setattr(Toy, "played", [])
    return Toy


def run_figures(tmp_path, *words):
    args = options(figures, "--rows", str(tmp_path / "rows"), *words)
    args.output = tmp_path / "output"
    figures.run(args)


def test_a_killed_run_goes_on_and_nothing_is_run_twice(toy, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        run_figures(tmp_path)
    run_figures(tmp_path)
    run_figures(tmp_path)
    # The cheap ones come first; the fourth was interrupted.
    expected = [Run("a", 0), Run("a", 1), Run("a", 2), Run("b", 0)]
    assert toy.played == [*expected, Run("b", 0), Run("b", 1), Run("b", 2)]
    rows = pd.read_csv(tmp_path / "rows" / "toy.csv.gz")
    assert len(rows) == 12
    traces = ["commit", "torch", "threads", "device", "seed", "run_seconds", "load"]
    assert rows[traces].notna().all(axis=None)
    assert set(rows["x"]) == {1.0, 0.333333}
    sums = pd.read_csv(tmp_path / "output" / "toy.csv")["x"]
    assert list(sums) == pytest.approx([4, 4], rel=1e-6)
    run_figures(tmp_path, "--again", "--seeds", "1")
    assert sorted(toy.played[-2:]) == [Run("a", 0), Run("b", 0)]


def test_the_plan_says_how_long_it_takes_and_runs_nothing(toy, tmp_path, capsys):
    run_figures(tmp_path, "--plan")
    assert toy.played == []
    # Three of a second and three of a minute; nothing measured yet.
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "toy" in line]
    assert row.split() == ["toy", "0", "6", "3.05", "0"]
    job = figures.Job("toy", tmp_path / "rows", smoke=False)
    for seed, seconds in enumerate([10.0, 20.0]):
        table = pd.DataFrame({"name": "b", "seed": seed, "run_seconds": [seconds]})
        job.rows.append(table.assign(load=0.5, rows=1))
    busy = table.assign(name="a", seed=0, run_seconds=900.0, load=1e3, rows=1)
    job.rows.append(busy)
    run_figures(tmp_path, "--plan")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "toy" in line]
    assert row.split() == ["toy", "3", "3", "0.2833", "1"]


def test_a_budget_leaves_out_what_would_end_later(toy, tmp_path, capsys):
    run_figures(tmp_path, "--budget", "0.5")
    assert {run.name for run in toy.played} == {"a"}
    assert "3 runs did not fit the budget" in capsys.readouterr().out
    run_figures(tmp_path, "--seeds", "0")
    run_figures(tmp_path, "--only", "b, seed 7")
    assert len(toy.played) == 3


def test_a_run_that_fails_costs_no_other(toy, tmp_path, monkeypatch, capsys):
    def fail(self, run):
        if run.seed == 1:
            raise ValueError("a bug")
        if run.seed == 2:
            raise FileNotFoundError("no file")
        return pd.DataFrame({"x": [1.0]})

    monkeypatch.setattr(Toy, "play", fail)
    with pytest.raises(SystemExit, match=r"a, seed 1: ValueError: a bug\n") as ended:
        run_figures(tmp_path)
    assert str(ended.value).count("no file") == 1
    assert list(pd.read_csv(tmp_path / "output" / "toy.csv")["x"]) == [1.0, 1.0]


def test_figures_are_of_a_processor(tmp_path):
    with pytest.raises(SystemExit, match="Expected --device cpu, but got cuda"):
        run_figures(tmp_path, "--device", "cuda")


def test_a_compressed_table_is_that_of_plain_text(tmp_path):
    table = pd.DataFrame({"seed": [0, 0], "x": [1.5, 2.5], "rows": 2})
    files = [RowFile(tmp_path / name, ["seed"]) for name in ("a.csv", "a.csv.gz")]
    for rows in files:
        rows.append(table)
        rows.append(table.assign(seed=1))
        rows.drop([(0,)])
    plain, compressed = (rows.table() for rows in files)
    pd.testing.assert_frame_equal(plain, compressed)
    assert set(plain["seed"]) == {1}
    content = files[1].path.read_bytes()
    assert content.startswith(b"\x1f\x8b")
    again = RowFile(tmp_path / "b.csv.gz", ["seed"])
    again.append(plain)
    assert again.path.read_bytes() == content


# --- the figures themselves


# Under the largest noise the fits to the first rounds explain nothing, and say so.
@pytest.mark.filterwarnings("ignore:The fit to")
# The line search of a fit may end at rounding; BoTorch then says so and tries again.
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
def test_every_figure_runs_small(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(thompson_decay, "NUM_DRAWS", 8)
    monkeypatch.setattr(thompson_decay, "BETAS", (1.0,))
    args = options(figures, "--smoke")
    args.output = tmp_path
    figures.run(args)
    said = capsys.readouterr().out
    assert "(bar: 90 %)" in said
    pictures = {path.stem for path in tmp_path.glob("*.png")}
    expected = {f"thompson_{number}" for number in range(1, 8)}
    expected |= {"drift", "drift_real_intel", "drift_real_traffic", "starvation"}
    expected |= {"bbkb_abalone_unit", "bbkb_cadata_paper", "bbkb_abalone", "ablations"}
    assert expected < pictures
    for name in figures.FIGURES:
        table = pd.read_csv(tmp_path / f"{name}.csv.gz")
        assert table["commit"].notna().all()
    far = pd.read_csv(tmp_path / "starvation.csv").set_index("posterior")
    far = far["least_far_variance"]
    assert far["exact GP"].min() > 0.9
    assert (far["BKB (DTC)"] >= far["exact GP"].to_numpy() - 1e-4).all()
    assert far["SoR"].max() < 1e-3
    slopes = pd.read_csv(tmp_path / "thompson_slopes.csv")
    assert (slopes["is_negative"] == (slopes["high"] < 0)).all()
    real = pd.read_csv(tmp_path / "drift_real.csv").groupby("data")["bandit"]
    traffic = {"TV-GP-UCB", "GP-UCB", "random"}
    assert real.agg(set).to_dict() == {
        "traffic": traffic,
        "intel": traffic | {"R-GP-UCB"},
    }
    matched = pd.read_csv(tmp_path / "drift_matched.csv")
    assert len(matched) == 2 * 3 * 5
    # From rows alone, the same tables.
    tables = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    args = options(figures, "--smoke", "--seeds", "0", "--rows", str(tmp_path))
    args.output = tmp_path / "again"
    figures.run(args)
    again = {path.name: path.read_bytes() for path in args.output.glob("*.csv")}
    assert again == tables


def test_thinned_rows_keep_the_last_of_a_slice_and_the_largest_batch():
    sizes = np.array([1, 2, 9, 3, 1, 40, 2, 2])
    rounds = pd.DataFrame({"batch_size": sizes, "num_pulls": sizes.cumsum()})
    thin = thinned(rounds, 2000)  # in slices of ten pulls
    assert list(thin["num_pulls"]) == [3, 16, 60]
    assert list(thin["batch_size"]) == [2, 9, 40]


def test_the_exponent_is_that_of_a_power_law():
    pulls = np.arange(20, 2001, 20)
    run = pd.DataFrame({"num_pulls": pulls, "cumulative_regret": 3 * pulls**0.7})
    assert growth(run) == pytest.approx(0.7)


def test_features_go_from_zero_to_one():
    scaled = load_problem("abalone", None, smoke=True, unit_features=True)
    assert torch.equal(scaled.arms.amin(dim=0), torch.zeros(3).double())
    assert torch.equal(scaled.arms.amax(dim=0), torch.ones(3).double())
    standard = load_problem("abalone", None, smoke=True)
    correlation = np.corrcoef(scaled.arms[:, 1], standard.arms[:, 1])[0, 1]
    assert correlation == pytest.approx(1)
    assert torch.equal(scaled.mean_rewards, standard.mean_rewards)


def test_an_ablation_changes_one_option():
    base = vars(VARIANTS["nothing"])
    for name, choices in VARIANTS.items():
        changed = {key for key, value in vars(choices).items() if base[key] != value}
        expected = 0 if name == "nothing" else 1
        if name == "the theorem's width":
            changed -= {"norm_bound"}  # the setting's own, said
            assert choices.norm_bound == 1.0
        assert len(changed) == expected, name


def test_accuracy_is_the_distance_to_the_exact_posterior():
    problem = load_problem("abalone", None, smoke=True)
    bandit = Choices(oversampling=0.3).new_bandit(problem.arms, 90, seed=1)
    told = []
    tell = bandit.tell

    def spy(indices, rewards):
        told.extend(zip(indices.tolist(), rewards.tolist(), strict=True))
        return tell(indices, rewards)

    bandit.tell = spy
    play(bandit, problem, 90, seed=1)
    found = accuracy(bandit)
    arms = problem.arms.numpy()
    X, y = arms[[arm for arm, _ in told]], np.array([reward for _, reward in told])
    squared = ((arms[:, None] - arms[None]) ** 2).sum(axis=-1)
    K = np.exp(-squared / 10)
    pulled = [arm for arm, _ in told]
    mean, covariance = exact_posterior(
        K[np.ix_(pulled, pulled)], K[pulled], K, np.full(len(X), 0.2), y
    )
    variance = np.diag(covariance)
    sparse_mean, sparse_variance = (moment.numpy() for moment in bandit.predict())
    ratio = sparse_variance / variance
    expected = np.maximum(ratio, 1 / ratio).max()
    assert expected > 1.1
    assert found["variance_ratio"] == pytest.approx(expected)
    error = np.abs(sparse_mean - mean) / np.sqrt(variance)
    assert found["mean_error"] == pytest.approx(error.max())
