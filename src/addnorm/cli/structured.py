"""`--json-schema` and `--regex`: structured output, in which texts follow a grammar."""

from pathlib import Path

from addnorm.errors import InputError

MOST_BYTES = 2**22
"""The size limit of a schema, as of a server's requests."""


def grammar_asked(json_schema: Path | None, regex: str | None) -> tuple[str, str]:
    """The grammar that one of the options gives, and that option.

    Raises `InputError` for both options, for a wrong or too large schema or expression, and without
    the extra `structured`.
    """
    if json_schema is not None and regex is not None:
        raise InputError("give either --json-schema or --regex, and not both")
    from addnorm.data.tokenizing.grammar_forms import (
        check_grammar,
        grammar_of_regex,
        grammar_of_schema,
    )

    if json_schema is None:
        option = "--regex"
        grammar = grammar_of_regex(regex or "", option)
    else:
        option = f"--json-schema {json_schema}"
        grammar = grammar_of_schema(_schema(json_schema, option), option)
    check_grammar(grammar, option)
    return grammar, option


def _schema(file: Path, option: str) -> dict[str, object]:
    """Read the schema in a file. Raises `InputError` unless it is a JSON object."""
    from pydantic_core import from_json

    from addnorm.files import read_file

    try:
        schema = from_json(read_file(file, MOST_BYTES), allow_inf_nan=False)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{option}: not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InputError(f"{option}: not a JSON object, as a schema is")
    return schema
