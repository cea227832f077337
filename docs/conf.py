"""How the documentation is built: MyST pages, the furo theme, and pictures drawn by the code."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from pictures import draw_all  # noqa: E402

import addnorm  # noqa: E402

project = "AddNorm"
author = "AddNorm contributors"
copyright = "AddNorm contributors"
release = version = addnorm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"AddNorm {release}"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # torch tells every module how hooks work
autodoc_member_order = "bysource"
nitpicky = False

draw_all(HERE / "_pictures")
