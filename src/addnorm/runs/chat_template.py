"""The chat template of a model folder: reading it, and writing it where transformers looks."""

import json
from pathlib import Path
from typing import Any

from addnorm.convert.core.settings import Settings
from addnorm.data import DataConfig
from addnorm.data.chat import PLAIN, ChatConfig
from addnorm.data.encoding import Tokenizers
from addnorm.errors import InputError
from addnorm.files import read_file

TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer_config.json"
"""The files that a template may be in: one of its own, or among the tokenizer's settings."""


def chat_template(folder: Path) -> str | None:
    """The Jinja template with which the model of a folder was taught to chat; None without one.

    Raises `InputError` for a damaged file, and for several templates of which none is the default.
    """
    file, settings = folder / TEMPLATE, folder / TOKENIZER
    try:
        if file.is_file():
            return read_file(file).decode()
        tree = Settings.of(folder).tree.get("recipe")
        own = tree.get("data") if isinstance(tree, dict) else None
        if isinstance(own, dict):
            return own.get("template") if own.get("kind") == "chat" else None
        found = json.loads(read_file(settings))["chat_template"] if settings.is_file() else None
    except KeyError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: its chat template cannot be read: {error}") from error
    return found if found is None or isinstance(found, str) else _default(found, settings)


def _default(found: Any, file: Path) -> str:
    """The default of several templates, each a name and a text."""
    try:
        named = {one["name"]: one["template"] for one in found}
    except (TypeError, KeyError) as error:
        raise InputError(f"{file}: chat_template is neither a text nor a list of them") from error
    if not isinstance(named.get("default"), str):
        known = ", ".join(map(str, named)) or "none"
        raise InputError(
            f"{file}: chat_template has {known}, and no default: give data.template its text"
        )
    return named["default"]


def write_template(
    out: Path, data: DataConfig | None, folder: Path | None, text: Tokenizers | None
) -> None:
    """Write the template of a model that chats beside the one saved in `out`.

    It is that of a run's own data, or what its folder has, which may be several by name.
    """
    if isinstance(data, ChatConfig):
        assert text is not None
        _write_own(out, data.template or PLAIN, text)
    elif folder is not None and (folder / TEMPLATE).is_file():
        (out / TEMPLATE).write_bytes((folder / TEMPLATE).read_bytes())
    elif folder is not None and (folder / TOKENIZER).is_file():
        found = Settings.of(folder, TOKENIZER).tree.get("chat_template")
        if isinstance(found, str):
            (out / TEMPLATE).write_text(found, encoding="utf-8")
        elif found:
            _change(out, "chat_template", found)


def _write_own(out: Path, template: str, text: Tokenizers) -> None:
    """Write the template of a run.

    With a tokenizer learnt here, a text begins with the start token, which transformers leaves to
    the template, and whose spelling it then has to know.
    """
    learnt_here = text.source.before is None
    begins = learnt_here and "bos_token" not in template
    (out / TEMPLATE).write_text("{{ bos_token }}" * begins + template, encoding="utf-8")
    if learnt_here:
        _change(out, "split_special_tokens", False)


def _change(out: Path, key: str, value: Any) -> None:
    """Set a key of the tokenizer's settings, in a folder for Hugging Face."""
    if (file := out / TOKENIZER).is_file():
        both = Settings.of(out, TOKENIZER).tree | {key: value}
        file.write_text(json.dumps(both, indent=2) + "\n", encoding="utf-8")
