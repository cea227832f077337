"""The task of a model, by its architecture and by custom heads."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.heads import ClassificationHeadConfig, PoolerHeadConfig, TaggingHeadConfig
from addnorm.runs.task import has_labels, task_of_model


@dataclass(frozen=True)
class Silent:
    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        return nn.Linear(d_model, n_outputs)


@dataclass(frozen=True)
class Tags(Silent):
    task: ClassVar[str] = "tagging"


@dataclass(frozen=True)
class Classes(Silent):
    task: str = "classification"


@dataclass(frozen=True)
class Words(Silent):
    task: ClassVar[str] = "language"


@dataclass(frozen=True)
class Misspelt(Silent):
    task: ClassVar[str] = "taging"


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (EncoderConfig(head=ClassificationHeadConfig()), "classification"),
        (EncoderConfig(head=ClassificationHeadConfig(problem="multi_label")), "multi_label"),
        (EncoderConfig(head=ClassificationHeadConfig(problem="regression")), "regression"),
        (EncoderConfig(head=TaggingHeadConfig()), "tagging"),
        (EncoderConfig(head=Tags()), "tagging"),
        (EncoderConfig(head=Classes()), "classification"),
        (DecoderConfig(), "language"),
        (DecoderConfig(head=Words()), "language"),
        (DecoderConfig(head=Silent()), "language"),
        (EncoderDecoderConfig(), "translation"),
        (EncoderDecoderConfig(head=Words()), "translation"),
    ],
)
def test_the_task_of_a_model(model: Any, task: str) -> None:
    assert task_of_model(model) == task
    assert has_labels(model) == (task not in ("language", "translation"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (EncoderConfig(head=Silent()), "does not say what it is for"),
        (EncoderConfig(head=Misspelt()), "Did you mean 'tagging'?"),
        (EncoderConfig(head=Words()), "has no task here"),
        (EncoderConfig(head=PoolerHeadConfig()), "has no task here"),
        (EncoderConfig(), "has no task here"),
        (DecoderConfig(head=Tags()), "is for tagging, and a model of kind 'decoder' writes tokens"),
    ],
)
def test_a_model_without_a_task(model: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected.replace("?", r"\?")):
        task_of_model(model)
