"""`addnorm evaluate`: evaluate a run on a split of its data, or on other files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.atomic import make_folder
from addnorm.cli.fields import fields_given
from addnorm.cli.lines import one_line
from addnorm.cli.main import NewFile
from addnorm.cli.plot import check_picture
from addnorm.cli.where import ALONE, Imports, InProcesses, import_named
from addnorm.errors import InputError, with_article
from addnorm.runs.options import Split, Weights

if TYPE_CHECKING:
    from addnorm.generate.early_exit import EarlyExit
    from addnorm.tasks.task import Task


def evaluate(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    split: Split | None = None,
    predictions: NewFile | None = None,
    confusion: NewFile | None = None,
    weights: Weights | None = None,
    early_exit: Annotated[str | None, Parameter(name="--exit")] = None,
    where: InProcesses = ALONE,
    imports: Imports = (),
) -> int | None:
    """Score a trained model and print the figures as JSON, with what they were measured with.

    Any field of its recipe can be given here, after the run: `--eval.decoding.beams 5`,
    `--data.root DIR`, `--data.test other.txt`.
    Example: `addnorm evaluate runs/my --split valid --predictions answers.txt`.

    Parameters
    ----------
    run
        The run folder.
    overrides
        Fields to replace, as `--table.field value`.
    split
        Which part of the data to score; by default test, or valid where the data have no test.
    predictions
        A file for the predictions of the model, one line an example.
    confusion
        A picture of the confusion matrix of a classifier to draw, .png, .svg or .pdf.
    weights
        Score the model with its weights in fewer bits.
    early_exit
        Leave at the first early exit that is sure: `entropy:0.3` for an entropy below 0.3 nats,
        `confidence:0.9` for two likeliest classes that are more than 0.9 apart. `--predictions`
        then has the layers of each example too, after a tab.
    """
    fields = fields_given(overrides)
    where.check_exit(early_exit)
    import_named(imports)
    if (status := where.started(run, weights)) is not None:
        return status
    from addnorm.cli.terminal import console

    with where.opened(run, fields, weights) as opened:
        _check(opened.task_value, predictions, confusion, fields)
        early = None if early_exit is None else opened.early_exit(early_exit)
        evaluation = opened.evaluation(split, console=console, early=early)
    if not where.leads:
        return None
    if early is not None:
        console.out(f"exits: {early}", highlight=False)
    if confusion is not None:
        from addnorm.inspect.predictions import confusion_picture

        title = f"{run.name}: {evaluation.scores['accuracy']:.1f} % of {evaluation.split} are right"
        pairs = [(gold, evaluation.predictions[i]) for i, gold in evaluation.gold.items()]
        confusion_picture(pairs, opened.labels, confusion, title)
    if predictions is not None:
        _write(evaluation.predictions, early, predictions)
    measured = {**evaluation.measured_with}
    more = {"measured_with": measured} if measured else {}
    print(json.dumps({"split": evaluation.split, **evaluation.scores, **more}, indent=1))
    return None


def _write(answers: Mapping[int, str], early: "EarlyExit | None", file: Path) -> None:
    """Write the prediction of each example, with the layers used if there are early exits."""
    depths = {} if early is None else early.depth_of
    ends = {i: f"\t{depth}" for i, depth in depths.items()}
    lines = (f"{one_line(y)}{ends.get(i, '')}\n" for i, y in answers.items())
    make_folder(file.parent)
    file.write_text("".join(lines), encoding="utf-8")


def _check(
    task: "Task",
    predictions: Path | None,
    confusion: Path | None,
    fields: Mapping[str, str],
) -> None:
    """Raise `InputError`, before the work, for a file or a field that this task does not use."""
    from addnorm.tasks.eval_config import WRITING

    for name in fields:
        if (
            name.startswith(tuple(f"eval.{field}" for field in WRITING))
            and not task.written_metrics
        ):
            raise InputError(
                f"--{name}: for generated texts, and the evaluation of {task.name} has none: "
                "leave it out"
            )
    if predictions is not None and not task.predicts_lines:
        raise InputError(
            f"{with_article(task.name)} model predicts no line for each example: leave "
            "--predictions out"
        )
    if confusion is not None:
        if not task.one_class:
            raise InputError(
                f"{with_article(task.name)} model has no classes to confuse: leave --confusion out"
            )
        check_picture(confusion, "--confusion")
