"""Information about a server: its models, health, version, metrics and tokens."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from addnorm import __version__
from addnorm.data.chat_input import ChatInput
from addnorm.serve.http.generation import whole
from addnorm.serve.http.schemas import TokenizeRequest
from addnorm.serve.http.served import Served, models_of
from addnorm.web.errors import WebError

router = APIRouter()


@router.get("/", summary="What this server is")
async def root(request: HttpRequest) -> dict[str, Any]:
    """The models of this server, each with its endpoint."""
    served = models_of(request).by_name.values()
    return {
        "server": f"AddNorm {__version__}",
        "models": {each.name: each.ready.endpoint for each in served},
        "more": ["/v1/models", "/openapi.json", "/health", "/metrics"],
    }


@router.get("/v1/models", summary="List the models")
async def models(request: HttpRequest) -> dict[str, Any]:
    """The models of this server."""
    return {
        "object": "list",
        "data": [_model(request, served) for served in models_of(request).by_name.values()],
    }


@router.get("/v1/models/{name}", summary="Show a model")
async def model(name: str, request: HttpRequest) -> dict[str, Any]:
    """One model of this server."""
    return _model(request, models_of(request)[name])


def _model(request: HttpRequest, served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": request.app.state.started,
        "owned_by": "addnorm",
        "task": served.ready.task,
        "endpoint": served.ready.endpoint,
        "max_model_len": served.max_len,
    }


@router.post("/tokenize", summary="Tokenise a text")
async def tokenize(body: TokenizeRequest, request: HttpRequest) -> Response:
    """The ids of a text, or of a conversation up to the assistant's answer."""
    served = models_of(request)[body.model]
    if body.messages is not None:
        messages = [message.as_template_reads() for message in body.messages]
        ids = await served.conversation(ChatInput.of(messages, body.tools))
    elif body.add_special_tokens:
        ids = await served.ids_with_special_tokens(body.prompt or "")
    else:
        ids = await served.plain(body.prompt or "")
    return await asyncio.to_thread(_tokens, body, served, ids)


MOST_SHOWN = 2**17
"""The most tokens of an answer of `/tokenize`."""


def _tokens(body: TokenizeRequest, served: Served, ids: Sequence[int]) -> Response:
    """The ids of a text, and their tokens. Raises `WebError` for too many to show."""
    if len(ids) > MOST_SHOWN:
        raise WebError(400, f"prompt: {len(ids):,} tokens: at most {MOST_SHOWN:,} are shown")
    return whole(
        body,
        {
            "count": len(ids),
            "max_model_len": served.max_len,
            "tokens": ids,
            "token_strs": served.tokenizer.pieces(ids),
        },
    )


@router.get("/livez", summary="Is the web server alive?")
async def livez() -> Response:
    """200 whenever the server responds."""
    return JSONResponse({"status": "alive"})


@router.get("/health", summary="Are all engines alive?")
async def health(request: HttpRequest) -> Response:
    """200 while every engine is alive, 503 otherwise."""
    states = {name: each.supervisor.state for name, each in models_of(request).by_name.items()}
    healthy = all(state == "ready" for state in states.values())
    return JSONResponse(
        {"status": "healthy" if healthy else "unhealthy", "engines": states},
        200 if healthy else 503,
    )


@router.get("/readyz", summary="May requests be sent?")
async def readyz(request: HttpRequest) -> Response:
    """200 while requests are accepted; 503 without an engine, or during shutdown."""
    if request.app.state.draining:
        raise WebError(503, "the server is ending")
    return await health(request)


@router.get("/version", summary="The version of AddNorm")
async def version() -> dict[str, str]:
    """The version of AddNorm."""
    return {"version": __version__}


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=PlainTextResponse,
)
async def metrics(request: HttpRequest) -> Response:
    """Metrics for Prometheus."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
