"""ELECTRA against transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_same
from tests.parity.families import changed, made, padded, prompts

from addnorm.convert.folder import load
from addnorm.errors import IgnoredSettings
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


def config(**changes: object) -> Any:
    return transformers.ElectraConfig(**SMALL | changes)


def test_a_discriminator_is_read_as_its_body(tmp_path: Path) -> None:
    with pytest.warns(IgnoredSettings, match=r"discriminator_predictions\.\* are left aside"):
        theirs, loaded = made("ElectraForPreTraining", config(), tmp_path)
    assert loaded.spec.model.head == HiddenHeadConfig()
    ids, valid = padded(prompts(64), left=False)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    with pytest.warns(IgnoredSettings, match="left aside"):
        check_same(theirs.electra, tmp_path, batch, "last_hidden_state")


def test_the_default_width_of_the_table(tmp_path: Path) -> None:
    made("ElectraModel", config(embedding_size=128), tmp_path)
    changed(tmp_path, {}, without=("embedding_size",))
    assert load(tmp_path).spec.model.embedding.d_embed == 128
