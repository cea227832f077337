"""`addnorm evaluate`: a run's scores on a split of its data, or on other files."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def evaluate(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    split: Literal["valid", "test"] = "test",
    predictions: Path | None = None,
) -> None:
    """Score a trained model and print the figures as JSON.

    Parameters
    ----------
    run
        The run folder.
    overrides
        Fields of its recipe to replace, such as `--eval.decoding.beams 5` or `--data.root DIR`.
    split
        Which part of the data to score.
    predictions
        A file to write what the model said to, one line an example.
    """
    from addnorm.cli.fields import fields_given
    from addnorm.runs.evaluation import evaluate_run
    from addnorm.runs.folder import Run

    opened = Run.open(run, fields_given(overrides))
    scores = evaluate_run(opened, split, predictions)
    print(json.dumps(scores, indent=1))
