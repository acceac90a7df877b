"""`suggest --objective`: several outcomes as one score."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


HEAT = np.linspace(20, 90, 36)
ARMS = pd.DataFrame({"id": [f"R{n:02d}" for n in range(36)], "heat": HEAT})
OBJECTIVES = [
    *("--objective", "yield:max:0:100"),
    *("--objective", "ee:max:50:100:2"),
    *("--objective", "cost: %:min:0:40"),
]
OUTCOMES = ["yield", "ee", "cost: %"]


def measured(heat):
    """The yield rises with the heat, the enantiomeric excess falls."""
    heat = pd.Series(np.asarray(heat, dtype="float64"))
    falls = 100 - (heat - 20) ** 2 / 98
    return pd.DataFrame({"yield": heat, "ee": falls, "cost: %": heat / 9})


def score(table):
    """The score of noise-free outcomes, all of which are inside their ranges."""
    ee, cost = (table["ee"] - 50) / 50, 1 - table["cost: %"] / 40
    logs = np.log(table["yield"] / 100) + 2 * np.log(ee.clip(1e-300)) + np.log(cost)
    return np.exp(logs / 4)


def run(*words, code=0):
    ARMS.to_csv("arms.csv", index=False)
    words = ["arms.csv", "--batch-size=6", "--quiet", *words]
    return main(["suggest", *words]) == code


@pytest.mark.parametrize("writes", ["candidates", "measurements"])
def test_a_campaign_of_two_rounds(writes, capsys):
    """The files of two rounds are the tables of results of the third."""
    options = ["--per-measurement"] if writes == "measurements" else []
    told, heats = [], ARMS.set_index("id")["heat"]
    for number in range(3):
        path = f"{number}.csv"
        assert run(*OBJECTIVES, *options, *told, "--output", path)
        batch = pd.read_csv(path)
        assert list(batch.columns[-3:]) == OUTCOMES
        assert batch[OUTCOMES].isna().all(axis=None)
        batch[OUTCOMES] = measured(heats[batch["id"]])
        batch.to_csv(path, index=False)
        told += ["--observations", path]
    best = ARMS["id"][score(measured(HEAT)).argmax()]
    tables = pd.concat(pd.read_csv(path) for path in told[1::2])
    assert best in set(tables["id"])
    assert f"Best measured so far: {best}, mean score" in capsys.readouterr().out
    # A filled-in batch that the results lack is kept.
    assert run(*OBJECTIVES, *told[:4], "--output", path, code=2)


def test_scores_are_rewards(capsys):
    """The batch is that of a column with the scores; a gap is a result in flight."""
    results = ARMS[["id"]][::4].reset_index(drop=True)
    results = results.join(measured(HEAT[::4]))
    scores = results.assign(reward=score(results).round(12))[["id", "reward"]]
    scores.loc[2, "reward"] = np.nan
    results.loc[2, "ee"] = np.nan
    results["remark"] = "none"
    for name, table in {"several.csv": results, "one.csv": scores}.items():
        table.to_csv(name, index=False)
    read = []
    for name, words in {"one.csv": [], "several.csv": OBJECTIVES}.items():
        assert run(*words, "--observations", name, "--report=r.html")
        read.append(pd.read_csv("next.csv"))
    batches = read[1].drop(columns=OUTCOMES), read[0].drop(columns="reward")
    pd.testing.assert_frame_equal(*batches, rtol=1e-6)
    printed = capsys.readouterr().out
    assert printed.count("8 measurements in all, 1 in flight") == 2
    assert printed.count("mean score") == 3  # of the best, its rise, and of the batch
    # One table of candidates and outcomes: rows without any are not measured.
    both = ARMS.merge(results, how="left")
    both.to_csv("both.csv", index=False)
    words = ["both.csv", "--observations=both.csv", "--batch-size=6", "--drop=remark"]
    assert main(["suggest", *words, *OBJECTIVES]) == 0
    batch = pd.read_csv("next.csv").drop(columns="remark")
    pd.testing.assert_frame_equal(batch, read[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--objective", "dr:max:9:1"], "objective 'dr' to be .*low < high"),
        (["--objective", "dr:max:0:1:-1"], "objective 'dr' to be .*a positive weight"),
        (["--objective", "dr:max:0:1"], "has no column 'dr', only .* by --objective"),
        (["--objective", "yield:min:0:1"], "to have a column of its own"),
        (["--objective", "std:min:0:1"], "column 'std', which the batch has"),
        (["--log-reward"], "--log-reward does not go with --objective"),
        (["--noise-std", "sd"], "deviation of one outcome, not of the score. Leave it"),
        (["--reward", "yield"], "--reward does not go with --objective"),
    ],
)
def test_wrong_objectives_lose_nothing(words, match, capsys):
    results = ARMS[["id"]][::4].reset_index(drop=True).join(measured(HEAT[::4]))
    results.to_csv("results.csv", index=False)
    output = Path("next.csv")
    output.write_text("id,repeats\nR00,1\n")
    assert run(*OBJECTIVES, *words, "--observations=results.csv", code=2)
    assert re.search(match, capsys.readouterr().err)
    assert output.read_text() == "id,repeats\nR00,1\n"


@pytest.mark.parametrize("mark", [None, 9999])
def test_marks_in_an_outcome_are_named(mark, capsys):
    """A score, which ends at 1, hides them: the candidate would be the best."""
    told = measured(HEAT[::2]).assign(id=ARMS["id"][::2].array)
    told.loc[2, "yield"] = mark or told["yield"][2]
    told.to_csv("told.csv", index=False)
    assert run(*OBJECTIVES, "--observations=told.csv")
    said = "Warning: 1 of 18 results (9999 of R04) are far beyond all others."
    assert (said in capsys.readouterr().out) == bool(mark)
