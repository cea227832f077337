"""The models of a server: conversion of their texts, and errors of their engines."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from addnorm.data.chat_input import ChatInput
from addnorm.data.conversation import texts_in
from addnorm.data.ids.answers import prompt_ids
from addnorm.data.tokenizing.sides import around, encode_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, choices, in_json
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.serve.engine.events import Event
from addnorm.serve.http.metrics import Clock, Metrics
from addnorm.serve.messages import SOURCE, TARGET, Apply, Error, Generate, Ready, Result
from addnorm.serve.supervisor import EngineDown, EngineError, Supervisor
from addnorm.web.errors import WebError, about
from addnorm.web.limits import ClientGone, until_gone

T = TypeVar("T")
Ids = TypeVar("Ids", bound=Sequence[int])

LONG = 2**14
"""Characters from which a text is tokenised in a thread, so that other requests do not wait."""

MOST_READ = 2**18
"""The most tokens of a prompt, however much the memory holds: others wait while it is passed on."""


class Served:
    """One model: its engine, its tokenizer and its chat template."""

    def __init__(
        self, supervisor: Supervisor, ready: Ready, metrics: Metrics, timeout: float | None = None
    ) -> None:
        self.supervisor, self.ready = supervisor, ready
        self.name = ready.name
        self._metrics, self._timeout = metrics, timeout
        if ready.custom:
            import_parts(supervisor.opened.imports)
        folder = Path(supervisor.opened.texts)
        self.tokenizer = Tokenizer.load(folder / SOURCE).beginning(ready.begins)
        self.target = Tokenizer.load(folder / TARGET)
        limits = [n for n in (ready.max_len, ready.capacity) if n is not None]
        self._continues = ready.endpoint == "/v1/completions"
        self._decodes = self._continues or ready.writes
        self.max_len = min([*limits, MOST_READ]) if self._decodes else ready.max_len
        """The most tokens that a language model reads, a prompt with its answer but the last, and
        the most of a text to translate.
        """
        metrics.watch(self.name, supervisor)

    def check_endpoint(self, endpoint: str) -> None:
        """Raise `WebError` for an endpoint that is for other tasks."""
        if endpoint != self.ready.endpoint:
            raise WebError(
                400,
                f"{self.name} is a model for {self.ready.task}: ask {self.ready.endpoint}",
                param="model",
            )

    async def prompt(self, text: str | Sequence[int], add_special_tokens: bool = True) -> list[int]:
        """The ids of a text to continue, or the given ids, checked.

        Without `add_special_tokens`, a text begins with those alone that it spells itself.

        Raises `WebError` for ids beyond the vocabulary, and for more than the model reads.
        """
        if isinstance(text, str):
            if not add_special_tokens:
                return await self.plain(text) or [self.tokenizer.bos_id]
            self.check_size(len(text), "prompt")
            ids = await self._in_thread(len(text), self._encoded, text)
            return self._checked(ids, "prompt")
        self._checked(text, "prompt")
        size = self.ready.vocab_size or self.tokenizer.vocab_size
        if text and not (min(text) >= 0 and max(text) < size):
            wrong = next(i for i in text if not 0 <= i < size)
            raise WebError(
                400, f"prompt: the id {wrong} is not from 0 to {size - 1}", param="prompt"
            )
        return [*text] or [self.tokenizer.bos_id]

    async def plain(self, text: str) -> list[int]:
        """The ids of a text without special tokens.

        Raises `WebError` for more than the model reads.
        """
        self.check_size(len(text), "prompt")
        return self._checked(await self._in_thread(len(text), self._marked, text), "prompt")

    def check_size(self, n_characters: int, field: str) -> None:
        """Raise `WebError` for a text that certainly has too many tokens."""
        most = self._bound * self.tokenizer.codec.longest
        if n_characters > most:
            raise WebError(
                400,
                f"{field}: {n_characters:,} characters: this model reads at most {self._bound:,} "
                f"tokens, of at most {most:,} characters",
                param=field,
                code="context_length_exceeded",
            )

    def _checked(self, ids: Ids, field: str) -> Ids:
        if len(ids) > self._bound:
            raise WebError(
                400,
                f"{field}: {len(ids):,} tokens: this model reads at most {self._bound:,}",
                param=field,
                code="context_length_exceeded",
            )
        return ids

    @property
    def _bound(self) -> int:
        """The largest number of tokens in a prompt or source."""
        return self.max_len if self._decodes and self.max_len else MOST_READ

    def new_tokens(
        self, n_prompt: int, asked: int | None, field: str, usual: int | None = None
    ) -> int | None:
        """The requested number of new tokens, by default `usual` as far as there is room.

        Raises `WebError` where there is no room for those asked for after the prompt.
        """
        room = self._bound + 1 - n_prompt  # the last one is not read
        if asked is None:
            return None if usual is None else min(usual, room)
        if asked > room:
            raise WebError(
                400,
                f"{field} = {asked:,}: after a prompt of {n_prompt:,} tokens there is room for "
                f"{room:,}: the model reads at most {self._bound:,}",
                param=field,
                code="context_length_exceeded",
            )
        return asked

    def check_places(self, n_requests: int, field: str) -> None:
        """Raise `WebError` for more prompts than the queue can hold."""
        most = self.supervisor.opened.max_queue
        if n_requests > most:
            raise WebError(
                400,
                f"{field}: {n_requests:,} at once: at most {most:,} may wait (`max_queue`): "
                "divide them among several requests",
                param=field,
            )

    def _marked(self, text: str) -> list[int]:
        return self.tokenizer.encode_marked([text])[0]

    def _encoded(self, text: str) -> list[int]:
        return encode_prompts(self.tokenizer, [text])[0]

    async def source(self, text: str, field: str = "text") -> list[int]:
        """The ids of a text that is read as a whole, such as one to translate.

        Raises `WebError` for more than the model reads; `field` has the text.
        """
        before, after = around(self.ready.task, self.tokenizer)
        self.check_size(len(text), field)
        ids = await self._in_thread(len(text), self.tokenizer.encode, text)
        return self._checked([*before, *ids, *after], field)

    async def ids_with_special_tokens(self, text: str) -> list[int]:
        """The ids of a text as the model reads it as a prompt.

        Raises `WebError` as `prompt` does.
        """
        return await (self.prompt(text) if self._continues else self.source(text, "prompt"))

    async def conversation(self, chat: ChatInput, field: str = "messages") -> list[int]:
        """The ids of a conversation, up to where the assistant answers.

        Raises `WebError` without a chat template, for messages and tools that it does not take, and
        for more than the model reads. `field` has the messages.
        """
        if self.ready.template is None:
            raise WebError(
                400,
                f"{self.name} has no chat template: ask /v1/completions, or give its folder a "
                "chat_template.jinja",
                param="model",
            )
        size = sum(map(len, texts_in([*chat.messages, *chat.tools])))
        self.check_size(size, field)
        work = size + len(chat.messages) ** 2  # a template may write all messages for each of them
        return self._checked(await self._in_thread(work, self._chat_ids, chat, field), field)

    def _chat_ids(self, chat: ChatInput, field: str) -> list[int]:
        template, dated = self.ready.template, self.ready.dated
        try:
            return prompt_ids(self.tokenizer, chat.checked(), template, dated=dated)
        except InputError as error:
            raise about(re.sub("^messages\\b", field, str(error))) from error

    async def _in_thread(self, size: int, function: Any, *args: Any) -> Any:
        return await asyncio.to_thread(function, *args) if size > LONG else function(*args)

    async def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Yield the events of a request, recorded in the metrics.

        Raises `WebError` where there is no answer.
        """
        metrics, clock = self._metrics, Clock(self._metrics, self.name)
        try:
            events = self.supervisor.generate(request)
            counted = False
            try:
                async for event in events:
                    if not counted:
                        counted = True
                        metrics.prompt_tokens.labels(self.name).inc(len(request.prompt))
                        metrics.cached_tokens.labels(self.name).inc(event.cached)
                    if event.tokens:
                        clock.tokens(event.index, len(event.tokens))
                    if event.finished == "timeout":
                        raise self._late()
                    if event.finished is not None:
                        metrics.finished.labels(self.name, event.finished).inc()
                    yield event
            finally:
                await events.aclose()
            clock.end()
        except (EngineError, EngineDown) as error:
            raise self._refusal(error, request.field) from error

    async def apply(
        self, endpoint: str, inputs: Sequence[Any], *, field: str = "text", **options: Any
    ) -> Result:
        """The outputs for the inputs in a field. Raises `WebError` where there are none."""
        given = {name: value for name, value in options.items() if value is not None}
        clock = Clock(self._metrics, self.name)
        request = Apply(
            name=new_name("apply"),
            endpoint=endpoint,
            inputs=tuple(inputs),
            field=field,
            options=given,
        )
        try:
            async with asyncio.timeout(self._timeout):
                result = await self.supervisor.apply(request)
        except TimeoutError as error:
            raise self._late() from error
        except (EngineError, EngineDown) as error:
            raise self._refusal(error, field) from error
        self._metrics.prompt_tokens.labels(self.name).inc(result.n_tokens)
        self._metrics.finished.labels(self.name, "stop").inc()
        clock.end()
        return result

    def _late(self) -> WebError:
        self._metrics.rejected.labels(self.name, "timeout").inc()
        return WebError(504, f"no answer within {self._timeout:g} s")

    def _refusal(self, error: EngineError | EngineDown, field: str) -> WebError:
        if isinstance(error, EngineDown):
            self._metrics.rejected.labels(self.name, "down").inc()
            again = {"x-should-retry": "false"} if error.final else {"retry-after": "2"}
            return WebError(503, str(error), headers=again)
        self._metrics.rejected.labels(self.name, error.error.kind).inc()
        return of_engine(error.error, field)


FIELDS = {"beams": "num_beams", "max_new_tokens": "max_tokens"}
"""The fields of requests whose options have another name in the library."""


def in_fields(message: str) -> str:
    """A message with the names of the body's fields in place of option names."""
    return re.sub(r"`(\w+)", lambda name: f"`{FIELDS.get(name[1], name[1])}", message)


def of_engine(error: Error, field: str) -> WebError:
    """The response for an error of the engine; `field` names the texts."""
    match error.kind:
        case "input":
            return about(in_fields(error.message))
        case "large":
            return WebError(400, error.message, param=field, code="context_length_exceeded")
        case "full":
            seconds = str(max(1, ceil(error.retry_after or 1.0)))
            return WebError(429, error.message, code="queue_full", headers={"retry-after": seconds})
        case "memory" | "ending":
            return WebError(503, error.message, headers={"retry-after": "1"})
        case "failed":
            return WebError(500, error.message)


_names = iter(range(2**62))


def new_name(kind: str) -> str:
    """A unique name for a request to the engine."""
    return f"{kind}-{next(_names)}"


class Models:
    """The models of a server, by name."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.by_name = {model.name: model for model in models}

    def __getitem__(self, name: str | None) -> Served:
        """The model with this name; without a name, the first one.

        Raises `WebError` for no such.
        """
        if name is None:
            return next(iter(self.by_name.values()))
        if name not in self.by_name:
            raise WebError(
                404,
                f"no model {in_json(name)}.{choices(name, self.by_name, in_json)}",
                param="model",
                code="model_not_found",
            )
        return self.by_name[name]


def models_of(request: HttpRequest) -> Models:
    """The models of the server that received a request."""
    return request.app.state.models


async def unless_gone(request: HttpRequest, answer: Awaitable[T]) -> T:
    """The answer, abandoned as soon as the client disconnects. Raises `ClientGone` then."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientGone
        return answering.result()
    finally:
        answering.cancel()
        gone.cancel()
        await asyncio.wait({answering, gone})
