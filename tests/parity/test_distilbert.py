"""DistilBERT against transformers."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.encoders import check_same
from tests.parity.families import made, padded, prompts

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "dim": 16,
    "n_heads": 2,
    "n_layers": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 20,
}


def config(**changes: object) -> transformers.DistilBertConfig:
    labels = {0: "red", 1: "green", 2: "blue"}
    return transformers.DistilBertConfig(**{**SMALL, "id2label": labels, **changes})


def test_older_files(tmp_path: Path) -> None:
    """The positions as a buffer, the scores' table twice, a key of the first versions."""
    theirs, _ = made("DistilBertForMaskedLM", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["distilbert.embeddings.position_ids"] = torch.arange(20)[None]
    table = weights["distilbert.embeddings.word_embeddings.weight"]
    weights["vocab_projector.weight"] = table.clone()
    save_file(weights, tmp_path / "model.safetensors")
    tree = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(tree | {"tie_weights_": True}))
    ids, valid = padded(prompts(64), left=False)
    check_same(theirs, tmp_path, {"input_ids": ids, "attention_mask": valid.long()})


def test_a_body_with_the_prefix(tmp_path: Path) -> None:
    theirs, _ = made("DistilBertModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({f"distilbert.{k}": v for k, v in weights.items()}, tmp_path / "model.safetensors")
    ids, valid = padded(prompts(64), left=False)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    check_same(theirs, tmp_path, batch, "last_hidden_state")
