"""Batches for denoising: an encoder reads corrupted text, and the decoder restores it."""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt

from addnorm.config import WORD, Probability, config
from addnorm.data.batches.batch import Batch, Loader, Loaders
from addnorm.data.batches.masked import name_of
from addnorm.data.batches.segments import Segment, SegmentBatches, Segments, tokenizer_of
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus
from addnorm.data.ids.framing import around
from addnorm.data.ids.layout import padded, with_valid
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import MASK, SENTINELS, mask_id_of, sentinel_ids_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError


class Noise(Protocol):
    """A corruption of texts: `corrupt` returns the encoder's input and the decoder's target."""

    def corrupt(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]: ...


class SpanCorruption:
    """Replaces spans by sentinels; in the target, each span follows its sentinel."""

    def __init__(self, share: float, mean_span: float, sentinels: Sequence[int]) -> None:
        self.share = share
        self.mean_span = mean_span
        self.sentinels = np.array(sentinels)

    def corrupt(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the text with sentinels for spans, and the spans, each after its sentinel.

        The target ends with one more sentinel, as in figure 2 of the paper.
        """
        starts, stops = self.spans(len(ids), rng)
        first = np.repeat(False, len(ids))
        first[starts] = True
        inside = np.repeat(False, len(ids))
        for start, stop in zip(starts, stops, strict=True):
            inside[start:stop] = True
        source = np.where(first, self.sentinels[np.cumsum(first) - 1], ids)[~inside | first]
        marked = np.insert(ids, starts, self.sentinels[: len(starts)])
        in_target = np.insert(inside, starts, True)
        return source, np.append(marked[in_target], self.sentinels[len(starts)])

    def n_spans(self, n: int) -> tuple[int, int]:
        """Return how many of `n` tokens to hide, and in how many spans."""
        hidden = min(max(round(n * self.share), 1), n)
        most = min(hidden, n - hidden + 1)  # at least one token separates two spans
        return hidden, min(max(round(hidden / self.mean_span), 1), most)

    def spans(self, n: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Draw the start and the end of each span; all divisions are equally likely."""
        hidden, k = self.n_spans(n)
        lengths = _parts(hidden, k, rng)
        # The tokens before, between and after the spans; only before and after may be none.
        gaps = _parts(n - hidden + 2, k + 1, rng)
        gaps[0] -= 1
        starts = np.cumsum(gaps[:-1]) + np.cumsum(lengths) - lengths
        return starts, starts + lengths


def _parts(n: int, k: int, rng: np.random.Generator) -> Ids:
    """Draw `k` positive integers with sum `n`; all combinations are equally likely."""
    cuts = np.sort(rng.permutation(n - 1)[: k - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [n]]))


@config
class SpanCorruptionConfig:
    """T5's span corruption (Raffel et al. 2020, §3.1.4): spans give way to sentinels.

    "Thank you for inviting me" may be read as "Thank you <extra_id_0> me", to which the answer is
    "<extra_id_0> for inviting <extra_id_1>".
    """

    kind: Literal["spans"] = "spans"
    share: Annotated[Probability, Field(gt=0.0)] = 0.15
    """The share of tokens to hide."""
    mean_span: Annotated[PositiveFloat, Field(ge=1.0)] = 3.0
    """The mean length of a span, in tokens."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer needs in addition to the usual special ones."""
        return SENTINELS

    def build(self, tokenizer: Tokenizer, most: int) -> SpanCorruption:
        """Build the noise for texts of `most` tokens. Raises `InputError` for too few sentinels."""
        noise = SpanCorruption(self.share, self.mean_span, sentinel_ids_of(tokenizer))
        _, n = noise.n_spans(most)
        if n >= len(noise.sentinels):
            raise InputError(
                f"train.batching.seq_len: {most} tokens have {n} spans, and the tokenizer has "
                f"{len(noise.sentinels)} sentinels, one of which ends the answer: a smaller "
                "seq_len, a smaller share or a larger mean_span"
            )
        return noise


class TextInfilling:
    """Replaces each span by one mask token; the target is the whole text."""

    def __init__(
        self,
        share: float,
        mean_span: float,
        mask_id: int,
        *,
        sentence_ends: Ids | None = None,
    ) -> None:
        self.share = share
        self.mean_span = mean_span
        self.mask_id = mask_id
        self.sentence_ends = sentence_ends

    def corrupt(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the text with masks, its sentences permuted if so configured, and the original
        text.
        """
        source = ids if self.sentence_ends is None else self.permuted(ids, rng)
        left = round(self.share * len(ids))
        hidden = np.repeat(False, len(ids))
        masks = np.zeros(len(ids), np.int64)
        while left > 0:
            length = min(int(rng.poisson(self.mean_span)), left)
            start = int(rng.integers(len(ids) - length, endpoint=True))
            # An empty span still inserts a mask, and counts as one token.
            masks[min(start, len(ids) - 1)] += 1
            hidden[start : start + length] = True
            left -= max(length, 1)
        # Spans that touch or overlap are one span.
        continues = np.concatenate([[False], hidden[:-1]]) & hidden
        n_masks = np.where(hidden, ~continues, masks)
        pieces = [
            [self.mask_id] * int(n) + ([] if is_hidden else [int(i)])
            for i, n, is_hidden in zip(source, n_masks, hidden, strict=True)
        ]
        return np.array([i for piece in pieces for i in piece], np.int64), ids

    def permuted(self, ids: Ids, rng: np.random.Generator) -> Ids:
        """Return the sentences in a random order."""
        assert self.sentence_ends is not None
        ends = np.flatnonzero(np.isin(ids[:-1], self.sentence_ends)) + 1
        sentences = np.split(ids, ends)
        return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


@config
class InfillingConfig:
    """BART's text infilling (Lewis et al. 2020, §2.2): spans give way to one mask each.

    The lengths of spans are Poisson-distributed, so some are empty; the target is the whole text.
    """

    kind: Literal["infilling"] = "infilling"
    share: Annotated[Probability, Field(gt=0.0)] = 0.3
    """The share of tokens to hide."""
    mean_span: PositiveFloat = 3.0
    """The mean length of a span, in tokens."""
    sentences: Literal["in_order", "permuted"] = "in_order"
    """Whether the encoder reads sentences, which end at full stops, in a random order."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer needs in addition to the usual special ones."""
        return (MASK,)

    def build(self, tokenizer: Tokenizer, most: int) -> TextInfilling:
        """Build the noise, for texts of any length."""
        ends = None
        if self.sentences == "permuted":
            ids = range(tokenizer.vocab_size)
            ends = np.array([i for i in ids if name_of(tokenizer, i).endswith(".")], np.int64)
        return TextInfilling(self.share, self.mean_span, mask_id_of(tokenizer), sentence_ends=ends)


NoiseConfig = Annotated[SpanCorruptionConfig | InfillingConfig, Field(discriminator="kind"), WORD]
"""Any corruption of texts."""


class Denoising(Loader[Segment]):
    """Batches of text segments with their targets; each epoch corrupts them differently.

    Without a seed, segments and corruption are always the same.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        config: "DenoisingConfig",
        tokenizer: Tokenizer,
        *,
        seed: int | None = None,
    ) -> None:
        self.before, self.after = around("translation", tokenizer)
        room = config.seq_len - len(self.before) - len(self.after)
        if room < 2:
            raise InputError(
                f"train.batching.seq_len = {config.seq_len} has no room for 2 tokens of text "
                f"and {len(self.before) + len(self.after)} special ones"
            )
        self.noise: Noise = config.noise.build(tokenizer, room)
        self.segments = Segments(examples, tokenizer, room)
        self.batch_size = config.batch_size
        self.tokenizer = tokenizer
        self.seed = seed

    def plan(self, epoch: int) -> SegmentBatches:
        """Return segments of similar length, each with the seed of its corruption."""
        return self.segments.batches(self.seed, epoch, self.batch_size)

    def build(self, items: Sequence[Segment]) -> Batch:
        """Return the corrupted segments with their targets."""
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        for item in items:
            rng = np.random.default_rng(int(item[3]))
            source, target = self.noise.corrupt(self.segments.text(item), rng)
            sources.append([*self.before, *source.tolist(), *self.after])
            targets.append([*self.before, *target.tolist(), *self.after])
        shifted = [[self.tokenizer.bos_id, *target[:-1]] for target in targets]
        inputs = {
            **self.padded("source", "source_valid", sources),
            **self.padded("target", "target_valid", shifted),
        }
        width = inputs["target"].shape[1]
        labels = padded([torch.tensor(target) for target in targets], IGNORE, width)
        return Batch.of(inputs, labels, [int(item[0]) for item in items])

    def padded(self, name: str, valid: str, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        """Return rows as an argument of the model, with a mask if some are padded."""
        tensors = [torch.tensor(row) for row in rows]
        return with_valid(name, valid, tensors, self.tokenizer.pad_id, max(map(len, rows)))


@config
class DenoisingConfig:
    """For denoising: an encoder–decoder that learns from plain texts to restore corrupted ones.

    The corruption is new in every epoch; that of validation is always the same.
    """

    kind: Literal["denoising"] = "denoising"
    batch_size: PositiveInt = 32
    """Segments of text in a batch."""
    seq_len: Annotated[int, Field(ge=3)] = 128
    """The most tokens in a segment before it is corrupted, special ones included."""
    noise: NoiseConfig = SpanCorruptionConfig()
    """How text is corrupted, and the target that the decoder learns."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokens that a tokenizer needs in addition to the usual special ones."""
        return self.noise.special_tokens

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of plain texts. Raises `InputError` for other data, missing tokens."""
        tokenizer = tokenizer_of(corpus, self.kind)
        return Loaders.of(
            corpus, seed, lambda examples, seed: Denoising(examples, self, tokenizer, seed=seed)
        )
