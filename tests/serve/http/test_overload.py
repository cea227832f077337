"""Four times as many clients as there is room for: each is answered or refused, none is lost."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.serve.servers import command, memory

ROOM = 32 + 25
"""Requests that wait, and those for which the memory has pages."""
BODY = {"prompt": "To be, or not to be", "max_tokens": 60, "ignore_eos": True}


async def client(url: str, http: httpx.AsyncClient, end: float, statuses: Counter[str]) -> None:
    """Ask again and again, at once after a refusal too."""
    while time.monotonic() < end:
        try:
            response = await http.post(f"{url}/v1/completions", json=BODY)
        except httpx.HTTPError as error:
            statuses[repr(error)] += 1
            continue
        statuses[str(response.status_code)] += 1
        if response.status_code == 200:
            assert response.json()["usage"]["completion_tokens"] == 60
        else:
            assert int(response.headers["retry-after"]) >= 1


async def crowd(url: str, n: int, seconds: float, statuses: Counter[str]) -> None:
    """The requests of `n` clients, each with a connection of its own.

    They wait as long as the server does: a client that gives up is no request that is lost.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=None) as http:
        end = time.monotonic() + seconds
        await asyncio.gather(*(client(url, http, end, statuses) for _ in range(n)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(10, marks=pytest.mark.slow),
        pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_every_request_is_answered_or_refused(run_of: Callable[[str], Path], seconds: int) -> None:
    run, statuses = run_of("language"), Counter[str]()
    words = ("serve", run, "--port", 0, "--max-queue", 32, "--memory", "512KiB", "--device", "cpu")
    with command(*words) as (url, process), httpx.Client(base_url=url, timeout=60) as probe:
        while statuses.total() < 1000:  # its memory is that of a busy server
            asyncio.run(crowd(url, 4 * ROOM, 1, statuses))
        before = memory(process.pid)
        asyncio.run(crowd(url, 4 * ROOM, seconds, statuses))
        assert memory(process.pid) < before + 2**24
        assert statuses.keys() == {"200", "429"}, statuses
        assert statuses["200"] > ROOM
        start = time.monotonic()
        while any(busy(probe.get("/metrics").text)):
            assert time.monotonic() - start < 2
            time.sleep(0.05)
        assert probe.post("/v1/completions", json=BODY).status_code == 200


def busy(figures: str) -> list[float]:
    """How many requests run, how many wait, and the share of the pages that are held."""
    names = ("addnorm_num_requests_running", "addnorm_num_requests_waiting", "addnorm_kv_cache")
    return [float(line.split()[-1]) for line in figures.splitlines() if line.startswith(names)]
