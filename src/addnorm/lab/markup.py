"""Text of any kind within Markdown: what a person named is shown as it is, and formats nothing."""

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

FORMATS = re.compile(r"[\\`*\[\]<>&#~$]|(?<![^\W_])_|_(?![^\W_])")
"""What formats; an underscore within a word does not."""


def plain(text: str) -> str:
    """The text written so that Markdown shows exactly it, in a line and in a cell of a table.

    Characters that format get a backslash (CommonMark 0.31, §2.4); ends of lines, other white space
    and bars, which part cells, are written by number (§2.5). For control characters, which HTML has
    not, U+FFFD stands.
    """
    shown = FORMATS.sub(r"\\\g<0>", "".join(map(_printable, text)))
    n = len(shown) - len(shown.lstrip(" "))
    inner = shown.strip(" ")
    edges = (_number(" ") * n, _number(" ") * (len(shown) - n - len(inner)))
    return edges[0] + "".join(map(_in_one_line, inner)) + edges[1]


def code(text: str) -> str:
    """The text as code, or, where code cannot have it, as it is."""
    odd = "`" in text or text != text.strip() or not text.isprintable() or not text
    return plain(text) if odd else f"`{text}`"


def _printable(letter: str) -> str:
    return "\ufffd" if unicodedata.category(letter) == "Cc" and letter not in "\t\n\r" else letter


def _in_one_line(letter: str) -> str:
    return _number(letter) if letter == "|" or (letter.isspace() and letter != " ") else letter


def _number(letter: str) -> str:
    return f"&#{ord(letter)};"


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON has not: infinite ones, and those that are none."""
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
