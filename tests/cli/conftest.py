"""Fixtures of the tests of commands."""

import pytest

from botorch_bkb.cli import diagnosis
from botorch_bkb.cli import suggest as command


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
    """Every test reads and writes in its own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def full_fits():
    """Let fits run to their optimum, for tests of what a model predicts."""


@pytest.fixture(autouse=True)
def _short_fits_and_checks(request, monkeypatch):
    """Fits take two steps, and are checked by two folds.

    Tables, files and messages do not depend on the optimum.
    """
    if "full_fits" not in request.fixturenames:
        request.getfixturevalue("short_fits")
        monkeypatch.setattr(diagnosis, "NUM_FOLDS", 2)


@pytest.fixture
def bandits(monkeypatch):
    """Return the list of the bandits that `suggest` will make."""
    made, make = [], command.suggestion_bandit

    def kept(*args, **options):
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(command, "suggestion_bandit", kept)
    return made
