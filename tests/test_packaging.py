"""What is built and published: the wheel, and the versions of tools."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from botorch_bkb import __version__


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "botorch_bkb"
# The folders of a checkout that could be taken for packages.
OTHERS = ("tests", "benchmarks", "docs", "tutorials")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel of a copy of the checkout, by the setuptools that is installed."""
    checkout = tmp_path_factory.mktemp("checkout")
    rubbish = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.ipynb")
    for name in ("botorch_bkb", *OTHERS):
        shutil.copytree(ROOT / name, checkout / name, ignore=rubbish)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    command = [sys.executable, "-W", "ignore", "-c", build]
    result = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    (path,) = (checkout / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    package = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "py.typed", "cli/templates/*.html")
        for path in PACKAGE.rglob(pattern)
    }
    about = f"botorch_bkb-{__version__}.dist-info/"
    files = set(wheel.namelist())
    assert {name for name in files if not name.startswith(about)} == package
    assert {name.removeprefix(about) for name in files - package} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_the_wheel_says_what_it_needs(wheel):
    metadata = wheel.read(f"botorch_bkb-{__version__}.dist-info/METADATA").decode()
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert needed == [
        "botorch",
        "gpytorch",
        "linear_operator",
        "numpy",
        "torch",
        "tqdm",
    ]


def test_every_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {
        re.match(r"[\w-]+", requirement)[0]
        for requirement in sum(extras, project["dependencies"])
    }
    for name in wanted - {"botorch_bkb"}:
        assert re.search(
            rf"^{name}==", (ROOT / "constraints.txt").read_text(), re.I | re.M
        ), name
