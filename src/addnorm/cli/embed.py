"""`addnorm embed`: a run gives the vector of each line."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.imports import Imports, import_named
from addnorm.cli.lines import Files, check_files, groups_from
from addnorm.errors import InputError, nearest

if TYPE_CHECKING:
    from torch import Tensor

FORMS = (".npy", ".safetensors", ".jsonl")


def embed(
    run: Path,
    *files: Files,
    out: Annotated[Path | None, Parameter(show_default=False)] = None,
    pooling: Literal["mean", "first", "last", "head"] | None = None,
    imports: Imports = (),
) -> None:
    """Write a vector for each line: as JSON lines, or into a file of numbers.

    Reads the files, or standard input. A folder of sentence-transformers says itself, in
    `modules.json`, how hidden states become a vector; of others it is their mean.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input.
    out
        Where to write, instead of standard output: `.npy`, `.safetensors` (as `vectors`) or
        `.jsonl`.
    pooling
        How hidden states become a vector, whatever the folder says.
    """
    import torch

    from addnorm.runs.run import Run
    from addnorm.runs.use import embed as embed_texts

    check_files(files, ["--out", "--pooling", "--import"])
    if out is not None and out.suffix not in FORMS:
        raise InputError(
            f"{out}: unknown form.{nearest(out.suffix, FORMS)} Valid: {', '.join(FORMS)}."
        )
    import_named(imports)
    opened = Run.open(run)
    found: list[torch.Tensor] = []
    for first, group in groups_from(files):
        vectors = embed_texts(opened, group, pooling, first=first).cpu()
        found.append(vectors)
        for row in [] if out is not None else vectors.tolist():
            print(json.dumps(row))
    if out is not None:
        _write(out, torch.cat(found) if found else torch.empty(0, opened.recipe.model.d_model))


def _write(out: Path, vectors: "Tensor") -> None:
    import numpy
    from safetensors.torch import save

    if out.suffix == ".npy":
        with out.open("wb") as file:
            numpy.save(file, vectors.numpy(), allow_pickle=False)
    elif out.suffix == ".safetensors":
        out.write_bytes(save({"vectors": vectors.contiguous()}))
    else:
        out.write_text("".join(f"{json.dumps(row)}\n" for row in vectors.tolist()))
