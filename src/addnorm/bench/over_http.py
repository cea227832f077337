"""Serving over HTTP: many clients' streams compared with the engine alone, and start-up time."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.bench import prepared
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio
from addnorm.bench.implementation import Round, Run, implementation
from addnorm.bench.serving import ServingSizes, served

LISTENING = "listening on http://127.0.0.1:"


@contextmanager
def server(folder: Path, *options: str, cache: str | None = None) -> Generator[int]:
    """Serve the model in a separate process, with a cache folder; yield the port."""
    command = [sys.executable, "-m", "addnorm", "serve", str(folder / prepared.HF), "--port", "0"]
    environment = os.environ | ({} if cache is None else {"ADDNORM_CACHE": cache})
    with subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            line = next((line for line in process.stderr if line.startswith(LISTENING)), "")
            if not line:
                raise OSError("the server has not started")
            yield int(line.removeprefix(LISTENING))
        finally:
            process.terminate()


async def stream(port: int, prompt: Sequence[int], n: int, salt: str) -> float:
    """Read an answer as it is written; return the second at which its first token came."""
    body = {"prompt": [*prompt], "max_tokens": n, "temperature": 0, "ignore_eos": True}
    content = json.dumps({**body, "stream": True, "cache_salt": salt}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    first, answer = 0.0, bytearray()
    while part := await reader.read(2**16):
        answer += part
        if not first and b"data:" in answer:
            first = time.perf_counter()
    writer.close()
    if b"[DONE]" not in answer:
        raise OSError(answer[:200].decode())
    return first


def streamed(folder: Path, *, sizes: ServingSizes) -> Run:
    """Return rounds in which a server streams all answers, each to its own client."""
    workload = sizes.workload()

    async def read_all(port: int, salt: str) -> None:
        await asyncio.gather(*(stream(port, prompt, n, salt) for prompt, n in workload))

    def run() -> Round:
        with server(folder, "--memory", "1GiB") as port:
            asyncio.run(read_all(port, "warm"))
            start = time.perf_counter()
            asyncio.run(read_all(port, "measured"))
            return Round(time.perf_counter() - start, sizes.tokens)

    return run


def start(folder: Path, *, compiled: bool) -> Run:
    """Return rounds of the time from the command to the first token, cold and then warm.

    Cold, no compiled code is on disk; warm, it is.
    """
    prompt, options = [5, 6, 7, 8], ("--compile",) if compiled else ()

    def first_token(cache: str) -> float:
        begin = time.perf_counter()
        with server(folder, *options, cache=cache) as port:
            return asyncio.run(stream(port, prompt, 4, "")) - begin

    def run() -> Round:
        with TemporaryDirectory(prefix="addnorm-cache-") as cache:
            cold = first_token(cache)
            warm = min(first_token(cache) for _ in range(2))
        return Round(cold, 1, {"warm s": warm})

    return run


def http_benchmark() -> Benchmark:
    """Return the benchmark of 32 streams over HTTP, compared with the engine alone."""
    sizes = ServingSizes(answer=(64, 128))
    return Benchmark(
        name="serve-http",
        description="GPT-2 small, 32 answers of 64–128 tokens: streamed over HTTP, or the engine "
        "alone",
        unit="new tokens/s",
        implementations=(
            implementation("over HTTP", streamed, sizes=sizes, warm_up=False),
            implementation("engine alone", served, sizes=sizes, precision="float32"),
        ),
        targets=(Ratio(ours=("over HTTP",), peers=("engine alone",), goal=Goal(must=0.9)),),
        prepare=prepared.gpt2,
    )


def start_benchmark() -> Benchmark:
    """Return the benchmark of start-up, from the command to the first token."""
    return Benchmark(
        name="serve-start",
        description="GPT-2 small: from the command to the first token, without compiled code on "
        "disk; and with it (warm)",
        unit="ms",
        figure="ms",
        implementations=tuple(
            implementation(name, start, compiled=compiled, warm_up=False)
            for name, compiled in (("plain", False), ("compiled", True))
        ),
        targets=tuple(
            Limit(ours=("compiled",), figure=figure, goal=Goal(must=must, at_most=True))
            for figure, must in (("ms", 60_000.0), ("warm s", 3.0))
        ),
        details=("warm s",),
        prepare=prepared.gpt2,
    )
