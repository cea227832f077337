"""Folding a message to the width of a terminal: between words, and never within code."""

import re
import textwrap

CODE = re.compile(r"`[^`]*`")
NO_BREAK = "\0"
"""What stands for a space at which a line is not folded; no message has it."""


def folded(text: str, width: int | None) -> str:
    """Return the text in lines of at most `width` characters; unchanged without a width.

    A word and a command in backquotes stay whole, so that they can be copied, and are longer than a
    line if need be.
    """
    if width is None or len(text) < width:
        return text
    whole = CODE.sub(lambda code: code[0].replace(" ", NO_BREAK), text)
    lines = (_line_folded(line, width - 1) for line in whole.split("\n"))
    return "\n".join(lines).replace(NO_BREAK, " ")


def _line_folded(line: str, width: int) -> str:
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
