"""Starts a model's engine process, restarts it once, and delivers its events to requests."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

from addnorm.errors import InputError
from addnorm.serve.engine.events import Event, Stats
from addnorm.serve.messages import (
    TO_ENGINE,
    Apply,
    Cancel,
    Error,
    Events,
    Generate,
    Load,
    Open,
    Ready,
    Result,
    Stop,
    next_message,
    packed,
)

WORKER = (sys.executable, "-m", "addnorm.serve.worker")
"""The command of an engine process; its standard input is the socket."""

TRUSTED_AFTER = 600.0
"""Seconds after which an engine that dies may be restarted again."""

LEAVE = 10.0
"""Seconds that an engine has to end by itself."""

State = Literal["starting", "ready", "restarting", "dead", "stopped"]


class EngineError(Exception):
    """The engine has refused a request, or failed to answer it."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class EngineDown(Exception):
    """The engine has died or is not ready; if `final`, it will not be restarted."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Supervisor:
    """One engine process, and the requests that wait for its answers."""

    def __init__(self, opened: Open, command: Sequence[str] = WORKER) -> None:
        self.opened = opened
        self.state: State = "starting"
        self.stats: Stats | None = None
        """How busy the engine is, by its last word."""
        self.ready: Ready | None = None
        self._command = command
        self._waiting: dict[str, asyncio.Queue[Event | Result | Error | None]] = {}
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._restarted = -TRUSTED_AFTER

    async def start(self) -> Ready:
        """Start the engine; return the description of what it serves once it is ready.

        Raises `InputError` with its reason where it cannot be: a wrong folder, too little memory.
        """
        reader = await self._spawn()
        first = await next_message(reader)
        if not isinstance(first, Ready):
            self.state = "dead"
            await self._end_process()
            if isinstance(first, Error):
                raise InputError(first.message)
            raise InputError(f"{self.opened.run}: its engine ended before it was ready")
        self.ready, self.state = first, "ready"
        self._watching = asyncio.create_task(self._watch(reader))
        return first

    async def _spawn(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=theirs.fileno()
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._writer.write(packed(TO_ENGINE, self.opened))
        return reader

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Deliver the engine's messages; restart it if it dies, but not twice in a row."""
        while True:
            while (message := await next_message(reader)) is not None:
                self._deliver(message)
            if self._stopped:
                return
            await self._down()
            if self._stopped:
                return
            if (seconds := monotonic() - self._restarted) < TRUSTED_AFTER:
                self._dead(
                    f"its engine ended by {self._end}, {seconds:.0f} s after it was started again"
                )
                return
            self._log(f"its engine ended by {self._end}: it is started again")
            self._restarted = monotonic()
            reader = await self._spawn()
            first = await next_message(reader)
            if self._stopped:
                await self._end_process()
                return
            if not isinstance(first, Ready):
                await self._end_process()
                reason = first.message if isinstance(first, Error) else f"it ended by {self._end}"
                self._dead(f"its engine could not be started again: {reason}")
                return
            self.state = "ready"
            self._log("its engine is ready again")

    def _dead(self, why: str) -> None:
        """Give up on the engine."""
        self.state = "dead"
        self._log(f"{why}: it stays dead until the server is restarted")

    @property
    def _end(self) -> str:
        """A description of how the process ended: by a signal or an exit status."""
        code = None if self._process is None else self._process.returncode
        if code is None or code >= 0:
            return f"exit status {code}"
        return signal.Signals(-code).name

    def _log(self, line: str) -> None:
        name = self.opened.run if self.ready is None else self.ready.name
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    @property
    def _stopped(self) -> bool:
        return self.state == "stopped"

    async def _down(self) -> None:
        """End every open request, since its engine has died."""
        self.state, self.stats = "restarting", None
        for queue in self._waiting.values():
            queue.put_nowait(None)
        await self._end_process()

    def _deliver(self, message: Any) -> None:
        match message:
            case Events(events=events):
                for event in events:
                    if (queue := self._waiting.get(event.name)) is not None:
                        queue.put_nowait(event)
            case Result() | Error():
                if (queue := self._waiting.get(message.name or "")) is not None:
                    queue.put_nowait(message)
            case Load(stats=stats):
                self.stats = stats
            case _:
                pass

    @property
    def open_requests(self) -> int:
        """The number of requests that wait for an answer."""
        return len(self._waiting)

    async def generate(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Yield the events of a request until all its answers have ended.

        A request that is no longer read is cancelled. Raises `EngineError` for one that the engine
        refuses or gives up, and `EngineDown` if it dies.
        """
        answers = {*range(request.answers)}
        queue = self._send(request)
        try:
            while answers:
                event = await self._news(queue)
                assert isinstance(event, Event)
                if event.error is not None:
                    by_grammar = event.error.startswith(f"{request.options.grammar_field}: ")
                    kind = "input" if by_grammar else "failed"
                    raise EngineError(Error(name=event.name, message=event.error, kind=kind))
                if event.index in answers:
                    if event.finished is not None:
                        answers.remove(event.index)
                    yield event
        finally:
            self._close(request.name, cancel=bool(answers))

    def cancel(self, name: str, index: int) -> None:
        """End one answer of a request, whose text a stop string has ended."""
        self._write(Cancel(name=name, index=index))
        if (queue := self._waiting.get(name)) is not None:
            queue.put_nowait(Event(name=name, index=index, finished="stop"))

    async def apply(self, request: Apply) -> Result:
        """The outputs for whole inputs. Raises as `generate` does."""
        queue = self._send(request)
        result = None
        try:
            result = await self._news(queue)
            assert isinstance(result, Result)
            return result
        finally:
            self._close(request.name, cancel=result is None)

    def _send(self, request: Generate | Apply) -> "asyncio.Queue[Event | Result | Error | None]":
        if self.state == "dead":
            raise EngineDown("the engine is dead until the server is restarted", final=True)
        if self.state != "ready":
            raise EngineDown(f"the engine is {self.state}")
        queue = self._waiting[request.name] = asyncio.Queue()
        self._write(request)
        return queue

    async def _news(self, queue: "asyncio.Queue[Event | Result | Error | None]") -> Event | Result:
        message = await queue.get()
        if message is None:
            raise EngineDown("the engine died")
        if isinstance(message, Error):
            raise EngineError(message)
        return message

    def _close(self, name: str, *, cancel: bool) -> None:
        self._waiting.pop(name, None)
        if cancel and self.state == "ready":
            self._write(Cancel(name=name))

    def _write(self, message: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(packed(TO_ENGINE, message))

    def fail_open_requests(self) -> None:
        """End all open requests with an error, since the server is stopping."""
        for name, queue in self._waiting.items():
            queue.put_nowait(Error(name=name, message="the server is ending", kind="ending"))

    async def stop(self) -> None:
        """End the engine, by force if necessary."""
        self.state = "stopped"
        self._write(Stop())
        await self._end_process()
        if self._watching is not None:
            await self._watching

    async def _end_process(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(LEAVE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
