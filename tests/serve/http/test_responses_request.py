"""The items of the Responses API as messages of a conversation, and its tools as chat has them."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.data.chat_templates import TOOLS

from addnorm.errors import InputError
from addnorm.serve.http.responses_request import ResponsesRequest

FUNCTION = {"type": "function", **TOOLS[0]["function"]}
CALL = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Bern"}'}
ARGUMENTS = {"city": "Bern"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "rain"}
USER = {"role": "user", "content": "Rain?"}


def messages(*items: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    request = ResponsesRequest.model_validate({"input": [*items], **more})
    return [dict(message) for message in request.conversation.messages]


def test_calls_in_a_row_are_of_one_message() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
    for before in ((), (said,)):
        [_, assistant, *results] = messages(USER, *before, CALL, {**CALL, "call_id": "b"}, RESULT)
        assert assistant["content"] == ("Let me see." if before else "")
        calls = assistant["tool_calls"]
        assert [call["id"] for call in calls] == ["a", "b"]
        assert calls[0]["function"] == {"name": "weather", "arguments": ARGUMENTS}
        assert results == [{"role": "tool", "tool_call_id": "a", "content": "rain"}]


def test_calls_after_results_are_of_another_message() -> None:
    roles = [m["role"] for m in messages(USER, CALL, RESULT, CALL, RESULT, instructions="Short.")]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_tools_are_those_of_chat() -> None:
    request = ResponsesRequest.model_validate(
        {"input": "x", "tools": [{**FUNCTION, "strict": None}]}
    )
    assert [*request.conversation.tools] == TOOLS[:1]
    assert request.given_tools == [FUNCTION]
    none = request.model_validate({"input": "x", "tools": [FUNCTION], "tool_choice": "none"})
    assert [*none.conversation.tools] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tool 1: only functions are supported"),
        ({"tools": [FUNCTION, TOOLS[0]]}, "tool 2: only functions"),
        ({"tools": [FUNCTION] * 200}, "200 tools: at most 128"),
        ({"tools": ["weather"]}, "tool 1: only functions"),
        ({"tools": FUNCTION}, "expected a list of tools"),
        ({"tools": [{**FUNCTION, "parameters": "none"}]}, "parameters"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "has call_id, name, arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "has call_id, output"),
        ({"input": [{"role": "user"}]}, "an item of type message has role, content"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "'message', 'function_call'"),
        ({"tools": [FUNCTION], "text": {"format": {"type": "json_object"}}}, "calls no tool"),
    ],
    ids=str,
)
def test_wrong_bodies_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ResponsesRequest.model_validate({"input": "x", **change})


def test_arguments_that_are_not_json_are_named() -> None:
    with pytest.raises(InputError, match=r"input: message 2: call 1: its arguments are not JSON"):
        messages(USER, {**CALL, "arguments": "{"}, RESULT)
