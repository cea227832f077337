"""Mistral against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.families import (
    changed,
    check_decoder,
    check_refused,
    made,
    small_config,
)

from addnorm.convert.folder import load

pytestmark = pytest.mark.parity

CONFIGS: dict[str, dict[str, Any]] = {
    "window": {"sliding_window": 5},
    "everything": {"sliding_window": None, "tie_word_embeddings": True},
    "odd": {
        "hidden_size": 21,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "num_hidden_layers": 3,
        "sliding_window": 3,
    },
}


def config(**changes: Any) -> transformers.MistralConfig:
    sizes = {"intermediate_size": 40, "num_key_value_heads": 2}
    return small_config("MistralConfig", **sizes | changes)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    n = 64 if changes == CONFIGS["window"] else 16
    check_decoder("MistralForCausalLM", config(**changes), tmp_path, lengths=(12, 9), n=n)


def test_missing_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    """A window of 4,096 and 8 key/value heads; null is no window, and as many as queries."""
    made("MistralForCausalLM", config(num_attention_heads=8, num_key_value_heads=8), tmp_path)
    changed(tmp_path, {}, without=("sliding_window", "num_key_value_heads"))
    model = load(tmp_path).spec.model
    assert model.attention.n_kv_heads == 8
    assert model.attention.pattern.size == 4096
    changed(tmp_path, {"sliding_window": None, "num_key_value_heads": None})
    model = load(tmp_path).spec.model
    assert model.attention.n_kv_heads == 8
    assert model.attention.pattern.kind == "full"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sliding_window": 0}, "sliding_window = 0 must be from 1"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types = .* is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("MistralForCausalLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)
