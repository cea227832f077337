"""`addnorm classify`: predict the class of each line, or the tag of each word."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from addnorm.cli.imports import Imports, import_named
from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files, media_files, pair_of
from addnorm.cli.where import ANYWHERE, Where
from addnorm.errors import InputError

if TYPE_CHECKING:
    from addnorm.runs.run import Run


def classify(
    run: Path,
    *files: Files,
    pairs: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    threshold: float = 0.5,
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
    threshold
        The probability above which a line has a label, where it may have several.
    json_lines
        Write JSON lines: the label and the probability of every class, or the words and the tags,
        or the numbers.
    """
    check_files(files)
    import_named(imports)
    opened = where.open(run)
    from addnorm.data.tokenizing.word_splitting import words_between_spaces
    from addnorm.runs.inference.media import reads_files
    from addnorm.runs.inference.series import reads_tables
    from addnorm.tasks.regression import numbers_line

    if reads_files(opened) or reads_tables(opened):
        if pairs:
            raise InputError(f"{run}: it reads one file at a time: leave out --pairs")
        answer_files = _classify_files if reads_files(opened) else _answer_tables
        answer_files(opened, files, reading, json_lines=json_lines)
        return

    def answer(first: int, lines: list[str]) -> list[tuple[str, dict[str, Any]]]:
        group = [pair_of(line, n) for n, line in enumerate(lines, first + 1)] if pairs else lines
        if opened.task == "tagging":
            if pairs:
                raise InputError(f"{run}: a tagging model reads one sentence: leave out --pairs")
            sentences = [words_between_spaces(line) for line in lines]
            both = zip(sentences, opened.tag(tuple(sentences), first=first), strict=True)
            return [(" ".join(tags), {"tokens": words, "tags": tags}) for words, tags in both]
        if opened.task == "regression":
            rows = opened.predict(group, first=first).tolist()
            return [(numbers_line(row), dict(zip(opened.labels, row, strict=True))) for row in rows]
        found = opened.classify(group, first=first, threshold=threshold)
        return [(",".join(one.labels), asdict(one)) for one in found]

    for _, (plain, figures) in Lines(files, reading).answers(answer):
        print(json.dumps(figures, ensure_ascii=False) if json_lines else plain, flush=True)


def _classify_files(
    opened: "Run", files: tuple[Path, ...], reading: Reading, *, json_lines: bool
) -> None:
    from addnorm.runs.inference.media import classify_files

    paths, skipped = media_files(files, reading)
    with skipped:
        for file, one in classify_files(opened, paths, skipped=skipped):
            figures = json.dumps({"file": str(file), **asdict(one)}, ensure_ascii=False)
            print(figures if json_lines else f"{one.label}\t{file}", flush=True)


def _answer_tables(
    opened: "Run", files: tuple[Path, ...], reading: Reading, *, json_lines: bool
) -> None:
    from addnorm.runs.inference.series import answer_series
    from addnorm.tasks.regression import numbers_line

    paths, skipped = media_files(files, reading, "tables of series", "series or tables")
    with skipped:
        for one in answer_series(opened, paths, skipped=skipped):
            said = one.numbers if one.classified is None else asdict(one.classified)
            figures = {"file": str(one.file), "series": one.series, **said}
            numbers = numbers_line(one.numbers.values())
            plain = numbers if one.classified is None else one.classified.label
            line = json.dumps(figures, ensure_ascii=False)
            print(line if json_lines else f"{plain}\t{one.series}", flush=True)
