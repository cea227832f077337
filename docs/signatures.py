"""How autodoc shows a configuration: its fields with the types and defaults of its source.

So does a function that takes any part of a family: `NormConfig`, and not all that it stands for.
"""

import ast
import inspect
from dataclasses import is_dataclass
from textwrap import dedent
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

from addnorm.config import source_fields


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring)
    GoogleDocstring._consume_inline_attribute = whole_sentence


def whole_sentence(docstring: Any) -> tuple[str, list[str]]:
    """The type and the text of an attribute, whose words before a colon are none of its type."""
    lines = [docstring._lines.next(), *docstring._dedent(docstring._consume_to_end())]
    return "", docstring.__class__(lines, docstring._config).lines()


def signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, found: str, returns: str
) -> tuple[str, str | None] | None:
    """`(*, eps=1e-05, bias=True)`, without the kind, which is the class."""
    if is_config(thing):
        given = {name: one.default for name, one in source_fields(thing).items() if name != "kind"}
        shown = [name if value is None else f"{name}={value}" for name, value in given.items()]
        return f"({', '.join(['*', *shown])})" if shown else "()", None
    if inspect.isroutine(thing) and "Annotated[" in f"{found}{returns}":
        return source_signature(thing, is_method=what == "method")
    return None


def source_signature(function: Any, *, is_method: bool) -> tuple[str, str | None]:
    """The arguments and the result as they are written."""
    [node] = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    if is_method:
        del node.args.args[0]
    for argument in [*node.args.args, *node.args.kwonlyargs]:
        match argument.annotation:  # a string names a union
            case ast.Constant(value=str(union)):
                argument.annotation = ast.parse(union, mode="eval").body
            case _:
                pass
    return f"({ast.unparse(node.args)})", node.returns and ast.unparse(node.returns).strip("'")


def docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """What each field means, with its type."""
    if is_config(thing):
        for field, one in source_fields(thing).items():
            if field != "kind":
                lines += [f":param {field}: {one.meaning}", f":type {field}: {one.annotation}"]


def is_config(thing: Any) -> bool:
    """Whether this is a configuration class of ours."""
    return isinstance(thing, type) and is_dataclass(thing) and hasattr(thing, "__pydantic_fields__")
