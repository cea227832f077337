"""Answering messages with a trained model, by the template with which it was taught to chat."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from addnorm.data import ChatConfig
from addnorm.data.chat_input import ChatInput
from addnorm.data.conversation import Message
from addnorm.data.ids.answers import prompt_ids
from addnorm.data.readers.chat import conversations_in
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tool_calls import CallForm, CallReader, Reply, call_form
from addnorm.errors import InputError
from addnorm.runs.recipes.chat_template import chat_template
from addnorm.runs.trained_model import TrainedModel

Messages = Sequence[Mapping[str, Any]] | ChatInput
"""A conversation: mappings with `role` and `content`; with tools, a `ChatInput`."""


def is_conversation(text: object) -> TypeGuard[Messages]:
    """Whether this is a conversation, as opposed to a text."""
    if isinstance(text, ChatInput):
        return True
    return isinstance(text, list | tuple) and all(isinstance(message, Mapping) for message in text)


def template_of(run: TrainedModel) -> str | None:
    """The chat template of a run; None for the plain one.

    Raises `InputError` for one without chat.
    """
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
    """The ids of the conversation, up to where the assistant answers.

    A template of Hugging Face may write the date of today; not in a run that learnt to chat here,
    whose data had none. Raises `InputError` for anything but a list of messages, for a last one of
    the assistant, and for tools that the template does not take.
    """
    chat = with_tools(messages).checked()
    return prompt_ids(run.tokenizers.source, chat, template_of(run), dated=not run.chats)


def with_tools(messages: Messages, tools: object = None) -> ChatInput:
    """The conversation as a `ChatInput`, which also holds its tools, if any.

    Raises `InputError` for a message or a tool that is none.
    """
    return messages if isinstance(messages, ChatInput) else ChatInput.of(messages, tools)


def form_of(run: TrainedModel, text: object) -> CallForm | None:
    """The format in which the run calls the tools of a conversation; None if it has none."""
    return call_form(template_of(run)) if isinstance(text, ChatInput) and text.tools else None


def writer_of(run: TrainedModel, texts: Sequence[object]) -> Tokenizer:
    """The tokenizer for answers; with tools, it also writes the special tokens of calls."""
    forms = [form for text in texts if (form := form_of(run, text)) is not None]
    target = run.tokenizers.target
    return target.spelling(forms[0].marks) if forms else target


def reply_of(run: TrainedModel, messages: Messages, text: str) -> Message:
    """The assistant's message in a written text, divided into content and calls of tools."""
    form = form_of(run, messages)
    return (Reply(text) if form is None else form.reply(text)).as_message()


def whole_conversation(run: TrainedModel, asked: str | Messages, text: str) -> list[Message]:
    """The conversation with the answer as its last message; empty for a plain prompt."""
    if isinstance(asked, str):
        return []
    return [*with_tools(asked).messages, reply_of(run, asked, text)]


def pieces_of(run: TrainedModel, chat: ChatInput, pieces: Iterator[str]) -> Iterator[str | Message]:
    """Yield the content of an answer as it comes, and last its message if it calls tools."""
    if (form := form_of(run, chat)) is None:
        yield from pieces
        return
    reader, content = CallReader(form), ""
    for piece in pieces:
        text = reader.push(piece)
        content += text
        yield text
    reply = reader.finish()
    yield reply.content
    if reply.calls:
        yield replace(reply, content=content + reply.content).as_message()


def conversations(
    run: TrainedModel, file: Path, encoding: str = "utf-8"
) -> Iterator[tuple[str, Messages | InputError]]:
    """The conversations of a file with their places in it; each may also have `tools`.

    Answers at their end are left out: they are what the model writes.
    """
    data = run.recipe.data
    column = data.messages_column if isinstance(data, ChatConfig) else "messages"
    for where, chat in conversations_in(file, column, encoding):
        if isinstance(chat, InputError):
            yield where, chat
            continue
        asked = [*chat.messages]
        while asked and asked[-1]["role"] == "assistant":
            asked.pop()
        nothing = InputError(f"{where}: no message to answer: all are the assistant's")
        yield where, (ChatInput(asked, chat.tools) if chat.tools else asked) if asked else nothing
