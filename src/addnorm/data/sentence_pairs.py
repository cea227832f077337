"""Sentence pairs in ids: two texts side by side with their types, or each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tokenizers import Tokenizer as WordTokenizer
from tokenizers.models import WordLevel

from addnorm.data.tokenizers import Tokenizer


def pairs_as_read(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], list[int]]]:
    """The ids of two texts that are read together, and which of them each id belongs to.

    Devlin et al. 2019, §3: sentence types 0 and 1, where the tokenizer tells them apart.
    """
    layout = _pair_layout(tokenizer)
    sides = (tokenizer.encode_batch([pair[i] for pair in pairs]) for i in range(2))
    return [layout.around(*both) for both in zip(*sides, strict=True)]


@dataclass(frozen=True)
class _PairLayout:
    """The ids before, between and after two texts, and the type of each of the five parts."""

    before: Sequence[int]
    between: Sequence[int]
    after: Sequence[int]
    types: Sequence[int]

    def around(self, one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
        parts = (self.before, one, self.between, other, self.after)
        typed = ([kind] * len(part) for kind, part in zip(self.types, parts, strict=True))
        return [*chain(*parts)], [*chain(*typed)]


def _pair_layout(tokenizer: Tokenizer) -> _PairLayout:
    """As the file of a tokenizer from elsewhere says; with one of ours, `bos A eos B eos`."""
    if tokenizer.before is None:
        between = tokenizer.eos_ids[:1]
        return _PairLayout((tokenizer.bos_id,), between, between, (0, 0, 0, 1, 1))
    word = WordTokenizer(WordLevel({"a": 0}, "a"))
    found = tokenizer.inner.post_process(word.encode("a"), word.encode("a"))
    ids, types = found.ids, found.type_ids
    one, other = (i for i, special in enumerate(found.special_tokens_mask) if not special)
    places = (0, one, min(one + 1, other), other, len(ids) - 1)
    return _PairLayout(
        ids[:one], ids[one + 1 : other], ids[other + 1 :], [types[i] for i in places]
    )
