"""The page of ``app`` in a browser. Streamlit runs this file after every change."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import streamlit as st
from botorch.exceptions.errors import BotorchError, InputDataError
from streamlit.web import cli

from botorch_bkb.cli.arguments import AppOptions, build_parser, SuggestOptions
from botorch_bkb.cli.tables import read_by_options


# Only this computer can open the page, and nothing is sent to others.
SETTINGS = [
    "--server.address=127.0.0.1",
    "--server.allowedHosts=127.0.0.1",
    "--server.showEmailPrompt=false",
    "--server.fileWatcherType=none",
    "--browser.gatherUsageStats=false",
    "--client.toolbarMode=minimal",
]
# What the page asks for, by option.
QUESTIONS = {
    "maximize": "Columns of results: larger is better",
    "minimize": "Columns of results: smaller is better",
    "target": "Targets of results, for example: viscosity = 350 +- 10; pH = 7",
    "limit": "Limits of results, for example: impurity < 2; yield > 50",
    "drop": "Columns that cannot influence the results, such as comments",
    "id": "Column with the names of the candidates (default: id)",
    "smiles": "Columns with molecules, written as SMILES",
    "group": "Column of the results with the plate, the day or the device",
}
COMMAND = [sys.executable, "-P", "-X", "utf8", "-m", "botorch_bkb", "suggest"]
MESSAGE = r"(?m)^(?:usage(?:.*\n)*)?(?:botorch-bkb.*: )?((error|Warning|Note): .*)\n"
BOXES = {"error": st.error, "Warning": st.warning, "Note": st.info}
REPORT = "report.html"


def run(args: AppOptions) -> None:
    """Serve the page, and open it in the browser."""
    cli.main(["run", __file__, *SETTINGS], standalone_mode=False)


def page() -> None:
    """Ask for tables and options, run ``suggest``, and show its messages and files."""
    st.set_page_config("Next experiments", layout="wide")
    st.title("Choose the next experiments")
    st.write("Your tables stay on this computer. This page does not store them.")
    left, middle, right = st.columns(3)
    text = "Candidates: a table (Excel, CSV) with one row for each possible experiment"
    uploads: list[Any] = [left.file_uploader(text)]
    text = "Results: the tables of all rounds so far, none in the first round"
    uploads += middle.file_uploader(text, accept_multiple_files=True)
    text = "Results of earlier campaigns, such as last year's, if there are any"
    before = right.file_uploader(text, accept_multiple_files=True)
    if uploads[0] is None:
        return
    files: dict[str, bytes] = {}
    first, *others = [_add(files, upload) for upload in uploads]
    earlier = [_add(files, upload) for upload in before]
    more, columns = list[str](), list[str]()
    try:
        more = shlex.split(st.session_state.get("more", ""))
        # Names such as 001 are no numbers.
        ids = [f"--id={name}" for name in st.session_state.get("id", [])]
        read = st.cache_data(scope="session", show_spinner="Reading the tables")(_read)
        tables = read(files, [*ids, *more])
        for tab, table in zip(st.tabs([*map(plain, files)]), tables, strict=True):
            tab.dataframe(table.head(1_000), height=250)
            tab.caption(f"{len(table):,} rows")
            columns += [f"{name}" for name in table if name not in columns]
    except SystemExit:  # the command will say why
        pass
    except (BotorchError, ValueError) as error:
        st.error(plain(error))
    size = st.number_input("How many experiments come next?", 1, value=8)
    end = ".xlsx" if first.endswith(".xlsx") else ".csv"
    rounds = count(len({first, *others}))
    batch = next(b for n in rounds if (b := f"batch_{n}{end}") not in files)
    words = [f"./{first}", *(f"--observations={name}" for name in others)]
    words += [f"--earlier={name}" for name in earlier]
    words += [f"--batch-size={size}", f"--output={batch}", f"--report={REPORT}"]
    kinds = {e.name: e.metadata["kind"] for e in fields(SuggestOptions) if e.metadata}
    options: dict[str, Any] = {"accept_new_options": True, "select_all": False}
    options["placeholder"] = "Choose, or type and press Enter"
    cells = cycle(st.columns(2))
    for name, text in QUESTIONS.items():
        cell, kind = next(cells), kinds[name]
        if kind["type"] is str.strip:  # columns
            options["max_selections"] = None if "action" in kind else 1
            chosen = cell.multiselect(text, columns, key=name, **options)
        else:
            chosen = cell.text_input(text, key=name).split(";")
        words += [f"--{name}={value}" for value in chosen if value.strip()]
    st.text_input("If a message names an option (--...), write it here", key="more")
    if not any(st.session_state[name] for name in ("maximize", "minimize", "target")):
        st.info("Choose or type the name of the results, such as yield.")
    elif st.button("Suggest the next experiments", type="primary"):
        _suggest([*words, *more], files, batch)


def plain(text: object) -> str:
    """Return Markdown that shows a text as it is, on one line."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(f"{text}".split()))


def _add(files: dict[str, bytes], upload: Any) -> str:
    """Add an uploaded file; return its name, which no other file has."""
    name, data = Path(upload.name).name, upload.getvalue()
    while files.setdefault(name, data) != data:
        name = f"other {name}"
    return name


def _read(files: dict[str, bytes], more: list[str]) -> list[pd.DataFrame]:
    """Return the tables, whose rows have the numbers of messages."""
    args = SuggestOptions(**vars(build_parser().parse_args(["suggest", *more])))
    tables = []
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.write_bytes(data)
            try:
                table = read_by_options(path, args).frame
            except BotorchError as error:
                raise InputDataError(str(error).replace(str(path), name)) from None
            tables.append(table.set_axis(table.index + 1))
    return tables


def _suggest(words: list[str], files: dict[str, bytes], batch: str) -> None:
    """Run the command in a folder that is deleted, and show its messages and files."""
    options: dict[str, Any] = {"capture_output": True, "encoding": "utf-8"}
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        with st.spinner("This can take some minutes.", show_time=True):
            done = subprocess.run([*COMMAND, *words], cwd=folder, **options)
        paths = {path.name: path for path in sorted(Path(folder).iterdir())}
        written = {n: path.read_bytes() for n, path in paths.items() if n not in files}
    said = done.stdout + done.stderr
    for text, kind in re.findall(MESSAGE, said):
        BOXES[kind](plain(text))
    if summary := re.sub(MESSAGE, "", said).strip():
        st.code(summary, language=None, wrap_lines=True)
    for name, data in written.items():
        st.download_button(f"Save {name}", data, name, on_click="ignore")
    if REPORT in written:
        st.success(f"Fill in the results in {batch}. Then add it to the results above.")
        st.iframe(written[REPORT].decode(), height=900, alt="Report")


if __name__ == "__main__":
    page()
