"""The pools, peers and tables of the benchmarks of practice, and what a run counts."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from typing_extensions import override

from benchmarks import figures, practice, practice_box
from benchmarks.pools import Laboratory, Pool, smoke_pools
from benchmarks.practice import play, Protocol, Run
from benchmarks.practice_methods import METHODS, PEERS, Uniform
from benchmarks.practice_tables import write_tables


PROTOCOL = Protocol(4, 3, 12, (12,))


@pytest.fixture(scope="module")
def made_up():
    return smoke_pools()["made up, d = 2"]


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

    table = play(Run("ten", "batches", 0.0, "spy", 3), pool, PROTOCOL, Spy)
    # The pool ends before the protocol does.
    assert table["num_measured"].tolist() == table["distinct"].tolist() == [4, 7, 10]
    assert table["asks"].tolist() == [0, 1, 1]
    assert table["found"].iloc[-1] == 1
    assert table["simple_regret"].iloc[-1] == 0
    assert table["cumulative_regret"].iloc[-1] == pytest.approx(45 / math.sqrt(8.25))
    for indices, rewards in told:
        torch.testing.assert_close(rewards, indices.double())


def test_all_methods_share_first_candidates_and_noise(made_up):
    told = {}

    def spied(name):
        def new_player(arms, generator):
            player = METHODS[name](arms, generator)
            tell = player.tell

            def record(indices, rewards):
                told.setdefault(name, []).extend(
                    zip(indices.tolist(), rewards.tolist(), strict=True)
                )
                tell(indices, rewards)

            player.tell = record
            return player

        return new_player

    methods = ["uniform", "Thompson", "GPBandit", "suggest"]
    for name in methods:
        run = Run("made up", "batches", 0.5, name, 7)
        play(run, made_up, PROTOCOL, spied(name))
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


MICHALEWICZ_5 = (2.202906, 1.570796, 1.284992, 1.923058, 1.720470)


@pytest.mark.parametrize("name", practice_box.FUNCTIONS)
def test_the_optimum_is_the_largest_value(name):
    function = practice_box.load_function(name)
    optimizers = function.values.__self__._optimizers or [MICHALEWICZ_5]
    values = function.values(torch.tensor(optimizers, dtype=torch.double))
    np.testing.assert_allclose(values, function.optimum, atol=1e-4)
    low, high = function.bounds
    draws = low + (high - low) * torch.rand(2000, len(low), dtype=torch.double)
    values = function.values(draws)
    assert values.max() < function.optimum
    assert values.std().item() == pytest.approx(function.deviation, rel=0.15)


# --- the tables of the pages


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


@pytest.fixture(scope="module")
def rows():
    """Four methods on a pool of each part, two seeds, and a plate of one seed."""
    parts = []
    for pool, more in (("levy4", 0), ("hplc", 1)):
        for seed in (0, 1):
            for method, found, regrets in (
                ("BBKB", [0, 3, 6 + more + seed], [9.0, 20.0, 30.0 + more]),
                ("uniform", [0, 1, 1], [9.0, 40.0, 80.0]),
                ("Thompson", [0, 2, 5 - seed], [9.0, 30.0, 40.0]),
                ("a peer of late", [0, 2, 2], [9.0, 45.0, 90.0]),
            ):
                commit = "0123456" if method == "BBKB" else f"12e{seed}567"
                one = rows_of(method, seed, found, regrets, pool=pool)
                parts.append(one.assign(commit=commit))
    plate = parts[0].assign(protocol="plates", noise=0.0, num_measured=[96, 192, 480])
    return pd.concat([*parts, plate], ignore_index=True)


def test_its_tables_say_what_rows_say(rows, tmp_path):
    checkpoints = {"batches": (100,), "plates": (192, 480)}
    write_tables(rows, checkpoints, tmp_path, ("BBKB", "GPBUCB"))
    assert (tmp_path / "practice.png").read_bytes().startswith(b"\x89PNG")
    tables = tmp_path.glob("*.csv")
    assert {path.name: path.read_text().splitlines() for path in tables} == {
        "runs.csv": [
            "protocol,noise,part,whose,pools,methods,seeds,commits",
            "batches,5 %,choosing,ours,1,1,2,0123456",
            "batches,5 %,choosing,peers,1,3,2,12e0567 12e1567",
            "batches,5 %,held-out,ours,1,1,2,0123456",
            "batches,5 %,held-out,peers,1,3,2,12e0567 12e1567",
            "plates,0 %,held-out,ours,1,1,1,0123456",
        ],
        # 7.5 and 6.5 over 4.5.
        "ratios.csv": [
            "protocol,measurements,noise,part,method,pools,seeds,to best stock,least,"
            "in,to stock Thompson,regret over stock Thompson",
            "batches,100,5 %,choosing,BBKB,1,2,1.67,1.67,hplc,1.67,0.000",
            "batches,100,5 %,held-out,BBKB,1,2,1.44,1.44,levy4,1.44,0.000",
            "batches,100,5 %,all,BBKB,2,2,1.56,1.44,levy4,1.56,0.000",
        ],
        "found.csv": [
            "pool,part,best 1 %,seeds,uniform,Thompson,BBKB,a peer of late",
            "hplc,choosing,10,2,1.0 +- 0.0,4.5 +- 0.5,7.5 +- 0.5,2.0 +- 0.0",
            "levy4,held-out,10,2,1.0 +- 0.0,4.5 +- 0.5,6.5 +- 0.5,2.0 +- 0.0",
        ],
        # 31 and 30 over the 40 of Thompson sampling.
        "regret.csv": [
            "noise,measurements,part,method,pools,mean ratio,largest,pools below 1",
            "5 %,100,choosing,BBKB,1,0.78,0.78,1",
            "5 %,100,held-out,BBKB,1,0.75,0.75,1",
        ],
    }


KEPT = [practice.ROWS, practice_box.ROWS, *figures.RESULTS.glob("*.csv.gz")]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_rows_are_traced_and_small(path):
    table = pd.read_csv(path)
    assert len(table) > 0
    assert path.stat().st_size < 5e6
    traces = ["commit", "torch", "botorch", "threads", "device"]
    assert table[traces].notna().all(axis=None)
    assert not table["commit"].str.contains("dirty|unknown").any()
