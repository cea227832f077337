"""The `[eval]` table."""

import pytest
from pydantic import ValidationError

from addnorm.errors import InputError
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.registry import TASKS


def test_every_task_has_a_metric() -> None:
    assert all(name == task.name for name, task in TASKS.items())
    assert TASKS["language"].metrics[0] == TASKS["translation"].metrics[0] == "loss"


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_a_metric_of_translations_needs_some(metric: str) -> None:
    assert EvalConfig(metric=metric, valid_examples=3).metric == metric
    EvalConfig(metric=metric, valid_examples=3).check_written()
    with pytest.raises(InputError, match=r"needs eval\.valid_examples"):
        EvalConfig(metric=metric).check_written()


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        EvalConfig(beams=3)
