"""What Whisper's texts begin with: the language, the task, and that there are no time stamps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from addnorm.convert.core.modules import generating_place
from addnorm.convert.core.settings import Settings
from addnorm.convert.tokenizers.layouts import GENERATION, generation_file, read_object
from addnorm.errors import InputError, choices

KEYS = (
    "alignment_heads", "forced_decoder_ids", "is_multilingual", "lang_to_id", "language",
    "max_initial_timestamp_index", "no_timestamps_token_id", "prev_sot_token_id",
    "return_timestamps", "task", "task_to_id",
)  # fmt: skip
"""Keys of `generation_config.json` that are read here, or are for time stamps alone."""


@dataclass(frozen=True)
class SpeechPrompt:
    """The tokens after the start token; None stands for the likeliest of `languages`."""

    tokens: tuple[int | None, ...] = ()
    languages: tuple[int, ...] = ()
    counted: int = 1
    """How many tokens before a text its `max_length` counts; in transformers' Whisper none."""


def speech_prompt(places: Sequence[Path]) -> SpeechPrompt:
    """The prompt of a folder, as `transformers` makes it of `generation_config.json`.

    Raises `InputError` for a language or a task that the file does not list.
    """
    place = generating_place(places)
    settings = Settings.of(place, generation_file(place))
    tree: Mapping[str, Any] = {k: v for k, v in settings.tree.items() if v is not None}
    languages: dict[str, int] = tree.get("lang_to_id", {})
    tasks: dict[str, int] = tree.get("task_to_id", {})
    language, task = tree.get("language"), tree.get("task")
    tokens = [] if language or task else _forced(tree.get("forced_decoder_ids"))
    if language is not None:
        tokens[:1] = [_listed(languages, language, settings.where, "language")]
    elif languages and (not tokens or tokens[0] is None):
        tokens[:1] = [None]
    elif tokens and tokens[0] is None:
        del tokens[0]
    if task is not None:
        tokens.append(_listed(tasks, task, settings.where, "task"))
    elif language is not None and tasks:
        tokens.append(_listed(tasks, "transcribe", settings.where, "task"))
    stamps = tree.get("no_timestamps_token_id")
    if stamps is not None and (not tokens or tokens[-1] != stamps):
        tokens.append(stamps)
    return SpeechPrompt(tuple(tokens), tuple(languages.values()), counted=0)


def speech_keys(places: Sequence[Path]) -> dict[str, Any]:
    """The `KEYS` that are given, with their values."""
    place = generating_place(places)
    tree = read_object(place / generation_file(place))
    return {key: tree[key] for key in KEYS if tree.get(key) is not None}


def copy_speech_keys(places: Sequence[Path], out: Path) -> None:
    """Write the `KEYS` of `places` to the `generation_config.json` of a model's copy."""
    if keys := speech_keys(places):
        text = json.dumps(read_object(out / GENERATION) | keys, indent=2)
        (out / GENERATION).write_text(text + "\n", encoding="utf-8")


def _forced(pairs: object) -> list[int | None]:
    """The tokens of `[[1, token], [2, token], …]`, the older way to say so."""
    found = cast(list[list[Any]], pairs) if isinstance(pairs, list) else []
    return [token for n, (at, token) in enumerate(found, 1) if at == n]


def _listed(known: Mapping[str, int], name: object, where: str, key: str) -> int:
    for word in (str(name).lower(), f"<|{str(name).lower()}|>"):
        if word in known:
            return known[word]
    raise InputError(f"{where}: {key} = {name!r} is not listed.{choices(str(name), known)}")
