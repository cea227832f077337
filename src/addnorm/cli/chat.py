"""`addnorm chat`: a conversation in the terminal, with a server or a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from addnorm.cli.where import ANYWHERE, Imports, Where, import_named
from addnorm.errors import InputError, choices

Message = Mapping[str, str]
Answer = Callable[[Sequence[Message]], Iterator[str]]
"""The pieces of the answer to a conversation."""

PROMPT = "> "


def chat(
    address: str,
    *,
    model: Annotated[str | None, Parameter(show_default=False)] = None,
    system: Annotated[str | None, Parameter(show_default=False)] = None,
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
    system
        What the model is told before the conversation.
    temperature
        Divides the logits before a token is drawn; 0 takes the likeliest token.
    max_new_tokens
        The most tokens of an answer.
    api_key_file
        A file with the key of a server.
    """
    if address.startswith(("http://", "https://")):
        answer = _of_server(address, model, api_key_file, temperature, max_new_tokens)
    else:
        import_named(imports)
        answer = _of_run(Path(address), where, temperature, max_new_tokens)
    talk(answer, [] if system is None else [{"role": "system", "content": system}])


def talk(answer: Answer, messages: list[Message]) -> None:
    """Ask for messages and write the answers, until the input ends."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import_module("readline")  # lines can be edited, and earlier ones come back
    while (text := _next_line()) is not None:
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        try:
            written = _write(answer(messages))
        except InputError as error:
            if not sys.stdin.isatty():
                raise
            print(f"addnorm: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": written})


def _next_line() -> str | None:
    """The next message; None at the end. An interrupt begins a new line."""
    while True:
        try:
            return input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()


def _write(pieces: Iterator[str]) -> str:
    """Write an answer as it comes; return what was written until it ended or was interrupted."""
    written: list[str] = []
    try:
        for piece in pieces:
            written.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    print()
    return "".join(written)


def _of_server(
    address: str, model: str | None, file: Path | None, temperature: float | None, most: int | None
) -> Answer:
    from addnorm.serve.client import ChatClient
    from addnorm.web.keys import read_key

    client = ChatClient(address, None if file is None else read_key(file))
    names = client.models()
    if model is not None and model not in names:
        raise InputError(f"{address}: no model {model!r}.{choices(model, names)}")
    options = {
        "model": model or names[0],
        "temperature": temperature,
        "max_completion_tokens": most,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return lambda messages: client.stream(messages, **given)


def _of_run(folder: Path, where: Where, temperature: float | None, most: int | None) -> Answer:
    run = where.open(folder)
    run.check_chats()
    options: Any = {"max_new_tokens": most}
    if temperature == 0:
        options["beams"] = 1
    elif temperature is not None:
        options["temperature"] = temperature
    return lambda messages: run.stream([*messages], **options)
