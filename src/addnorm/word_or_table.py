"""A field of a configuration that is either one of some words, or a table with settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


@dataclass(frozen=True)
class WordOrTable:
    """The annotation of `Annotated[Literal["a", "b"] | SettingsConfig, WordOrTable()]`.

    A string is checked against the words and anything else against the configuration, so that an
    error is about the one that was meant.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Choose by the form of the value."""
        literal, configuration = get_args(source)
        words = get_args(literal)

        def validate(value: Any, table: Callable[[Any], Any]) -> Any:
            if not isinstance(value, str):
                return table(value)
            if value not in words:
                raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, words))})
            return value

        def serialize(value: Any, table: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, str) else table(value)

        table = handler.generate_schema(configuration)
        written = core_schema.wrap_serializer_function_ser_schema(serialize, schema=table)
        return core_schema.no_info_wrap_validator_function(
            validate, table, serialization=written, metadata={"words": list(words)}
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The words, or the table."""
        words = schema.get("metadata", {})["words"]
        return {"anyOf": [{"enum": words, "type": "string"}, handler(schema)]}
