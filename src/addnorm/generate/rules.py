"""Generation constraints: allowed and forced tokens, repetition penalties and length limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import config
from addnorm.data.tokenizing.grammars import Allowed, Grammar
from addnorm.errors import InputError, TextError
from addnorm.generate.timestamps import NOTHING, TimestampRules

Scores = Float[Tensor, "rows vocab"]
NO_TOKEN_ALLOWED = "the rules of decoding allow no token"


@config
class RulesConfig:
    """Constraints on generated tokens, under the names of `transformers`.

    Lengths count all tokens, those of the prompt or the start of a translation too, except where
    they say `new`. `max_length` and `max_new_tokens` are defaults for what the caller leaves out;
    of both, `max_new_tokens` holds.

    Scores are logarithms of probabilities in beam search and logits elsewhere, which only matters
    to the repetition penalty; they are not normalised again unless `renormalize_logits` is true.
    """

    max_new_tokens: PositiveInt | None = None
    """The maximum number of new tokens."""
    max_length: PositiveInt | None = None
    """The maximum length in tokens, prompt included."""
    min_new_tokens: NonNegativeInt = 0
    """The minimum number of new tokens before an end."""
    min_length: NonNegativeInt = 0
    """The minimum length in tokens before an end, prompt included."""
    no_repeat_ngram_size: NonNegativeInt = 0
    """No sequence of so many tokens is generated twice (Paulus et al. 2018, §2.5); 0 for any."""
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Divides positive scores of tokens that are there already, and multiplies negative ones
    (Keskar et al. 2019, §4.1).
    """
    suppress_tokens: tuple[NonNegativeInt, ...] = ()
    """Ids that are never generated."""
    begin_suppress_tokens: tuple[NonNegativeInt, ...] = ()
    """Ids that are not generated first."""
    forced_bos_token_id: NonNegativeInt | None = None
    """The id that comes first, after a single start token."""
    forced_eos_token_id: NonNegativeInt | None = None
    """The id that comes last, where a text reaches its limit."""
    renormalize_logits: bool = False
    """Whether scores are normalised again after the rules."""

    def limit(self, max_new_tokens: int | None, before: int, usual: int) -> int:
        """The maximum number of new tokens: `given`, else that of these rules, else `usual`.

        Raises `TextError` if `max_length` leaves no room for any after the `before` tokens.
        """
        if max_new_tokens is None:
            max_new_tokens = self.max_new_tokens
        if max_new_tokens is not None:
            return max_new_tokens
        if self.max_length is None:
            return usual
        if before >= self.max_length:
            raise TextError(
                f"a prompt of {before} tokens leaves none of max_length = {self.max_length}: "
                "give max_new_tokens"
            )
        return self.max_length - before


NO_RULES = RulesConfig()


@dataclass(frozen=True)
class Rules:
    """The rules for a batch of texts, with their prompts.

    `before` holds the prompts, padded with -1 on the left; `limits` is the maximum number of new
    tokens of each text, and `ends` are the end tokens. `stamps` are the rules of time stamps.
    """

    config: RulesConfig
    before: Int[Tensor, "texts prompt_seq"]
    limits: Int[Tensor, " texts"]
    ends: Sequence[int]
    stamps: TimestampRules | None = None

    @classmethod
    def over(
        cls,
        config: RulesConfig,
        before: Sequence[Sequence[int]],
        limits: Sequence[int],
        ends: Sequence[int],
        stamps: TimestampRules | None = None,
    ) -> "Rules | None":
        """Build the rules for texts with these prompts; None if there is no rule to apply."""
        if stamps is None and replace(config, max_new_tokens=None, max_length=None) == NO_RULES:
            return None
        width = max(map(len, before))
        filled = [[NOTHING] * (width - len(row)) + list(row) for row in before]
        return cls(config, torch.tensor(filled), torch.tensor(limits), tuple(ends), stamps)

    def keep(self, texts: Int[Tensor, " kept"]) -> "Rules":
        """Keep only these texts; texts may repeat."""
        texts = texts.to(self.before.device)
        return replace(self, before=self.before[texts], limits=self.limits[texts])

    def joined(self, other: "Rules") -> "Rules":
        """Rules for these texts, followed by those of `other`."""
        width = max(self.before.shape[1], other.before.shape[1])
        before = [
            F.pad(each.before, (width - each.before.shape[1], 0), value=NOTHING)
            for each in (self, other)
        ]
        limits = torch.cat([self.limits, other.limits])
        return replace(self, before=torch.cat(before), limits=limits)

    def apply(self, scores: Scores, written: Int[Tensor, "rows seq"]) -> Scores:
        """Apply the rules to the next-token scores, given the tokens `written` so far.

        Each text has the same number of rows, which are padded with -1 on the left. Forbidden
        tokens get -inf, forced tokens 0. Raises `InputError` for a rule about a token outside the
        vocabulary.
        """
        each, n = len(written) // len(self.before), (written != NOTHING).sum(1)
        before = self.before.to(written.device).repeat_interleave(each, 0)
        history = torch.cat([before, written], dim=1)
        if bool((n < written.shape[1]).any()):  # all padding to the left
            history = history.gather(1, (history != NOTHING).long().argsort(dim=1, stable=True))
        progress = Progress(
            length=(history != NOTHING).sum(1),
            new=n,
            limits=self.limits.to(written.device).repeat_interleave(each),
        )
        scores = constrained(scores, self.config, self.ends, history, progress)
        return scores if self.stamps is None else self.stamps.apply(scores, written)


@dataclass(frozen=True)
class Progress:
    """The number of tokens of each text, how many of them are new, and the most there may be.

    A prompt counts towards `length`, as the start of a translation does.
    """

    length: Int[Tensor, " rows"]
    new: Int[Tensor, " rows"]
    limits: Int[Tensor, " rows"]


def constrained(
    scores: Scores,
    config: RulesConfig,
    ends: Sequence[int],
    history: Int[Tensor, "rows seq"],
    progress: Progress,
) -> Scores:
    """Apply the rules to the next-token scores of texts with this history, padded with -1.

    Forbidden tokens get -inf, forced tokens 0. Raises `InputError` for a rule about a token outside
    the vocabulary.
    """
    check_rules(config, scores.shape[-1])
    scores = repetition_penalised(scores, history, config.repetition_penalty)
    if config.no_repeat_ngram_size:
        repeated = ngrams_repeated(history, config.no_repeat_ngram_size, scores.shape[-1])
        scores = scores.masked_fill(repeated, -inf)
    length, new = progress.length, progress.new
    short = (length < config.min_length) | (new < config.min_new_tokens)
    scores = _without(scores, ends, short)
    no_prompt = length - new == 1  # only a start token
    first, last = config.forced_bos_token_id, config.forced_eos_token_id
    if first is not None:
        scores = _forced(scores, first, no_prompt & (new == 0))
    if last is not None:
        scores = _forced(scores, last, progress.limits == new + 1)
    scores = _without(scores, config.suppress_tokens, torch.ones_like(no_prompt))
    begins = no_prompt.long() * (first is not None)  # a forced token comes before the first
    scores = _without(scores, config.begin_suppress_tokens, begins == new)
    if not config.renormalize_logits:
        return scores
    return scores.log_softmax(-1).masked_fill(scores == -inf, -inf)


def check_rules(config: RulesConfig, vocab: int) -> None:
    """Raise `InputError` for a rule about a token outside the vocabulary."""
    forced = (config.forced_bos_token_id, config.forced_eos_token_id)
    for i in (*config.suppress_tokens, *config.begin_suppress_tokens, *forced):
        if i is not None and i >= vocab:
            raise InputError(f"a rule names the token {i}: this model writes 0 to {vocab - 1}")


def repetition_penalised(
    scores: Scores, history: Int[Tensor, "rows seq"], penalty: float
) -> Scores:
    """Penalise tokens of the history: `s / penalty` if `s > 0`, else `s · penalty`.

    A penalty that the type rounds to 0 is its smallest normal number; no score becomes infinite.
    """
    if penalty == 1.0:
        return scores
    limits = torch.finfo(scores.dtype)
    penalty = max(penalty, limits.tiny)
    seen = _mask(history, torch.ones_like(history, dtype=torch.bool), scores.shape[-1])
    divided = (scores / penalty).clamp(max=limits.max)
    return torch.where(seen, torch.where(scores < 0, scores * penalty, divided), scores)


def ngrams_repeated(
    history: Int[Tensor, "rows seq"], n: int, vocab: int
) -> Bool[Tensor, "rows vocab"]:
    """A mask of the tokens that would repeat an n-gram of the history."""
    rows, length = history.shape
    if length < n:
        return torch.zeros(rows, vocab, dtype=torch.bool, device=history.device)
    latest = history[:, length + 1 - n :]
    sequences = history.unfold(1, n, 1)
    same = (sequences[..., :-1] == latest[:, None]).all(-1)
    return _mask(sequences[..., -1], same, vocab)


def _mask(
    ids: Int[Tensor, "rows seq"], chosen: Bool[Tensor, "rows seq"], vocab: int
) -> Bool[Tensor, "rows vocab"]:
    """A vocabulary mask of the chosen ids of each row; -1 is ignored."""
    places = torch.where(chosen & (ids >= 0), ids, vocab).clamp(max=vocab)
    mask = torch.zeros(len(ids), vocab + 1, dtype=torch.bool, device=ids.device)
    return mask.scatter_(1, places, True)[:, :vocab]


def _forced(scores: Scores, token: int, rows: Bool[Tensor, " rows"]) -> Scores:
    only = torch.full_like(scores, -inf)
    only[:, token] = 0.0
    return torch.where(rows[:, None], only, scores)


def _without(scores: Scores, tokens: Sequence[int], rows: Bool[Tensor, " rows"]) -> Scores:
    if not tokens:
        return scores
    without = scores.index_fill(1, scores.new_tensor(tokens, dtype=torch.long), -inf)
    return torch.where(rows[:, None], without, scores)


def within_grammars(
    scores: Scores, grammars: Sequence[Grammar | None], ends: Sequence[int]
) -> Scores:
    """The scores, with -inf for tokens that the text's grammar does not allow.

    An end token is allowed where the text may end.
    """
    if not any(grammars):
        return scores
    vocab = scores.shape[1]
    rows = [
        torch.ones(vocab, dtype=torch.bool)
        if grammar is None
        else _allowed(grammar.allowed(), vocab, ends)
        for grammar in grammars
    ]
    return scores.masked_fill(~torch.stack(rows).to(scores.device), -inf)


def _allowed(allowed: Allowed, vocab: int, ends: Sequence[int]) -> Bool[Tensor, " vocab"]:
    """A mask of the allowed tokens."""
    packed = bytearray(allowed.tokens.to_bytes(allowed.n_tokens // 8 + 1, "little"))
    bits = torch.frombuffer(packed, dtype=torch.uint8)
    mask = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)).bitwise_and(1).bool().flatten()
    n = min(vocab, allowed.n_tokens)
    row = torch.zeros(vocab, dtype=torch.bool)
    row[:n] = mask[:n]
    if ends:
        row[list(ends)] = allowed.end
    return row
