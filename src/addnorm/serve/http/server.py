"""Starts the engines, serves until told to stop, and closes open streams properly."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from rich.console import Console
from uvicorn import Config, Server

from addnorm.errors import InputError
from addnorm.long_work import long_work
from addnorm.serve.http.app import create_app
from addnorm.serve.http.metrics import Metrics
from addnorm.serve.http.served import Models, Served
from addnorm.serve.messages import Open
from addnorm.serve.supervisor import WORKER, Supervisor
from addnorm.web.protocol import LimitedProtocol

LAST_PORT = 2**16 - 1
BACKLOG = 2048
"""Connections that wait to be accepted."""

KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed.

Longer than clients and proxies keep one (httpx 5 s, nginx 60 s): if both closed it at the same
time, a request that was just sent would get no answer.
"""

GRACE = 30.0
"""Seconds that open answers have after SIGTERM or Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where a server listens, and who may send requests."""

    host: str = "127.0.0.1"
    port: int = 8000
    timeout: float = 600.0
    key: str | None = None
    grace: float = GRACE
    worker: Sequence[str] = WORKER


class DrainingServer(Server):
    """A server that accepts no new work after SIGTERM, and stops once all answers end.

    The sockets stay open meanwhile, so that a probe is told. A second signal ends at once.
    """

    def __init__(self, config: Config, app: Any, grace: float) -> None:
        super().__init__(config)
        self._app, self._grace = app, grace
        self._draining: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down; called in a signal handler."""
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Accept no new requests; stop once open ones have ended, or at the second call."""
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._app.state.draining = True
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        supervisors = [served.supervisor for served in self._app.state.models.by_name.values()]
        try:
            async with asyncio.timeout(self._grace):
                while any(supervisor.open_requests for supervisor in supervisors):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            for supervisor in supervisors:
                supervisor.fail_open_requests()
        self.should_exit = True


async def serve(
    runs: Sequence[Open],
    options: ServerOptions,
    console: Console,
    listening: Callable[[int, DrainingServer], None] = lambda port, server: None,
) -> None:
    """Serve runs until SIGTERM or Ctrl-C.

    What fits is printed on the console, and `listening` is called with the port once requests are
    taken. Raises `InputError` for a run that cannot be served, and for a port that is taken.
    """
    metrics, say = Metrics(), partial(console.out, highlight=False)
    sock = _bound(options.host, options.port)
    async with AsyncExitStack() as stack:
        stack.callback(sock.close)
        supervisors: list[Supervisor] = []
        for opened in runs:
            folder = stack.enter_context(TemporaryDirectory(prefix="addnorm-"))
            supervisor = Supervisor(replace(opened, texts=folder), options.worker)
            stack.push_async_callback(supervisor.stop)
            supervisors.append(supervisor)
        with long_work(console, _opening(runs)):
            ready = await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
        served = [
            Served(supervisor, each, metrics, options.timeout)
            for supervisor, each in zip(supervisors, ready, strict=True)
        ]
        _check_names(served)
        _check_drafts(served)
        for model in served:
            for line in model.ready.lines:
                say(f"{model.name}: {line}")
            if model.ready.undrafted is not None:
                say(f"{model.name}: served without drafts: {model.ready.undrafted}")
        app = create_app(Models(served), metrics, key=options.key, timeout=options.timeout)
        config = Config(
            app,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=2,
        )
        server = DrainingServer(config, app, options.grace)
        sock.listen(BACKLOG)
        port = sock.getsockname()[1]
        say(f"listening on http://{_shown(options.host)}:{port}")
        listening(port, server)
        await server.serve([sock])


def _opening(runs: Sequence[Open]) -> str:
    """The message that is shown while a server opens its runs."""
    compiles = " and compiling" if any(opened.compile for opened in runs) else ""
    return f"opening{compiles} {', '.join(opened.run for opened in runs)}"


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address. Raises `InputError` where it cannot be had."""
    if port > LAST_PORT:
        raise InputError(f"`port = {port}`: must be at most {LAST_PORT}")
    try:
        [(family, kind, proto, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )
        with ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, proto))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            stack.pop_all()  # it stays open
    except (OSError, OverflowError) as error:
        raise InputError(f"`host = {host}`, port {port}: {error}") from error
    return sock


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_names(served: Sequence[Served]) -> None:
    """Raise `InputError` if two models have the same name."""
    names = [model.name for model in served]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two runs are named {name}: a request could not name one of them")


def _check_drafts(served: Sequence[Served]) -> None:
    """Raise `InputError` if drafts were requested but no model supports them."""
    reasons = [model.ready.undrafted for model in served]
    if all(reasons):
        raise InputError(f"{served[0].name}: nothing can be drafted: {reasons[0]}")
