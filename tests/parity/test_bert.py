"""BERT against transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.encoders import check_same, output
from tests.parity.families import check_refused, made, padded, prompts
from torch.testing import assert_close

from addnorm.convert.folder import load, save
from addnorm.errors import InputError
from addnorm.nn.heads import ClassificationHeadConfig, HiddenHeadConfig, TokenHeadConfig

pytestmark = pytest.mark.parity

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}


def config(**changes: object) -> transformers.BertConfig:
    labels = {0: "red", 1: "green", 2: "blue"}
    return transformers.BertConfig(**{**SMALL, "id2label": labels, **changes})


def batch() -> dict[str, torch.Tensor]:
    ids, valid = padded(prompts(64), left=False)
    return {"input_ids": ids, "attention_mask": valid.long(), "token_type_ids": ids % 2}


def rewritten(folder: Path, change: Any) -> None:
    """The weights of a folder, changed."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def test_labels(tmp_path: Path) -> None:
    _, loaded = made("BertForTokenClassification", config(), tmp_path)
    assert loaded.spec.labels == ("red", "green", "blue")
    save(tmp_path / "out", loaded.spec, loaded.model, None, model_type="bert")
    opened = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert opened.id2label == {0: "red", 1: "green", 2: "blue"}
    assert opened.label2id == {"red": 0, "green": 1, "blue": 2}


def test_without_a_pooler(tmp_path: Path) -> None:
    """The hidden states as they are, there and back."""
    theirs, _ = made("BertModel", config(), tmp_path)
    rewritten(tmp_path, lambda w: {k: v for k, v in w.items() if "pooler" not in k})
    check_same(theirs, tmp_path, batch(), "last_hidden_state")
    loaded = load(tmp_path)
    assert loaded.spec.model.head == HiddenHeadConfig()
    save(tmp_path / "out", loaded.spec, loaded.model, None, model_type="bert")
    assert load(tmp_path / "out").spec == loaded.spec
    opened, info = transformers.BertModel.from_pretrained(
        tmp_path / "out",
        add_pooling_layer=False,
        output_loading_info=True,
        dtype=torch.float64,
    )
    assert not any(info.values()), info
    expected = output(theirs, batch(), "last_hidden_state")
    assert_close(output(opened, batch(), "last_hidden_state"), expected, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*are left aside:addnorm.errors.IgnoredSettings")
def test_the_first_layout_of_the_hub_loads(tmp_path: Path) -> None:
    """Names of TensorFlow, the positions as a buffer, the decoder twice, all heads there."""
    theirs, _ = made("BertForPreTraining", config(), tmp_path)

    def older(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        old = {
            k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): v
            for k, v in weights.items()
        }
        old["bert.embeddings.position_ids"] = torch.arange(20)[None]
        table = weights["bert.embeddings.word_embeddings.weight"]
        old["cls.predictions.decoder.weight"] = table.clone()
        old["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
        return old

    rewritten(tmp_path, older)
    check_same(theirs, tmp_path, batch(), "prediction_logits")
    head = load(tmp_path).spec.model.head
    assert isinstance(head, TokenHeadConfig)
    assert head.tied


def test_a_body_without_the_prefix(tmp_path: Path) -> None:
    """`BertModel` saves its tensors bare, and opens those of a model with a head."""
    theirs, _ = made("BertModel", config(), tmp_path)
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "model.safetensors")
    rewritten(tmp_path, lambda w: {f"bert.{k}": v for k, v in w.items()})
    check_same(theirs, tmp_path, batch(), "pooler_output")


def test_keys_of_the_first_converted_files(tmp_path: Path) -> None:
    _, loaded = made("BertModel", config(), tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    relics = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token"}
    (tmp_path / "config.json").write_text(json.dumps(tree | relics))
    assert load(tmp_path).spec == loaded.spec


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["BertForMultipleChoice"]}, "Valid: BertModel, BertForMaskedLM"),
        ({"is_decoder": True}, "is_decoder = True is not supported, only false"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"hidden_act": "gelu_nwe"}, "Did you mean 'gelu_new'"),
        ({"type_vocab_size": 0}, "type_vocab_size = 0 must be from 1"),
        ({"something_new": 3}, "something_new = 3 is not supported"),
        ({"num_attention_heads": 3}, "does not divide into n_heads = 3"),
        ({"id2label": {"0": "a", "2": "b"}}, "without a gap"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("BertForSequenceClassification", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_tied_tensors_that_differ_are_refused(tmp_path: Path) -> None:
    made("BertForMaskedLM", config(tie_word_embeddings=False), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(InputError, match="they differ: set tie_word_embeddings = false"):
        load(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "seqpool"])
def test_another_pooling_is_refused(pooling: Any, tmp_path: Path) -> None:
    _, loaded = made("BertForSequenceClassification", config(), tmp_path)
    model = replace(loaded.spec.model, head=ClassificationHeadConfig(pooling=pooling))
    with pytest.raises(InputError, match=rf"pooling = '{pooling}' would become 'first'"):
        save(
            tmp_path / "out",
            replace(loaded.spec, model=model),
            loaded.model,
            None,
            model_type="bert",
        )
