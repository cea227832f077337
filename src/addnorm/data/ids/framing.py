"""Texts and pairs as ids, framed by the special tokens that models of each task expect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel

from addnorm.data.example_columns import source_texts
from addnorm.data.examples import Example
from addnorm.data.ids.compact import Rows, narrow, side_by_side
from addnorm.data.tokenizing.codecs import together
from addnorm.data.tokenizing.sides import around
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tokenizing.word_ids import WordIds


def encode_for_task(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts with the special tokens that models of this task expect.

    An imported tokenizer declares these itself, but for the end of a text to continue.
    """
    before, after = around(task, tokenizer)
    rows = tokenizer.encode_batch(texts)
    for ids in rows:  # changed in place, since there may be millions
        ids[:0] = before
        ids += after
    return rows


def unframed(ids: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return ids without the special tokens before and after, where present."""
    rest = [*ids]
    if rest[: len(before)] == [*before]:
        del rest[: len(before)]
    if after and rest[-len(after) :] == [*after]:
        del rest[-len(after) :]
    return rest


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the ids of a sentence to tag, and the index of each word's first piece."""
    before, after = around("tagging", tokenizer)
    ids, first = tokenizer.encode_words(words)
    return [*before, *ids, *after], [i + len(before) for i in first]


AT_ONCE = 4096
"""The number of pairs of texts that are tokenised at once."""

CHARACTERS = 2**22
"""The characters of texts that are tokenised at once."""


def in_groups(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids that `encode_for_task` returns, some megabytes of text at a time."""
    before, after = around(task, tokenizer)
    for group in _groups(tokenizer, texts):
        yield from ([*before, *ids, *after] for ids in map(group.__getitem__, range(len(group))))


def _groups(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Rows]:
    """Yield the ids of texts, some megabytes of text at a time."""
    words = WordIds(tokenizer)
    for group in together(texts, CHARACTERS) if texts else ([],):
        yield Rows.side_by_side(*words.encode(group))


def framed_rows(task: str, tokenizer: Tokenizer, texts: Sequence[str]) -> Rows:
    """Return the ids that `in_groups` yields, in one array."""
    before, after = around(task, tokenizer)
    groups = [*_groups(tokenizer, texts)]
    n = np.concatenate([group.lengths for group in groups])
    rows = Rows.side_by_side(
        np.zeros(int(n.sum()) + len(n) * (len(before) + len(after)), np.int32),
        n + len(before) + len(after),
    )
    stops = rows.starts + rows.lengths
    is_text = np.ones(len(rows.ids), np.bool_)
    places = [(rows.starts + k, i) for k, i in enumerate(before)]
    places += [(stops - k, i) for k, i in enumerate(reversed(after), 1)]
    for place, i in places:
        rows.ids[place], is_text[place] = i, False
    rows.ids[is_text] = np.concatenate([group.ids for group in groups])
    return replace(rows, ids=narrow(rows.ids))


def encode_separately(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return the ids of both texts of each pair, encoded separately, one after the other."""
    texts = [text for pair in pairs for text in pair]
    return [
        row or [tokenizer.bos_id] for row in encode_for_task("classification", tokenizer, texts)
    ]


class Read(NamedTuple):
    """The ids of one or two texts; for two, also each id's type and each text's span.

    `spans` has the start and stop of the first text and of the second, without special tokens.
    """

    ids: list[int]
    types: Sequence[int] = ()
    spans: Sequence[int] = ()


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """Return the texts of each pair as one sequence, with the sentence type of each id.

    Devlin et al. 2019, §3: types 0 and 1, where the tokenizer distinguishes them.
    """
    layout = _pair_layout(tokenizer)
    sides = (tokenizer.encode_batch([pair[i] for pair in pairs]) for i in range(2))
    return [layout.around(*texts) for texts in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _PairLayout:
    """The special tokens before, between and after two texts, and the type of each id."""

    special: Sequence[tuple[Sequence[int], Sequence[int]]]
    types: Sequence[int]
    order: Sequence[int] = (0, 1)
    """The indices of the two texts in the order in which they stand."""

    def around(self, *texts: list[int]) -> Read:
        """Return both texts with the special tokens around them."""
        ids, types = ([*side] for side in self.special[0])
        spans: list[int] = [0, 0, 0, 0]
        for text, (special, special_types) in zip(self.order, self.special[1:], strict=True):
            spans[2 * text : 2 * text + 2] = len(ids), len(ids) + len(texts[text])
            ids += [*texts[text], *special]
            types += [self.types[text]] * len(texts[text]) + [*special_types]
        return Read(ids, types, spans)


def _pair_layout(tokenizer: Tokenizer) -> _PairLayout:
    """Return the layout in an imported tokenizer's file; for our own, `bos A eos B eos`."""
    if tokenizer.before is None:
        eos = tokenizer.eos_ids[:1]
        special = ((tokenizer.bos_id,), (0,)), (eos, [0] * len(eos)), (eos, [1] * len(eos))
        return _PairLayout(special, (0, 1))
    word = WordTokenizer(WordLevel({"a": 0}, "a"))
    encoding = tokenizer.inner.post_process(word.encode("a"), word.encode("a"))
    texts = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    starts, stops = [0, *(i + 1 for i in texts)], [*texts, len(encoding.ids)]
    special = [
        (encoding.ids[start:stop], encoding.type_ids[start:stop])
        for start, stop in zip(starts, stops, strict=True)
    ]
    order = [encoding.sequence_ids[i] or 0 for i in texts]
    return _PairLayout(special, [encoding.type_ids[texts[order.index(i)]] for i in (0, 1)], order)


def whole_texts(
    tokenizer: Tokenizer, examples: Sequence[Example], *, apart: bool = False
) -> Iterator[Read]:
    """Yield the ids of each example's text or two texts, joined or `apart` (encoded separately)."""
    texts = source_texts(examples)
    seconds = [example.second_text() for example in examples]
    if not any(seconds):
        return map(Read, in_groups("classification", tokenizer, texts))
    pairs = list(zip(texts, seconds, strict=True))
    groups = (pairs[i : i + AT_ONCE] for i in range(0, len(pairs), AT_ONCE))
    read = _side_by_side if apart else encode_pairs
    return chain.from_iterable(read(tokenizer, group) for group in groups)


def _side_by_side(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """Return the ids of each pair's texts, with separate special tokens, and their spans."""
    rows = encode_separately(tokenizer, pairs)
    row_pairs = zip(rows[::2], rows[1::2], strict=True)
    return [Read(first + second, spans=side_by_side(first, second)) for first, second in row_pairs]
