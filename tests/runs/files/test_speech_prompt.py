"""Whisper's prompt, by the keys of its folder and by options."""

import json
from pathlib import Path
from typing import Any

import pytest

from addnorm.errors import InputError
from addnorm.generate.timestamps import TimestampRules
from addnorm.runs.files import speech_prompt as module
from addnorm.runs.files.speech_prompt import speech_prompt
from addnorm.runs.options import SpeechOptions

LANGUAGES = {"<|en|>": 5, "<|de|>": 6}
TASKS = {"transcribe": 7, "translate": 8}
BOTH: dict[str, Any] = {"lang_to_id": LANGUAGES, "task_to_id": TASKS, "no_timestamps_token_id": 9}


@pytest.mark.parametrize(
    ("tree", "tokens"),
    [
        ({}, ()),
        ({"no_timestamps_token_id": 9}, (9,)),
        (BOTH, (None, 9)),
        (BOTH | {"language": "de"}, (6, 7, 9)),
        (BOTH | {"language": "<|DE|>", "task": "translate"}, (6, 8, 9)),
        (BOTH | {"task": "translate"}, (None, 8, 9)),
        ({"forced_decoder_ids": [[1, 5], [2, 7], [3, 9]]}, (5, 7, 9)),
        ({"forced_decoder_ids": [[1, None], [2, 7]]}, (7,)),
        (BOTH | {"forced_decoder_ids": [[1, None], [2, 7]]}, (None, 7, 9)),
    ],
)
def test_the_prompt(tree: dict[str, Any], tokens: tuple[int | None, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps(tree))
    found = speech_prompt([tmp_path])
    assert found.tokens == tokens
    assert found.languages == tuple(tree.get("lang_to_id", {}).values())


def test_a_language_that_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(BOTH | {"language": "dee"}))
    with pytest.raises(InputError, match="language = 'dee' is not listed"):
        speech_prompt([tmp_path])


def write(folder: Path, tree: dict[str, Any]) -> list[Path]:
    (folder / "generation_config.json").write_text(json.dumps(tree))
    return [folder]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"language": "de"}, (6, 7, 9)),
        ({"language": "German", "task": "translate"}, (6, 8, 9)),
        ({"task": "translate"}, (None, 8, 9)),
        ({"language": None, "task": None}, (None, 9)),
    ],
)
def test_options_take_the_place_of_keys(
    options: SpeechOptions, tokens: tuple[int | None, ...], tmp_path: Path
) -> None:
    keys = BOTH | {"forced_decoder_ids": [[1, None], [2, 7], [3, 9]]}
    given = speech_prompt(write(tmp_path, keys if any(options.values()) else BOTH), **options)
    assert given.tokens == tokens
    assert given.opening == tokens[:-1]
    assert given.code_of(5) == ("en" if tokens[0] is None else "de")


def test_the_rules_of_time_stamps(tmp_path: Path) -> None:
    places = write(tmp_path, BOTH | {"max_initial_timestamp_index": 50})
    prompt = speech_prompt(places, 3)
    assert (prompt.stamps, prompt.stamped) == (TimestampRules(10, 3, 50), False)
    assert speech_prompt(places, timestamps=True).stamped
    assert speech_prompt(write(tmp_path, BOTH | {"return_timestamps": True})).stamped
    assert not speech_prompt(places, timestamps=False).stamped


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        (BOTH, {"language": "germn"}, "`language = 'germn'`: .* does not list it.* Valid: en, de"),
        (BOTH, {"language": "french"}, "`language = 'french'`: .* does not list it"),
        ({}, {"language": "de"}, "has no lang_to_id or task_to_id"),
        (BOTH | {"is_multilingual": False}, {"language": "en"}, "writes English alone: leave out"),
        ({}, {"timestamps": True}, "this model writes no time stamps: no_timestamps_token_id"),
    ],
)
def test_options_that_the_folder_does_not_support(
    keys: dict[str, Any], options: SpeechOptions, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        speech_prompt(write(tmp_path, keys), **options)


def test_languages_are_those_of_transformers() -> None:
    theirs: Any = pytest.importorskip("transformers.models.whisper.tokenization_whisper")
    assert theirs.TO_LANGUAGE_CODE == module.LANGUAGES
