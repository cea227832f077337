"""The web server's application: its routes, middleware and errors."""

from time import time
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm import __version__
from addnorm.errors import InputError
from addnorm.serve.http import chat, completions, embeddings, responses, service, tasks
from addnorm.serve.http.metrics import Metrics
from addnorm.serve.http.served import Models
from addnorm.web.access import Access
from addnorm.web.errors import WebError, about, of_http, of_validation
from addnorm.web.limits import ClientGone, Limits
from addnorm.web.protocol import HeadAsGet

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STATUSES = (400, 401, 403, 404, 408, 413, 429, 503, 504)
"""The statuses of errors."""

GONE = 499
"""The status, for our own records, of an answer that nobody reads."""


def create_app(
    models: Models, metrics: Metrics, *, key: str | None = None, timeout: float | None = None
) -> FastAPI:
    """The application for models whose engines are ready."""
    content = {"application/json": {"schema": ERROR}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": "An error", "content": content} for status in STATUSES
    }
    app = FastAPI(
        title="AddNorm",
        version=__version__,
        docs_url=None,  # their scripts are on other servers
        redoc_url=None,
        responses=errors,
    )
    app.state.models, app.state.metrics, app.state.timeout = models, metrics, timeout
    app.state.started, app.state.draining = int(time()), False
    for room in (completions, chat, responses, embeddings, tasks):
        app.include_router(room.router, dependencies=[Depends(_taking_requests)])
    app.include_router(service.router)
    app.add_middleware(Limits)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Access, key=key)
    _handle_errors(app)
    return app


def _taking_requests(request: HttpRequest) -> None:
    """Raise `WebError` if the server is shutting down."""
    if request.app.state.draining:
        raise WebError(503, "the server is ending", headers={"connection": "close"})


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(WebError)
    async def web_error(request: HttpRequest, error: WebError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def validation(request: HttpRequest, error: RequestValidationError) -> Response:
        return of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def http_error(request: HttpRequest, error: HTTPException) -> Response:
        return of_http(error, request).response()

    @app.exception_handler(InputError)
    async def input_error(request: HttpRequest, error: InputError) -> Response:
        return about(str(error)).response()

    @app.exception_handler(ClientGone)
    async def gone(request: HttpRequest, error: ClientGone) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def failed(request: HttpRequest, error: Exception) -> Response:
        return WebError(500, "the server failed: its log has the reason").response()
