"""Structured output: a JSON schema, regular expression or grammar that an answer must follow.

`response_format` is OpenAI's, `structured_outputs` vLLM's. A wrong one is refused at once; the
engine follows the others.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from addnorm.data.tokenizing.grammar_forms import (
    check_grammar,
    grammar_of_choices,
    grammar_of_lark,
    grammar_of_regex,
    grammar_of_schema,
)
from addnorm.errors import InputError
from addnorm.web.errors import WebError
from addnorm.web.limits import check_json

Schema = dict[str, Any]


def _schema_of(value: Any) -> Any:
    """A schema given as an object or, as vLLM allows, as text."""
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


class NamedSchema(BaseModel):
    """A JSON schema with a name, which does not appear in answers."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    schema_: Annotated[Schema, Field(alias="schema")]


class ResponseFormat(BaseModel):
    """The format of an answer: any text, any JSON object, or JSON of a schema.

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
        """The schema of the answer; None allows any text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        return self.schema_ if self.json_schema is None else self.json_schema.schema_


class TextOptions(BaseModel):
    """The settings of the Responses API for the answer's text."""

    model_config = ConfigDict(extra="ignore")

    format: ResponseFormat | None = None


class StructuredOutputs(BaseModel):
    """One of: a JSON schema, a regular expression, a list of choices, a Lark grammar."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    json_: Annotated[JsonSchema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str] | None, Field(min_length=1, max_length=1024)] = None
    grammar_: Annotated[str | None, Field(alias="grammar")] = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        if sum(value is not None for value in vars(self).values()) != 1:
            raise ValueError("give one of json, regex, choice and grammar")
        return self

    def grammar(self, field: str) -> str:
        """The grammar in llguidance's form."""
        if self.json_ is not None:
            return grammar_of_schema(self.json_, field)
        if self.regex is not None:
            return grammar_of_regex(self.regex, field)
        if self.choice is not None:
            return grammar_of_choices(self.choice, field)
        assert self.grammar_ is not None
        return grammar_of_lark(self.grammar_, field)


def grammar_of(
    wanted: ResponseFormat | None,
    other: StructuredOutputs | None = None,
    field: str = "response_format",
) -> str | None:
    """The grammar that a request asks for, in llguidance's form; None allows any text.

    Raises `InputError` for a wrong one, and without the extra `structured`.
    """
    schema = None if wanted is None else wanted.wanted
    if other is not None:
        if schema is not None:
            raise InputError(f"structured_outputs: {field} is given too: leave one out")
        field = "structured_outputs"
        grammar = other.grammar(field)
    elif schema is not None:
        grammar = grammar_of_schema(schema, field)
    else:
        return None
    check_grammar(grammar, field)
    return grammar
