"""Files of conversations: a list of messages in each line or row."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from addnorm.config import config
from addnorm.data.chat_input import ChatInput
from addnorm.data.conversation import Message, messages_of
from addnorm.data.examples import Chat
from addnorm.data.readers.rows import Row
from addnorm.data.readers.saved_dataset import is_saved
from addnorm.data.readers.tables import Record, json_object, records_of, suffix_of
from addnorm.data.readers.text_files import RowFiles, find, given, lines_of, read_text
from addnorm.errors import InputError, choices


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
            from addnorm.data.conversation import jinja_template

            jinja_template(self.template)

    def rows(self) -> dict[str, Iterable[Row]]:
        """Return the conversations of each given split."""
        return {k: self.table(v) for k, v in given(self.train, self.valid, self.test).items()}

    def table(self, path: Path) -> Iterator[Row]:
        """Yield the conversations of one file."""
        for where, record in records_of(find(path, self.root), self.encoding):
            yield Row(where, "empty line") if record is None else self.row(where, record)

    def row(self, where: str, record: Record) -> Row:
        """Convert a record to a conversation, or return the reason to skip it.

        Raises `InputError` for a record that is not a conversation.
        """
        messages = messages_in(record, self.messages_column, where)
        if not any(message["role"] == "assistant" for message in messages):
            return Row(where, "no answer of the assistant")
        if any(not message["content"].strip() for message in messages):
            return Row(where, "an empty message")
        return Row(where, Chat.of_messages(messages, self.template, where))


def messages_in(record: Record, column: str, where: str) -> list[Message]:
    """Return the messages of a row. Raises `InputError` without such a column of messages."""
    return messages_of(_cell(record, column, where), where)


def _cell(record: Record, column: str, where: str) -> object:
    if column not in record:
        raise InputError(f"{where}: no column {column!r}.{choices(column, record)}")
    return record[column]


def holds_conversations(file: Path) -> bool:
    """Whether a file of this name, or a saved dataset in this folder, holds conversations."""
    return suffix_of(file) in (".jsonl", ".parquet") or is_saved(file)


def conversations_in(
    file: Path, column: str = "messages", encoding: str = "utf-8"
) -> Iterator[tuple[str, ChatInput | InputError]]:
    """Yield each row's place with its conversation, or with the error if it is damaged.

    The column `tools` has those that the assistant may call.
    """
    for where, record in _unparsed_records(find(file), encoding):
        try:
            if record is not None:
                parsed = json_object(record, where) if isinstance(record, str) else record
                messages, tools = _cell(parsed, column, where), parsed.get("tools")
                yield where, ChatInput.of(messages, tools, where, f"{where}: tools")
        except InputError as error:
            yield where, error


def _unparsed_records(file: Path, encoding: str) -> Iterable[tuple[str, Record | str | None]]:
    """The rows of a file; JSON lines stay unparsed, so that a damaged one spares the others."""
    if suffix_of(file) != ".jsonl":
        return records_of(file, encoding)
    lines = enumerate(lines_of(read_text(file, encoding)), 1)
    return ((f"{file}:{n}", line if line.strip() else None) for n, line in lines)
