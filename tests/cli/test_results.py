"""Tables of results with too much in them, or too little."""

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main


RNG = np.random.default_rng(6)
ARMS = pd.DataFrame(
    {
        "id": [f"L-{n:02d}" for n in range(24)],
        "acid": RNG.uniform(1, 9, 24).round(2),
        "ligand": RNG.permutation(["A", "B", "C"] * 8),
    }
)
RESULTS = pd.DataFrame(
    {"id": ARMS["id"][::2], "reward": RNG.normal(40, 5, 12).round(2)}
).reset_index(drop=True)


def suggest(folder, results, *words, arms=ARMS, code=0):
    """Run the command; return its batch, or None if it is refused."""
    arms.to_csv(folder / "arms.csv", index=False)
    results.to_csv(folder / "results.csv", index=False)
    output = folder / "next.csv"
    options = ["--observations", folder / "results.csv", "--output", output, *words]
    command = ["suggest", folder / "arms.csv", "--batch-size", 3, *options]
    assert main([str(word) for word in command]) == code
    return pd.read_csv(output) if code == 0 else None


@pytest.mark.parametrize("name", ["SEM", "yield_sd", "std. error", "n", "err (%)"])
def test_columns_that_are_not_used_are_named(name, tmp_path, capsys):
    suggest(tmp_path, RESULTS.merge(ARMS))
    assert "not used" not in capsys.readouterr().out
    batch = suggest(tmp_path, RESULTS.assign(**{name: 2.0, "operator": "JK"}))
    said = " ".join(capsys.readouterr().out.split())
    assert f"results.csv has columns that are not used: {name}, operator." in said
    assert f"Whatever {name} says, all measurements have the same noise" in said
    pd.testing.assert_frame_equal(batch, suggest(tmp_path, RESULTS))
    capsys.readouterr()
    suggest(tmp_path, RESULTS.assign(notes="", error_free="yes"), "--quiet")
    assert "not used: notes, error_free" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["appended", "sorted", "partly", "with NA"])
def test_results_that_were_pasted_twice_are_refused(order, tmp_path, capsys):
    twice = pd.concat([RESULTS, RESULTS[:8] if order == "partly" else RESULTS])
    if order == "sorted":
        twice = twice.sort_values("id")
    if order == "with NA":
        twice = twice.assign(remark=["a", None, *["b"] * 10] * 2)
    suggest(tmp_path, twice, code=2)
    error = capsys.readouterr().err
    number = 16 if order == "partly" else 24
    assert f"{number} of {len(twice)} measurements are equal to another row" in error
    assert "Remove the copies" in error
    batch = suggest(tmp_path, twice, "--replicates-are-real")
    assert f"{len(twice)} measurements in all" in capsys.readouterr().out
    assert len(batch) == 3


def test_replicates_are_no_copies(tmp_path, capsys):
    again = RESULTS.assign(reward=RESULTS["reward"] + RNG.normal(0, 1, 12).round(2))
    suggest(tmp_path, pd.concat([RESULTS, again]))
    assert "equal to" not in capsys.readouterr().out
    wells = pd.concat([RESULTS, RESULTS]).assign(well=range(24))
    suggest(tmp_path, wells)
    assert "equal to" not in capsys.readouterr().out
    suggest(tmp_path, pd.concat([RESULTS, RESULTS[3:6]]))
    assert "3 rows are equal to an earlier row, such as row 13 " in (
        capsys.readouterr().out
    )
    one = pd.DataFrame({"id": ["L-00"] * 6 + ["L-01"], "reward": [0.0] * 6 + [1.0]})
    suggest(tmp_path, one)
    assert "5 rows are equal to an earlier row" in capsys.readouterr().out
