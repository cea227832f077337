"""Masked language modelling: which tokens to predict, and batches of segments with these hidden."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, PositiveInt

from addnorm.config import WORD, Probability, config
from addnorm.data.batches.batch import Batch, Loader, Loaders, padded, with_valid
from addnorm.data.batches.segments import Segment, SegmentBatches, Segments, tokenizer_of
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus, n_before
from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.special_tokens import MASK, mask_id_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

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


class Masking:
    """Hides tokens of a text: most behind the mask token, some behind others, some not at all."""

    def __init__(self, config: "MaskedConfig", tokenizer: Tokenizer) -> None:
        self.config = config
        self.mask_id = mask_id_of(tokenizer)
        self.beginnings = WordBeginnings(tokenizer)
        self.parts = np.array([i for i in range(tokenizer.vocab_size) if tokenizer.says(i)])
        self.special = np.array(sorted(tokenizer.special_ids), np.int64)

    def hidden(self, ids: Ids, seed: int) -> tuple[Ids, Ids]:
        """The ids as the model reads them, and what it has to say: -100 where nothing.

        Special tokens, such as the unknown one, are never chosen.
        """
        rng, config = np.random.default_rng(seed), self.config
        able = np.flatnonzero(~np.isin(ids, self.special))
        read, targets = ids.copy(), np.full_like(ids, IGNORE)
        if not len(able):
            return read, targets
        n = max(1, round(config.share * len(able)))
        begins = self.beginnings.of(ids)[able]
        begins[1:] |= np.diff(able) > 1  # a word does not go on behind a special token
        groups = config.units.groups(begins, n, rng)
        chosen = able[groups != NONE]
        dice = rng.random(len(able) + 1)[groups[groups != NONE]]
        others = rng.choice(self.parts, len(chosen))
        targets[chosen] = ids[chosen]
        kept_from = 1 - config.kept
        read[chosen] = np.where(dice < kept_from - config.random, self.mask_id, others)
        read[chosen] = np.where(dice >= kept_from, ids[chosen], read[chosen])
        return read, targets


class Masked(Loader[Segment]):
    """Batches of segments of text between their special tokens; masks are new in every epoch.

    Without a seed, segments and masks are always the same.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        config: "MaskedConfig",
        tokenizer: Tokenizer,
        *,
        seed: int | None = None,
    ) -> None:
        self.before, self.after = around("classification", tokenizer)
        room = config.seq_len - len(self.before) - len(self.after)
        if room < 1:
            raise InputError(
                f"train.batching.seq_len = {config.seq_len} has no room for text beside "
                f"{len(self.before) + len(self.after)} special tokens"
            )
        self.examples = examples
        self.segments = Segments(examples, tokenizer, room)
        self.masking = Masking(config, tokenizer)
        self.batch_size = config.batch_size
        self.pad_id = tokenizer.pad_id
        self.seed = seed

    def plan(self, epoch: int) -> SegmentBatches:
        """Segments of similar length, each with the seed of its masks."""
        return self.segments.batches(self.seed, epoch, self.batch_size)

    def build(self, items: Sequence[Segment]) -> Batch:
        """The segments with their masks, and the tokens behind these as targets."""
        both = [self.masking.hidden(self.segments.text(one), int(one[3])) for one in items]
        nothing = [IGNORE] * len(self.before), [IGNORE] * len(self.after)
        read = [torch.tensor([*self.before, *ids.tolist(), *self.after]) for ids, _ in both]
        said = [torch.tensor([*nothing[0], *ids.tolist(), *nothing[1]]) for _, ids in both]
        width = max(map(len, read))
        return Batch.of(
            with_valid("inputs", "valid", read, self.pad_id, width),
            padded(said, IGNORE, width),
            [int(one[0]) for one in items],
        )


def can_be_masked(examples: Sequence[Encoded], tokenizer: Tokenizer) -> list[bool]:
    """Whether each text has a token that is not special, such as the unknown one."""
    texts, special = Compact.as_documents(examples), np.array(sorted(tokenizer.special_ids))
    starts = texts.tokens.starts + n_before(tokenizer)
    fits = np.isin(texts.tokens.ids[starts], special, invert=True)
    for i in np.flatnonzero(~fits):  # of nearly all texts the first token says it
        ids = texts.tokens.ids[starts[i] : texts.tokens.starts[i] + texts.tokens.lengths[i]]
        fits[i] = not np.isin(ids, special).all()
    return fits.tolist()


@config
class MaskedConfig:
    """For masked language models (Devlin et al. 2019, §3.1): an encoder with a token head.

    A share of the tokens is to be predicted. Of these, 80 % are replaced by the mask token, 10 % by
    random tokens, and 10 % stay as they are. Masks are new in every epoch; those of validation are
    always the same.
    """

    kind: Literal["masked"] = "masked"
    batch_size: PositiveInt = 32
    """Segments of text in a batch."""
    seq_len: Annotated[int, Field(ge=2)] = 128
    """The most tokens in a segment, special ones included."""
    share: Annotated[Probability, Field(gt=0.0)] = 0.15
    """The share of tokens to predict."""
    units: MaskUnitsConfig = TokenUnitsConfig()
    """What is chosen: single tokens, whole words, or spans of words."""
    random: Probability = 0.1
    """Of the tokens to predict, the share that a random token replaces."""
    kept: Probability = 0.1
    """Of the tokens to predict, the share that stays visible."""

    def __post_init__(self) -> None:
        if self.random + self.kept > 1:
            raise ValueError(
                f"random = {self.random} and kept = {self.kept} are more than all: their sum is at "
                "most 1"
            )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """What a tokenizer needs beside the usual special tokens."""
        return (MASK,)

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """The loaders of plain texts, without those of special tokens alone, which are counted.

        Raises `InputError` for other data, without a mask token, and where no text is left.
        """
        tokenizer = tokenizer_of(corpus, self.kind)
        fits = {k: can_be_masked(v, tokenizer) for k, v in corpus.splits.items()}
        what = "nothing but special tokens, none of which is predicted"
        corpus = corpus.keeping(fits, what, f"has {what}")
        return Loaders(
            Masked(corpus.train, self, tokenizer, seed=seed),
            Masked(corpus.valid, self, tokenizer) if corpus.valid else None,
            Masked(corpus.test, self, tokenizer) if corpus.test else None,
            corpus.reports,
        )
