"""LLaMA against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    changed,
    check_decoder,
    check_logits,
    check_refused,
    check_round_trip,
    made,
    padded,
    prompts,
    small_config,
)

from addnorm.convert.folder import load, save
from addnorm.errors import IgnoredSettings, InputError
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import NTKScaling, RotaryConfig

pytestmark = pytest.mark.parity

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 21,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "tied": {"tie_word_embeddings": True, "hidden_act": "gelu", "rms_norm_eps": 1e-3},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}},
    "yarn": {"rope_parameters": YARN | {"rope_theta": 10000.0, "beta_fast": 16.0}},
    "yarn-attention-factor": {
        "rope_parameters": YARN | {"rope_theta": 500.0, "attention_factor": 0.7, "truncate": False}
    },
    "yarn-mscale": {
        "rope_parameters": YARN | {"rope_theta": 500.0, "mscale": 0.7, "mscale_all_dim": 1.3}
    },
    "llama3": {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
}


def config(**changes: Any) -> transformers.LlamaConfig:
    sizes = {"intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 8}
    return small_config("LlamaConfig", **sizes | changes)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    check_decoder("LlamaForCausalLM", config(**changes), tmp_path, n=16 if changes else 64)


@pytest.mark.parametrize("nested", [True, False])
def test_a_partial_rotary_factor_is_ignored_with_a_warning(nested: bool, tmp_path: Path) -> None:
    """As in transformers, whose LLaMA reads `partial_rotary_factor` for scaled positions alone."""
    share = {"partial_rotary_factor": 0.5}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    changes = {"rope_parameters": rope | share} if nested else {"rope_parameters": rope} | share
    with pytest.warns(IgnoredSettings, match="partial_rotary_factor = 0.5: models of this type"):
        theirs, loaded = made("LlamaForCausalLM", config(**changes), tmp_path)
    ids, _ = padded(prompts(64), left=False)
    with pytest.warns(IgnoredSettings):
        check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", "llama", theirs, input_ids=ids)


@pytest.mark.parametrize("length", [12, 40])
def test_dynamic_scaling_follows_the_length(length: int, tmp_path: Path) -> None:
    """Over a whole text; when writing, their earlier keys stay turned by earlier frequencies."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    theirs, loaded = made(
        "LlamaForCausalLM", config(rope_parameters=rope, max_position_embeddings=16), tmp_path
    )
    ids, _ = padded(prompts(64, (length, length)), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", "llama", theirs, input_ids=ids)


@pytest.mark.parametrize("rope", [None, YARN, LLAMA3, {"type": "linear", "factor": 2.0}])
def test_the_older_keys(rope: dict[str, Any] | None, tmp_path: Path) -> None:
    """`rope_theta` beside `rope_scaling`, `torch_dtype`, and no `head_dim`."""
    given = {"rope_type": "default"} if rope is None else dict(rope)
    theirs, loaded = made(
        "LlamaForCausalLM",
        config(rope_parameters=given | {"rope_theta": 500.0}, head_dim=None),
        tmp_path,
    )
    old = {"rope_theta": 500.0, "rope_scaling": rope, "torch_dtype": "float32"}
    changed(tmp_path, old, without=("rope_parameters", "head_dim", "dtype"))
    assert load(tmp_path).spec == loaded.spec
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


def test_a_file_of_the_body_alone(tmp_path: Path) -> None:
    """No prefix, frequencies as buffers, and the tied head left out."""
    theirs, _ = made("LlamaForCausalLM", config(tie_word_embeddings=True), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("model."): w for name, w in weights.items() if "lm_head" not in name}
    old |= {f"layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    save_file(old, tmp_path / "model.safetensors")
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"something_new": 3}, "something_new = 3 is not supported"),
        ({"hidden_act": "silly"}, "hidden_act = 'silly' is not supported"),
        ({"num_key_value_heads": 3}, "n_kv_heads = 3"),
        (
            {"rope_scaling": YARN, "partial_rotary_factor": 0.5},
            "partial_rotary_factor = 0.5 is not supported: models of this type rotate whole heads",
        ),
        (
            {"rope_scaling": YARN | {"partial_rotary_factor": 0.5}},
            "rope_scaling: partial_rotary_factor = 0.5 is not supported",
        ),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type = 'mrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "must be at least 1"),
        ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "greater than 0"),
        ({"rope_scaling": LLAMA3 | {"extra": 1}}, "extra = 1"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("LlamaForCausalLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"norm": LayerNormConfig()}, "norm = 'layernorm'"),
        ({"position": RotaryConfig(layout="interleaved")}, "position.layout = 'interleaved'"),
        ({"position": RotaryConfig(scaling=NTKScaling(factor=2.0))}, "ntk scaling"),
    ],
)
def test_a_part_without_a_key_is_refused_by_name(changes: Any, match: str, tmp_path: Path) -> None:
    _, loaded = made("LlamaForCausalLM", config(), tmp_path)
    spec = replace(loaded.spec, model=replace(loaded.spec.model, **changes))
    with pytest.raises(InputError, match=match):
        save(tmp_path / "out", spec, loaded.model, None, model_type="llama")
