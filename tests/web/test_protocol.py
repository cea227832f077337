"""Connections: headers that are too large or too slow end them."""

import asyncio
from typing import Any

import pytest
from uvicorn import Config, Server

from addnorm.web.protocol import HEADERS, LimitedProtocol


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = b"served"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def replies(*parts: bytes, seconds: float = 0.3, pause: float = 0.0) -> bytes:
    """All that a server answers to these parts, until it closes the connection."""
    config = Config(
        app,
        http=type("Protocol", (LimitedProtocol,), {"seconds": seconds}),
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=0.1,
        port=0,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:  # we wrote to a closed one
        return b""
    finally:
        writer.close()
        server.should_exit = True
        await serving


BEGIN = b"GET / HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"x: " + b"a" * (HEADERS + 1),
        b"\r\n".join(b"x%d: %s" % (i, b"a" * 1000) for i in range(40)),
    ],
)
@pytest.mark.parametrize("cut", [1, 3])
def test_large_headers_are_431(headers: bytes, cut: int) -> None:
    whole = BEGIN + headers + b"\r\n\r\n"
    n = len(whole) // cut + 1
    parts = [whole[i : i + n] for i in range(0, len(whole), n)]
    assert asyncio.run(replies(*parts, pause=0.02)).startswith(b"HTTP/1.1 431 ")


def test_headers_up_to_the_limit_are_read() -> None:
    headers = b"x: " + b"a" * (HEADERS - 200)
    assert b"200 OK" in asyncio.run(replies(BEGIN + headers + b"\r\n\r\n"))


@pytest.mark.parametrize("parts", [(), (b"GET / HT",), (BEGIN,) + (b"a",) * 9])
def test_slow_headers_end_the_connection(parts: tuple[bytes, ...]) -> None:
    assert asyncio.run(replies(*parts, pause=0.05)) == b""


def test_requests_follow_each_other_on_a_connection() -> None:
    whole = BEGIN + b"\r\n"
    assert asyncio.run(replies(whole, whole, pause=0.05)).count(b"200 OK") == 2
