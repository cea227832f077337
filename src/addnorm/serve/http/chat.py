"""`POST /v1/chat/completions`: answers to conversations, by the model's chat template."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.data.tool_calls import Reply, call_form
from addnorm.serve.http.answers import Piece, chat_logprobs
from addnorm.serve.http.generation import (
    STREAMED,
    Answer,
    Head,
    Job,
    ReplyReader,
    streamed,
    usage,
    whole,
    writer,
)
from addnorm.serve.http.schemas import ChatRequest
from addnorm.serve.http.served import Served, new_name, unless_gone
from addnorm.serve.messages import Generate
from addnorm.web.events import DONE, data

router = APIRouter()


@router.post("/v1/chat/completions", summary="Answer a conversation", responses=STREAMED)
async def chat_completions(body: ChatRequest, request: HttpRequest) -> Response:
    """Answer a conversation."""
    served = writer(request, body)
    job = await _job(served, body, request.app.state.timeout)
    if body.stream:
        head = Head.new("chatcmpl", "chat.completion.chunk", served)
        return await streamed(request, body, _chunks(body, head, job), DONE)
    answers = await unless_gone(request, job.answers())
    head = Head.new("chatcmpl", "chat.completion", served)
    choices = [_choice(body, job, i, answer) for i, answer in enumerate(answers)]
    return whole(body, head.chunk(choices=choices, usage=usage([job])))


async def _job(served: Served, body: ChatRequest, timeout: float | None) -> Job:
    ids = await served.conversation(body.conversation)
    limit = served.new_tokens(
        len(ids),
        body.max_completion_tokens or body.max_tokens,
        "max_completion_tokens" if body.max_completion_tokens else "max_tokens",
    )
    log_probs = (body.top_logprobs or 0) if body.logprobs else None
    grammar = await asyncio.to_thread(body.grammar) if body.is_structured else None
    generate = Generate(
        name=new_name("chat"),
        prompt=tuple(ids),
        field="messages",
        limit=limit,
        n=1 if body.searches else body.answers,
        options=body.options(served.ready.vocab_size or 0, log_probs=log_probs, grammar=grammar),
        timeout=timeout,
        salt=body.cache_salt or "",
    )
    form = call_form(served.ready.template) if body.shown_tools else None
    return Job(served, generate, body.stop or (), continues=grammar is not None, calls=form)


def _choice(body: ChatRequest, job: Job, index: int, answer: Answer) -> dict[str, Any]:
    reply = job.reply(answer)
    calls = {"tool_calls": _calls(body, reply)} if reply.calls else {}
    content = None if reply.calls and not reply.content else reply.content
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None, **calls},
        "logprobs": _logprobs(body, job.served, answer),
        "finish_reason": _reason(answer.finished, reply),
    }


def _calls(body: ChatRequest, reply: Reply) -> list[dict[str, Any]]:
    """The tool calls of an answer, with arguments as JSON; only the first one if so requested."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_as_json},
        }
        for call in body.returned(reply)
    ]


def _reason(finished: str | None, reply: Reply) -> str | None:
    return "tool_calls" if finished == "stop" and reply.calls else finished


def _logprobs(body: ChatRequest, served: Served, part: Answer | Piece) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return chat_logprobs(served.tokenizer, part.scores, body.top_logprobs or 0)


def _delta(body: ChatRequest, added: Reply) -> dict[str, Any]:
    """The addition of a piece to the answer's message."""
    calls = [{"index": i, **call} for i, call in enumerate(_calls(body, added))]
    content = {"content": added.content} if added.content else {}
    return content | ({"tool_calls": calls} if calls else {})


async def _chunks(body: ChatRequest, head: Head, job: Job) -> AsyncGenerator[bytes, None]:
    """Yield each answer's role, then its pieces, then why it ended; and at last the usage."""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    facts = {"usage": None} if with_usage else {}

    def chunk(
        index: int, delta: Mapping[str, Any], piece: Piece | None = None, reason: str | None = None
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None if piece is None else _logprobs(body, job.served, piece),
            "finish_reason": reason,
        }
        return data(head.chunk(choices=[choice], **facts))

    begun = set[int]()
    readers = [ReplyReader(job.calls) for _ in range(job.request.answers)]
    async with aclosing(job.pieces()) as pieces:
        async for index, piece in pieces:
            if index not in begun:
                begun.add(index)
                yield chunk(index, {"role": "assistant", "content": ""})
            added = readers[index].push(piece)
            delta, reason = _delta(body, added), _reason(piece.finished, added)
            if delta or reason or (body.logprobs and piece.scores):
                yield chunk(index, delta, piece, reason)
    if with_usage:
        yield data(head.chunk(choices=[], usage=usage([job])))
