"""OPT against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    changed,
    check_decoder,
    check_logits,
    check_refused,
    made,
    padded,
    prompts,
    small_config,
)

from addnorm.convert.folder import save
from addnorm.errors import InputError
from addnorm.nn.norms import LayerNormConfig

pytestmark = pytest.mark.parity

CONFIGS: dict[str, dict[str, Any]] = {
    "before": {},
    "after": {"do_layer_norm_before": False, "tie_word_embeddings": False},
    "narrow": {"word_embed_proj_dim": 6, "do_layer_norm_before": False},
    "wide-untied": {"word_embed_proj_dim": 20, "tie_word_embeddings": False},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 21,
        "num_attention_heads": 3,
        "ffn_dim": 17,
        "num_hidden_layers": 3,
        "enable_bias": False,
        "activation_function": "gelu",
    },
}


def config(**changes: Any) -> transformers.OPTConfig:
    sizes = {"ffn_dim": 40, "max_position_embeddings": 80}
    return small_config("OPTConfig", **sizes | changes)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    check_decoder(
        "OPTForCausalLM",
        config(**changes),
        tmp_path,
        n=16 if changes else 64,
        # With another width, their last hidden state is already mapped.
        hidden_states="word_embed_proj_dim" not in changes,
    )


def test_a_file_of_the_body_alone(tmp_path: Path) -> None:
    """No prefix, and the tied head left out; training's rates change nothing."""
    theirs, _ = made("OPTForCausalLM", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("model."): w for name, w in weights.items() if "lm_head" not in name}
    save_file(old, tmp_path / "model.safetensors")
    changed(tmp_path, {"activation_dropout": 0.1, "layerdrop": 0.1})
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"word_embed_proj_dim": 8}, "missing model.decoder.project_in.weight"),
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm = True"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = False"),
        ({"num_attention_heads": 5}, "does not divide into n_heads = 5"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("OPTForCausalLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_a_part_without_a_key_is_refused_by_name(tmp_path: Path) -> None:
    """Its norms have one ε for all models."""
    _, loaded = made("OPTForCausalLM", config(), tmp_path)
    other = replace(loaded.spec.model, norm=LayerNormConfig(eps=1e-6))
    spec = replace(loaded.spec, model=other)
    with pytest.raises(InputError, match=r"norm\.eps = 1e-06 would become 1e-05"):
        save(tmp_path / "out", spec, loaded.model, None, model_type="opt")
