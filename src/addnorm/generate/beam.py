"""Batched beam search with length-normalised scores."""

from collections.abc import Container, Sequence
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
from addnorm.generate.generated import Generated
from addnorm.generate.next_token import NOT_A_NUMBER, Ids, NextToken, floats, ints
from addnorm.generate.rules import NO_RULES, NO_TOKEN_ALLOWED, NOTHING, Rules, RulesConfig
from addnorm.generate.top_k import top_k


@config
class BeamConfig:
    """Keep the `beams` best hypotheses at every step; return the `n_best` best complete ones.

    A hypothesis of `n` tokens, its end included, scores `log p / ((5 + n) / 6) ** length_penalty`
    (Wu et al. 2016, arXiv 1609.08144, equation 14, without the coverage term); Vaswani et al. 2017
    translate with 0.6 and 4 beams. With `normaliser = "length"` it is `log p / n **
    length_penalty` (fairseq, Hugging Face transformers, CTranslate2). A `length_penalty` of 0
    scores the plain log p, and a negative one favours short hypotheses.

    With `width = "shrinking"`, a finished hypothesis keeps its place among the `beams`; with
    "constant", the next best takes its place (as in the same three libraries).

    `early_stopping` determines when a search ends before its limit. With "never", it ends when no
    better hypothesis can come, which changes no result; with `false`, when `beams` hypotheses are
    finished and the best unfinished one scores no better at its present length; with `true`, as
    soon as `beams` hypotheses are finished. Hypotheses that reach the limit without an end follow
    all finished ones with `unfinished = "last"`; with "ranked" they are ranked with them by score.

    `transformers` searches with `normaliser = "length"`, `width = "constant"`, `unfinished =
    "ranked"`, and by default a `length_penalty` of 1 and `early_stopping = false`.
    """

    kind: Literal["beam"] = "beam"
    beams: Annotated[int, Field(ge=1, le=1024)] = 5
    """The number of hypotheses kept at every step; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=-10.0, le=10.0)] = 0.6
    """The exponent of the length penalty: larger ones favour longer texts, 0 leaves the plain
    log p.
    """
    n_best: Annotated[int, Field(ge=1)] = 1
    """The number of complete hypotheses to return, best first."""
    normaliser: Literal["gnmt", "length"] = "gnmt"
    """The base of the exponent: `(5 + n) / 6` (GNMT), or the length `n` itself."""
    width: Literal["shrinking", "constant"] = "shrinking"
    """Whether a finished hypothesis keeps its place among the beams (`shrinking`) or leaves it to
    the next best (`constant`).
    """
    early_stopping: bool | Literal["never"] = "never"
    """Whether to stop as soon as `beams` hypotheses are finished (`true`), when no unfinished one
    scores better (`false`), or when none can become better (`never`).
    """
    unfinished: Literal["last", "ranked"] = "last"
    """The rank of hypotheses without an end: after all finished ones, or by their score."""
    rules: RulesConfig = NO_RULES
    """Constraints on the generated tokens."""

    def __post_init__(self) -> None:
        if self.n_best > self.beams:
            raise ValueError(f"`n_best = {self.n_best}` needs as many `beams`, not {self.beams}")

    def candidates(self, n_ends: int) -> int:
        """The number of candidate extensions: enough that `beams` of them do not end.

        At most `n_ends` extensions of a hypothesis end, one for each end token. With a shrinking
        width, `beams` candidates.
        """
        return (1 + n_ends) * self.beams if self.width == "constant" else self.beams

    @property
    def kept(self) -> int:
        """The number of finished hypotheses kept: `n_best`, or `beams` to decide when to stop."""
        return self.n_best if self.early_stopping == "never" else self.beams

    def divisor(self, n: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The length normaliser: the divisor of the log-probability of `n` tokens."""
        return (
            n.float() if self.normaliser == "length" else (5.0 + n) / 6.0
        ) ** self.length_penalty


@dataclass
class Beams:
    """The search state of the open sentences: `live` and finished (`done`) hypotheses.

    Both hold the tokens so far, including end tokens; finished ones are padded with zeros. The live
    hypotheses of a sentence have `length` tokens; where other sentences have more, its hypotheses
    are padded with -1 on the left. A score of -inf marks an empty slot. Finished scores are
    length-normalised and sorted, live ones are plain log p.
    """

    live: Int[Tensor, "batch beams seq"]
    live_scores: Float[Tensor, "batch beams"]
    done: Int[Tensor, "batch kept seq"]
    done_scores: Float[Tensor, "batch kept"]
    length: Int[Tensor, " batch"]

    @classmethod
    def start(cls, batch: int, n_done: int, device: torch.device) -> "Beams":
        """Start with one empty live hypothesis per sentence, with log p = 0."""
        return cls(
            live=torch.empty(batch, 1, 0, dtype=torch.long, device=device),
            live_scores=torch.zeros(batch, 1, device=device),
            done=torch.empty(batch, n_done, 0, dtype=torch.long, device=device),
            done_scores=torch.full((batch, n_done), -inf, device=device),
            length=torch.zeros(batch, dtype=torch.long, device=device),
        )

    def keep(self, sentences: Int[Tensor, " kept"]) -> "Beams":
        """Keep only these sentences, of which there must be at least one."""
        length = self.length[sentences]
        used = slice(self.live.shape[2] - int(length.max()), None)
        return Beams(
            live=self.live[sentences][:, :, used],
            live_scores=self.live_scores[sentences],
            done=self.done[sentences][:, :, used],
            done_scores=self.done_scores[sentences],
            length=length,
        )

    def joined(self, other: "Beams") -> "Beams":
        """These sentences, followed by those of another search with equally many beams."""
        width = max(self.live.shape[2], other.live.shape[2])
        ours, theirs = (
            (_padded(each.live, width), _padded(each.done, width)) for each in (self, other)
        )
        return Beams(
            live=torch.cat([ours[0], theirs[0]]),
            live_scores=torch.cat([self.live_scores, other.live_scores]),
            done=torch.cat([ours[1], theirs[1]]),
            done_scores=torch.cat([self.done_scores, other.done_scores]),
            length=torch.cat([self.length, other.length]),
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

    At each step, those of a sentence's `beams` best extensions that end are set aside, and the best
    that do not end are extended further, their number depending on `decoding.width`. By default a
    sentence is closed when no live hypothesis can still beat a finished one: log p only decreases,
    so `live / divisor(limit)` is an upper bound of the final score, and closing early does not
    change the result. Unfinished hypotheses, marked "length", are returned only if too few
    hypotheses ended within the limit. Closed sentences leave the batch at once. `ends` are the end
    tokens; `rules` modify the log p of tokens. Raises `InputError` if the rules allow no token.
    """
    search = BeamSearch(next_token, prompts, decoding, limits, ends, rules)
    results: list[list[Generated]] = [[] for _ in prompts]
    while search.sentences:
        for i, best in search.advance():
            if isinstance(best, InputError):
                raise best
            results[i] = best
    return results


class BeamSearch:
    """A `beam_search` step by step; `sentences` are the numbers of the prompts still open."""

    def __init__(
        self,
        next_token: NextToken,
        prompts: Sequence[Ids],
        decoding: BeamConfig,
        limits: Sequence[int],
        ends: Ids,
        rules: Rules | None = None,
    ) -> None:
        self.sentences = list(range(len(prompts)))
        self._begun = len(prompts)
        self._next_token = next_token
        self._decoding = decoding
        self._ends = ends
        self._rules = rules
        logits = next_token.start(prompts)
        self._logits: Tensor | None = logits
        self._limit = torch.tensor(limits, device=logits.device)
        self._beams = Beams.start(len(prompts), decoding.kept, logits.device)

    @property
    def width(self) -> int:
        """The number of hypotheses to extend per sentence: one at the start, then the beams."""
        return self._beams.live.shape[1]

    def advance(self) -> list[tuple[int, list[Generated] | InputError]]:
        """Extend all hypotheses by one token; return the sentences that are now closed.

        Each has its results, or the reason why there are none.
        """
        logits, self._logits = self._logits, None
        if logits is None:
            logits = self._next_token.step(self._beams.live[:, :, -1].flatten())
        self._beams, parents = extend(
            self._beams, logits, self._decoding, self._ends, self._limit, self._rules
        )
        closed = is_closed(self._beams, self._decoding, self._limit)
        closed = closed | self._beams.live_scores.isnan().any(-1)
        results = [
            (self.sentences[i], hypotheses(self._beams, i, self._decoding, self._ends))
            for i in ints(closed.nonzero()[:, 0])
        ]
        self._keep((~closed).nonzero()[:, 0], parents)
        return results

    def drop(self, sentences: Container[int]) -> None:
        """Close some sentences without results; called between two steps."""
        places = [i for i, sentence in enumerate(self.sentences) if sentence not in sentences]
        n, width = self._beams.live.shape[:2]
        rows = torch.arange(n * width, device=self._limit.device).view(n, width)
        still_open = rows.new_tensor(places)
        if self._logits is not None:
            self._logits = self._logits[rows[still_open].flatten()]
        self._keep(still_open, rows)

    def join(self, other: "BeamSearch") -> int:
        """Add the sentences of another search; return the number that its sentence 0 gets here.

        Both have the same decoding, ends and `width`, and are between two steps. The rows of their
        `NextToken` must be joined by the caller.
        """
        first = self._begun
        self.sentences += [first + i for i in other.sentences]
        self._begun += other._begun
        self._beams = self._beams.joined(other._beams)
        self._limit = torch.cat([self._limit, other._limit])
        if self._rules is not None and other._rules is not None:
            self._rules = self._rules.joined(other._rules)
        return first

    def _keep(self, still_open: Int[Tensor, " kept"], parents: Int[Tensor, "batch beams"]) -> None:
        """Keep only these sentences; their hypotheses extend the rows `parents`."""
        self.sentences = [self.sentences[i] for i in ints(still_open)]
        if not self.sentences:
            return
        self._beams, self._limit = self._beams.keep(still_open), self._limit[still_open]
        self._rules = None if self._rules is None else self._rules.keep(still_open)
        self._next_token.select(parents[still_open].flatten())


def extend(
    beams: Beams,
    logits: Float[Tensor, "rows vocab"],
    decoding: BeamConfig,
    ends: Ids,
    limit: Int[Tensor, " batch"],
    rules: Rules | None = None,
) -> tuple[Beams, Int[Tensor, "batch beams"]]:
    """Extend the hypotheses by one token; also return the row of each one's parent in `logits`."""
    batch, width, _ = beams.live.shape
    log_p = logits.log_softmax(-1)
    if rules is not None:
        log_p = rules.apply(log_p, beams.live.flatten(0, 1))
    scores, tokens, parents = best_extensions(
        beams.live_scores, log_p, decoding.candidates(len(ends))
    )
    history = torch.cat([_take(beams.live, parents), tokens[..., None]], dim=-1)
    ended = torch.isin(tokens, tokens.new_tensor(ends))
    length = beams.length + 1
    first = slice(decoding.beams)
    complete = ended[:, first]
    if decoding.unfinished == "ranked":
        complete = complete | (limit <= length)[:, None]
    done, done_scores = _merge(
        beams,
        history[:, first],
        scores[:, first].masked_fill(~complete, -inf) / decoding.divisor(length)[:, None],
    )
    n_live = min(decoding.beams, scores.shape[-1])
    live_scores, live = scores.masked_fill(ended, -inf).topk(n_live, dim=-1)
    first_row = torch.arange(batch, device=logits.device)[:, None] * width
    state = Beams(
        live=_take(history, live),
        live_scores=live_scores,
        done=done,
        done_scores=done_scores,
        length=length,
    )
    return state, first_row + parents.gather(-1, live)


def best_extensions(
    live_scores: Float[Tensor, "batch beams"], log_p: Float[Tensor, "rows vocab"], beams: int
) -> tuple[Float[Tensor, "batch new"], Int[Tensor, "batch new"], Int[Tensor, "batch new"]]:
    """The scores, tokens and parents of the best extensions of each sentence.

    At most `beams` of a sentence's best extensions share a parent, so only the `beams` best tokens
    of each row are considered.
    """
    batch, width = live_scores.shape
    log_p, tokens = top_k(log_p, min(beams, log_p.shape[-1]))
    scores = (live_scores[..., None] + log_p.view(batch, width, -1)).flatten(1)
    scores, places = scores.topk(min(beams, scores.shape[-1]), dim=-1)
    return scores, tokens.view(batch, -1).gather(-1, places), places // log_p.shape[-1]


def _merge(
    beams: Beams,
    history: Int[Tensor, "batch new seq"],
    scores: Float[Tensor, "batch new"],
) -> tuple[Int[Tensor, "batch n_best seq"], Float[Tensor, "batch n_best"]]:
    """Merge the hypotheses that have just ended into the finished ones, keeping the best."""
    padded = torch.nn.functional.pad(beams.done, (0, 1))
    candidates = torch.cat([beams.done_scores, scores], dim=-1)
    best, places = candidates.topk(beams.done_scores.shape[-1], dim=-1)
    return _take(torch.cat([padded, history], dim=1), places), best


def _take(
    rows: Int[Tensor, "batch old seq"], places: Int[Tensor, "batch new"]
) -> Int[Tensor, "batch new seq"]:
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))


def _padded(rows: Int[Tensor, "batch some seq"], width: int) -> Int[Tensor, "batch some width"]:
    """Rows of tokens padded with `NOTHING` on the left."""
    return torch.nn.functional.pad(rows, (width - rows.shape[-1], 0), value=NOTHING)


def is_closed(beams: Beams, decoding: BeamConfig, limit: Int[Tensor, " batch"]) -> torch.Tensor:
    """A mask of the sentences that have reached their limit or that `early_stopping` stops."""
    length, worst = beams.length, beams.done_scores[:, -1]
    if decoding.early_stopping is True:
        return (worst > -inf) | (limit <= length)
    gains = decoding.early_stopping == "never" and decoding.length_penalty > 0
    grown = limit if gains else length
    bound = beams.live_scores.amax(-1) / decoding.divisor(grown)
    return (bound <= worst) | (limit <= length)


def hypotheses(
    beams: Beams, i: int, decoding: BeamConfig, ends: Ids
) -> list[Generated] | InputError:
    """The best hypotheses of sentence `i`: finished ones first, each kind ordered by score.

    Where there are none, the reason.
    """
    if bool(beams.live_scores[i].isnan().any()):
        return InputError(NOT_A_NUMBER)
    cut = beams.live_scores[i] / decoding.divisor(beams.length[i])
    kinds = [(beams.done[i], floats(beams.done_scores[i]))]
    if decoding.unfinished == "last":
        kinds.append((beams.live[i], floats(cut)))
    ranked = [
        _generated(ints(ids), score, ends)
        for kind, scores in kinds
        for ids, score in zip(kind, scores, strict=True)
        if score > -inf
    ]
    return ranked[: decoding.n_best] or InputError(NO_TOKEN_ALLOWED)


def _generated(ids: list[int], score: float, ends: Ids) -> Generated:
    """Cut a hypothesis at its end token; if it has none, it reached the length limit."""
    ids = [token for token in ids if token != NOTHING]
    written = tuple(takewhile(lambda token: token not in ends, ids))
    finished = "eos" if len(written) < len(ids) else "length"
    return Generated("", score, finished, ids=written)
