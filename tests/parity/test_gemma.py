"""Gemma 1, 2 and 3 (text) against transformers."""

from pathlib import Path
from typing import Any

import pytest
from tests.parity.encoders import check_encoder
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
from addnorm.errors import InputError
from addnorm.nn.attention import WindowPatternConfig

pytestmark = pytest.mark.parity

KINDS = {
    "gemma": ("GemmaForCausalLM", "GemmaConfig"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config"),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
}
ODD = {
    "vocab_size": 101,
    "hidden_size": 21,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "intermediate_size": 17,
    "attention_bias": True,
}
SEVEN = {"num_hidden_layers": 7}
FULL_LENGTH = {"sliding_window": 5, "attn_logit_softcapping": 2.0}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "1": ("gemma", {}),
    "1-odd-untied": ("gemma", ODD | {"tie_word_embeddings": False, "hidden_act": "silu"}),
    "2": ("gemma2", FULL_LENGTH),
    "2-odd": ("gemma2", ODD | {"sliding_window": 3, "final_logit_softcapping": None}),
    "2-uncapped": (
        "gemma2",
        {"attn_logit_softcapping": None, "layer_types": ["full_attention"] * 2},
    ),
    "3": ("gemma3_text", SEVEN | {"sliding_window": 5, "query_pre_attn_scalar": 8}),
    "3-odd": (
        "gemma3_text",
        ODD
        | {
            "sliding_window": 4,
            "num_hidden_layers": 3,
            "sliding_window_pattern": 2,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
    "3-windows-alone": ("gemma3_text", {"sliding_window": 3}),
}


def config(family: str, **changes: Any) -> Any:
    sizes = {"intermediate_size": 40, "num_key_value_heads": 2, "head_dim": 8}
    return small_config(KINDS[family][1], **sizes | changes)


@pytest.mark.long
@pytest.mark.parametrize(("family", "changes"), CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    kind, n = KINDS[family][0], 64 if changes is FULL_LENGTH else 12
    check_decoder(kind, config(family, **changes), tmp_path, lengths=(12, 9), n=n)


@pytest.mark.parametrize("kind", ["Gemma3TextModel", "Gemma3ForCausalLM"])
@pytest.mark.parametrize("window", [4, 7])
def test_gemma_3_in_both_directions(window: int, kind: str, tmp_path: Path) -> None:
    """An encoder, whose windows count both sides together; as EmbeddingGemma, without a head."""
    changes = {
        "use_bidirectional_attention": True,
        "sliding_window": window,
        "num_hidden_layers": 3,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 3.0 if kind == "Gemma3ForCausalLM" else None,
    }
    pick = "last_hidden_state" if kind == "Gemma3TextModel" else "logits"
    made_of = config("gemma3_text", **changes)
    _, loaded = check_encoder(kind, made_of, tmp_path, pick=pick)
    assert loaded.spec.model.kind == "encoder"
    pattern = loaded.spec.model.layer_pattern[0].pattern
    assert pattern == WindowPatternConfig(size=window // 2 + 1)


def test_the_older_keys_of_gemma_3(tmp_path: Path) -> None:
    """`rope_local_base_freq` beside `rope_theta`, and the layers by a number."""
    rope = {
        "full_attention": LINEAR,
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
    layers = {"num_hidden_layers": 4, "sliding_window_pattern": 3, "sliding_window": 3}
    theirs, loaded = made(
        "Gemma3ForCausalLM", config("gemma3_text", rope_parameters=rope, **layers), tmp_path
    )
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 5000, "rope_local_base_freq": 300, "rope_scaling": scaling}
    changed(
        tmp_path,
        old | {"sliding_window_pattern": 3, "cache_implementation": "hybrid"},
        without=("rope_parameters", "layer_types"),
    )
    assert load(tmp_path).spec == loaded.spec
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    changed(tmp_path, {"rope_scaling": {"type": "linear", "factor": 8.0}})
    with pytest.raises(InputError, match=r"type = 'linear' is not supported.*name it rope_type"):
        load(tmp_path)  # some versions of transformers pass over it, others do not


def test_the_first_files_of_gemma_say_gelu_and_mean_its_approximation(tmp_path: Path) -> None:
    _, loaded = made("GemmaForCausalLM", config("gemma"), tmp_path)
    changed(tmp_path, {"hidden_act": "gelu", "hidden_activation": None})
    assert load(tmp_path).spec == loaded.spec


@pytest.mark.parametrize(
    ("family", "changes", "match"),
    [
        ("gemma", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ("gemma", {"use_bidirectional_attention": True}, "_attention = True .* then looks ahead"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ("gemma2", {"layer_types": ["sliding_attention"]}, "the model has 2 layers"),
        ("gemma2", {"sliding_window": None}, "there is no sliding_window"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": LINEAR, "rope_theta": 3.0}},
            "rope_theta = 3.0",
        ),
    ],
)
def test_unsupported_settings_are_named(
    family: str, changes: Any, match: str, tmp_path: Path
) -> None:
    made(KINDS[family][0], config(family), tmp_path)
    check_refused(tmp_path, changes, match)
