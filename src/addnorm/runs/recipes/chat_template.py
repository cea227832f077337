"""The chat template of a model folder: reading it, and writing it where transformers reads it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from addnorm.convert.core.settings import Settings
from addnorm.convert.importers.gguf import chat_template_of
from addnorm.convert.weights.gguf_file import is_gguf
from addnorm.data.conversation import PLAIN
from addnorm.data.readers.chat import ChatConfig
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.files import read_file

TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer_config.json"
"""The files that may hold a template: a separate one, or the tokenizer's settings."""

ADDITIONAL = "additional_chat_templates"
"""The folder of further templates, each a file by its name."""


def chat_template(*places: Path) -> str | None:
    """The Jinja template with which a folder's model was taught to chat; None without one.

    It is looked up in each of the `places` in turn: what a run learnt to chat by, then its files,
    then the settings of the tokenizer. Raises `InputError` for a damaged file, and for several
    templates of which none is the default.
    """
    for place in places:
        if (learnt := _learnt(place)) is not None:
            return learnt.get("template") or PLAIN
        if (template := _written(place)) is not None:
            return template if isinstance(template, str) else _default(template, place)
    return None


def _learnt(folder: Path) -> dict[str, Any] | None:
    """The chat data of a run that was trained on conversations."""
    if not (folder / "config.json").is_file():
        return None
    tree = Settings.of(folder).tree.get("recipe")
    own = tree.get("data") if isinstance(tree, dict) else None
    return own if isinstance(own, dict) and own.get("kind") == "chat" else None


def _written(folder: Path) -> str | dict[str, Any] | None:
    """Return the template of a folder, or several by name; as in transformers, separate files win.

    A GGUF file has it in its keys.
    """
    if is_gguf(folder):
        return chat_template_of(folder)
    file, settings = folder / TEMPLATE, folder / TOKENIZER
    files = {"default": file} if file.is_file() else {}
    files |= {more.stem: more for more in sorted((folder / ADDITIONAL).glob("*.jinja"))}
    try:
        named: Any = {name: read_file(file).decode() for name, file in files.items()}
        if not named:
            named = (
                json.loads(read_file(settings)).get("chat_template") if settings.is_file() else None
            )
        if isinstance(named, list):
            named = {entry["name"]: entry["template"] for entry in named}
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise InputError(f"{folder}: its chat template cannot be read: {error}") from error
    if not isinstance(named, str | dict | None):
        raise InputError(f"{settings}: chat_template is neither a text nor a list of them")
    return named["default"] if isinstance(named, dict) and [*named] == ["default"] else named


def _default(templates: dict[str, Any], place: Path) -> str:
    """The default of several templates by name."""
    if not isinstance(templates.get("default"), str):
        names = ", ".join(map(str, templates)) or "none"
        raise InputError(
            f"{place}: chat_template has {names}, and no default: give data.template its text"
        )
    return templates["default"]


def copy_template(places: Sequence[Path], out: Path) -> None:
    """Copy the template of the first of `places` that has one: a text, or several by name."""
    templates = next((t for place in places if (t := _written(place)) is not None), None)
    if isinstance(templates, str):
        (out / TEMPLATE).write_text(templates, encoding="utf-8")
    elif templates:
        several = [{"name": name, "template": text} for name, text in templates.items()]
        _change(out, "chat_template", several)


def naming(template: str, text: Tokenizers) -> str:
    """A template with its special tokens spelled out, for a library that would use other names.

    Libraries that know only the ids of generation take `bos_token` and `eos_token` of those; the
    tokenizer's own names may be others, and it may have some that they do not know.
    """
    tokenizer = text.target
    if tokenizer.names is None:  # learnt here: the same names
        return template
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    theirs = {key: "" if i is None else tokenizer.codec.name(i) for key, i in ids.items()}
    ours = {**dict.fromkeys(ids, ""), **tokenizer.names}
    assignments = [
        f"{{%- set {key} = {json.dumps(name, ensure_ascii=False)} %}}"
        for key, name in ours.items()
        if name != theirs.get(key) and re.search(rf"\b{key}\b", template)
    ]
    newline = (
        "\n" if assignments and template.startswith("\n") else ""
    )  # the first after a block is cut
    return "".join(assignments) + newline + template


def template_of(data: ChatConfig, text: Tokenizers) -> str:
    """The template of a chat run for a library that does not add a start token itself.

    With a tokenizer learnt here, a text begins with the start token, which transformers leaves to
    the template.
    """
    template = data.template or PLAIN
    begins = text.source.before is None and "bos_token" not in template
    return "{{ bos_token }}" * begins + template


def write_template(out: Path, data: ChatConfig, text: Tokenizers) -> None:
    """Write the template of a chat run to where transformers reads it.

    The spelling of the start token of a tokenizer learnt here has to be known there.
    """
    (out / TEMPLATE).write_text(template_of(data, text), encoding="utf-8")
    if text.source.before is None and (out / TOKENIZER).is_file():
        _change(out, "split_special_tokens", False)


def _change(out: Path, key: str, value: Any) -> None:
    """Set a key in the tokenizer's settings."""
    file = out / TOKENIZER
    settings = Settings.of(out, TOKENIZER).tree if file.is_file() else {}
    file.write_text(json.dumps(settings | {key: value}, indent=2) + "\n", encoding="utf-8")
