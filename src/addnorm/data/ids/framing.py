"""Texts as ids with the special tokens around them that each task's models expect."""

from collections.abc import Iterator, Sequence
from itertools import chain

from addnorm.data.examples import Example
from addnorm.data.ids.compact import side_by_side
from addnorm.data.ids.sentence_pairs import Read, encode_pairs
from addnorm.data.tokenizing.prompts import around
from addnorm.data.tokenizing.tokenizers import Tokenizer


def encode_for_task(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, with the special tokens that models of the task expect.

    An imported tokenizer declares these itself, but for the end of a text to continue.
    """
    before, after = around(task, tokenizer)
    rows = tokenizer.encode_batch(texts)
    for ids in rows:  # changed in place, since there may be millions
        ids[:0] = before
        ids += after
    return rows


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the ids of a sentence to tag, and the index of each word's first piece in them."""
    before, after = around("tagging", tokenizer)
    ids, first = tokenizer.encode_words(words)
    return [*before, *ids, *after], [i + len(before) for i in first]


AT_ONCE = 4096
"""The number of texts that are tokenised at once."""


def in_groups(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield what `encode_for_task` returns, without holding the ids of all texts."""
    for i in range(0, len(texts), AT_ONCE):
        yield from encode_for_task(task, tokenizer, texts[i : i + AT_ONCE])


def encode_separately(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return the ids of both texts of each pair, encoded separately, the two as neighbours."""
    texts = [text for pair in pairs for text in pair]
    return [
        row or [tokenizer.bos_id] for row in encode_for_task("classification", tokenizer, texts)
    ]


def whole_texts(
    tokenizer: Tokenizer, examples: Sequence[Example], *, apart: bool = False
) -> Iterator[Read]:
    """Yield the ids of each example's text or two texts: these together, or `apart`, separately."""
    texts = [example.source_text() for example in examples]
    seconds = [example.second_text() for example in examples]
    if not any(seconds):
        return map(Read, in_groups("classification", tokenizer, texts))
    pairs = list(zip(texts, seconds, strict=True))
    groups = (pairs[i : i + AT_ONCE] for i in range(0, len(pairs), AT_ONCE))
    read = _side_by_side if apart else encode_pairs
    return chain.from_iterable(read(tokenizer, group) for group in groups)


def _side_by_side(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """Return the ids of the two texts of each pair, each with its special tokens, and its span."""
    rows = encode_separately(tokenizer, pairs)
    row_pairs = zip(rows[::2], rows[1::2], strict=True)
    return [Read(first + second, spans=side_by_side(first, second)) for first, second in row_pairs]
