"""Servers of tests: on a free port, in a thread, stopped at the end."""

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from addnorm.serve.http.server import DrainingServer, ServerOptions, serve
from addnorm.serve.messages import Open

FAKE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))


_servers: list[DrainingServer] = []


def last() -> DrainingServer:
    """The server that was started last."""
    return _servers[-1]


@contextmanager
def serving(
    *runs: str,
    worker: Sequence[str] = FAKE,
    port: int = 0,
    memory: int = 2**26,
    max_queue: int = 256,
    console: Console | None = None,
    **options: Any,
) -> Iterator[str]:
    """Serve runs, by default of the fake engine; yield the address."""
    opened = [
        Open(run=run, memory=memory, chunk=64, max_queue=max_queue, device="cpu") for run in runs
    ]
    started: queue.Queue[tuple[int, DrainingServer] | BaseException] = queue.Queue()

    def run() -> None:
        try:
            asyncio.run(
                serve(
                    opened,
                    ServerOptions(port=port, worker=worker, **options),
                    console or Console(quiet=True),
                    lambda port, server: started.put((port, server)),
                )
            )
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    first = started.get(timeout=120)
    if isinstance(first, BaseException):
        thread.join()
        raise first
    port, server = first
    _servers.append(server)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if thread.is_alive():
            server.handle_exit(15, None)
        thread.join(timeout=60)
        assert not thread.is_alive()


@contextmanager
def command(*words: Any) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `addnorm serve` as a process; yield its address and the process, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "addnorm", *map(str, words)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process:
        try:
            line = next(line for line in process.stderr if "listening on" in line)
            yield line.split()[-1], process
        finally:
            process.terminate()
    assert process.returncode == 0


def memory(process: int) -> int:
    """The bytes of a process and those that it started."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if str(process) in (facts["Pid"].strip(), facts["PPid"].strip()) and "VmRSS" in facts:
            total += int(facts["VmRSS"].split()[0]) * 1024
    return total
