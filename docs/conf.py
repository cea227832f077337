"""How the documentation is built: MyST pages, furo, and what the code says and draws of itself.

English stands in the pages and in the code, Chinese in the catalogues: see translations.py.
"""

import sys
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from laboratory import write_claims  # noqa: E402
from manual import write_all  # noqa: E402
from notebooks import write_notebooks  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import addnorm  # noqa: E402
from addnorm.cli.main import app as commands  # noqa: E402

project = "AddNorm"
author = "AddNorm contributors"
copyright = "AddNorm contributors"
release = version = addnorm.__version__

extensions = [
    "chinese",
    "myst_parser",
    "signatures",
    "source_links",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
myst_heading_anchors = 4  # links to headings, as GitHub makes them
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
exclude_patterns = ["_build", "_reference"]
html_theme = "furo"
# MathJax goes with the pages, in one file that has its fonts in it: formulas need no network.
mathjax_path = "tex-svg-full.js"
html_static_path = [str(files("sphinx-mathjax-offline") / "static" / "mathjax" / mathjax_path)]
html_search_scorer = str(HERE / "search_ranks.js")
html_title = f"AddNorm {release}"
autodoc_typehints_format = "short"
python_display_short_literal_types = True
add_module_names = False
default_role = "code"  # docstrings write code as Markdown does
autodoc_inherit_docstrings = False  # torch tells every module how hooks work
autodoc_member_order = "bysource"
nitpicky = False

# The Chinese pages lie in zh-CN below the English ones, and each page links to its other self.
locale_dirs = ["locale"]
gettext_compact = False
gettext_location = False  # a line that moves changes no catalogue
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_generated)


def write_generated(app: Sphinx) -> None:
    """What the pages include: references, and pictures, which are the same in both languages."""
    write_all(HERE / "_reference", commands)
    if app.builder.name != "gettext":
        write_claims(HERE / "claims", app.config.language)
        write_notebooks(HERE / "notebooks", app.config.language)
    pictures = HERE / "_pictures"
    if app.builder.name != "gettext" and (app.config.language == "en" or not pictures.is_dir()):
        from pictures import draw_all

        draw_all(pictures)
