"""Sentence pairs in ids: two texts side by side with their types, or each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel

from addnorm.data.tokenizing.tokenizers import Tokenizer


class Read(NamedTuple):
    """The ids of a text, or of two, and of two the type of each id and where each text lies.

    `spans` has the places where the first text starts and stops, and those of the second; special
    tokens are outside.
    """

    ids: list[int]
    types: Sequence[int] = ()
    spans: Sequence[int] = ()


def pairs_as_read(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Read]:
    """The ids of two texts that are read together, and which of them each id belongs to.

    Devlin et al. 2019, §3: sentence types 0 and 1, where the tokenizer tells them apart.
    """
    layout = _pair_layout(tokenizer)
    sides = (tokenizer.encode_batch([pair[i] for pair in pairs]) for i in range(2))
    return [layout.around(*both) for both in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _PairLayout:
    """The special tokens before, between and after two texts with their types, and the texts'."""

    special: Sequence[tuple[Sequence[int], Sequence[int]]]
    types: Sequence[int]
    order: Sequence[int] = (0, 1)
    """Which of the two texts comes first."""

    def around(self, *texts: list[int]) -> Read:
        """Both texts with the special tokens around them."""
        ids, types = ([*side] for side in self.special[0])
        spans: list[int] = [0, 0, 0, 0]
        for text, (special, special_types) in zip(self.order, self.special[1:], strict=True):
            spans[2 * text : 2 * text + 2] = len(ids), len(ids) + len(texts[text])
            ids += [*texts[text], *special]
            types += [self.types[text]] * len(texts[text]) + [*special_types]
        return Read(ids, types, spans)


def _pair_layout(tokenizer: Tokenizer) -> _PairLayout:
    """As the file of a tokenizer from elsewhere says; with one of ours, `bos A eos B eos`."""
    if tokenizer.before is None:
        eos = tokenizer.eos_ids[:1]
        special = ((tokenizer.bos_id,), (0,)), (eos, [0] * len(eos)), (eos, [1] * len(eos))
        return _PairLayout(special, (0, 1))
    word = WordTokenizer(WordLevel({"a": 0}, "a"))
    found = tokenizer.inner.post_process(word.encode("a"), word.encode("a"))
    texts = [i for i, special in enumerate(found.special_tokens_mask) if not special]
    starts, stops = [0, *(i + 1 for i in texts)], [*texts, len(found.ids)]
    special = [
        (found.ids[start:stop], found.type_ids[start:stop])
        for start, stop in zip(starts, stops, strict=True)
    ]
    order = [found.sequence_ids[i] or 0 for i in texts]
    return _PairLayout(special, [found.type_ids[texts[order.index(i)]] for i in (0, 1)], order)
