"""The pages of docs/: what they link to exists. `.ci/run` builds them, nit-picky."""

import importlib.util
from pathlib import Path

import pytest


DOCS = Path(__file__).parent.parent / "docs"
spec = importlib.util.spec_from_file_location("inventories", DOCS / "inventories.py")
inventories = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inventories)
LINKED = [name for _, names in inventories.PROJECTS.values() for name in names]


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
