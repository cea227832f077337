"""`addnorm classify`: predict the class of each line, or the tag of each word."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files, media_files, pair_of
from addnorm.cli.where import ANYWHERE, GROUP, Imports, Where, import_named
from addnorm.errors import InputError
from addnorm.runs.options import EntityOptions, LabelOptions

if TYPE_CHECKING:
    from addnorm.runs.inference.results import LineAnswer
    from addnorm.runs.run import Run


ANY_LABELS: LabelOptions = {}
NO_ENTITIES: EntityOptions = {}

CHOOSE = ("labels", "hypothesis")
"""The options of labels that a model chooses between."""

Answer = tuple[str, dict[str, Any]]
"""The line for an input, and its figures for a line of JSON."""


def classify(
    run: Path,
    *files: Files,
    pairs: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    labels: Annotated[LabelOptions, GROUP] = ANY_LABELS,
    entities: Annotated[EntityOptions, GROUP] = NO_ENTITIES,
    json_lines: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Name the class of each line; with a tagging model, the tag of each word between spaces.

    A model for several labels names those of each line, with commas between, or none; a regression
    model writes its numbers. With `--aggregation`, a tagging model writes the entities of each line
    in place of its tags, as `label: text` with commas between. Reads the files, or standard input.
    Writes one line for each line read, in their order: an empty line has a class like any other,
    and no tags.

    A model of images or sound classifies files, as in `addnorm classify runs/digits 7.png`, and
    writes the class of each before its name: a PNG or JPEG is brought to the size of its training
    data, a WAV or FLAC to their rate. A model that compares pictures with texts, such as CLIP,
    chooses between the classes of `--labels`.

    A model of whole series takes tables with the columns of its training data, of which that of the
    answer may be missing, and writes the class or the number of each series before its name.

    A cross-encoder, or a model of what follows from what, reads two texts together: `--pairs`
    takes them from each line, a tab between them, such as a question and an answer. A model of what
    follows from what also chooses between `--labels` that it has not learnt.
    Example: `addnorm classify runs/my reviews.txt --json`.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input. Or image or sound files, or tables of
        series.
    pairs
        Each line is two texts with a tab between them, read together.
    json_lines
        Write JSON lines: the label and the probability of every class, or the words and the tags,
        or the entities with their places, or the numbers.
    """
    check_files(files)
    import_named(imports)
    opened = where.open(run)

    def answer(first: int, lines: list[str]) -> "list[LineAnswer]":
        group = [pair_of(line, n) for n, line in enumerate(lines, first + 1)] if pairs else lines
        return opened.classify_lines(group, first=first, **labels, **entities)

    if opened.reads_files or opened.reads_tables:
        chosen = {} if opened.reads_files else {name: labels.get(name) for name in CHOOSE}
        _check_files(run, {"pairs": pairs, **chosen, **entities})
    if opened.reads_files:
        answers = _of_files(opened, files, labels, reading)
    elif opened.reads_tables:
        answers = _of_tables(opened, files, reading)
    else:
        lines = Lines(files, reading).answers(answer)
        answers = ((row.plain, row.fields) for _, row in lines)
    for plain, figures in answers:
        print(json.dumps(figures, ensure_ascii=False) if json_lines else plain, flush=True)


def _check_files(run: Path, given: Mapping[str, object]) -> None:
    """Raise `InputError` for options of text if the model reads files."""
    if wrong := [f"--{name}" for name, value in given.items() if value]:
        raise InputError(f"{run}: it reads one file at a time: leave out {', '.join(wrong)}")


def _of_files(
    opened: "Run", files: tuple[Path, ...], labels: LabelOptions, reading: Reading
) -> Iterator[Answer]:
    """Yield the class of each file with the file's name, as text and as JSON fields."""
    paths, skipped = media_files(files, reading)
    with skipped:
        for file, result in opened.classify_files(paths, skipped=skipped, **labels):
            yield f"{result.label}\t{file}", {"file": str(file), **asdict(result)}


def _of_tables(opened: "Run", files: tuple[Path, ...], reading: Reading) -> Iterator[Answer]:
    """Yield the class or numbers of each series with its name, as text and as JSON fields."""
    paths, skipped = media_files(files, reading, "tables of series", "series or tables")
    with skipped:
        for answer in opened.predict_series(paths, skipped=skipped):
            place = {"file": str(answer.file), "series": answer.series}
            yield f"{answer.plain}\t{answer.series}", place | answer.fields
