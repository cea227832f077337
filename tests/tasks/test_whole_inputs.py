"""Texts of a split that are encoded all at once are those encoded one by one."""

from typing import Any

import pytest

from addnorm.data.examples import Corpus, Example, Labelled, MultiLabelled, Scored
from addnorm.data.ids.compact import Encoded
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import WordConfig
from addnorm.tasks.registry import task_named

TEXTS = ("a b", " b\n a", "", "c\u3000a c")
SPLITS: list[list[Example]] = [
    [Labelled(text, "xy"[n % 2]) for n, text in enumerate(TEXTS)],
    [MultiLabelled(text, ("x", "y")[n % 2 :]) for n, text in enumerate(TEXTS)],
    [Scored(text, (n / 3, -1.0)) for n, text in enumerate(TEXTS)],
]


def plain(read: Encoded) -> tuple[Any, ...]:
    values = None if read.values is None else read.values.tolist()
    return read.index, read.tokens, read.targets, values, [*read.types], [*read.spans]


@pytest.mark.parametrize("examples", SPLITS)
def test_a_split_is_encoded_as_each_example(examples: list[Example]) -> None:
    corpus = Corpus(examples)
    task = task_named(corpus.task)
    tokenizers = Tokenizers.train(WordConfig(), corpus)
    numbers = {label: n for n, label in enumerate(corpus.labels)}
    split = task.encode_split(examples, tokenizers, numbers)
    one_by_one = [*task.encode(examples, tokenizers, numbers)]
    assert [*map(plain, split)] == [*map(plain, one_by_one)]
    assert len(task.encode_split([], tokenizers, numbers)) == 0
