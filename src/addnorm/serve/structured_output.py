"""Structured output in requests: a JSON schema, an expression or a grammar that an answer follows.

`response_format` is OpenAI's, `structured_outputs` vLLM's. The library llguidance checks them here,
where a wrong one is refused at once, and follows them in the engine.
"""

import json
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from addnorm.errors import InputError, optional
from addnorm.serve.engine.grammar_limits import error_of, matcher_of
from addnorm.web.errors import WebError
from addnorm.web.limits import check_json

Schema = dict[str, Any]


def _schema_of(value: Any) -> Any:
    """A schema, or the text of one, as vLLM takes it too."""
    if not isinstance(value, str):
        return value
    try:
        schema = check_json(value.encode(), "the text")
    except WebError as error:
        raise ValueError(error.message) from error
    if not isinstance(schema, dict):
        raise ValueError("the text is not a JSON object, as a schema is")
    return schema


JsonSchema = Annotated[Schema, BeforeValidator(_schema_of, json_schema_input_type=str | Schema)]

MOST_CHARACTERS = 2**17
"""The longest grammar, which the engine reads while other answers wait."""


WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""What may stand between the parts of JSON: bounded, or a weak model might write nothing else."""


class NamedSchema(BaseModel):
    """A JSON schema with its name, of which an answer shows nothing."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    schema_: Annotated[Schema, Field(alias="schema")]


class ResponseFormat(BaseModel):
    """Any text, any JSON object, or the JSON of a schema.

    Chat completions have the schema in `json_schema`, the Responses API next to the type.
    """

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: NamedSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError('type "json_schema" needs a schema')
        return self

    @property
    def wanted(self) -> Schema | None:
        """The schema of the answer; None for any text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        return self.schema_ if self.json_schema is None else self.json_schema.schema_


class TextOptions(BaseModel):
    """What the Responses API says of the text of an answer."""

    model_config = ConfigDict(extra="ignore")

    format: ResponseFormat | None = None


class StructuredOutputs(BaseModel):
    """One of: a JSON schema, a regular expression, the texts to choose from, a Lark grammar."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    json_: Annotated[JsonSchema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str] | None, Field(min_length=1, max_length=1024)] = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        if sum(value is not None for value in vars(self).values()) != 1:
            raise ValueError("give one of json, regex, choice and grammar")
        return self

    def compiled(self, matcher: Any) -> str:
        """The grammar, in the form of llguidance."""
        if self.json_ is not None:
            white_space = {"whitespace_pattern": WHITE_SPACE}
            return matcher.grammar_from_json_schema(json.dumps(self.json_), defaults=white_space)
        if self.regex is not None:
            return matcher.grammar_from_regex(self.regex)
        if self.choice is not None:
            texts = (json.dumps(text, ensure_ascii=False) for text in self.choice)
            return matcher.grammar_from_lark(f"start: {' | '.join(texts)}")
        return matcher.grammar_from_lark(self.grammar)


def grammar_of(
    wanted: ResponseFormat | None,
    other: StructuredOutputs | None = None,
    field: str = "response_format",
) -> str | None:
    """The grammar that a request asks for, in the form of llguidance; None is any text.

    Raises `InputError` for a wrong one, and without the extra `structured`.
    """
    schema = None if wanted is None else wanted.wanted
    if schema is not None and other is not None:
        raise InputError(f"structured_outputs: {field} is given too: leave one out")
    if schema is not None:
        other = StructuredOutputs.model_validate({"json": schema})
    elif other is not None:
        field = "structured_outputs"
    else:
        return None
    grammar = other.compiled(optional("llguidance", "structured", field).LLMatcher)
    if len(grammar) > MOST_CHARACTERS:
        raise InputError(f"{field}: {len(grammar):,} characters: at most {MOST_CHARACTERS:,}")
    if reason := _why_not(grammar, field):
        raise InputError(f"{field}: {reason}")
    return grammar


def _why_not(grammar: str, field: str) -> str:
    """Why a grammar is refused; empty if it can be followed for a byte at least."""
    matcher = matcher_of(grammar, _bytes(), field)
    if not matcher.is_error():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & (1 << N_BYTES) - 1
        if allowed:
            matcher.consume_token((allowed & -allowed).bit_length() - 1)
    return error_of(matcher) if matcher.is_error() else ""


@cache
def _bytes() -> Any:
    """All bytes, as the tokens of llguidance: here a grammar is checked without a model."""
    library = optional("llguidance", "structured", "structured output")
    return library.LLTokenizer(library.TokenizerWrapper(_Bytes()))


N_BYTES = 256


class _Bytes:
    """A vocabulary of bytes, as llguidance reads it."""

    tokens = (*(bytes([i]) for i in range(N_BYTES)), b"<end>")
    eos_token_id, bos_token_id = N_BYTES, None
    special_token_ids = (N_BYTES,)

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of a text."""
        return list(text)
