"""Jina embeddings v3, GTE and NomicBERT against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.encoders import check_encoder, check_same
from tests.parity.families import changed, check_refused, made, padded, prompts

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
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 7,
        "hidden_act": "relu",
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
    },
    "untied-scaled": {"tie_word_embeddings": False, "rope_parameters": LINEAR},
}
STEMS = {"JinaEmbeddingsV3": 1, "Gte": 1, "NomicBert": 2}
"""The families, and how many types of tokens they have by default."""

HEADS = {
    "Model": "last_hidden_state",
    "ForMaskedLM": "logits",
    "ForSequenceClassification": "logits",
    "ForTokenClassification": "logits",
}


def config(stem: str, **changes: object) -> Any:
    return getattr(transformers, f"{stem}Config")(**SMALL | changes)


@pytest.mark.long
@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(changes: dict[str, Any], stem: str, ending: str, tmp_path: Path) -> None:
    pick, types = HEADS[ending], changes.get("type_vocab_size", STEMS[stem])
    if (stem, ending) == ("JinaEmbeddingsV3", "Model"):
        pick = "pooler_output"
    made_of = config(stem, **changes)
    check_encoder(f"{stem}{ending}", made_of, tmp_path, pick=pick, pad=1, types=types)


def test_gte_without_types_of_tokens(tmp_path: Path) -> None:
    check_encoder("GteForMaskedLM", config("Gte", type_vocab_size=0), tmp_path, pad=1)


def test_a_head_of_another_width(tmp_path: Path) -> None:
    check_encoder("NomicBertForMaskedLM", config("NomicBert", head_dim=6), tmp_path, pad=1)


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


@pytest.mark.parametrize(
    ("stem", "changes", "match"),
    [
        ("JinaEmbeddingsV3", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("JinaEmbeddingsV3", {"lora_adaptations": ["classification"]}, "lora_adaptations"),
        ("Gte", {"hidden_act": "gulu"}, "Did you mean 'gelu'"),
        ("Gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type = 'rms_norm'"),
        ("NomicBert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction = 0.5"),
        ("NomicBert", {"qkv_proj_bias": True}, "qkv_proj_bias = True"),
        ("NomicBert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor = 2"),
        ("NomicBert", {"num_local_experts": 8}, "num_local_experts = 8"),
    ],
)
def test_unsupported_settings_are_named(
    stem: str, changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    made(f"{stem}ForMaskedLM", config(stem), tmp_path)
    check_refused(tmp_path, changes, match)
