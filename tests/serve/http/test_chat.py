"""Chat completions: roles, pieces, log-probabilities, and what is refused."""

import json
from typing import Any

import httpx
import pytest

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hallo"}]


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(client: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 14, "n": 2, "logprobs": True, "top_logprobs": 2}
    whole = client.post(PATH, json=body).json()
    assert whole["object"] == "chat.completion"
    text = client.post(PATH, json={**body, "stream": True}).text
    *events, end = text.strip().split("\n\n")
    assert end == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert all("usage" not in piece for piece in pieces)
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        joined = "".join(piece["delta"].get("content", "") for piece in mine)
        assert joined == choice["message"]["content"]
        assert [p["finish_reason"] for p in mine] == [None] * (len(mine) - 1) + ["length"]
        entries = [e for p in mine if p["logprobs"] for e in p["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == joined
        assert bytes(b for entry in entries for b in entry["bytes"]) == joined.encode()
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_parts_of_a_message_are_one_text(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Hal"}, {"type": "text", "text": "lo"}]
    asked = [[{"role": "user", "content": content}] for content in ("Hallo", parts)]
    counts = [
        client.post(PATH, json={"messages": m}).json()["usage"]["prompt_tokens"] for m in asked
    ]
    assert counts[0] == counts[1]


def test_a_developer_is_the_system(client: httpx.Client) -> None:
    tokens = [
        client.post("/tokenize", json={"messages": [{"role": role, "content": "x"}, *HELLO]}).json()
        for role in ("developer", "system")
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "schema": {"type": 5}}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, None),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\0"}]}, "messages"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
    ids=str,
)
def test_unsupported_fields_are_named(
    client: httpx.Client, more: dict[str, Any], param: str | None
) -> None:
    response = client.post(PATH, json={"messages": HELLO, **more})
    if param is None:
        assert response.status_code in (200, 400)
    else:
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


def test_fields_that_change_nothing_pass(client: httpx.Client) -> None:
    body = {
        "messages": HELLO,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "store": False,
        "temperature": None,
    }
    response = client.post(PATH, json=body)
    assert response.status_code == 200
    assert "x-addnorm-ignored" not in response.headers


def test_a_model_without_a_template_says_so(client: httpx.Client) -> None:
    response = client.post(PATH, json={"messages": HELLO, "model": "plain"})
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]
