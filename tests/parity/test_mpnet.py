"""MPNet against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.encoders import check_encoder, check_same
from tests.parity.families import check_refused, made, padded, prompts

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
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "vocab_size": 101,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 7,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    },
    "untied": {"tie_word_embeddings": False},
}
HEADS = {
    "Model": "pooler_output",
    "ForMaskedLM": "logits",
    "ForSequenceClassification": "logits",
    "ForTokenClassification": "logits",
}


def config(**changes: object) -> Any:
    return transformers.MPNetConfig(**SMALL | changes)


@pytest.mark.long
@pytest.mark.parametrize("ending", HEADS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(changes: dict[str, Any], ending: str, tmp_path: Path) -> None:
    check_encoder(f"MPNet{ending}", config(**changes), tmp_path, pick=HEADS[ending], pad=1)


def test_texts_longer_than_the_last_bucket(tmp_path: Path) -> None:
    made_of = config(max_position_embeddings=202)
    theirs, _ = made("MPNetModel", made_of, tmp_path)
    ids, valid = padded(prompts(64, (200, 3, 131)), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "pooler_output")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["MPNetForQuestionAnswering"]}, "Valid: MPNetModel"),
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16"),
        ({"pad_token_id": 0}, "pad_token_id = 0 is not supported, only 1"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    made("MPNetForMaskedLM", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_other_buckets_cannot_be_written(tmp_path: Path) -> None:
    _, loaded = made("MPNetForMaskedLM", config(), tmp_path)
    model = replace(loaded.spec.model, position=LearnedT5Config(buckets=16))
    spec = replace(loaded.spec, model=model)
    with pytest.raises(InputError, match=r"position\.buckets = 16 would become 32"):
        save(tmp_path / "out", spec, model.build(64), None, model_type="mpnet")
