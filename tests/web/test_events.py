"""Event streams: pings, errors within, gone and stalled readers."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from addnorm.web import events
from addnorm.web.errors import WebError
from addnorm.web.events import DONE, EventStream, data


class Reader:
    """A client that reads, is gone after `n` messages, or stops reading after them."""

    def __init__(self, gone_after: int | None = None, stalls_after: int | None = None) -> None:
        self.sent: list[bytes] = []
        self.gone_after, self.stalls_after = gone_after, stalls_after
        self.gone = asyncio.Event()
        self.aborted = False

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            if self.stalls_after == len(self.sent):
                await asyncio.sleep(100)
            self.sent.append(message["body"])
        if self.gone_after == len(self.sent):
            self.gone.set()

    def abort(self) -> None:
        self.aborted = True


async def streamed(
    generator: AsyncGenerator[bytes, None], **facts: Any
) -> tuple[Reader, list[bytes]]:
    reader = Reader(**facts)
    scope: Any = {"type": "http", "state": {"abort": reader.abort}}
    await EventStream(generator)(scope, reader.receive, reader.send)
    return reader, reader.sent


class Numbers:
    """Events one after the other; `closed` once they are no longer made."""

    def __init__(self, n: int, pause: float = 0.0, error: bool = False) -> None:
        self.n, self.pause, self.error = n, pause, error
        self.closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for i in range(self.n):
                await asyncio.sleep(self.pause)
                yield data(i)
            if self.error:
                raise WebError(503, "died")
        finally:
            self.closed = True


def test_all_events_come_and_then_the_last() -> None:
    reader, sent = asyncio.run(streamed(Numbers(3)()))
    assert sent == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n", DONE, b""]
    assert not reader.aborted


def test_an_error_is_an_event() -> None:
    _, sent = asyncio.run(streamed(Numbers(1, error=True)()))
    assert sent[1].startswith(b'data: {"error":{"message":"died"')
    assert sent[2] == DONE


def test_silence_is_broken_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.02)
    _, sent = asyncio.run(streamed(Numbers(2, pause=0.1)()))
    assert sent.count(b": ping\n\n") >= 4
    assert [part for part in sent if b"ping" not in part][:2] == [data(0), data(1)]


def test_a_gone_reader_ends_the_events() -> None:
    numbers = Numbers(10**6, pause=0.001)
    _, sent = asyncio.run(streamed(numbers(), gone_after=3))
    assert numbers.closed
    assert len(sent) < 6


def test_a_stalled_reader_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STALLED_SECONDS", 0.05)
    numbers = Numbers(10**6)
    reader, sent = asyncio.run(streamed(numbers(), stalls_after=3))
    assert numbers.closed
    assert reader.aborted
    assert len(sent) == 3


def test_a_fault_is_not_hidden() -> None:
    async def faulty() -> AsyncGenerator[bytes, None]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(streamed(faulty()))


def test_an_event_is_one_line_of_json() -> None:
    assert data({"a": "é\n"}, "name") == 'event: name\ndata: {"a":"é\\n"}\n\n'.encode()
