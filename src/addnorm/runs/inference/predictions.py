"""Predictions for new examples, for any task, through the task's own methods."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, cast

import torch
from torch import Tensor

from addnorm.data import RecordsConfig
from addnorm.data.batches.batch import Batch, inputs_of
from addnorm.data.example import fields_of, is_needed
from addnorm.data.examples import Example
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.layout import Padding
from addnorm.data.readers.tables import cell_of, records_of
from addnorm.data.readers.text_files import find
from addnorm.errors import InputError, TextError
from addnorm.models.encoder import valid_outputs
from addnorm.runs.inference.shortening import check_lengths, examples_as_shortened
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.registry import wrong_task

Row = Mapping[str, Any]
"""The fields of an example without its targets, such as those of a line of JSON."""


def predict_rows(
    run: TrainedModel, rows: Sequence[Row | Example], batch_size: int = 64, first: int = 0
) -> list[Any]:
    """The predictions for the rows; `first` is the number of rows before these.

    Raises `InputError` if the task has a command of its own for that, and `TextError` for a row of
    other fields, one that training would leave out, such as an empty text, or one that is too long.
    """
    kind = _kind(run)
    examples = [_example(kind, row, first + n) for n, row in enumerate(rows, 1)]
    return [*predicted(run, examples, batch_size, first)]


def _kind(run: TrainedModel) -> type[Example]:
    """The class of examples to predict for. Raises `InputError` if the task has none."""
    kind = next((kind for kind in run.task_value.examples if kind.may_lack_targets()), None)
    if kind is None:
        raise wrong_task(run, "does not predict for rows")
    return kind


def rows_of(
    run: TrainedModel, file: Path, encoding: str = "utf-8"
) -> Iterator[tuple[str, Row | InputError]]:
    """The rows of a table to predict for, with their places; other columns are ignored.

    In place of a row that lacks an input is its error. Raises `InputError` for a damaged table.
    """
    for where, record in records_of(find(file, Path()), encoding):
        try:
            yield where, row_of(run, record or {}, where)
        except TextError as error:
            yield where, error


def row_of(run: TrainedModel, record: Mapping[str, object], where: str) -> Row:
    """The inputs in one record of a file, read as in training; other columns are ignored.

    Columns have the names of the fields, or those of the run's own records. Raises `TextError` for
    a column that is missing.
    """
    kind, data = _kind(run), run.recipe.data
    names = data.columns if isinstance(data, RecordsConfig) else {}
    needed = {field.name for field in fields_of(kind) if is_needed(field)}
    columns = {name: names.get(name, name) for name in kind.inputs()}
    try:
        return {
            name: cell_of(record, column, where)
            for name, column in columns.items()
            if name in needed or column in record or column.partition(".")[0] in record
        }
    except InputError as error:
        raise TextError(str(error)) from error


def _example(kind: type[Example], row: object, number: int) -> Example:
    """The example built from a row.

    Raises `TextError` for other fields, and where it lacks an input.
    """
    if isinstance(row, Example):
        example = row
    elif isinstance(row, Mapping):
        try:
            example = kind.to_predict(cast(Row, row))
        except InputError as error:
            raise TextError(f"row {number}: {error}") from error
    else:
        raise TextError(f"row {number}: not an object with the fields of {kind.__name__}")
    if lack := example.lack():
        raise TextError(f"row {number}: {lack}")
    return example


def predicted(
    run: TrainedModel, examples: Sequence[Example], batch_size: int = 64, first: int = 0
) -> Iterator[Any]:
    """Yield the prediction for each example, in their order."""
    task, model = run.task_value, run.model
    numbers = {label: n for n, label in enumerate(run.labels)}
    for start in range(0, len(examples), batch_size):
        group = examples[start : start + batch_size]
        encoded = [*task.encoded(group, run.text, numbers)]
        inputs = {name: x.to(run.device) for name, x in _inputs(run, encoded, first + start)}
        indices = [example.index for example in encoded]
        batch = Batch(inputs, torch.empty(0, device=run.device), 0, indices)
        with torch.inference_mode():
            logits, valid = model(**inputs), valid_outputs(model, inputs)
            answers = task.answers_of_each(model.head, logits, batch, valid)
        for i, example in enumerate(group):
            yield task.result(answers[i], example, run.text, run.labels)


def input_ids(run: TrainedModel, text: str) -> list[int]:
    """The ids of a text as the run's task encodes it in an example.

    Raises `InputError` for a task whose examples need another input too.
    """
    kind = _kind(run)
    needed = [field.name for field in fields_of(kind) if is_needed(field)]
    if len(needed) != 1:
        raise InputError(
            f"{run.name}: a text alone is not an example of {run.task}: {kind.__name__} needs "
            f"{' and '.join(needed)}"
        )
    numbers = {label: n for n, label in enumerate(run.labels)}
    encoded = run.task_value.encoded([kind.to_predict({needed[0]: text})], run.text, numbers)
    [example] = examples_as_shortened(run, [*encoded])
    return [*example.tokens]


def ids_by_task(run: TrainedModel, texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """The ids of texts as `input_ids` has them; a text may be given by its ids."""
    start = [run.tokenizers.source.bos_id]
    return [input_ids(run, text) if isinstance(text, str) else [*text] or start for text in texts]


def _inputs(
    run: TrainedModel, encoded: Sequence[Encoded], first: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's arguments for each batch."""
    signals = [example.signal for example in encoded if example.signal is not None]
    if signals:
        assert run.medium is not None
        yield from inputs_of(run.medium, signals).items()
        return
    encoded = examples_as_shortened(run, encoded)
    check_lengths(run.model, [example.tokens for example in encoded], first)
    padding = Padding(pad_id=run.tokenizers.source.pad_id)
    yield from run.task_value.layout.inputs(encoded, padding).items()


def as_json(result: Any) -> dict[str, Any]:
    """Return a result as a dictionary for one line of JSON.

    Raises `InputError` for one that is none.
    """
    if is_dataclass(result) and not isinstance(result, type):
        fields = asdict(result)
    else:
        fields = dict(cast(Row, result)) if isinstance(result, Mapping) else {"prediction": result}
    try:
        json.dumps(fields)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the result {short(result)} cannot be written as JSON: let result() of its task "
            "return numbers, texts, or a dataclass or mapping of them"
        ) from error
    return fields
