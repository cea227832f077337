"""`addnorm embed`: compute an embedding vector for each line, or each image or sound file."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files, media_files
from addnorm.cli.main import NewFile
from addnorm.cli.plot import check_ending
from addnorm.cli.where import ANYWHERE, GROUP, Imports, Where, import_named, working
from addnorm.errors import InputError
from addnorm.runs.options import PoolingOptions, PromptNameOptions

if TYPE_CHECKING:
    from torch import Tensor

    from addnorm.runs.run import Run

FORMS = (".npy", ".safetensors", ".jsonl")
AS_LEARNT: PoolingOptions = {}
ANY_PROMPT: PromptNameOptions = {}


def embed(
    run: Path,
    *files: Files,
    out: Annotated[NewFile | None, Parameter(show_default=False)] = None,
    how: Annotated[PoolingOptions, GROUP] = AS_LEARNT,
    prompt: Annotated[PromptNameOptions, GROUP] = ANY_PROMPT,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Write a vector for each line: as JSON lines, or into a file of numbers.

    Reads the files, or standard input. A folder of sentence-transformers says itself, in
    `modules.json`, how hidden states become a vector; of others it is their mean.

    A model of images or sound reads files, as in `addnorm embed runs/digits 7.png`, and writes a
    vector for each, in the order of the files. A model of pictures and texts, such as CLIP, reads
    either: PNG and JPEG as pictures, and other files as lines of text, in one space.
    Example: `addnorm embed minilm/ texts.txt --out vectors.npy`.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input. Or image or sound files.
    out
        Where to write, instead of standard output: `.npy`, `.safetensors` (as `vectors`) or
        `.jsonl`.
    """
    check_files(files)
    if out is not None:
        check_ending(out, "--out", FORMS)
    import_named(imports)
    opened = where.open(run)
    pictures = opened.reads_files and not (opened.compares and _are_texts(files))
    if opened.reads_files and prompt:
        raise InputError(f"{run}: it reads image or sound files: leave out --prompt-name")
    import torch

    def answer(first: int, group: list[str]) -> list[torch.Tensor]:
        return [*opened.embed(group, first=first, **how, **prompt).cpu()]

    answers = (
        _of_files(opened, files, how, reading)
        if pictures
        else (vector for _, vector in Lines(files, reading).answers(answer))
    )
    if out is None:
        for vector in answers:
            print(json.dumps(vector.tolist()), flush=True)
    else:
        with working("embedding"):
            vectors = [*answers]
        _write(out, torch.stack(vectors) if vectors else opened.embed([], **how, **prompt).cpu())


def _are_texts(files: Sequence[Path]) -> bool:
    """Whether the files hold lines of text. Raises `InputError` for pictures among them."""
    from addnorm.data import ImageFilesConfig

    pictures = [file for file in files if file.suffix.lower() in ImageFilesConfig.suffixes]
    if pictures and len(pictures) < len(files):
        other = next(file for file in files if file not in pictures)
        raise InputError(f"{pictures[0]} is a picture, and {other} is not: give one kind")
    return not pictures


def _of_files(
    opened: "Run", files: Sequence[Path], how: PoolingOptions, reading: Reading
) -> "Iterator[Tensor]":
    """Yield the vector of each image or clip; unreadable files are reported and counted."""
    paths, skipped = media_files(files, reading)
    with skipped:
        for _, vector in opened.embed_files(paths, skipped=skipped, **how):
            yield vector.cpu()


def _write(out: Path, vectors: "Tensor") -> None:
    import numpy

    from addnorm.atomic import atomic_file, make_folder, write_tensors

    make_folder(out.parent)
    with atomic_file(out) as partial:
        if out.suffix == ".npy":
            with partial.open("wb") as file:
                numpy.save(file, vectors.numpy(), allow_pickle=False)
        elif out.suffix == ".safetensors":
            write_tensors(partial, {"vectors": vectors})
        else:
            partial.write_text("".join(f"{json.dumps(row)}\n" for row in vectors.tolist()))
