"""Sphinx builds guide and API reference from these pages and docstrings."""

import importlib
import inspect
import pkgutil
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from docutils.nodes import Element, TextElement
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import botorch_bkb


sys.path.insert(0, str(Path(__file__).parent))

from inventories import write_inventories


warnings.simplefilter("ignore")  # what Ax imports

DOCS = Path(__file__).parent
project = "botorch_bkb"
version = release = botorch_bkb.__version__
copyright = "the authors of botorch_bkb"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "options",
]
# Notebooks are shown with their stored outputs.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
smartquotes = False  # options keep their two hyphens
html_title = f"{project} {version}"
templates_path = ["_templates"]


def public_names(module: str) -> list[str]:
    """Return the public classes and functions that a module defines."""
    names = vars(importlib.import_module(module)).items()
    return [
        name
        for name, thing in names
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and (thing.__module__, thing.__name__) == (module, name)
    ]


autosummary_generate = True
autosummary_imported_members = True
# The summaries at the head of the modules' pages. Modules of `utils` have none: their
# first lines have formulas, which Sphinx would cut.
modules = pkgutil.walk_packages(botorch_bkb.__path__, "botorch_bkb.")
defined = {
    module.name: public_names(module.name)
    for module in modules
    if not module.ispkg and ".utils" not in module.name and "__" not in module.name
}
autosummary_context = {"defined": defined}
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_inventories = tempfile.TemporaryDirectory()
# BoTorch's word for "not given"; private, so no page of theirs has it.
nitpick_ignore = [("py:class", "_DefaultType")]
# The kind of shards, a type variable.
nitpick_ignore += [("py:class", "S"), ("py:class", "Args")]
nitpick_ignore += [
    (role, "botorch_bkb.posteriors.shards.S") for role in ("py:class", "py:obj")
]
# Private bases have no entry of their own.
# A base class is named by its module, which the pages of GPyTorch and Ax do not have.
nitpick_ignore += [
    ("py:class", "gpytorch.likelihoods.gaussian_likelihood.GaussianLikelihood"),
    ("py:class", "ax.adapter.base.Adapter"),
    ("py:class", "gpytorch.kernels.matern_kernel.MaternKernel"),
    ("py:class", "botorch.models.kernels.categorical.CategoricalKernel"),
]
# Names of types.
nitpick_ignore += [
    ("py:class", "LookUp"),
    ("py:class", "ComponentKind"),
    ("py:class", "LogNormalPrior"),
]
nitpick_ignore_regex = [("py:class", r"botorch_bkb\..*\._\w+")]
intersphinx_mapping = write_inventories(Path(_inventories.name))


# Imported for type checkers only, which is too late to ask Python.
TYPES = {
    "Axes": "matplotlib.axes",
    "Client": "ax.api.client",
    "Figure": "matplotlib.figure",
    "pd": "pandas",
}


def use_defined_name(
    app: Sphinx, env: BuildEnvironment, node: Element, contnode: TextElement
) -> Element | None:
    """Look a Python name up where it was defined.

    Docstrings say `InputDataError` or `botorch_bkb.BBKB`, as code does; pages and
    inventories list things by the module that defines them. Python knows which.
    """
    if node.get("refdomain") != "py":
        return None
    name = defined_name(node["reftarget"], node.get("py:module"))
    if name is None:
        return None
    node["reftarget"] = name  # where intersphinx looks next
    role = node["reftype"]
    domain = env.domains.python_domain
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, role, name, node, contnode
    )


def defined_name(target: str, module: str | None) -> str | None:
    """Return `module.qualname` of what a name means in a module, None if nothing."""
    parts = target.split(".")
    places = [] if module is None else [(module, parts)]
    places += [(".".join(parts[:end]), parts[end:]) for end in range(len(parts), 0, -1)]
    # What a function raises may be raised for it, by a module that imports the error.
    places.append(("botorch.exceptions.errors", parts))
    if parts[0] in TYPES:
        is_module = parts[0].islower()
        places.append((TYPES[parts[0]], parts[1:] if is_module else parts))
    for place, path in places:
        try:
            thing: Any = importlib.import_module(place)
            for part in path:
                thing = getattr(thing, part)
        except (ImportError, AttributeError):
            continue
        if isinstance(thing, property):
            thing = thing.fget
        qualname = getattr(thing, "__qualname__", None)
        if qualname is None:  # a module, or a value that does not know its name
            return getattr(thing, "__name__", None)
        return f"{thing.__module__}.{qualname}"
    return None


def copy_notebooks() -> None:
    """Copy the tutorials beside the pages, into a folder that git ignores."""
    folder = DOCS / "tutorials"
    folder.mkdir(exist_ok=True)
    for notebook in (DOCS.parent / "tutorials").glob("*.ipynb"):
        shutil.copy(notebook, folder)


copy_notebooks()


def setup(app: Sphinx) -> None:
    """Connect what is above; before intersphinx, whose priority is 500."""
    app.connect("missing-reference", use_defined_name, priority=400)
