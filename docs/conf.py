"""Sphinx configuration: make docs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the extension api_pages

import midge  # noqa: E402

project = "midge"
author = "The midge authors"
copyright = "2026, The midge authors"
version = release = midge.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
extensions += ["myst_parser", "api_pages"]
exclude_patterns = ["_build"]

default_role = "py:obj"  # `name` in a docstring links to the name if it is a public one
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    # Members that a class has from our interfaces are shown; those of these classes are not.
    "inherited-members": "Module, ABC, Protocol, tuple, Exception, object",
}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"midge {release}"
