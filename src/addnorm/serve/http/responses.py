"""`POST /v1/responses`: text in, text or function calls out, without stored state."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.data.tool_calls import Reply, ToolCall, call_form
from addnorm.serve.http.generation import (
    STREAMED,
    Job,
    ReplyReader,
    streamed,
    usage,
    whole,
    writer,
)
from addnorm.serve.http.responses_request import ResponsesRequest
from addnorm.serve.http.served import Served, new_name, unless_gone
from addnorm.serve.messages import Generate
from addnorm.web.errors import WebError
from addnorm.web.events import data

router = APIRouter()


@router.post("/v1/responses", summary="Answer an input", responses=STREAMED)
async def responses(body: ResponsesRequest, request: HttpRequest) -> Response:
    """Answer a text or a conversation, without storing anything."""
    served = writer(request, body)
    job = await _job(served, body, request.app.state.timeout)
    facts = _Facts(body, served)
    if body.stream:
        return await streamed(request, body, _events(facts, job), b"")
    [answer] = await unless_gone(request, job.answers())
    reply = job.reply(answer)
    message = facts.messages(reply.content, answer.finished, has_calls=bool(reply.calls))
    calls = [facts.call(call) for call in body.returned(reply)]
    return whole(body, facts.response([*message, *calls], answer.finished, job))


async def _job(served: Served, body: ResponsesRequest, timeout: float | None) -> Job:
    ids = await served.conversation(body.conversation, "input")
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
        calls=call_form(served.ready.template) if body.shown_tools else None,
    )


class _Facts:
    """The facts that all events of a response share."""

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

    def messages(self, text: str, finished: str | None, *, has_calls: bool) -> list[dict[str, Any]]:
        """The message in the output; empty if there are only calls."""
        if has_calls and not text:
            return []
        return [self.message([part(text)], STATUS[finished])]

    def message(self, content: Sequence[dict[str, Any]], status: str) -> dict[str, Any]:
        """The output item for the text."""
        facts = {"id": self.item, "type": "message", "role": "assistant"}
        return {**facts, "status": status, "content": [*content]}

    def call(self, call: ToolCall, arguments: str | None = None) -> dict[str, Any]:
        """The output item for a call, which is in progress if `arguments` are given."""
        return {
            "id": f"fc_{call.id}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments_as_json if arguments is None else arguments,
            "status": "completed" if arguments is None else "in_progress",
        }

    def response(
        self, output: Sequence[dict[str, Any]], finished: str | None, job: Job | None = None
    ) -> dict[str, Any]:
        """The response object, in progress until it is `finished`."""
        body, status = self.body, STATUS[finished]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.served.name,
            "output": [*output],
            "parallel_tool_calls": bool(body.tools) and body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": self.format},
            "tool_choice": "auto" if body.shown_tools else "none",
            "tools": body.given_tools,
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if job is None else _usage(job),
            "metadata": {},
        }


STATUS = {None: "in_progress", "stop": "completed", "length": "incomplete"}
"""The status of a response, by why its answer ended."""


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
    """A text as one part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Events:
    """Writes the events of a response."""

    def __init__(self, facts: _Facts) -> None:
        self._facts, self._numbers = facts, count()
        self._text: str | None = None

    def _event(self, kind: str, **values: Any) -> bytes:
        return data({"type": kind, "sequence_number": next(self._numbers), **values}, kind)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._facts.item, "output_index": 0, "content_index": 0}

    def begin(self) -> Iterator[bytes]:
        """The events that begin a response."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._facts.response((), None))

    def text(self, text: str) -> Iterator[bytes]:
        """The events for a piece of the message; the first one opens the message."""
        if self._text is None:
            self._text = ""
            item = self._facts.message((), "in_progress")
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place, part=part(""))
        if text:
            self._text += text
            delta = {"delta": text, "logprobs": []}
            yield self._event("response.output_text.delta", **self._place, **delta)

    def end(self, calls: Sequence[ToolCall], finished: str | None, job: Job) -> Iterator[bytes]:
        """The events that end the message, write the calls and complete the response."""
        if not calls:
            yield from self.text("")
        output = list[dict[str, Any]]()
        if (text := self._text) is not None:
            output = self._facts.messages(text, finished, has_calls=False)
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=part(text))
            yield self._event("response.output_item.done", output_index=0, item=output[0])
        for call in calls:
            yield from self._call(call, len(output))
            output.append(self._facts.call(call))
        kind = "response.completed" if finished == "stop" else "response.incomplete"
        yield self._event(kind, response=self._facts.response(output, finished, job))

    def _call(self, call: ToolCall, index: int) -> Iterator[bytes]:
        begun, item = self._facts.call(call, arguments=""), self._facts.call(call)
        place = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        yield self._event("response.output_item.added", output_index=index, item=begun)
        kind = "response.function_call_arguments"
        yield self._event(f"{kind}.delta", **place, delta=arguments)
        yield self._event(f"{kind}.done", **place, name=call.name, arguments=arguments)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def failed(self, error: WebError) -> bytes:
        """The event that ends a failed response."""
        code = "invalid_prompt" if error.status == 400 else "server_error"
        failure = {"code": error.code or code, "message": error.message}
        response = {**self._facts.response((), None), "status": "failed", "error": failure}
        return self._event("response.failed", response=response)


async def _events(facts: _Facts, job: Job) -> AsyncGenerator[bytes, None]:
    events, reader = _Events(facts), ReplyReader(job.calls)
    finished, added = None, Reply("")
    begun = False
    try:
        async with aclosing(job.pieces()) as pieces:
            async for _, piece in pieces:
                if not begun:
                    begun = True
                    for event in events.begin():
                        yield event
                added, finished = reader.push(piece), piece.finished
                for event in events.text(added.content) if added.content else ():
                    yield event
    except WebError as error:
        if not begun:
            raise
        yield events.failed(error)
        return
    for event in events.end(facts.body.returned(added), finished, job):
        yield event
