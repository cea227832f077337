"""Texts as a model of each task reads them: ids with the special tokens around them."""

from collections.abc import Iterator, Sequence
from itertools import chain

from addnorm.data.examples import Example
from addnorm.data.ids.compact import side_by_side
from addnorm.data.ids.sentence_pairs import Read, pairs_as_read
from addnorm.data.tokenizing.prompts import around
from addnorm.data.tokenizing.tokenizers import Tokenizer


def as_read(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts, with the special tokens with which a model of the task reads them.

    A tokenizer from elsewhere says itself what these are, but for the end of a text to continue.
    """
    before, after = around(task, tokenizer)
    found = tokenizer.encode_batch(texts)
    for ids in found:  # in place: there may be millions
        ids[:0] = before
        ids += after
    return found


def words_as_read(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """The ids of a sentence to tag, and the index among them of each word's first piece."""
    before, after = around("tagging", tokenizer)
    ids, first = tokenizer.encode_words(words)
    return [*before, *ids, *after], [i + len(before) for i in first]


AT_ONCE = 4096
"""Texts that are tokenised at once."""


def in_groups(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """The ids of texts as a model of the task reads them, not of all at once."""
    for i in range(0, len(texts), AT_ONCE):
        yield from as_read(task, tokenizer, texts[i : i + AT_ONCE])


def apart_as_read(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """The ids of two texts each, every text by itself: the two of a pair are neighbours."""
    texts = [text for pair in pairs for text in pair]
    return [row or [tokenizer.bos_id] for row in as_read("classification", tokenizer, texts)]


def whole_texts(
    tokenizer: Tokenizer, examples: Sequence[Example], *, apart: bool = False
) -> Iterator[Read]:
    """What is read of each text, or of each two: together, or `apart`, each by itself."""
    texts = [example.source_text() for example in examples]
    seconds = [example.second_text() for example in examples]
    if not any(seconds):
        return map(Read, in_groups("classification", tokenizer, texts))
    pairs = list(zip(texts, seconds, strict=True))
    groups = (pairs[i : i + AT_ONCE] for i in range(0, len(pairs), AT_ONCE))
    read = _side_by_side if apart else pairs_as_read
    return chain.from_iterable(read(tokenizer, some) for some in groups)


def _side_by_side(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """The ids of the two texts of each pair, each with its special tokens, and where each lies."""
    rows = apart_as_read(tokenizer, pairs)
    both = zip(rows[::2], rows[1::2], strict=True)
    return [Read(one + other, spans=side_by_side(one, other)) for one, other in both]
