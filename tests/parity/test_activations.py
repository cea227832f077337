"""Activation functions of transformers, in a family of every build."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_encoder
from tests.parity.families import check_logits, check_round_trip, made, padded, prompts

from addnorm.convert.folder import save
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

NAMES = ("tanh", "mish", "quick_gelu")
SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("name", NAMES)
def test_bert(name: str, tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES, intermediate_size=24, hidden_act=name)
    check_encoder("BertForMaskedLM", config, tmp_path, types=2)


@pytest.mark.parametrize("name", NAMES)
def test_gpt2(name: str, tmp_path: Path) -> None:
    config: Any = transformers.GPT2Config(
        vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=32, activation_function=name
    )
    theirs, loaded = made("GPT2LMHeadModel", config, tmp_path)
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", "gpt2", theirs, input_ids=ids)


@pytest.mark.parametrize("name", NAMES)
def test_gated(name: str, tmp_path: Path) -> None:
    config: Any = transformers.LlamaConfig(**SIZES, intermediate_size=24, hidden_act=name)
    theirs, loaded = made("LlamaForCausalLM", config, tmp_path)
    ids, _ = padded(prompts(64), left=False)
    check_logits(theirs, tmp_path, {"input_ids": ids}, {"tokens": ids})
    check_round_trip(loaded, tmp_path, "AutoModelForCausalLM", "llama", theirs, input_ids=ids)


def test_a_head_with_the_identity_as_activation_is_refused(tmp_path: Path) -> None:
    config: Any = transformers.ModernBertConfig(
        **SIZES, intermediate_size=24, pad_token_id=0, bos_token_id=0, eos_token_id=0
    )
    _, loaded = made("ModernBertForMaskedLM", config, tmp_path)
    model: Any = loaded.spec.model
    transform = replace(model.head.transform, activation="identity")
    model = replace(model, head=replace(model.head, transform=transform))
    spec = replace(loaded.spec, model=model)
    with pytest.raises(InputError, match="this family has no 'identity', only relu"):
        save(tmp_path / "out", spec, model.build(64), None, model_type="modernbert")
