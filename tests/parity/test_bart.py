"""BART against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    changed,
    check_both_stacks,
    check_greedy_and_beam,
    check_logits,
    check_refused,
    check_round_trip,
    started,
    translation_batch,
)

from addnorm.convert.folder import LoadedModel, load, save
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "d_model": 16,
    "max_position_embeddings": 80,
    "pad_token_id": 1,
    "forced_eos_token_id": None,
} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()
}
CONFIGS = {
    "plain": {},
    "odd": {
        "d_model": 21,
        "encoder_attention_heads": 7,
        "decoder_attention_heads": 7,
        "vocab_size": 67,
        "decoder_layers": 1,
        "encoder_ffn_dim": 9,
        "decoder_ffn_dim": 9,
    },
    "unequal": {"decoder_attention_heads": 4, "decoder_ffn_dim": 40},
    "untied": {"tie_word_embeddings": False, "scale_embedding": True},
    "scaled-relu": {"scale_embedding": True, "activation_function": "relu", "encoder_layers": 3},
}


def made(folder: Path, **changes: object) -> tuple[Any, LoadedModel]:
    torch.manual_seed(0)
    config = transformers.BartConfig(**SMALL | changes)
    theirs: Any = started(transformers.BartForConditionalGeneration(config))
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(folder)
    return theirs.double(), load(folder, dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, object], tmp_path: Path) -> None:
    theirs, loaded = made(tmp_path, **changes)
    inputs, ours = translation_batch(pad=1)
    check_logits(theirs, tmp_path, inputs, ours)
    target = inputs.pop("decoder_input_ids")
    check_both_stacks(theirs, loaded, inputs, target)
    check_greedy_and_beam(theirs, loaded, 64, 12 if changes else 64)
    check_round_trip(
        loaded, tmp_path, "AutoModelForSeq2SeqLM", "bart", theirs, **translation_batch(pad=1)[0]
    )


def test_older_layouts_load_the_same_model(tmp_path: Path) -> None:
    """Every name of the embedding in the file, and keys of the first configurations."""
    theirs, _ = made(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_tokens.weight"] = weights["model.shared.weight"].clone()
        weights[f"model.{side}.version"] = torch.tensor([3.0])
    weights["lm_head.weight"] = weights["model.shared.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    changed(
        tmp_path,
        {
            "normalize_before": False,
            "normalize_embedding": True,
            "add_final_layer_norm": False,
            "add_bias_logits": False,
            "num_hidden_layers": 2,
            "extra_pos_embeddings": 2,
            "force_bos_token_to_be_generated": True,
            "task_specific_params": {"summarization": {"num_beams": 4}},
        },
    )
    check_logits(theirs, tmp_path, *translation_batch(pad=1))


def test_body_alone_has_no_bias(tmp_path: Path) -> None:
    theirs, _ = made(tmp_path)
    theirs.final_logits_bias.zero_()
    theirs.float().model.save_pretrained(tmp_path)
    check_logits(theirs.double(), tmp_path, *translation_batch(pad=1))
    loaded = load(tmp_path)
    assert not loaded.spec.model.head.bias  # type: ignore[union-attr]
    check_round_trip(loaded, tmp_path, "AutoModelForSeq2SeqLM", "bart")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tie_word_embeddings": False}, "missing lm_head.weight; missing model.decoder.embed_"),
        ({"normalize_before": True}, "normalize_before = True"),
        ({"normalize_embedding": False}, "normalize_embedding = False"),
        ({"static_position_embeddings": True}, "static_position_embeddings = True"),
        ({"extra_pos_embeddings": 1}, "extra_pos_embeddings = 1"),
        ({"num_memories": 4}, "num_memories = 4"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made(tmp_path)
    check_refused(tmp_path, changes, match)


def test_a_classifier_is_refused(tmp_path: Path) -> None:
    transformers.BartForSequenceClassification(transformers.BartConfig(**SMALL)).save_pretrained(
        tmp_path
    )
    with pytest.raises(InputError, match="has a head that classifies texts"):
        load(tmp_path)


def test_a_model_without_biases_gets_them(tmp_path: Path) -> None:
    """As zeros, which change nothing."""
    _, loaded = made(tmp_path)
    config = loaded.spec.model
    assert config.kind == "encoder_decoder"
    attention = replace(config.attention, bias=False)
    spec = replace(loaded.spec, model=replace(config, attention=attention))
    model: Any = started(spec.model.build(64))
    save(tmp_path / "out", spec, model, None, model_type="bart")
    opened = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    inputs, ours = translation_batch(pad=1)
    with torch.no_grad():
        torch.testing.assert_close(model(**ours), opened(**inputs).logits, rtol=1e-5, atol=1e-5)
