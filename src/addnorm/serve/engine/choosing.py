"""Choosing the next tokens of many answers from their logits, by each request's options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from secrets import randbits
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from addnorm.data.tokenizing.grammars import Grammar
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, SampleConfig
from addnorm.generate.next_token import NOT_A_NUMBER, floats, ints
from addnorm.generate.rules import (
    NO_RULES,
    NO_TOKEN_ALLOWED,
    NOTHING,
    Progress,
    check_rules,
    constrained,
    within_grammars,
)
from addnorm.generate.sampling import draw, generator_of, maxima, most_probable, uniforms
from addnorm.generate.top_k import top_k
from addnorm.runs.inference.decoding import SAMPLING, decoding_for, search_of, usual_decoding
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.events import Best
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.sequence import Ended

Logits = Float[Tensor, "rows vocab"]

NEAR = 1e-4
"""Two logits nearer than this may change places with the other rows of a batch."""


def decoding_of(run: TrainedModel, options: Options) -> DecodingConfig:
    """The decoding that a request's options ask for, on top of the run's own.

    Raises `InputError` for options that are out of range or contradict.
    """
    names = (*SAMPLING, "beams", "length_penalty", "early_stopping", "no_repeat_ngram")
    given = {name: getattr(options, name) for name in (*names, "forced_bos")}
    given |= {"n_best": options.n_best, "seed": randbits(63)}
    given |= {} if options.seed is None else {"seed": options.seed}
    own = usual_decoding(run.recipe)
    if options.decoding == "greedy":
        given |= {**dict.fromkeys(SAMPLING), "beams": 1}
    elif options.decoding == "sample" and not any(given[name] is not None for name in SAMPLING):
        given["temperature"] = own.temperature if isinstance(own, SampleConfig) else 1.0
    elif options.decoding == "beam" and options.beams is None:
        usual = own if isinstance(own, BeamConfig) else search_of(run)
        given["beams"] = max(usual.beams, options.n_best)
    decoding = decoding_for(run, **given)
    if isinstance(decoding, BeamConfig) and (wrong := options.unknown_to_search):
        raise InputError(
            f"beam search has no {' or '.join(wrong)}: leave it out, or ask for a sample"
        )
    changes: dict[str, Any] = {
        "min_new_tokens": max(options.min_tokens, decoding.rules.min_new_tokens)
    }
    if options.repetition_penalty is not None:
        changes["repetition_penalty"] = options.repetition_penalty
    never = run.tokenizers.target.never_ids
    changes["suppress_tokens"] = (*decoding.rules.suppress_tokens, *never)
    return replace(decoding, rules=replace(decoding.rules, **changes))


@dataclass(frozen=True)
class Choice:
    """The settings by which tokens are chosen; requests with equal ones are processed together."""

    decoding: GreedyConfig | SampleConfig
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ends: tuple[int, ...] = ()

    def tokens(self, scores: Logits, answers: Sequence["Answer"]) -> Int[Tensor, " rows"]:
        """A token for each row that has an allowed one."""
        if isinstance(self.decoding, GreedyConfig):
            return most_probable(scores)
        numbers = uniforms([answer.generator for answer in answers])
        return draw(self.decoding.filtered(scores), numbers.to(scores.device))

    def scores(self, logits: Logits, answers: Sequence["Answer"]) -> Logits:
        """The logits after penalties, biases and rules, as in vLLM and `generate`."""
        logits = self._penalised(logits, answers)
        if self.logit_bias:
            ids, biases = zip(*self.logit_bias, strict=True)
            bias = logits.new_tensor(biases).expand(len(logits), -1)
            logits = logits.index_add(1, _ids(ids, logits), bias)
        rules = self.decoding.rules
        if rules == NO_RULES:
            return logits
        looks_back = rules.repetition_penalty != 1.0 or rules.no_repeat_ngram_size
        history = [[*answer.before, *answer.written] if looks_back else [] for answer in answers]
        new = [len(answer.written) for answer in answers]
        length = [len(answer.before) + n for answer, n in zip(answers, new, strict=True)]
        limits = [answer.limit for answer in answers]
        progress = Progress(*(_ids(numbers, logits) for numbers in (length, new, limits)))
        return constrained(logits, rules, self.ends, _padded(history, logits), progress)

    def _penalised(self, logits: Logits, answers: Sequence["Answer"]) -> Logits:
        """`logits - frequency · count - presence · (count > 0)`, counting generated tokens."""
        if not (self.presence_penalty or self.frequency_penalty):
            return logits
        written = _padded([answer.written for answer in answers], logits)
        counts = logits.new_zeros(len(logits), logits.shape[1] + 1)
        counts.scatter_add_(
            1,
            torch.where(written == NOTHING, logits.shape[1], written),
            torch.ones_like(written, dtype=logits.dtype),
        )
        counts = counts[:, :-1]
        return logits - self.frequency_penalty * counts - self.presence_penalty * (counts > 0)


@dataclass(frozen=True, eq=False)
class Chooser:
    """How the tokens of one request are chosen: its `Choice` and its random numbers."""

    choice: Choice
    options: Options
    before: tuple[int, ...]
    """The tokens that rules count as the beginning of each answer."""
    limit: int
    generators: tuple[torch.Generator, ...]
    """The random numbers of each answer."""
    grammars: tuple[Grammar, ...] = ()
    """How far each answer has come in the grammar of the request, if it has one."""

    @classmethod
    def of(
        cls,
        decoding: GreedyConfig | SampleConfig,
        options: Options,
        *,
        before: Sequence[int],
        limit: int,
        n: int,
        ends: tuple[int, ...],
        grammar: Grammar | None = None,
    ) -> "Chooser":
        """The chooser for a request with `n` answers of at most `limit` tokens.

        Answer `i` draws the numbers of `generate` for prompt `i` with the same seed.
        """
        seed, sampled = 0, isinstance(decoding, SampleConfig)
        rules = replace(decoding.rules, max_new_tokens=None, max_length=None)
        decoding = replace(decoding, rules=rules)
        if isinstance(decoding, SampleConfig):
            seed, decoding = decoding.seed, replace(decoding, seed=0)
        choice = Choice(
            decoding,
            options.presence_penalty,
            options.frequency_penalty,
            tuple(sorted(options.logit_bias.items())),
            ends,
        )
        generators = [generator_of(seed, i) for i in range(n if sampled else 0)]
        grammars = () if grammar is None else (grammar, *(grammar.copy() for _ in range(n - 1)))
        return cls(choice, options, tuple(before), limit, tuple(generators), grammars)

    def answer(self, index: int, written: Sequence[int]) -> "Answer":
        """The state of answer number `index`, of which some tokens are written already."""
        return Answer(self, index, written)

    def check(self, vocab: int) -> None:
        """Raise `InputError` for an option about a token outside the vocabulary."""
        check_rules(self.choice.decoding.rules, vocab)
        for name, ids in (
            ("logit_bias", self.options.logit_bias),
            ("ends", self.choice.ends),
        ):
            for i in ids:
                if not 0 <= i < vocab:
                    raise InputError(
                        f"`{name}` names the token {i}: this model writes 0 to {vocab - 1}"
                    )


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """An answer in progress: its request, its number and its tokens so far."""

    chooser: Chooser
    index: int
    written: Sequence[int]

    @property
    def before(self) -> Sequence[int]:
        """The tokens before the answer."""
        return self.chooser.before

    @property
    def limit(self) -> int:
        """The largest number of tokens that the answer may have."""
        return self.chooser.limit

    @property
    def generator(self) -> torch.Generator:
        """The random generator of the answer."""
        return self.chooser.generators[self.index]

    @property
    def grammar(self) -> Grammar | None:
        """The state of the answer's grammar; None without one."""
        return self.chooser.grammars[self.index] if self.chooser.grammars else None

    @property
    def why_none(self) -> str:
        """The reason why no token is allowed next."""
        return NO_TOKEN_ALLOWED if self.grammar is None else self.grammar.why_none

    def accept(self, token: int) -> str | None:
        """Advance the grammar by a chosen token; return the reason if that is impossible."""
        if self.grammar is None or token in self.chooser.choice.ends:
            return None
        self.grammar.accept(token)
        return self.grammar.why_none if self.grammar.is_broken else None

    def end_by(self, token: int, *, is_full: bool) -> Ended | None:
        """The reason why the answer ends with this token; None if it does not end."""
        if token in self.chooser.choice.ends:
            return "eos"
        if self.grammar is not None and self.grammar.is_complete:
            return "stop"
        return "length" if is_full else None


@dataclass(frozen=True)
class Chosen:
    """The next token of each answer, or why it has none, with the requested log-probabilities."""

    tokens: list[int]
    failed: dict[int, str]
    """The answers without a token, by their place among the rows, each with the reason."""
    near_ties: int
    """How many greedy choices were between tokens whose logits are nearer than `NEAR`."""


def choose(logits: Logits, answers: Sequence[Answer]) -> Chosen:
    """Choose the next token of each answer from the answer's row of logits.

    Answers whose tokens are chosen in the same way are computed together; none depends on another.
    """
    failed = dict.fromkeys(_broken(logits), NOT_A_NUMBER)
    if failed:
        logits = logits.index_fill(0, _ids([*failed], logits), 0.0)
    groups: dict[Choice, list[int]] = {}
    for i, answer in enumerate(answers):
        groups.setdefault(answer.chooser.choice, []).append(i)
    tokens, near_ties = [0] * len(answers), 0
    for choice, rows in groups.items():
        members = [answers[i] for i in rows]
        scores = choice.scores(logits if len(groups) == 1 else logits[rows], members)
        scores = within_grammars(scores, [answer.grammar for answer in members], choice.ends)
        forbidden = [i for i, largest in enumerate(maxima(scores)) if largest == -inf]
        if forbidden:
            failed |= {rows[i]: members[i].why_none for i in forbidden}
            scores = scores.index_fill(0, _ids(forbidden, scores), 0.0)
        chosen = choice.tokens(scores, members)
        if isinstance(choice.decoding, GreedyConfig):
            near_ties += int(_is_near(scores, chosen).sum())
        for i, token in zip(rows, ints(chosen), strict=True):
            tokens[i] = token
            if i not in failed and (error := answers[i].accept(token)) is not None:
                failed[i] = error
    return Chosen(tokens, failed, near_ties)


def _broken(logits: Logits) -> list[int]:
    """The rows with NaN or plus infinity, from which no token can be drawn."""
    return [i for i, largest in enumerate(maxima(logits)) if not largest < inf]


def _is_near(scores: Logits, chosen: Int[Tensor, " rows"]) -> Bool[Tensor, " rows"]:
    """Whether another token scores almost as high as the chosen one."""
    best = scores.gather(1, chosen[:, None])
    return (scores > best - NEAR).sum(-1) > 1


def token_scores(
    logits: Logits, tokens: Sequence[int], options: Sequence[Options]
) -> dict[int, dict[str, Any]]:
    """The log-probabilities of a step's tokens, by row, for the requests that want them."""
    rows = [i for i, each in enumerate(options) if each.log_probs is not None]
    if not rows:
        return {}
    most = max(options[i].log_probs or 0 for i in rows)
    log_probs, best = reported(logits[rows], [tokens[i] for i in rows], most)
    return {
        i: {"log_probs": (log_p,), "best": (each[: options[i].log_probs],)}
        for i, log_p, each in zip(rows, log_probs, best, strict=True)
    }


def reported(
    logits: Logits, tokens: Sequence[int], n_best: int
) -> tuple[tuple[float, ...], tuple[Best, ...]]:
    """The log-probability of each row's token, and of the `n_best` most probable tokens."""
    log_p = logits.log_softmax(-1)
    of_tokens = floats(log_p.gather(1, _ids(tokens, logits)[:, None])[:, 0])
    if not n_best:
        return tuple(of_tokens), ((),) * len(of_tokens)
    values, ids = top_k(log_p, min(n_best, log_p.shape[1]))
    best = [
        tuple(zip(ints(row), floats(each), strict=True))
        for row, each in zip(ids, values, strict=True)
    ]
    return tuple(of_tokens), tuple(best)


def _ids(numbers: Sequence[int], like: Tensor) -> Int[Tensor, " n"]:
    return torch.tensor(numbers, dtype=torch.long, device=like.device)


def _padded(rows: Sequence[Sequence[int]], like: Tensor) -> Int[Tensor, "rows seq"]:
    """Rows of tokens, padded with `NOTHING` on the left."""
    width = max(map(len, rows))
    padded = [[NOTHING] * (width - len(row)) + [*row] for row in rows]
    return torch.tensor(padded, dtype=torch.long, device=like.device)
