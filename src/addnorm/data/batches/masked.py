"""Masked language modelling: the choice of tokens to predict, and batches that hide them."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, PositiveInt

from addnorm.config import WORD, Probability, config
from addnorm.data.batches.batch import Batch, Loader, Loaders
from addnorm.data.batches.segments import Segment, SegmentBatches, Segments, tokenizer_of
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus, n_before
from addnorm.data.ids.framing import around
from addnorm.data.ids.layout import padded, with_valid
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import MASK, mask_id_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

NONE = -1
"""The group of tokens that are not chosen."""


class Units(Protocol):
    """A rule that chooses groups of tokens; each group is masked, replaced or kept as a whole."""

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """Return the group of each of about `n` chosen tokens; -1 for the other tokens.

        `begins` tells whether a word begins with each token.
        """
        ...


@config
class TokenUnitsConfig:
    """Single tokens, each on its own (Devlin et al. 2019, §3.1)."""

    kind: Literal["tokens"] = "tokens"

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """Choose exactly `n` tokens."""
        groups = np.full(len(begins), NONE)
        groups[rng.permutation(len(begins))[:n]] = np.arange(n)
        return groups


@config
class WordUnitsConfig:
    """All tokens of a word or none (whole-word masking, of the BERT repository, May 2019)."""

    kind: Literal["words"] = "words"

    def groups(self, begins: Ids, n: int, rng: np.random.Generator) -> Ids:
        """Choose at most `n` tokens, but at least one word; each token is its own group."""
        starts, stops = word_bounds(begins)
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
        """Choose at most `n` tokens, but at least one word; each span is a group."""
        starts, stops = word_bounds(begins)
        groups = np.full(len(begins), NONE)
        left = n
        for group, first in enumerate(rng.permutation(len(starts))):
            words = range(first, min(first + self._length(rng), len(starts)))
            for i in words:
                length = int(stops[i] - starts[i])
                if groups[starts[i]] != NONE or (length > left and left < n):
                    break
                groups[starts[i] : stops[i]] = group
                left -= length
            if left <= 0:
                break
        return groups

    def _length(self, rng: np.random.Generator) -> int:
        """Draw from a geometric distribution, conditioned on at most `longest`."""
        weights = self.p * (1 - self.p) ** np.arange(self.longest)
        return 1 + int(np.searchsorted(np.cumsum(weights / weights.sum()), rng.random()))


def word_bounds(begins: Ids) -> tuple[Ids, Ids]:
    """Return the start and the end of each word."""
    starts = np.flatnonzero(begins)
    if not len(starts) or starts[0]:
        starts = np.concatenate([[0], starts])
    return starts, np.append(starts[1:], len(begins))


MaskUnitsConfig = Annotated[
    TokenUnitsConfig | WordUnitsConfig | SpanUnitsConfig, Field(discriminator="kind"), WORD
]
"""Any choice of tokens to predict."""


class WordBeginnings:
    """Finds the tokens that begin a word, by their spelling in the vocabulary.

    WordPiece marks tokens inside a word by `##`; byte-level BPE and SentencePiece mark tokens that
    begin one by `Ġ` and `▁`. In any other vocabulary, letters and digits continue the word before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = [name_of(tokenizer, i) for i in range(tokenizer.vocab_size)]
        self.begins = np.array([*_begin(names)], bool)
        self.is_word = np.array([_is_letter(name[-1:]) for name in names], bool)

    def of(self, ids: Ids) -> Ids:
        """Whether each token of a text begins a word."""
        follows = np.concatenate([[False], self.is_word[ids[:-1]]])
        return self.begins[ids] | ~follows


def name_of(tokenizer: Tokenizer, i: int) -> str:
    """Return the spelling of an id's token; empty for a special token and an unknown id."""
    return (tokenizer.codec.name(i) or "") if tokenizer.is_text(i) else ""


BEGINNINGS = "\u0120\u2581"
"""The characters that mean a space before a word: `Ġ` of byte-level BPE, `▁` of SentencePiece."""

BREAKS = "\u010a\u0109\u010d"
"""The characters that mean the end of a line or a tab in byte-level BPE."""


def _begin(names: list[str]) -> Iterator[bool]:
    """Return whether each token begins a word, judged without context."""
    if any(name.startswith("##") for name in names):
        return (not name.startswith("##") for name in names)
    if any(name[:1] in BEGINNINGS for name in names if name) or all(len(n) < 2 for n in names):
        return (not _is_letter(name[:1]) for name in names)
    return (True for _ in names)


def _is_letter(sign: str) -> bool:
    return sign.isalnum() and sign not in BEGINNINGS + BREAKS


class Masking:
    """Hides tokens of a text: each becomes the mask or a random token, or stays as it is."""

    def __init__(self, config: "MaskedConfig", tokenizer: Tokenizer) -> None:
        self.config = config
        self.mask_id = mask_id_of(tokenizer)
        self.beginnings = WordBeginnings(tokenizer)
        self.pieces = np.array([i for i in range(tokenizer.vocab_size) if tokenizer.is_text(i)])
        self.special = np.array(sorted(tokenizer.special_ids), np.int64)

    def hidden(self, ids: Ids, seed: int) -> tuple[Ids, Ids]:
        """Return the ids with hidden tokens as input, and the targets, -100 for other tokens.

        Special tokens, such as the unknown one, are never chosen.
        """
        rng, config = np.random.default_rng(seed), self.config
        candidates = np.flatnonzero(~np.isin(ids, self.special))
        inputs, targets = ids.copy(), np.full_like(ids, IGNORE)
        if not len(candidates):
            return inputs, targets
        n = max(1, round(config.share * len(candidates)))
        begins = self.beginnings.of(ids)[candidates]
        begins[1:] |= np.diff(candidates) > 1  # a special token ends a word
        groups = config.units.groups(begins, n, rng)
        chosen = candidates[groups != NONE]
        draws = rng.random(len(candidates) + 1)[groups[groups != NONE]]
        others = rng.choice(self.pieces, len(chosen))
        targets[chosen] = ids[chosen]
        visible_from = 1 - config.kept
        inputs[chosen] = np.where(draws < visible_from - config.random, self.mask_id, others)
        inputs[chosen] = np.where(draws >= visible_from, ids[chosen], inputs[chosen])
        return inputs, targets


class Masked(Loader[Segment]):
    """Batches of text segments with special tokens around them; masks are new every epoch.

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
                f"train.batching.seq_len = {config.seq_len} has no room for text and "
                f"{len(self.before) + len(self.after)} special tokens"
            )
        self.examples = examples
        self.segments = Segments(examples, tokenizer, room)
        self.masking = Masking(config, tokenizer)
        self.batch_size = config.batch_size
        self.pad_id = tokenizer.pad_id
        self.seed = seed

    def plan(self, epoch: int) -> SegmentBatches:
        """Return segments of similar length, each with the seed of its masks."""
        return self.segments.batches(self.seed, epoch, self.batch_size)

    def build(self, items: Sequence[Segment]) -> Batch:
        """Return the segments with their masks, and the hidden tokens as targets."""
        masked = [self.masking.hidden(self.segments.text(item), int(item[3])) for item in items]
        ignored = [IGNORE] * len(self.before), [IGNORE] * len(self.after)
        inputs = [torch.tensor([*self.before, *ids.tolist(), *self.after]) for ids, _ in masked]
        targets = [torch.tensor([*ignored[0], *ids.tolist(), *ignored[1]]) for _, ids in masked]
        width = max(map(len, inputs))
        return Batch.of(
            with_valid("inputs", "valid", inputs, self.pad_id, width),
            padded(targets, IGNORE, width),
            [int(item[0]) for item in items],
        )


def can_be_masked(examples: Sequence[Encoded], tokenizer: Tokenizer) -> list[bool]:
    """Whether each text has a token that can be hidden, since it is not special."""
    texts, special = Compact.as_documents(examples), np.array(sorted(tokenizer.special_ids))
    starts = texts.tokens.starts + n_before(tokenizer)
    fits = np.isin(texts.tokens.ids[starts], special, invert=True)
    for i in np.flatnonzero(~fits):  # for nearly all texts the first token is enough
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
    """The units to choose: single tokens, whole words, or spans of words."""
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
        """The tokens that a tokenizer needs in addition to the usual special ones."""
        return (MASK,)

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of plain texts; texts of only special tokens are skipped and counted.

        Raises `InputError` for other data, without a mask token, and where no text is left.
        """
        tokenizer = tokenizer_of(corpus, self.kind)
        fits = {k: can_be_masked(v, tokenizer) for k, v in corpus.splits.items()}
        what = "nothing but special tokens, none of which is predicted"
        corpus = corpus.keeping(fits, what, f"has {what}")
        return Loaders.of(
            corpus, seed, lambda examples, seed: Masked(examples, self, tokenizer, seed=seed)
        )
