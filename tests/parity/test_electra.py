"""ELECTRA against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_encoder, check_same
from tests.parity.families import changed, check_refused, made, padded, prompts

from addnorm.convert.folder import load
from addnorm.nn.heads import HiddenHeadConfig

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "embedding_size": 12,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "id2label": {0: "red", 1: "green", 2: "blue"},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "narrow": {},
    "equal": {"embedding_size": 16},
    "wide-odd": {
        "vocab_size": 101,
        "embedding_size": 25,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "intermediate_size": 7,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    },
    "untied": {"tie_word_embeddings": False, "type_vocab_size": 1},
}
HEADS = {
    "Model": "last_hidden_state",
    "ForMaskedLM": "logits",
    "ForSequenceClassification": "logits",
    "ForTokenClassification": "logits",
}


def config(**changes: object) -> Any:
    return transformers.ElectraConfig(**SMALL | changes)


@pytest.mark.long
@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(changes: dict[str, Any], ending: str, tmp_path: Path) -> None:
    types = changes.get("type_vocab_size", 2)
    check_encoder(f"Electra{ending}", config(**changes), tmp_path, pick=HEADS[ending], types=types)


def test_a_discriminator_is_read_as_its_body(tmp_path: Path) -> None:
    theirs, loaded = made("ElectraForPreTraining", config(), tmp_path)
    assert loaded.spec.model.head == HiddenHeadConfig()
    ids, valid = padded(prompts(64), left=False)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs.electra, tmp_path, batch, "last_hidden_state")


def test_the_default_width_of_the_table(tmp_path: Path) -> None:
    made("ElectraModel", config(embedding_size=128), tmp_path)
    changed(tmp_path, {}, without=("embedding_size",))
    assert load(tmp_path).spec.model.embedding.d_embed == 128


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["ElectraForMultipleChoice"]}, "Valid: ElectraModel"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"embedding_size": 8}, r"embed\.tokens\.weight has shape \(64, 12\), expected \(64, 8\)"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    made("ElectraForMaskedLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)
