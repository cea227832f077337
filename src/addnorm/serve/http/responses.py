"""`POST /v1/responses`: text in, text out, without state."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.data.chat_input import ChatInput
from addnorm.serve.http.generation import STREAMED, Job, streamed, usage, whole, writer
from addnorm.serve.http.schemas import ResponsesRequest, text_of
from addnorm.serve.http.served import Served, new_name, unless_gone
from addnorm.serve.messages import Generate
from addnorm.web.errors import WebError
from addnorm.web.events import data

router = APIRouter()


@router.post("/v1/responses", summary="Answer an input", responses=STREAMED)
async def responses(body: ResponsesRequest, request: HttpRequest) -> Response:
    """Answer a text or a conversation; nothing is stored."""
    served = writer(request, body)
    job = await _job(served, body, request.app.state.timeout)
    facts = _Facts(body, served)
    if body.stream:
        return await streamed(request, body, _events(facts, job), b"")
    [answer] = await unless_gone(request, job.answers())
    return whole(body, facts.response(answer.text, answer.finished, job))


async def _job(served: Served, body: ResponsesRequest, timeout: float | None) -> Job:
    messages = [] if body.instructions is None else [("system", body.instructions)]
    if isinstance(body.input, str):
        messages.append(("user", body.input))
    else:
        messages += [(item.role, text_of(item.content)) for item in body.input]
    chat = [
        {"role": "system" if role == "developer" else role, "content": text}
        for role, text in messages
    ]
    ids = await served.conversation(ChatInput.of(chat), "input")
    limit = served.new_tokens(len(ids), body.max_output_tokens, "max_output_tokens")
    grammar = await asyncio.to_thread(body.grammar)
    return Job(
        served,
        Generate(
            name=new_name("resp"),
            prompt=tuple(ids),
            field="input",
            limit=limit,
            options=body.options(grammar),
            timeout=timeout,
        ),
        continues=grammar is not None,
    )


class _Facts:
    """What all events of a response share."""

    def __init__(self, body: ResponsesRequest, served: Served) -> None:
        self.body, self.served = body, served
        self.id, self.item = f"resp_{uuid4().hex}", f"msg_{uuid4().hex}"
        self.created = int(time())
        given = body.format
        self.format = (
            {"type": "text"}
            if given is None
            else given.model_dump(exclude_none=True, by_alias=True)
        )

    def message(self, text: str, status: str) -> dict[str, Any]:
        """The item of the output."""
        content = [] if status == "in_progress" else [part(text)]
        return {
            "id": self.item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def response(
        self, text: str | None, finished: str | None, job: Job | None = None
    ) -> dict[str, Any]:
        """The response; without a text it is in progress."""
        status = {"stop": "completed", "length": "incomplete"}.get(finished or "", "in_progress")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "model": self.served.name,
            "output": [] if text is None else [self.message(text, status)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": self.body.temperature,
            "text": {"format": self.format},
            "tool_choice": "none",
            "tools": [],
            "top_p": self.body.top_p,
            "truncation": "disabled",
            "usage": None if job is None else _usage(job),
            "metadata": {},
        }


def _usage(job: Job) -> dict[str, Any]:
    tokens = usage([job])
    return {
        "input_tokens": tokens["prompt_tokens"],
        "input_tokens_details": tokens["prompt_tokens_details"],
        "output_tokens": tokens["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens["total_tokens"],
    }


def part(text: str) -> dict[str, Any]:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _events(facts: _Facts, job: Job) -> AsyncGenerator[bytes, None]:
    numbers = count()

    def event(kind: str, **values: Any) -> bytes:
        return data({"type": kind, "sequence_number": next(numbers), **values}, kind)

    place = {"item_id": facts.item, "output_index": 0, "content_index": 0}
    text, finished = "", None
    begun = False
    try:
        async with aclosing(job.pieces()) as pieces:
            async for _, piece in pieces:
                if not begun:
                    begun = True
                    yield event("response.created", response=facts.response(None, None))
                    yield event("response.in_progress", response=facts.response(None, None))
                    item = facts.message("", "in_progress")
                    yield event("response.output_item.added", output_index=0, item=item)
                    yield event("response.content_part.added", **place, part=part(""))
                if piece.text:
                    text += piece.text
                    yield event(
                        "response.output_text.delta", **place, delta=piece.text, logprobs=[]
                    )
                finished = piece.finished or finished
    except WebError as error:
        if not begun:
            raise
        code = "invalid_prompt" if error.status == 400 else "server_error"
        failure = {"code": error.code or code, "message": error.message}
        failed = {**facts.response(None, None), "status": "failed", "error": failure}
        yield event("response.failed", response=failed)
        return
    yield event("response.output_text.done", **place, text=text, logprobs=[])
    yield event("response.content_part.done", **place, part=part(text))
    response = facts.response(text, finished, job)
    yield event("response.output_item.done", output_index=0, item=response["output"][0])
    kind = "response.completed" if finished == "stop" else "response.incomplete"
    yield event(kind, response=response)
