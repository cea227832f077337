"""A server from its start to its end: signals, drains, ports and names."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from io import StringIO
from statistics import median

import httpx
import pytest
from rich.console import Console
from tests.serve import servers
from tests.serve.servers import serving

from addnorm import long_work
from addnorm.errors import InputError


def events(response: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in response.iter_lines() if line)


def test_a_server_names_what_it_does_before_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "PATIENCE", 1e-3)
    written = StringIO()
    with serving("fake[i]", console=Console(file=written)) as url:
        opening, *_, facts, listening = written.getvalue().splitlines()
    assert opening == "opening fake[i]: 0 s so far"
    assert facts == "fake[i]: 60 tokens in 4 pages"
    assert listening == f"listening on {url}"


@pytest.mark.long
def test_open_answers_end_before_the_server_does() -> None:
    with (
        serving("fake?delay=0.02", grace=10.0) as url,
        httpx.Client(base_url=url) as client,
        httpx.Client(base_url=url) as other,
    ):
        body = {"prompt": "a", "max_tokens": 40, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = events(response)
            next(lines)
            servers.last().handle_exit(15, None)
            time.sleep(0.05)
            assert other.get("/readyz").status_code == 503
            assert other.get("/livez").status_code == 200
            refused = other.post("/v1/completions", json={"prompt": "a"})
            assert refused.status_code == 503
            *_, last, done = lines
        assert done == "[DONE]"
        assert json.loads(last)["choices"][0]["finish_reason"] == "length"


@pytest.mark.long
def test_after_the_grace_answers_end_with_an_error() -> None:
    with serving("fake?delay=0.05", grace=0.2) as url, httpx.Client(base_url=url) as client:
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = events(response)
            next(lines)
            start = time.monotonic()
            servers.last().handle_exit(15, None)
            *_, last, done = lines
        assert json.loads(last)["error"]["message"] == "the server is ending"
        assert done == "[DONE]"
        assert time.monotonic() - start < 2


@pytest.mark.long
def test_a_queue_that_is_full_is_429_with_a_time_at_once() -> None:
    with serving("fake?delay=0.05", max_queue=2) as url, httpx.Client(base_url=url) as client:
        body = {"prompt": ["a", "b"], "max_tokens": 20}
        thread = threading.Thread(target=lambda: httpx.post(f"{url}/v1/completions", json=body))
        thread.start()
        time.sleep(0.3)
        seconds = []
        for stream in (False, True) * 3:
            refused = client.post("/v1/completions", json={"prompt": "c", "stream": stream})
            seconds.append(refused.elapsed.total_seconds())
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "3"
            assert refused.headers["x-should-retry"] == "true"
        assert median(seconds) < 0.1
        thread.join()


@pytest.mark.long
def test_a_dead_engine_is_503_until_it_is_back() -> None:
    with serving("fake") as url, httpx.Client(base_url=url) as client:
        start = time.monotonic()
        assert client.post("/v1/completions", json={"prompt": "die"}).status_code == 503
        assert client.get("/health").status_code == 503
        assert time.monotonic() - start < 2
        while client.get("/health").status_code == 503:
            assert time.monotonic() - start < 10
            time.sleep(0.02)
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.long
def test_an_engine_that_died_twice_is_named_and_the_others_answer() -> None:
    with serving("fake", "other") as url, httpx.Client(base_url=url) as client:

        def asked(model: str, prompt: str = "a") -> httpx.Response:
            return client.post("/v1/completions", json={"model": model, "prompt": prompt})

        def until(state: str) -> None:
            start = time.monotonic()
            while client.get("/health").json()["engines"]["fake"] != state:
                assert time.monotonic() - start < 10
                time.sleep(0.02)

        for state in ("ready", "dead"):
            refused = asked("fake", "die")
            assert refused.headers["retry-after"] == "2"
            assert refused.headers["x-should-retry"] == "true"
            until(state)
        refused = asked("fake")
        assert refused.status_code == 503
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        for probe in ("/readyz", "/health"):
            probed = client.get(probe)
            assert probed.status_code == 503
            assert probed.json()["engines"] == {"fake": "dead", "other": "ready"}
        assert asked("other").status_code == 200


@pytest.mark.long
def test_a_request_has_a_deadline() -> None:
    with serving("fake?delay=0.3", timeout=0.1) as url, httpx.Client(base_url=url) as client:
        late = client.post("/v1/embeddings", json={"input": "a"})
        assert late.status_code == 504
        assert late.headers["x-should-retry"] == "false"


def test_clients_and_proxies_close_idle_connections_first() -> None:
    """httpx after 5 s, nginx after 60 s; else a request may meet a connection that just closed."""
    with serving("fake") as url:
        assert servers.last().config.timeout_keep_alive > 60
        with httpx.Client(base_url=url) as client:
            assert client.get("/livez").headers.get("connection") != "close"


def test_a_port_that_is_taken_is_an_error_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}"), serving("fake", port=port):
            pass


def test_a_port_beyond_the_last_is_refused() -> None:
    with pytest.raises(InputError, match="at most 65535"), serving("fake", port=99999):
        pass


@pytest.mark.long
def test_two_runs_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two runs are named fake"), serving("fake", "fake"):
        pass


def test_drafts_are_for_the_models_that_can_have_them() -> None:
    with serving("fake?undrafted=why", "other") as url:
        assert len(httpx.get(f"{url}/v1/models").json()["data"]) == 2
    with (
        pytest.raises(InputError, match="fake: nothing can be drafted: why"),
        serving("fake?undrafted=why", "other?undrafted=no"),
    ):
        pass
