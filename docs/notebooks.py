"""The pages of the notebooks, words, code and outputs, in the language that is being built."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


def write_notebooks(folder: Path, language: str) -> None:
    """Write a page for each notebook, with its pictures, into `folder`."""
    ending = ".zh-CN.ipynb" if language == "zh_CN" else ".ipynb"
    folder.mkdir(exist_ok=True)
    for file in sorted(NOTEBOOKS.glob(f"*{ending}")):
        if file.name.endswith(".zh-CN.ipynb") == (language == "zh_CN"):
            name = file.name.removesuffix(ending)
            cells = json.loads(file.read_text("utf-8"))["cells"]
            lines = [
                line for n, cell in enumerate(cells) for line in cell_lines(cell, name, n, folder)
            ]
            (folder / f"{name}.md").write_text("\n".join(lines), "utf-8")


def cell_lines(cell: dict[str, Any], name: str, number: int, folder: Path) -> Iterator[str]:
    """A cell as Markdown: its words, or its code and what the code printed and returned."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield from (re.sub(r"(?:\.zh-CN)?\.ipynb\)", ".md)", source), "")
        return
    yield from block("python", source)
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield from block("text", "".join(output["text"]))
            continue
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        if "image/png" in data:
            picture = f"{name}-{number}.png"
            (folder / picture).write_bytes(base64.b64decode(data["image/png"]))
            yield from (f"![]({picture})", "")
        elif "text/html" in data:
            yield from block("{raw} html", data["text/html"])
        elif "text/plain" in data:
            yield from block("text", data["text/plain"])


def block(kind: str, text: str) -> Iterator[str]:
    """Text in a fence that is longer than any within it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    yield from (f"{fence}{kind}", text.rstrip("\n"), fence, "")
