"""Decoders that classify: their class, their labels, and what they have instead of a vocabulary."""

from typing import Any

import pytest

from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import read_config
from addnorm.convert.registry import family_of
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
}


def read(model_type: str, kind: str, **keys: Any) -> Any:
    settings = Settings({"model_type": model_type, "architectures": [kind], **SIZES, **keys})
    return read_config(family_of(settings), settings)


@pytest.mark.parametrize(
    ("n", "problem"), [(1, "regression"), (3, "single_label")], ids=["a number", "a class"]
)
def test_a_text_has_the_class_of_its_last_token(n: int, problem: Any) -> None:
    spec = read("qwen2", "Qwen2ForSequenceClassification", num_labels=n, pad_token_id=0)
    assert isinstance(spec.model, EncoderConfig)
    assert spec.model.causal
    assert spec.model.head == ClassificationHeadConfig(
        problem=problem, pooling="last", out_bias=False
    )
    assert spec.labels == tuple(f"LABEL_{i}" for i in range(n))
    assert spec.pad_id == 0


def test_tags_have_the_rate_of_dropout_that_transformers_takes() -> None:
    kind = "LlamaForTokenClassification"
    assert read("llama", kind).model.head == TaggingHeadConfig(dropout=0.1)
    assert read("llama", kind, hidden_dropout=0.3).model.head.dropout == 0.3
    both = {"classifier_dropout": 0.2, "hidden_dropout": 0.3}
    assert read("llama", kind, **both).model.head.dropout == 0.2


def test_the_class_that_writes_is_read_as_before() -> None:
    assert isinstance(read("llama", "LlamaForCausalLM").model, DecoderConfig)


@pytest.mark.parametrize(
    ("model_type", "kind", "expected"),
    [
        ("llama", "LlamaForQuestionAnswering", "a head for spans of answers"),
        ("llama", "QwenForSequenceClassification", "Valid: LlamaForSequenceClassification"),
        ("granite", "GraniteForSequenceClassification", "a head that classifies texts"),
        ("apertus", "ApertusForSequenceClassification", "a head that classifies texts"),
    ],
)
def test_a_class_that_there_is_not_is_named(model_type: str, kind: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read(model_type, kind)
