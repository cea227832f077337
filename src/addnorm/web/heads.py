"""`HEAD` requests: answered as `GET`, without the body."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Middleware that handles `HEAD` as `GET`; the server then sends no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
