"""Which tokens a masked language model has to predict: single ones, whole words, or spans."""

from collections.abc import Iterator
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field, PositiveInt

from addnorm.config import WORD, Probability, config
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.tokenizers import Tokenizer

NONE = -1
"""The group of a token that is not chosen."""


class Units(Protocol):
    """A choice of tokens: tokens of one group are masked, replaced or kept together."""

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """The group of each token, -1 for those that are not chosen, about `n` of them chosen.

        `begins` says of each token whether a word begins with it.
        """
        ...


@config
class TokenUnitsConfig:
    """Single tokens, each on its own (Devlin et al. 2019, §3.1)."""

    kind: Literal["tokens"] = "tokens"

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """Exactly `n` tokens."""
        found = np.full(len(begins), NONE)
        found[rng.permutation(len(begins))[:n]] = np.arange(n)
        return found


@config
class WordUnitsConfig:
    """All tokens of a word or none (whole-word masking, of the BERT repository, May 2019)."""

    kind: Literal["words"] = "words"

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """At most `n` tokens, but one word at least; each token is replaced on its own."""
        starts, stops = words_of(begins)
        chosen = np.zeros(len(begins), bool)
        left = n
        for i in rng.permutation(len(starts)):
            length = int(stops[i] - starts[i])
            if length <= left or left == n:
                chosen[starts[i] : stops[i]] = True
                left -= length
            if left <= 0:
                break
        return np.where(chosen, np.cumsum(chosen) - 1, NONE)


@config
class SpanUnitsConfig:
    """Spans of words that are masked together (SpanBERT: Joshi et al. 2020, §3.1).

    The number of words in a span is geometric, `P(l) = p (1 - p)^(l - 1)`, and `longest` at most.
    """

    kind: Literal["spans"] = "spans"
    p: Annotated[Probability, Field(gt=0.0)] = 0.2
    """The probability that a span ends after each of its words."""
    longest: PositiveInt = 10
    """The most words in a span."""

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """At most `n` tokens, but one word at least; spans are replaced as wholes."""
        starts, stops = words_of(begins)
        found = np.full(len(begins), NONE)
        left = n
        for group, first in enumerate(rng.permutation(len(starts))):
            words = range(first, min(first + self._length(rng), len(starts)))
            for i in words:
                length = int(stops[i] - starts[i])
                if found[starts[i]] != NONE or (length > left and left < n):
                    break
                found[starts[i] : stops[i]] = group
                left -= length
            if left <= 0:
                break
        return found

    def _length(self, rng: np.random.Generator) -> int:
        """Geometric up to `longest`: drawn again where it is longer."""
        weights = self.p * (1 - self.p) ** np.arange(self.longest)
        return 1 + int(np.searchsorted(np.cumsum(weights / weights.sum()), rng.random()))


def words_of(begins: Ids) -> tuple[Ids, Ids]:
    """Where each word starts and stops."""
    starts = np.flatnonzero(begins)
    if not len(starts) or starts[0]:
        starts = np.concatenate([[0], starts])
    return starts, np.append(starts[1:], len(begins))


MaskUnitsConfig = Annotated[
    TokenUnitsConfig | WordUnitsConfig | SpanUnitsConfig, Field(discriminator="kind"), WORD
]
"""Every way to choose tokens to predict."""


class WordBeginnings:
    """Tells which tokens begin a word, by their names in the vocabulary.

    WordPiece marks what goes on in a word by `##`; byte-level BPE and SentencePiece mark by `Ġ` and
    `▁` what begins one. In any other vocabulary, letters and digits go on in the word before them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = [name_of(tokenizer, i) for i in range(tokenizer.vocab_size)]
        self.begins = np.array([*_begin(names)], bool)
        self.is_word = np.array([_is_letter(name[-1:]) for name in names], bool)

    def of(self, ids: Ids) -> Ids:
        """Whether each of the tokens of a text begins a word."""
        follows = np.concatenate([[False], self.is_word[ids[:-1]]])
        return self.begins[ids] | ~follows


def name_of(tokenizer: Tokenizer, i: int) -> str:
    """The token of an id; empty for a special one, and where there is none."""
    return (tokenizer.codec.name(i) or "") if tokenizer.says(i) else ""


BEGINNINGS = "\u0120\u2581"
"""What byte-level BPE and SentencePiece write for the space before a word: `Ġ` and `▁`."""

BREAKS = "\u010a\u0109\u010d"
"""What byte-level BPE writes for the ends of lines and for tabs."""


def _begin(names: list[str]) -> Iterator[bool]:
    """Whether each token begins a word, as far as it alone can tell."""
    if any(name.startswith("##") for name in names):
        return (not name.startswith("##") for name in names)
    if any(name[:1] in BEGINNINGS for name in names if name) or all(len(n) < 2 for n in names):
        return (not _is_letter(name[:1]) for name in names)
    return (True for _ in names)


def _is_letter(sign: str) -> bool:
    return sign.isalnum() and sign not in BEGINNINGS + BREAKS
