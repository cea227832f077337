"""Chat templates: Jinja in a sandbox, with what templates can use in transformers."""

import json
from functools import cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from addnorm.errors import InputError


def rendered(template: str, **names: Any) -> str:
    """Return the text that a template writes. Raises `InputError` or `ValueError` if it fails."""
    try:
        return jinja_template(template).render(**names)
    except (TemplateError, TypeError, LookupError, ArithmeticError) as error:
        raise ValueError(str(error)) from error


@cache
def jinja_template(template: str) -> Template:
    """Compile a template that will run in a sandbox. Raises `ValueError` for a syntax error.

    It can use what templates can in transformers; the date of today comes with the names.
    """
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    sandbox.filters["tojson"] = _json
    try:
        return sandbox.from_string(template, {"raise_exception": _refuse})
    except TemplateError as error:
        raise ValueError(f"is not a Jinja template: {error}") from error


def _refuse(message: str) -> None:
    raise InputError(f"the template refuses these messages: {message}")


def _json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    """A value as JSON; Jinja's own filter would escape `<` and `&` as in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class _Generation(Extension):
    """The tag around an answer, `{% generation %}`, whose content is written unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        inner = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(inner, lineno=line)
