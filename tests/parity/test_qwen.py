"""Qwen 2 and 3 against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.families import (
    changed,
    check_greedy_and_beam,
    check_hidden_states,
    check_logits,
    check_round_trip,
    made,
    padded,
    prompts,
)

from addnorm.convert.folder import load
from addnorm.errors import InputError

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
    small = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return getattr(transformers, f"Qwen{number}Config")(**small | ids | changes)


@pytest.mark.parametrize(("number", "changes"), CONFIGS.values(), ids=CONFIGS)
def test_same_numbers_and_tokens(number: int, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs, loaded = made(f"Qwen{number}ForCausalLM", config(number, **changes), tmp_path)
    ids, _ = padded(prompts(64, (12, 9)), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_hidden_states(theirs, loaded, ids)
    check_greedy_and_beam(theirs, loaded, 64, 64 if "tie_word_embeddings" in changes else 16)
    name = f"qwen{number}"
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", name, theirs, input_ids=ids)


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
def test_what_is_not_supported_is_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("Qwen2ForCausalLM", config(2), tmp_path)
    changed(tmp_path, changes)
    with pytest.raises(InputError, match=match):
        load(tmp_path)
