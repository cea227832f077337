"""Sentence pairs in ids: two texts in one sequence, with their types and spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel

from addnorm.data.tokenizing.tokenizers import Tokenizer


class Read(NamedTuple):
    """The ids of one or two texts; for two, also the type of each id and the span of each text.

    `spans` has the start and stop of the first text and of the second, without special tokens.
    """

    ids: list[int]
    types: Sequence[int] = ()
    spans: Sequence[int] = ()


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """Return two texts of each pair as one sequence, with the sentence type of each id.

    Devlin et al. 2019, §3: types 0 and 1, where the tokenizer distinguishes them.
    """
    layout = _pair_layout(tokenizer)
    sides = (tokenizer.encode_batch([pair[i] for pair in pairs]) for i in range(2))
    return [layout.around(*texts) for texts in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _PairLayout:
    """The special tokens before, between and after two texts, and the types of all."""

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
    """Return the layout of an imported tokenizer's file; for one of ours, `bos A eos B eos`."""
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
