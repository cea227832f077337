"""ModernBERT against transformers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.encoders import check_encoder, check_same
from tests.parity.families import changed, check_refused, made, padded, prompts

from addnorm.convert.folder import load, save
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import FullPatternConfig, WindowPatternConfig
from addnorm.nn.positions import RotaryConfig

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "local_attention": 4,
}
NO_IDS = {f"{kind}_token_id": None for kind in ("bos", "eos", "cls", "sep")} | {"pad_token_id": 0}
BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
TYPES = ["sliding_attention", "full_attention", "full_attention"]
CONFIGS = {
    "plain": {},
    "odd": {"vocab_size": 101, "hidden_size": 18, "num_attention_heads": 3, "local_attention": 3},
    "biases": {**dict.fromkeys(BIASES, True), "decoder_bias": False, "hidden_activation": "silu"},
    "untied-mean": {
        "tie_word_embeddings": False,
        "classifier_pooling": "mean",
        "classifier_activation": "relu",
        "norm_eps": 1e-3,
        "layer_types": TYPES,
    },
}
HEADS = {
    "ModernBertModel": "last_hidden_state",
    "ModernBertForMaskedLM": "logits",
    "ModernBertForSequenceClassification": "logits",
    "ModernBertForTokenClassification": "logits",
    "ModernBertForQuestionAnswering": "spans",
}


def config(**changes: object) -> transformers.ModernBertConfig:
    labels = {0: "red", 1: "green", 2: "blue"}
    return transformers.ModernBertConfig(**{**SMALL, **NO_IDS, "id2label": labels, **changes})


def batch() -> dict[str, object]:
    ids, valid = padded(prompts(64), left=False)
    return {"input_ids": ids, "attention_mask": valid.long()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(kind: str, changes: dict[str, object], tmp_path: Path) -> None:
    labels = {"id2label": {0: "start", 1: "end"}} if HEADS[kind] == "spans" else {}
    check_encoder(kind, config(**changes, **labels), tmp_path, pick=HEADS[kind])


@pytest.mark.parametrize("only", ["full_attention", "sliding_attention"])
def test_layers_that_are_all_alike(only: str, tmp_path: Path) -> None:
    check_encoder("ModernBertForMaskedLM", config(layer_types=[only] * 3), tmp_path)
    assert load(tmp_path).spec.model.layer_pattern == ()


def test_older_keys(tmp_path: Path) -> None:
    """Every second layer sees all, by the keys before `layer_types` and `rope_parameters`."""
    types = ["full_attention", "sliding_attention", "full_attention"]
    theta = {"full_attention": 500.0, "sliding_attention": 20.0}
    rope = {kind: {"rope_type": "default", "rope_theta": one} for kind, one in theta.items()}
    made_of = config(layer_types=types, rope_parameters=rope)
    theirs, loaded = made("ModernBertForMaskedLM", made_of, tmp_path)
    keys = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 500.0,
        "local_rope_theta": 20.0,
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    changed(tmp_path, keys, without=("layer_types", "rope_parameters"))
    check_same(theirs, tmp_path, batch())
    again = load(tmp_path)
    assert again.spec == loaded.spec
    own = LayerConfig(pattern=WindowPatternConfig(size=3), position=RotaryConfig(theta=20.0))
    assert again.spec.model.layer_pattern == (LayerConfig(), own)
    save(tmp_path / "out", again.spec, again.model, None, model_type="modernbert")
    tree = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: tree[key] for key in list(keys)[:3]} == {key: keys[key] for key in list(keys)[:3]}


def test_scaled_positions(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    rope = {"full_attention": linear, "sliding_attention": {"rope_type": "default"}}
    check_encoder("ModernBertForMaskedLM", config(rope_parameters=rope), tmp_path)


def test_a_body_with_the_prefix(tmp_path: Path) -> None:
    theirs, _ = made("ModernBertModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({f"model.{k}": v for k, v in weights.items()}, tmp_path / "model.safetensors")
    check_same(theirs, tmp_path, batch(), "last_hidden_state")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["ModernBertForMultipleChoice"]}, "Valid: ModernBertModel"),
        ({"classifier_pooling": "max"}, "classifier_pooling = 'max' is not supported"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"layer_types": ["full_attention"]}, "the model has 3 layers"),
        ({"hidden_activation": "gulu"}, "Did you mean 'gelu'"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("ModernBertForSequenceClassification", config(), tmp_path)
    check_refused(tmp_path, changes, match)


@pytest.mark.parametrize(
    ("layer_pattern", "match"),
    [
        (
            (
                LayerConfig(pattern=WindowPatternConfig(size=3)),
                LayerConfig(pattern=WindowPatternConfig(size=5)),
            ),
            r"one sliding window, not \[3, 5\]",
        ),
        (
            (LayerConfig(position=RotaryConfig(theta=5.0)), LayerConfig()),
            "cannot express this model: model.layer_pattern",
        ),
    ],
)
def test_irregular_layer_patterns_are_refused(
    layer_pattern: tuple[LayerConfig, ...], match: str, tmp_path: Path
) -> None:
    _, loaded = made("ModernBertModel", config(), tmp_path)
    model = replace(loaded.spec.model, layer_pattern=layer_pattern)
    assert model.attention.pattern == FullPatternConfig()
    with pytest.raises(InputError, match=match):
        save(
            tmp_path / "out",
            replace(loaded.spec, model=model),
            loaded.model,
            None,
            model_type="modernbert",
        )
