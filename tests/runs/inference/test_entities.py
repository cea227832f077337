"""Entities beside the pipeline of transformers, by every way to aggregate."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import addnorm as addnorm

from addnorm.errors import InputError
from addnorm.runs.inference.entities import entities
from addnorm.runs.options import Aggregation
from addnorm.runs.run import Run

Command = Callable[..., tuple[int, str, str]]
SENTENCE = "[PAD] [UNK] [CLS] [SEP] [MASK] ada ##s ##by lives in new york ##er . , !"
WORDS = SENTENCE.split()
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = [
    "adasby  lives in new yorkers, york.",
    "ada",
    "new york yorker!  unseen adas in in new new york ",
    "",
]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of random weights that tags words."""
    transformers: Any = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tagger")
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=40, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    model = transformers.BertForTokenClassification(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        model.classifier.bias[0] -= 1.0  # fewer words outside of entities
    model.save_pretrained(folder)
    vocab = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab).save_pretrained(folder)
    return folder


@pytest.mark.parity
@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(aggregation: Aggregation, tagger: Path) -> None:
    from transformers import pipeline

    theirs = pipeline("token-classification", str(tagger), aggregation_strategy=aggregation)
    answers = entities(Run.open(tagger), TEXTS, aggregation)
    assert sum(map(len, answers)) > 5
    for text, row in zip(TEXTS[:3], answers[:3], strict=True):
        expected = [(e["entity_group"], e["start"], e["end"]) for e in theirs(text)]
        assert [(e.label, e.start, e.end) for e in row] == expected
        assert [e.score for e in row] == pytest.approx([float(e["score"]) for e in theirs(text)])
        assert all(text[e.start : e.end] == e.text for e in row)
    assert answers[3] == []


def test_the_command(addnorm: Command, tagger: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("adasby lives in new york\n\n")
    code, out, _ = addnorm("classify", tagger, tmp_path / "texts", "--aggregation", "max", "--json")
    row, empty = map(json.loads, out.splitlines())
    [expected] = entities(Run.open(tagger), ["adasby lives in new york"], "max")
    assert (code, empty) == (0, {"entities": []})
    assert [entity["text"] for entity in row["entities"]] == [entity.text for entity in expected]
    code, out, _ = addnorm("classify", tagger, tmp_path / "texts", "--aggregation", "max")
    assert out.splitlines()[0] == ", ".join(f"{e.label}: {e.text}" for e in expected)
    code, _, err = addnorm("classify", tagger, tmp_path / "texts", "--aggregation", "mux")
    assert code == 2
    assert "max" in err


def test_python_has_the_lines_of_the_command(tagger: Path) -> None:
    run = Run.open(tagger)
    [line] = run.classify_lines(["adasby lives in new york"], aggregation="first")
    [expected] = entities(run, ["adasby lives in new york"], "first")
    assert line.plain == ", ".join(f"{e.label}: {e.text}" for e in expected)
    with pytest.raises(InputError, match=r"`aggregation` .*: leave out `threshold`"):
        run.classify_lines(["ada"], aggregation="first", threshold=0.3)


def test_other_ways_are_rejected(tagger: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'max'"):
        entities(Run.open(tagger), ["ada"], "mix")  # type: ignore[arg-type]
