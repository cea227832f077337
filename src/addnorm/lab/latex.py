r"""Tables for papers: LaTeX with the rules of the package booktabs, all text escaped."""

import math
import unicodedata
from collections.abc import Mapping, Sequence

from addnorm.lab.statistics import Interval

ESCAPES: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "[": "{[}",
    "]": "{]}",
    "−": "$-$",
    "±": r"$\pm$",
    "…": r"\dots{}",
    "–": "--",
}
"""What LaTeX takes as a command, or has in some encodings alone, and how it is written."""


NONE = "--"
"""The cell without a value."""


def escaped(text: str) -> str:
    """A text escaped for LaTeX; control characters and line ends become spaces."""
    printable = "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text)
    return "".join(ESCAPES.get(letter, letter) for letter in printable)


def number(value: float | None, digits: int = 4, *, sign: bool = False) -> str:
    """A number in math mode with this many significant digits; a dash for None."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    mantissa, _, exponent = f"{value:{'+' if sign else ''}.{digits}g}".partition("e")
    power = rf" \cdot 10^{{{int(exponent)}}}" if exponent else ""
    return f"${mantissa}{power}$"


def interval(value: Interval | None, *, sign: bool) -> str:
    """The ends of an interval; a dash for an infinite one."""
    if value is None or math.isinf(value.low):
        return NONE
    return f"[{number(value.low, sign=sign)}, {number(value.high, sign=sign)}]"


def p(value: float) -> str:
    """A p-value: `0.012`, or less than 0.001."""
    return f"${value:.3f}$" if value >= 0.001 else "$< 0.001$"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], comment: str) -> str:
    r"""A `tabular` of cells that are LaTeX already; the first column holds words.

    The comment names what the preamble needs. A bracket that begins a cell is in braces, as `\\`
    before it would read it.
    """
    lines = [" & ".join(row) for row in (head, *rows)]
    guarded = [f"{{}}{line}" if line.lstrip().startswith("[") else line for line in lines]
    first, *others = guarded
    body = "".join(f"{line} \\\\\n" for line in others)
    return (
        f"% {comment}; needs \\usepackage{{booktabs}}\n"
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n"
        f"\\toprule\n{first} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    )
