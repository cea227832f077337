"""A stream of server-sent events that ends once its reader is gone or stalls."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from addnorm.web.errors import WebError
from addnorm.web.limits import until_gone

PING = b": ping\n\n"
PING_SECONDS = 15.0
"""How long a stream is silent at most: proxies close a connection that is silent for longer."""
STALLED_SECONDS = 30.0
"""How long a reader may leave what waits for it unread; the buffer for it is 64 KiB."""


class ReaderStalled(Exception):
    """The reader of a stream has stopped reading."""


def data(value: Any, event: str | None = None) -> bytes:
    """An event with JSON data and an optional name."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"".join(
        [b"" if event is None else f"event: {event}\n".encode(), b"data: ", text.encode(), b"\n\n"]
    )


DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """The events of a generator, which is closed as soon as nobody reads them.

    An error in it that is a `WebError` becomes an event; the stream then ends with `last`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        last: bytes = DONE,
    ) -> None:
        self.events, self.last = events, last
        self.status_code, self.background = 200, None
        plain = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self.init_headers({**plain, **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers, without a length."""
        pairs = {"content-type": "text/event-stream; charset=utf-8", **(headers or {})}
        self.raw_headers = [(k.lower().encode(), v.encode()) for k, v in pairs.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end, or the reader is gone or stalls."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        sending = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait({sending, gone})
            await self.events.aclose()
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, ReaderStalled):
            scope["state"]["abort"]()  # to close it would wait until all is read
            await asyncio.sleep(0)
        elif error is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                message = {"type": "http.response.body", "body": part, "more_body": True}
                try:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await send(message)
                except TimeoutError as error:
                    raise ReaderStalled from error
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the events, pings while there are none, and the last event."""
        coming = asyncio.ensure_future(anext(self.events))
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=PING_SECONDS)
                if not done:
                    yield PING
                    continue
                try:
                    part = coming.result()
                except StopAsyncIteration:
                    break
                except WebError as error:
                    yield data(error.body)
                    break
                yield part
                coming = asyncio.ensure_future(anext(self.events))
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await coming
        yield self.last
