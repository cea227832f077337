"""Conversations: their messages, and the template that turns them into text and answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from reprlib import repr as short
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from addnorm.errors import InputError, choices

Message = Mapping[str, Any]
"""A message: the `role` of its author, its `content`, and what else a template reads."""

ROLES = ("system", "user", "assistant")

PLAIN = (
    "{% for message in messages %}"
    "{{ {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[message.role] }}: "
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
"""The template for tokenizers without one: each answer ends with the end token."""

BEGIN, END = "\0begin\0", "\0end\0"
"""The marks of the tokenizer's start and end tokens in the text of a conversation."""

PLACEHOLDERS = {"bos_token": BEGIN, "eos_token": END}
"""The special tokens of a tokenizer that has no spelling for them."""


@dataclass(frozen=True, slots=True)
class ChatPart:
    """A part of a conversation, and whether it is an answer that a model learns."""

    text: str
    is_answer: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation in parts as a template writes it, and the `contents` of its messages.

    The parts are written again from `messages` and `template` for a tokenizer that names its
    special tokens, since a template may use the names.
    """

    parts: tuple[ChatPart, ...]
    contents: tuple[str, ...]
    messages: tuple[Message, ...] = field(default=(), compare=False)
    template: str | None = field(default=None, compare=False)


def messages_of(cell: object, where: str) -> list[Message]:
    """Convert a list of messages to checked `Message` objects.

    Raises `InputError`, naming the message, for anything else.
    """
    if not isinstance(cell, list) or not cell:
        raise InputError(f"{where}: expected a list of messages, not {short(cell)}")
    messages: list[Message] = []
    for n, message in enumerate(cast(list[Any], cell), 1):
        place = f"{where}: message {n}"
        if not isinstance(message, dict) or {"role", "content"} - message.keys():
            raise InputError(f"{place}: expected role and content, not {short(message)}")
        fields = cast(dict[str, Any], message)
        if (role := fields["role"]) not in ROLES:
            raise InputError(f"{place}: role {short(role)}.{choices(str(role), ROLES)}")
        # pandas and Arrow give every message the keys of all, with None where there is nothing.
        texts = {key: text for key, text in fields.items() if text is not None or key == "content"}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise InputError(f"{place}: {key} is {text!r}, which is not text")
            check_text(text, place)
        messages.append(cast(Message, texts))
    return messages


def is_text(text: str) -> bool:
    """Return whether `check_text` raises no error."""
    try:
        check_text(text, "")
    except InputError:
        return False
    return True


def check_text(text: str, where: str) -> None:
    """Raise `InputError` for characters that no valid text has: NUL, half a surrogate pair."""
    if "\0" in text:
        raise InputError(f"{where}: a NUL is not text")
    if text.isascii():
        return
    try:
        text.encode()  # fails for these alone
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half a surrogate pair is not text") from error


def conversation(
    messages: Sequence[Message],
    template: str | None,
    where: str = "chat",
    names: Mapping[str, Any] = PLACEHOLDERS,
) -> Conversation:
    """Return the text of a conversation in parts, each an answer or not.

    The template reads the special tokens in `names`, such as `eos_token`, and `tools` there.

    Raises `InputError` where the template refuses the messages, or writes a conversation that does
    not begin as its first messages alone.
    """
    parts: list[ChatPart] = []
    written = ""
    for n, message in enumerate(messages, 1):
        if message["role"] != "assistant":
            continue
        for text, is_answer in (
            (render(messages[: n - 1], template, where, names, prompt=True), False),
            (render(messages[:n], template, where, names), True),
        ):
            if not text.startswith(written):
                raise InputError(
                    f"{where}: the template writes the {n - 1} messages before message {n} "
                    "differently once that answer follows, so the answer cannot be separated"
                )
            parts.append(ChatPart(text[len(written) :], is_answer))
            written = text
    return Conversation(tuple(parts), _contents(messages), tuple(messages), template)


def _contents(messages: Sequence[Message], tools: object = None) -> tuple[str, ...]:
    return (*texts_in(messages), *texts_in(tools))


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a JSON value, except the roles of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in cast(Mapping[str, Any], value).items():
            yield from texts_in(inner) if key != "role" else ()
    elif isinstance(value, list | tuple):
        for inner in cast(Sequence[Any], value):
            yield from texts_in(inner)


def whole_prompt(
    messages: Sequence[Message], template: str | None, names: Mapping[str, Any] = PLACEHOLDERS
) -> Conversation:
    """Return the prompt before the assistant's answer, as a single part."""
    text = render(messages, template, "chat", names, prompt=True)
    return Conversation((ChatPart(text, False),), _contents(messages, names.get("tools")))


def prompt_of(
    messages: Sequence[Message], template: str | None, names: Mapping[str, Any] = PLACEHOLDERS
) -> Conversation:
    """Return the prompt before the assistant's answer, in the parts used in training.

    The template writes the conversation up to each answer again, to find where it begins and ends.
    """
    whole = whole_prompt(messages, template, names)
    [last] = whole.parts
    try:
        parts = conversation(messages, template, "chat", names).parts
    except InputError:  # the template writes earlier answers in another way than the last one
        return whole
    before = "".join(part.text for part in parts)
    if not last.text.startswith(before):
        return whole
    return replace(whole, parts=(*parts, ChatPart(last.text[len(before) :], False)))


def render(
    messages: Sequence[Message],
    template: str | None,
    where: str,
    names: Mapping[str, Any] = PLACEHOLDERS,
    *,
    prompt: bool = False,
) -> str:
    """Return the text that the template writes; `names` has special tokens and `tools` for it.

    It may read the date of today too where `with_date` added it to `names`.
    """
    try:
        return rendered(
            PLAIN if template is None else template,
            messages=messages,
            add_generation_prompt=prompt,
            **{"tools": None, "documents": None, **names},
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except ValueError as error:
        why = DATED if f"'{DATE}' is undefined" in str(error) else ""
        raise InputError(f"{where}: data.template: {error}{why}") from error


DATE = "strftime_now"
"""The function by which a template of Hugging Face writes the date of today."""

DATED = (
    ": data would differ from day to day. Give data.template the template with a date written out"
)


def with_date(names: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the names that a template reads, with today's date as in transformers.

    Training data have no date, so that they are the same when a run is resumed.
    """
    return {**names, DATE: lambda form: datetime.now().strftime(form)}


def rendered(template: str, **names: Any) -> str:
    """Return the text that a template writes. Raises `InputError` or `ValueError` if it fails."""
    try:
        return jinja_template(template).render(**names)
    except (TemplateError, TypeError, LookupError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


@cache
def jinja_template(template: str) -> Template:
    """Compile a template that will run in a sandbox. Raises `ValueError` for a syntax error.

    It can use what templates can in transformers; the date of today comes with the names.
    """
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    sandbox.filters["tojson"] = _json
    try:
        return sandbox.from_string(template, {"raise_exception": _refuse})
    except TemplateError as error:
        raise ValueError(f"is not a Jinja template: {error}") from error


def _refuse(message: str) -> None:
    raise InputError(f"the template refuses these messages: {message}")


def _json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    """A value as JSON; Jinja's own filter would escape `<` and `&` as in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class _Generation(Extension):
    """The tag around an answer, `{% generation %}`, whose content is written unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        inner = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inner, lineno=line)
