"""Two texts that are read together: cross-encoders, as transformers reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.convert import vocabularies
from tests.parity.families import started
from torch import Tensor
from torch.testing import assert_close

import addnorm
from addnorm.cli.main import status
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 80,
}
PAIRS = [("the cat", "a small dog"), ("x", "the river is long"), ("", "the cat")]
KINDS: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "bert": (vocabularies.bert, "Bert", SIZES),
    "roberta": (vocabularies.roberta, "Roberta", SIZES | {"type_vocab_size": 1}),
    "xlm-roberta": (vocabularies.xlm_roberta, "XLMRoberta", SIZES | {"type_vocab_size": 2}),
    "distilbert": (
        vocabularies.distilbert,
        "DistilBert",
        {"dim": 16, "n_heads": 2, "n_layers": 2, "hidden_dim": 24},
    ),
}


def made(folder: Path, kind: str, **changes: Any) -> tuple[Any, Any]:
    """A classifier of theirs with its tokenizer, saved in a folder."""
    make, stem, sizes = KINDS[kind]
    make(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = getattr(transformers, f"{stem}Config")(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes | changes
    )
    torch.manual_seed(0)
    theirs = started(getattr(transformers, f"{stem}ForSequenceClassification")(config))
    theirs.save_pretrained(folder)
    return theirs, tokenizer


def expected(theirs: Any, tokenizer: Any) -> Tensor:
    one, other = zip(*PAIRS, strict=True)
    with torch.no_grad():
        return theirs(**tokenizer([*one], [*other], padding=True, return_tensors="pt")).logits


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cross_encoder(kind: str, saved: bool, tmp_path: Path) -> None:
    """One output is a number; with the tokenizer's older files, or those of today."""
    theirs, tokenizer = made(tmp_path, kind, num_labels=1)
    if saved:
        tokenizer.save_pretrained(tmp_path)
    found = addnorm.load(tmp_path).predict(PAIRS)
    assert_close(found, expected(theirs, tokenizer), rtol=0, atol=1e-5)
    single = addnorm.load(tmp_path).predict([" ".join(pair) for pair in PAIRS])
    assert (found - single).abs().max() > 1e-3


def test_classes_of_pairs_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {0: "contradiction", 1: "entailment", 2: "neutral"}
    theirs, tokenizer = made(tmp_path / "nli", "bert", id2label=names)
    likely = expected(theirs, tokenizer).softmax(-1)
    found = addnorm.load(tmp_path / "nli").classify(PAIRS)
    assert [one.label for one in found] == [names[int(i)] for i in likely.argmax(-1)]
    assert_close(torch.tensor([[*one.probabilities.values()] for one in found]), likely)
    lines = tmp_path / "pairs.tsv"
    lines.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
    assert status(["classify", str(tmp_path / "nli"), str(lines), "--pairs"]) == 0
    assert capsys.readouterr().out.split() == [one.label for one in found]
    lines.write_text("the cat\tx\nno tab\n")
    assert status(["classify", str(tmp_path / "nli"), str(lines), "--pairs"]) == 2
    assert "pairs.tsv:2: 0 tabs, and a pair is two texts with one tab" in capsys.readouterr().err


def test_keys_of_sentence_transformers_and_a_tokenizer_that_leaves_types_out(
    tmp_path: Path,
) -> None:
    theirs, tokenizer = made(tmp_path, "bert", num_labels=1)
    tokenizer.save_pretrained(tmp_path)
    identity = "torch.nn.modules.linear.Identity"
    for name, changes in (
        ("config.json", {"sentence_transformers": {"activation_fn": identity}}),
        ("config.json", {"sbert_ce_default_activation_function": identity}),
        ("tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]}),
    ):
        file = tmp_path / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    _check_untyped(tmp_path, theirs, tokenizer)


def test_a_generic_tokenizer_class_has_no_types(tmp_path: Path) -> None:
    """Where `model_input_names` is missing, as in transformers."""
    theirs, tokenizer = made(tmp_path, "bert", num_labels=1)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("model_input_names", None)
    file.write_text(json.dumps(settings))
    _check_untyped(tmp_path, theirs, tokenizer)


def _check_untyped(folder: Path, theirs: Any, typed: Any) -> None:
    untyped = transformers.AutoTokenizer.from_pretrained(folder)
    assert "token_type_ids" not in untyped("a", "b")
    found = addnorm.load(folder).predict(PAIRS)
    assert_close(found, expected(theirs, untyped), rtol=0, atol=1e-5)
    assert (found - expected(theirs, typed)).abs().max() > 1e-3


def test_an_exported_cross_encoder_reads_pairs_alike(tmp_path: Path) -> None:
    theirs, tokenizer = made(tmp_path / "theirs", "bert", num_labels=1)
    addnorm.load(tmp_path / "theirs").export(tmp_path / "out", family="bert")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    reads = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert_close(expected(again.eval(), reads), expected(theirs, tokenizer), rtol=0, atol=1e-5)


@pytest.mark.parametrize("texts", [[("a", "b"), "c"], [("a", "b", "c")], [("a", 1)]])
def test_texts_other_than_pairs_are_refused(texts: Any, tmp_path: Path) -> None:
    made(tmp_path, "bert", num_labels=1)
    with pytest.raises(InputError, match=r"texts\[0\] = .* is not a (pair of strings|string)"):
        addnorm.load(tmp_path).predict(texts)
