"""`POST /v1/chat/completions`: answers to conversations, by the model's chat template."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.serve.http.answers import Piece, chat_logprobs
from addnorm.serve.http.generation import (
    STREAMED,
    Answer,
    Head,
    Job,
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
    choices = [_choice(body, served, i, answer) for i, answer in enumerate(answers)]
    return whole(body, head.chunk(choices=choices, usage=usage([job])))


async def _job(served: Served, body: ChatRequest, timeout: float | None) -> Job:
    ids = await served.conversation([message.as_template_reads() for message in body.messages])
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
    return Job(served, generate, body.stop or (), continues=grammar is not None)


def _choice(body: ChatRequest, served: Served, index: int, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": _logprobs(body, served, answer),
        "finish_reason": answer.finished,
    }


def _logprobs(body: ChatRequest, served: Served, part: Answer | Piece) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return chat_logprobs(served.tokenizer, part.scores, body.top_logprobs or 0)


async def _chunks(body: ChatRequest, head: Head, job: Job) -> AsyncGenerator[bytes, None]:
    """First the role of each answer, then its pieces, then why it ended, then the usage."""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    facts = {"usage": None} if with_usage else {}

    def chunk(index: int, delta: dict[str, str], piece: Piece | None = None) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None if piece is None else _logprobs(body, job.served, piece),
            "finish_reason": None if piece is None else piece.finished,
        }
        return data(head.chunk(choices=[choice], **facts))

    begun = set[int]()
    async with aclosing(job.pieces()) as pieces:
        async for index, piece in pieces:
            if index not in begun:
                begun.add(index)
                yield chunk(index, {"role": "assistant", "content": ""})
            if piece.text or piece.finished or (body.logprobs and piece.scores):
                yield chunk(index, {"content": piece.text} if piece.text else {}, piece)
    if with_usage:
        yield data(head.chunk(choices=[], usage=usage([job])))
