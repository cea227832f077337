"""Decoders without a head, such as LlamaModel: they give vectors, and write nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.convert.exports import BPE
from tests.parity.encoders import check_same
from tests.parity.families import check_round_trip, made, padded, prompts
from torch.testing import assert_close

import addnorm
from addnorm.convert.folder import load, save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.generate import GreedyConfig, generate
from addnorm.models import DecoderModel
from addnorm.nn.heads import HiddenHeadConfig, TokenHeadConfig

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": BPE.vocab_size,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
GATED = {"intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8}
BODIES: dict[str, dict[str, Any]] = {
    "Llama": GATED,
    "Mistral": GATED | {"sliding_window": 3},
    "Qwen3": GATED,
    "Gemma2": GATED,
    "GPTNeoX": {"intermediate_size": 24},
    "GPT2": {},
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
}


def body(stem: str, folder: Path) -> Any:
    config = getattr(transformers, f"{stem}Config")(**SIZES | BODIES[stem])
    return made(f"{stem}Model", config, folder)


@pytest.mark.parametrize("stem", BODIES)
def test_same_vectors(stem: str, tmp_path: Path) -> None:
    theirs, loaded = body(stem, tmp_path)
    assert loaded.spec.model.head == HiddenHeadConfig()
    ids, valid = padded(prompts(SIZES["vocab_size"]), left=False)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "last_hidden_state")
    model_type = theirs.config.model_type
    check_round_trip(loaded, tmp_path, "AutoModel", model_type, theirs, input_ids=ids)


def test_a_tied_body_is_a_language_model(tmp_path: Path) -> None:
    """Its table serves as its head."""
    config = transformers.LlamaConfig(**SIZES | GATED | {"tie_word_embeddings": True})
    _, loaded = made("LlamaModel", config, tmp_path)
    assert loaded.spec.model.head == TokenHeadConfig()


def test_it_embeds_and_does_not_write(tmp_path: Path) -> None:
    theirs, loaded = body("Llama", tmp_path / "theirs")
    save(tmp_path / "run", loaded.spec, loaded.model, Tokenizers(BPE, BPE))
    run = addnorm.load(tmp_path / "run")
    texts = ["the 3th day of year 11", "day"]
    rows = [[2, *ids] for ids in BPE.encode_batch(texts)]
    with torch.no_grad():
        states = [theirs(torch.tensor([row])).last_hidden_state[0].mean(0) for row in rows]
    assert_close(run.embed(texts).double(), torch.stack(states), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="no task here: it gives vectors"):
        run.generate("the")
    model = load(tmp_path / "run").model
    assert isinstance(model, DecoderModel)
    with pytest.raises(InputError, match="has no head: it returns vectors, and generates no text"):
        generate(model, [[5]], GreedyConfig(), max_new_tokens=1, eos_id=None)


def test_the_narrow_vectors_of_opt_have_no_place(tmp_path: Path) -> None:
    config = transformers.OPTConfig(**SIZES | {"ffn_dim": 24, "word_embed_proj_dim": 8})
    with pytest.raises(
        InputError, match="mapped to word_embed_proj_dim = 8, which a model without"
    ):
        made("OPTModel", config, tmp_path)
