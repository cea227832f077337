"""MPNet against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_same
from tests.parity.families import made, padded, prompts

from addnorm.convert.folder import save
from addnorm.errors import InputError
from addnorm.nn.positions import LearnedT5Config

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "id2label": {0: "red", 1: "green", 2: "blue"},
}


def config(**changes: object) -> Any:
    return transformers.MPNetConfig(**SMALL | changes)


def test_texts_longer_than_the_last_bucket(tmp_path: Path) -> None:
    made_of = config(max_position_embeddings=202)
    theirs, _ = made("MPNetModel", made_of, tmp_path)
    ids, valid = padded(prompts(64, (200, 3, 131)), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "pooler_output")


def test_other_buckets_cannot_be_written(tmp_path: Path) -> None:
    _, loaded = made("MPNetForMaskedLM", config(), tmp_path)
    model = replace(loaded.spec.model, position=LearnedT5Config(buckets=16))
    spec = replace(loaded.spec, model=model)
    with pytest.raises(InputError, match=r"position\.buckets = 16 would become 32"):
        save(tmp_path / "out", spec, model.build(64), None, model_type="mpnet")
