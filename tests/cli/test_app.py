"""The page in a browser, by the test client of Streamlit."""

import io
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
import streamlit
import torch
from streamlit.testing.v1 import AppTest

from botorch_bkb.__main__ import main
from botorch_bkb.cli import app
from tests.cli.tables import ARMS, cell, csv, excel, RESULTS


OUTCOMES = RESULTS.assign(cost=[3.0, 2.0, 4.0, 1.0], note="x")


def command(words):
    """Run the command in this process; return its exit code, and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(["suggest", *words])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def runs(monkeypatch):
    """Return the folders and the words of commands, which run in this process."""
    told, run = [], subprocess.run

    def in_process(words, cwd=None, **options):
        if words[: len(app.COMMAND)] != app.COMMAND:  # of a library
            return run(words, cwd=cwd, **options)
        told.append((Path(cwd), words[len(app.COMMAND) :]))
        torch.set_num_threads(1)  # a setting of each thread
        with chdir(cwd):
            return subprocess.CompletedProcess(words, *command(told[-1][1]))

    monkeypatch.setattr(subprocess, "run", in_process)
    return told


@pytest.fixture
def saved(monkeypatch, runs):
    """Return the files that the page offers, by name, and the report that it shows."""
    files, button, frame = {}, streamlit.download_button, streamlit.iframe

    def download_button(label, data, name, **options):
        files[name] = data
        return button(label, data, name, **options)

    def iframe(page, **options):
        files["shown"] = page
        return frame(page, **options)

    monkeypatch.setattr(streamlit, "download_button", download_button)
    monkeypatch.setattr(streamlit, "iframe", iframe)
    return files


def opened(arms, *results):
    """Return the page with uploaded files, pairs of a name and bytes."""
    page = AppTest.from_file(app.__file__, default_timeout=600).run()
    page.file_uploader[0].upload(*arms).run()
    for file in results:
        page.file_uploader[1].upload(*file)
    return page.run()


def asked(page, size=5):
    """Press the button for a batch, and return the page."""
    page.number_input[0].set_value(size)
    page.button[0].click().run()
    assert not page.exception
    return page


def texts(elements):
    """Return what boxes show, without the marks of Markdown."""
    return [element.value.replace("\\", "") for element in elements]


def frame(data):
    return pd.read_csv(io.BytesIO(data), dtype={"id": "str"})


def test_a_round_is_that_of_the_command(saved, runs):
    page = opened(("arms.csv", csv(ARMS)))
    assert page.dataframe[0].value["id"].tolist() == ARMS["id"].tolist()
    assert page.dataframe[0].value.index[0] == 2  # as in messages and spreadsheets
    assert not page.button  # before the results have a name
    asked(page.multiselect(key="maximize").set_value(["yield"]).run())
    first = frame(saved["batch_1.csv"])
    assert first["yield"].isna().all()
    assert first["heat"].notna().all()
    assert [box.label for box in page.download_button] == [
        "Save batch_1.csv",
        "Save batch_1.options.txt",
        "Save report.html",
    ]
    first["yield"] = range(5)
    page.file_uploader[1].upload("batch_1.csv", csv(first)).run()
    assert "yield" in page.multiselect(key="maximize").options
    assert not page.download_button
    asked(page)

    Path("arms.csv").write_bytes(csv(ARMS))
    Path("batch_1.csv").write_bytes(csv(first))
    words = ["--reward=yield", "--observations=batch_1.csv", "--batch-size=5"]
    words += ["--output=batch_2.csv"]
    code, out, err = command(["arms.csv", *words, "--report=report.html"])
    assert (code, err) == (0, "")
    assert saved["batch_2.csv"] == Path("batch_2.csv").read_bytes()
    assert saved["shown"] == saved["report.html"].decode()
    assert "<title>Next batch for arms.csv" in saved["shown"]
    notes = [line for line in out.splitlines() if line.startswith("Note: ")]
    assert texts(page.info) == notes != []
    rest = [line for line in out.splitlines() if line not in notes]
    assert page.code[0].value == "\n".join(rest).strip()
    assert not any(folder.exists() for folder, _ in runs)


def test_several_outcomes_and_other_options(saved, runs):
    arms = ARMS.rename(columns={"id": "No. *x*"}).assign(comment="new")
    results = OUTCOMES.rename(columns={"id": "No. *x*"})
    page = opened(("arms.csv", csv(arms)), ("results.csv", csv(results)))
    page.multiselect(key="maximize").set_value(["reward"])
    page.multiselect(key="minimize").set_value(["cost"])
    page.multiselect(key="drop").set_value(["comment"])
    page.multiselect(key="id").set_value(["No. *x*"])
    page.text_input(key="limit").set_value("reward >= 10; cost <= 5;")
    page.text_input(key="more").set_value('--category "load" --seed 3')
    asked(page.run(), size=2)
    assert texts(page.error) == []
    assert runs[0][1][-10:] == [
        *("--maximize=reward", "--minimize=cost"),
        *("--limit=reward >= 10", "--limit= cost <= 5"),
        *("--drop=comment", "--id=No. *x*"),
        *("--category", "load", "--seed", "3"),
    ]
    batch = pd.read_csv(io.BytesIO(saved["batch_2.csv"]))
    assert len(batch) == 2
    assert batch[["reward", "cost"]].isna().all(axis=None)


def test_a_target_is_typed_and_groups_are_a_column(saved, runs):
    page = opened(("arms.csv", csv(ARMS)), ("results.csv", csv(OUTCOMES)))
    page.text_input(key="target").set_value("reward = 20 +- 5")
    page.multiselect(key="group").set_value(["note"])
    asked(page.run())
    assert runs[0][1][-2:] == ["--target=reward = 20 +- 5", "--group=note"]
    assert "batch_2.csv" in saved


def test_an_earlier_campaign_informs_this_one(saved, runs):
    page = opened(("arms.csv", csv(ARMS)), ("results.csv", csv(RESULTS)))
    before = RESULTS.assign(reward=RESULTS["reward"] / 2 + 1)
    page.file_uploader[2].upload("2025.csv", csv(before)).run()
    asked(page.multiselect(key="maximize").set_value(["reward"]).run())
    assert texts(page.error) == []
    assert runs[0][1][1:3] == ["--observations=results.csv", "--earlier=2025.csv"]
    assert "2025: 3 results, worth" in page.code[0].value
    assert "batch_2.csv" in saved


def test_workbooks_and_sheets(saved):
    suffix, data = excel(ARMS, RESULTS)
    page = opened((f"book{suffix}", data), (f"book{suffix}", data))
    assert "sheets" in texts(page.error)[0]
    page.text_input(key="more").set_value("--sheet S0 --sheet S1").run()
    assert texts(page.error) == []
    asked(page.multiselect(key="maximize").set_value(["reward"]).run())
    assert len(pd.read_excel(io.BytesIO(saved["batch_1.xlsx"]))) == 5


REFUSED = {
    "a column twice": (csv(ARMS.rename(columns={"heat": "load"})), csv(RESULTS)),
    "a wrong kind": ((".pdf", b"%PDF"), csv(RESULTS)),
    "an unknown id": (csv(ARMS), csv(cell("id", "7", 1, RESULTS))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_file_has_the_message_of_the_command(name, saved):
    files = []
    for stem, content in zip(("arms", "results"), REFUSED[name], strict=True):
        suffix, data = content if isinstance(content, tuple) else (".csv", content)
        files.append((f"{stem}{suffix}", data))
        Path(files[-1][0]).write_bytes(data)
    words = [files[0][0], f"--observations={files[1][0]}", "--maximize=reward"]
    code, _, err = command(words)
    assert code == 2
    page = opened(*files)
    asked(page.multiselect(key="maximize").set_value(["reward"]).run())
    message = err.removeprefix("botorch-bkb: error: ").strip()
    assert texts(page.error)[-1] == f"error: {message}"
    assert set(texts(page.error)) <= {message, f"error: {message}"}  # read, and asked
    assert not page.download_button
    assert saved == {}


def test_wrong_options_are_named_without_the_list_of_all(saved):
    page = opened(("arms.csv", csv(ARMS)))
    page.multiselect(key="maximize").set_value(["reward"])
    page.text_input(key="more").set_value("--seed -1")
    asked(page.run())
    assert texts(page.error) == [
        "error: argument --seed: expected a whole number from 0 to less than 2 to the "
        "63rd, but got '-1'"
    ]
    assert not page.code
    page.text_input(key="more").set_value('--drop "note').run()
    assert texts(page.error) == ["No closing quotation"]


def test_files_of_one_name_are_kept_apart(saved, runs):
    half = csv(RESULTS[:1]), csv(RESULTS[1:3])
    page = opened(("a.csv", csv(ARMS)), *(("b.csv", data) for data in half))
    asked(page.multiselect(key="maximize").set_value(["reward"]).run())
    told = [word for word in runs[0][1] if "observations" in word]
    assert told == ["--observations=b.csv", "--observations=other b.csv"]
    assert "3 measurements in all" in page.code[0].value


def test_what_fails_otherwise_is_shown(monkeypatch, saved):
    def broken(words, cwd, **_):
        return subprocess.CompletedProcess(words, 1, "", "Traceback\nOops: no memory\n")

    monkeypatch.setattr(subprocess, "run", broken)
    page = opened(("arms.csv", csv(ARMS)))
    asked(page.multiselect(key="maximize").set_value(["reward"]).run())
    assert page.code[0].value == "Traceback\nOops: no memory"


def test_the_page_is_served_on_this_computer_only(monkeypatch):
    told = []
    monkeypatch.setattr("streamlit.web.cli.main", lambda words, **_: told.extend(words))
    assert main(["app"]) == 0
    assert told[:2] == ["run", app.__file__]
    assert {"--server.address=127.0.0.1", "--browser.gatherUsageStats=false"} <= {*told}
