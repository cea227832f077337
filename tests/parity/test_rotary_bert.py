"""Jina embeddings v3, GTE and NomicBERT against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.encoders import check_same
from tests.parity.families import changed, made, padded, prompts

from addnorm.convert.folder import load

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "id2label": {0: "red", 1: "green", 2: "blue"},
}


def config(stem: str, **changes: object) -> Any:
    return getattr(transformers, f"{stem}Config")(**SMALL | changes)


PUBLISHED = {
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "n_embd": 16,
    "n_head": 2,
    "n_inner": 24,
    "n_layer": 2,
    "n_positions": 20,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "pad_vocab_size_multiple": 64,
    "use_flash_attn": True,
}


def test_the_published_keys_of_nomic(tmp_path: Path) -> None:
    """The files have the keys of GPT-2 and of the kernels they were trained with."""
    theirs, loaded = made("NomicBertModel", config("NomicBert"), tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    new = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size",
           "max_position_embeddings", "rope_parameters", "layer_norm_eps", "hidden_act",
           "head_dim")  # fmt: skip
    assert tree.keys() >= {*new}
    changed(tmp_path, PUBLISHED, without=(*new, "attention_probs_dropout_prob"))
    assert load(tmp_path).spec == loaded.spec
    ids, valid = padded(prompts(64), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "last_hidden_state")


def test_the_published_names_of_gte(tmp_path: Path) -> None:
    made("GteForMaskedLM", config("Gte"), tmp_path)
    spec = load(tmp_path).spec
    weights = load_file(tmp_path / "model.safetensors")
    older = {name.replace("gte.", "new."): weight for name, weight in weights.items()}
    save_file(older, tmp_path / "model.safetensors")
    assert load(tmp_path).spec == spec
