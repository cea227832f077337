"""Batches answer for the models and searches that pages do not serve, each request as alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.arrivals import give_room
from tests.serve.engine.tiny import TINY, Answered, MeansConfig, answered, run_of

from addnorm.errors import InputError
from addnorm.generate import BeamConfig, Generated, GreedyConfig, SampleConfig, generate, translate
from addnorm.models import DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.positions import NoPositionConfig, RotaryConfig
from addnorm.nn.positions.scaling import DynamicScaling
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.events import Event
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import Limits, QueueFull, TooLarge
from addnorm.serve.engine.sequence import Request

MODELS = {
    "recurrent": replace(TINY, position=NoPositionConfig(), attention=RecurrentConfig()),
    "hybrid": replace(
        TINY,
        position=NoPositionConfig(),
        layer_pattern=(LayerConfig(attention=RecurrentConfig()), LayerConfig()),
    ),
    "dynamic rotary": replace(
        TINY, position=RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=6))
    ),
    "own cache": replace(TINY, layer_pattern=(LayerConfig(), LayerConfig(attention=MeansConfig()))),
    "alone": replace(TINY, attention=MeansConfig(joins=False)),
    "encoder–decoder": EncoderDecoderConfig(
        d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2)
    ),
    "recurrent decoder": EncoderDecoderConfig(
        d_model=16,
        n_layers=1,
        attention=AttentionConfig(n_heads=2, n_kv_heads=1),
        decoder_attention=RecurrentConfig(cell="gru"),
    ),
    "attention": TINY,
}
IN_BATCHES = [name for name in MODELS if name != "attention"]
PROMPTS = [(4, 9, 5, 28, 7, 7, 11, 12, 4), (8, 8), (21, 4, 6, 17), (13,)]
LIMIT = 8


def request(name: str, prompt: tuple[int, ...], limit: int = LIMIT, **more: Any) -> Request:
    given = {key: more.pop(key) for key in ("n", "priority", "deadline") if key in more}
    return Request(name=name, prompt=prompt, limit=limit, options=Options(**more), **given)


def alone(
    run: TrainedModel, prompt: Sequence[int], decoding: GreedyConfig | SampleConfig | BeamConfig
) -> list[Generated]:
    """What `generate` or `translate` writes for one prompt."""
    ends: dict[str, Any] = {"max_new_tokens": LIMIT, "eos_id": run.tokenizers.target.eos_ids}
    if isinstance(run.model, DecoderModel):
        return generate(run.model, [prompt], decoding, **ends)[0]
    assert isinstance(run.model, EncoderDecoderModel)
    return translate(run.model, [prompt], decoding, **ends)[0]


def check_written(answer: Answered, expected: Generated) -> None:
    ids = answer.tokens[:-1] if answer.finished == "eos" else answer.tokens
    assert (tuple(ids), answer.finished) == (expected.ids, expected.finished)
    assert sum(answer.log_probs) == pytest.approx(expected.score, abs=1e-4)


@pytest.mark.parametrize("name", IN_BATCHES)
def test_answers_are_those_of_each_request_alone(name: str) -> None:
    run = run_of(MODELS[name])
    engine = Engine(run, memory=2**20)
    asked = [
        request(f"{kind}{i}", prompt, decoding=kind, seed=i, log_probs=0)
        for i, prompt in enumerate(PROMPTS)
        for kind in ("greedy", "sample")
    ]
    for each in asked[:5]:
        engine.add(each)
    answers: dict[tuple[str, int], Answered] = {}
    for event in [*engine.step(), *engine.step()]:
        answers.setdefault((event.name, event.index), Answered()).hear(event)
    for key, rest in answered(engine, asked[5:]).items():
        for event in rest.events:
            answers.setdefault(key, Answered()).hear(event)
    for i, prompt in enumerate(PROMPTS):
        check_written(answers[f"greedy{i}", 0], *alone(run, prompt, GreedyConfig()))
        check_written(answers[f"sample{i}", 0], *alone(run, prompt, SampleConfig(seed=i)))


arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.integers(0, len(PROMPTS) - 1),
            "kind": st.sampled_from(["greedy", "sample", "beam", "wide", "unlike"]),
            "limit": st.integers(0, LIMIT),
            "n": st.integers(1, 2),
            "pause": st.integers(0, 5),
            "cancelled": st.booleans(),
        }
    ),
    min_size=1,
    max_size=8,
)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"decoding": "greedy", "log_probs": 0},
    "sample": {"decoding": "sample", "seed": 5, "log_probs": 0},
    "beam": {"beams": 3, "n_best": 2, "no_repeat_ngram": 2},
    "wide": {"beams": 5, "length_penalty": 1.5, "early_stopping": True},
    "unlike": {"beams": 3, "n_best": 2, "length_penalty": 0.0},
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=10)
@given(asked=arrivals, chunk=st.integers(1, 30), rows=st.integers(10, 30))
def test_requests_join_and_leave_at_any_step(
    name: str, asked: list[dict[str, Any]], chunk: int, rows: int
) -> None:
    engine = Engine(RUNS[name], memory=2**19, limits=Limits(chunk=chunk, rows=rows))
    give_room(engine, 120)
    answers: dict[tuple[str, int], Answered] = {}
    gone: set[str] = set()
    requests: dict[str, tuple[Request, dict[str, Any]]] = {}
    for i, each in enumerate(asked):
        added = asked_for(f"r{i}", each)
        requests[added.name] = added, each
        engine.add(added)
        for _ in range(each["pause"]):
            hear(answers, engine.step(), gone)
        if each["cancelled"]:
            engine.cancel(added.name)
            gone.add(added.name)
    while engine.is_busy:
        hear(answers, engine.step(), gone)
    for key, (added, each) in requests.items():
        if key in gone:
            continue
        for place, expected in answered_alone(name, added, each).items():
            ours = answers[key, place]
            assert (ours.tokens, ours.finished) == (expected.tokens, expected.finished)
            assert ours.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
            scores = [event.score for event in ours.events]
            assert scores == [pytest.approx(event.score, abs=1e-5) for event in expected.events]
    assert engine.stats().running == engine.stats().waiting == 0


def test_requests_are_computed_together() -> None:
    for name in MODELS:
        engine = Engine(RUNS[name], memory=2**19)
        for i, prompt in enumerate(PROMPTS):
            engine.add(request(f"a{i}", prompt, beams=2))
            engine.step()
        batches = engine._batches._batches
        assert sum(len(batch.rows) for batch in batches) == len(PROMPTS)
        assert len(batches) == (len(PROMPTS) if name == "alone" else 1)


def asked_for(name: str, each: dict[str, Any]) -> Request:
    options = KINDS[each["kind"]]
    n = {} if "beams" in options else {"n": each["n"]}
    return request(name, PROMPTS[each["prompt"]], each["limit"], **options, **n)


def hear(answers: dict[tuple[str, int], Answered], events: Sequence[Event], gone: set[str]) -> None:
    for event in events:
        assert event.name not in gone, "news of a request that was cancelled"
        answers.setdefault((event.name, event.index), Answered()).hear(event)


RUNS = {name: run_of(config) for name, config in MODELS.items()}
ALONE: dict[str, dict[int, Answered]] = {}


def answered_alone(name: str, added: Request, each: dict[str, Any]) -> dict[int, Answered]:
    """The answers to a request that is the only one, and reads its prompt at once."""
    key = f"{name} {each['prompt']} {each['kind']} {each['limit']} {added.n}"
    if key not in ALONE:
        answers = answered(Engine(RUNS[name], memory=2**19), [added])
        ALONE[key] = {place: answer for (_, place), answer in answers.items()}
    return ALONE[key]


@pytest.mark.parametrize("name", MODELS)
def test_beams_are_those_of_each_request_alone(name: str) -> None:
    run = run_of(MODELS[name])
    searches = [BeamConfig(beams=3, n_best=3), BeamConfig(beams=2, length_penalty=2.0)]
    requests = [
        request(
            f"{i} {k}",
            prompt,
            beams=search.beams,
            n_best=search.n_best,
            length_penalty=search.length_penalty,
        )
        for i, prompt in enumerate(PROMPTS)
        for k, search in enumerate(searches)
    ]
    answers = answered(Engine(run, memory=2**20), requests)
    for i, prompt in enumerate(PROMPTS):
        for k, search in enumerate(searches):
            for j, expected in enumerate(alone(run, prompt, search)):
                [event] = answers[f"{i} {k}", j].events
                assert (event.tokens, event.finished) == (expected.ids, expected.finished)
                assert event.score == pytest.approx(expected.score, abs=1e-5)


def test_a_beam_search_that_finds_too_few_results_ends_all_the_same() -> None:
    run = run_of(MODELS["recurrent"])
    asked = request("few", (4,), limit=1, beams=40, n_best=40)
    answers = answered(Engine(run, memory=2**20), [asked])
    assert len(answers) == 40
    scores = [answers["few", i].events[0].score for i in range(40)]
    assert None not in scores[:30]
    assert scores[30:] == [None] * 10


def test_answers_and_searches_are_cancelled_and_expire() -> None:
    run = run_of(MODELS["recurrent"])
    engine = Engine(run, memory=2**20, clock=lambda: now)
    now = 0.0
    expected = [alone(run, prompt, GreedyConfig())[0] for prompt in PROMPTS]
    for i, prompt in enumerate(PROMPTS):
        engine.add(request(f"r{i}", prompt, decoding="greedy", n=2, log_probs=0))
        engine.add(request(f"b{i}", prompt, beams=2, deadline=1.0 if i == 2 else None))
    engine.cancel("r3")
    engine.cancel("b3")
    engine.step()
    engine.cancel("r0", 1)
    engine.cancel("r1")
    engine.cancel("b0")
    now = 2.0
    rest = answered(engine)
    assert rest["b2", 0].finished == "timeout"
    assert rest.keys() == {("r0", 0), ("r2", 0), ("r2", 1), ("b1", 0), ("b2", 0)}
    assert tuple(rest["r2", 1].tokens) == expected[2].ids[1:]
    assert rest["b1", 0].events[0].tokens == alone(run, PROMPTS[1], BeamConfig(beams=2))[0].ids


@pytest.mark.parametrize("options", [{"decoding": "greedy"}, {"beams": 2}])
def test_a_row_of_nan_fails_alone(options: dict[str, Any]) -> None:
    run = run_of(MODELS["recurrent"])
    expected = answered(Engine(run, memory=2**20), [request("good", (4, 5), **options)])
    assert isinstance(run.model, DecoderModel)
    with torch.no_grad():
        run.model.embed.tokens.weight[20] = torch.nan
    bad, good = request("bad", (20, 4), **options), request("good", (4, 5), **options)
    answers = answered(Engine(run, memory=2**20), [bad, good])
    assert answers["bad", 0].finished == "failed"
    assert "NaN" in (answers["bad", 0].events[-1].error or "")
    assert answers["good", 0].tokens == expected["good", 0].tokens


def test_prompts_are_scored() -> None:
    run = run_of(MODELS["recurrent"])
    assert isinstance(run.model, DecoderModel)
    prompt = PROMPTS[0]
    asked = [
        request("none", prompt, limit=0, prompt_log_probs=True, log_probs=1, n=2),
        request("few", prompt, limit=2, prompt_log_probs=True, ignore_eos=True),
    ]
    answers = answered(Engine(run, memory=2**20), asked)
    with torch.inference_mode():
        log_p = run.model(torch.tensor([prompt]))[0, :-1].log_softmax(-1)
    expected = log_p.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    for name in ("none", "few"):
        scores = answers[name, 0].events[0].prompt
        assert scores is not None
        assert list(scores.log_probs) == pytest.approx(expected, abs=1e-5)
    [event] = answers["none", 1].events
    assert (event.finished, event.tokens, event.prompt) == ("length", (), None)
    assert len(answers["few", 0].tokens) == 2


def test_what_cannot_be_answered_is_refused_at_once() -> None:
    engine = Engine(run_of(MODELS["encoder–decoder"]), memory=2**13, limits=Limits(queue=1, rows=8))
    with pytest.raises(TooLarge, match="the memory holds at most"):
        engine.add(request("a", PROMPTS[0], 10_000))
    with pytest.raises(TooLarge, match="at most 8 at once"):
        engine.add(request("a", (4,), beams=9))
    for wrong, message in (
        (request("a", (4,), prompt_log_probs=True), "an encoder reads the source"),
        (request("a", (4,), beams=2, n=2), "give n_best, the number of"),
        (request("a", (30,)), "this model knows 0 to 29"),
    ):
        with pytest.raises(InputError, match=message):
            engine.add(wrong)
    engine.add(request("a", (4,), decoding="greedy"))
    with pytest.raises(QueueFull):
        engine.add(request("b", (4,), decoding="greedy"))
    assert "attends to an encoder" in engine.description.lines[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("recurrent", "layer 0 is not attention but Recurrent, which keeps a state"),
        ("dynamic rotary", "DynamicRotary positions rotate old keys by later tokens"),
    ],
)
def test_the_reason_for_batches_is_named(name: str, why: str) -> None:
    batches, sharing = Engine(run_of(MODELS[name])).description.lines
    assert batches.endswith(why)
    assert sharing == "beginnings of prompts are not shared"


def test_it_says_which_cache_is_computed_alone() -> None:
    _, alone, _ = Engine(RUNS["alone"]).description.lines
    assert alone == "each request alone: the Sums of layer 0 has no method `join`"


@pytest.mark.parametrize("options", [{"decoding": "greedy"}, {"beams": 2}])
@pytest.mark.parametrize("name", ["recurrent", "encoder–decoder"])
def test_a_request_is_cancelled_while_its_prompt_is_read(
    name: str, options: dict[str, Any]
) -> None:
    run = run_of(MODELS[name])
    expected = answered(Engine(run, memory=2**20), [request("other", PROMPTS[1], **options)])
    engine = Engine(run, memory=2**20)
    looks = 0

    def cancel() -> None:
        nonlocal looks
        looks += 1
        engine.cancel("gone")

    engine.add(request("gone", PROMPTS[0], **options))
    engine.add(request("other", PROMPTS[1], **options))
    assert engine.step(cancel) == []
    assert looks == 1, "the other is begun again at the next step"
    assert engine.stats().running == 1
    answers = answered(engine)
    assert answers.keys() == {("other", 0)}
    assert answers["other", 0].tokens == expected["other", 0].tokens
    engine.add(request("gone", PROMPTS[0], **options))
    assert engine.step(cancel) == []
    assert looks == 2
    assert not engine.is_busy


def test_the_deadline_ends_a_request_while_its_prompt_is_read() -> None:
    run = run_of(MODELS["encoder–decoder"])
    now, looks = 0.0, 0
    engine = Engine(run, memory=2**20, clock=lambda: now)

    def wait() -> None:
        nonlocal now, looks
        now, looks = now + 1.0, looks + 1

    engine.add(request("late", PROMPTS[0], decoding="greedy", deadline=3.0))
    assert engine.step(wait) == []
    assert looks == 3
    [event] = engine.step(wait)
    assert (event.name, event.finished) == ("late", "timeout")
    assert not engine.is_busy


def test_prompts_are_read_together_as_far_as_the_memory_holds_their_attention() -> None:
    """65,536 bytes are 90² scores of two heads."""
    engine = Engine(run_of(MODELS["encoder–decoder"]), memory=2**16)
    with pytest.raises(TooLarge, match=r"91 tokens to read at once: .* attention of at most 90"):
        engine.add(request("a", (4,) * 91, 2, decoding="greedy"))
    for i, letter in enumerate("ab"):
        engine.add(request(letter, (4 + i,) * 70, 2, decoding="greedy", ignore_eos=True))
    assert {event.name for event in engine.step()} == {"a"}
    assert {event.name for event in engine.step()} == {"a", "b"}


def test_requests_wait_while_the_rows_or_the_memory_are_taken() -> None:
    run = run_of(MODELS["recurrent"])
    engine = Engine(run, memory=2**20, limits=Limits(rows=2))
    requests = [request(f"r{i}", (4 + i,), priority=i) for i in range(5)]
    for each in requests:
        engine.add(each)
    first = {event.name for event in engine.step()}
    assert first == {"r4", "r3"}, "the highest priorities"
    assert engine.stats().running <= 2
    assert {name for name, _ in answered(engine)} >= {"r0", "r1", "r2"}


@pytest.mark.parametrize(("name", "most"), [("recurrent", 256), ("encoder–decoder", 57)])
def test_the_default_limit_is_that_of_generate(name: str, most: int) -> None:
    assert Engine(run_of(MODELS[name])).default_limit(7, Options()) == most
