"""The pages of docs/: what they link to exists. `.ci/run` builds them, nit-picky."""

import importlib
import re
import runpy
import textwrap
from pathlib import Path

import pytest
import torch


DOCS = Path(__file__).parent.parent / "docs"
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
    names = {path.parent.name for path in package.glob("*/__init__.py")} | {"plotting"}
    listed = (DOCS / "api.rst").read_text().split()
    assert {word for word in listed if word.startswith("botorch_bkb.")} == {
        f"botorch_bkb.{name}" for name in names
    }


def code_of(page):
    """Return the Python blocks of a page, without their indentation."""
    text = (DOCS / f"{page}.rst").read_text()
    blocks = re.findall(r"\.\. code-block:: python\n\n((?: {3}.*\n|\n)+)", text)
    return [textwrap.dedent(block) for block in blocks]


PAGES = [path.stem for path in sorted(DOCS.glob("*.rst")) if code_of(path.stem)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what Ax imports
@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    with torch.random.fork_rng():
        for block in code_of(page):
            exec(compile(block, f"{page}.rst", "exec"), namespace)
