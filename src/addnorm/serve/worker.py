"""The engine process: opens a run, describes it, and answers the messages on its socket.

`python -m addnorm.serve.worker`, with a socket as standard input. It ends when the socket does.
"""

import os
import select
import signal
import socket
from dataclasses import replace
from pathlib import Path
from sys import maxsize
from threading import Thread
from time import monotonic, sleep
from typing import Any

from addnorm.data.conversation import PLAIN
from addnorm.data.example import has_signals
from addnorm.data.tokenizing.codecs import CustomCodec
from addnorm.errors import InputError, print_warnings
from addnorm.generate.next_token import maximum_length
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.runs.inference.chat import template_of
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.runs.run import Run
from addnorm.serve.engine.budget import longest_at_once
from addnorm.serve.engine.draft_model import DraftModel, check_drafts_for, memory_of_draft
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.events import Stats
from addnorm.serve.engine.interruption import Interrupted
from addnorm.serve.engine.ngrams import PromptLookup
from addnorm.serve.engine.paged import why_not_paged
from addnorm.serve.engine.schedule import Limits, QueueFull, TooLarge
from addnorm.serve.engine.sequence import Request
from addnorm.serve.engine.speculation import Drafter
from addnorm.serve.input_queue import InputQueue
from addnorm.serve.messages import (
    FROM_ENGINE,
    SOURCE,
    TARGET,
    Apply,
    Cancel,
    Error,
    ErrorKind,
    Events,
    Generate,
    Inbox,
    Load,
    Open,
    Ready,
    Stop,
    packed,
)
from addnorm.tasks.language import Language
from addnorm.tasks.translation import SequenceToSequence
from addnorm.training.interruptions import out_of_memory

EVERY = 0.25
"""Seconds between two messages on how busy the engine is."""

AT_ONCE = 4096
"""The tokens of whole inputs that are read in one step while no answer is written."""

LOOK_UP = 0.05
"""Seconds between two looks at the socket in the midst of a long computation."""


class Worker:
    """One model, and the socket through which it is asked."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._inbox = Inbox()
        self._inputs: InputQueue | None = None
        self._answers: dict[str, int] = {}  # how many answers of each open request are open
        self._run: Run | None = None
        self._engine: Engine | None = None
        self._running = True
        self._told = self._looked = 0.0

    def serve(self) -> None:
        """Answer messages until the socket is closed."""
        while self._running:
            if not self._busy:
                self._tell_load()
            self._receive(wait=not self._busy)
            self._tell_load_at_times()
            self._step()

    @property
    def _busy(self) -> bool:
        return bool(self._answers or self._inputs)

    def _look_up(self) -> None:
        """Receive messages during a computation; raise `Interrupted` when the engine must end."""
        if monotonic() - self._looked < LOOK_UP:
            return
        self._looked = monotonic()
        self._receive(wait=False)
        self._tell_load_at_times()
        if not self._running:
            raise Interrupted

    def _receive(self, *, wait: bool) -> None:
        """Process the messages that have arrived; with `wait`, wait for at least one."""
        timeout = None if wait else 0
        while self._running and select.select([self._connection], [], [], timeout)[0]:
            try:
                arrived = self._connection.recv(2**18)
            except ConnectionError:
                arrived = b""
            if not arrived:
                self._running = False
            for message in self._inbox.take(arrived):
                self._handle(message)
            timeout = 0

    def _send(self, message: Any) -> None:
        try:
            self._connection.sendall(packed(FROM_ENGINE, message))
        except (BrokenPipeError, ConnectionError):
            self._running = False

    def _handle(self, message: Any) -> None:
        match message:
            case Open():
                self._open(message)
            case Generate():
                self._generate(message)
            case Apply():
                self._apply(message)
            case Cancel(name=name, index=index):
                self._cancel(name, index)
            case Stop():
                self._running = False
            case _:
                pass

    def _open(self, opened: Open) -> None:
        """Open the run; report what it serves, or why it cannot be served."""
        try:
            import_parts(opened.imports)
            run = Run.open(
                opened.run, device=opened.device, dtype=opened.dtype, weights=opened.weights
            )
            self._run = run
            self._inputs = InputQueue(run, longest_at_once(run.model, opened.memory))
            self._chunk = opened.chunk
            try:
                drafter, undrafted = _drafter(opened, run), None
            except InputError as error:
                drafter, undrafted = None, str(error)
            if isinstance(run.task_value, Language | SequenceToSequence):
                self._engine = Engine(
                    run,
                    memory=opened.memory - (0 if drafter is None else drafter.memory),
                    limits=Limits(chunk=opened.chunk, queue=opened.max_queue),
                    kernels="compiled" if opened.compile else "in_place",
                    exact=opened.exact,
                )
                if drafter is not None:
                    self._engine.speculate(drafter)
            ready = described(run, self._engine, Path(opened.texts))
            self._send(replace(ready, undrafted=undrafted))
        except (InputError, OSError) as error:
            self._send(Error(name=None, message=str(error), kind="input"))
            self._running = False

    def _apply(self, request: Apply) -> None:
        if self._inputs is None:
            return
        try:
            self._inputs.add(request)
        except InputError as error:
            self._send(Error(name=request.name, message=str(error), kind="input"))

    def _generate(self, request: Generate) -> None:
        engine = self._engine
        try:
            if engine is None:
                raise InputError("this model does not write text token by token")
            limit = request.limit
            if limit is None:
                limit = engine.default_limit(len(request.prompt), request.options)
            deadline = None if request.timeout is None else monotonic() + request.timeout
            engine.add(
                Request(
                    name=request.name,
                    prompt=request.prompt,
                    limit=limit,
                    n=request.n,
                    priority=request.priority,
                    deadline=deadline,
                    salt=request.salt,
                    options=request.options,
                )
            )
            self._answers[request.name] = request.answers
        except QueueFull as error:
            self._send(
                Error(
                    name=request.name,
                    message=str(error),
                    kind="full",
                    retry_after=error.retry_after,
                )
            )
        except TooLarge as error:
            self._send(Error(name=request.name, message=str(error), kind="large"))
        except InputError as error:
            self._send(Error(name=request.name, message=str(error), kind="input"))

    def _cancel(self, name: str, index: int | None) -> None:
        if self._inputs is not None:
            self._inputs.cancel(name)
        if self._engine is not None and name in self._answers:
            self._engine.cancel(name, index)
            self._ended(name, self._answers[name] if index is None else 1)

    def _ended(self, name: str, n_answers: int = 1) -> None:
        self._answers[name] -= n_answers
        if not self._answers[name]:
            del self._answers[name]

    def _step(self) -> None:
        """Compute a step of the engine, and one of the queue of whole inputs."""
        try:
            budget = AT_ONCE
            if self._engine is not None and self._answers:
                budget = self._chunk
                if events := self._engine.step(self._look_up):
                    self._send(Events(events=tuple(events)))
                for event in events:
                    if event.finished is not None and event.name in self._answers:
                        self._ended(event.name)
            if self._inputs:
                self._read(self._inputs, budget)
        except InputError as error:  # about one of the open requests
            self._end_requests(str(error), "failed")
        except (RuntimeError, MemoryError) as error:
            self._end_requests(_too_little_memory(error), "memory")

    def _read(self, inputs: InputQueue, budget: int) -> None:
        """Compute the next whole inputs, of at most `budget` tokens."""
        try:
            for message in inputs.step(budget, self._look_up):
                self._send(message)
        except Interrupted:
            pass  # at the engine's end
        except (RuntimeError, MemoryError) as error:
            why = _too_little_memory(error)
            for name in inputs.drop_running():
                self._send(Error(name=name, message=why, kind="memory"))

    def _end_requests(self, why: str, kind: ErrorKind) -> None:
        """End the open requests after a failed step; later ones may succeed."""
        assert self._engine is not None
        for name in self._answers:
            self._engine.cancel(name)
            self._send(Error(name=name, message=why, kind=kind))
        self._answers.clear()

    def _tell_load_at_times(self) -> None:
        """Report the engine's load, unless it was reported a moment ago."""
        if monotonic() - self._told >= EVERY:
            self._tell_load()

    def _tell_load(self) -> None:
        """Report the engine's load, including whole inputs."""
        if self._run is None:
            return
        self._told = monotonic()
        engine = self._engine
        stats = Stats(running=0, waiting=0, near_ties=0) if engine is None else engine.stats()
        queue = self._inputs
        n_running, n_open = (0, 0) if queue is None else (queue.n_running, len(queue))
        running, waiting = stats.running + n_running, stats.waiting + n_open - n_running
        self._send(Load(stats=replace(stats, running=running, waiting=waiting)))


def _drafter(opened: Open, run: Run) -> Drafter | None:
    """The drafter for a run's answers; None if none is requested.

    Raises `InputError` with the reason why nothing can be drafted for it.
    """
    if opened.speculate is None and opened.draft is None:
        return None
    if not isinstance(run.task_value, Language):
        raise InputError("it is not a language model")
    assert isinstance(run.model, DecoderModel)
    if (why := why_not_paged(run.model)) is not None:
        raise InputError(f"its keys and values are not in pages: {why}")
    if opened.draft is None:
        return PromptLookup()
    draft = Run.open(opened.draft, device=opened.device, dtype=opened.dtype, weights=opened.weights)
    check_drafts_for(draft, run)
    kernels = "compiled" if opened.compile else "in_place"
    return DraftModel(draft, memory_of_draft(opened.memory, draft, run), kernels=kernels)


def _too_little_memory(error: Exception) -> str:
    """A message for an out-of-memory error, with settings to change. Raises any other error."""
    message = out_of_memory(error)
    if message is None:
        raise error
    advice = "send fewer or shorter texts at once, or start with less `memory` or a smaller `chunk`"
    return f"{message}: {advice}"


def described(run: Run, engine: Engine | None, texts: Path) -> Ready:
    """The description of a run; its tokenizers are written to the folder `texts`.

    Raises `InputError` for a model that reads no text.
    """
    if run.text is None or has_signals(run.medium):
        raise InputError(f"{run.name}: reads {run.medium}: models of text are served")
    run.text.source.save(texts / SOURCE)
    run.text.target.save(texts / TARGET)
    task = run.task_value
    ready = Ready(
        name=Path(run.name).resolve().name,
        task=run.task,
        endpoint=task.endpoint,
        embeds=True,
        custom=isinstance(run.text.source.codec, CustomCodec),
        begins=run.text.source.begins,
        vocab_size=run.text.source.vocab_size,
        lines=(f"a model for {run.task}, at {task.endpoint}",),
    )
    model = run.model
    embed = model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed
    longest = maximum_length(embed)
    ready = replace(ready, max_len=None if longest == maxsize else longest)
    if engine is None:
        return ready
    facts = engine.description
    return replace(
        ready,
        vocab_size=facts.vocab_size,
        capacity=facts.capacity,
        writes=True,
        decoding=facts.decoding,
        template=_template(run),
        dated=not run.chats,
        lines=facts.lines,
    )


def _template(run: Run) -> str | None:
    """The chat template of a run; None without one."""
    try:
        return template_of(run) or PLAIN
    except InputError:
        return None


GRACE = 1.0
"""Seconds that an engine has to end by itself after its socket has ended."""


def end_with(connection: socket.socket) -> None:
    """End this process soon after the other side of the socket is closed."""
    Thread(target=_wait_and_end, args=(connection.fileno(),), daemon=True).start()


def _wait_and_end(connection: int) -> None:
    poll = select.poll()
    poll.register(connection, 0)  # a hang-up is always reported, whatever is unread
    poll.poll()
    sleep(GRACE)
    os._exit(1)


def main() -> None:
    """Serve on the socket that is standard input.

    Interrupts are for the web server, which ends the socket when it has ended its streams.
    """
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    print_warnings()
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a process that we start must not hold the socket
    end_with(connection)
    with connection:
        Worker(connection).serve()


if __name__ == "__main__":
    main()
