"""GPT-2 against transformers."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    check_decoder,
    check_logits,
    check_refused,
    made,
    padded,
    prompts,
)

from addnorm.convert.folder import load
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

CONFIGS = {
    "plain": {},
    "odd": {"vocab_size": 101, "n_embd": 21, "n_head": 3, "n_inner": 17, "n_layer": 3},
    "untied-relu": {"activation_function": "relu", "tie_word_embeddings": False},
}


def config(**changes: object) -> transformers.GPT2Config:
    small = {"vocab_size": 64, "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 80}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return transformers.GPT2Config(**small | ids | changes)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, object], tmp_path: Path) -> None:
    check_decoder("GPT2LMHeadModel", config(**changes), tmp_path)


def test_the_first_layout_of_the_hub_loads(tmp_path: Path) -> None:
    """No prefix, the masks as buffers, and the tied head left out."""
    theirs, _ = made("GPT2LMHeadModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        name.removeprefix("transformer."): w for name, w in weights.items() if "lm_head" not in name
    }
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 80, 80, dtype=torch.uint8) for i in range(2)}
    save_file(old, tmp_path / "model.safetensors")
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"activation_function": "gelu_nwe"}, "Did you mean 'gelu_new'"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
        ({"n_layer": 0}, "n_layer = 0 must be from 1"),
        ({"n_head": 5}, "does not divide into n_heads = 5"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("GPT2LMHeadModel", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    made("GPT2LMHeadModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.h.1.ln_3.bias"] = weights.pop("transformer.h.1.ln_2.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(
        InputError, match=r"missing transformer\.h\.1\.ln_2\.bias; unexpected trans"
    ):
        load(tmp_path)
