"""Calls of tools in written texts: each family's form, whole or in pieces, and damaged ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.chat_templates import ARGUMENTS, CALLING, EITHER, written_call

from addnorm.data.conversation import PLAIN
from addnorm.data.tool_calls import CallForm, CallReader, Reply, ToolCall, call_form


def form(family: str) -> CallForm:
    found = call_form(CALLING[family])
    assert found is not None
    return found


@pytest.mark.parametrize("family", CALLING)
def test_a_call_is_read_back(family: str) -> None:
    text = written_call(family, "weather", ARGUMENTS)
    assert form(family).reply(text) == Reply("", (ToolCall("weather", ARGUMENTS),))
    assert form(family).reply("Yes, it rains.") == Reply("Yes, it rains.")


def test_a_family_is_known_by_its_template() -> None:
    assert len({id(form(family)) for family in CALLING}) == 4
    assert call_form(None) is call_form(PLAIN) is call_form(EITHER) is None
    other = "{{ tools }}<tool_call><function={{ name }}>"
    assert call_form(other) is None


def test_several_calls_and_the_text_with_them() -> None:
    one, two = (written_call("hermes", name, {"a": 1}) for name in ("x", "y"))
    calls = (ToolCall("x", {"a": 1}), ToolCall("y", {"a": 1}))
    assert form("hermes").reply(f"Let me see.\n{one}\n{two}\n") == Reply("Let me see.", calls)
    one, two = (written_call("llama", name, {"a": 1}) for name in ("x", "y"))
    assert form("llama").reply(f"<|python_tag|>{one}; {two}") == Reply("", calls)
    listed = '[TOOL_CALLS][{"name": "x", "arguments": {"a": 1}, "id": "123456789"},'
    listed += ' {"name": "y", "arguments": {"a": 1}}]'
    reply = form("mistral").reply(listed)
    assert reply == Reply("", calls)
    assert reply.calls[0].id == "123456789"
    named = '[TOOL_CALLS]x[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]y[ARGS]{"a": 1}'
    assert form("mistral").reply(named) == Reply("", calls)
    said = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert form("harmony").reply(said) == Reply("Yes.")
    other = ' to=functions.x<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    assert form("harmony").reply(other) == Reply("", calls[:1])


@pytest.mark.parametrize("family", CALLING)
@pytest.mark.parametrize("cut", [1, 3, 12])
def test_a_damaged_call_is_text(family: str, cut: int) -> None:
    text = written_call(family, "weather", ARGUMENTS).removesuffix("<|call|>")[:-cut]
    reply = form(family).reply(text)
    assert reply == Reply(text)
    assert form(family).reply(text.replace("weather", "")).calls == ()


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "{", '{"name": "a", "parameters": {"x": NaN}}', '{"name": 1}', "{} {}"]
)
def test_other_json_is_text(text: str) -> None:
    assert form("llama").reply(text) == Reply(text)


TEXTS = st.text("ab {}<\n", max_size=6)


@given(st.sampled_from([*CALLING]), TEXTS, TEXTS, st.booleans(), st.data())
def test_pieces_give_what_the_whole_gives(
    family: str, before: str, after: str, calls: bool, data: st.DataObject
) -> None:
    text = before + written_call(family, "x", {"a": "b\n"}) * calls + after
    whole = form(family).reply(text)
    reader, said = CallReader(form(family)), ""
    while text:
        n = data.draw(st.integers(1, len(text)))
        said, text = said + reader.push(text[:n]), text[n:]
    last = reader.finish()
    assert Reply(said + last.content, last.calls) == whole
    if calls and family == "hermes":
        assert whole.calls == (ToolCall("x", {"a": "b\n"}),)
