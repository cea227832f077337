"""The body of `POST /v1/responses`: the items of a conversation, and callable functions."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from addnorm.data.chat_input import ChatInput
from addnorm.errors import in_json
from addnorm.serve.engine.options import Options
from addnorm.serve.http.schemas import (
    MOST_MESSAGES,
    MOST_TOOLS,
    MaxTokens,
    Parts,
    Tools,
    ToolsRequest,
    text_of,
)
from addnorm.serve.sampling_options import ApiRequest
from addnorm.serve.structured_output import ResponseFormat, TextOptions, grammar_of

FORMAT = "text.format"
"""The field of a response's form, as errors name it."""

ItemType = Literal["message", "function_call", "function_call_output"]

NEEDED: dict[ItemType, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
"""The fields of an item of each type."""


class InputItem(BaseModel):
    """A message, the assistant's call of a function, or the result of a call."""

    model_config = ConfigDict(extra="ignore")

    type: ItemType = "message"
    role: Literal["developer", "system", "user", "assistant"] | None = None
    content: str | Parts | None = None
    call_id: Annotated[str | None, Field(max_length=256)] = None
    name: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    arguments: str | None = None
    output: str | Parts | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> "InputItem":
        needed = NEEDED[self.type]
        if any(getattr(self, name) is None for name in needed):
            raise ValueError(f"an item of type {self.type} has {', '.join(needed)}")
        return self

    def as_call(self) -> dict[str, Any]:
        """The call in the form that templates read."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}

    def as_message(self) -> dict[str, Any]:
        """The message or result in the form that templates read, developers as system."""
        if self.type == "function_call_output":
            result = text_of(self.output)
            return {"role": "tool", "tool_call_id": self.call_id, "content": result}
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text_of(self.content)}


def _messages(items: Iterable[InputItem]) -> list[dict[str, Any]]:
    """The messages of a conversation, with calls added to the assistant's message before them."""
    messages = list[dict[str, Any]]()
    for item in items:
        if item.type != "function_call":
            messages.append(item.as_message())
            continue
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        messages[-1].setdefault("tool_calls", []).append(item.as_call())
    return messages


def _as_chat_has_them(value: Any) -> Any:
    """The tools in the form of chat completions: each function in its own field."""
    if not isinstance(value, list):
        return value
    if len(value) > MOST_TOOLS:
        raise ValueError(f"{len(value)} tools: at most {MOST_TOOLS}")
    return [_function(tool, n) for n, tool in enumerate(value, 1)]


def _function(tool: Any, n: int) -> dict[str, Any]:
    match tool:
        case {"type": "function", "name": str(name)} if name:
            fields = ("name", "description", "parameters", "strict")
            function = {field: tool[field] for field in fields if tool.get(field) is not None}
            return {"type": "function", "function": function}
        case _:
            raise ValueError(
                f"tool {n}: only functions are supported, as "
                f'{{"type": "function", "name": …, "parameters": …}}, not {in_json(tool)}'
            )


class ResponsesRequest(ToolsRequest):
    """`POST /v1/responses`: text in, text or calls out, nothing stored."""

    unsupported = {  # noqa: RUF012
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "truncation": ("disabled", "auto"),
        "max_tool_calls": (),
    }
    harmless = ApiRequest.harmless | {"include", "reasoning", "store", "stream_options"}

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: Annotated[Tools | None, BeforeValidator(_as_chat_has_them)] = None
    instructions: str | None = None
    text: TextOptions | None = None
    max_output_tokens: MaxTokens = None
    temperature: Annotated[float | None, Field(ge=0.0, le=100.0)] = None
    top_p: Annotated[float | None, Field(gt=0.0, le=1.0)] = None
    stream: bool | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> "ResponsesRequest":
        wanted = self.format
        self.check_calls(FORMAT if wanted is not None and wanted.type != "text" else None)
        return self

    @property
    def conversation(self) -> ChatInput:
        """The conversation in the form that a template reads.

        Raises `InputError` for a wrong item.
        """
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        given = self.input
        items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
        return ChatInput.of([*messages, *_messages(items)], self.shown_tools, "input")

    @property
    def given_tools(self) -> list[dict[str, Any]]:
        """The tools in the form of the Responses API."""
        return [{"type": "function", **tool["function"]} for tool in self.tools or ()]

    @property
    def format(self) -> ResponseFormat | None:
        """The required format of the answer."""
        return None if self.text is None else self.text.format

    def grammar(self) -> str | None:
        """The grammar of the answer; None allows any text. Raises `InputError` for a wrong one."""
        return grammar_of(self.format, field=FORMAT)

    def options(self, grammar: str | None) -> Options:
        """The options for the engine."""
        greedy = self.temperature == 0
        return Options(
            decoding="greedy" if greedy else None,
            temperature=None if greedy else self.temperature,
            top_p=None if greedy else self.top_p,
            grammar=grammar,
            grammar_field=FORMAT,
        )
