"""Gemma 4 (text) against transformers: shared keys, vectors for every layer, factors of layers."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import check_greedy_and_beam, check_refused, made

from addnorm.checking.checkpoints import check_settings
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings
from addnorm.convert.families.gemma4 import GEMMA4
from addnorm.convert.families.text_halves import GEMMA4_IMAGES
from addnorm.convert.folder import load, read_config
from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.parts import kind_of

pytestmark = pytest.mark.parity

WINDOW, WHOLE = "sliding_attention", "full_attention"


def keys(draw: random.Random) -> dict[str, Any]:
    """Layers of both types, of which some have no keys of their own, and no or narrow vectors."""
    n_kv, shared = draw.choice((1, 2)), draw.choice((1, 2))
    n, vocab = draw.randint(2, 6), draw.randint(20, 60)
    types = [*(draw.choice((WINDOW, WHOLE)) for _ in range(n - 1)), WHOLE]
    n_own = draw.randint(1, n)
    if {*types[:n_own]} != {*types}:
        n_own = n
    share = draw.choice((0.25, 0.5, 1.0))
    # With shared keys and no vectors, transformers stops at a prompt.
    widths = (0, 3, 5) if n_own == n else (3, 5)
    return {
        "vocab_size": vocab,
        "vocab_size_per_layer_input": vocab,
        "hidden_size": draw.choice((12, 15, 16)),
        "intermediate_size": draw.randint(5, 30),
        "num_hidden_layers": n,
        "num_attention_heads": n_kv * shared,
        "num_key_value_heads": n_kv,
        "head_dim": draw.choice((4, 8)),
        "global_head_dim": draw.choice((4, 8, 16)),
        "layer_types": types,
        "sliding_window": draw.randint(2, 6),
        "num_kv_shared_layers": n - n_own,
        "attention_k_eq_v": draw.random() < 0.4,
        "num_global_key_value_heads": draw.choice((None, 1)),
        "use_double_wide_mlp": draw.random() < 0.5,
        "hidden_size_per_layer_input": draw.choice(widths),
        "hidden_activation": draw.choice(("gelu_pytorch_tanh", "silu")),
        "attention_bias": draw.random() < 0.3,
        "final_logit_softcapping": draw.choice((None, 3.0)),
        "rms_norm_eps": draw.choice((1e-6, 1e-3)),
        "max_position_embeddings": 100,
        "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_parameters": {
            WINDOW: {"rope_type": "default", "rope_theta": draw.choice((300.0, 10000.0))},
            WHOLE: {
                "rope_type": "proportional",
                "partial_rotary_factor": share,
                "rope_theta": draw.choice((100.0, 1000000.0)),
            },
        },
    }


def config(seed: int, **changes: Any) -> Any:
    return transformers.Gemma4TextConfig(**keys(random.Random(f"gemma4 {seed}")) | changes)


def settings(seed: int) -> Settings:
    return Settings(config(seed).to_dict() | {"architectures": ["Gemma4ForCausalLM"]})


SHARING = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "num_hidden_layers": 5,
    "layer_types": [WINDOW, WHOLE, WINDOW, WINDOW, WHOLE],
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "attention_k_eq_v": False,
    "num_global_key_value_heads": None,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size_per_layer_input": 3,
    "head_dim": 4,
    "global_head_dim": 8,
    "sliding_window": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def test_a_configuration_is_equal_to_transformers() -> None:
    result = check_settings(settings(0))
    assert result.failed is None, result


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_configurations_are_equal() -> None:
    for seed in range(1, 31):
        result = check_settings(settings(seed))
        assert result.failed is None, (seed, result)


@pytest.mark.long
def test_ragged_batches_are_written_alike_by_beam_search(tmp_path: Path) -> None:
    theirs, loaded = made("Gemma4ForCausalLM", config(0, **SHARING), tmp_path)
    assert loaded.model.stack.read_layers == [None, None, 0, 0, 1]
    assert [layer.feedforward.d_ff for layer in loaded.spec.model.layers(5)] == [
        *[loaded.spec.model.feedforward.d_ff] * 2,
        *[2 * loaded.spec.model.feedforward.d_ff] * 3,
    ]
    check_greedy_and_beam(theirs, loaded, 64, 8)


@pytest.mark.parametrize("of_keys", [False, True])
def test_keys_of_published_files_and_of_newer_ones_are_the_same(of_keys: bool) -> None:
    """`global_head_dim` in the first files, and `per_layer_config` in later ones."""
    own = {"attention_k_eq_v": of_keys, "num_global_key_value_heads": 1}
    tree = config(0, **SHARING | own).to_dict() | {"architectures": ["Gemma4ForCausalLM"]}
    older = {k: v for k, v in tree.items() if k != "per_layer_config"}
    older |= {"global_head_dim": 8, "num_global_key_value_heads": 1}
    new, old = (read_config(GEMMA4, Settings(each)) for each in (tree, older))
    assert new == old
    attentions = [layer.attention for layer in old.model.layers(5)]
    assert [attention.d_head for attention in attentions] == [4, 8, 4, 4, 8]
    n_full = 1 if of_keys else 2
    assert [attention.n_kv_heads for attention in attentions] == [2, n_full, 2, 2, n_full]
    assert [a.values for a in attentions].count("keys") == of_keys


def test_the_tensors_of_shared_layers_may_be_there_and_are_not_read(tmp_path: Path) -> None:
    _, loaded = made("Gemma4ForCausalLM", config(0, **SHARING), tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored["model.layers.4.self_attn.k_proj.weight"] = torch.ones(2, 2)
    save_file(stored, file, {"format": "pt"})
    again = load(tmp_path, dtype=torch.float64)
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(again.model(tokens), loaded.model(tokens))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"enable_moe_block": True}, "enable_moe_block = True"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers = 4 .* every type of the 5 layers"),
        ({"vocab_size_per_layer_input": 9}, "_per_layer_input = 9 .* only as many as vocab_size"),
        ({"per_layer_config": {"1": {"hidden_size": 3}}}, "per_layer_config: 1: hidden_size = 3"),
        ({"per_layer_config": {"7": {"head_dim": 8}}}, "per_layer_config: 7 = "),
        ({"layer_types": [WINDOW] * 4}, "the model has 5 layers"),
    ],
)
def test_unsupported_settings_are_named(changes: Any, match: str, tmp_path: Path) -> None:
    made("Gemma4ForCausalLM", config(0, **SHARING), tmp_path)
    check_refused(tmp_path, changes, match)


@pytest.mark.parametrize("part", [MixtureOfExpertsConfig(n_experts=2), FeedForwardConfig()])
def test_a_model_with_another_feedforward_in_a_layer_is_refused(part: Any) -> None:
    for own in (LayerConfig(feedforward=part),), (LayerConfig(), LayerConfig(feedforward=part)):
        model = DecoderConfig(
            d_model=8, n_layers=2, feedforward=GatedFeedForwardConfig(), layer_pattern=own
        )
        with pytest.raises(InputError, match=f"no {kind_of(part)} feed-forward"):
            GEMMA4.config.write(ModelSpec(model=model, vocab_size=9))


def test_the_text_half_of_a_model_of_pictures() -> None:
    text = config(0, **SHARING).to_dict()
    tree = {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {},
        "audio_config": {},
        "boa_token_id": 9,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    with pytest.warns(IgnoredSettings, match="only the text half is read"):
        half = read_config(GEMMA4_IMAGES, Settings(tree))
    assert half == read_config(GEMMA4, Settings(text | {"architectures": ["Gemma4ForCausalLM"]}))
    with pytest.raises(InputError, match="enable_moe_block"), pytest.warns(IgnoredSettings):
        read_config(
            GEMMA4_IMAGES, Settings(tree | {"text_config": text | {"enable_moe_block": True}})
        )
