"""GPT-NeoX against transformers."""

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
    made,
    padded,
    prompts,
    small_config,
)

from addnorm.convert.folder import load

pytestmark = pytest.mark.parity

CONFIGS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "sequential": {"use_parallel_residual": False, "tie_word_embeddings": True},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 21,
        "num_attention_heads": 3,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "attention_bias": False,
        "hidden_act": "gelu_new",
        "rope_parameters": {"partial_rotary_factor": 6 / 7, "rope_theta": 500.0},
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
}


def config(**changes: Any) -> transformers.GPTNeoXConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 40}
    return small_config("GPTNeoXConfig", **sizes | changes)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    check_decoder("GPTNeoXForCausalLM", config(**changes), tmp_path, n=16 if changes else 64)


def test_older_layouts_load_the_same_model(tmp_path: Path) -> None:
    """`rotary_pct` and `rotary_emb_base`, masks and frequencies as buffers; the head by its new
    name too."""
    rope = {"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "default"}
    theirs, loaded = made("GPTNeoXForCausalLM", config(rope_parameters=rope), tmp_path)
    old = {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_scaling": None, "rope_theta": 500}
    changed(tmp_path, old, without=("rope_parameters",))
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("embed_out.weight")
    for i in range(2):
        name = f"gpt_neox.layers.{i}.attention"
        weights[f"{name}.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        weights[f"{name}.masked_bias"] = torch.tensor(-1e9)
        weights[f"{name}.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(weights, tmp_path / "model.safetensors")
    assert load(tmp_path).spec == loaded.spec
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rope_parameters": {"partial_rotary_factor": 0.3}}, "turns 2.4 of them"),
        ({"rope_parameters": {"partial_rotary_factor": 0.375}}, "must be even"),
        ({"rope_parameters": {"rope_type": "su"}}, "rope_type = 'su'"),
        ({"rope_theta": 7.0}, "rope_theta = 7.0"),
        ({"num_attention_heads": 5}, "num_attention_heads = 5 .*does not divide"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("GPTNeoXForCausalLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)
