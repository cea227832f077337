"""The JSON schema of recipes, for completion and validation in editors."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from addnorm.config import meanings
from addnorm.runs.recipes.recipe import RECIPE


def recipe_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of recipes.

    A recipe with `train.start` may omit model settings that are the same as in that folder.
    """
    made = RECIPE.json_schema(schema_generator=_RecipeSchema)
    schema = _with_words(made, made["$defs"])
    model = schema["properties"]["model"]
    schema["properties"]["model"] = {"description": model.pop("description")}
    del model["anyOf"][1]  # a model is always a table
    schema["properties"]["import"] = {
        "description": "Files and modules with parts of your own, imported for training.",
        "type": "array",
        "items": {"type": "string"},
    }
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **schema,
        "title": "A recipe of AddNorm",
        "required": ["data", "train"],
        "if": {"properties": {"train": {"required": ["start"]}}},
        "then": {"properties": {"model": {"type": "object"}}},
        "else": {"properties": {"model": model}, "required": ["model"]},
    }


def _with_words(node: Any, definitions: dict[str, Any]) -> Any:
    """Allow a bare word for parts whose fields all have defaults; tables must name their kind."""
    if isinstance(node, list):
        return [_with_words(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _with_words(value, definitions) for key, value in node.items()}
    if "discriminator" in made:
        kinds: dict[str, str] = made.pop("discriminator")["mapping"]
        table = {"type": "object", "required": ["kind"], "anyOf": made.pop("oneOf")}
        named = {kind: definitions[ref.rpartition("/")[2]] for kind, ref in kinds.items()}
        words = [kind for kind, schema in named.items() if "required" not in schema]
        made["anyOf"] = [table, {"enum": words}]
    return made


class _RecipeSchema(GenerateJsonSchema):
    """Pydantic's schema generator, with a description of every field."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        made = super().dataclass_schema(schema)
        for name, meaning in meanings(schema["cls"]).items():
            made["properties"][name]["description"] = meaning
        return made

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Drop null from the schema, since TOML has none; such fields are left out."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if (key, value) != ("default", None)}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
