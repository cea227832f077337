"""Whisper's prompt (language, task and time stamps), from `generation_config.json` and options."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import maxsize
from typing import Any, Unpack, cast

from addnorm.convert.core.modules import generating_place
from addnorm.convert.core.settings import Settings
from addnorm.convert.tokenizers.layouts import GENERATION, generation_file, read_object
from addnorm.errors import InputError, nearest, some_of
from addnorm.generate.timestamps import TimestampRules
from addnorm.runs.options import SpeechOptions

SPEECH_KEYS = (
    "alignment_heads", "forced_decoder_ids", "is_multilingual", "lang_to_id", "language",
    "max_initial_timestamp_index", "no_timestamps_token_id", "prev_sot_token_id",
    "return_timestamps", "task", "task_to_id",
)  # fmt: skip
"""Keys of `generation_config.json` that are read here, or are for the times of words alone."""

_LANGUAGES = """
    en english zh chinese de german es spanish ru russian ko korean fr french ja japanese
    pt portuguese tr turkish pl polish ca catalan nl dutch ar arabic sv swedish it italian
    id indonesian hi hindi fi finnish vi vietnamese he hebrew uk ukrainian el greek ms malay
    cs czech ro romanian da danish hu hungarian ta tamil no norwegian th thai ur urdu hr croatian
    bg bulgarian lt lithuanian la latin mi maori ml malayalam cy welsh sk slovak te telugu
    fa persian lv latvian bn bengali sr serbian az azerbaijani sl slovenian kn kannada et estonian
    mk macedonian br breton eu basque is icelandic hy armenian ne nepali mn mongolian bs bosnian
    kk kazakh sq albanian sw swahili gl galician mr marathi pa punjabi si sinhala km khmer sn shona
    yo yoruba so somali af afrikaans oc occitan ka georgian be belarusian tg tajik sd sindhi
    gu gujarati am amharic yi yiddish lo lao uz uzbek fo faroese ht haitian_creole ps pashto
    tk turkmen nn nynorsk mt maltese sa sanskrit lb luxembourgish my myanmar bo tibetan tl tagalog
    mg malagasy as assamese tt tatar haw hawaiian ln lingala ha hausa ba bashkir jw javanese
    su sundanese yue cantonese my burmese ca valencian nl flemish ht haitian lb letzeburgesch
    ps pushto pa panjabi ro moldavian ro moldovan si sinhalese es castilian zh mandarin
"""
LANGUAGES: Mapping[str, str] = {
    name.replace("_", " "): code
    for code, name in zip(_LANGUAGES.split()[::2], _LANGUAGES.split()[1::2], strict=True)
}
"""The codes of Whisper's languages by their English names."""


WITHOUT_STAMPS = "this model writes no time stamps: no_timestamps_token_id has no tokens after it"


@dataclass(frozen=True)
class SpeechPrompt:
    """The tokens after the start token; None stands for the detected language among `languages`."""

    tokens: tuple[int | None, ...] = ()
    languages: tuple[int, ...] = ()
    counted: int = 1
    """How many tokens before a text its `max_length` counts; in transformers' Whisper none."""
    codes: tuple[str, ...] = ()
    """The codes of `languages`."""
    stamps: TimestampRules | None = None
    """The rules of time stamps; None for a model without stamps."""
    stamped: bool = False
    """Whether texts have time stamps without being asked for them."""

    @property
    def opening(self) -> tuple[int | None, ...]:
        """The tokens before a text with time stamps, without the token that switches these off."""
        return self.tokens[:-1]

    def code_of(self, detected: int | None) -> str | None:
        """The language code of a text: from the prompt's tokens, or else the `detected` one."""
        names = dict(zip(self.languages, self.codes, strict=True))
        return next((names[token] for token in (*self.tokens, detected) if token in names), None)


def speech_prompt(
    places: Sequence[Path],
    end_id: int = 0,
    vocab_size: int = maxsize,
    **options: Unpack[SpeechOptions],
) -> SpeechPrompt:
    """The prompt of a folder, built from `generation_config.json` as `transformers` does.

    `options` take the place of the file's keys; `end_id` is the token of the end. Raises
    `InputError` for a language or a task that the file does not list, and for time stamps of a
    model without them.
    """
    place = generating_place(places)
    settings = Settings.of(place, generation_file(place))
    given = {key: value for key, value in options.items() if value is not None}
    if settings.tree.get("is_multilingual") is False:
        _check_alone(settings, given)
    tree: Mapping[str, Any] = {k: v for k, v in settings.tree.items() if v is not None} | given
    languages: dict[str, int] = tree.get("lang_to_id", {})
    plain = tree.get("no_timestamps_token_id")
    stamped = bool(tree.get("timestamps", tree.get("return_timestamps", False)))
    stamps = None
    if plain is not None and plain + 1 < vocab_size:
        stamps = TimestampRules(plain + 1, end_id, tree.get("max_initial_timestamp_index"))
    if stamped and stamps is None:
        raise InputError(f"{settings.where}: {WITHOUT_STAMPS}")
    tokens = _language_and_task(tree, settings.where, given)
    return SpeechPrompt(
        (*tokens, *(() if plain is None or tokens[-1:] == [plain] else (plain,))),
        tuple(languages.values()),
        counted=0,
        codes=tuple(name.strip("<|>") for name in languages),
        stamps=stamps,
        stamped=stamped,
    )


def _language_and_task(
    tree: Mapping[str, Any], where: str, given: Collection[str]
) -> list[int | None]:
    """The tokens of language and task; those of the keys in `given` come from options."""
    languages, tasks = tree.get("lang_to_id", {}), tree.get("task_to_id", {})
    language, task = tree.get("language"), tree.get("task")
    tokens = [] if language or task else _forced(tree.get("forced_decoder_ids"))
    if language is not None:
        tokens[:1] = [_listed(languages, "language", str(language), where, given)]
        task = task or ("transcribe" if tasks else None)
    elif languages and (not tokens or tokens[0] is None):
        tokens[:1] = [None]
    elif tokens and tokens[0] is None:
        del tokens[0]
    if task is not None:
        tokens.append(_listed(tasks, "task", str(task), where, given))
    return tokens


def _check_alone(settings: Settings, given: Mapping[str, object]) -> None:
    """Raise `InputError` if a language or task is given to a model of a single language."""
    if names := [name for name in ("language", "task") if name in given]:
        shown = " and ".join(f"`{name} = {given[name]!r}`" for name in names)
        raise InputError(
            f"{settings.where}: is_multilingual = false: this model writes English alone: leave "
            f"out {shown}"
        )


def speech_keys(places: Sequence[Path]) -> dict[str, Any]:
    """The values of those `SPEECH_KEYS` that the folder sets; empty without folders."""
    if not places:
        return {}
    place = generating_place(places)
    tree = read_object(place / generation_file(place))
    return {key: tree[key] for key in SPEECH_KEYS if tree.get(key) is not None}


def copy_speech_keys(places: Sequence[Path], out: Path) -> None:
    """Write the `SPEECH_KEYS` of `places` to the `generation_config.json` of a model's copy."""
    if keys := speech_keys(places):
        text = json.dumps(read_object(out / GENERATION) | keys, indent=2)
        (out / GENERATION).write_text(text + "\n", encoding="utf-8")


def _forced(pairs: object) -> list[int | None]:
    """Return the tokens of `[[1, token], [2, token], …]`, the older format."""
    places = cast(list[list[Any]], pairs) if isinstance(pairs, list) else []
    return [token for n, (at, token) in enumerate(places, 1) if at == n]


CODES = {"language": LANGUAGES}
"""The code of each name that an option also takes."""


def _listed(ids: Mapping[str, int], key: str, name: str, where: str, given: Collection[str]) -> int:
    """The id of a language or a task. Raises `InputError` with the nearest names."""
    codes = CODES.get(key, {})
    word = codes.get(name.lower(), name.lower())
    for token in (word, f"<|{word}|>"):
        if token in ids:
            return ids[token]
    setting = f"`{key} = {name!r}`: {where} does not list it"
    if key not in given:
        setting = f"{where}: {key} = {name!r} is not listed"
    names = [token.strip("<|>") for token in ids]
    if not names:
        raise InputError(f"{setting}. It has no lang_to_id or task_to_id.")
    hint = nearest(name, [*names, *(other for other, code in codes.items() if code in names)])
    raise InputError(f"{setting}.{hint} Valid: {some_of(names)}.")
