"""Limits on a request: the size of its body, the time to send it, and the depth of its JSON."""

import asyncio
import re
from math import isinf
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from addnorm.web.errors import WebError

BODY = 4 * 2**20
"""The most bytes of a body."""
SECONDS = 15.0
"""How long headers, or a body, may take to arrive."""
DEPTH = 64
"""How deep lists and objects may lie in one another."""
MOST = 2**16
"""The most lists, objects and fields of a body: what reads it takes time for each of them."""
DISCARDED = 16 * BODY
"""How much of a body that is too large is read and forgotten, so that its sender reads why."""


class ClientGone(Exception):
    """The client has closed the connection, so that nobody reads an answer."""


class Limits:
    """Middleware that reads and checks the whole body of a request first.

    Answers 413 for a body that is too large, 408 for one that does not arrive in time, and 400 for
    JSON that is damaged, too deep, or has NaN or an infinite number.
    """

    def __init__(self, app: ASGIApp, seconds: float = SECONDS) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body read, or answer with the error."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(receive)
            if body and "json" in Headers(scope=scope).get("content-type", "json"):
                check_json(body)
        except ClientGone:
            return
        except WebError as error:
            error.headers.setdefault("connection", "close")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                more = True
                while more and size <= DISCARDED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= BODY:
                        parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise WebError(408, f"the body took more than {self._seconds:g} s") from error
        if size > BODY:
            raise WebError(413, f"a body of {size:,} bytes or more: at most {BODY:,} are read")
        return b"".join(parts)


STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""A string in JSON, or the rest of the text if it has no end."""


def _beginnings(text: bytes) -> int:
    """The number of lists, objects and fields in a JSON text, counting inside strings too."""
    return sum(map(text.count, (b"[", b"{", b":")))


def check_json(text: bytes, what: str = "the body") -> Any:
    """Parse a JSON text within limits.

    Raises `WebError` for anything else, infinite numbers, more than `DEPTH` levels and more than
    `MOST` lists, objects and fields.
    """
    if _beginnings(text) > MOST and (n := _beginnings(STRING.sub(b"", text))) > MOST:
        message = f"{what} has {n:,} lists, objects and fields: at most {MOST:,} are read"
        raise WebError(400, message, code="too_large")
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        deep = "recursion limit" in str(error)
        raise (_too_deep() if deep else _damaged(error, what)) from error
    level = [value]
    for _ in range(DEPTH + 1):
        if any(isinstance(each, float) and isinf(each) for each in level):
            raise WebError(400, "the JSON has a number that is too large", code="invalid_json")
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return value
        level = [inner for outer in level for inner in _checked_inside(outer)]
    raise _too_deep()


def _checked_inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    """The nested lists, objects and floats of a value, which need checks of their own."""
    inner = value.values() if isinstance(value, dict) else value
    checked = {dict, list, float}
    if checked.isdisjoint(map(type, inner)):
        return []
    return [each for each in inner if type(each) in checked]


def _too_deep() -> WebError:
    return WebError(400, f"the JSON is more than {DEPTH} levels deep", code="too_deep")


def _damaged(error: ValueError, what: str) -> WebError:
    return WebError(400, f"{what} is not JSON: {error}", code="invalid_json")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body first, and then the connection's end."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


async def until_gone(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
