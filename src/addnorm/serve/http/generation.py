"""A request to a language model: the pieces of its answers as they come, and the usage."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import time
from typing import Any, TypeVar
from uuid import uuid4

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from addnorm.data.tokenizing.text_decoding import TextDecoder
from addnorm.data.tool_calls import CallForm, CallReader, Reply
from addnorm.serve.engine.events import PromptScores
from addnorm.serve.http.answers import AnswerText, FinishReason, Piece, Score
from addnorm.serve.http.served import Served, models_of
from addnorm.serve.messages import Generate, Result
from addnorm.serve.sampling_options import ApiRequest
from addnorm.web.errors import WebError
from addnorm.web.events import EventStream
from addnorm.web.limits import until_gone

T = TypeVar("T")

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}}
}
"""The answers of an endpoint that also streams, for the description of the API."""

FIRST_SECONDS = 1.0
"""How long an answer waits for the first event, whose error has a status of its own."""


@dataclass
class Job:
    """One prompt and its answers."""

    served: Served
    request: Generate
    stop: Sequence[str] = ()
    continues: bool = False
    drop_space: bool = False
    calls: CallForm | None = None
    """How the model calls the tools that it is told of, if that is known."""
    prompt_scores: PromptScores | None = None
    """Those of the prompt, once they have come."""
    n_cached: int = 0
    n_written: int = 0

    @property
    def n_unknown(self) -> int:
        """The number of the prompt's tokens that stand for what the tokenizer does not know."""
        return self.served.tokenizer.count_unknown(self.request.prompt)

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield the pieces of all answers, each with its answer's number."""
        target = self.served.target
        writer = target if self.calls is None else target.spelling(self.calls.marks)
        decoder = TextDecoder(writer, self.stop, continues=self.continues)
        answers = [
            AnswerText(decoder, self.request.prompt, drop_space=self.drop_space)
            for _ in range(self.request.answers)
        ]
        stopped = set[int]()
        async with aclosing(self.served.generate(self.request)) as events:
            async for event in events:
                self.prompt_scores = event.prompt or self.prompt_scores
                self.n_cached = max(self.n_cached, event.cached)
                if event.index in stopped:
                    continue
                piece = answers[event.index].push(event)
                self.n_written += piece.n_tokens
                if piece.by_stop:
                    stopped.add(event.index)
                    self.served.supervisor.cancel(self.request.name, event.index)
                yield event.index, piece

    def reply(self, answer: "Answer") -> Reply:
        """A complete answer, split into content and tool calls."""
        return Reply(answer.text) if self.calls is None else self.calls.reply(answer.text)

    async def answers(self) -> list["Answer"]:
        """All answers, once they are complete."""
        answers = [Answer() for _ in range(self.request.answers)]
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                answers[index].add(piece)
        return answers


@dataclass
class Answer:
    """A complete answer."""

    text: str = ""
    scores: list[Score] = field(default_factory=list[Score])
    finished: FinishReason | None = None
    score: float = 0.0

    def add(self, piece: Piece) -> None:
        """Add the next piece."""
        self.text += piece.text
        self.scores += piece.scores
        self.score += piece.score
        self.finished = piece.finished or self.finished


class ReplyReader:
    """Yields an answer's content as its pieces come, and its tool calls at the end."""

    def __init__(self, form: CallForm | None) -> None:
        self._reader = None if form is None else CallReader(form)

    def push(self, piece: Piece) -> Reply:
        """The addition of a piece to the answer."""
        if self._reader is None:
            return Reply(piece.text)
        content = self._reader.push(piece.text)
        if piece.finished is None:
            return Reply(content)
        rest = self._reader.finish()
        return replace(rest, content=content + rest.content)


def usage(jobs: Sequence[Job]) -> dict[str, Any]:
    """The numbers of tokens in prompts and answers so far, and of those that are unknown."""
    n_prompt = sum(len(job.request.prompt) for job in jobs)
    n_written = sum(job.n_written for job in jobs)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_written,
        "total_tokens": n_prompt + n_written,
        "prompt_tokens_details": {
            "cached_tokens": sum(job.n_cached for job in jobs),
            "unknown_tokens": sum(job.n_unknown for job in jobs),
        },
    }


def usage_of(result: Result) -> dict[str, Any]:
    """The numbers of tokens in whole inputs."""
    return {
        "prompt_tokens": result.n_tokens,
        "total_tokens": result.n_tokens,
        "prompt_tokens_details": {"unknown_tokens": result.n_unknown},
    }


@dataclass(frozen=True)
class Head:
    """The fields that all chunks of an answer share."""

    id: str
    object: str
    model: str
    created: int

    @classmethod
    def new(cls, prefix: str, kind: str, served: Served) -> "Head":
        """The head for a new answer."""
        return cls(f"{prefix}-{uuid4().hex}", kind, served.name, int(time()))

    def chunk(self, **facts: Any) -> dict[str, Any]:
        """A chunk, or the whole answer, with these fields."""
        head = {"id": self.id, "object": self.object, "created": self.created}
        return {**head, "model": self.model, **facts}


def writer(request: HttpRequest, body: ApiRequest) -> Served:
    """The model named in a request, which must continue texts.

    Raises `WebError` for one that does not continue texts.
    """
    served = models_of(request)[body.model]
    served.check_endpoint("/v1/completions")
    return served


def headers_of(body: ApiRequest) -> dict[str, str]:
    """The header that names the unknown fields of a body, if there are any."""
    names = [name for name in body.ignored if name.isascii() and name.isprintable()]
    return {"x-addnorm-ignored": ", ".join(names)[:1024]} if names else {}


def whole(body: ApiRequest, content: dict[str, Any]) -> Response:
    """The complete answer as one response."""
    return JSONResponse(content, headers=headers_of(body))


async def streamed(
    request: HttpRequest, body: ApiRequest, events: AsyncGenerator[bytes, None], last: bytes
) -> Response:
    """Stream the answer, from its first event on, or after a second without one.

    An error before that is the answer, with its own status.
    """
    first = asyncio.ensure_future(anext(events))
    gone = asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait(
            {first, gone}, timeout=FIRST_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        gone.cancel()
        await asyncio.wait({gone})
    if first.done() and isinstance(error := first.exception(), WebError):
        raise error
    return EventStream(_continued(first, events), headers_of(body), last)


async def _continued(
    first: "asyncio.Future[bytes]", events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the first event and those after it."""
    try:
        try:
            yield await first
        except StopAsyncIteration:
            return
        async for event in events:
            yield event
    finally:
        first.cancel()
        await asyncio.wait({first})
        await events.aclose()


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of several streams as they come, each with its stream's number."""
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def forward(number: int, stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((number, item))
            queue.put_nowait(None)
        except WebError as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(forward(i, stream)) for i, stream in enumerate(streams)]
    try:
        n_open = len(tasks)
        while n_open:
            match await queue.get():
                case None:
                    n_open -= 1
                case BaseException() as error:
                    raise error
                case item:
                    yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def all_answers(jobs: Sequence[Job]) -> list[list[Answer]]:
    """The answers to several prompts; the first error ends all of them."""
    tasks = [asyncio.create_task(job.answers()) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
