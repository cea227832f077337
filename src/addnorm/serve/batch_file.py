"""A file of requests: OpenAI's batch lines in, its answers out, in order.

Each line is answered by the application of the web server, without a network: the same options,
answers and errors. As many lines as `AHEAD` are read before the first of them is answered.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from addnorm.config import problem_of
from addnorm.errors import InputError
from addnorm.serve.http.app import create_app
from addnorm.serve.http.metrics import Metrics
from addnorm.serve.http.served import Models, Served
from addnorm.serve.messages import Open
from addnorm.serve.supervisor import WORKER, Supervisor
from addnorm.web.limits import BODY

AHEAD = 256
"""The most lines that are open at once."""

QUEUE = 2**20
"""The most prompts that wait in the engine; those of the open lines always may."""

LONGEST = BODY + 2**16
"""The most bytes of a line."""

RESTART = 0.2
"""Seconds between two looks at an engine that is restarted."""

RETRIES = 3
"""How often a line is asked again that found no engine, or no memory."""


class BatchRequest(BaseModel):
    """One line in a file of requests."""

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses"]
    body: dict[str, Any]


@dataclass
class Counts:
    """The number of requests in a file that were answered now, failed, or were answered before."""

    answered: int = 0
    failed: int = 0
    resumed: int = 0

    def __str__(self) -> str:
        before = f", {self.resumed:,} before" if self.resumed else ""
        return f"{self.answered:,} answered, {self.failed:,} failed{before}"

    def add(self, answer: Mapping[str, Any]) -> None:
        """Count an answer."""
        failed = answer["error"] is not None or answer["response"]["status_code"] != 200
        self.failed += failed
        self.answered += not failed


async def answer_file(
    opened: Open,
    file: Path,
    write: Callable[[bytes], object],
    *,
    answered: int = 0,
    worker: Sequence[str] = WORKER,
) -> Counts:
    """Write the answer to each request of a file, in order, skipping the first `answered`.

    Raises `InputError` for a run that cannot be served, and if its engine ends twice.
    """
    counts = Counts(resumed=answered)
    with TemporaryDirectory(prefix="addnorm-") as folder, file.open("rb") as requests:
        numbered = lines(requests)
        for _ in range(answered):
            next(numbered)
        supervisor = Supervisor(replace(opened, texts=folder, max_queue=QUEUE), worker)
        try:
            app = await _application(supervisor)
            async with aclosing(_answers(numbered, app)) as answers:
                async for answer in answers:
                    counts.add(answer)
                    write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        finally:
            await supervisor.stop()
    return counts


def n_answered(out: Path, file: Path) -> int:
    """The number of requests in a file that have an answer; an incomplete answer is removed.

    Raises `InputError` if these are the answers to other requests.
    """
    if not out.exists():
        return 0
    n, end = 0, 0
    with out.open("r+b") as answers, file.open("rb") as requests:
        asked = lines(requests)
        for line in answers:
            if not line.endswith(b"\n"):
                answers.truncate(end)
                break
            n, end = n + 1, end + len(line)
            number, request = next(asked, (0, b""))
            if not number or _id_of(line) != _id_of(request):
                raise InputError(
                    f"{out}:{n}: not the answer to request {n} of {file}: name another file"
                )
    return n


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of a file with their numbers; overlong lines are cut."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(LONGEST)):
            pass
        if line.strip():
            yield number, line


def _id_of(line: bytes) -> str | None:
    """The id of a request or an answer, if it has one."""
    try:
        return _own_id(from_json(line))
    except ValueError:
        return None


def _own_id(value: Any) -> str | None:
    own = value.get("custom_id") if isinstance(value, dict) else None
    return own if isinstance(own, str) else None


async def _application(supervisor: Supervisor) -> "_Application":
    """The application of one run, yielded once its engine is ready."""
    ready, metrics = await supervisor.start(), Metrics()
    app = create_app(Models([Served(supervisor, ready, metrics)]), metrics)
    return _Application(app, supervisor)


async def _answers(
    numbered: Iterator[tuple[int, bytes]], app: "_Application"
) -> AsyncGenerator[dict[str, Any], None]:
    """The answers to lines, in order; at most `AHEAD` lines are processed at once."""
    waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        for number, line in numbered:
            waiting.append(asyncio.create_task(app.answer(number, line)))
            if len(waiting) == AHEAD:
                yield await waiting[0]
                waiting.popleft()
        while waiting:
            yield await waiting[0]
            waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@dataclass(frozen=True)
class _Application:
    """The web server's application, called directly without a network."""

    app: Any
    supervisor: Supervisor

    async def answer(self, number: int, line: bytes) -> dict[str, Any]:
        """The answer to one line. Raises `InputError` if the engine ended twice."""
        request_id = f"batch_req_{number}"
        try:
            request = request_of(number, line)
        except InputError as error:
            problem = {"code": "invalid_request", "message": str(error)}
            own = _id_of(line)
            return {"id": request_id, "custom_id": own, "response": None, "error": problem}
        status, body = await self._post(request.url, request.body)
        for _ in range(RETRIES):
            if status == 503:
                await self._restarted(number)
                status, body = await self._post(request.url, request.body)
        response = {"status_code": status, "request_id": request_id, "body": body}
        own = request.custom_id
        return {"id": request_id, "custom_id": own, "response": response, "error": None}

    async def _restarted(self, number: int) -> None:
        """Wait while the engine restarts. Raises `InputError` if it is not."""
        await asyncio.sleep(RESTART)
        while self.supervisor.state == "restarting":
            await asyncio.sleep(RESTART)
        if self.supervisor.state == "dead":
            raise InputError(f"line {number}: the engine ended twice: run this again to continue")

    async def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and body of the response to a request."""
        content = json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        arriving = [{"type": "http.request", "body": content, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if arriving:
                return arriving.pop()
            return await asyncio.Future[dict[str, Any]]()  # the client stays

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, *parts = sent
        return start["status"], json.loads(b"".join(part.get("body", b"") for part in parts))


def request_of(number: int, line: bytes) -> BatchRequest:
    """Parse the request in a line. Raises `InputError` with its number for anything else."""
    if len(line) > LONGEST:
        raise InputError(f"line {number}: more than {LONGEST:,} bytes")
    try:
        request = BatchRequest.model_validate(from_json(line, allow_inf_nan=False))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"line {number}: {field or 'the line'}: {problem_of(first)}") from error
    except ValueError as error:
        raise InputError(f"line {number}: not JSON: {error}") from error
    if request.body.get("stream"):
        raise InputError(f"line {number}: body.stream: a file has whole answers: leave it out")
    return request
