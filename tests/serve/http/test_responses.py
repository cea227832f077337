"""The Responses API: events in order, text and conversation, no state."""

import json
from typing import Any

import httpx
import pytest

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


def test_tools_are_refused_by_name(client: httpx.Client) -> None:
    body = {"input": "x", "tools": [{"type": "function", "name": "f"}]}
    assert client.post(PATH, json=body).json()["error"]["param"] == "tools"


def test_a_failure_before_the_first_token_has_a_status(client: httpx.Client) -> None:
    body = {"input": "x" * 5000, "stream": True}
    assert client.post(PATH, json=body).status_code == 400
