"""Imports point one way, and importing the package loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import botorch_bkb


PACKAGE = Path(botorch_bkb.__file__).parent
# A layer may import itself and what stands to its right.
LAYERS = [
    {"cli", "__main__"},
    {"plotting", "test_functions", "bandits"},
    {"optim"},
    {"acquisition"},
    {"models"},
    {"_version"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    ours = {name for name in names if name.split(".")[0] == "botorch_bkb"}
    return {name.split(".")[1] for name in ours if "." in name}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.name))
def test_imports_point_down(path):
    layer = layer_of(path)
    if layer == "__init__":
        return  # the package itself exports from every layer
    allowed = {
        name
        for name, rank in RANK.items()
        if name == layer or rank > RANK[layer] or (rank == 1 and RANK[layer] == 0)
    }
    if layer in LAYERS[0]:
        allowed |= LAYERS[0]
    assert imported_layers(path.read_text()) <= allowed


def test_every_layer_is_known():
    assert {layer_of(path) for path in MODULES} - {"__init__"} == set(RANK)


def test_importing_the_package_loads_nothing_heavy():
    # Not what BoTorch loads: torch itself imports tqdm where it is installed.
    code = (
        "import sys, botorch, gpytorch; before = set(sys.modules); import botorch_bkb; "
        "print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert "botorch_bkb.bandits" in loaded
    heavy = {"pandas", "pyarrow", "matplotlib", "tqdm", "ax", "botorch_bkb.cli"}
    assert not loaded & heavy
