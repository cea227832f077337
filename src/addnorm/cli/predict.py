"""`addnorm predict`: the predictions of any other task, as JSON lines."""

import json
from pathlib import Path
from typing import Any

from addnorm.cli.lines import STRICT, Files, Lines, Reading, check_files
from addnorm.cli.where import ANYWHERE, Imports, Where, import_named
from addnorm.errors import InputError, TextError

TABLES = {".csv", ".tsv", ".parquet"}
"""The suffixes of files whose rows have columns."""


def predict(
    run: Path,
    *files: Files,
    reading: Reading = STRICT,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Predict for each row of a JSON Lines file or a table, whatever the task of the model.

    A row has the fields of an example without those that the model predicts, such as
    `{"question": "Who?", "context": "Ada did."}`. In a table they are columns. Rows are read as in
    training: under the names that `data.columns` of the run gives them, and other fields are
    ignored. Reads the files, or standard input. Writes a line of JSON for each row, in their order.
    Tasks that have a command of their own are used by that one.
    Example: `addnorm predict runs/my rows.jsonl --import my_task.py`.

    Parameters
    ----------
    run
        The run folder.
    files
        JSON Lines files, a row a line, or tables (`.csv`, `.tsv`, `.parquet`); `-` is standard
        input.
    """
    check_files(files)
    import_named(imports)
    opened = where.open(run)
    from addnorm.runs.inference.predictions import Row, as_json, row_of

    def rows(file: Path) -> Any:
        return opened.rows(file, reading.encoding) if TABLES & {*file.suffixes} else None

    def answer(first: int, group: list[Any]) -> list[Any]:
        read: list[Row] = [
            row_of(opened, _record(row, n), f"row {n}") if isinstance(row, str) else row
            for n, row in enumerate(group, first + 1)
        ]
        return opened.predict(read, first=first)

    for _, result in Lines(files, reading, rows).answers(answer):
        print(json.dumps(as_json(result), ensure_ascii=False), flush=True)


def _record(line: str, number: int) -> Any:
    """The fields in a line of JSON."""
    from addnorm.data.readers.tables import json_object

    try:
        return json_object(line.removeprefix("\ufeff"), f"row {number}")
    except InputError as error:
        raise TextError(str(error)) from error
