"""RoBERTa and its multilingual and French variants against transformers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.convert.exports import BPE
from tests.parity.encoders import check_encoder, check_same
from tests.parity.families import check_refused, made, padded, prompts

from addnorm.convert.folder import load, save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.heads import HiddenHeadConfig, TokenHeadConfig

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 22,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
PICKS = {"Model": "pooler_output", "ForMaskedLM": "logits", "ForSequenceClassification": "logits"}


def config(stem: str = "Roberta", **changes: object) -> transformers.PreTrainedConfig:
    labels = {0: "red", 1: "green", 2: "blue"}
    return getattr(transformers, f"{stem}Config")(**{**SMALL, "id2label": labels, **changes})


@pytest.mark.parametrize("stem", ["XLMRoberta", "Camembert"])
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_other_languages(stem: str, head: str, tmp_path: Path) -> None:
    check_encoder(f"{stem}{head}", config(stem), tmp_path, pick=PICKS[head], pad=1)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("pad", [0, 3])
def test_another_padding(pad: int, head: str, tmp_path: Path) -> None:
    """Positions begin after the row of its number."""
    changes = {"pad_token_id": pad, "bos_token_id": 1, "max_position_embeddings": 20 + pad + 1}
    _, loaded = check_encoder(
        f"Roberta{head}", config(**changes), tmp_path, pick=PICKS[head], pad=pad
    )
    assert (loaded.spec.model.max_len, loaded.spec.pad_id) == (20, pad)


def test_positions_after_the_padding_of_our_own_tokenizer(tmp_path: Path) -> None:
    """Which is token 0; where no token is padding, no position can come after it."""
    _, loaded = made("RobertaForMaskedLM", config(vocab_size=BPE.vocab_size), tmp_path)
    out = tmp_path / "out"
    save(out, loaded.spec, loaded.model, Tokenizers(BPE, BPE), model_type="roberta")
    theirs = transformers.RobertaForMaskedLM.from_pretrained(out, dtype=torch.float64)
    ids, valid = padded(prompts(BPE.vocab_size), left=False, pad=0)
    assert theirs.config.pad_token_id == 0
    check_same(theirs.eval(), out, {"input_ids": ids, "attention_mask": valid.long()})
    plain = Tokenizer(BPE.inner, pad_id=BPE.vocab_size - 1)
    with pytest.raises(
        InputError, match="begin after the padding token, and the tokenizer has none"
    ):
        save(out, loaded.spec, loaded.model, Tokenizers(plain, plain), model_type="roberta")


def test_padding_on_the_left(tmp_path: Path) -> None:
    """Positions skip it on both sides."""
    theirs, _ = made("RobertaForMaskedLM", config(), tmp_path)
    ids, valid = padded(prompts(64), left=True, pad=1)
    check_same(theirs, tmp_path, {"input_ids": ids, "attention_mask": valid.long()})


@pytest.mark.filterwarnings("ignore:.*are left aside:addnorm.errors.IgnoredSettings")
def test_older_files(tmp_path: Path) -> None:
    """The positions as a buffer, the decoder twice, a pooler that nothing uses."""
    theirs, _ = made("RobertaForMaskedLM", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["roberta.embeddings.position_ids"] = torch.arange(22)[None]
    weights["roberta.pooler.dense.weight"] = torch.ones(16, 16)
    weights["lm_head.decoder.weight"] = weights["roberta.embeddings.word_embeddings.weight"] + 0
    weights["lm_head.decoder.bias"] = weights["lm_head.bias"] + 0
    save_file(weights, tmp_path / "model.safetensors")
    ids, valid = padded(prompts(64), left=False, pad=1)
    check_same(theirs, tmp_path, {"input_ids": ids, "attention_mask": valid.long()})


def test_without_a_pooler(tmp_path: Path) -> None:
    theirs, _ = made("RobertaModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    bare = {name: w for name, w in weights.items() if "pooler" not in name}
    save_file(bare, tmp_path / "model.safetensors")
    ids, valid = padded(prompts(64), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "last_hidden_state")
    assert load(tmp_path).spec.model.head == HiddenHeadConfig()


def test_rows_for_positions(tmp_path: Path) -> None:
    """Of 22 rows 20 are positions, and as many may be read."""
    _, loaded = made("RobertaForMaskedLM", config(), tmp_path)
    assert loaded.spec.model.max_len == 20
    save(tmp_path / "out", loaded.spec, loaded.model, None, model_type="roberta")
    tree = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (tree["max_position_embeddings"], tree["pad_token_id"]) == (22, 1)
    loaded.model(torch.full((1, 20), 5))
    with pytest.raises(InputError, match="this model knows 20 positions"):
        loaded.model(torch.full((1, 21), 5))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pad_token_id": -1}, "pad_token_id = -1 is not supported: positions begin after"),
        ({"architectures": ["RobertaForCausalLM"]}, "Valid: RobertaModel"),
        ({"max_position_embeddings": 2}, "max_len|greater than"),
        ({"is_decoder": True}, "is_decoder = True"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("RobertaForMaskedLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_another_activation_before_the_scores(tmp_path: Path) -> None:
    _, loaded = made("RobertaForMaskedLM", config(), tmp_path)
    model = loaded.spec.model
    assert isinstance(model, EncoderConfig)
    assert isinstance(model.head, TokenHeadConfig)
    assert model.head.transform is not None
    head = replace(model.head, transform=replace(model.head.transform, activation="relu"))
    spec = replace(loaded.spec, model=replace(model, head=head))
    with pytest.raises(InputError, match="activation = 'relu' would become 'gelu'"):
        save(tmp_path / "out", spec, loaded.model, None, model_type="roberta")
