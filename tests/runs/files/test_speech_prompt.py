"""The tokens that Whisper's texts begin with; `tests/convert/test_preprocessing.py` has parity."""

import json
from pathlib import Path
from typing import Any

import pytest

from addnorm.errors import InputError
from addnorm.runs.files.speech_prompt import speech_prompt

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
