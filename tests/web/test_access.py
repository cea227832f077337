"""Who may ask: names of this machine, no foreign page, a key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.errors import InputError
from addnorm.web.access import Access, check_host, is_loopback, read_key

LOCAL = ["localhost", "127.0.0.1", "[::1]", "127.3.2.1", "LOCALHOST", "a.localhost", "::1"]
ELSEWHERE = [
    "example.org",
    "localhost.example.org",
    "10.0.0.1",
    "0.0.0.0",
    "[::]",
    "",
    "127.0.0.1.x",
]


async def nothing() -> dict[str, Any]:
    raise AssertionError("nothing of a refused request is read")


def status(method: str, path: str, headers: dict[str, str], key: str | None = None) -> int:
    """The status of a refusal; 200 if the request is passed on."""
    sent: list[dict[str, Any]] = []

    async def app(scope: object, receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"type": "http", "method": method, "path": path, "headers": pairs}
    asyncio.run(Access(app, key)(scope, nothing, send))  # pyright: ignore
    return sent[0]["status"]


@pytest.mark.parametrize("name", LOCAL)
def test_names_of_this_machine(name: str) -> None:
    assert is_loopback(name)
    check_host(name, None)
    host = f"[{name}]" if name == "::1" else name
    for value in (host, f"{host}:8000"):
        assert status("GET", "/", {"host": value}) == 200


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_names_need_a_key(name: str) -> None:
    assert not is_loopback(name)
    with pytest.raises(InputError, match="api_key_file"):
        check_host(name, None)
    check_host(name, "sesame")
    assert status("GET", "/", {"host": name}) == 403
    assert status("GET", "/", {"host": f"{name}:8000"}) == 403
    key = {"authorization": "Bearer sesame"}
    assert status("GET", "/", {"host": name, **key}, "sesame") == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8000", 200),
        ("https://localhost:8000", 200),
        ("http://localhost:9000", 403),
        ("http://example.org", 403),
        ("null", 403),
        ("", 403),
        ("http://localhost:8000.example.org", 403),
    ],
)
def test_foreign_pages_may_not_change_anything(origin: str, expected: int) -> None:
    headers = {"host": "localhost:8000", "origin": origin}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert status(method, "/", headers) == expected
    assert status("GET", "/", headers) == 200


@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n")))
def test_only_the_key_is_the_key(given: str) -> None:
    scope: Any = {"type": "http", "method": "GET", "path": "/metrics"}
    header = (b"authorization", f"Bearer {given}".encode("latin-1"))
    scope["headers"] = [(b"host", b"localhost"), header]
    refused = Access(None, "sesame")._refusal(scope) is not None  # pyright: ignore
    assert refused == (given.strip() != "sesame")


def test_a_key_is_one_word_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sesame\n")
    assert read_key(file) == "sesame"
    for content, message in [("", "one word"), ("a b", "one word"), ("é", "ASCII")]:
        file.write_text(content)
        with pytest.raises(InputError, match=message):
            read_key(file)
    with pytest.raises(InputError, match="no such file"):
        read_key(tmp_path / "none")


def test_names_of_one_machine_are_one_server() -> None:
    """A page that was opened by the address asks a server that was given by name."""
    ask = {"host": "localhost:8000", "origin": "http://127.0.0.1:8000"}
    assert status("POST", "/", ask) == 200
    assert status("POST", "/", {**ask, "origin": "http://127.0.0.1:8001"}) == 403
    assert status("POST", "/", {**ask, "origin": "http://example.org:8000"}) == 403
