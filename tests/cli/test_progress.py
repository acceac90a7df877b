"""Signs of life while nothing can be counted."""

import io
from threading import Event

import pandas as pd
import pytest
import torch
from typing_extensions import override

from botorch_bkb import GPBandit
from botorch_bkb.__main__ import main
from botorch_bkb.cli import progress
from botorch_bkb.cli.simulation import run_bandit
from botorch_bkb.test_functions import FiniteArmProblem


class Terminal(io.StringIO):
    """A screen; one may wait until it shows something."""

    def __init__(self, awaited=""):
        super().__init__()
        self.awaited, self.is_shown = awaited, Event()

    @override
    def isatty(self):
        return True

    @override
    def write(self, text):
        written = super().write(text)
        if self.awaited in self.getvalue():
            self.is_shown.set()
        return written


@pytest.fixture
def folder(tmp_path):
    arms = pd.DataFrame({"id": list("abcdefgh"), "x": [3, 1, 4, 1.5, 9, 2, 6, 5]})
    arms.to_csv(tmp_path / "arms.csv", index=False)
    results = pd.DataFrame({"id": list("abcde"), "reward": [1.0, 0.2, 0.5, 0.4, -1.0]})
    results.to_csv(tmp_path / "results.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("quiet", [False, True])
def test_suggest_says_that_it_fits(folder, monkeypatch, quiet):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    words = ["--observations", str(folder / "results.csv"), "--batch-size", "3"]
    words += ["--output", str(folder / "next.csv"), *(["--quiet"] if quiet else [])]
    assert main(["suggest", str(folder / "arms.csv"), *words]) == 0
    said = [
        "Reading the tables (00:00",
        "Preparing 8 candidates (00:00",
        "Fitting 5 measurements, choosing 3 (00:00",
        "Judging the fit (00:00",
    ]
    assert all((text in screen.getvalue()) is not quiet for text in said)
    assert bool(screen.getvalue()) is not quiet


def test_a_note_does_not_begin_where_a_bar_stands(monkeypatch):
    """The bar is wiped away for the note, and drawn again below."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", screen)
    with progress.clock("Reading", quiet=False):
        progress.note("a title was skipped")
    before, after = screen.getvalue().split("Note: a title was skipped.\n")
    assert before.endswith("\r")
    assert "Reading (" in before
    assert "Reading (" in after


def test_simulate_says_that_it_fits(monkeypatch):
    """Long before the first pull is told."""
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 1e-3)
    screen = Terminal(awaited="fitting, choosing")
    monkeypatch.setattr("sys.stderr", screen)
    arms = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    problem = FiniteArmProblem(arms, arms.squeeze(-1), 0.1)

    class Slow(GPBandit):
        @override
        def ask(self, n=1):
            assert screen.is_shown.wait(600)
            return super().ask(n)

    generator = torch.Generator().manual_seed(0)
    bandit = Slow(arms, generator=generator)
    run_bandit(bandit, problem, 4, name="slow", seed=0, generator=generator)
    assert "4/4" in screen.getvalue()
