"""Conversations to answer: messages in pieces, calls of tools and their results, for a template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from addnorm.data.conversation import PLAIN, Message, check_text, render, texts_in
from addnorm.errors import InputError, choices, in_json
from addnorm.files import read_json

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The authors of messages. A template refuses those that it does not know."""

TEXT = ("text", "input_text", "output_text")
"""The types of pieces of content that are text."""

DEEPEST = 64
"""How deep lists and objects may lie in one another in arguments that are a text."""
TOO_DEEP = f"are more than {DEEPEST} levels deep"

Tool = Mapping[str, Any]
"""A tool: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`."""


@dataclass(frozen=True)
class ChatInput:
    """A conversation to answer, and the tools that the assistant may call."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()

    @classmethod
    def of(
        cls,
        messages: object,
        tools: object = None,
        where: str = "messages",
        tools_where: str = "tools",
    ) -> "ChatInput":
        """Build a conversation from messages and tools.

        Content is a text, a list of pieces, or nothing next to `tool_calls`, whose arguments are a
        JSON object or the text of one. Raises `InputError` naming the message, tool or piece that
        is wrong; pieces that are not text are.
        """
        if not isinstance(messages, list | tuple) or not messages:
            raise InputError(f"{where}: expected a list of messages, not {in_json(messages)}")
        checked = [
            _message(message, f"{where}: message {n}")
            for n, message in enumerate(cast(Sequence[Any], messages), 1)
        ]
        return cls(checked, tools_of(tools, tools_where))

    @classmethod
    def of_json(cls, tree: object, where: str) -> "ChatInput":
        """The conversation in a JSON value: a list of messages, or an object with `tools` too."""
        if not isinstance(tree, dict):
            return cls.of(tree, where=where)
        keys = ("messages", "tools")
        for key in cast(dict[str, Any], tree):
            if key not in keys:
                raise InputError(f"{where}: no key {in_json(key)}.{choices(key, keys, in_json)}")
        return cls.of(tree.get("messages"), tree.get("tools"), where, f"{where}: tools")

    @classmethod
    def of_file(cls, file: Path) -> "ChatInput":
        """The conversation in a JSON file. Raises `InputError` for a damaged one, naming it."""
        if not file.is_file():
            raise InputError(f"{file}: no such file of messages")
        return cls.of_json(read_json(file), str(file))

    def checked(self) -> "ChatInput":
        """Return the conversation, checked to end with a message to answer.

        Raises `InputError` where the last message is the assistant's.
        """
        if self.messages[-1]["role"] == "assistant":
            raise InputError(
                "messages: the last one is the assistant's: there is nothing to answer"
            )
        return self

    def for_template(self, template: str | None, names: Mapping[str, Any]) -> "ChatInput":
        """The conversation with message content in the form that the template reads.

        Raises `InputError` for tools, calls, and messages that the template leaves out.
        """
        forms = _forms_of(template, frozenset(_texts(names).items()))
        ready = replace(self, messages=[_with_content(m, forms) for m in self.messages])
        _check_taken(ready, template, names)
        return ready


def tools_of(cell: object, where: str = "tools") -> list[Tool]:
    """Check a list of tools, or None. Raises `InputError` naming the one that is wrong."""
    if cell is None:
        return []
    if not isinstance(cell, list | tuple):
        raise InputError(f"{where}: expected a list of tools, not {in_json(cell)}")
    for n, tool in enumerate(cast(Sequence[Any], cell), 1):
        match tool:
            case {"type": "function", "function": {"name": str(name), **more}} if name:
                parameters = more.get("parameters")
            case _:
                raise InputError(
                    f'{where}: tool {n}: expected {{"type": "function", "function": {{"name": …, '
                    f'"parameters": …}}}}, not {in_json(tool)}'
                )
        if not isinstance(parameters, dict | None):
            raise InputError(
                f"{where}: tool {n}: parameters are a JSON schema, not {in_json(parameters)}"
            )
        _check_texts(tool, f"{where}: tool {n}")
    return [*cast(Sequence[Tool], cell)]


# Messages.


def _message(message: object, place: str) -> Message:
    if not isinstance(message, Mapping) or "role" not in message:
        raise InputError(f"{place}: expected role and content, not {in_json(message)}")
    fields = dict(cast(Mapping[str, Any], message))
    if (role := fields["role"]) not in ROLES:
        raise InputError(f"{place}: role {in_json(role)}.{choices(str(role), ROLES, in_json)}")
    content, calls = fields.pop("content", None), fields.pop("tool_calls", None)
    if calls and role != "assistant":
        raise InputError(f"{place}: tool_calls are the assistant's, not of role {in_json(role)}")
    if content is None and not calls:
        raise InputError(f"{place}: expected role and content, not {in_json(message)}")
    # pandas and Arrow give every message the keys of all, with None where there is nothing.
    texts = {key: value for key, value in fields.items() if value is not None}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise InputError(f"{place}: {key} is {in_json(value)}, which is not text")
    new = {"content": "" if content is None else _content(content, place)}
    new |= {"tool_calls": _calls(calls, place)} if calls else {}
    made = {key: value for key, value in message.items() if key in {**texts, **new}} | new
    _check_texts(made, place)
    return made


def _content(content: object, place: str) -> str | list[Mapping[str, Any]]:
    if isinstance(content, list | tuple):
        pieces = enumerate(cast(Sequence[Any], content), 1)
        return [_piece(piece, f"{place}: piece {n}") for n, piece in pieces]
    if not isinstance(content, str):
        raise InputError(f"{place}: content is {in_json(content)}, which is not text")
    return content


def _piece(piece: object, place: str) -> Mapping[str, Any]:
    match piece:
        case {"type": str(kind)} if kind not in TEXT:
            raise InputError(
                f"{place} is of type {in_json(kind)}: this model reads text alone."
                f"{choices(kind, TEXT, in_json)}"
            )
        case {"type": _, "text": str(text)}:
            return {**cast(Mapping[str, Any], piece), "type": "text", "text": text}
        case _:
            raise InputError(
                f'{place}: expected {{"type": "text", "text": …}}, not {in_json(piece)}'
            )


def _calls(calls: object, place: str) -> list[Mapping[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise InputError(f"{place}: tool_calls is {in_json(calls)}, which is not a list")
    return [_call(call, f"{place}: call {n}") for n, call in enumerate(calls, 1)]


def _call(call: object, place: str) -> Mapping[str, Any]:
    """A call with its arguments as an object; templates turn them into JSON themselves."""
    match call:
        case {"function": {"name": str(), **more} as function}:
            arguments = more.get("arguments", {})
        case _:
            raise InputError(
                f'{place}: expected {{"type": "function", "function": {{"name": …, "arguments": '
                f"…}}}}, not {in_json(call)}"
            )
    if isinstance(arguments, str):
        arguments = _arguments_of(arguments, place)
    if not isinstance(arguments, dict):
        raise InputError(f"{place}: its arguments are {in_json(arguments)}, not a JSON object")
    new = {"type": "function", "function": {**function, "arguments": arguments}}
    return {**cast(Mapping[str, Any], call), **new}


def _arguments_of(text: str, place: str) -> Any:
    """The value of the arguments' JSON text.

    Raises `InputError` for anything else, and for a deep one.
    """
    try:
        value = json.loads(text or "{}", parse_constant=_refuse_constant)
    except ValueError as error:
        raise InputError(f"{place}: its arguments are not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{place}: its arguments {TOO_DEEP}") from error
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in cast(list[Any], [*outer.values()] if isinstance(outer, dict) else outer)
        ]
    if level:
        raise InputError(f"{place}: its arguments {TOO_DEEP}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _check_texts(value: object, place: str) -> None:
    for text in texts_in(value):
        check_text(text, place)


# What a template takes.


class _Forms(NamedTuple):
    """Whether a template writes content given as a text, and content given in pieces."""

    text: bool
    pieces: bool


PROBE = "addnorm probe"

FOR_TOOLS = "use a model whose chat_template reads `tools`"

LEFT_OUT = {
    "tool": FOR_TOOLS,
    "developer": 'give them the role "system"',
}
"""The roles whose messages a template may leave out, and what helps."""


@lru_cache(64)
def _forms_of(template: str | None, names: frozenset[tuple[str, str]]) -> _Forms:
    """Find the forms of content that a template writes, by trying each."""

    def written(content: object) -> str:
        try:
            return render([{"role": "user", "content": content}], template, "", dict(names))
        except InputError:
            return ""

    pieces = written([{"type": "text", "text": PROBE}])
    as_data = (f"'{PROBE}'", f'"{PROBE}"')  # the list itself was written
    takes_pieces = PROBE in pieces and not any(spelling in pieces for spelling in as_data)
    return _Forms(not takes_pieces or PROBE in written(PROBE), takes_pieces)


def _with_content(message: Message, forms: _Forms) -> Message:
    content = message["content"]
    if isinstance(content, str) and not forms.text:
        content = [{"type": "text", "text": content}] if content else []
    elif not isinstance(content, str) and not forms.pieces:
        content = "".join(piece["text"] for piece in content)
    return {**message, "content": content}


def _texts(names: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, text in names.items() if isinstance(text, str)}


def _check_taken(chat: ChatInput, template: str | None, names: Mapping[str, Any]) -> None:
    """Raise `InputError` for tools or messages that the template leaves out."""
    without: dict[str, tuple[ChatInput, str]] = {}
    if chat.tools:
        without["tools"] = replace(chat, tools=()), FOR_TOOLS
    plain = [{k: v for k, v in m.items() if k != "tool_calls"} for m in chat.messages]
    if any("tool_calls" in message for message in chat.messages):
        without["messages: tool_calls"] = replace(chat, messages=plain), FOR_TOOLS
    for role, instead in LEFT_OUT.items():
        others = [message for message in chat.messages if message["role"] != role]
        if len(others) < len(chat.messages):
            without[f'messages: the role "{role}"'] = replace(chat, messages=others), instead
    if not without:
        return
    whole = _rendered(chat, template, names)
    for name, (less, instead) in without.items():
        if template in (None, PLAIN) or _written_as(whole, less, template, names):
            raise InputError(
                f"{name}: the chat template of this model takes none: leave them out, or {instead}"
            )


def _written_as(text: str, chat: ChatInput, template: str | None, names: Mapping[str, Any]) -> bool:
    """Whether the template turns a conversation into exactly this text."""
    try:
        return _rendered(chat, template, names) == text
    except InputError:
        return False


def _rendered(chat: ChatInput, template: str | None, names: Mapping[str, Any]) -> str:
    named = {**names, "tools": [*chat.tools] or None}
    return render(chat.messages, template, "chat", named, prompt=True)
