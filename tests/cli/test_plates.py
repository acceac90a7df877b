"""`suggest --same` and what `suggest` says about when to stop."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_bkb.__main__ import main
from tests.cli.tables import next_batch


HEATS, SOLVENTS = [20, 40, 60, 80], ["DMF", "THF", "water"]
GRID = pd.MultiIndex.from_product(
    [HEATS, SOLVENTS, range(6)], names=["heat", "solvent", "base"]
).to_frame(index=False)
ARMS = GRID.assign(id=[f"C{n:02d}" for n in range(len(GRID))], lot=1, note="x")
TOLD = ARMS.iloc[::5]
RESULTS = TOLD.assign(
    reward=50
    - (TOLD["heat"] - 55) ** 2 / 50
    + TOLD["base"]
    + (TOLD["solvent"] == "THF")
)[["id", "reward"]]


def suggest(*words, arms=ARMS, results=RESULTS, code=0):
    return next_batch(arms, results, *words, size=4, code=code)


def test_a_batch_shares_columns(capsys):
    same = ["heat", "solvent"]
    words = [f"--same={name}" for name in same]
    batch = suggest(*words)[["id"]].merge(ARMS, on="id")
    assert len(batch) == 4
    values = batch[same].drop_duplicates()
    assert len(values) == 1
    shared = "".join(f", all of {name} {values[name].iloc[0]}" for name in same)
    assert f"4 to measure next, 4 distinct{shared}:" in capsys.readouterr().out


def test_a_batch_is_smaller_if_a_value_has_few_candidates(capsys):
    batch = next_batch(ARMS, RESULTS, "--same=heat", "--same=solvent", size=12)
    assert len(batch) <= 6
    said = " ".join(capsys.readouterr().out.split())
    leaves = f"--same heat solvent leaves only {len(batch)} of 12 measurements"
    assert f"Note: {leaves}" in said


def test_a_column_of_a_library_is_shared(monkeypatch):
    monkeypatch.setattr("botorch_bkb.cli.campaign.is_library", lambda path: True)
    ARMS.drop(columns=["solvent", "note", "lot"]).to_parquet("arms.parquet")
    RESULTS.to_csv("results.csv", index=False)
    words = ["arms.parquet", "--observations=results.csv", "--same=heat"]
    assert main(["suggest", *words, "--batch-size=4"]) == 0
    batch = pd.read_csv("next.csv")[["id"]].merge(ARMS, on="id")
    assert batch["heat"].nunique() == 1


def test_a_batch_of_combinations_shares_elements(capsys):
    TOLD.assign(reward=RESULTS["reward"]).to_csv("results.csv", index=False)
    lists = ["--component=heat=20,40,60,80", "--component=solvent=DMF,THF,water"]
    lists += ["--component=base=0,1,2,3,4,5", "--drop=id", "--batch-size=4"]
    words = ["suggest", *lists, "--observations=results.csv"]
    assert main([*words, "--same=solvent"]) == 0
    batch = pd.read_csv("next.csv")
    assert batch["solvent"].nunique() == 1
    assert f"all of solvent {batch['solvent'][0]}:" in capsys.readouterr().out
    assert main([*words, "--same=acid"]) == 2
    assert "such as heat, solvent, base, but got 'acid'" in capsys.readouterr().err


def test_structures_are_shared():
    pytest.importorskip("rdkit")
    smiles = {"DMF": "CN(C)C=O", "THF": "C1CCOC1", "water": "O"}
    bases = [f"{'C' * n}N" for n in range(1, 7)]
    arms = ARMS.assign(
        solvent=ARMS["solvent"].map(smiles), base=[bases[n] for n in ARMS["base"]]
    )
    for name in ("base", "heat"):
        words = "--smiles=base", "--smiles=solvent", f"--same={name}"
        batch = suggest(*words, "--num-bits=256", arms=arms)[["id"]]
        batch = batch.merge(arms, on="id")
        assert batch[name].nunique() == 1
        assert len(batch) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--same=lot"], "but got 'lot'"),
        (["--same=heat", "--drop=heat"], "but got 'heat'"),
        (["--same=heat", "--max-repeats=1", "--available=lot"], "to be left"),
    ],
)
def test_impossible_plates_are_refused(words, message, capsys):
    lot = 0 if "--available=lot" in words else 1
    suggest(*words, arms=ARMS.assign(lot=lot), code=2)
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert not Path("next.csv").exists()


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize("minimize", [False, True])
def test_the_command_says_when_to_stop(minimize, capsys, bandits):
    batch = suggest("--report=r.html", *(["--minimize"] if minimize else []))
    out, bandit = capsys.readouterr().out, bandits[-1]
    rows = pd.Index(ARMS["id"]).get_indexer(batch["id"])
    picks = torch.from_numpy(np.repeat(rows, batch["repeats"]))
    progress = bandit.progress(indices=picks)
    brings = "This batch may raise the best reward, by how much is unknown: "
    if minimize:
        brings = "After this batch, the best predicted mean reward is expected to be "
    assert brings in out
    share = f"{100 * progress.probability_unmeasured:.0f} %"
    assert f"something better is still unmeasured: {share}." in out
    best = ARMS["id"][progress.best_arms.tolist()]
    assert f": {', '.join(best[:3])}" in out
    held = f"chance of {100 * progress.probability_held:.0f} %"
    assert f"{held}, the best candidate is one of these {len(best)} of 72: " in out
    page = Path("r.html").read_text()
    section = page.partition("When to stop")[2].partition("</section>")[0]
    line = next(line for line in out.splitlines() if line.startswith("When to stop:"))
    sentences = re.findall(r"<li>(.*)</li>", section)
    assert len(sentences) == 3
    assert all(sentence in line for sentence in sentences)


def test_a_single_candidate_may_be_the_best(capsys):
    arms = ARMS[:6]
    results = pd.concat([arms[["id"]].assign(reward=[0, 1, 2, 3, 4, 90])] * 2)
    suggest("--replicates-are-real", arms=arms, results=results)
    assert "%, the best candidate is C05." in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("full_fits")
@pytest.mark.parametrize("minimize", [False, True], ids=["max", "min"])
def test_a_rise_beyond_all_results_is_not_told(minimize, capsys):
    """No model of 99.5 % may promise 22 % more: it does not know that 100 % is most."""
    rng = np.random.default_rng(0)
    columns = {"heat": rng.uniform(20, 99, 60), "load": rng.uniform(0, 9, 60)}
    arms = pd.DataFrame({"id": [f"C{n}" for n in range(60)], **columns})
    rise = arms["heat"] / 20 + arms["load"] / 2 - 4
    yields = 99.5 / (1 + np.exp(-rise))
    yields = 100 - yields if minimize else yields
    results = pd.DataFrame({"id": arms["id"], "reward": yields.round(1)})
    words = ["--minimize"] if minimize else []
    verb = "lower" if minimize else "raise"
    for few, is_told in ((slice(0, 16), False), (slice(0, 48), True)):
        suggest(*words, arms=arms, results=results[few])
        said = capsys.readouterr().out
        found = re.search(r"is expected to be ([\d.]+) \(now ([\d.]+)\)\. Chance", said)
        assert (found is not None) == is_told, said
        if is_told:
            assert 0 < (float(found[1]) - float(found[2])) * (1 - 2 * minimize) < 1
        else:
            assert (
                f"When to stop: This batch may {verb} the best reward, by how much is "
                "unknown: predictions go beyond all results so far. Chance"
            ) in said


@pytest.mark.usefixtures("full_fits")
def test_without_a_rise_the_best_mean_has_few_digits(capsys):
    arms = pd.DataFrame({"id": [f"C{n}" for n in range(30)], "heat": range(30)})
    noise = np.random.default_rng(0).normal(0, 0.3, 30)
    rewards = (arms["heat"] - 21 / np.pi).abs() + noise
    suggest(arms=arms, results=arms[["id"]].assign(reward=rewards))
    said = capsys.readouterr().out
    then, now = re.search(r"to be ([\d.]+) \(now ([\d.]+)\)", said).groups()
    assert len(then) == len(now) <= 6
    # The others may not be the best any more.
    assert "repeat: measured before, improves the model" in said


@pytest.mark.usefixtures("full_fits")
def test_nothing_is_predicted_beyond_bounds(capsys):
    """Of results near 100 %, with a mean and intervals beyond them otherwise."""
    heat = np.linspace(20, 99, 60)
    arms = pd.DataFrame({"id": [f"C{n}" for n in range(60)], "heat": heat})
    results = arms[["id"]].assign(reward=np.round(1.3 * heat, 1))[:55:3]
    options = ["--predictions=p.csv", "--report=r.html", "--ids-only"]

    def suggest(*words, code=0):
        return next_batch(arms, results, *options, *words, size=4, code=code)

    suggest()
    assert pd.read_csv("p.csv")["mean"].max() > 110
    batch = suggest("--bounds=0:100")
    for table in (pd.read_csv("p.csv"), batch):
        columns = table[["mean", "low", "high"]].to_numpy()
        assert columns.max() == 100
        assert columns.min() >= 0
    then = re.search(r"is expected to be ([\d.]+) \(now", capsys.readouterr().out)
    assert float(then[1]) == 100
    suggest("--bounds=yield=0:100", code=2)
    said = " ".join(capsys.readouterr().err.split())
    assert "Expected --bounds of reward, at most one of each, but got yield." in said
    suggest("--bounds=0:100", "--bounds=reward=0:50", code=2)
    assert "one of each, but got reward, reward. Write" in capsys.readouterr().err
    outcomes = "--maximize=reward", "--minimize=heat", "--drop=heat"
    suggest(*outcomes, "--bounds=0:100", code=2)
    assert "but got one without a column. Write COLUMN=LOW" in capsys.readouterr().err


def test_without_a_model_nothing_is_said(capsys):
    assert len(suggest("--report=r.html", "--same=heat", results=RESULTS[:3])) == 4
    assert "When to stop" not in capsys.readouterr().out
    assert "When to stop" not in Path("r.html").read_text()
