"""Exporting a model as one HTML file that runs it in a browser, without server or network."""

import gzip
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from addnorm.atomic import atomic_write
from addnorm.convert.exporters.onnx import export_onnx
from addnorm.errors import InputError
from addnorm.models import Model, ModelConfig
from addnorm.models.weights import n_bytes, weights_of

TEMPLATE = Path(__file__).with_name("page.html")
"""The page without a model, which `make page` builds from `page/`; a wheel has it."""

MARK = "<!--addnorm-->"
"""Where the page takes a model."""

LARGEST = 2**29
"""The most bytes of a model: browsers hold no longer string than its base64."""


def export_page(model: Model, config: ModelConfig, facts: Mapping[str, Any], out: Path) -> None:
    """Write a page with the graphs of `model` and the `facts` that its use needs.

    The files in it are gzipped, each in a script element in base64, which browsers do not run. The
    graphs are those of `export_onnx`, with the cross-attention of each token. Raises `InputError`
    as `export_onnx` does, for a model that is too large, and where the template is not built.
    """
    page = read_template()
    check_size(model)
    with TemporaryDirectory() as folder:
        graphs = export_onnx(model, config, Path(folder) / "graphs", attention=True)
        files = {graph.name: graph.read_bytes() for graph in graphs}
    files["facts"] = json.dumps(facts, ensure_ascii=False).encode()
    elements = (_element(name, content) for name, content in files.items())
    atomic_write(out, page.replace(MARK, "\n".join(elements), 1))


def read_template() -> str:
    """Read the page template, which has no model. Raises `InputError` where it is not built."""
    if not TEMPLATE.is_file():
        raise InputError(
            "the page for models is not built in this clone: run `make page`, which needs node and "
            "npm; a wheel of AddNorm has it"
        )
    text = TEMPLATE.read_text(encoding="utf-8")
    if text.count(MARK) != 1:
        raise InputError(f"{TEMPLATE} is damaged: build it again by `make page`")
    return text


def check_size(model: Model) -> None:
    """Raise `InputError` for a model too large for a page."""
    size = n_bytes(weights_of(model).values())
    if size > LARGEST:
        raise InputError(
            f"a page holds models of at most {LARGEST >> 20} MiB, and this one has {size >> 20}: "
            "export it to ONNX"
        )


ELEMENT = re.compile(r'<script type="text/plain" id="addnorm:([\w.]+)">([^<]*)</script>')


def _element(name: str, content: bytes) -> str:
    packed = b64encode(gzip.compress(content, mtime=0)).decode()
    return f'<script type="text/plain" id="addnorm:{name}">{packed}</script>'


def read_page(page: Path) -> dict[str, bytes]:
    """The files in a page, by name: its runtime, its graphs, and the facts in JSON."""
    elements = ELEMENT.findall(page.read_text(encoding="utf-8"))
    return {name: gzip.decompress(b64decode(data)) for name, data in elements}
