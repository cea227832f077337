"""Batches for masked language models: segments of text with some tokens hidden."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt

from addnorm.config import Probability, config
from addnorm.data.batches.batch import Batch, Loader, Loaders, padded, with_valid
from addnorm.data.batches.mask_units import NONE, MaskUnitsConfig, TokenUnitsConfig, WordBeginnings
from addnorm.data.batches.segments import Segment, SegmentBatches, Segments, tokenizer_of
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus, n_before
from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.special_tokens import MASK, mask_id_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError


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
