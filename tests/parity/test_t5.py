"""T5, T5 v1.1 and mT5 against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    check_both_stacks,
    check_greedy_and_beam,
    check_logits,
    check_refused,
    check_round_trip,
    made,
    translation_batch,
)

from addnorm.convert.folder import load
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
FLAN = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CONFIGS = {
    "first": {},
    "odd": {
        "d_model": 21,
        "d_kv": 5,
        "num_heads": 3,
        "num_decoder_layers": 1,
        "vocab_size": 67,
        "relative_attention_num_buckets": 6,
        "relative_attention_max_distance": 11,
        "feed_forward_proj": "gelu",
    },
    "flan": FLAN,
    "silu": {"feed_forward_proj": "gated-silu", "num_layers": 3, "num_decoder_layers": 1},
}


def own_head(folder: Path) -> Any:
    """Give the model in `folder` a head of its own, and open it there."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, object], tmp_path: Path) -> None:
    config = transformers.T5Config(**SMALL | changes)
    theirs, loaded = made("T5ForConditionalGeneration", config, tmp_path)
    if changes is FLAN:
        theirs = own_head(tmp_path).double()
        loaded = load(tmp_path, dtype=torch.float64)
    assert loaded.spec.model.head.tied == (changes is not FLAN)  # type: ignore[union-attr]
    inputs, ours = translation_batch(lengths=(17, 1, 4), n=9)
    check_logits(theirs, tmp_path, inputs, ours)
    target = inputs.pop("decoder_input_ids")
    check_both_stacks(theirs, loaded, inputs, target)
    check_greedy_and_beam(theirs, loaded, 64)
    check_round_trip(
        loaded,
        tmp_path,
        "AutoModelForSeq2SeqLM",
        "t5",
        theirs,
        **translation_batch(lengths=(17, 1, 4), n=9)[0],
    )


def test_multilingual(tmp_path: Path) -> None:
    config = transformers.MT5Config(**SMALL)
    made("MT5ForConditionalGeneration", config, tmp_path)
    check_logits(own_head(tmp_path), tmp_path, *translation_batch(lengths=(17, 1, 4), n=9))
    loaded = load(tmp_path)
    check_round_trip(loaded, tmp_path, "AutoModelForSeq2SeqLM", "mt5")


def test_older_layouts_load_the_same_model(tmp_path: Path) -> None:
    """Every name of the embedding in the file, a table nobody reads, and older keys."""
    config = transformers.T5Config(**SMALL)
    theirs, _ = made("T5ForConditionalGeneration", config, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = weights["shared.weight"].clone()
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    weights[unread] = torch.ones(32, 2)
    save_file(weights, tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    old = json.loads(file.read_text())
    for key in ("scale_decoder_outputs", "tie_word_embeddings", "is_gated_act", "dense_act_fn"):
        old.pop(key, None)
    file.write_text(json.dumps(old | {"n_positions": 512, "output_past": True}))
    check_logits(theirs, tmp_path, *translation_batch(lengths=(17, 1, 4), n=9))
    weights["decoder.embed_tokens.weight"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"ties decoder\.embed_tokens\.weight to shared\.weight"):
        load(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("changes", [FLAN, {}])
def test_keys_before_the_fifth_version(changes: dict[str, object], tmp_path: Path) -> None:
    """`tie_word_embeddings` alone says whether hidden states are scaled."""
    config = transformers.T5Config(**SMALL | changes)
    theirs, _ = made("T5ForConditionalGeneration", config, tmp_path)
    theirs = own_head(tmp_path) if changes else theirs
    file = tmp_path / "config.json"
    old = json.loads(file.read_text())
    del old["scale_decoder_outputs"]
    file.write_text(json.dumps(old | {"tie_word_embeddings": not changes}))
    check_logits(theirs, tmp_path, *translation_batch(lengths=(17, 1, 4), n=9))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"feed_forward_proj": "gated-gleu"}, "Did you mean 'gated-gelu'"),
        ({"is_gated_act": True}, "is_gated_act = True"),
        ({"dense_act_fn": "silu"}, "dense_act_fn = 'silu' .* feed_forward_proj = 'relu'"),
        ({"relative_attention_num_buckets": 7}, "buckets = 7 must be even"),
        ({"d_head": 4}, "d_head = 4"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("T5ForConditionalGeneration", transformers.T5Config(**SMALL), tmp_path)
    check_refused(tmp_path, changes, match)
