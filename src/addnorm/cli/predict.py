"""`addnorm predict`: the predictions of any other task, as JSON lines."""

import json
from pathlib import Path
from typing import Any

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files
from addnorm.cli.where import ANYWHERE, Imports, Where, import_named
from addnorm.errors import TextError


def predict(
    run: Path,
    *files: Files,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Predict for each row of a JSON Lines file, whatever the task of the model.

    A row has the fields of an example without those that the model predicts, such as
    `{"question": "Who?", "context": "Ada did."}`. Reads the files, or standard input. Writes a line
    of JSON for each row, in their order. Tasks that have a command of their own are used by that
    one. Example: `addnorm predict runs/my rows.jsonl --import my_task.py`.

    Parameters
    ----------
    run
        The run folder.
    files
        JSON Lines files, a row a line; `-` is standard input.
    """
    check_files(files)
    import_named(imports)
    opened = where.open(run)
    from addnorm.runs.inference.predictions import as_json, predict_rows

    def answer(first: int, lines: list[str]) -> list[Any]:
        rows = [_row(line, n) for n, line in enumerate(lines, first + 1)]
        return predict_rows(opened, rows, first=first)

    for _, result in Lines(files, reading).answers(answer):
        print(json.dumps(as_json(result), ensure_ascii=False), flush=True)


def _row(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TextError(f"row {number}: not JSON: {error}") from error
