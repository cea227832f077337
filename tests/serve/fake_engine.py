"""An engine without a model, which speaks on the socket as a real one does.

Its run is a name and settings, such as `fake?delay=0.01`: `delay` is the seconds of a step, `text`
what every answer says, `task` and `endpoint` what it is for, `template` its chat
template, `max_len` the most tokens of a prompt. A prompt that begins with `die` ends
the process at once, and one that begins with `nan` fails.
"""

import os
import select
import socket
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qs, urlsplit

from addnorm.data.conversation import PLAIN
from addnorm.data.tokenizing.tokenizers import BPEConfig, Tokenizer
from addnorm.serve.engine.events import Event, PromptScores, Stats
from addnorm.serve.messages import (
    FROM_ENGINE,
    SOURCE,
    TARGET,
    Apply,
    Cancel,
    Error,
    Events,
    Generate,
    Inbox,
    Load,
    Open,
    Ready,
    Result,
    Stop,
    packed,
)

TEXT = "Der schnelle braune Fuchs springt über den faulen Hund. 北京 🦊 " * 4
MAX_LEN = 512


class FakeEngine:
    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.inbox = connection, Inbox()
        self.rows: list[dict[str, Any]] = []
        self.running = True
        self.told = 0.0

    def send(self, message: Any) -> None:
        try:
            self.connection.sendall(packed(FROM_ENGINE, message))
        except ConnectionError:
            self.running = False

    def serve(self) -> None:
        while self.running:
            wait = None if not self.rows else self.delay
            if select.select([self.connection], [], [], wait)[0]:
                arrived = self.connection.recv(2**16)
                if not arrived:
                    return
                for message in self.inbox.take(arrived):
                    self.handle(message)
            if self.rows:
                self.step()
            if not self.rows or monotonic() - self.told > 0.1:
                self.told = monotonic()
                self.send(Load(stats=self.stats()))

    def stats(self) -> Stats:
        n = len(self.rows)
        return Stats(running=n, waiting=0, pages=n, pages_in_all=100, set_aside=3, near_ties=2)

    def open(self, opened: Open) -> None:
        parts = urlsplit(opened.run)
        settings = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "wrong" in settings:
            self.send(Error(name=None, message=settings["wrong"], kind="input"))
            self.running = False
            return
        self.delay, self.max_queue = float(settings.get("delay", 0.0)), opened.max_queue
        self.max_len = int(settings.get("max_len", MAX_LEN))
        tokenizer = BPEConfig(vocab_size=300).train([TEXT])
        for file in (SOURCE, TARGET):
            tokenizer.save(Path(opened.texts) / file)
        self.tokenizer: Tokenizer = tokenizer
        self.answer = [*tokenizer.encode(settings.get("text", TEXT)), tokenizer.eos_id]
        self.send(
            Ready(
                name=parts.path,
                task=settings.get("task", "language"),
                endpoint=settings.get("endpoint", "/v1/completions"),
                embeds=True,
                writes="writes" in settings,
                vocab_size=tokenizer.vocab_size,
                max_len=self.max_len,
                template=None if "no_template" in settings else settings.get("template", PLAIN),
                undrafted=settings.get("undrafted"),
                lines=("60 tokens in 4 pages",),
            )
        )

    def handle(self, message: Any) -> None:
        match message:
            case Open():
                self.open(message)
            case Generate():
                self.generate(message)
            case Apply():
                self.apply(message)
            case Cancel(name=name, index=index):
                self.rows = [
                    row
                    for row in self.rows
                    if row["name"] != name or index not in (None, row["index"])
                ]
            case Stop():
                self.running = False

    def generate(self, request: Generate) -> None:
        text = self.tokenizer.decode(request.prompt)
        if text.startswith("die"):
            os._exit(9)
        if "too large" in text:
            self.send(Error(name=request.name, message="900 tokens", kind="large"))
            return
        if len(request.prompt) > self.max_len:
            message = f"prompt: {len(request.prompt)} tokens, and the model has {self.max_len}"
            self.send(Error(name=request.name, message=message, kind="input"))
            return
        if len(self.rows) >= self.max_queue:
            message = "too many requests wait"
            self.send(Error(name=request.name, message=message, kind="full", retry_after=2.5))
            return
        for index in range(request.answers):
            limit = 256 if request.limit is None else request.limit
            self.rows.append(
                {
                    "name": request.name,
                    "index": index,
                    "request": request,
                    "left": self.answer[:limit],
                    "limit": limit,
                    "nan": text.startswith("nan"),
                    "stuck": text.startswith("stuck"),
                    "first": index == 0,
                }
            )

    @staticmethod
    def failure(row: dict[str, Any]) -> str | None:
        if row["nan"]:
            return "NaN"
        if row["stuck"] and not row["first"]:
            field = row["request"].options.grammar_field
            return f"{field}: no token of the model continues the text"
        return None

    def step(self) -> None:
        events: list[Event] = []
        for row in list(self.rows):
            request: Generate = row["request"]
            facts: dict[str, Any] = {}
            if (error := self.failure(row)) is not None:
                events.append(
                    Event(name=row["name"], index=row["index"], finished="failed", error=error)
                )
                self.rows.remove(row)
                continue
            if request.options.prompt_log_probs and row["first"]:
                n = len(request.prompt) - 1
                best = tuple(((i, -0.5),) for i in request.prompt[1:])
                facts["prompt"] = PromptScores(tuple(-float(i) for i in range(1, n + 1)), best)
            row["first"] = False
            tokens = tuple(row["left"][:1])
            row["left"] = row["left"][1:]
            if tokens and request.options.log_probs is not None:
                facts["log_probs"] = (-0.25,)
                n_best = request.options.log_probs
                facts["best"] = (tuple((tokens[0] + i, -0.25 - i) for i in range(n_best)),)
            finished = None
            if tokens == (self.tokenizer.eos_id,):
                finished = "eos"
            elif not row["left"]:
                finished = "length"
            if finished:
                self.rows.remove(row)
            events.append(
                Event(
                    name=row["name"],
                    index=row["index"],
                    tokens=tokens,
                    finished=finished,
                    **facts,
                )
            )
        self.send(Events(events=tuple(events)))

    def apply(self, job: Apply) -> None:
        sleep(self.delay)
        if "wrong" in job.inputs:
            self.send(Error(name=job.name, message="input: wrong", kind="input"))
            return
        outputs = tuple([float(len(str(each))), 0.5] for each in job.inputs)
        self.send(Result(name=job.name, outputs=outputs, n_tokens=7))


if __name__ == "__main__":
    with socket.socket(fileno=0) as connection:
        FakeEngine(connection).serve()
    sys.exit(0)
