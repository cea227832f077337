"""Clients that do nothing, or do not read, delay nobody else."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import quantiles

import httpx
import pytest
from tests.serve.servers import serving

STREAM = b'{"prompt": "a", "max_tokens": 400, "stream": true, "n": 16, "logprobs": 20}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@contextmanager
def crowd(url: str, n_idle: int, n_slow: int) -> Iterator[None]:
    """Connections that ask nothing, and some that ask for streams and do not read them."""
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        for i in range(n_idle + n_slow):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stack.enter_context(connection)
            connection.connect(("127.0.0.1", port))
            if i >= n_idle:
                connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM)
        yield


def p95(client: httpx.Client, seconds: float) -> float:
    """The time of a request that one of twenty exceeds, asked again and again."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 8})
        assert response.status_code == 200
        times.append(time.perf_counter() - start)
        time.sleep(0.05)
    return quantiles(times, n=20)[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_idle_and_slow_clients_delay_nobody() -> None:
    """500 that are idle and 100 that do not read, for a minute: at most twice the time."""
    with serving("fake?delay=0.01") as url, httpx.Client(base_url=url, timeout=60) as client:
        alone = p95(client, 5)
        with crowd(url, 500, 100):
            time.sleep(10)  # what fits into their buffers is written
            among = p95(client, 60)
        assert among < 2 * alone
        assert client.get("/health").status_code == 200


@pytest.mark.long
def test_a_few_idle_and_slow_clients_are_served_around() -> None:
    with serving("fake") as url, httpx.Client(base_url=url, timeout=60) as client:
        with crowd(url, 30, 3):
            response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 8})
        assert response.status_code == 200
