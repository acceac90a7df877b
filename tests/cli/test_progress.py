"""Lines on a terminal that say what a command does."""

import io

import pandas as pd
import pytest

from botorch_bkb.__main__ import main


@pytest.fixture
def folder(tmp_path):
    arms = pd.DataFrame({"id": list("abcdefgh"), "x": [3, 1, 4, 1.5, 9, 2, 6, 5]})
    arms.to_csv(tmp_path / "arms.csv", index=False)
    results = pd.DataFrame({"id": list("abcde"), "reward": [1.0, 0.2, 0.5, 0.4, -1.0]})
    results.to_csv(tmp_path / "results.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("quiet", [False, True])
def test_suggest_says_that_it_fits(folder, monkeypatch, quiet):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    words = ["--observations", str(folder / "results.csv"), "--batch-size", "3"]
    words += ["--output", str(folder / "next.csv"), *(["--quiet"] if quiet else [])]
    assert main(["suggest", str(folder / "arms.csv"), *words]) == 0
    said = "Fitting 5 measurements, choosing 3 ...\n"
    assert (said in screen.getvalue()) is not quiet
    assert bool(screen.getvalue()) is not quiet
