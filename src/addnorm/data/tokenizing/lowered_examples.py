"""Examples in lower case; their labels and tags stay as they are."""

from dataclasses import fields, replace
from typing import Any, cast

from addnorm.data.examples import Chat, Corpus, Example
from addnorm.data.media import has_signals
from addnorm.data.tokenizing.word_splitting import lower_case


def lowered(example: Example) -> Example:
    """Return the example with its texts, but not its labels, in lower case."""
    kind = type(example)
    if isinstance(example, Chat) or (has_signals(kind.medium) and not kind.writes):
        return example
    labels = () if kind.writes else kind.targets
    names = (field.name for field in fields(example) if field.name not in labels)  # pyright: ignore[reportArgumentType]
    return replace(example, **{name: _lowered(getattr(example, name)) for name in names})  # pyright: ignore[reportArgumentType,reportUnknownVariableType]


def _lowered(value: Any) -> Any:
    """Return a text, or each of several, in lower case; anything else unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_lowered, cast(tuple[Any, ...], value)))
    return lower_case(value) if isinstance(value, str) else value


def lowered_corpus(corpus: Corpus) -> Corpus:
    """Return the corpus with all of its texts in lower case."""
    if corpus.lowercase:
        return corpus
    splits = {split: [*map(lowered, examples)] for split, examples in corpus.splits.items()}
    return replace(corpus, **splits, lowercase=True)
