"""Text escaped for Markdown, and reports in two languages as one HTML page."""

import base64
import html
import math
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from markdown_it import MarkdownIt

Language = Literal["en", "zh"]

LANGUAGES: Mapping[Language, str] = {"en": "English", "zh": "简体中文"}
"""The languages of a report, and their names."""

FORMATS = re.compile(r"[\\`*\[\]<>&#~$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that format text; an underscore within a word does not."""


def plain(text: str) -> str:
    """Escape a text so that Markdown shows it literally, in a line or in a table cell.

    Characters that format get a backslash (CommonMark 0.31, §2.4); ends of lines, other white
    space, and the bars that separate cells are written by number (§2.5). Control characters, which
    HTML does not have, become U+FFFD.
    """
    shown = FORMATS.sub(r"\\\g<0>", "".join(map(_printable, text)))
    n = len(shown) - len(shown.lstrip(" "))
    inner = shown.strip(" ")
    edges = (_number(" ") * n, _number(" ") * (len(shown) - n - len(inner)))
    return edges[0] + "".join(map(_in_one_line, inner)) + edges[1]


def code(text: str) -> str:
    """Return the text as code, or as plain text if code cannot contain it."""
    odd = "`" in text or text != text.strip() or not text.isprintable() or not text
    return plain(text) if odd else f"`{text}`"


def _printable(letter: str) -> str:
    return "\ufffd" if unicodedata.category(letter) == "Cc" and letter not in "\t\n\r" else letter


def _in_one_line(letter: str) -> str:
    return _number(letter) if letter == "|" or (letter.isspace() and letter != " ") else letter


def _number(letter: str) -> str:
    return f"&#{ord(letter)};"


def finite(value: Any) -> Any:
    """Replace NaN and infinite numbers in a tree by None, since JSON lacks them."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --paper: #fff; --line: #d9e0e6; --hint: #52606d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --paper: #171c21; --line: #3e4c59; --hint: #9aa5b1; }
}
body { font: 16px/1.55 system-ui, "Noto Sans CJK SC", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.86rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.6rem; white-space: nowrap; }
th { color: var(--hint); font-weight: 600; text-align: left; }
p { overflow-wrap: break-word; overflow-x: auto; }
li, h1, h2 { overflow-wrap: break-word; }
img { max-width: 100%; background: #fff; }
@media (max-width: 40rem) {
  img { max-width: none; width: max(100%, 34rem); }
  th:not([style]), td:not([style]) { white-space: normal; overflow-wrap: break-word;
    min-width: 3.4rem; }
  th, td { padding: 0.3rem; }
}
code { font-size: 0.9em; }
nav { display: flex; gap: 0.8rem; justify-content: flex-end; }
nav label { cursor: pointer; color: var(--hint); }
input[name=language] { position: absolute; opacity: 0; }
main { display: none; }
#en:checked ~ main[lang=en], #zh:checked ~ main[lang=zh-CN] { display: block; }
#en:checked ~ nav label[for=en], #zh:checked ~ nav label[for=zh] { color: var(--ink);
  text-decoration: underline; }
input:focus-visible ~ nav { outline: 2px solid #0f6ba8; }
"""


def page(title: str, texts: Mapping[Language, str], folder: Path) -> str:
    """A report as one HTML page that contains its pictures and needs no network."""
    render = MarkdownIt("commonmark", {"html": False}).enable("table")
    bodies = {
        language: _with_pictures(render.render(text), folder) for language, text in texts.items()
    }
    radios = "".join(
        f'<input type="radio" name="language" id="{key}"{" checked" if key == "en" else ""}>'
        for key in texts
    )
    labels = "".join(f'<label for="{key}">{LANGUAGES[key]}</label>' for key in texts)
    mains = "".join(
        f'<main lang="{"zh-CN" if key == "zh" else key}">{body}</main>'
        for key, body in bodies.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body>{radios}<nav>{labels}</nav>{mains}</body></html>\n"
    )


def _with_pictures(body: str, folder: Path) -> str:
    for file in folder.glob("*.svg"):
        data = base64.b64encode(file.read_bytes()).decode()
        body = body.replace(f'src="{file.name}"', f'src="data:image/svg+xml;base64,{data}"')
    return body
