"""EuroBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_encoder
from tests.parity.families import check_refused, made

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
    "id2label": {0: "red", 1: "green", 2: "blue"},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 7,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-3,
        "classifier_pooling": "bos",
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "biases": {"attention_bias": True, "mlp_bias": True, "classifier_pooling": "mean"},
    "tied": {"tie_word_embeddings": True},
}
HEADS = {
    "Model": "last_hidden_state",
    "ForMaskedLM": "logits",
    "ForSequenceClassification": "logits",
    "ForTokenClassification": "logits",
}


def config(**changes: object) -> Any:
    return transformers.EuroBertConfig(**SMALL | changes)


@pytest.mark.long
@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(changes: dict[str, Any], ending: str, tmp_path: Path) -> None:
    check_encoder(f"EuroBert{ending}", config(**changes), tmp_path, pick=HEADS[ending])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"classifier_pooling": "max"}, "classifier_pooling = 'max' is not supported"),
        ({"hidden_act": "gulu"}, "Did you mean 'gelu'"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    made("EuroBertForSequenceClassification", config(), tmp_path)
    check_refused(tmp_path, changes, match)
