"""README and docs/: names exist, and code and commands run."""

import importlib
import re
import runpy
import textwrap
from pathlib import Path

import pytest
import torch

from botorch_bkb.cli.arguments import build_parser


DOCS = Path(__file__).parent.parent / "docs"
README = DOCS.parent / "README.md"
CONTRIBUTING = DOCS.parent / "CONTRIBUTING.md"
PROJECTS = runpy.run_path(str(DOCS / "inventories.py"))["PROJECTS"]
LINKED = [name for _, names in PROJECTS.values() for name in names]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what Ax imports
@pytest.mark.parametrize("name", LINKED)
def test_names_of_other_projects_are_where_python_defines_them(name):
    module, _, name = name.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    assert (thing.__module__, thing.__qualname__) == (module, name)


def test_the_reference_has_every_package():
    package = DOCS.parent / "botorch_bkb"
    names = {path.parent.name for path in package.glob("*/__init__.py")} | {
        "plotting",
        "desirability",
    }
    listed = (DOCS / "api.rst").read_text().split()
    assert {word for word in listed if word.startswith("botorch_bkb.")} == {
        f"botorch_bkb.{name}" for name in names
    }


def test_files_and_modules_that_pages_name_exist():
    root = DOCS.parent
    text = "".join(path.read_text() for path in [CONTRIBUTING, *DOCS.rglob("*.rst")])
    files = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text))
    files |= set(re.findall(r"(tests/[a-z_/]+\.py)", text))
    assert len(files) > 20
    for file in files:
        assert (root / file).is_file() or (root / "botorch_bkb" / file).is_file(), file
    mathematics = (DOCS / "mathematics.rst").read_text()
    for module in re.findall(r"``([a-z_]+\.[a-z_.]+)``", mathematics):
        importlib.import_module(f"botorch_bkb.{module}")


def test_pages_for_tables_name_options_that_exist():
    pages = [DOCS / "tables.rst", *(DOCS / "guides").glob("*.rst")]
    named = set(re.findall(r"``(--[a-z-]+)", "".join(map(Path.read_text, pages))))
    (commands,) = build_parser()._subparsers._group_actions
    known = commands.choices["suggest"]._option_string_actions
    assert len(named) > 20
    assert named <= {*known}


def code_of(path):
    """Return the Python blocks of a page, without their indentation."""
    block = r"\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)"
    if path.suffix == ".md":
        block = r"```python\n((?:.*\n)*?)```"
    return [textwrap.dedent(code) for code in re.findall(block, path.read_text())]


WRITTEN = [
    README,
    *sorted(DOCS.glob("*.rst")),
    *sorted((DOCS / "guides").glob("*.rst")),
]
PAGES = [path for path in WRITTEN if code_of(path)]
GUIDES = runpy.run_path(str(DOCS / "run_guides.py"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what Ax imports
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with torch.random.fork_rng():
        for block in code_of(path):
            exec(compile(block, path.name, "exec"), names)
    if path == README:
        assert names["mean_reward"][names["best"]] > names["mean_reward"].max() - 0.1


@pytest.mark.parametrize("page", GUIDES["PAGES"], ids=lambda page: page.stem)
def test_guides_show_what_their_commands_print(page, tmp_path):
    done = GUIDES["run"](page, tmp_path / page.stem)
    assert len(done) > 0
    for step, printed in done:
        if step.output is not None:
            shown = step.output.read_text()
            assert in_words(printed) == in_words(shown), (
                f"{step.command} prints something else: python docs/run_guides.py "
                f"{page.stem} writes it to {step.output.name}"
            )


def in_words(text):
    """Return a text up to the table of the batch, without numbers."""
    text = text.partition("to measure next")[0]
    text = re.sub(r"fingerprints-\w+", "fingerprints", text)
    return re.sub(r"-?\d[\d.,]*", "0", text).split()
