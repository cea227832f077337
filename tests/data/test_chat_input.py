"""Conversations to answer: what templates take of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.chat_templates import (
    CALL,
    CALLING,
    EITHER,
    HERMES,
    LLAMA,
    MISTRAL,
    PIECES,
    TALK,
    TOOLS,
)

from addnorm.data.chat_input import ChatInput, tools_of
from addnorm.data.conversation import PLAIN, render
from addnorm.errors import InputError

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hello"}


def rendered(chat: ChatInput, template: str | None) -> str:
    ready = chat.for_template(template, NAMES)
    names = {**NAMES, "tools": [*ready.tools] or None}
    return render(ready.messages, template, "here", names, prompt=True)


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Library(BPE({"a": 0}, [])), **NAMES
    )


@pytest.mark.parametrize("family", CALLING)
@pytest.mark.parametrize("tools", [None, TOOLS[:1], TOOLS], ids=["none", "one", "two"])
def test_tools_are_rendered_as_transformers_does(family: str, tools: Any, theirs: Any) -> None:
    template = CALLING[family]
    for n in (1, 2, 3, 5):
        expected = theirs.apply_chat_template(
            TALK[:n],
            tools=tools,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert rendered(ChatInput.of(TALK[:n], tools), template) == expected


@pytest.mark.parametrize("template", [PIECES, EITHER], ids=["pieces", "either"])
def test_pieces_are_rendered_as_transformers_does(template: str, theirs: Any) -> None:
    pieces = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": pieces}, {"role": "assistant", "content": pieces[:1]}]
    expected = theirs.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert rendered(ChatInput.of(messages), template) == expected


def test_content_is_what_the_template_reads() -> None:
    """Transformers writes a list as Python shows it, and nothing for a text in place of pieces."""
    pieces = [{"type": "text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]
    for template in (None, HERMES, LLAMA, MISTRAL):
        asked = [ChatInput.of([{"role": "user", "content": c}]) for c in ("Hello", pieces)]
        whole, joined = (rendered(chat, template) for chat in asked)
        assert whole == joined
        assert "Hello" in whole
    assert rendered(ChatInput.of([USER]), PIECES) == "USER: Hello ASSISTANT:"


def test_arguments_may_be_a_text() -> None:
    given = json.dumps(CALL["function"]["arguments"])
    as_text = {**CALL, "function": {"name": "weather", "arguments": given}}
    talk = [TALK[0], {"role": "assistant", "content": None, "tool_calls": [as_text]}, *TALK[2:]]
    for template in CALLING.values():
        assert rendered(ChatInput.of(talk, TOOLS), template) == rendered(
            ChatInput.of(TALK, TOOLS), template
        )


@pytest.mark.parametrize("template", [None, PLAIN, PIECES, EITHER], ids=str)
@pytest.mark.parametrize(
    ("messages", "tools", "what"),
    [
        ([USER], TOOLS, "tools"),
        (TALK[:2], None, "messages: tool_calls"),
        ([USER, TALK[2]], None, 'messages: the role "tool"'),
    ],
    ids=["tools", "calls", "results"],
)
def test_what_a_template_leaves_out_is_refused(
    template: str | None, messages: Any, tools: Any, what: str
) -> None:
    if "results" in what or (what.endswith('"tool"') and template in (PIECES, EITHER)):
        return  # these write any role
    with pytest.raises(InputError, match=f"^{what}: the chat template of this model takes none"):
        rendered(ChatInput.of(messages, tools), template)


ANSWERS = "{% for m in messages if m.role != 'developer' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("template", [None, PLAIN, ANSWERS], ids=str)
def test_a_developer_that_a_template_does_not_know_is_refused(template: str | None) -> None:
    """Also where the conversation has the same words elsewhere."""
    told = [{**USER, "role": "developer"}, USER]
    with pytest.raises(InputError, match=r'"developer": .* or give them the role "system"'):
        rendered(ChatInput.of(told), template)
    assert "Hello" in rendered(ChatInput.of([{**USER, "role": "system"}, USER]), template)
    assert "DEVELOPER: Hello" in rendered(ChatInput.of(told), PIECES)


def test_the_template_may_refuse_messages() -> None:
    with pytest.raises(InputError, match="refuses these messages: one call at a time"):
        rendered(ChatInput.of([USER, {**TALK[1], "tool_calls": [CALL, CALL]}], TOOLS), LLAMA)


def called(arguments: str) -> dict[str, object]:
    return {"function": {"name": "a", "arguments": arguments}}


def nested(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("Hello", "expected a list of messages"),
        ([], "expected a list of messages"),
        (["Hello"], "message 1: expected role and content"),
        ([{"role": "user"}], "message 1: expected role and content"),
        ([{"role": "user", "content": None}], "message 1: expected role and content"),
        (
            [USER, {"role": "assistent", "content": "a"}],
            'message 2: role "assistent". Did you mean "assistant"',
        ),
        ([{"role": "user", "content": 5}], "message 1: content is 5, which is not text"),
        ([{**USER, "name": 5}], "message 1: name is 5, which is not text"),
        ([{"role": "user", "content": ["a"]}], "message 1: piece 1: expected"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1: piece 1: expected"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            'message 1: piece 1 is of type "image_url": this model reads text alone',
        ),
        ([{**USER, "tool_calls": [CALL]}], "tool_calls are the assistant's"),
        ([{**TALK[1], "tool_calls": "x"}], 'message 1: tool_calls is "x", which is not a list'),
        ([{**TALK[1], "tool_calls": [{}]}], "message 1: call 1: expected"),
        ([{**TALK[1], "tool_calls": [called('{"a": NaN}')]}], "NaN is not a number of JSON"),
        ([{**TALK[1], "tool_calls": [called(nested(70))]}], "more than 64 levels deep"),
        ([{**TALK[1], "tool_calls": [called(nested(10**5))]}], "more than 64 levels deep"),
        (
            [{**TALK[1], "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}],
            "message 1: call 1: its arguments are not JSON",
        ),
        (
            [{**TALK[1], "tool_calls": [{"function": {"name": "a", "arguments": "[1]"}}]}],
            "its arguments are \\[1\\], not a JSON object",
        ),
        ([{"role": "user", "content": "\0"}], "message 1: a NUL is not text"),
    ],
    ids=str,
)
def test_wrong_messages_are_named(messages: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ChatInput.of(messages)


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ("weather", "tools: expected a list of tools"),
        ([{"type": "function"}], "tools: tool 1: expected"),
        ([TOOLS[0], {**TOOLS[1], "type": "web_search"}], "tools: tool 2: expected"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], "are a JSON schema"),
    ],
    ids=str,
)
def test_wrong_tools_are_named(tools: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        tools_of(tools)


def test_a_file_is_a_list_or_an_object(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(TALK))
    assert ChatInput.of_file(file) == ChatInput.of(TALK)
    file.write_text(json.dumps({"messages": TALK, "tools": TOOLS}))
    assert ChatInput.of_file(file) == ChatInput.of(TALK, TOOLS)
    file.write_text(json.dumps({"mesages": TALK}))
    with pytest.raises(InputError, match=r'talk\.json: no key "mesages"\. Did you mean "messages"'):
        ChatInput.of_file(file)
    file.write_text(json.dumps({"messages": TALK, "tools": {}}))
    with pytest.raises(InputError, match=r"talk\.json: tools: expected a list of tools"):
        ChatInput.of_file(file)
    file.write_text("[")
    with pytest.raises(InputError, match=r"talk\.json"):
        ChatInput.of_file(file)
    with pytest.raises(InputError, match=r"none\.json: no such file of messages"):
        ChatInput.of_file(tmp_path / "none.json")
