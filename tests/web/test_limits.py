"""Bodies: their size, their time, their depth and their numbers."""

import asyncio
import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.web import limits
from addnorm.web.errors import WebError
from addnorm.web.limits import BODY, DEPTH, DISCARDED, MOST, Limits, check_json


def answered(parts: list[bytes], seconds: float = 15.0, pause: float = 0.0) -> tuple[int, bytes]:
    """The status and, where it is passed on, the body that the application reads."""
    sent: list[Any] = []
    read: list[bytes] = []
    waiting = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]

    async def receive() -> Any:
        await asyncio.sleep(pause)
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: object, receive: Any, send: Any) -> None:
        read.append((await receive())["body"])
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200})

    scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(Limits(app, seconds)(scope, receive, send))
    return (sent[0]["status"] if sent else 0), b"".join(read)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=30)
@given(JSON, st.integers(1, 99))
def test_json_passes_unchanged(value: Any, size: int) -> None:
    body = json.dumps(value).encode()
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    assert answered(parts) == (200, body)


def nested(depth: int, outer: bytes = b"[", inner: bytes = b"]") -> bytes:
    return outer * depth + b"1" + inner * depth


@pytest.mark.parametrize(("outer", "inner"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_the_depth_is_exact(outer: bytes, inner: bytes) -> None:
    each = 2 if outer.startswith(b"[{") else 1
    check_json(nested(DEPTH // each, outer, inner))
    with pytest.raises(WebError, match="64 levels"):
        check_json(nested(DEPTH // each + 1, outer, inner))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * BODY,
        nested(10**5),
        b'{"n": NaN}',
        b'{"n": -Infinity}',
        b'{"n": 1e999}',
        b'{"n": ' + b"9" * 10**6 + b"}",
        b"\xff\xfe",
        b'"\\ud800"',
        b"{",
        b"[" + b"[]," * (BODY // 3),
        b"{" + b",".join(b'"%d":0' % i for i in range(MOST + 1)) + b"}",
        b'"' + b'\\"' * (BODY // 2 - 2),
    ],
    ids=range(12),
)
def test_wrong_json_is_refused_at_once(body: bytes) -> None:
    start = process_time()
    with pytest.raises(WebError) as caught:
        check_json(body)
    assert caught.value.status == 400
    assert process_time() - start < 0.05


def n_inside(value: Any) -> int:
    """How many lists, objects and fields a value has."""
    match value:
        case list():
            return 1 + sum(map(n_inside, value))
        case dict():
            return 1 + len(value) + sum(map(n_inside, value.values()))
        case _:
            return 0


@given(JSON)
def test_what_costs_time_is_counted_and_texts_are_not(value: Any) -> None:
    text, n = json.dumps(value).encode(), n_inside(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST", n)
        assert check_json(text) == value
        patch.setattr(limits, "MOST", n - 1)
        if n:
            with pytest.raises(WebError, match=f"{n:,} lists, objects and fields"):
                check_json(text)


def test_a_long_text_may_have_any_signs() -> None:
    assert check_json(json.dumps(text := '[{"a": "\\' * MOST).encode()) == text


def test_a_large_body_is_413() -> None:
    assert answered([b"1" * BODY])[0] == 400  # a number that long is none; but it was read
    assert answered([b"1" * 2**20] * 5)[0] == 413
    assert answered([b"1" * BODY] * (DISCARDED // BODY + 3))[0] == 413


def test_a_slow_body_is_cut() -> None:
    assert answered([b"1", b"2", b"3"], seconds=0.05, pause=0.03)[0] == 408
    assert answered([b"1", b"2"], seconds=5, pause=0.01)[0] == 200


def test_a_client_that_is_gone_gets_no_answer() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def never(*_: object) -> None:
        raise AssertionError

    scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(Limits(never)(scope, receive, never))
