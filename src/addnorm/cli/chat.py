"""`addnorm chat`: a conversation in the terminal, with a server or a run."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from addnorm.cli.where import ANYWHERE, Imports, Where, import_named
from addnorm.errors import InputError, choices

Message = Mapping[str, Any]
Answer = Callable[[Sequence[Message]], Iterator[str | Message]]
"""The pieces of the answer to a conversation; last the message itself, if it calls tools."""

PROMPT = "> "


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The first messages of a conversation.

    Parameters
    ----------
    system
        What the model is told before the conversation.
    messages
        A JSON file with the beginning of the conversation, as `addnorm generate` takes it. If it
        has `tools`, calls of them are written as JSON, and the next line is the result of each.
    """

    system: Annotated[str | None, Parameter(show_default=False)] = None
    messages: Annotated[Path | None, Parameter(show_default=False)] = None

    def read(self) -> tuple[list[Message], list[Any]]:
        """Read the first messages, and the tools. Raises `InputError` for both options at once."""
        if self.messages is None:
            return [] if self.system is None else [{"role": "system", "content": self.system}], []
        if self.system is not None:
            raise InputError("give either --system or --messages, and not both")
        from addnorm.data.chat_input import ChatInput

        chat = ChatInput.of_file(self.messages)
        return [*chat.messages], [*chat.tools]


NOTHING = Beginning()


def chat(
    address: str,
    *,
    model: Annotated[str | None, Parameter(show_default=False)] = None,
    begin: Beginning = NOTHING,
    temperature: Annotated[float | None, Parameter(show_default=False)] = None,
    max_new_tokens: Annotated[int | None, Parameter(show_default=False)] = None,
    api_key_file: Annotated[Path | None, Parameter(show_default=False)] = None,
    where: Where = ANYWHERE,
    imports: Imports = (),
) -> None:
    """Talk with a chat model: one on a server of OpenAI's API, or a run folder.

    Each line is a message, and its answer is written as it comes. Ctrl-C stops an answer, of which
    the conversation keeps the beginning; Ctrl-D leaves. A server is named by its address, as
    `http://127.0.0.1:8000`. Example: `addnorm chat runs/my`.

    Parameters
    ----------
    address
        The address of a server, or a run folder.
    model
        The model of a server; by default its first one.
    temperature
        Divides the logits before a token is drawn; 0 takes the likeliest token.
    max_new_tokens
        The most tokens of an answer.
    api_key_file
        A file with the key of a server.
    """
    begun, tools = begin.read()
    options = {"temperature": temperature, "max_new_tokens": max_new_tokens, "tools": tools}
    if address.startswith(("http://", "https://")):
        answer = _of_server(address, model, api_key_file, options)
    else:
        import_named(imports)
        answer = _of_run(Path(address), where, options)
    talk(answer, begun)


def talk(answer: Answer, messages: list[Message]) -> None:
    """Ask for messages and write the answers, until the input ends.

    Messages that are there already are answered first, unless the last one is an answer.
    """
    if sys.stdin.isatty():
        with suppress(ImportError):
            import_module("readline")  # lines can be edited, and earlier ones come back
    if messages and messages[-1]["role"] in ("user", "tool"):
        messages.append(_write(answer(messages)))
    while (text := _next_line()) is not None:
        if not text.strip():
            continue
        messages.append(_next_message(messages, text))
        if _open_calls(messages):
            continue
        try:
            messages.append(_write(answer(messages)))
        except InputError as error:
            if not sys.stdin.isatty():
                raise
            print(f"addnorm: {error}", file=sys.stderr)
            messages.pop()


def _open_calls(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The tool calls in the last answer that still lack a result."""
    results = list(takewhile(lambda message: message["role"] == "tool", reversed(messages)))
    before = messages[: len(messages) - len(results)]
    return [*before[-1].get("tool_calls", ())][len(results) :] if before else []


def _next_message(messages: Sequence[Message], text: str) -> Message:
    """Read a line from the user: a message, or the result of the first open call."""
    if not (calls := _open_calls(messages)):
        return {"role": "user", "content": text}
    name = calls[0]["function"]["name"]
    return {"role": "tool", "tool_call_id": calls[0]["id"], "name": name, "content": text}


def _next_line() -> str | None:
    """The next line; None at the end. An interrupt begins a new line."""
    while True:
        try:
            return input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()


def _write(pieces: Iterator[str | Message]) -> Message:
    """Print an answer as it comes; return its message, also if it was interrupted."""
    written: list[str] = []
    try:
        for piece in pieces:
            if not isinstance(piece, str):
                calls = [call["function"] for call in piece["tool_calls"]]
                lines = [json.dumps(call, ensure_ascii=False) for call in calls]
                print(*([""] if any(written) else []), *lines, sep="\n")
                return piece
            written.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    print()
    return {"role": "assistant", "content": "".join(written)}


def _of_server(
    address: str, model: str | None, file: Path | None, asked: Mapping[str, Any]
) -> Answer:
    from addnorm.serve.client import ChatClient
    from addnorm.web.access import read_key

    client = ChatClient(address, None if file is None else read_key(file))
    names = client.models()
    if model is not None and model not in names:
        raise InputError(f"--model {model}: not served by {address}.{choices(model, names)}")
    options = {
        "model": model or names[0],
        "temperature": asked["temperature"],
        "max_completion_tokens": asked["max_new_tokens"],
        "tools": asked["tools"] or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return lambda messages: client.stream(messages, **given)


def _of_run(folder: Path, where: Where, asked: Mapping[str, Any]) -> Answer:
    run = where.open(folder)
    run.check_chats()
    options: Any = {"max_new_tokens": asked["max_new_tokens"]}
    temperature = asked["temperature"]
    if temperature == 0:
        options["beams"] = 1
    elif temperature is not None:
        options["temperature"] = temperature
    from addnorm.data.chat_input import ChatInput
    from addnorm.runs.inference.chat import pieces_of

    def answer(messages: Sequence[Message]) -> Iterator[str | Message]:
        chat = ChatInput.of([*messages], asked["tools"])
        return pieces_of(run, chat, run.stream(chat, **options))

    return answer
