"""The request bodies, with limits for every field."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from addnorm.data.chat_input import ChatInput, tools_of
from addnorm.data.tool_calls import Reply, ToolCall
from addnorm.errors import InputError
from addnorm.serve.engine.options import Options
from addnorm.serve.sampling_options import (
    MOST_ANSWERS,
    MOST_BEST,
    MOST_TOKENS,
    ApiRequest,
    LengthPenalty,
    SamplingRequest,
)

MOST_TEXTS = 2048
"""The most texts of a request."""
MOST_MESSAGES = 4096
MOST_TOOLS = 128


def _tools(value: Any) -> Any:
    """The tools, checked but unchanged, since templates keep the order of their keys."""
    try:
        return tools_of(value)
    except InputError as error:
        raise ValueError(str(error).removeprefix("tools: ")) from error


Tools = Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS), BeforeValidator(_tools)]
"""Functions that the assistant may call."""

MaxTokens = Annotated[int | None, Field(ge=1, le=MOST_TOKENS)]

Prompt = str | list[int]
"""A text, or its ids."""


def _prompts(value: Any) -> list[Prompt]:
    """One or several prompts as a list; booleans are rejected as ids."""
    if value == []:
        raise ValueError("the list is empty: there is nothing to answer")
    several = [value] if isinstance(value, str) or _are_ids(value) else value
    wrong = not isinstance(several, list)
    if wrong or not all(isinstance(prompt, str) or _are_ids(prompt) for prompt in several):
        raise ValueError("give a text, a list of texts, the ids of a text, or a list of these")
    if [] in several:
        raise ValueError(
            f"item {several.index([])} of the list has no ids: there is nothing to read"
        )
    if len(several) > MOST_TEXTS:
        raise ValueError(f"{len(several):,} prompts: at most {MOST_TEXTS:,}")
    return several


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


_ID = {"type": "integer", "minimum": 0}
_FORMS = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_TEXTS},
        {"type": "array", "items": _ID, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": _ID, "minItems": 1},
            "minItems": 1,
            "maxItems": MOST_TEXTS,
        },
    ]
}
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(_prompts),  # at once: pydantic takes seconds for a million ids
    WithJsonSchema(_FORMS),
]
"""One or several prompts, each a text or its ids."""


class StreamOptions(BaseModel):
    """The optional additions to a stream."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionRequest(SamplingRequest):
    """`POST /v1/completions`."""

    unsupported = {"suffix": ("",)}  # noqa: RUF012

    prompt: Prompts
    max_tokens: Annotated[int | None, Field(ge=0, le=MOST_TOKENS)] = None
    """By default 16; 0 only with `echo`, to score a prompt."""
    echo: bool | None = None
    logprobs: Annotated[int | None, Field(ge=0, le=MOST_BEST)] = None
    best_of: Annotated[int | None, Field(ge=1, le=20)] = None
    add_special_tokens: bool | None = None
    """Whether a text gets the start that the model learnt with; by default it does."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check_counts(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.answers:
            raise ValueError(
                f"best_of = {self.best_of}: only n itself, {self.answers}, is supported"
            )
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens = 0 leaves nothing to answer: give echo, or at least 1")
        if self.searches and self.logprobs is not None:
            raise ValueError("logprobs: beam search has none: leave it out")
        if len(self.prompt) * self.answers > MOST_TEXTS:
            raise ValueError(
                f"{len(self.prompt)} prompts × n = {self.answers}: at most {MOST_TEXTS}"
            )
        return self


class ContentPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = ""
    refusal: str = ""

    @model_validator(mode="after")
    def _check_text(self) -> "ContentPart":
        field = "refusal" if self.type == "refusal" else "text"
        if field not in self.model_fields_set:
            raise ValueError(f'a part of the type {self.type} has its text in "{field}"')
        return self

    @property
    def content(self) -> str:
        """The text of the part."""
        return self.refusal if self.type == "refusal" else self.text


Parts = Annotated[list[ContentPart], Field(fail_fast=True)]
"""The parts of a message; the first wrong one ends their check, since there may be a million."""


class CalledFunction(BaseModel):
    """The name of a function, and its arguments as JSON."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str = "{}"


class MessageToolCall(BaseModel):
    """A call of a tool by the assistant."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message: its author's role, its text whole or in parts, and its tool calls."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[MessageToolCall] | None, Field(max_length=MOST_TOOLS)] = None
    tool_call_id: str | None = None

    def as_template_reads(self) -> dict[str, Any]:
        """The message in the form that a template reads, developers as system."""
        message = self.model_dump(exclude_none=True)
        parts = self.content if isinstance(self.content, list) else ()
        pieces = [{"type": "text", "text": part.content} for part in parts]
        return {
            **message,
            "role": "system" if self.role == "developer" else self.role,
            "content": pieces or text_of(self.content),
        }


def text_of(content: str | Sequence[ContentPart] | None) -> str:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.content for part in content)


class ToolsRequest(ApiRequest):
    """A request with functions that the assistant may call."""

    tools: Tools | None = None
    tool_choice: Literal["auto", "none"] | None = None
    """Whether the tools are shown to the model; it is never made to call one."""
    parallel_tool_calls: bool | None = None
    """Whether all calls of an answer are returned, or the first alone."""

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools that are shown to the model."""
        return [] if self.tool_choice == "none" else self.tools or []

    def returned(self, reply: Reply) -> Sequence[ToolCall]:
        """The tool calls to return for an answer."""
        return reply.calls[:1] if self.parallel_tool_calls is False else reply.calls

    def check_calls(self, grammar_field: str | None) -> None:
        """Raise `ValueError` for tools together with the field of a grammar."""
        if self.shown_tools and grammar_field is not None:
            raise ValueError(
                f"{grammar_field}: an answer that follows a grammar calls no tool: leave it "
                'out, or give tool_choice = "none"'
            )


class ChatRequest(SamplingRequest, ToolsRequest):
    """`POST /v1/chat/completions`."""

    unsupported = {  # noqa: RUF012
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "store": (False,),
        "web_search_options": (),
    }
    harmless = ApiRequest.harmless | {"reasoning_effort", "verbosity"}

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MOST_BEST)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs = true")
        if self.searches and self.logprobs:
            raise ValueError("logprobs: beam search has none: leave it out")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> "ChatRequest":
        self.check_calls(self.grammar_field if self.is_structured else None)
        return self

    @property
    def conversation(self) -> ChatInput:
        """The conversation in the form that a template reads.

        Raises `InputError` for a wrong message.
        """
        return ChatInput.of([m.as_template_reads() for m in self.messages], self.shown_tools)


class EmbeddingsRequest(ApiRequest):
    """`POST /v1/embeddings`."""

    unsupported = {"dimensions": ()}  # noqa: RUF012

    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None


class TokenizeRequest(ApiRequest):
    """`POST /tokenize`."""

    prompt: str | None = None
    messages: Annotated[list[ChatMessage] | None, Field(min_length=1, max_length=MOST_MESSAGES)] = (
        None
    )
    tools: Tools | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_one(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class TranslateRequest(ApiRequest):
    """`POST /translate`: one or several texts, and the options of translation."""

    text: str | Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
    num_beams: Annotated[int | None, Field(ge=1, le=MOST_ANSWERS)] = None
    n_best: Annotated[int | None, Field(ge=1, le=MOST_ANSWERS)] = None
    length_penalty: LengthPenalty = None
    temperature: Annotated[float | None, Field(gt=0.0, le=100.0)] = None
    top_k: Annotated[int | None, Field(ge=1, le=MOST_TOKENS)] = None
    top_p: Annotated[float | None, Field(gt=0.0, le=1.0)] = None
    seed: Annotated[int | None, Field(ge=0, le=2**63 - 1)] = None
    max_tokens: MaxTokens = None

    @property
    def texts(self) -> list[str]:
        """The texts to translate."""
        return [self.text] if isinstance(self.text, str) else self.text

    def options(self, usual: str) -> Options:
        """The options for the engine, given that the model's decoding is `usual`."""
        n_best = self.n_best or 1
        kind: Literal["greedy", "beam"] | None = None
        if self.num_beams is not None or n_best > 1:
            kind = "greedy" if self.num_beams == 1 else "beam"
        sampled = any(x is not None for x in (self.temperature, self.top_k, self.top_p))
        searches = (kind or ("sample" if sampled else usual)) == "beam"
        return Options(
            decoding=kind,
            beams=self.num_beams if kind == "beam" else None,
            n_best=n_best,
            length_penalty=self.length_penalty,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            log_probs=None if searches else 0,
        )


Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class ClassifyRequest(ApiRequest):
    """`POST /classify`: a list of texts or of pairs."""

    text: str | Annotated[list[str | Pair], Field(min_length=1, max_length=MOST_TEXTS)]
    threshold: Annotated[float | None, Field(ge=0.0, le=1.0)] = None


Words = Annotated[list[str], Field(fail_fast=True)]


class TagRequest(ApiRequest):
    """`POST /tag`: sentences, each a text or a list of words."""

    text: str | Annotated[list[str | Words], Field(min_length=1, max_length=MOST_TEXTS)]


class PredictRequest(ApiRequest):
    """`POST /predict`: rows with an example's fields, except those to predict."""

    rows: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_TEXTS)]
