"""Tasks by name, ours and an installed package's, and the task of every kind of model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.commands import run_all
from torch import nn

from addnorm.data.batches.buckets import DenoisingConfig, MaskedConfig, TokensConfig, WindowsConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.nn.heads import ClassificationHeadConfig, PoolerHeadConfig, TaggingHeadConfig
from addnorm.tasks.registry import (
    TASKS,
    check_batching,
    has_labels,
    task_named,
    task_of_model,
    task_of_training,
)

RECIPE = """
[data]
kind = "counts"

[tokenizer]
kind = "char"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
attention = { n_heads = 2 }
head = "count"

[train]
steps = 3
batching = { kind = "tokens", tokens = 128 }
select = "best"
"""


def test_a_task_is_named_by_its_word() -> None:
    assert all(task_named(name) is task for name, task in TASKS.items())
    with pytest.raises(InputError, match="Did you mean 'tagging'"):
        task_named("taging")
    with pytest.raises(InputError, match="a task is a subclass"):
        task_named(3)


def install(folder: Path) -> None:
    """Lay out a package with a task, its head and its data in a folder on Python's path."""
    text = (Path(__file__).parent / "counting.py").read_text("utf-8")
    head, task = "    task = Counting\n", '    task = "word_counting"\n'
    assert head in text
    (folder / "their_counting.py").write_text(text.replace(head, task), encoding="utf-8")
    info = folder / "their_counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[addnorm.parts]\n"
        "count = their_counting:CountHeadConfig\n"
        "counts = their_counting:CountedConfig\n"
        "word_counting = their_counting:Counting\n"
    )


@pytest.mark.long
def test_a_task_of_an_installed_package_is_named_by_its_entry_points(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "count.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}', encoding="utf-8")
    use = ["predict", "run", "rows.jsonl"]
    imported = ("--import", "their_counting")
    done = run_all(
        [["train", "count.toml", "--out", "run"], ["info", "run", *imported], [*use, *imported]],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "counting" in done.stdout
    assert '{"words": ' in done.stdout.splitlines()[-1]
    unnamed = run_all([use], tmp_path)
    assert unnamed.returncode == 2
    assert "--import their_counting" in unnamed.stderr


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
