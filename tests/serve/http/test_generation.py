"""Answers that nobody reads any more are given up: streamed and whole, queued and running."""

import random
import socket
import time

import httpx
import pytest
from tests.serve.servers import serving


def running(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("addnorm_num_requests_running")
    )


def leave(url: str, path: str, body: str, after: float) -> None:
    """Ask for something, and close the connection after so many seconds."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        time.sleep(after)


@pytest.mark.parametrize(
    "n", [pytest.param(20, marks=pytest.mark.long), pytest.param(200, marks=pytest.mark.slow)]
)
def test_disconnects_free_what_was_computed(n: int) -> None:
    chances = random.Random(0)
    with serving("fake?delay=0.005") as url, httpx.Client(base_url=url) as client:
        for _ in range(n):
            stream = chances.choice(["true", "false"])
            path, field = chances.choice(
                [
                    ("/v1/completions", '"prompt": ["a", "b"], "n": 2, "max_tokens": 150'),
                    ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a"}]'),
                    ("/v1/responses", '"input": "a"'),
                ]
            )
            leave(url, path, f'{{{field}, "stream": {stream}}}', chances.random() * 0.05)
        start = time.monotonic()
        while running(client):
            assert time.monotonic() - start < 1
            time.sleep(0.02)
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
