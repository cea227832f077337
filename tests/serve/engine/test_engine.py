"""The engine answers each request as if it were alone, whoever else asks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.arrivals import ARRIVALS, PROMPT, answers_of_arrivals, give_room, request
from tests.serve.engine.tiny import TINY, Answered, answered, run_of

from addnorm.errors import InputError
from addnorm.generate import GreedyConfig, SampleConfig, generate
from addnorm.models import DecoderModel
from addnorm.nn.positions import LearnedConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.schedule import Limits, QueueFull, TooLarge
from addnorm.serve.engine.sequence import Request

MEMORY = 2**20


def alone(
    run: TrainedModel, prompt: tuple[int, ...], decoding: GreedyConfig | SampleConfig, n: int = 1
) -> list[tuple[int, ...]]:
    """What `generate` writes after a prompt, `n` times; without the end token."""
    assert isinstance(run.model, DecoderModel)
    ends = run.tokenizers.target.eos_ids
    texts = generate(run.model, [prompt] * n, decoding, max_new_tokens=12, eos_id=ends)
    return [text.ids for [text] in texts]


def text_of(run: TrainedModel, answer: Answered) -> tuple[int, ...]:
    """The tokens of an answer without its end."""
    return tuple(answer.tokens[: -1 if answer.finished == "eos" else None])


def test_a_seed_gives_what_generate_gives() -> None:
    run = run_of()
    engine = Engine(run, memory=MEMORY, limits=Limits(chunk=3))
    sampled = [request(f"s{seed}", decoding="sample", seed=seed) for seed in range(6)]
    warm = [request(f"w{seed}", temperature=2.5, top_k=9, seed=seed, n=3) for seed in range(2)]
    answers = answered(engine, [*sampled, request("greedy", decoding="greedy"), *warm])
    assert [text_of(run, answers["greedy", 0])] == alone(run, PROMPT, GreedyConfig())
    for seed in range(6):
        expected = alone(run, PROMPT, SampleConfig(seed=seed))
        assert [text_of(run, answers[f"s{seed}", 0])] == expected
    for seed in range(2):
        expected = alone(run, PROMPT, SampleConfig(seed=seed, temperature=2.5, top_k=9), 3)
        assert [text_of(run, answers[f"w{seed}", i]) for i in range(3)] == expected
    assert engine.stats().pages == 0


def test_without_a_seed_each_request_has_its_own_and_without_options_the_models_decoding() -> None:
    run = run_of()
    answers = answered(Engine(run, memory=MEMORY), [request("a"), request("b")])
    assert answers["a", 0].tokens != answers["b", 0].tokens


def test_scores_are_those_of_the_model_itself() -> None:
    run = run_of()
    assert isinstance(run.model, DecoderModel)
    engine = Engine(run, memory=MEMORY, limits=Limits(chunk=3))
    options: dict[str, Any] = {"temperature": 3.0, "seed": 1, "logit_bias": {9: -50.0}}
    asked = request("a", log_probs=2, prompt_log_probs=True, n=2, **options)
    answers = answered(engine, [request("b", log_probs=0), asked, request("c")])
    for i in range(2):
        answer = answers["a", i]
        tokens = [*PROMPT, *answer.tokens]
        with torch.inference_mode():
            log_p = run.model(torch.tensor([tokens]))[0].log_softmax(-1)
        expected = log_p[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        prompt = answer.events[0].prompt
        assert (prompt is None) == (i == 1)
        ours = [*(prompt.log_probs if prompt else ()), *answer.log_probs]
        torch.testing.assert_close(torch.tensor(ours), expected[-len(ours) :], atol=1e-5, rtol=0)
        best = [*(prompt.best if prompt else ()), *(b for e in answer.events for b in e.best)]
        values, ids = log_p[:-1].topk(2)
        assert [[token for token, _ in pair] for pair in best] == ids[-len(best) :].tolist()
        ours = torch.tensor([[each for _, each in pair] for pair in best])
        torch.testing.assert_close(ours, values[-len(best) :], atol=1e-5, rtol=0)
        assert 9 not in answer.tokens
    assert len(answers["b", 0].log_probs) == len(answers["b", 0].tokens)
    assert all(event.best == ((),) for event in answers["b", 0].events)
    assert answers["c", 0].log_probs == []


def test_a_prompt_can_be_scored_without_an_answer_and_is_read_whole() -> None:
    run = run_of()
    engine = Engine(run, memory=MEMORY, page_size=2)
    answered(engine, [request("first", decoding="greedy")])
    answers = answered(engine, [request("echo", limit=0, prompt_log_probs=True, n=2)])
    [event] = answers["echo", 0].events
    assert (event.finished, event.tokens, event.cached) == ("length", (), 0)
    assert event.prompt is not None
    assert len(event.prompt.log_probs) == len(PROMPT) - 1
    [event] = answered(engine, [request("again", limit=0)])["again", 0].events
    assert (event.cached, event.prompt) == (6, None)
    [event] = answered(engine, [request("one", (5,), 0, prompt_log_probs=True)])["one", 0].events
    assert event.prompt is not None
    assert event.prompt.log_probs == ()


def test_ends_are_the_models_own_and_those_of_the_request() -> None:
    run = run_of()
    assert run.tokenizers.target.eos_ids == (3,)
    bias = {3: 100.0}
    answers = answered(
        Engine(run, memory=MEMORY),
        [
            request("own", logit_bias=bias),
            request("later", logit_bias=bias, min_tokens=4),
            request("ignored", logit_bias=bias, ignore_eos=True),
            request("more", logit_bias={7: 100.0}, ends=(7,)),
        ],
    )
    ended = {name: (len(a.tokens), a.finished) for (name, _), a in answers.items()}
    assert ended == {
        "own": (1, "eos"),
        "later": (5, "eos"),
        "ignored": (12, "length"),
        "more": (1, "eos"),
    }


def test_one_answer_or_a_request_is_cancelled_and_the_others_do_not_notice() -> None:
    run = run_of()
    engine = Engine(run, memory=MEMORY, limits=Limits(chunk=3))
    expected = answered(Engine(run, memory=MEMORY), [request("a", n=3, seed=2, decoding="sample")])
    engine.add(request("a", n=3, seed=2, decoding="sample"))
    engine.add(request("b"))
    engine.step()  # the prompt of "a" is being read
    engine.cancel("a", 0)
    engine.cancel("a", 7)
    engine.cancel("b")
    engine.cancel("nobody")
    rest = answered(engine)
    assert rest.keys() == {("a", 1), ("a", 2)}
    assert all(rest["a", i].tokens == expected["a", i].tokens for i in (1, 2))
    assert engine.stats().pages == 0
    engine.add(request("b"))
    engine.step()
    engine.cancel("b", 0)
    assert not engine.is_busy
    assert engine.step() == []


def test_a_deadline_ends_a_request() -> None:
    engine = Engine(run_of(), memory=MEMORY, clock=lambda: now)
    now = 0.0
    engine.add(request("late", limit=100, deadline=1.0))
    engine.step()
    now = 1.0
    [event] = engine.step()
    assert (event.name, event.finished, engine.is_busy) == ("late", "timeout", False)


def test_a_row_of_nan_fails_alone() -> None:
    run = run_of()
    assert isinstance(run.model, DecoderModel)
    expected = answered(Engine(run, memory=MEMORY), [request("good", decoding="greedy")])
    with torch.no_grad():
        run.model.embed.tokens.weight[20] = torch.nan
    engine = Engine(run, memory=MEMORY)
    answers = answered(engine, [request("bad", (20, 4), n=2), request("good", decoding="greedy")])
    for i in range(2):
        assert answers["bad", i].finished == "failed"
        assert "NaN" in (answers["bad", i].events[-1].error or "")
    assert answers["good", 0].tokens == expected["good", 0].tokens
    assert engine.stats().pages == 0


def test_what_cannot_be_answered_is_refused_at_once() -> None:
    run = run_of(replace(TINY, position=LearnedConfig(), max_len=20))
    engine = Engine(run, memory=MEMORY, limits=Limits(queue=1))
    for wrong, message in (
        (request("a", (4, 30)), "this model knows 0 to 29"),
        (request("a", ()), "at least 1"),
        (request("a", (4,) * 21), "21 tokens"),
        (request("a", logit_bias={30: 1.0}), "`logit_bias` names the token 30"),
        (request("a", ends=(31,)), "`ends` names the token 31"),
        (request("a", temperature=-1.0), "temperature"),
    ):
        with pytest.raises(InputError, match=message):
            engine.add(wrong)
    assert not engine.is_busy
    answers = answered(engine, [request("a", (4,) * 18, ignore_eos=True)])
    assert len(answers["a", 0].tokens) == 3, "no more than there are positions"
    engine.add(request("a"))
    with pytest.raises(InputError, match="open already"):
        engine.add(request("a"))
    with pytest.raises(QueueFull):
        engine.add(request("b"))
    small = Engine(run_of(), memory=2**14)
    with pytest.raises(TooLarge):
        small.add(request("a", limit=1000))
    with pytest.raises(InputError, match=r"memory = 9 bytes .* one of 16 tokens takes 4,096 bytes"):
        Engine(run, memory=10)


def test_it_says_what_fits() -> None:
    pages, beams = Engine(run_of(), memory=2**20).description.lines
    assert pages == "3,568 tokens in 223 pages: 6 requests of 512"
    assert beams == "beam search: up to 512 tokens together"
    for memory, fits in ((2**18, "1 request of 512"), (2**16, "1 request of 208")):
        pages, _ = Engine(run_of(), memory=memory).description.lines
        assert pages.endswith(f"pages: {fits}")


RUN = run_of()
ALONE: dict[str, dict[tuple[str, int], Answered]] = {}


def _alone(asks: Request) -> dict[tuple[str, int], Answered]:
    """The answers to a request that is the only one."""
    if repr(asks) not in ALONE:
        ALONE[repr(asks)] = answered(Engine(RUN, memory=2**20), [asks])
    return ALONE[repr(asks)]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(ARRIVALS, st.integers(1, 8), st.integers(1, 9), st.integers(3, 9))
def test_every_request_is_answered_as_alone_whoever_comes_and_goes(
    asked: list[dict[str, Any]], page_size: int, chunk: int, rows: int
) -> None:
    limits = Limits(chunk=chunk, rows=rows)
    engine = Engine(RUN, memory=2**14, page_size=page_size, limits=limits)
    give_room(engine, 64)
    for asks, index, answer in answers_of_arrivals(engine, asked):
        expected = _alone(asks)["r", index]
        assert answer.tokens == expected.tokens
        assert answer.finished == expected.finished
        assert answer.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
    stats = engine.stats()
    assert (stats.pages, stats.running, stats.waiting) == (0, 0, 0)
