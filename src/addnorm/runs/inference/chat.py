"""Answering messages with a trained model, by the template with which it was taught to chat."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from addnorm.data import ChatConfig
from addnorm.data.conversation import Message, messages_of
from addnorm.data.ids.answers import prompt_ids
from addnorm.data.readers.chat import conversations_in
from addnorm.errors import InputError
from addnorm.runs.recipes.chat_template import chat_template
from addnorm.runs.trained_model import TrainedModel

Messages = Sequence[Mapping[str, str]]
"""A conversation: mappings with `role` and `content`."""


def is_conversation(text: object) -> TypeGuard[Messages]:
    """Whether this is a conversation, and no text."""
    return isinstance(text, list | tuple) and all(isinstance(message, Mapping) for message in text)


def template_of(run: TrainedModel) -> str | None:
    """The template of a run; None is the plain one. Raises `InputError` for one without chat."""
    if isinstance(run.recipe.data, ChatConfig):
        return run.recipe.data.template
    template = chat_template(*run.places)
    if template is None:
        raise InputError(
            f"{run.name}: no chat template: it was not trained on data.kind = 'chat', and has no "
            "chat_template.jinja"
        )
    return template


def chat_prompt(run: TrainedModel, messages: Messages) -> list[int]:
    """The ids after which the assistant answers.

    A template of Hugging Face may write the date of today; not in a run that learnt to chat here,
    whose data had none. Raises `InputError` for anything but a list of messages, and for a last
    one of the assistant.
    """
    checked = messages_of(list(messages), "messages")
    if checked[-1]["role"] == "assistant":
        raise InputError("messages: the last one is the assistant's: there is nothing to answer")
    source = run.tokenizers.source
    return prompt_ids(source, checked, template_of(run), dated=not run.chats)


def conversations(
    run: TrainedModel, file: Path, encoding: str = "utf-8"
) -> Iterator[tuple[str, list[Message] | InputError]]:
    """The conversations of a file with their places, read as training data of chat are.

    Answers at their end are left out: they are what the model writes.
    """
    data = run.recipe.data
    column = data.messages_column if isinstance(data, ChatConfig) else "messages"
    for where, messages in conversations_in(file, column, encoding):
        if isinstance(messages, InputError):
            yield where, messages
            continue
        asked = [*messages]
        while asked and asked[-1]["role"] == "assistant":
            asked.pop()
        nothing = InputError(f"{where}: no message to answer: all are the assistant's")
        yield where, asked or nothing
