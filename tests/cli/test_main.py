import io
import runpy
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest

from botorch_bkb import __main__ as command_line
from botorch_bkb import __version__
from botorch_bkb.__main__ import main


def test_without_a_command_the_default_job_runs(capsys):
    words = ["--horizon", "12", "--num-arms", "50", "--seed", "1", "--quiet"]
    assert main([*words, "--output=out"]) == 0
    printed = capsys.readouterr().out
    assert "Michalewicz-2, 50 candidates, 12 measurements in batches" in printed
    rounds = pd.read_csv("out/rounds.csv")
    assert rounds["num_pulls"].iloc[-1] == 12
    assert rounds.groupby("bandit")["batch_size"].sum().tolist() == [12, 12]
    assert Path("out/regret.png").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--help"], "demo       run a campaign"),
        (["app", "--help"], "Open a page in the browser"),
        *[([name, "--help"], "--seed N") for name in ("demo", "simulate", "suggest")],
    ],
)
def test_every_command_has_help(words, part, capsys):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 0
    assert part in capsys.readouterr().out


def test_the_module_runs_as_a_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["botorch_bkb", "--version"])
    monkeypatch.delitem(sys.modules, "botorch_bkb.__main__")
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("botorch_bkb", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_a_warning_is_one_line(monkeypatch):
    """Also of a library, and without the line of code that gave it."""
    before, shown = warnings.formatwarning, []

    def run(args):
        text = warnings.formatwarning("too\nfew", UserWarning, "a.py", 7, "a = b")
        shown.append(text)

    monkeypatch.setattr("botorch_bkb.cli.simulate.run_demo", run)
    assert main(["demo"]) == 0
    assert shown == ["Warning: too few\n"]
    assert warnings.formatwarning is before


@pytest.mark.parametrize(
    ("command", "name", "extra"),
    [("demo", "jinja2", "cli"), ("app", "streamlit", "app")],
)
def test_a_missing_extra_is_named(command, name, extra, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "find_spec", lambda each: each != name or None)
    assert main([command]) == 2
    error = capsys.readouterr().err
    assert f"needs {name}, which is not installed" in error
    assert f'pip install "botorch_bkb[{extra}]"' in error


def test_names_that_the_output_cannot_show_are_replaced(monkeypatch):
    """Also where it is a file; NEXT and the page have the names."""
    names = ["\u03b1-pinene \u00e4", "\u7532\u9187", "\U0001d6fc"]
    arms = pd.DataFrame({"id": names, "x": range(3)})
    arms.to_csv("arms.csv", index=False)
    screen = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr("sys.stdout", screen)
    assert main(["suggest", "arms.csv", "--batch-size=3", "--report=r.html"]) == 0
    screen.flush()
    assert "?" in screen.buffer.getvalue().decode("cp1252")
    assert set(pd.read_csv("next.csv")["id"]) == set(names)
    assert all(name in Path("r.html").read_text("utf-8") for name in names)


def test_the_batch_is_written_before_it_is_shown(monkeypatch):
    pd.DataFrame({"id": list("abc"), "x": range(3)}).to_csv("arms.csv", index=False)

    def broken(*_):
        raise BrokenPipeError("the reader of the output has gone")

    monkeypatch.setattr("botorch_bkb.cli.suggest.print_summary", broken)
    assert main(["suggest", "arms.csv", "--batch-size=2"]) == 2
    assert len(pd.read_csv("next.csv")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "Fitting 0 measurements, choosing 3 ...\n"), (["--quiet"], "")],
)
def test_a_terminal_shows_what_the_command_does(monkeypatch, words, said):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    pd.DataFrame({"id": list("abcd"), "x": range(4)}).to_csv("arms.csv", index=False)
    assert main(["suggest", "arms.csv", "--batch-size=3", *words]) == 0
    assert said in screen.getvalue()
    assert bool(screen.getvalue()) == bool(said)
