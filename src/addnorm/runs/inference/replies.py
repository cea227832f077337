"""Answers to conversations: as a text, or as the assistant's message with its calls of tools."""

from typing import Unpack

from addnorm.data.conversation import Message
from addnorm.runs.inference.chat import Messages, chat_prompt, reply_of, with_tools
from addnorm.runs.inference.decoding import chosen_decoding
from addnorm.runs.inference.text import ends_of, write
from addnorm.runs.options import ChatOptions, GenerateOptions
from addnorm.runs.trained_model import TrainedModel


def answer(run: TrainedModel, messages: Messages, **options: Unpack[ChatOptions]) -> str:
    """Return the answer to a conversation. Raises `InputError` as `chat_prompt` does."""
    chat = with_tools(messages, options.pop("tools", None))
    chat_prompt(run, chat)
    how: GenerateOptions = options
    most, stop = ends_of(how)
    decoding = chosen_decoding(run, None, how)
    return write(run, [chat], decoding, max_new_tokens=most, stop=stop)[0][0].text


def reply(run: TrainedModel, messages: Messages, **options: Unpack[ChatOptions]) -> Message:
    """Return the message that answers a conversation, divided into content and calls of tools."""
    chat = with_tools(messages, options.pop("tools", None))
    return reply_of(run, chat, answer(run, chat, **options))
