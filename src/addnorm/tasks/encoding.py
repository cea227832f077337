"""From a corpus to numbers: what a model reads, and what it learns to predict."""

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

    The `task` is by default that of the examples. `advance` hears how the texts for a language
    model come along. What is read or written as text has tokenizers. With `apart` each of two texts
    is encoded by itself. Raises `InputError` for a label that is not among them.
    """
    task = task_named(corpus.task) if task is None else task
    if apart:
        assert isinstance(task, OfWholeInputs)
        task = replace(task, apart=True)
    if tokenizers is None and corpus.has_text:
        raise InputError("the data have texts, and there is no tokenizer: give [tokenizer]")
    if tokenizers is not None and not corpus.has_text:
        raise InputError(
            f"the data are {corpus.medium}, which no tokenizer reads: leave [tokenizer] out"
        )
    names = corpus.labels if labels is None else labels
    numbers = {label: n for n, label in enumerate(names)}
    return task.encode_corpus(corpus, tokenizers, numbers, advance)
