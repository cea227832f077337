"""The Responses API: events in order, text and conversation, no state."""

import json
from typing import Any

import httpx
import pytest
from tests.data.chat_templates import TOOLS
from tests.serve.http.conftest import CALLED, SAID

PATH = "/v1/responses"


def events(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    text = client.post(PATH, json={**body, "stream": True}).text
    read = []
    for event in text.strip().split("\n\n"):
        name, _, data = event.partition("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


@pytest.mark.parametrize("most", [5, 450])
def test_the_events_add_up_to_the_response(client: httpx.Client, most: int) -> None:
    whole = client.post(PATH, json={"input": "Hallo", "max_output_tokens": most}).json()
    streamed = events(client, input="Hallo", max_output_tokens=most)
    assert [event["sequence_number"] for event in streamed] == [*range(len(streamed))]
    assert streamed[0]["type"] == "response.created"
    [item] = whole["output"]
    text = item["content"][0]["text"]
    deltas = [e["delta"] for e in streamed if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text
    last = streamed[-1]
    status = "incomplete" if most == 5 else "completed"
    assert last["type"] == f"response.{status}"
    assert whole["status"] == status
    assert last["response"]["output"][0]["content"] == item["content"]
    assert last["response"]["usage"] == whole["usage"]


def test_instructions_come_first(client: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Kurz."}, {"role": "user", "content": "Hallo"}]
    tokens = client.post("/tokenize", json={"messages": messages}).json()["count"]
    for body in (
        {"input": "Hallo", "instructions": "Kurz."},
        {"input": [{"type": "message", **message} for message in messages]},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hallo"}]},
            ],
            "instructions": "Kurz.",
        },
    ):
        usage = client.post(PATH, json=body).json()["usage"]
        assert usage["input_tokens"] == tokens


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "prompt"])
def test_state_is_refused_by_name(client: httpx.Client, field: str) -> None:
    response = client.post(PATH, json={"input": "x", field: "resp_1"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


TOOL = {"type": "function", **TOOLS[0]["function"]}
ASKED = {"model": "caller", "input": "Rain?", "tools": [TOOL], "max_output_tokens": 400}


def test_calls_are_items_after_the_message(client: httpx.Client) -> None:
    whole = client.post(PATH, json=ASKED).json()
    assert whole["status"] == "completed"
    message, *calls = whole["output"]
    assert message["content"][0]["text"] == SAID.strip()
    assert [call["type"] for call in calls] == ["function_call"] * 2
    assert {call["arguments"] for call in calls} == {'{"city": "Bern"}'}
    assert len({call["call_id"] for call in calls}) == 2
    assert whole["tools"] == [TOOL]
    first = client.post(PATH, json={**ASKED, "parallel_tool_calls": False}).json()
    assert len(first["output"]) == 2
    result = {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "rain"}
    again = [{"role": "user", "content": "Rain?"}, *whole["output"], result]
    assert client.post(PATH, json={**ASKED, "input": again}).status_code == 200


def test_calls_are_streamed_as_items(client: httpx.Client) -> None:
    streamed = events(client, **ASKED)
    assert [event["sequence_number"] for event in streamed] == [*range(len(streamed))]
    done = [e for e in streamed if e["type"] == "response.output_item.done"]
    assert [e["output_index"] for e in done] == [0, 1, 2]
    assert [e["item"] for e in done] == streamed[-1]["response"]["output"]
    deltas = [e for e in streamed if e["type"] == "response.function_call_arguments.delta"]
    assert [(e["output_index"], e["delta"]) for e in deltas] == [
        (1, '{"city": "Bern"}'),
        (2, '{"city": "Bern"}'),
    ]
    text = "".join(e["delta"] for e in streamed if e["type"] == "response.output_text.delta")
    assert text == SAID.strip()


def test_tools_are_not_shown_where_none_may_be_called(client: httpx.Client) -> None:
    [message] = client.post(PATH, json={**ASKED, "tool_choice": "none"}).json()["output"]
    assert message["content"][0]["text"] == SAID + CALLED + CALLED


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "model": "plain"}, "model"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input.0"),
    ],
    ids=str,
)
def test_unsupported_values_are_named(
    client: httpx.Client, more: dict[str, Any], param: str
) -> None:
    response = client.post(PATH, json={"input": "x", **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_failure_before_the_first_token_has_a_status(client: httpx.Client) -> None:
    body = {"input": "x" * 5000, "stream": True}
    assert client.post(PATH, json=body).status_code == 400
