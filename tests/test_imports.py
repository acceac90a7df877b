"""Imports point one way, and importing the package loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import botorch_bkb


PACKAGE = Path(botorch_bkb.__file__).parent
# A layer may import from its own row and from the rows below.
LAYERS = [
    {"integrations", "cli", "__main__"},
    {"plotting", "test_functions", "bandits", "desirability", "tables"},
    {"generation", "optim"},
    {"posteriors"},
    {"arms", "acquisition"},
    {"models"},
    {"checks", "_version"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = {
    path.relative_to(PACKAGE).as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"  # exports from every layer
}
HEAVY = ["pandas", "pyarrow", "matplotlib", "jinja2", "ax", "ray"]


def layer_of(module):
    return module.split("/")[0].removesuffix(".py")


def imported_layers(source):
    """Return the names after ``botorch_bkb.`` of all imports, late ones included."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("botorch_bkb.")}


def test_imports_point_down():
    for module, path in MODULES.items():
        rank = RANK[layer_of(module)]
        allowed = {name for name in RANK if RANK[name] >= rank}
        assert imported_layers(path.read_text()) <= allowed, module


def test_every_layer_is_known():
    assert {layer_of(module) for module in MODULES} == set(RANK)
    texts = (path.read_text() for path in MODULES.values())
    imported = set().union(*map(imported_layers, texts))
    assert imported >= set(RANK) - {"__main__"}


def test_importing_the_package_loads_nothing_heavy():
    """Where the extras are missing it imports all the same."""
    # Beyond what BoTorch loads.
    code = (
        "import sys, botorch, gpytorch; "
        "before = set(sys.modules); import botorch_bkb; "
        "print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert "botorch_bkb.bandits" in loaded
    assert not loaded & {*HEAVY, "botorch_bkb.cli", "botorch_bkb.plotting"}
