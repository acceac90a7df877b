"""Which columns matter, in the terminal and the report."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb.arms import BitArms, ProductArms, TableArms
from botorch_bkb.bandits import GPBandit
from botorch_bkb.cli import effects
from botorch_bkb.cli.effects import batch_places, column_effects
from botorch_bkb.cli.features import Features
from tests.cli.tables import next_batch
from tests.cli.test_report import assert_self_contained


# Of a known function: what each word adds, the best one first. Heat adds 0.15 per unit.
ADDED = {
    "ligand": dict(XPhos=30, SPhos=22, dppf=14, PPh3=7, none=0),
    "base": {"K3PO4": 16, "Cs2CO3": 9, "KOtBu": 3, "Et3N": -3},
    "solvent": {"dioxane": 5, "toluene": 2, "DMF": 0},
}
# By the variance of what they add: 0.63, 0.28, 0.06 and 0.02.
COLUMNS = ["ligand", "base", "heat", "solvent"]


def known_function():
    rows = product(*(sorted(each) for each in ADDED.values()), [40, 60, 80, 100])
    frame = pd.DataFrame(rows, columns=[*ADDED, "heat"])
    added = sum(frame[name].map(each) for name, each in ADDED.items())
    return frame, (20 + added + 0.15 * frame["heat"]).to_numpy("float64")


def part_of(bandit, columns, num_candidates=40, arms=None, **options):
    """Return an outcome of a campaign, as far as effects need it."""
    held_out = SimpleNamespace(num_candidates=num_candidates, beats_mean=True)
    part = {"bandit": bandit, "held_out": held_out, "problems": [], "effects": None}
    part["args"] = SimpleNamespace(minimize=not bandit.maximize)
    features = Features(bandit.arms if arms is None else arms, None, columns)
    indices = bandit.observed_arms.numpy()
    rewards = np.zeros(len(indices))
    part["campaign"] = SimpleNamespace(
        indices=indices, rewards=rewards, features=features
    )
    return SimpleNamespace(**part | options)


@pytest.mark.usefixtures("full_fits")
def test_columns_and_words_of_a_known_function_are_in_order():
    """After five batches of 8, with noise (std 2), where small results are good."""
    frame, means = known_function()
    rng = np.random.default_rng(2)
    bandit = GPBandit(frame, maximize=False, seed=2)
    for _ in range(5):
        picks = bandit.ask(8)
        bandit.tell(picks, rng.normal(scale=2, size=8) - means[picks])
    found = column_effects(part_of(bandit, [*frame]))
    total = found.shares.sum(axis="columns")
    assert list(total.index) == COLUMNS
    assert total.sum() == pytest.approx(1)
    for name, added in ADDED.items():
        assert found.tables[name]["value"].tolist() == [*added]
        assert (found.tables[name]["low"] < found.tables[name]["high"]).all()
    heat = found.tables["heat"]
    assert heat["value"].tolist() == [40, 60, 80, 100]
    assert heat["mean"].is_monotonic_decreasing
    assert f"matter most: ligand ({100 * total.iloc[0]:.0f} % of" in found.sentence()


def test_report_and_terminal_name_the_columns_of_each_outcome(capsys):
    frame, means = known_function()
    frame.insert(0, "id", [f"C{number}" for number in range(len(frame))])
    rows = np.random.default_rng(1).permutation(len(frame))[:30]
    results = pd.DataFrame({"id": frame["id"][rows], "yield": means[rows]})
    results["cost"] = 120 - frame["heat"][rows]
    next_batch(frame, results, "--reward=yield", "--report=one.html")
    line = "Columns that matter most: ligand ("
    assert line in capsys.readouterr().out
    # Progress, predictions, importance, four effects, the batch.
    parsed = assert_self_contained(Path("one.html"), 2 + 1 + 4 + 1)
    assert line in parsed.text
    texts = [image["alt"] for image in parsed.all("img")]
    assert texts[2].startswith("Bar chart of the importance of ligand, base, ")
    assert texts[3].endswith("the best first: XPhos, SPhos, dppf, PPh3, none.")
    assert texts[-1].endswith("base and ligand.")
    words = ["--maximize=yield", "--minimize=cost", "--report=two.html"]
    next_batch(frame, results, *words)
    out = capsys.readouterr().out
    assert "Columns that matter most for yield: ligand (" in out
    assert "Columns that matter most for cost: heat (" in out
    text = assert_self_contained(Path("two.html"), 1 + 8 + 3 + 1).text
    assert "cost: Columns that matter" in text


def bandit_of(arms, rewards):
    bandit = GPBandit(arms, noise_variance=0.01, seed=0)
    bandit.add_observations(range(len(rewards)), rewards)
    return bandit


def test_nothing_is_said_of_columns_that_the_model_does_not_know():
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).double()
    bandit = bandit_of(x, x[:40].sum(dim=1))
    assert column_effects(part_of(bandit, "abc")) is not None
    guesses = SimpleNamespace(num_candidates=40, beats_mean=False)
    for each in (
        part_of(bandit, "abc", 23),
        part_of(bandit, "abc", held_out=None),
        part_of(bandit, "abc", held_out=guesses),
        part_of(bandit, "abc", problems=["results are far beyond all others"]),
        part_of(bandit, "a"),
        part_of(bandit, [f"x{number}" for number in range(11)]),
        part_of(bandit_of(x, torch.ones(40).double()), "abc"),
    ):
        assert column_effects(each) is None
    bits = BitArms(torch.zeros(60, 2, dtype=torch.uint8), True, x[:, :2])
    assert column_effects(part_of(bandit, "ab", arms=bits)) is None


def test_confounded_columns_are_named():
    heat = torch.linspace(20, 90, 60).double()
    x = torch.stack([heat, heat**2, torch.arange(60) % 7], dim=-1)
    part = part_of(bandit_of(x, heat), ["heat", "pressure", "time"])
    found = column_effects(part)
    assert "heat and pressure vary together in the table" in found.sentence()
    assert found.shares.to_numpy().sum() <= 1 + 1e-9


def test_molecules_have_a_share_but_neither_effects_nor_an_axis():
    rng = np.random.default_rng(0)
    frame, means = known_function()
    bits = {name: rng.integers(2, size=16) for name in ADDED["ligand"]}
    arms = TableArms(frame, {"ligand": bits})
    rows = rng.permutation(len(frame))
    bandit = bandit_of(arms[torch.tensor(rows)], torch.tensor(means[rows][:80]))
    part = part_of(bandit, [*frame])
    part.campaign.columns_of = frame.iloc[rows].iloc.__getitem__
    part.effects = column_effects(part)
    assert "ligand" in part.effects.shares.index
    assert {*part.effects.tables} == {*COLUMNS[1:]}
    picks = np.array([90, 91])
    others, measured, batch = batch_places([part], part.campaign, picks)[0]
    assert [len(each) for each in (others, measured, batch)] == [158, 80, 2]
    assert "ligand" not in batch
    part.campaign.rewards[:5] = np.nan  # in flight
    others, measured, _ = batch_places([part], part.campaign, picks)[0]
    assert [len(others), len(measured)] == [163, 75]


def products(sizes):
    """Return a product space and its effects, with names that are not in order."""
    a = torch.rand(sizes[0], 2, generator=torch.Generator().manual_seed(0)).double()
    tables = {"a": a, "b": torch.arange(sizes[1]).flip(0).double()}
    arms = ProductArms(tables, forbidden=[{"a": 0, "b": 1}])
    names = pd.RangeIndex(100, 100 + sizes[0]), pd.Index(tables["b"].numpy())
    campaign = object.__new__(effects.Products)
    campaign.arms, campaign.names = arms, names
    told = torch.from_numpy(np.random.default_rng(0).permutation(len(arms))[:40])
    told = told[arms.is_allowed(told)]
    bandit = GPBandit(arms, noise_variance=0.01, seed=0)
    code, number = arms.components(told).mT
    bandit.add_observations(told, 30 / sizes[0] * code + 5 * tables["b"][number])
    part = part_of(bandit, "ab")
    vars(campaign).update(vars(part.campaign))
    part.campaign = campaign
    part.effects = column_effects(part)
    return part, lambda picks: batch_places([part], campaign, picks)


def test_elements_of_components_have_their_names(monkeypatch):
    part, places_of = products([6, 8])
    a, b = (part.effects.tables[name]["value"] for name in "ab")
    assert sorted(a) == ["100", "101", "102", "103", "104", "105"]  # ids, no numbers
    assert b.tolist() == [*range(8)]
    monkeypatch.setattr(effects, "MAX_PLACES", 40)
    (others, measured, batch), words = places_of(np.array([9]))
    assert [*words.items()] == [("b", []), ("a", a.tolist())]
    assert batch["b"].tolist() == [7 - 9 % 8]
    assert a.tolist()[round(batch["a"].item())] == "101"
    assert 20 > len(others) > 0  # those drawn, without measured and forbidden ones
    assert len(measured) == part.bandit.num_pulls


def test_many_elements_have_no_effects_of_their_own():
    part, places_of = products([300, 4])
    assert [*part.effects.tables] == ["b"]
    assert places_of(np.array([0]))[1] == {}
