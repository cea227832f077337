"""Chat completions: roles, pieces, log-probabilities, and what is refused."""

import json
from typing import Any

import httpx
import pytest
from tests.data.chat_templates import TALK, TOOLS
from tests.serve.http.conftest import CALLED, SAID

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hallo"}]
IMAGE = "messages.0.content.0.type"
PIECE = "messages.0.content.0"


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
    refused = [{"type": "refusal", "refusal": "Hallo"}]
    asked = [[{"role": "user", "content": content}] for content in ("Hallo", parts, refused)]
    counts = [
        client.post(PATH, json={"messages": m}).json()["usage"]["prompt_tokens"] for m in asked
    ]
    assert counts[0] == counts[1] == counts[2]


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
        ({"tools": [{**TOOLS[0], "type": "web_search"}]}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": TOOLS}, "tools"),
        ({"tools": TOOLS, "model": "plain"}, "model"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"functions": [{"name": "weather"}]}, "functions"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "schema": {"type": 5}}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, None),
        ({"messages": [{"role": "tol", "content": "x"}]}, "messages.0.role"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": TALK[:2]}, "messages.1.tool_calls.0.function.arguments"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, IMAGE),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, PIECE),
        ({"messages": [{"role": "user", "content": [{"type": "refusal", "text": "x"}]}]}, PIECE),
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


ASKED = {"model": "caller", "messages": HELLO, "tools": TOOLS, "max_tokens": 400}


def test_calls_are_read_from_the_answer(client: httpx.Client) -> None:
    [choice] = client.post(PATH, json=ASKED).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == SAID.strip()
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "weather", "arguments": '{"city": "Bern"}'}] * 2
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    [choice] = client.post(PATH, json={**ASKED, "parallel_tool_calls": False}).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    more = {**ASKED, "messages": [*HELLO, message, result]}
    assert client.post(PATH, json=more).status_code == 200


def test_tools_are_not_shown_where_none_may_be_called(client: httpx.Client) -> None:
    without = client.post(PATH, json={**ASKED, "tools": None}).json()
    none = client.post(PATH, json={**ASKED, "tool_choice": "none"}).json()
    auto = client.post(PATH, json={**ASKED, "tool_choice": "auto"}).json()
    tokens = [answer["usage"]["prompt_tokens"] for answer in (without, none, auto)]
    assert tokens[0] == tokens[1] < tokens[2]
    for answer in (without, none):
        [choice] = answer["choices"]
        assert choice["message"]["content"] == SAID + CALLED + CALLED
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
    shown = client.post("/tokenize", json={k: ASKED[k] for k in ("model", "messages", "tools")})
    assert shown.json()["count"] == tokens[2]


def test_calls_are_streamed_after_the_text(client: httpx.Client) -> None:
    text = client.post(PATH, json={**ASKED, "stream": True, "n": 2}).text
    *events, end = text.strip().split("\n\n")
    assert end == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    for index in range(2):
        mine = [piece for piece in pieces if piece["index"] == index]
        assert "".join(piece["delta"].get("content", "") for piece in mine) == SAID.strip()
        assert [p["finish_reason"] for p in mine] == [None] * (len(mine) - 1) + ["tool_calls"]
        calls = mine[-1]["delta"]["tool_calls"]
        assert [call["index"] for call in calls] == [0, 1]
        assert calls[0]["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}


def test_a_cut_call_is_content(client: httpx.Client) -> None:
    for stream in (False, True):
        response = client.post(PATH, json={**ASKED, "max_tokens": 25, "stream": stream})
        assert "tool_calls" not in response.text
        assert "<tool_call>" in response.text
        assert '"length"' in response.text
