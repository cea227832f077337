"""The task of a model, by its architecture and by custom heads."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import nn

from addnorm.data.batches.buckets import DenoisingConfig, MaskedConfig, TokensConfig, WindowsConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.heads import ClassificationHeadConfig, PoolerHeadConfig, TaggingHeadConfig
from addnorm.tasks.of_model import check_batching, has_labels, task_of_model, task_of_training
from addnorm.tasks.registry import TASKS


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
        (EncoderConfig(), "masked_language"),
        (EncoderConfig(head=Classes()), "classification"),
        (DecoderConfig(), "language"),
        (DecoderConfig(head=Words()), "language"),
        (DecoderConfig(head=Silent()), "language"),
        (EncoderDecoderConfig(), "translation"),
        (EncoderDecoderConfig(head=Words()), "translation"),
    ],
)
def test_the_task_of_a_model(model: Any, task: str) -> None:
    assert task_of_model(model).name == task
    assert has_labels(model) == (task not in ("language", "translation", "masked_language"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (EncoderConfig(head=Silent()), "does not say what it is for"),
        (EncoderConfig(head=Misspelt()), "Did you mean 'tagging'?"),
        (EncoderConfig(head=Words()), "has no task here"),
        (EncoderConfig(head=PoolerHeadConfig()), "has no task here"),
        (DecoderConfig(head=Tags()), "is for tagging, and a model of kind 'decoder' writes tokens"),
    ],
)
def test_a_model_without_a_task(model: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected.replace("?", r"\?")):
        task_of_model(model)


def test_batches_that_damage_text_make_a_denoiser() -> None:
    assert task_of_training(EncoderDecoderConfig(), DenoisingConfig()).name == "denoising"
    assert task_of_training(EncoderDecoderConfig(), TokensConfig()).name == "translation"
    assert task_of_training(DecoderConfig(), DenoisingConfig()).name == "language"


@pytest.mark.parametrize(
    ("model", "batching", "expected"),
    [
        (EncoderConfig(), TokensConfig(), "'tokens' hides no tokens, .* give 'masked'"),
        (EncoderConfig(), DenoisingConfig(), "give 'masked'"),
        (DecoderConfig(), MaskedConfig(), "an encoder with .*; this model is for language"),
        (EncoderDecoderConfig(), MaskedConfig(), "this model is for translation"),
        (DecoderConfig(), DenoisingConfig(), "is for model.kind = 'encoder_decoder'"),
    ],
)
def test_batches_of_another_task(model: Any, batching: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check_batching(task_of_training(model, batching), batching)


def test_batches_of_the_task() -> None:
    check_batching(TASKS["masked_language"], MaskedConfig())
    check_batching(TASKS["denoising"], DenoisingConfig())
    check_batching(TASKS["language"], WindowsConfig())
