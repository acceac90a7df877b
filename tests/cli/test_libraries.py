"""Tables that are too large to be read as a whole stay in their files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from botorch_bkb.tables import files


NUM_ARMS = 60


@pytest.fixture
def library():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"{number:03d}" for number in range(NUM_ARMS)],
            "x": rng.uniform(20, 90, size=NUM_ARMS),
            "y": rng.integers(0, 9, size=NUM_ARMS),
            "stock": np.arange(NUM_ARMS) % 3,
            "supplier": [f"firm {number}" for number in range(NUM_ARMS)],
        }
    )


def suggest(library, *words, code=0):
    library.to_parquet("arms.parquet", row_group_size=7, index=False)
    measured = library.iloc[[3, 30, 5, 44, 17, 58, 20]]
    results = measured[["id"]].assign(reward=-((measured["x"] - 60) ** 2) / 100)
    results.to_csv("results.csv", index=False)
    options = ["--observations=results.csv", "--batch-size=5", "--with-columns", *words]
    assert main(["suggest", "arms.parquet", *options]) == code
    return pd.read_csv("next.csv", dtype={"id": str}) if code == 0 else None


@pytest.fixture
def reads(monkeypatch):
    """Return which columns pandas has read of whole Parquet files."""
    seen = []
    read = pd.read_parquet

    def spied(path, columns=None):
        seen.append(columns)
        return read(path, columns=columns)

    monkeypatch.setattr(pd, "read_parquet", spied)
    return seen


@pytest.mark.parametrize("words", [(), ("--available", "stock"), ("--kernel", "rbf")])
def test_the_batch_is_that_of_the_table(words, library, reads, capsys, monkeypatch):
    drop = ["--drop", "supplier"]
    words = [*words, *drop, *([] if "stock" in words else ["--drop", "stock"])]
    expected = suggest(library, *words)
    assert "too large" not in capsys.readouterr().out
    reads.clear()
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    found = suggest(library, *words)
    pd.testing.assert_frame_equal(found, expected)
    out = capsys.readouterr().out
    assert "arms.parquet is too large to be read as a whole: its 2 columns of" in out
    assert all(set(columns) <= {"id", "stock"} for columns in reads)
    assert found["supplier"].tolist() == [f"firm {int(name)}" for name in found["id"]]


def test_a_library_has_a_report(library, capsys, monkeypatch):
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    library.drop(columns=["supplier", "stock"]).to_parquet("arms.parquet")
    rewards = 9 * library["y"] - (library["x"] - 60) ** 2 / 20
    results = library[::2][["id"]].assign(reward=rewards)
    results.to_csv("results.csv", index=False)
    words = ["--observations=results.csv", "--report=r.html", "--same=y"]
    assert main(["suggest", "arms.parquet", *words]) == 0
    batch = pd.read_csv("next.csv")
    assert f"all of y {batch['y'][0]}" in capsys.readouterr().out
    assert "the measured candidates (dots)" in Path("r.html").read_text()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--category", "supplier"], "need the table in memory, but"),
        ([], "column 'supplier' of .*arms.parquet to hold numbers"),
    ],
)
def test_features_that_are_made_are_refused(words, match, library, capsys, monkeypatch):
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    suggest(library, *words, code=2)
    assert pd.Series(capsys.readouterr().err).str.contains(match).all()


def test_fingerprints_are_read_as_a_whole(reads, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    bits = pd.DataFrame(rng.integers(2, size=(40, 64))).add_prefix("bit")
    table = pd.DataFrame(
        {"id": np.arange(40), "smiles": ["C" * k for k in range(1, 41)]}
    )
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 800)
    for words, columns in (
        ([], [table["id"], bits.astype("uint8")]),  # bytes do not count
        (["--kernel", "tanimoto"], [table["id"], bits]),
        (["--smiles", "smiles", "--radius", "1"], [table, bits[["bit0"]]]),
    ):
        pd.concat(columns, axis=1).to_parquet("arms.parquet")
        assert main(["suggest", "arms.parquet", *words]) == 0
        out = capsys.readouterr().out
        assert "too large" not in out
        assert "fingerprints" in out
        assert reads[-1] is None


def test_unknown_ids_and_missing_columns_are_refused(library, capsys, monkeypatch):
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    library.to_parquet("arms.parquet")
    Path("told.csv").write_text("id,reward\nnobody,1\n")
    words = ["suggest", "arms.parquet", "--observations=told.csv"]
    assert main(words) == 2
    assert "measures id 'nobody' in row 2 " in capsys.readouterr().err
    assert main([*words, "--id", "name"]) == 2
    assert "has no column 'name'" in capsys.readouterr().err
    library.loc[5, "id"] = None
    suggest(library, code=2)
    assert "has no id in row 7 " in capsys.readouterr().err


def test_a_simulation_is_that_of_the_table(library, reads, capsys, monkeypatch):
    library["gain"] = -((library["x"] - 60) ** 2) / 100 + library["y"]
    library.to_parquet("arms.parquet", row_group_size=7, index=False)
    words = ["simulate", "arms.parquet", "--reward=gain", "--id=id", "--horizon=12"]
    words += ["--drop=supplier", "--batch-size=6", "--output"]
    assert main([*words, "table"]) == 0
    assert "too large" not in capsys.readouterr().out
    reads.clear()
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    assert main([*words, "library"]) == 0
    assert "too large to be read as a whole: its 3 columns" in capsys.readouterr().out
    assert reads == [["id", "gain"]]
    expected, found = (
        pd.read_csv(f"{name}/rounds.csv").drop(columns="seconds")
        for name in ("table", "library")
    )
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
