"""Links from the source of a class back to its page: to where the page names it.

`viewcode` takes the module under which the first object of a file is documented for all of them,
but most have the short name of `addnorm`, and some that of their file.
"""

import re
from typing import Any

from sphinx.application import Sphinx

BACK = re.compile(r'(<a class="viewcode-back" href=")([^"#]*)#([^"]*)(">)')


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.setup_extension("sphinx.ext.viewcode")
    app.connect("html-page-context", mend)


def mend(app: Sphinx, pagename: str, template: str, context: dict[str, Any], _: Any) -> None:
    """Put the right anchors into the links of a page of source."""
    if not pagename.startswith("_modules/") or "body" not in context:
        return
    objects = app.env.domains.python_domain.objects
    places: dict[str, list[tuple[str, str]]] = {}
    for name, entry in objects.items():
        parts = name.split(".")
        for start in range(len(parts)):
            places.setdefault(".".join(parts[start:]), []).append((entry.docname, entry.node_id))

    def mended(link: re.Match[str]) -> str:
        begin, page, anchor, end = link.groups()
        found = place_of(places, page, anchor)
        return f"{begin}{page}#{found}{end}"

    context["body"] = BACK.sub(mended, context["body"])


def place_of(places: dict[str, list[tuple[str, str]]], page: str, anchor: str) -> str:
    """Return the anchor of an object on a page: its own, or that of the same name elsewhere."""
    words = anchor.split(".")
    for start in range(len(words)):
        for docname, node in places.get(".".join(words[start:]), ()):
            if page.endswith(f"{docname}.html"):
                return node
    return anchor
