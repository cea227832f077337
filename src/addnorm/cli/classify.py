"""`addnorm classify`: predict the class of each line, or the tag of each word."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files, media_files, pair_of
from addnorm.cli.where import ANYWHERE, GROUP, Imports, Where, import_named
from addnorm.errors import InputError
from addnorm.runs.options import LabelOptions

if TYPE_CHECKING:
    from addnorm.runs.run import Run


ANY_LABELS: LabelOptions = {}

Answer = tuple[str, dict[str, Any]]
"""The line for an input, and its figures for a line of JSON."""


def classify(
    run: Path,
    *files: Files,
    pairs: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    labels: Annotated[LabelOptions, GROUP] = ANY_LABELS,
    json_lines: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Name the class of each line; with a tagging model, the tag of each word between spaces.

    A model for several labels names those of each line, with commas between, or none; a regression
    model writes its numbers. Reads the files, or standard input. Writes one line for each line
    read, in their order: an empty line has a class like any other, and no tags.

    A model of images or sound classifies files, as in `addnorm classify runs/digits 7.png`, and
    writes the class of each before its name: a PNG or JPEG is brought to the size of its training
    data, a WAV or FLAC to their rate.

    A model of whole series takes tables with the columns of its training data, of which that of the
    answer may be missing, and writes the class or the number of each series before its name.

    A cross-encoder, or a model of what follows from what, reads two texts together: `--pairs`
    takes them from each line, a tab between them, such as a question and an answer.
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
        or the numbers.
    """
    check_files(files)
    import_named(imports)
    opened = where.open(run)
    from addnorm.runs.inference.series import reads_tables

    def answer(first: int, lines: list[str]) -> list[Answer]:
        group = [pair_of(line, n) for n, line in enumerate(lines, first + 1)] if pairs else lines
        return _of_lines(opened, group, first, labels)

    if pairs and (opened.reads_files or reads_tables(opened)):
        raise InputError(f"{run}: it reads one file at a time: leave out --pairs")
    if opened.reads_files:
        answers = _of_files(opened, files, reading)
    elif reads_tables(opened):
        answers = _of_tables(opened, files, reading)
    else:
        answers = (row for _, row in Lines(files, reading).answers(answer))
    for plain, figures in answers:
        print(json.dumps(figures, ensure_ascii=False) if json_lines else plain, flush=True)


def _of_lines(
    opened: "Run", group: list[str] | list[tuple[str, str]], first: int, labels: LabelOptions
) -> list[Answer]:
    """The answer for each text or pair, `first` of which came before."""
    from addnorm.data.tokenizing.word_splitting import words_between_spaces
    from addnorm.tasks.regression import Regression, numbers_line
    from addnorm.tasks.tagging import Tagging

    if isinstance(opened.task_value, Tagging):
        texts = [text for text in group if isinstance(text, str)]
        if len(texts) < len(group):
            raise InputError(
                f"{opened.name}: a tagging model reads one sentence: leave out --pairs"
            )
        sentences = tuple(map(words_between_spaces, texts))
        tagged = zip(sentences, opened.tag(sentences, first=first), strict=True)
        return [(" ".join(tags), {"tokens": words, "tags": tags}) for words, tags in tagged]
    if isinstance(opened.task_value, Regression):
        rows = opened.predict(group, first=first).tolist()
        return [(numbers_line(row), dict(zip(opened.labels, row, strict=True))) for row in rows]
    results = opened.classify(group, first=first, **labels)
    return [(",".join(result.labels), asdict(result)) for result in results]


def _of_files(opened: "Run", files: tuple[Path, ...], reading: Reading) -> Iterator[Answer]:
    """The class of each file before its name, and as figures."""
    paths, skipped = media_files(files, reading)
    with skipped:
        for file, result in opened.classify_files(paths, skipped=skipped):
            yield f"{result.label}\t{file}", {"file": str(file), **asdict(result)}


def _of_tables(opened: "Run", files: tuple[Path, ...], reading: Reading) -> Iterator[Answer]:
    """The class or the numbers of each series before its name, and as figures."""
    from addnorm.tasks.regression import numbers_line

    paths, skipped = media_files(files, reading, "tables of series", "series or tables")
    with skipped:
        for answer in opened.predict_series(paths, skipped=skipped):
            classified = answer.classified
            if classified is None:
                plain, figures = numbers_line(answer.numbers.values()), answer.numbers
            else:
                plain, figures = classified.label, asdict(classified)
            place = {"file": str(answer.file), "series": answer.series}
            yield f"{plain}\t{answer.series}", place | figures
