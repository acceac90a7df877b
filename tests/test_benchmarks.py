import argparse
import re
import subprocess
import time

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import (
    ceiling,
    lookahead,
    places,
    record,
    regret,
    roofline,
    scoring,
    soak,
)
from benchmarks.batch_bkb import load_library
from benchmarks.growth import exponents, Growth, growths
from benchmarks.measure import fitted_exponent, in_own_process, Outcome
from benchmarks.problems import LENGTHSCALE, load_problem, new_kernel
from benchmarks.record import caption, provenance, Record
from benchmarks.ways import BETA, NOISE_VARIANCE, Sizes, Task, WAYS
from botorch_bkb import BBKB, EpsilonGreedy
from botorch_bkb.acquisition.confidence import BBKBWidth, BKBWidth
from botorch_bkb.posteriors.arm_posterior import ArmPosterior
from tests.reference import exact_posterior


SIZES = Sizes.unrepeated(300, 40, 10)


@pytest.fixture(scope="module")
def problem():
    return load_problem("abalone", None, smoke=True)


def options(module, *words):
    parser = argparse.ArgumentParser()
    for name in ("--device", "--output"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    module.add_arguments(parser)
    return parser.parse_args(["--device", "cpu", *words])


# --- measuring


def test_the_exponent_of_a_power_law_is_found():
    sizes = np.array([10, 20, 50, 400])
    assert fitted_exponent(sizes, 3e-4 * sizes**1.7) == pytest.approx(1.7)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, 4))
    assert fitted_exponent(sizes, noise * sizes**2.0) == pytest.approx(2, abs=0.1)


def test_exponents_are_of_medians_and_stand_beside_the_papers_order():
    tasks = {2: SIZES, 8: SIZES}
    growth = Growth("ours, cold", "m", tasks, 2, "somewhere")
    seconds = {2: [4.0, 4.0, 100.0], 8: [64.0, 64.0, 0.1]}
    rows = [
        {"way": way, "grows": "m", "size": size, "seconds": second}
        for size, repeats in seconds.items()
        for second in repeats
        for way in ("ours, cold", "another")
    ]
    rows += [{"way": "ours, cold", "grows": "A", "size": 2, "seconds": 1e9}]
    (fit,) = exponents(pd.DataFrame(rows), (growth,)).to_dict("records")
    assert fit["exponent"] == pytest.approx(2.0)
    assert (fit["from"], fit["to"], fit["papers_order"]) == (2, 8, 2)


def test_a_growth_changes_what_it_names_and_nothing_else():
    letters = {"A": {"num_arms"}, "m": {"num_inducing"}, "T": {"num_pulls"}}
    letters["n"] = {"num_observed", "num_pulls"}
    base = Sizes(4000, 500, 200, 500)
    for growth in growths(base):
        if growth.way == "ours, exact":
            continue
        tasks = list(growth.tasks.values())
        changed = {
            name
            for name in vars(base)
            if len({getattr(sizes, name) for sizes in tasks}) > 1
        }
        assert changed == letters[growth.letter[0]]
        (first, *_) = changed
        for size, sizes in growth.tasks.items():
            assert getattr(sizes, first) == size


def allocate(num_bytes):
    return torch.ones(num_bytes, dtype=torch.uint8).sum().item()


def fail():
    raise ValueError("a bug")


def test_limits_of_a_process_are_outcomes_and_bugs_are_errors():
    outcome = in_own_process(allocate, 2**20, max_bytes=2**32)
    assert outcome.value == 2**20
    assert outcome.failure is None
    outcome = in_own_process(allocate, 2**33, max_bytes=2**32)
    assert outcome.value is None
    assert outcome.failure == "out of memory of 4,096 MiB"
    outcome = in_own_process(time.sleep, 60, max_seconds=1.0)
    assert outcome.failure == "more than 1 s"
    with pytest.raises(RuntimeError, match="a bug"):
        in_own_process(fail)


def test_rows_carry_their_provenance(tmp_path):
    record = Record(tmp_path / "new")
    record.write_table(pd.DataFrame({"x": [1, 2]}), "table")
    table = pd.read_csv(tmp_path / "new" / "table.csv", dtype="str")
    assert list(table["x"]) == ["1", "2"]
    assert (table["torch"] == torch.__version__).all()
    assert (table["threads"] == "1").all()
    assert table[["commit", "botorch", "gpytorch", "device"]].notna().all(axis=None)
    assert f"commit {table['commit'][0]}" in caption(record.origin)


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


# --- scoring


def test_all_ways_find_the_arm_of_the_largest_dense_bound():
    task = Task(Sizes.unrepeated(300, 40, 40))
    arms, rewards = task.arms.numpy(), task.rewards.numpy()[:40]
    observed = arms[:40]
    K_pp, K_px = gaussian(observed, observed), gaussian(observed, arms)
    noise = np.full(40, NOISE_VARIANCE)
    mean, covariance = exact_posterior(K_pp, K_px, gaussian(arms, arms), noise, rewards)
    bounds = mean + np.sqrt(BETA * np.diag(covariance))
    for name in ("ours, cold", "ours, exact", "stock"):
        assert WAYS[name](task)() == bounds.argmax(), name


def gaussian(left, right):
    squared = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
    return np.exp(-squared / (2 * 0.5**2))


def test_ten_more_pulls_on_cached_features_give_the_posterior_of_all_pulls():
    cached = WAYS["ours, cached"](Task(SIZES))
    picked = [cached() for _ in range(5)]
    # The same pulls, from nothing.
    task = Task(SIZES)
    counts, sums = task.totals()
    for arm in picked:
        drawn = task.draw_arms(10)
        counts[drawn] += 1
        sums[drawn] += task.rewards[drawn]
        pulled = counts.nonzero().squeeze(-1)
        posterior = ArmPosterior(task.arms, task.kernel, NOISE_VARIANCE)
        posterior.update(task.inducing, pulled, counts[pulled], sums[pulled])
        assert arm == (posterior.mean + (BETA * posterior.variance).sqrt()).argmax()


def test_no_inducing_arm_of_the_full_task_is_redundant():
    task = Task(Sizes.unrepeated(1000, 500, 400))
    posterior = ArmPosterior(task.arms, task.kernel, NOISE_VARIANCE)
    counts = torch.ones(500, dtype=torch.double)
    posterior.update(task.inducing, task.observed, counts, task.rewards[:500])
    assert posterior.inducing_indices.numel() == 400


def test_a_way_that_failed_is_not_tried_on_more_arms(monkeypatch):
    tried = []

    def instead(function, way, sizes, *args, **limits):
        tried.append((way, sizes.num_arms))
        failure = "more than 1 s" if way == "stock" and sizes.num_arms > 10 else None
        value = None if failure else {"seconds": 1.0, "peak_mib": 2.0, "arm": 3}
        return Outcome(value, failure)

    monkeypatch.setattr(scoring, "in_own_process", instead)
    tasks = [Sizes.unrepeated(size, 5, 5) for size in (10, 20, 30)]
    table = scoring.measure_ways(tasks, 2, options(scoring))
    stock = [num_arms for way, num_arms in tried if way == "stock"]
    assert stock == [10, 10, 20]
    assert tried.count(("ours, cold", 30)) == 2
    summary = scoring.summarize(table).set_index(["num_arms", "way"])
    assert summary.loc[(20, "stock"), "failure"] == "more than 1 s"
    assert pd.isna(summary.loc[(10, "stock"), "failure"])
    assert (30, "stock") not in summary.index


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
    assert rounds["batch_size"].max() > 1
    assert rounds["num_pulls"].iloc[-1] == 120
    assert rounds["seconds"].is_monotonic_increasing
    assert not rounds["truncated"].any()


def test_a_run_that_passes_its_budget_is_stopped_and_says_so(problem, tmp_path, capsys):
    words = ["--smoke", "--horizon", "40", "--seconds-per-run", "1e-9"]
    args = options(regret, *words)
    args.output = tmp_path
    regret.run(args)
    printed = capsys.readouterr().out
    assert "stopped at 1 pulls" in printed
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["truncated"].all()
    assert (rounds["num_pulls"] == 1).all()
    summary = pd.read_csv(tmp_path / "summary.csv").set_index("bandit")
    assert (summary["truncated"] == 2).all()
    assert list(summary.index) == ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
    assert {"commit", "botorch", "threads", "device", "seed"} <= {*rounds.columns}
    assert (tmp_path / "regret.png").read_bytes().startswith(b"\x89PNG")


def test_the_settings_are_the_papers(problem):
    args = options(regret, "--setting", "paper", "--resampling", "both")
    players = regret.new_players(args, problem, 10_000)
    assert len(players) == 7
    for bandit in (make(0) for make in players.values()):
        assert bandit.confidence.norm_bound == 20
        assert bandit.confidence.failure_probability == 1e-4
        assert bandit.confidence.noise_std is None
        assert bandit.noise_variance == pytest.approx(0.2)
        assert bandit.covar_module.lengthscale.item() ** 2 == pytest.approx(5)
    assert players["EpsilonGreedy"](0).policy.uniform_probability == 0.1
    assert isinstance(players["EpsilonGreedy"](0), EpsilonGreedy)
    assert isinstance(players["BKB"](0).confidence, BKBWidth)
    bbkb = players["BBKB, coupled"](0)
    assert isinstance(bbkb.confidence, BBKBWidth)
    assert bbkb.batch_rule.ratio_threshold == 2
    assert (bbkb.learner.oversampling, bbkb.learner.resampling) == (2, "coupled")
    practical = regret.new_players(options(regret), problem, 100)
    assert list(practical) == ["EpsilonGreedy", "GPUCB", "BKB", "BBKB"]
    assert all(make(0).confidence.norm_bound == 1 for make in practical.values())


def test_hartmann_is_standardized_and_the_kernel_is_the_papers():
    problem = load_problem("hartmann", None, smoke=True)
    assert problem.arms.shape == (300, 6)
    torch.testing.assert_close(problem.mean_rewards.std(correction=0).item(), 1.0)
    x = problem.arms[:2].numpy()
    expected = np.exp(-((x[0] - x[1]) ** 2).sum() / 10)
    assert pytest.approx(5) == LENGTHSCALE**2
    K = new_kernel()(problem.arms[:2]).to_dense()
    assert K[0, 1].item() == pytest.approx(expected)


def test_ratios_compare_complete_runs_only(capsys):
    names = [regret.AUTHORS, "BBKB", "BBKB, coupled"]
    summary = pd.DataFrame(
        {
            "bandit": names,
            "truncated": [0, 0, 1],
            "median_seconds": [12.0, 3.0, 1.0],
            "mean_regret": [100.0, 90.0, 80.0],
        }
    )
    regret.print_ratios(summary)
    independent, coupled = capsys.readouterr().out.split("\n")[1:3]
    assert independent.startswith("BBKB: 4.0 times as fast")
    assert "0.900 of its regret" in independent
    assert "no ratio" in coupled


def test_the_authors_code_is_asked_for_where_it_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no bkb_lib\.py"):
        load_library(tmp_path)
    (tmp_path / "bkb_lib.py").write_text("import a_module_that_nobody_has")
    with pytest.raises(ImportError, match="pip install scikit-learn scipy"):
        load_library(tmp_path)


def test_the_authors_code_has_no_width_of_the_theorem(tmp_path):
    args = options(regret, "--setting", "paper")
    args.batch_bkb = tmp_path
    with pytest.raises(SystemExit, match="--setting practical"):
        regret.run(args)


def test_the_look_ahead_is_positive_by_bayes_rule_only(tmp_path, capsys):
    args = options(lookahead, "--smoke")
    args.output = tmp_path
    lookahead.run(args)
    table = pd.read_csv(tmp_path / "lookahead.csv")
    ways = table.groupby("conditioned")
    assert ways.negative.max()["Bayes' rule"] == 0
    assert ways.negative.min()["reprojected"] > 0
    resampled = table[table.inducing == "resampled"].groupby("conditioned").lost.mean()
    assert resampled["Bayes' rule"] < 0.05
    assert "Bayes' rule" in capsys.readouterr().out


def test_the_ceiling_tells_pivots_from_a_smaller_q_bar(tmp_path, capsys):
    args = options(ceiling, "--smoke")
    args.output = tmp_path
    ceiling.run(args)
    speed, accuracy, regret_rows = (
        pd.read_csv(tmp_path / f"{name}.csv")
        for name in ("speed", "accuracy", "regret")
    )
    assert speed.results.tolist() == [300, 600]
    assert speed.inducing.tolist() == [50, 50]
    assert (speed[["seconds", "processor_seconds"]] > 0).all(axis=None)
    assert (accuracy.inducing <= accuracy.ceiling).all()
    ways = accuracy.set_index(["measured", "ceiling", "way"]).largest_ratio.unstack()
    assert (ways["pivots"] < ways["smaller q-bar"]).all()
    free, capped = regret_rows.inducing
    assert capped == 50 < free
    assert "smaller q-bar" in capsys.readouterr().out


def test_functions_of_the_ceiling_have_the_law_of_the_prior():
    """Five standard errors of a covariance over 400 draws, a false alarm in 1e-5."""
    drawn = [ceiling.Problem(3, 2, 0.5, seed) for seed in range(400)]
    # Arms differ from seed to seed: each product has a covariance of its own.
    K = torch.stack([problem.kernel(problem.arms).to_dense() for problem in drawn])
    f = torch.stack([problem.values for problem in drawn])
    error = (f.unsqueeze(-1) * f.unsqueeze(-2) - K).mean(dim=0)
    assert error.abs().max() < 5 * (2 / 400) ** 0.5


def test_the_roofline_counts_what_it_says(tmp_path):
    args = options(roofline, "--smoke")
    args.output = tmp_path
    roofline.run(args)
    table = pd.read_csv(tmp_path / "roofline.csv").set_index("what")
    for what in ("full rebuild", "triangular solves"):
        row = table.loc[what]
        assert row.rate * row.seconds * 1e9 == pytest.approx(2 * 2000 * 64**2)
        assert row.share == pytest.approx(row.rate / table.loc["matrix product"].rate)
    assert {"commit", "threads", "torch", "device"} <= set(table.columns)


# --- a long campaign


def test_a_soak_counts_every_pull(tmp_path, capsys):
    args = options(soak, "--output", str(tmp_path), "--smoke")
    args.output = tmp_path
    soak.run(args)
    said = capsys.readouterr().out
    assert "the next batch is the same" in said
    assert "pulls per second" in said
    table = pd.read_csv(tmp_path / "soak.csv")
    assert table["pulls"].iloc[-1] >= 1500
    assert table["pulls"].is_monotonic_increasing
    assert (tmp_path / "soak.png").stat().st_size > 0


def test_a_laboratory_tells_every_pull_once(problem):
    bandit = soak.new_bandit(problem.arms, 0)
    laboratory = soak.Laboratory(problem, 0)
    for _ in range(60):
        laboratory.receive(bandit, bandit.ask(max_size=50))
    out = sorted(key for keys in laboratory.drawers.values() for key in keys)
    assert out == sorted(bandit.pending)
    assert bandit.num_pulls + laboratory.lost + len(out) == laboratory.asked
    assert laboratory.lost > 0
    assert laboratory.late > 0


# --- places


def test_the_two_places_pick_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "ROWS_PER_FILE", 250)
    places.write_library(tmp_path, 600)
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    stored, dense, fewer = (
        places.ask_once(tmp_path, num_arms, is_stored, threads=1)
        for num_arms, is_stored in ((600, True), (600, False), (300, False))
    )
    assert stored["picks"] == dense["picks"]
    assert len(stored["picks"]) == 100
    assert stored["inducing"] == fewer["inducing"] == places.NUM_TOLD
    assert max(fewer["picks"]) < 300
    assert min(places.read_once(tmp_path, threads=1)) > 0
    assert stored["processor_per_arm"] > 0
