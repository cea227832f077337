"""Qwen 2 and 3 against transformers."""

from pathlib import Path
from typing import Any

import pytest
from tests.parity.families import (
    changed,
    check_decoder,
    check_refused,
    made,
    small_config,
)

from addnorm.convert.folder import load

pytestmark = pytest.mark.parity

WINDOW = {"use_sliding_window": True, "sliding_window": 5}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ODD = {"hidden_size": 21, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 6}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e6,
}
CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "2-plain": (2, {"tie_word_embeddings": True}),
    "2-upper-layers": (2, WINDOW | {"max_window_layers": 1}),
    "2-odd-mixed": (2, WINDOW | ODD | {"layer_types": MIXED, "num_hidden_layers": 3}),
    "3-plain": (3, {"head_dim": 8, "rope_parameters": YARN}),
    "3-odd-bias": (3, ODD | WINDOW | {"attention_bias": True, "max_window_layers": 0}),
}


def config(number: int, **changes: Any) -> Any:
    sizes = {"intermediate_size": 40, "num_key_value_heads": 2}
    return small_config(f"Qwen{number}Config", **sizes | changes)


@pytest.mark.parametrize(("number", "changes"), CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(number: int, changes: dict[str, Any], tmp_path: Path) -> None:
    kind, n = f"Qwen{number}ForCausalLM", 64 if "tie_word_embeddings" in changes else 16
    check_decoder(kind, config(number, **changes), tmp_path, lengths=(12, 9), n=n)


def test_the_older_keys(tmp_path: Path) -> None:
    """Windows by the number of the layer alone, and `rope_theta` by itself."""
    changes = WINDOW | {"max_window_layers": 1, "rope_parameters": {"rope_theta": 1e6}}
    _, loaded = made("Qwen2ForCausalLM", config(2, **changes), tmp_path)
    changed(tmp_path, {"rope_theta": 1000000}, without=("rope_parameters", "layer_types"))
    assert load(tmp_path).spec == loaded.spec


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_types": ["full_attention"]}, "the model has 2 layers"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention is neither"),
        ({"layer_types": MIXED[:2]}, "there is no sliding_window"),
        ({"layer_types": "full"}, "must be a list of names"),
        ({"attention_bias": False, "mlp_bias": True}, "mlp_bias = True"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("Qwen2ForCausalLM", config(2), tmp_path)
    check_refused(tmp_path, changes, match)
