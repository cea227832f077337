"""The HTTP protocol of a connection, with limits on the size and time of its headers."""

from asyncio import TimerHandle, Transport
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from addnorm.web.limits import SECONDS

HEADERS = 32 * 2**10
"""The most bytes of the first line and the headers of a request."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed if its headers are too large or too slow."""

    seconds = SECONDS
    _unread = 0
    _timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """Start the clock for the headers."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Count the bytes until the headers are complete."""
        cycle: Any = self.cycle
        if self._timer is None and (cycle is None or not cycle.more_body):
            self._expect()
        self._unread += len(data)
        super().data_received(data)
        if self._timer is not None and self._unread > HEADERS and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Stop the clock; the body has its own limits."""
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        self._cancel()
        if size > HEADERS:
            self.transport.write(TOO_LARGE)
            self.transport.close()
            raise ValueError("the headers are too large")  # the parser passes it on as its own
        super().on_headers_complete()
        self.scope.setdefault("state", {})["abort"] = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._cancel()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._unread = 0
        self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class HeadAsGet:
    """Middleware that handles `HEAD` as `GET`; the server then sends no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
