"""Classes by a model of entailment, beside the pipeline of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import addnorm as addnorm

from addnorm.errors import InputError
from addnorm.runs.inference.zero_shot import entailment_of, premises_and_hypotheses
from addnorm.runs.run import Run

Command = Callable[..., tuple[int, str, str]]
SENTENCE = "[PAD] [UNK] [CLS] [SEP] [MASK] this example is . a b politics sports about it the"
WORDS = SENTENCE.split()
LABELS = ["politics", "sports", "a b"]
TEXTS = ["the sports", "a b about it", "politics"]


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of random weights with the labels of entailment."""
    transformers: Any = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("nli")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32, initializer_range=1.0,
        id2label={0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"},
        label2id={"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("hypothesis", [None, "it is about {}."])
def test_probabilities_are_those_of_the_pipeline(hypothesis: str | None, nli: Path) -> None:
    import transformers

    pipeline: Any = transformers.pipeline("zero-shot-classification", model=str(nli), device="cpu")
    how = {} if hypothesis is None else {"hypothesis_template": hypothesis}
    run = Run.open(nli)
    results = run.classify(TEXTS, labels=LABELS, hypothesis=hypothesis)
    for text, result in zip(TEXTS, results, strict=True):
        theirs = pipeline(text, LABELS, **how)
        expected = dict(zip(theirs["labels"], theirs["scores"], strict=True))
        assert result.probabilities == {
            label: pytest.approx(expected[label], abs=1e-5) for label in LABELS
        }
        assert result.label == theirs["labels"][0]
    assert run.classify([], labels=LABELS) == []


@pytest.mark.usefixtures("types_unchecked")
def test_the_command(nli: Path, tmp_path: Path, addnorm: Command) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    code, out, err = addnorm("classify", nli, file, "--json", "--labels", *LABELS)
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    results = Run.open(nli).classify(TEXTS, labels=LABELS)
    assert [row["label"] for row in rows] == [result.label for result in results]
    code, out, err = addnorm("classify", nli, file, "--hypothesis", "about {}")
    assert (code, out) == (2, "")
    assert "give --labels too" in err or "give `labels` too" in err


@pytest.mark.parametrize(
    ("texts", "labels", "hypothesis", "message"),
    [
        (["a"], ["x"], "{}", "give at least two"),
        (["a"], ["x", "x"], "{}", "each once"),
        (["a"], ["x", ""], "{}", "one of them is empty"),
        (["a"], ["x", " "], "{}", "one of them is empty"),
        (["a"], ["x", "y"], "about", "needs a {}"),
        ([("a", "b")], ["x", "y"], "{}", "give no pairs"),
    ],
)
def test_what_cannot_be_compared(
    texts: Any, labels: list[str], hypothesis: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        premises_and_hypotheses(texts, labels, hypothesis)


def test_a_model_without_entailment_is_refused() -> None:
    assert entailment_of("m", ["contradiction", "entailment"]) == 1
    with pytest.raises(InputError, match="this one has good, bad"):
        entailment_of("m", ["good", "bad"])
