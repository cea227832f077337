"""Run the notebooks of this folder and keep what they print: `python examples/notebooks/run.py`.

A notebook has the same cells of code in both languages, so the English one runs, in a folder of its
own, and the Chinese one gets its outputs. They have no path of the machine and no times.
"""

import copy
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
CHINESE = ".zh-CN.ipynb"


def english() -> list[Path]:
    """The notebooks in English."""
    return [file for file in sorted(FOLDER.glob("*.ipynb")) if not file.name.endswith(CHINESE)]


def in_chinese(file: Path) -> Path:
    """The same notebook in Chinese."""
    return file.with_name(file.stem + CHINESE)


def code(notebook: Any) -> list[Any]:
    """The cells of code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed(file: Path, folder: Path) -> Any:
    """Run a notebook in a folder; return it with its outputs. Raises what a cell raises."""
    notebook: Any = copy.deepcopy(nbformat.read(file, 4))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=resources, record_timing=False).execute()
    for cell in code(notebook):
        cell.outputs = joined(cell.outputs)
    notebook.metadata = nbformat.read(file, 4).metadata  # without the version of Python
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """The outputs with the pieces of a text in one, and without standard error, which has times."""
    merged: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if merged and output.output_type == merged[-1].output_type == "stream":
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def main() -> None:
    """Run all, or those that are named, and write them with their outputs."""
    names = sys.argv[1:]
    for file in english():
        if names and file.stem not in names:
            continue
        with TemporaryDirectory() as folder:
            os.environ["ADDNORM_CACHE"] = str(Path(folder) / "cache")
            notebook = executed(file, Path(folder))
        nbformat.write(notebook, file)
        chinese: Any = nbformat.read(in_chinese(file), 4)
        for theirs, ours in zip(code(chinese), code(notebook), strict=True):
            theirs.outputs, theirs.execution_count = ours.outputs, ours.execution_count
        nbformat.write(chinese, in_chinese(file))
        print(file.name)


if __name__ == "__main__":
    main()
