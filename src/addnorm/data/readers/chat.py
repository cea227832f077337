"""Conversations: files of messages, and the template that turns them into text and answers."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from jinja2 import Template, TemplateError, UndefinedError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from addnorm.config import config
from addnorm.data.examples import BEGIN, END, Chat, Said
from addnorm.data.readers.cells import check_text
from addnorm.data.readers.plain_text import RowFiles
from addnorm.data.readers.rows import Row
from addnorm.data.readers.saved_dataset import is_saved
from addnorm.data.readers.tables import Record, json_object, records_of, suffix_of
from addnorm.data.readers.text_files import find, given, lines_of, read_text
from addnorm.errors import InputError, choices

Message = Mapping[str, str]
"""A message: the `role` of its author, its `content`, and other texts that a template reads."""

ROLES = ("system", "user", "assistant")

PLAIN = (
    "{% for message in messages %}"
    "{{ {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[message.role] }}: "
    "{{ message.content }}{{ eos_token if message.role == 'assistant' else '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
"""The template for tokenizers without one: each answer ends with the end token."""


@config
class ChatConfig(RowFiles):
    """Conversations for a language model, of which it learns the answers alone.

    Each line of a `.jsonl` file, or row of a Parquet file, has a list of messages, `{"role": …,
    "content": …}` with the roles system, user and assistant. A Jinja `template` turns them into
    text, as in Hugging Face's `chat_template`; an answer is what it adds for a message of the
    assistant after its prompt for one, and nothing else is a target.
    """

    kind: Literal["chat"] = "chat"
    train: Path
    """The conversations to learn from: `.jsonl` or `.parquet`, or the folder of a split that
    `datasets` saved to disk.
    """
    valid: Path | None = None
    """The conversations to validate on while training."""
    test: Path | None = None
    """The conversations that training never sees."""
    messages_column: str = "messages"
    """The column, or the key of each line, of the list of messages."""
    template: str | None = None
    """The text of a Jinja template; by default that of the folder in `train.start`, or else one
    that writes `User: …` and `Assistant: …`.
    """

    def __post_init__(self) -> None:
        if self.lowercase:
            raise ValueError("lowercase would change what a template writes: leave it out")
        if self.template is not None:
            jinja_template(self.template)

    def rows(self) -> dict[str, Iterable[Row]]:
        """Return the conversations of each given split."""
        return {k: self.table(v) for k, v in given(self.train, self.valid, self.test).items()}

    def table(self, path: Path) -> Iterator[Row]:
        """Yield the conversations of one file."""
        for where, record in records_of(find(path, self.root), self.encoding):
            yield Row(where, "empty line") if record is None else self.row(where, record)

    def row(self, where: str, record: Record) -> Row:
        """Convert a record to a conversation, or to the reason to skip it.

        Raises `InputError` for a record that is not a conversation.
        """
        messages = messages_in(record, self.messages_column, where)
        if not any(message["role"] == "assistant" for message in messages):
            return Row(where, "no answer of the assistant")
        if any(not message["content"].strip() for message in messages):
            return Row(where, "an empty message")
        return Row(where, conversation(messages, self.template, where))


def messages_in(record: Record, column: str, where: str) -> list[Message]:
    """Return the messages of a row. Raises `InputError` without such a column of messages."""
    if column not in record:
        raise InputError(f"{where}: no column {column!r}.{choices(column, record)}")
    return messages_of(record[column], where)


def holds_conversations(file: Path) -> bool:
    """Whether a file of this name, or a saved dataset in this folder, holds conversations."""
    return suffix_of(file) in (".jsonl", ".parquet") or is_saved(file)


def conversations_in(
    file: Path, column: str = "messages", encoding: str = "utf-8"
) -> Iterator[tuple[str, list[Message] | InputError]]:
    """Yield the place and the conversation of each row, or the error of a damaged row."""
    for where, record in _unparsed_records(find(file), encoding):
        try:
            if record is not None:
                parsed = json_object(record, where) if isinstance(record, str) else record
                yield where, messages_in(parsed, column, where)
        except InputError as error:
            yield where, error


def _unparsed_records(file: Path, encoding: str) -> Iterable[tuple[str, Record | str | None]]:
    """The rows of a file; lines of JSON unparsed, since one may be damaged and others not."""
    if suffix_of(file) != ".jsonl":
        return records_of(file, encoding)
    lines = enumerate(lines_of(read_text(file, encoding)), 1)
    return ((f"{file}:{n}", line if line.strip() else None) for n, line in lines)


def messages_of(cell: object, where: str) -> list[Message]:
    """Check a list of messages. Raises `InputError`, naming the message, for anything else."""
    if not isinstance(cell, list) or not cell:
        raise InputError(f"{where}: expected a list of messages, not {cell!r}")
    messages: list[Message] = []
    for n, message in enumerate(cast(list[Any], cell), 1):
        place = f"{where}: message {n}"
        if not isinstance(message, dict) or {"role", "content"} - message.keys():
            raise InputError(f"{place}: expected role and content, not {message!r}")
        fields = cast(dict[str, Any], message)
        if (role := fields["role"]) not in ROLES:
            raise InputError(f"{place}: role {role!r}.{choices(str(role), ROLES)}")
        # pandas and Arrow give every message the keys of all, with None where there is nothing.
        texts = {key: text for key, text in fields.items() if text is not None or key == "content"}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise InputError(f"{place}: {key} is {text!r}, which is not text")
            check_text(text, place)
        messages.append(cast(Message, texts))
    return messages


PLACEHOLDERS = {"bos_token": BEGIN, "eos_token": END}
"""The special tokens of a tokenizer that has no spelling for them."""


def conversation(
    messages: Sequence[Message],
    template: str | None,
    where: str = "chat",
    names: Mapping[str, Any] = PLACEHOLDERS,
) -> Chat:
    """Return the text of a conversation in parts, each an answer or not.

    The template reads the special tokens in `names`, such as `eos_token`.

    Raises `InputError` where the template refuses the messages, or writes a conversation that does
    not begin as its first messages alone.
    """
    parts: list[Said] = []
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
            parts.append(Said(text[len(written) :], is_answer))
            written = text
    return Chat(tuple(parts), _contents(messages), tuple(messages), template)


def _contents(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(text for message in messages for key, text in message.items() if key != "role")


def prompt_of(
    messages: Sequence[Message], template: str | None, names: Mapping[str, Any] = PLACEHOLDERS
) -> Chat:
    """Return the text after which the assistant answers, in the parts that a model learnt."""
    whole = render(messages, template, "chat", names, prompt=True)
    try:
        chat = conversation(messages, template, "chat", names)
    except InputError:  # the template writes earlier answers in another way than the last one
        chat = conversation([], template)
    before = "".join(part.text for part in chat.parts)
    parts, before = (chat.parts, before) if whole.startswith(before) else ((), "")
    return Chat((*parts, Said(whole[len(before) :], False)), _contents(messages))


def render(
    messages: Sequence[Message],
    template: str | None,
    where: str,
    names: Mapping[str, Any] = PLACEHOLDERS,
    *,
    prompt: bool = False,
) -> str:
    """Return what the template writes; it may read the special tokens in `names`.

    It may read the date of today too where `with_date` added it to `names`.
    """
    try:
        return jinja_template(PLAIN if template is None else template).render(
            messages=messages,
            add_generation_prompt=prompt,
            tools=None,
            documents=None,
            **names,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        why = DATED if isinstance(error, UndefinedError) and DATE in str(error) else ""
        raise InputError(f"{where}: data.template: {error}{why}") from error


DATE = "strftime_now"
"""The function by which a template of Hugging Face writes the date of today."""

DATED = (
    ": data would differ from day to day. Give data.template the template with a date written out"
)


def with_date(names: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the names that a template reads, with the date of today as in transformers.

    Training data have no date, so that they are the same when a run is resumed.
    """
    return {**names, DATE: lambda form: datetime.now().strftime(form)}


@cache
def jinja_template(template: str) -> Template:
    """Compile a template, which runs in a sandbox. Raises `ValueError` for a syntax error.

    It can use what templates can in transformers, except the date of today (see `with_date`).
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
    """A value as JSON; Jinja's own filter would escape `<` and `&` as for a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class _Generation(Extension):
    """The tag around an answer, `{% generation %}`, whose content is written unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        inner = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inner, lineno=line)
