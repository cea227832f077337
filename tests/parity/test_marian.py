"""Marian against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity import families
from tests.parity.families import (
    changed,
    check_both_stacks,
    check_greedy_and_beam,
    check_logits,
    check_refused,
    check_round_trip,
    prompts,
    started,
    translation_batch,
)
from torch.testing import assert_close

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import LoadedModel, load, save
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, translate
from addnorm.generate.decode import decode
from addnorm.generate.next_token import Translation
from addnorm.models import EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import SinusoidalConfig
from addnorm.nn.positions.sinusoidal import sinusoidal_encoding
from addnorm.nn.residuals import PreNormConfig

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "d_model": 16,
    "max_position_embeddings": 80,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()
}
ODD = {"d_model": 21, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
CONFIGS = {
    "opus": {},
    "odd": ODD
    | {"vocab_size": 67, "decoder_layers": 1, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7},
    "relu": {"activation_function": "relu", "scale_embedding": False, "encoder_layers": 3},
    "gelu-two": {
        "activation_function": "gelu",
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 71,
    },
    "unequal": {"encoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_layers": 1},
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "untied-though-shared": {"tie_word_embeddings": False},
}


def exact(theirs: Any) -> Any:
    """Their model with its waves as exact as its weights: they make them in float32."""
    for stack in (theirs.model.encoder, theirs.model.decoder):
        waves = sinusoidal_encoding(
            torch.arange(80), theirs.config.d_model, dtype=torch.float64, layout="halves"
        )
        assert_close(stack.embed_positions.weight.double(), waves, rtol=0, atol=1e-6)
        stack.embed_positions.weight.data = waves.to(stack.embed_positions.weight.dtype)
    return theirs


def made(folder: Path, **changes: object) -> tuple[Any, LoadedModel]:
    torch.manual_seed(0)
    theirs: Any = transformers.MarianMTModel(transformers.MarianConfig(**SMALL | changes))
    waves = theirs.model.encoder.embed_positions.weight.clone()
    started(theirs)
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.data = waves.clone()
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(folder)
    return exact(theirs.double()), load(folder, dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, object], tmp_path: Path) -> None:
    theirs, loaded = made(tmp_path, **changes)
    inputs, ours = translation_batch()
    check_logits(theirs, tmp_path, inputs, ours)
    check_both_stacks(theirs, loaded, inputs, inputs.pop("decoder_input_ids"))
    check_greedy_and_beam(theirs, loaded, 64, 12 if changes else 64)
    check_round_trip(loaded, tmp_path, "AutoModelForSeq2SeqLM", "marian")
    opened = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    check_logits(exact(opened), tmp_path, *translation_batch())


def test_older_layouts_load_the_same_model(tmp_path: Path) -> None:
    """Tables and every name of the embedding in the file, and keys of the first configurations."""
    theirs, _ = made(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_tokens.weight"] = weights["model.shared.weight"].clone()
        weights[f"model.{side}.embed_positions.weight"] = torch.zeros(80, 16)
    weights["lm_head.weight"] = weights["model.shared.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    changed(
        tmp_path,
        {
            "normalize_before": False,
            "normalize_embedding": False,
            "static_position_embeddings": True,
            "add_final_layer_norm": False,
            "add_bias_logits": False,
            "num_hidden_layers": 2,
            "classif_dropout": 0.1,
            "bad_words_ids": [[0]],
            "num_beams": 6,
            "max_length": 512,
        },
    )
    check_logits(theirs, tmp_path, *translation_batch())
    weights["lm_head.weight"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"ties lm_head\.weight to model\.shared\.weight"):
        load(tmp_path)


def test_body_alone(tmp_path: Path) -> None:
    theirs, _ = made(tmp_path)
    theirs.final_logits_bias.zero_()
    theirs.float().model.save_pretrained(tmp_path)
    check_logits(exact(theirs.double()), tmp_path, *translation_batch())


@pytest.mark.parametrize("beams", [1, 4])
def test_padding_is_never_written(beams: int, tmp_path: Path) -> None:
    """Their configurations forbid it, for its logit is often the highest."""
    theirs, loaded = made(tmp_path)
    assert isinstance(loaded.model, EncoderDecoderModel)
    rows, inputs = prompts(64), translation_batch()[0]
    for head in (theirs.final_logits_bias[0], loaded.model.head.bias):
        assert head is not None
        head.data[0] = 20.0
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=0, decoder_start_token_id=0, bad_words_ids=[[0]], num_beams=beams
    )
    del inputs["decoder_input_ids"]
    expected = theirs.generate(**inputs, max_new_tokens=16)[:, 1:]
    decoding = GreedyConfig() if beams == 1 else BeamConfig(beams=beams)
    translation = Translation(loaded.model, 0, never=[0])
    found = decode(translation, rows, decoding, [16] * 3, eos_id=None)
    assert [list(best[0].ids) for best in found] == expected.tolist()
    assert 0 not in expected


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"decoder_attention_heads": 5}, "does not divide into n_heads = 5"),
        ({"decoder_vocab_size": 65}, "decoder_vocab_size = 65 .* one vocabulary"),
        ({"tie_word_embeddings": False}, "missing lm_head.weight"),
        ({"normalize_before": True}, "normalize_before = True"),
        ({"normalize_embedding": True}, "normalize_embedding = True"),
        ({"static_position_embeddings": False}, "static_position_embeddings = False"),
        ({"activation_function": "swiss"}, "Did you mean 'swish'"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made(tmp_path)
    check_refused(tmp_path, changes, match)


def ours(**changes: Any) -> EncoderDecoderConfig:
    """The translation model of a recipe that says nothing else."""
    return EncoderDecoderConfig(
        **{
            "d_model": 18,
            "n_layers": 2,
            "max_len": 80,
            "attention": AttentionConfig(n_heads=3),
            "feedforward": FeedForwardConfig(d_ff=40),
        }
        | changes
    )


HALVES = SinusoidalConfig(layout="halves")


@pytest.mark.parametrize(
    "config",
    [
        ours(),
        ours(position=HALVES, head=TokenHeadConfig(bias=True), n_decoder_layers=1),
        ours(d_model=21, attention=AttentionConfig(n_heads=7, bias=False), position=HALVES),
        ours(d_model=21, feedforward=FeedForwardConfig(activation="silu", bias=False)),
        ours(share_embeddings=False, head=TokenHeadConfig(tied=False, bias=True)),
    ],
)
def test_a_model_of_ours_translates_the_same_there(
    config: EncoderDecoderConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = started(config.build(64))
    assert save(tmp_path, ModelSpec(model=config, vocab_size=64), model, None) == "marian"
    theirs, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info.values()), info
    exact(theirs.double())
    inputs, same = translation_batch()
    with torch.no_grad():
        assert_close(model.double()(**same), theirs(**inputs).logits, rtol=0, atol=1e-10)
    again = load(tmp_path, dtype=torch.float64)
    for max_new_tokens in (1, 30):
        found = [
            translate(one, prompts(64), GreedyConfig(), max_new_tokens=max_new_tokens)
            for one in (model, again.model)
        ]
        assert [best[0].ids for best in found[0]] == [best[0].ids for best in found[1]]
    written = theirs.generate(
        inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=30
    )
    for best, row in zip(found[0], written.tolist(), strict=True):
        assert row[1 : 1 + len(best[0].ids)] == list(best[0].ids)
        assert set(row[1 + len(best[0].ids) :]) <= {0, 3}
    weights, kept = model.float().state_dict(), again.model.float().state_dict()
    if config.position == HALVES:
        assert all(torch.equal(weights[name], kept[name]) for name in weights)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (ours(norm=RMSNormConfig()), "model.norm = 'rmsnorm' would become 'layernorm'"),
        (ours(residual=PreNormConfig()), "model.residual = 'pre' would become 'post'"),
        (ours(head=TokenHeadConfig(tied=False)), "head.tied = false"),
        (ours(cross_attention=AttentionConfig(n_heads=2)), "cross_attention.n_heads = 2"),
    ],
)
def test_a_part_without_a_key_is_refused_by_name(
    config: EncoderDecoderConfig, match: str, tmp_path: Path
) -> None:
    spec = ModelSpec(model=config, vocab_size=64)
    with pytest.raises(InputError, match=match):
        save(tmp_path, spec, config.build(64), None, model_type="marian")


@pytest.mark.parametrize("kind", ["Marian", "Pegasus"])
def test_stored_sinusoids_of_another_shape_are_refused(kind: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "d_model": 16, "max_position_embeddings": 20, "pad_token_id": 1}
    sides = {"layers": 1, "attention_heads": 2, "ffn_dim": 20}
    both = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()}
    config = getattr(transformers, f"{kind}Config")(**sizes, **both, decoder_start_token_id=1)
    name = {"Marian": "MarianMTModel"}.get(kind, f"{kind}ForConditionalGeneration")
    families.made(name, config, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    weights = {name: weight.float() for name, weight in stored.items()}
    name = "model.decoder.embed_positions.weight"
    save_file(weights | {name: torch.zeros(20, 16)}, tmp_path / "model.safetensors")
    load(tmp_path)
    save_file(weights | {name: torch.zeros(19, 16)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"embed_positions\.weight has shape \(19, 16\), expected"):
        load(tmp_path)
