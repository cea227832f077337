"""`addnorm classify`: a run names the class of each line, or the tag of each word."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def classify(
    run: Path,
    *files: Path,
    json_lines: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Name the class of each line; with a tagging model, the tag of each word between spaces.

    Reads the files, or standard input; writes a line for each line read.

    Parameters
    ----------
    run
        The run folder.
    files
        Text files, a line an input; `-` is standard input.
    json_lines
        Write JSON lines, with the probability of every class.
    """
    from addnorm.cli.lines import groups_from
    from addnorm.runs.folder import Run
    from addnorm.runs.use import classify as classify_texts
    from addnorm.runs.use import tag

    opened = Run.open(run)
    for group in groups_from(files):
        if opened.task == "tagging":
            for words, tags in zip(group, tag(opened, [line.split() for line in group]), strict=True):
                line = {"tokens": words.split(), "tags": tags}
                print(json.dumps(line, ensure_ascii=False) if json_lines else " ".join(tags))
        else:
            for one in classify_texts(opened, group):
                print(json.dumps(asdict(one), ensure_ascii=False) if json_lines else one.label)
