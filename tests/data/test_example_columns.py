"""Examples in columns: the same as one by one, and built only when they are asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from addnorm.data import Corpus, Pair, TableConfig, Text
from addnorm.data.example_columns import ExampleColumns, chosen, joined, source_texts, target_texts
from addnorm.data.readers.rows import complete, lowered_corpus
from addnorm.data.tokenizing.tokenizers import WordConfig
from addnorm.models import EncoderDecoderConfig
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.training.trainer import TrainConfig

SOURCES, TARGETS = ["A", "b c", "D"], ["x", "Y", "z"]
PAIRS = [*map(Pair, SOURCES, TARGETS)]


def pairs() -> ExampleColumns:
    return ExampleColumns(Pair, [[*SOURCES], [*TARGETS]])


def test_they_are_the_sequence_of_examples() -> None:
    columns = pairs()
    assert columns == PAIRS
    assert [*columns] == PAIRS
    assert columns == PAIRS
    assert columns[-1] == PAIRS[-1]
    assert columns[1:] == PAIRS[1:]
    assert len(columns) == 3
    assert columns != PAIRS[:2]
    assert columns != [*PAIRS[:2], Pair("D", "other")]
    with pytest.raises(IndexError):
        columns[3]
    assert (source_texts(columns), target_texts(columns)) == (SOURCES, TARGETS)
    assert (source_texts(PAIRS), target_texts(PAIRS)) == (SOURCES, TARGETS)
    texts = ExampleColumns(Text, [["a", "b"]])
    assert texts == [Text("a"), Text("b")]
    assert target_texts(texts) == ["", ""]


def test_parts_stay_in_columns_if_all_are() -> None:
    whole = joined([pairs(), pairs()])
    assert isinstance(whole, ExampleColumns)
    assert whole == [*PAIRS, *PAIRS]
    assert joined([pairs(), PAIRS[:1]]) == [*PAIRS, *PAIRS[:1]]
    assert joined([]) == []
    some = chosen(pairs(), [True, False, True])
    assert isinstance(some, ExampleColumns)
    assert some == [PAIRS[0], PAIRS[2]]
    assert chosen(PAIRS, [True, False, True]) == [PAIRS[0], PAIRS[2]]


def test_a_corpus_of_them_is_that_of_its_examples() -> None:
    ours, theirs = Corpus(pairs(), pairs()[:1]), Corpus(PAIRS, PAIRS[:1])
    assert ours == theirs
    assert complete(ours) == theirs
    assert ours.kind is Pair
    assert [*ours.source_texts()] == SOURCES
    assert [*ours.target_texts()] == TARGETS
    assert lowered_corpus(ours) == lowered_corpus(theirs)
    assert lowered_corpus(ours).train[0] == Pair("a", "x")
    assert replace(ours, train=pairs()[:1]).labels == ()


def test_few_examples_are_built_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.tsv"
    lines = ["source\ttarget", *(f"a {n}\tb {n % 7} c" for n in range(3000))]
    file.write_text("\n".join(lines))
    data = TableConfig(train=file, source="source", target="target", valid_fraction=0.1)
    built = list[Any]()
    plain = Pair.__init__

    def noted(pair: Pair, *texts: Any) -> None:
        built.append(texts)
        plain(pair, *texts)

    monkeypatch.setattr(Pair, "__init__", noted)
    model = EncoderDecoderConfig(d_model=8, n_layers=1)
    recipe = Recipe(data=data, model=model, tokenizer=WordConfig(), train=TrainConfig(steps=1))
    setup = TrainingSetup(recipe)
    setup.report(Console(quiet=True))
    assert len(setup.encoded.train) == 2700
    assert len(built) < 300  # those that the tests' checks of types look at among them
