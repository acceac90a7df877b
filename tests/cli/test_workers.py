"""What `--workers` changes: who computes, and no pick."""

import sys

import numpy as np
import pandas as pd
import pytest

from botorch_bkb.__main__ import main
from botorch_bkb.cli import suggest as command
from botorch_bkb.posteriors import shards
from botorch_bkb.posteriors.ray_shards import Pool


NUM_ARMS = 60


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(20, 90, size=(2, NUM_ARMS))
    gain = -((x - 60) ** 2) / 100 + y / 30
    ids = [f"{number:03d}" for number in range(NUM_ARMS)]
    arms = pd.DataFrame({"id": ids, "x": x, "y": y, "gain": gain})
    arms.to_parquet(tmp_path / "arms.parquet", row_group_size=7, index=False)
    measured = arms.iloc[[3, 30, 5, 44, 17, 58, 20]].rename(columns={"gain": "reward"})
    measured.iloc[0, 0] = "gone"  # not in the table any more
    measured.to_csv(tmp_path / "results.csv", index=False)
    return tmp_path


@pytest.fixture
def pools(monkeypatch):
    """Return the numbers of workers that were started, on blocks of 16 arms."""
    monkeypatch.setattr(shards, "BLOCK_SIZE", 16)
    seen = []
    begin = Pool.__init__

    def spied(self, *args):
        begin(self, *args)
        seen.append(len(self.actors))

    monkeypatch.setattr(Pool, "__init__", spied)
    return seen


def suggest(folder, *words):
    command = ["suggest", str(folder / "arms.parquet"), "--batch-size", "5"]
    command += ["--observations", str(folder / "results.csv"), "--drop", "gain"]
    assert main([*command, "--output", str(folder / "next.csv"), *words]) == 0
    return pd.read_csv(folder / "next.csv", dtype={"id": str})


def test_workers_suggest_the_batch_of_this_process(folder, pools):
    """Candidates that are not in the table any more count too."""
    expected = suggest(folder)
    assert pools == []
    found = suggest(folder, "--workers", "2")
    assert pools == [2]
    pd.testing.assert_frame_equal(found, expected)
    assert not sys.modules["ray"].is_initialized()


def test_fingerprints_stay_in_this_process(tmp_path, capsys):
    bits = np.random.default_rng(0).integers(2, size=(30, 64))
    table = pd.DataFrame(bits).add_prefix("bit").assign(id=range(30))
    table.to_csv(tmp_path / "arms.csv", index=False)
    assert main(["suggest", str(tmp_path / "arms.csv"), "--workers", "2"]) == 2
    assert "--workers does not support fingerprints" in capsys.readouterr().err


def test_without_ray_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["suggest", "no.csv", "--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "--workers needs Ray, which is not installed" in error
    assert 'pip install "botorch_bkb[ray]"' in error
