"""What the benchmarks measure and keep; `.ci/run` runs them in smoke mode."""

import math
import os
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import groups, outcomes, practice, speed
from benchmarks.pools import as_pool, for_bandits, load_pools, Pool, SOURCES
from benchmarks.practice import play, Protocol
from benchmarks.practice_methods import Uniform
from benchmarks.practice_tables import found_by_pool, NEEDED, NUM_SEEDS, shares_by_kind
from benchmarks.record import RESULTS
from benchmarks.rows import RowFile
from benchmarks.thompson_decay import bimodal, flat
from botorch_bkb import OutcomesBandit
from botorch_bkb.arms import BitArms
from botorch_bkb.bandits.fitting import Fitter
from tests.helpers import seeded
from tests.reference import exact_posterior


PROTOCOL = Protocol(4, 3, 12)


class Run(NamedTuple):
    name: str
    seed: int


# --- rows


def killed(*paths):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_killed_run_continues_and_a_failed_one_costs_no_other(
    name, tmp_path, monkeypatch
):
    played = []

    def play(run):
        played.append(run.seed)
        if len(played) == 2:
            raise KeyboardInterrupt
        if run.seed == 2:
            raise ValueError("a bug")
        return pd.DataFrame({"x": [float(run.seed)]})

    rows = RowFile(tmp_path / name, Run._fields)
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
    expected = table.iloc[[1, 2, 0]].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows.table(), expected)
    with pytest.raises(ValueError, match=r"Expected the columns of .*, but got"):
        rows.play_missing([Run("b", 0)], play, {"other": "column"})
    # Killed while the file is written.
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        rows.play_missing([Run("b", 0)], play, {"commit": "abcdefg"})
    pd.testing.assert_frame_equal(rows.table(), expected)


# --- speed and regret


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
        *(
            speed.argmax_exact("cpu", 300, 40, search, model)
            for search in ("stock", "finite")
            for model in ("GP", "DTC")
        ),
    ):
        assert call() == f"arm {best}"


# --- Thompson sampling


def test_the_functions_are_those_of_the_paper():
    x = np.array([2.0, 5.0, 3.3])
    expected = 5 * np.exp(-((x - 2) ** 2) / 2) + 10 * np.exp(-((x - 5) ** 2) / 2)
    values = bimodal(1)(torch.tensor(x).unsqueeze(-1))
    np.testing.assert_allclose(values, expected / np.sqrt(2 * np.pi))
    points = torch.tensor([[2.0, 2.0], [5.0, 4.0]], dtype=torch.double)
    expected = [5 + 10 * np.exp(-9), 5 * np.exp(-6.5) + 10 * np.exp(-0.5)]
    np.testing.assert_allclose(2 * np.pi * bimodal(2)(points), expected)
    points = torch.tensor([[1.0], [5.0]], dtype=torch.double)
    np.testing.assert_allclose(flat(0.5)(points), [0.5 * np.exp(-2), 0.5])


# --- practice


def test_a_run_has_a_row_a_batch_that_adds_up():
    """Ten arms on a line with rewards 0 to 9: the best 1 % is the last one."""
    arms = torch.linspace(0, 1, 10, dtype=torch.double).unsqueeze(-1)
    pool = Pool("ten", arms, torch.arange(10, dtype=torch.double))
    told = []

    class Spy(Uniform):
        @override
        def tell(self, indices, rewards):
            told.append((indices, rewards))
            super().tell(indices, rewards)

    run = practice.Run("ten", "batches", 0.0, "spy", 3)
    table = play(run, pool, PROTOCOL, Spy)
    # The pool ends before the protocol does.
    assert table["num_measured"].tolist() == table["distinct"].tolist() == [4, 7, 10]
    assert table["asks"].tolist() == [0, 1, 1]
    assert table["found"].iloc[-1] == 1
    assert table["simple_regret"].iloc[-1] == 0
    assert table["cumulative_regret"].iloc[-1] == pytest.approx(45 / math.sqrt(8.25))
    for indices, rewards in told:
        torch.testing.assert_close(rewards, indices.double())


def test_molecules_are_fingerprints_and_a_molecule_is_one_candidate(
    tmp_path, monkeypatch
):
    pytest.importorskip("rdkit")
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(tmp_path))
    (tmp_path / "pools").mkdir()
    text = "smiles,expt\nCCO,1\nOCC,3\nCCN,4\nC,\n"
    (tmp_path / "pools" / "FreeSolv.csv").write_text(text)
    pool = load_pools(["hydration"])["hydration"]
    assert pool.frame["smiles"].tolist() == ["CCO", "CCN"]
    assert pool.rewards.tolist() == [2.0, 4.0]
    bits = for_bandits(pool.candidates)
    assert isinstance(bits, BitArms)
    assert len(bits) == 2
    assert Uniform(pool.candidates, torch.Generator()).arms.equal(pool.arms)
    assert (pool.arms[0] != pool.arms[1]).all()  # what does not vary is left out


def test_words_stay_words_and_peers_get_columns_of_0_and_1(tmp_path, monkeypatch):
    rows = [["a", "u", 20.0, 1.0], ["b", "u", 30.0, 2.0], ["a", "u", 20.0, 3.0]]
    columns = ["ligand", "base", "temperature", "reward"]
    table = pd.DataFrame(rows, columns=columns)
    pool = as_pool("lab", table)
    # The base does not vary, and the first candidate was measured twice.
    assert pool.candidates is pool.frame
    assert pool.frame.values.tolist() == [["a", 20.0], ["b", 30.0]]
    assert pool.rewards.tolist() == [2.0, 2.0]
    assert pool.arms.tolist() == [[20.0, 1.0, 0.0], [30.0, 0.0, 1.0]]
    assert Uniform(pool.candidates, torch.Generator()).arms.equal(pool.arms)
    numbers = as_pool("numbers", table[["temperature", "reward"]])
    assert numbers.frame is None
    assert numbers.candidates is numbers.arms
    # A file of reactions: other columns are left out, and no reagent is a reagent.
    (tmp_path / "reactions").mkdir()
    text = "Base,Nucleophile,Catalyst,cost,Conversion\n,n,c,1,0.5\nb,n,d,2,0.25\n"
    (tmp_path / "reactions" / "cernak.csv").write_text(text)
    monkeypatch.setenv("BOTORCH_BKB_DATA", str(tmp_path))
    pool = as_pool("cernak", SOURCES["cernak"].load())
    assert pool.frame.values.tolist() == [["c", "none"], ["d", "b"]]
    assert pool.rewards.tolist() == [0.5, 0.25]


def test_suggest_is_compared_with_one_peer_on_pools_that_all_have_played():
    """Of 20, `suggest`, "BayBE", all others and "qLogEI" find so many in each pool."""
    pools = {
        "hplc": (10, 4, 2, 3),
        "suzuki": (6, 8, 2, 3),
        "levy4": (20, 20, 20, 20),  # all find everything
        "cernak": (1, 9, 9, 9),  # "BayBE" lacks a seed
    }
    places = dict.fromkeys(NEEDED, 2) | {"suggest": 0, "BayBE": 1, "qLogEI": 3}
    rows = [
        (pool, name, seed, counts[place])
        for pool, counts in pools.items()
        for name, place in places.items()
        for seed in range(NUM_SEEDS)
        if seed or (pool, name) not in {("cernak", "BayBE"), ("suzuki", "qLogEI")}
    ]
    columns = ["pool", "method", "seed", "found"]
    table = pd.DataFrame(rows, columns=columns).assign(num_measured=100, num_best=20)
    table = table.assign(protocol="batches", noise=0.05)
    shares = shares_by_kind(table, ["suggest"]).set_index("pools")
    numbers = {"all": 2, "numbers": 1, "words": 1, "choosing": 1, "last": 1}
    assert shares["number"].to_dict() == numbers
    assert {*shares["best_peer"]} == {"BayBE"}
    assert shares["ratio"].tolist() == ["1.33", "2.50", "0.75", "2.50", "0.75"]
    assert shares.loc["all", "95_%_interval"] == "0.75 to 2.50"
    assert shares.loc["all", ["suggest", "BayBE"]].tolist() == ["40 %", "30 %"]
    # It lacks a seed in a table of words.
    assert shares["qLogEI"].tolist() == ["", "15 %", "", "15 %", ""]
    found = found_by_pool(table).set_index("pool")
    assert found.loc["hplc", ["suggest", "BayBE"]].tolist() == [
        "10.0 +- 0.0",
        "4.0 +- 0.0",
    ]
    assert found.loc["cernak", ["suggest", "BayBE"]].tolist() == ["1.0 +- 0.0", ""]


# --- outcomes


def lab(yields, costs, has_limit):
    x = np.arange(len(yields)) / len(yields)
    frame = pd.DataFrame({"x": x, "yield": yields, "cost": costs})
    return outcomes.as_task(frame, Protocol(2, 1, 6), has_limit)


def test_fronts_limits_and_targets_are_judged_by_true_outcomes():
    """Scaled, the front is (0, 1), (4/9, 3/4), (2/3, 1/4) and (1, 0)."""
    yields = [10.0, 50.0, 100.0, 20.0, 30.0, 70.0]
    costs = [0.0, 1.0, 4.0, 2.0, 1.0, 3.0]
    task = lab(yields, costs, False)
    whole = 4 / 9 * 3 / 4 + 2 / 9 * 1 / 4
    for measured, volume in (([4], 2 / 9 * 3 / 4), ([0, 2], 0.0), ([1, 3, 5], whole)):
        share, success = task.judge(torch.tensor(measured), None)
        assert share == pytest.approx(volume / whole)
        assert math.isnan(success)
    # The quantile of the cost is 1.
    task = lab(yields, costs, True)
    assert task.judge(torch.tensor([2, 4]), None) == (pytest.approx(0.6), 0.0)
    assert task.judge(torch.tensor([1, 4]), None) == (1.0, 1.0)
    task = outcomes.viscosity(3)
    assert (task.truth.min(), task.truth.max()) == (20, 2000)
    within = (task.truth[:, 0] - 350).abs() <= 17.5
    for arm in (int(within.int().argmax()), int(within.int().argmin())):
        player = NamedTuple("Known", [("best_arm", object)])(lambda arm=arm: arm)
        assert task.judge(torch.tensor([0]), player)[1] == within[arm]


def test_rows_of_outcomes_have_noise_of_results_and_no_noise_in_shares():
    task = lab(np.arange(6.0), np.arange(6.0) % 4, False)
    table = outcomes.play(outcomes.Run("lab", 0.5, "random", 0), task)
    assert table["num_measured"].tolist() == [2, 3, 4, 5, 6]
    assert table["share"].is_monotonic_increasing
    assert table["share"].iloc[-1] == 1
    assert table["choice_seconds"].isna().tolist() == [True] + 4 * [False]


def test_fits_that_are_timed_change_no_choice_and_are_not_repeated(monkeypatch):
    yields = np.random.default_rng(0).random(40)
    task = lab(yields, yields[::-1], False)
    player = outcomes.Ours(task, seeded())
    roles = task.roles
    plain = OutcomesBandit(task.frame, roles, seed=0)
    first = torch.arange(0, 40, 5)
    player.tell(first, task.truth[first])
    columns = zip(roles, task.truth[first].mT, strict=True)
    plain.add_observations(first, dict(columns))
    fits = []
    fit = Fitter.fit
    monkeypatch.setattr(Fitter, "fit", lambda *a: fits.append(1) or fit(*a))
    picks = player.ask(3)
    assert not fits
    assert plain.ask(3).tolist() == picks.tolist()
    assert len(fits) == 2


def test_the_constrained_peer_stays_within_its_limit():
    """Yield and cost are both the number of the row, and the limit is 8.7."""
    numbers = np.arange(30.0)
    task = lab(numbers, numbers, True)
    peer = outcomes.Stock(task, seeded())
    rows = torch.tensor([0, 4, 12, 20, 29])
    peer.tell(rows, task.truth[rows])
    assert 7 <= int(peer.ask(1)) <= 8
    free = outcomes.Stock(lab(numbers, -numbers, False), torch.Generator())
    free.tell(rows[:4], free.task.truth[rows[:4]])
    assert int(free.ask(1)) > 20


def test_the_summary_compares_seeds_that_both_have():
    ends = {("OutcomesBandit", 0): 0.6, ("OutcomesBandit", 1): 0.9, ("BoTorch", 0): 0.8}
    rows = pd.DataFrame(
        [
            ("lab", 0.0, method, seed, num, share * num / 60, math.nan, s, s / 2)
            for (method, seed), share in ends.items()
            for num, s in ((55, math.nan), (60, 4.0))
        ],
        columns=[*outcomes.Run._fields, "num_measured", *outcomes.FIGURES],
    )
    table = outcomes.summary(rows).set_index("method")
    assert table.loc["OutcomesBandit", "share"] == pytest.approx(0.75)
    assert table["to_BoTorch"].tolist() == [pytest.approx(0.75), 1.0]
    assert table["choice_seconds"].tolist() == [4.0, 4.0]
    assert table["fit_seconds"].tolist() == [2.0, 2.0]
    assert table["seeds"].tolist() == [2, 1]


# --- groups


def made_up_player(told):
    numbers = iter(range(60))
    return SimpleNamespace(
        ask=lambda size: torch.tensor([next(numbers) for _ in range(size)]),
        tell=lambda indices, results: told.append((indices, results)),
    )


def test_all_results_of_a_plate_have_one_offset_and_a_hit_ends_a_second_campaign():
    pool, (plain, shifted, ended) = groups.load("made_up_0"), ([], [], [])
    for told, offsets in ((plain, 0.0), (shifted, 2.0), (ended, None)):
        rows = groups.measure(
            made_up_player(told), pool, Protocol(4, 4, 40), 3, offsets
        )
        assert rows["arm"].tolist() == torch.cat([arms for arms, _ in told]).tolist()
    shifts = [s - r for (_, s), (_, r) in zip(shifted, plain, strict=True)]
    for shift in shifts:
        torch.testing.assert_close(shift, shift[:1].expand(4))
    of_plates = torch.stack(shifts)[:, 0] / pool.deviation
    assert 1 < of_plates.std() < 3
    # Candidate 30 is the best. The first batch of the others is random.
    assert torch.cat([arms for arms, _ in ended]).tolist() == [*range(32)]
    assert plain[0][0].equal(shifted[0][0])
    assert plain[0][0].tolist() != [0, 1, 2, 3]


def test_methods_correct_plates_as_they_say():
    pool, results = groups.load("made_up_0"), torch.tensor([1.0, 2.0, 6.0])
    for method, expected in {
        "none": (results, None),
        "group": (results, "plate 1"),
        "means": (results - 3, None),
    }.items():
        told = []
        player = groups.Ours(method, pool, None, 0)
        player.bandit = SimpleNamespace(
            pending=True, tell=lambda _, r, group, told=told: told.append((r, group))
        )
        player.tell(torch.arange(3), results)
        player.tell(torch.arange(3, 6), results)
        assert told[1][0].equal(expected[0])
        assert told[1][1] == expected[1]
    # Two plates around the best candidate, 30, whose levels differ by 1,000.
    player = groups.Ours("column", pool, None, 0)
    for arms, level in ((torch.arange(26, 30), 0), (torch.arange(31, 35), 1000)):
        player.tell(arms, pool.rewards[arms].double() + level)
    picks = player.ask(6)
    assert len({*picks.tolist()} - {*range(26, 30), *range(31, 35)}) == 6
    assert 0 <= picks.min() <= picks.max() < 60


def test_the_peer_has_both_campaigns_and_picks_candidates_of_the_new_one():
    pool = groups.load("made_up_0")
    earlier = pool.frame.iloc[::3], pool.rewards[::3] - 100
    peer = groups.MultiTask("MultiTaskGP", pool, earlier, 0)
    picks = peer.ask(3)
    assert all(abs(int(pick) - 30) < 10 for pick in picks)
    peer.tell(picks, pool.rewards[picks])
    later = peer.ask(2)
    assert not {*picks.tolist()} & {*later.tolist()}
    assert later.max() < 60
    assert peer.model.num_tasks == 2


def test_groups_are_compared_with_no_correction_on_the_same_seeds():
    rows = pd.DataFrame(
        [
            ("a", "none", 16, 0.0, "none", 0, 0.5, 40),
            ("a", "none", 16, 0.0, "none", 1, 0.7, 60),
            ("a", "none", 16, 1.0, "group", 0, 0.4, 50),
            ("b", "none", 16, 1.0, "group", 0, 0.9, 50),
            ("b", "none", 0, 0.0, "none", 0, 0.1, 20),
            ("b", "none", 0, 0.0, "none", 1, 0.1, 90),
            ("b", "a permuted", 0, 0.0, "campaign", 0, 0.1, 10),
        ],
        columns=[*groups.Run._fields, "share", "needed"],
    ).assign(correlation=0.5, worth=7.0)
    plates, pairs = groups.summaries(rows).values()
    group = plates.set_index(["offsets", "method"]).loc[(1.0, "group")]
    assert group["ratio"] == pytest.approx(0.8)
    assert group["runs"] == 1
    assert pairs[["earlier", "runs"]].values.tolist() == [["a permuted", 1]]
    assert pairs["ratio"].tolist() == [0.5]


KEPT = sorted(RESULTS.rglob("*.csv.gz"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_rows_are_traced_and_small(path):
    table = pd.read_csv(path)
    assert len(table) > 0
    assert path.stat().st_size < 5e6
    traces = ["commit", "torch", "botorch", "threads", "device"]
    assert table[traces].notna().all(axis=None)
    assert not table["commit"].astype("str").str.contains("dirty|unknown").any()


# --- statements


DOCS = RESULTS.parent.parent / "docs"


def words(path):
    return " ".join(path.read_text().replace("**", "").split())


def test_statements_about_bbkb_are_what_the_rows_say():
    page, readme = DOCS / "benchmarks.rst", RESULTS / "figures" / "README.rst"
    table = pd.read_csv(RESULTS / "figures" / "bbkb.csv")
    ours = table[table["bandit"] == "BBKB"].set_index(["data", "setting"])
    exponents = ours["exponent"]
    linear = exponents[exponents > 0.9].sort_index()
    assert {*linear.index} == {
        ("abalone", "paper"),
        ("cadata", "practical"),
        ("cadata", "released"),
    }
    assert exponents.drop(linear.index).max() < 0.81
    for text in (page, readme):
        assert "0.997" in words(text)
        assert "almost linear" in words(text)
    for share in ours["share of uniform"]:
        assert f"{share:.2f}" in words(readme)
    for exponent in exponents[exponents < 0.99]:
        assert f"{exponent:.2f}" in words(readme)
    rows = pd.read_csv(RESULTS / "bbkb.csv.gz")
    seconds = rows.groupby(["data", "setting", "bandit"])["seconds"].max().unstack()
    both = seconds.dropna()
    assert len(both) == 3
    assert (both["BKB"] > both["GPUCB"]).all()
    assert "BKB takes longer than GP-UCB" in words(page)


def test_statements_about_drift_thompson_and_ax_are_what_the_rows_say():
    page, readme = DOCS / "benchmarks.rst", RESULTS / "figures" / "README.rst"
    drift = pd.read_csv(DOCS / "benchmarks" / "drift_matched.csv")
    worse = drift["R-GP-UCB"] > drift["GP-UCB"]
    assert (len(worse), worse.sum()) == (6, 5)
    for text in (page, readme):
        assert "more regret than GP-UCB in five of six" in words(text)
    rows = pd.read_csv(RESULTS / practice.FILE, dtype={"commit": str})
    last = rows[rows["protocol"] == "batches"]
    last = last.groupby(["noise", "pool", "method", "seed"]).tail(1)
    shares = (last["found"] / last["num_best"]).groupby(
        [last[key] for key in ("noise", "pool", "seed", "method")]
    )
    both = shares.first().unstack()[["GPBandit", "GPBandit, Thompson"]].dropna()
    means = both.groupby("noise").mean()
    assert (means["GPBandit, Thompson"] < means["GPBandit"]).all()
    ax = pd.read_csv(DOCS / "benchmarks" / "ax.csv").set_index("function")
    (ours, error), (stock, other) = (
        map(float, ax.loc["Hartmann-4", name].split(" +- "))
        for name in ("``BanditNode``", "Ax's own choice")
    )
    assert 0.9 < (ours - stock) / math.hypot(error, other) < 1.1
