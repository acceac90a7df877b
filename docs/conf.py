"""Sphinx builds the API reference from docstrings: see CONTRIBUTING."""

import warnings

from botorch_bkb import __version__


warnings.simplefilter("ignore")  # what Ax imports

project = "botorch_bkb"
version = release = __version__
copyright = "the authors of botorch_bkb"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "alabaster"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
