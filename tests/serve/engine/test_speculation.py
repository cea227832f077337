"""Drafts change no answer, and are made where they gain time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.simulator import Paged, answers_alone, next_token, run
from tests.serve.engine.tiny import TINY, Answered, answered, run_of

from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.serve.engine.choosing import Answer
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.ngrams import PromptLookup
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.pages import PagePool, PageTable
from addnorm.serve.engine.schedule import Limits, Schedule
from addnorm.serve.engine.sequence import Request, Sequence
from addnorm.serve.engine.speculation import LONGEST, Acceptance, Speculation, StepTime


class Oracle:
    """Drafts the tokens that it is told, with some wrong ones among them."""

    is_free, memory, name = True, 0, "an oracle"

    def __init__(self, answers: Mapping[tuple[str, int], list[int]], seed: int) -> None:
        self._answers, self._random = answers, Random(seed)

    def propose(
        self, lengths: Mapping[Sequence, int], answers: Mapping[Sequence, Answer]
    ) -> dict[Sequence, tuple[int, ...]]:
        return {each: (*self._draft(each, n),) for each, n in lengths.items()}

    def _draft(self, sequence: Sequence, n: int) -> Iterator[int]:
        right = self._answers.get((sequence.request.name, sequence.index), [])
        for token in right[len(sequence.written) :][: self._random.randrange(n + 1)]:
            yield 4 if self._random.random() < 0.15 else token

    def forget(self, sequence: Sequence) -> None:
        pass


RUN = run_of()
PROMPTS = [tuple(4 + (i * i * k) % 26 for i in range(1, 2 + 3 * k)) for k in range(1, 6)]


def asked(seed: int) -> list[Request]:
    """Requests with all kinds of options; some ask for scores, some have several answers."""
    kinds: list[dict[str, Any]] = [
        {"decoding": "greedy", "log_probs": 2},
        {"temperature": 2.0, "seed": seed, "log_probs": 0, "presence_penalty": 0.5},
        {"decoding": "sample", "seed": seed, "repetition_penalty": 1.3, "min_tokens": 9},
        {"decoding": "greedy", "prompt_log_probs": True, "log_probs": 1, "ends": (9,)},
        {
            "temperature": 1.2,
            "top_p": 0.8,
            "seed": seed,
            "logit_bias": {7: 2.0},
            "ignore_eos": True,
        },
    ]
    return [
        Request(
            name=str(i),
            prompt=prompt,
            limit=3 + 5 * i,
            n=1 + i % 3,
            options=Options(**kinds[(i + seed) % 5]),
        )
        for i, prompt in enumerate(PROMPTS)
    ]


def tokens_of(answers: Mapping[tuple[str, int], Answered]) -> dict[tuple[str, int], list[int]]:
    return {key: answer.tokens for key, answer in answers.items()}


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.integers(1, 5), st.integers(8, 14), st.booleans())
def test_answers_are_those_without_drafts(
    seed: int, page_size: int, memory: int, lookup: bool
) -> None:
    expected = answered(Engine(RUN, memory=2**20), asked(seed))
    limits = Limits(chunk=5, rows=4)
    engine = Engine(RUN, memory=memory * 2**11, page_size=page_size, limits=limits)
    drafter = PromptLookup() if lookup else Oracle(tokens_of(expected), seed)
    engine.speculate(drafter)
    answers = answered(engine, asked(seed))
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer.tokens == expected[key].tokens
        assert answer.finished == expected[key].finished
        assert answer.log_probs == pytest.approx(expected[key].log_probs, abs=1e-5)
        best = [[token for token, _ in each] for event in answer.events for each in event.best]
        ours = [each for event in expected[key].events for each in event.best]
        assert best == [[token for token, _ in each] for each in ours]
    stats = engine.stats()
    assert stats.pages == 0
    assert stats.accepted <= stats.drafted


def test_an_exact_engine_gives_the_same_bits_with_drafts() -> None:
    request = Request(
        name="a", prompt=PROMPTS[4], limit=30, options=Options(decoding="greedy", log_probs=0)
    )
    plain = answered(Engine(RUN, memory=2**20, exact=True), [request])["a", 0]
    engine = Engine(RUN, memory=2**20, exact=True)
    engine.speculate(PromptLookup())
    drafted = answered(engine, [request])["a", 0]
    assert engine.stats().accepted > 0
    assert (drafted.tokens, drafted.log_probs) == (plain.tokens, plain.log_probs)


def test_a_draft_of_right_tokens_takes_few_steps() -> None:
    request = Request(name="a", prompt=PROMPTS[4], limit=120, options=Options(decoding="greedy"))
    plain = answered(Engine(RUN, memory=2**20), [request])
    for drafter in (PromptLookup(), Oracle(tokens_of(plain), 0)):
        engine = Engine(RUN, memory=2**20)
        engine.speculate(drafter)
        assert engine.description.lines[-1].startswith(
            f"the next tokens are drafted by {drafter.name}"
        )
        engine.add(request)
        n_steps = 0
        while engine.is_busy:
            engine.step()
            n_steps += 1
        n_tokens = len(plain["a", 0].tokens)
        assert n_tokens > 40
        assert n_steps < n_tokens / 2
        stats = engine.stats()
        assert stats.accepted == n_tokens - n_steps


def test_a_cancelled_answer_with_a_draft_gives_its_pages_back() -> None:
    engine = Engine(RUN, memory=2**20, page_size=2)
    engine.speculate(PromptLookup())
    greedy = Options(decoding="greedy", ignore_eos=True)
    engine.add(Request(name="a", prompt=PROMPTS[2], limit=50, n=2, options=greedy))
    for _ in range(9):
        engine.step()
    engine.cancel("a", 1)
    engine.step()
    engine.cancel("a")
    assert engine.stats().pages == 0


def test_models_without_pages_are_refused() -> None:
    run = run_of(replace(TINY, position=NoPositionConfig(), attention=RecurrentConfig()))
    with pytest.raises(InputError, match="not in pages: layer 0 is not attention"):
        Engine(run, memory=2**20).speculate(PromptLookup())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=12),
            st.integers(1, 12),
            st.integers(1, 3),
        ),
        max_size=8,
    ),
    st.integers(8, 40),
    st.integers(1, 5),
    st.sampled_from([float("inf"), 3]),
    st.randoms(use_true_random=False),
)
def test_pages_hold_each_text_whatever_is_drafted(
    requests: list[tuple[list[int], int, int]],
    n_slots: int,
    page_size: int,
    reach: float,
    random: Random,
) -> None:
    """The simulated model reads each text, with its draft, back through its pages."""
    pool = PagePool(-(-n_slots // page_size), page_size)
    schedule, model = Schedule(pool, Limits(rows=4, chunk=3, reach=reach)), Paged(pool, reach)
    added = list[Request]()
    for i, (prompt, limit, n) in enumerate(requests):
        if len(prompt) + limit - 1 <= n_slots:
            added.append(Request(name=str(i), prompt=tuple(prompt), limit=limit, n=n))
            schedule.add(added[-1])

    def draft() -> None:
        for sequence in schedule.running:
            if sequence.missing == 1 and sequence.has_begun:
                tokens = list(sequence.tokens)
                for _ in range(random.randrange(sequence.room)):
                    tokens.append(next_token(tokens, sequence.index) ^ (random.random() < 0.1))
                sequence.draft = tuple(tokens[len(sequence.tokens) :])

    ended = run(schedule, model, each=draft)
    for request in added:
        answers = {s.index: (s.written, s.ended) for s in ended if s.request is request}
        assert [answers[i] for i in range(request.n)] == answers_alone(request)
    assert pool.held == 0


def test_a_text_that_repeats_itself_is_drafted_as_long_as_it_is_cheap() -> None:
    certain, doubtful = Acceptance(), Acceptance()
    for i in range(40):
        certain.learn((5, 6), (5, 6, 7))
        doubtful.learn((5, 6), ((5, 6, 7) if i % 4 == 0 else (9,)))
    assert certain.length(0.1) > LONGEST
    assert 0 < doubtful.length(0.1) < 4
    assert doubtful.length(0.9) < 1
    assert certain.length(1.0) <= 0


def test_the_cost_of_a_row_is_learnt_from_steps() -> None:
    time = StepTime()
    assert time.cost_of_row(1) == 0.1
    for i in range(100):
        rows = 1 + (i % 2) * 8
        time.learn(rows, 0.04 + 0.002 * rows)
    assert time.cost_of_row(1) == pytest.approx(0.002 / 0.042, rel=0.1)
    time.learn(20, 9.0)  # the machine did something else
    assert time.cost_of_row(1) > 0.3
    for _ in range(200):
        time.learn(1, 0.042)
    assert 0.05 < time.cost_of_row(1) < 0.2


def test_nothing_is_drafted_where_rows_cost_as_much_as_steps() -> None:
    request = Request(name="a", prompt=(1,), limit=90)
    tokens = [1, 2, 3, 4, 1, 2, 3, 4]
    sequence = Sequence(request, 0, PageTable(PagePool(1, 1)), tokens, computed=7)

    def answer_of(sequence: Sequence) -> Answer:
        raise AssertionError("prompt lookup needs no options")

    speculation = Speculation(PromptLookup())
    speculation.draft([sequence], answer_of)
    assert sequence.draft == (1, 2, 3)
    for rows in (1, 4) * 50:
        speculation.time.learn(rows, 0.01 * rows)
    sequence.tokens.append(9)
    sequence.computed += 1
    speculation.draft([sequence], answer_of)
    assert sequence.draft == ()
    speculation.forget(sequence)


@pytest.mark.long
def test_sampled_tokens_have_the_distribution_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """χ² of the second token, which is drafted, against the model's probabilities."""
    monkeypatch.setattr(StepTime, "cost_of_row", lambda *_: 0.01)
    assert isinstance(RUN.model, DecoderModel)
    prompt, n = PROMPTS[2], 1000
    drawn = Counter[int]()
    engine = Engine(RUN, memory=2**20)
    engine.speculate(Oracle({(str(i), 0): [7, 9, 11] for i in range(n)}, 1))
    for at in range(0, n, 200):
        batch = [
            Request(
                name=str(i),
                prompt=prompt,
                limit=3,
                options=Options(temperature=3.0, seed=i, ignore_eos=True),
            )
            for i in range(at, at + 200)
        ]
        drawn.update(answer.tokens[1] for answer in answered(engine, batch).values())
    assert engine.stats().drafted > 300
    with torch.inference_mode():
        first = (RUN.model(torch.tensor([prompt]))[0, -1].double() / 3).softmax(-1)
        texts = torch.tensor([[*prompt, a] for a in range(len(first))])
        second = (RUN.model(texts)[:, -1].double() / 3).softmax(-1)
    expected = n * first @ second
    assert expected.min() > 3
    counts = torch.tensor([drawn[token] for token in range(len(first))])
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(first) - 1
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5
