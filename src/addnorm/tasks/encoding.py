"""Encoding a corpus: the inputs of a model in ids, and its targets."""

from collections.abc import Sequence
from dataclasses import replace

from addnorm.data import Corpus
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.tasks.registry import task_named
from addnorm.tasks.task import Task
from addnorm.tasks.whole_inputs import OfWholeInputs


def encode(
    corpus: Corpus,
    tokenizers: Tokenizers | None,
    labels: Sequence[str] | None = None,
    advance: Advance = lambda _: None,
    *,
    apart: bool = False,
    task: Task | None = None,
) -> EncodedCorpus:
    """Encode every example; `labels` numbers the classes or tags, by default those of the corpus.

    The `task` is by default that of the examples. `advance` gets the encoded characters of a
    language model's texts. Data with text need `tokenizers`. With `apart` two texts are encoded
    separately. Raises `InputError` for an unknown label.
    """
    task = task_named(corpus.task) if task is None else task
    if apart:
        assert isinstance(task, OfWholeInputs)
        task = replace(task, apart=True)
    if tokenizers is None and corpus.has_text:
        raise InputError("the data have texts, but there is no tokenizer: give [tokenizer]")
    if tokenizers is not None and not corpus.has_text:
        raise InputError(
            f"the data are {corpus.medium}, which no tokenizer reads: leave [tokenizer] out"
        )
    names = corpus.labels if labels is None else labels
    numbers = {label: n for n, label in enumerate(names)}
    return task.encode_corpus(corpus, tokenizers, numbers, advance)
