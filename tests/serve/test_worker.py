"""The engine process, with a real model: its word of what it serves, answers, ends."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from tests.runs.every_kind import KINDS, write_kind

from addnorm.data.example import has_signals
from addnorm.data.tokenizing.sides import around, encode_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.runs.run import Run
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.events import Event, Stats
from addnorm.serve.engine.options import Options
from addnorm.serve.messages import (
    FROM_ENGINE,
    LENGTH,
    SOURCE,
    TO_ENGINE,
    Apply,
    Cancel,
    Error,
    Events,
    Generate,
    Load,
    Open,
    Ready,
    Result,
    packed,
)
from addnorm.serve.whole_inputs import outputs_for
from addnorm.serve.worker import Worker

RunOf = Callable[[str], Path]


@dataclass
class Client:
    connection: socket.socket
    loads: list[Load] = field(default_factory=list[Load])

    def send(self, message: Any) -> None:
        self.connection.sendall(packed(TO_ENGINE, message))

    def next(self) -> Any:
        while True:
            length = int.from_bytes(self._read(LENGTH), "big")
            message = FROM_ENGINE.validate_json(self._read(length))
            if not isinstance(message, Load):
                return message
            self.loads.append(message)

    def next_load(self, expected: Callable[[Stats], bool]) -> None:
        """Wait until the engine says that it is as busy as expected."""
        while True:
            length = int.from_bytes(self._read(LENGTH), "big")
            message = FROM_ENGINE.validate_json(self._read(length))
            assert isinstance(message, Load), message
            if expected(message.stats):
                return

    def _read(self, n: int) -> bytes:
        return self.connection.recv(n, socket.MSG_WAITALL)

    def tokens(self, request: Generate) -> list[int]:
        self.send(request)
        tokens: list[int] = []
        while True:
            message = self.next()
            assert isinstance(message, Events), message
            for event in message.events:
                tokens += event.tokens
                if event.finished:
                    return tokens


@contextmanager
def opened(run: Path | str, texts: Path, **facts: Any) -> Iterator[tuple[Client, Any]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    thread = threading.Thread(target=Worker(theirs).serve)
    thread.start()
    client = Client(ours)
    facts = {"memory": 2**22, "chunk": 8, "max_queue": 2, "device": "cpu", **facts}
    client.send(Open(run=str(run), texts=str(texts), **facts))
    try:
        yield client, client.next()
    finally:
        ours.close()
        thread.join(timeout=20)
        theirs.close()
    assert not thread.is_alive()


def test_a_language_model_continues_as_its_run_does(run_of: RunOf, tmp_path: Path) -> None:
    folder = run_of("language")
    run = Run.open(folder)
    with opened(folder, tmp_path) as (client, ready):
        assert isinstance(ready, Ready)
        assert ready.endpoint == "/v1/completions"
        assert "requests of" in ready.lines[0]
        tokenizer = Tokenizer.load(tmp_path / SOURCE).beginning(ready.begins)
        assert tokenizer.encode("To be") == run.tokenizers.source.encode("To be")
        [[expected]] = run.write(["To be"], seed=5, max_new_tokens=12)
        prompt = tuple(encode_prompts(tokenizer, ["To be"])[0])
        asked = Generate(name="a", prompt=prompt, limit=12, options=Options(seed=5))
        assert tuple(client.tokens(asked))[: len(expected.ids)] == expected.ids
        client.send(Generate(name="b", prompt=(10**6,), limit=3))
        wrong = client.next()
        assert isinstance(wrong, Error)
        assert (wrong.name, wrong.kind) == ("b", "input")
        client.send(Apply(name="c", endpoint="/v1/embeddings", inputs=("To be",)))
        result = client.next()
        assert isinstance(result, Result)
        assert len(result.outputs[0]) == 16


def test_drafts_change_no_answer(run_of: RunOf, tmp_path: Path) -> None:
    asked = Generate(name="a", prompt=(5, 6, 5, 6), limit=60, options=Options(seed=5))
    with opened(run_of("language"), tmp_path) as (client, _):
        expected = client.tokens(asked)
    with opened(run_of("language"), tmp_path, speculate="ngram") as (client, _):
        assert client.tokens(asked) == expected
        client.next_load(lambda stats: stats.drafted > 0)
    with opened(run_of("language"), tmp_path, draft=str(run_of("language"))) as (client, _):
        assert client.tokens(asked) == expected
        client.next_load(lambda stats: stats.drafted > 0)


def test_a_model_that_cannot_be_drafted_is_served_without(run_of: RunOf, tmp_path: Path) -> None:
    with opened(run_of("language"), tmp_path, draft=str(run_of("translation"))) as (client, ready):
        assert "a decoder can draft for a decoder alone" in ready.undrafted
        assert client.tokens(Generate(name="a", prompt=(5, 6), limit=3))
    with opened(run_of("classification"), tmp_path, speculate="ngram") as (_, ready):
        assert ready.undrafted == "it is not a language model"


def test_a_cancelled_request_leaves_the_engine_idle(run_of: RunOf, tmp_path: Path) -> None:
    with opened(run_of("language"), tmp_path) as (client, _):
        long = Options(ignore_eos=True)
        client.send(Generate(name="a", prompt=(5, 6), limit=10**6, n=2, options=long))
        client.next()
        client.send(Cancel(name="a", index=0))
        client.send(Cancel(name="a"))
        client.send(Cancel(name="none"))
        again = client.tokens(Generate(name="a", prompt=(5, 6), limit=3, options=long))
        assert again


def test_whole_inputs_are_cancelled_while_they_are_computed(
    run_of: RunOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(run: Run, endpoint: str, inputs: Any, options: Any) -> tuple[list[Any], int]:
        while "for ever" in inputs:
            run.model(torch.tensor([[5, 6]]))
        return outputs_for(run, endpoint, inputs, options)

    monkeypatch.setattr("addnorm.serve.input_queue.outputs_for", slow)
    with opened(run_of("tagging"), tmp_path) as (client, _):
        for name in "ab":
            client.send(Apply(name=name, endpoint="/tag", inputs=("for ever",)))
        client.next_load(lambda stats: stats.running + stats.waiting == 2)
        for name in "ab":
            client.send(Cancel(name=name))
        client.next_load(lambda stats: (stats.running, stats.waiting) == (0, 0))
        client.send(Apply(name="c", endpoint="/tag", inputs=("Ann saw Rome",)))
        assert client.next().name == "c"
        client.send(Apply(name="d", endpoint="/tag", inputs=("for ever",)))
        client.next_load(lambda stats: stats.running == 1)
    # the end of the socket ended the worker


def test_a_model_of_another_task(run_of: RunOf, tmp_path: Path) -> None:
    with opened(run_of("tagging"), tmp_path, memory=2**18) as (client, ready):
        assert ready.endpoint == "/tag"
        assert ready.max_len == Run.open(run_of("tagging")).model.embed.position.max_len
        client.send(Apply(name="long", endpoint="/v1/embeddings", inputs=("a", "a " * 999)))
        refused = client.next()
        assert (refused.name, refused.kind) == ("long", "input")
        assert "1,998 tokens, which are read at once" in refused.message
        client.send(Apply(name="a", endpoint="/tag", inputs=("Ann saw Rome",)))
        result = client.next()
        assert result.outputs[0]["tokens"] == ["Ann", "saw", "Rome"]
        client.send(Generate(name="b", prompt=(1,), limit=3))
        assert client.next().kind == "input"


@pytest.mark.long
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_vectors_or_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    run = write_kind(tmp_path, kind)
    texts = tmp_path / "texts"
    texts.mkdir()
    with opened(tmp_path / "run", texts) as (client, first):
        if run.text is None or has_signals(run.medium):
            assert isinstance(first, Error)
            assert f"reads {run.medium}: models of text are served" in first.message
            return
        assert isinstance(first, Ready)
        client.send(Apply(name="v", endpoint="/v1/embeddings", inputs=("a fine day", "two dogs")))
        result = client.next()
        assert isinstance(result, Result), result
        expected = run.embed(["a fine day", "two dogs"])
        torch.testing.assert_close(torch.tensor(result.outputs), expected)


def test_the_reason_is_given_why_a_run_is_not_served(run_of: RunOf, tmp_path: Path) -> None:
    with opened(run_of("language"), tmp_path, memory=1) as (_, error):
        assert isinstance(error, Error)
        assert "bytes of keys and values" in error.message
    with opened(tmp_path / "none", tmp_path) as (_, error):
        assert "no such folder" in error.message


def test_a_translator_answers_token_by_token(run_of: RunOf, tmp_path: Path) -> None:
    """With all results of a beam search, as its run finds them."""
    folder = run_of("translation")
    run = Run.open(folder)
    [best] = run.write(["a red cat"], beams=3, n_best=2)
    with opened(folder, tmp_path) as (client, ready):
        assert ready.writes
        assert ready.decoding == "beam"
        source = Tokenizer.load(tmp_path / SOURCE)
        before, after = around(ready.task, source)
        prompt = (*before, *source.encode("a red cat"), *after)
        options = Options(decoding="beam", beams=3, n_best=2)
        client.send(Generate(name="a", prompt=prompt, options=options))
        events: list[Event] = []
        while len(events) < 2:
            message = client.next()
            assert isinstance(message, Events)
            events += message.events
        assert [event.tokens for event in events] == [answer.ids for answer in best]
        for event, answer in zip(events, best, strict=True):
            assert event.score == pytest.approx(answer.score, abs=1e-5)


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory", "less `memory`"),
        (InputError("no token can be drawn"), "failed", "no token can be drawn"),
    ],
    ids=["memory", "input"],
)
def test_after_a_step_that_failed_the_next_request_is_answered(
    failure: Exception,
    kind: str,
    message: str,
    run_of: RunOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, failures = Engine.step, [failure]

    def failing(engine: Engine, look_up: Callable[[], None]) -> list[Event]:
        if failures:
            raise failures.pop()
        return step(engine, look_up)

    monkeypatch.setattr(Engine, "step", failing)
    with opened(run_of("language"), tmp_path) as (client, _):
        client.send(Generate(name="a", prompt=(5, 6), limit=3))
        error = client.next()
        assert (error.name, error.kind) == ("a", kind)
        assert message in error.message
        assert client.tokens(Generate(name="a", prompt=(5, 6), limit=3))


LONG_STEP = """
import os, socket, sys, time
from addnorm.serve.worker import end_with
end_with(socket.socket(fileno=os.dup(0)))
print("computing", flush=True)
time.sleep(60)
"""


def test_an_engine_in_a_long_step_ends_when_its_web_server_has_been_killed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        engine = subprocess.Popen(
            [sys.executable, "-c", LONG_STEP], stdin=theirs.fileno(), stdout=subprocess.PIPE
        )
    with engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"computing\n"
        ours.send(b"a message that it does not read")
        assert engine.poll() is None
        ours.close()
        start = monotonic()
        assert engine.wait(timeout=20) == 1
        assert monotonic() - start < 2
