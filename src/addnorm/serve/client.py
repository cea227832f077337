"""A client for chat completions, which yields the pieces of an answer as they come."""

import json
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from addnorm.data.chat_input import ChatInput
from addnorm.errors import InputError

Message = Mapping[str, Any]

SECONDS = 600.0
"""How long a server may be silent."""


class ChatClient:
    """A client of a server of chat completions, whose address may end in `/v1`.

    Raises `InputError` for an address that is none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url}: give an address such as http://127.0.0.1:8000")
        self._url, self._parts = url, parts
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def models(self) -> list[str]:
        """The names of the server's models. Raises `InputError` if it does not answer."""
        with self._asked("GET", "/models") as response:
            listed = json.loads(response.read())
        return [str(model["id"]) for model in listed["data"]]

    def stream(self, messages: Sequence[Message], **options: Any) -> Iterator[str | Message]:
        """Yield the pieces of the answer, and at the end its message if it calls tools.

        A generator that is closed closes the connection, which ends the answer. Raises `InputError`
        with the message of the server for an error.
        """
        body = {"messages": [*map(_as_sent, messages)], "stream": True, **options}
        content, calls = "", dict[int, dict[str, Any]]()
        with self._asked("POST", "/chat/completions", json.dumps(body)) as response:
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                chunk = json.loads(line[len(b"data: ") :])
                if "error" in chunk:
                    raise InputError(f"{self._url}: {chunk['error']['message']}")
                for choice in chunk["choices"]:
                    if piece := choice["delta"].get("content"):
                        content += piece
                        yield piece
                    for call in choice["delta"].get("tool_calls") or ():
                        _add(calls.setdefault(call["index"], {"type": "function"}), call)
        if calls:
            whole = [calls[index] for index in sorted(calls)]
            message = {"role": "assistant", "content": content, "tool_calls": whole}
            yield ChatInput.of([message], where=self._url).messages[0]

    def _asked(self, method: str, path: str, body: str | None = None) -> HTTPResponse:
        secure = self._parts.scheme == "https"
        kind = HTTPSConnection if secure else HTTPConnection
        assert self._parts.hostname is not None
        connection = kind(self._parts.hostname, self._parts.port, timeout=SECONDS)
        try:
            connection.request(
                method, self._path + path, body, {**self._headers, "connection": "close"}
            )
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self._url}: {reason}") from error
        if response.status != 200:
            with response:
                raise InputError(f"{self._url}: {_message(response)}")
        return response


def _add(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a chunk's part of a call; servers send arguments whole or in pieces."""
    function = call.setdefault("function", {"name": "", "arguments": ""})
    new = delta.get("function") or {}
    for key in ("name", "arguments"):
        function[key] += new.get(key) or ""
    call.setdefault("id", delta.get("id"))


def _as_sent(message: Message) -> Message:
    """A message in the API's form, with the arguments of calls as a string."""
    if not message.get("tool_calls"):
        return message
    calls: list[Any] = [
        call
        if isinstance(call["function"]["arguments"], str)
        else {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _message(response: HTTPResponse) -> str:
    """The message of an error in OpenAI's form, or None."""
    content = response.read()
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.status} {response.reason}"
