"""Sequence-level distillation: a teacher's translations of the training sources, as new targets."""

import json
from codecs import lookup
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from xxhash import xxh3_128_hexdigest

from addnorm.atomic import atomic_write
from addnorm.data import ParallelConfig
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.runs.files.digests import digest
from addnorm.runs.inference.text import write
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.of_model import wrong_task
from addnorm.tasks.translation import SequenceToSequence
from addnorm.training.progress import text_progress

FACTS, PARTIAL, WHOLE = "sequences.json", "sequences.partial.txt", "sequences.txt"
AT_ONCE = 64
"""Sentences between two writes: what a kill loses at most."""


def written_sequences(
    teacher: TrainedModel, recipe: Recipe, folder: Path, console: Console
) -> tuple[Path, Path]:
    """Write the teacher's translation of each training source, line by line; return both files.

    Kim & Rush 2016, §3.2, with the decoding of the teacher's recipe. Work that was stopped resumes.
    Raises `InputError` if the data are not parallel files, or if the folder holds the translations
    of another teacher or source.
    """
    data = recipe.data
    if not isinstance(data, ParallelConfig):
        raise InputError("`sequences` needs data.kind = 'parallel', a file of lines to translate")
    if not isinstance(teacher.task_value, SequenceToSequence):
        raise wrong_task(teacher, "does not translate, as `sequences` needs")
    _check_readable(data)
    sources = [line for _, line in data.lines(data.train[0])]  # which the teacher reads in its way
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder / FACTS, _facts(teacher, recipe, sources))
    whole, partial = folder / WHOLE, folder / PARTIAL
    if whole.is_file():
        return data.train[0], whole.absolute()
    done = _finished_lines(partial)
    with (
        partial.open("a", encoding="utf-8") as out,
        text_progress(console, "translating", len(sources)) as advance,
    ):
        advance(done)
        for first in range(done, len(sources), AT_ONCE):
            group = sources[first : first + AT_ONCE]
            results = write(teacher, group, teacher.recipe.eval.decoding, first=first)
            out.writelines(f"{best[0].text.replace(chr(10), ' ')}\n" for best in results)
            out.flush()
            advance(len(group))
    partial.replace(whole)
    return data.train[0], whole.absolute()


def _finished_lines(file: Path) -> int:
    """Cut an incomplete line off the end of a file, and return the number of lines."""
    if not file.exists():
        return 0
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    with file.open("r+b") as out:
        out.truncate(end)
    return content.count(b"\n")


def _check_readable(data: ParallelConfig) -> None:
    """Raise `InputError` if the student would not read the translations as they are written."""
    if lookup(data.encoding).name != "utf-8":
        raise InputError(
            f"`sequences` writes UTF-8, and data.encoding = {data.encoding!r}: convert the data's "
            "files to UTF-8"
        )
    if data.valid_fraction:
        raise InputError(
            f"data.valid_fraction = {data.valid_fraction}: with `sequences` it would hold out the "
            "teacher's translations, and no references: name the files in data.valid"
        )


def _facts(teacher: TrainedModel, recipe: Recipe, sources: Sequence[str]) -> dict[str, str]:
    assert isinstance(recipe.data, ParallelConfig)
    weights = [file for place in teacher.places for file in sorted(place.glob("*.safetensors"))]
    return {
        "teacher": " ".join(map(digest, weights)),
        "decoding": str(teacher.recipe.eval.decoding),
        "source": str(recipe.data.train[0]),
        "text of the source": xxh3_128_hexdigest("\n".join(sources).encode()),
    }


def _check_same(file: Path, facts: dict[str, str]) -> None:
    if not file.is_file():
        atomic_write(file, json.dumps(facts, indent=1))
        return
    # Earlier files lack the digest of the text.
    before = {"text of the source": facts["text of the source"]} | read_json(
        file, TypeAdapter(dict[str, str])
    )
    changed = [name for name, value in facts.items() if before.get(name) != value]
    if changed:
        raise InputError(
            f"{file.parent}: holds the sequences of another {changed[0]}: choose another `out`"
        )
