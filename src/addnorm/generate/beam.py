"""Beam search over a batch: the best few continuations by length-normalised log-probability."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.generate.next_token import Ids, NextToken, floats, ints
from addnorm.generate.rules import NO_RULES, Rules, RulesConfig
from addnorm.generate.text_decoding import Generated


@config
class BeamConfig:
    """Keep the `beams` best hypotheses at every step; return the `n_best` best complete ones.

    A hypothesis of `n` tokens, its end included, scores `log p / ((5 + n) / 6) ** length_penalty`
    (Wu et al. 2016, arXiv 1609.08144, equation 14, without the coverage term); 0.6 with 4 beams is
    what Vaswani et al. 2017 translate with. With `normaliser = "length"` it is `log p / n **
    length_penalty` (fairseq, Hugging Face transformers, CTranslate2). A `length_penalty` of 0
    scores the plain log p, and a negative one favours short ones.

    A hypothesis that ends keeps its place among the `beams` where `width = "shrinking"`; where it
    is "constant", the next best takes it (the same three libraries).

    `early_stopping` says when a search ends before its limit. "never" is when nothing better can
    come: closing changes no result. `false` is when `beams` hypotheses have ended and the best that
    has not is no better at its present length, as if it were never to gain by growing; `true` is as
    soon as `beams` have ended. What reaches the limit without an end comes after all that ended
    where `unfinished = "last"`, and among them by its score where it is "ranked".

    `transformers` searches with `normaliser = "length"`, `width = "constant"`, `unfinished =
    "ranked"`, and by default a `length_penalty` of 1 and `early_stopping = false`.
    """

    kind: Literal["beam"] = "beam"
    beams: Annotated[int, Field(ge=1, le=1024)] = 5
    """Hypotheses that are kept at every step; 1 is greedy."""
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] = 0.6
    """The exponent of the length penalty: larger ones favour longer texts, 0 leaves the plain
    log p.
    """
    n_best: Annotated[int, Field(ge=1)] = 1
    """How many complete hypotheses are returned, best first."""
    normaliser: Literal["gnmt", "length"] = "gnmt"
    """What the exponent is of: `(5 + n) / 6` (GNMT), or the length `n` itself."""
    width: Literal["shrinking", "constant"] = "shrinking"
    """Whether a finished hypothesis keeps its place among the beams or leaves it to the next
    best.
    """
    early_stopping: bool | Literal["never"] = "never"
    """Whether to stop as soon as `beams` hypotheses have ended, when no other looks better, or
    when none can get better.
    """
    unfinished: Literal["last", "ranked"] = "last"
    """Where hypotheses without an end stand: after all that ended, or by their score."""
    rules: RulesConfig = NO_RULES
    """What may be written whatever the model says."""

    def __post_init__(self) -> None:
        if self.n_best > self.beams:
            raise ValueError(f"n_best = {self.n_best} needs as many beams, not {self.beams}")

    def candidates(self, n_ends: int) -> int:
        """How many extensions are looked at: `beams`, or so many that as many do not end.

        Of the extensions of one hypothesis at most `n_ends` end, one by each end token.
        """
        return (1 + n_ends) * self.beams if self.width == "constant" else self.beams

    @property
    def kept(self) -> int:
        """How many that ended are kept: as many as are asked for, or as decide when to stop."""
        return self.n_best if self.early_stopping == "never" else self.beams

    def divisor(self, n: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What the log-probability of `n` tokens is divided by."""
        return (
            n.float() if self.normaliser == "length" else (5.0 + n) / 6.0
        ) ** self.length_penalty


@dataclass
class Beams:
    """The search state of the sentences still open: `live` hypotheses and the best `done` ones.

    Both hold the tokens so far, ends included; a done one is filled up with zeros. A score of
    -inf marks an empty place. Done scores are normalised and sorted, live ones plain log p.
    """

    live: Int[Tensor, "batch beams seq"]
    live_scores: Float[Tensor, "batch beams"]
    done: Int[Tensor, "batch kept seq"]
    done_scores: Float[Tensor, "batch kept"]

    @classmethod
    def start(cls, batch: int, kept: int, device: torch.device) -> "Beams":
        """One live hypothesis a sentence, of no tokens and log p = 0."""
        return cls(
            live=torch.empty(batch, 1, 0, dtype=torch.long, device=device),
            live_scores=torch.zeros(batch, 1, device=device),
            done=torch.empty(batch, kept, 0, dtype=torch.long, device=device),
            done_scores=torch.full((batch, kept), -inf, device=device),
        )

    def keep(self, sentences: Int[Tensor, " kept"]) -> "Beams":
        """The state of these sentences alone."""
        return Beams(
            live=self.live[sentences],
            live_scores=self.live_scores[sentences],
            done=self.done[sentences],
            done_scores=self.done_scores[sentences],
        )


def beam_search(
    next_token: NextToken,
    prompts: Sequence[Ids],
    decoding: BeamConfig,
    limits: Sequence[int],
    ends: Ids,
    rules: Rules | None = None,
) -> list[list[Generated]]:
    """The `n_best` continuations of each prompt, best first, at most `limits[i]` tokens long.

    At each step, those of the `beams` best extensions of a sentence that end are set aside, and the
    best that do not end are extended further, as many as `decoding.width` says. By default a
    sentence closes when no live hypothesis can still displace a kept one: log p only falls, so
    `live / divisor(limit)` bounds whatever it may become, and closing early changes nothing. Only
    where too few hypotheses ended within the limit do unfinished ones follow, marked "length".
    Closed sentences leave the batch at once. `ends` are the tokens that end a hypothesis; `rules`
    change the log p of a token. Raises `InputError` where the rules leave nothing to write.
    """
    logits = next_token.start(prompts)
    limit = torch.tensor(limits, device=logits.device)
    beams = Beams.start(len(prompts), decoding.kept, logits.device)
    sentences = torch.arange(len(prompts), device=logits.device)
    results: list[list[Generated]] = [[] for _ in prompts]
    while True:
        beams, parents = extend(beams, logits, decoding, ends, limit, rules)
        closed = is_closed(beams, decoding, limit)
        for i in ints(closed.nonzero()[:, 0]):
            results[int(sentences[i])] = hypotheses(beams, i, decoding, ends)
        kept = (~closed).nonzero()[:, 0]
        if len(kept) == 0:
            return results
        beams, sentences, limit = beams.keep(kept), sentences[kept], limit[kept]
        rules = None if rules is None else rules.keep(kept)
        next_token.select(parents[kept].flatten())
        logits = next_token.step(beams.live[:, :, -1].flatten())


def extend(
    beams: Beams,
    logits: Float[Tensor, "rows vocab"],
    decoding: BeamConfig,
    ends: Ids,
    limit: Int[Tensor, " batch"],
    rules: Rules | None = None,
) -> tuple[Beams, Int[Tensor, "batch beams"]]:
    """The state one token on, and the row of `logits` that each live hypothesis came from."""
    batch, width, _ = beams.live.shape
    log_p = logits.log_softmax(-1)
    if rules is not None:
        log_p = rules.apply(log_p, beams.live.flatten(0, 1))
    scores, tokens, parents = best_extensions(
        beams.live_scores, log_p, decoding.candidates(len(ends))
    )
    history = torch.cat([_take(beams.live, parents), tokens[..., None]], dim=-1)
    ended = torch.isin(tokens, tokens.new_tensor(ends))
    length = torch.tensor(history.shape[-1], device=logits.device)
    first = slice(decoding.beams)
    complete = ended[:, first]
    if decoding.unfinished == "ranked":
        complete = complete | (limit <= length)[:, None]
    done, done_scores = _merge(
        beams,
        history[:, first],
        scores[:, first].masked_fill(~complete, -inf) / decoding.divisor(length),
    )
    n_live = min(decoding.beams, scores.shape[-1])
    live_scores, live = scores.masked_fill(ended, -inf).topk(n_live, dim=-1)
    first_row = torch.arange(batch, device=logits.device)[:, None] * width
    state = Beams(
        live=_take(history, live), live_scores=live_scores, done=done, done_scores=done_scores
    )
    return state, first_row + parents.gather(-1, live)


def best_extensions(
    live_scores: Float[Tensor, "batch beams"], log_p: Float[Tensor, "rows vocab"], beams: int
) -> tuple[Float[Tensor, "batch new"], Int[Tensor, "batch new"], Int[Tensor, "batch new"]]:
    """Scores, tokens and parents of the best extensions of each sentence.

    No more than `beams` of a sentence's best can share a parent, so only that many per row are
    looked at.
    """
    batch, width = live_scores.shape
    log_p, tokens = log_p.topk(min(beams, log_p.shape[-1]), dim=-1)
    scores = (live_scores[..., None] + log_p.view(batch, width, -1)).flatten(1)
    scores, places = scores.topk(min(beams, scores.shape[-1]), dim=-1)
    return scores, tokens.view(batch, -1).gather(-1, places), places // log_p.shape[-1]


def _merge(
    beams: Beams,
    history: Int[Tensor, "batch new seq"],
    scores: Float[Tensor, "batch new"],
) -> tuple[Int[Tensor, "batch n_best seq"], Float[Tensor, "batch n_best"]]:
    """The best of the hypotheses already done and those that have just ended."""
    padded = torch.nn.functional.pad(beams.done, (0, 1))
    every = torch.cat([beams.done_scores, scores], dim=-1)
    kept, places = every.topk(beams.done_scores.shape[-1], dim=-1)
    return _take(torch.cat([padded, history], dim=1), places), kept


def _take(
    rows: Int[Tensor, "batch old seq"], places: Int[Tensor, "batch new"]
) -> Int[Tensor, "batch new seq"]:
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))


def is_closed(beams: Beams, decoding: BeamConfig, limit: Int[Tensor, " batch"]) -> torch.Tensor:
    """Which sentences are at their limit, or are to stop as `early_stopping` says."""
    length, worst = torch.tensor(beams.live.shape[-1]), beams.done_scores[:, -1]
    if decoding.early_stopping is True:
        return (worst > -inf) | (limit <= length)
    gains = decoding.early_stopping == "never" and decoding.length_penalty > 0
    grown = limit if gains else length
    bound = beams.live_scores.amax(-1) / decoding.divisor(grown)
    return (bound <= worst) | (limit <= length)


def hypotheses(beams: Beams, i: int, decoding: BeamConfig, ends: Ids) -> list[Generated]:
    """The best hypotheses of sentence `i`, done before unfinished, each kind best first."""
    cut = beams.live_scores[i] / decoding.divisor(torch.tensor(beams.live.shape[-1]))
    sides = [(beams.done[i], floats(beams.done_scores[i]))]
    if decoding.unfinished == "last":
        sides.append((beams.live[i], floats(cut)))
    found = [
        _generated(ints(ids), score, ends)
        for side, scores in sides
        for ids, score in zip(side, scores, strict=True)
        if score > -inf
    ]
    if not found:
        raise InputError("the rules of decoding leave no token to write")
    return found[: decoding.n_best]


def _generated(ids: list[int], score: float, ends: Ids) -> Generated:
    """A hypothesis up to its end; one without an end was cut."""
    written = _without_end(ids, ends)
    finished = "eos" if len(written) < len(ids) else "length"
    return Generated(ids=written, score=score, finished=finished)


def _without_end(ids: list[int], ends: Ids) -> tuple[int, ...]:
    return tuple(takewhile(lambda token: token not in ends, ids))
