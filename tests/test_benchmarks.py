"""How the benchmarks measure and keep rows, and the tasks of `regret` and `speed`."""

import argparse
import re
import subprocess
import time
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import record, regret, speed
from benchmarks.batch_bkb import load_library
from benchmarks.measure import in_own_process
from benchmarks.problems import LENGTHSCALE, load_problem, new_kernel
from benchmarks.record import provenance, Record
from benchmarks.rows import RowFile
from botorch_bkb import BBKB, EpsilonGreedy
from botorch_bkb.acquisition.confidence import BBKBWidth, BKBWidth
from tests.reference import exact_posterior


class Run(NamedTuple):
    name: str
    seed: int


@pytest.fixture(scope="module")
def problem():
    return load_problem("abalone", smoke=True)


def options(module, *words):
    """Return what the command line would give to a benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    module.add_arguments(parser)
    return parser.parse_args(words)


# --- measuring


def fail():
    raise ValueError("a bug")


def test_a_process_returns_or_says_how_it_failed(capfd):
    assert in_own_process(divmod, 7, 2).result() == (3, 1)
    outcome = in_own_process(time.sleep, 60, max_seconds=0.5)
    assert outcome.failure == "more than 0.5 s"
    outcome = in_own_process(fail)
    assert outcome.failure == "ValueError: a bug"
    assert "in fail" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="but got ValueError: a bug"):
        outcome.result()


def test_rows_carry_their_provenance(tmp_path):
    Record(tmp_path / "new").write_table(pd.DataFrame({"x": [1, 2]}), "table")
    table = pd.read_csv(tmp_path / "new" / "table.csv", dtype="str")
    assert list(table["x"]) == ["1", "2"]
    assert (table["torch"] == torch.__version__).all()
    assert (table["threads"] == "1").all()
    assert table[["commit", "botorch", "gpytorch", "device"]].notna().all(axis=None)


def test_rows_are_of_a_changed_commit_if_code_has_changed(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)

    folder = tmp_path / "benchmarks"
    folder.mkdir()
    code, page = folder / "record.py", tmp_path / "page.rst"
    code.write_text("x = 1")
    page.write_text("one")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    monkeypatch.setattr(record, "__file__", str(code))
    clean = provenance()["commit"]
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    page.write_text("two")
    assert provenance()["commit"] == clean
    code.write_text("x = 2")
    assert provenance()["commit"] == f"{clean}-dirty"


# --- rows


def rows_of(seed):
    return pd.DataFrame({"name": "a", "seed": seed, "x": [1.5, 2.5], "rows": 2})


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_rows_are_kept_and_forgotten_by_run(tmp_path, name):
    rows = RowFile(tmp_path / name, Run._fields)
    assert rows.table().empty
    rows.append(rows_of(0))
    rows.append(rows_of(1))
    rows.drop([Run("a", 0)])
    pd.testing.assert_frame_equal(rows.table(), rows_of(1))
    with pytest.raises(ValueError, match="Take another folder"):
        rows.append(rows_of(2).drop(columns="x"))
    again = RowFile(tmp_path / f"again_{name}", Run._fields)
    again.append(rows_of(1))
    # The same rows are the same file.
    assert again.path.read_bytes() == rows.path.read_bytes()


def test_half_of_a_run_and_half_of_a_line_are_dropped(tmp_path):
    path = tmp_path / "rows.csv"
    rows = RowFile(path, Run._fields)
    rows.append(rows_of(0))
    rows.append(rows_of(1))
    whole = path.read_text()
    path.write_text(whole[:-4])
    rows = RowFile(path, Run._fields)
    pd.testing.assert_frame_equal(rows.table(), rows_of(0))
    rows.append(rows_of(1))
    assert path.read_text() == whole


def test_a_hash_of_digits_stays_the_hash(tmp_path):
    rows = RowFile(tmp_path / "rows.csv.gz", Run._fields)
    for seed, commit in enumerate(["0123456", "12e4567"]):
        rows.append(rows_of(seed).assign(commit=commit))
    assert RowFile(rows.path, Run._fields).table()["commit"].iloc[0] == "0123456"
    assert rows.table()["commit"].iloc[-1] == "12e4567"


def test_a_killed_run_continues_and_a_failed_one_costs_no_other(tmp_path):
    played = []

    def play(run):
        played.append(run.seed)
        if len(played) == 2:
            raise KeyboardInterrupt
        if run.seed == 2:
            raise ValueError("a bug")
        return pd.DataFrame({"x": [float(run.seed)]})

    rows = RowFile(tmp_path / "rows.csv", Run._fields)
    wanted = [Run("a", seed) for seed in range(4)]
    with pytest.raises(KeyboardInterrupt):
        rows.play_missing(wanted, play, {"commit": "abcdefg"})
    with pytest.raises(SystemExit, match=r"seed=2\): ValueError: a bug"):
        rows.play_missing(wanted, play, {"commit": "abcdefg"})
    assert played == [0, 1, 1, 2, 3]
    table = rows.table()
    assert list(table.columns) == ["name", "seed", "x", "rows", "commit"]
    assert list(table["seed"]) == [0, 1, 3]
    rows.play_missing(wanted[:1], play, {"commit": "abcdefg"}, again=True)
    assert played[5:] == [0]
    assert sorted(rows.table()["seed"]) == [0, 1, 3]


def test_a_missing_file_stops_all_runs(tmp_path):
    def play(run):
        raise FileNotFoundError("no table")

    rows = RowFile(tmp_path / "rows.csv", Run._fields)
    with pytest.raises(FileNotFoundError, match="no table"):
        rows.play_missing([Run("a", 0), Run("a", 1)], play, {})


# --- speed


def test_tasks_find_the_arm_of_the_largest_dense_bound():
    arms = speed.uniform_arms(300, 8).numpy()
    rewards = speed.noisy_rewards(torch.tensor(arms[:40])).numpy()
    squared = ((arms[:, None] - arms[None]) ** 2).sum(axis=-1)
    K = np.exp(-squared / (2 * 0.5**2))
    noise = np.full(40, speed.NOISE_VARIANCE)
    mean, covariance = exact_posterior(K[:40, :40], K[:40], K, noise, rewards)
    best = (mean + np.sqrt(speed.BETA * np.diag(covariance))).argmax()
    for call in (
        speed.argmax_sparse("cpu", 300, 40, 40, cached=False),
        speed.argmax_exact("cpu", 300, 40, stock=False),
        speed.argmax_exact("cpu", 300, 40, stock=True),
    ):
        assert call() == f"arm {best}"


def test_a_rebuild_with_rows_in_memory_is_a_rebuild():
    ways = [
        speed.rebuild("cpu", 200, 20, "Matern", rows_kept=kept)
        for kept in (False, True)
    ]
    # In turn the first and the second half of the pulled arms are inducing.
    assert [ways[0](), ways[0]()] == [ways[1](), ways[1]()]


# --- regret


def test_regret_rows_add_up_to_the_regret_of_the_picks(problem):
    picks = []

    class Spy(BBKB):
        @override
        def tell(self, indices, rewards, *args, **options):
            picks.append(indices)
            super().tell(indices, rewards, *args, **options)

    bandit = Spy(problem.arms, new_kernel(), 0.2, generator=torch.Generator())
    rounds = regret.play(bandit, problem, 120, seed=3)
    gaps = problem.mean_rewards.max() - problem.mean_rewards
    totals = np.cumsum([gaps[batch].sum().item() for batch in picks])
    np.testing.assert_allclose(rounds["cumulative_regret"], totals)
    assert list(rounds["batch_size"]) == [len(batch) for batch in picks]
    assert list(rounds["num_pulls"]) == list(np.cumsum(rounds["batch_size"]))
    assert rounds["num_pulls"].iloc[-1] == 120
    assert rounds["seconds"].is_monotonic_increasing
    assert not rounds["truncated"].any()


def test_a_run_that_passes_its_budget_is_stopped_and_says_so(tmp_path):
    words = ["--smoke", "--horizon", "40", "--seconds-per-run", "1e-9"]
    regret.run(options(regret, *words), Record(tmp_path))
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["truncated"].all()
    assert (rounds["num_pulls"] == 1).all()
    summary = pd.read_csv(tmp_path / "summary.csv").set_index("bandit")
    assert (summary["truncated"] == 2).all()
    assert list(summary.index) == ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
    assert {"commit", "botorch", "threads", "device", "seed"} <= {*rounds.columns}


def test_the_settings_are_the_papers(problem):
    players = regret.new_players(options(regret, "--setting", "paper"), problem, 10_000)
    assert list(players) == ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
    for bandit in (make(0) for make in players.values()):
        assert bandit.confidence.norm_bound == 20
        assert bandit.confidence.failure_probability == 1e-4
        assert bandit.confidence.noise_std is None
        assert bandit.noise_variance == pytest.approx(0.2)
        assert bandit.covar_module.lengthscale.item() ** 2 == pytest.approx(5)
    assert players["EpsilonGreedy"](0).policy.uniform_probability == 0.1
    assert isinstance(players["EpsilonGreedy"](0), EpsilonGreedy)
    assert isinstance(players["BKB"](0).confidence, BKBWidth)
    bbkb = players["BBKB"](0)
    assert isinstance(bbkb.confidence, BBKBWidth)
    assert bbkb.batch_rule.ratio_threshold == 2
    assert bbkb.learner.oversampling == 2
    practical = regret.new_players(options(regret), problem, 100)
    assert all(make(0).confidence.norm_bound == 1 for make in practical.values())


def test_hartmann_is_standardized_and_the_kernel_is_the_papers():
    problem = load_problem("hartmann", smoke=True)
    assert problem.arms.shape == (300, 6)
    torch.testing.assert_close(problem.mean_rewards.std(correction=0).item(), 1.0)
    x = problem.arms[:2].numpy()
    expected = np.exp(-((x[0] - x[1]) ** 2).sum() / 10)
    assert pytest.approx(5) == LENGTHSCALE**2
    assert new_kernel()(problem.arms[:2]).to_dense()[0, 1].item() == pytest.approx(
        expected
    )


def test_features_go_from_zero_to_one():
    scaled = load_problem("abalone", smoke=True, unit_features=True)
    assert torch.equal(scaled.arms.amin(dim=0), torch.zeros(3).double())
    assert torch.equal(scaled.arms.amax(dim=0), torch.ones(3).double())
    standard = load_problem("abalone", smoke=True)
    correlation = np.corrcoef(scaled.arms[:, 1], standard.arms[:, 1])[0, 1]
    assert correlation == pytest.approx(1)
    assert torch.equal(scaled.mean_rewards, standard.mean_rewards)


def test_the_authors_code_is_asked_for_if_it_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no bkb_lib\.py"):
        load_library(tmp_path)
    args = options(regret, "--setting", "paper", "--batch-bkb", str(tmp_path))
    with pytest.raises(SystemExit, match="--setting practical"):
        regret.run(args, Record(tmp_path))
