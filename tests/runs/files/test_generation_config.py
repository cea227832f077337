"""`generation_config.json`, key by key; texts are tested in `parity/test_generation.py`."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import TypeAdapter

from addnorm.errors import IgnoredSettings, InputError
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.runs.files.generation_config import FILE, decoding_of, keys_of

BEAM = {"kind": "beam", "normaliser": "length", "width": "constant", "unfinished": "ranked"}


def asked(
    folder: Path,
    keys: dict[str, Any],
    file: str = FILE,
    writes: Any = "continuation",
    size: int = 1000,
) -> Any:
    (folder / "config.json").write_text("{}")
    (folder / file).write_text(json.dumps(keys))
    return decoding_of(folder, writes, size)


def test_settings_of_beam_search(tmp_path: Path) -> None:
    found = asked(tmp_path, {"num_beams": 4, "no_repeat_ngram_size": 3, "temperature": 1.0})
    assert BEAM.items() <= found.items()
    assert (found["beams"], found["length_penalty"], found["early_stopping"]) == (4, 1.0, False)
    assert found["rules"]["no_repeat_ngram_size"] == 3
    for stopping in (True, False, "never"):
        keys = {"num_beams": 2, "early_stopping": stopping, "length_penalty": -0.5}
        found = asked(tmp_path, keys)
        assert (found["early_stopping"], found["length_penalty"]) == (stopping, -0.5)


def test_settings_of_sampling(tmp_path: Path) -> None:
    found = asked(tmp_path, {"do_sample": True, "temperature": 0.6, "top_p": 0.9})
    assert (found["kind"], found["temperature"], found["top_p"]) == ("sample", 0.6, 0.9)
    assert found["top_k"] == 50, "as theirs where nothing is said"
    assert asked(tmp_path, {"do_sample": True, "top_k": 0})["top_k"] is None
    assert asked(tmp_path, {"do_sample": True, "top_k": 7})["top_k"] == 7


def test_absent_settings_keep_our_defaults(tmp_path: Path) -> None:
    ids = {"eos_token_id": [1, 2], "bos_token_id": 0, "transformers_version": "5.0.0"}
    assert asked(tmp_path, {**ids, "top_k": 50}) is None
    assert asked(tmp_path, {**ids, "do_sample": False})["kind"] == "greedy"
    assert asked(tmp_path, {"min_length": 3})["kind"] == "sample"
    assert asked(tmp_path, {"min_length": 3}, writes="target")["kind"] == "beam"


def test_older_folders_say_it_in_their_config(tmp_path: Path) -> None:
    keys = {"num_beams": 3, "model_type": "bart", "vocab_size": 9, "forced_eos_token_id": [2]}
    found = asked(tmp_path, keys, "config.json")
    assert (found["beams"], found["rules"]["forced_eos_token_id"]) == (3, 2)
    assert asked(tmp_path, {}) is None, "the file of its own counts, and no other"


@pytest.mark.parametrize(
    ("keys", "size", "named"),
    [
        ({"eos_token_id": 9}, 9, "eos_token_id = 9 (the vocabulary has 9)"),
        ({"eos_token_id": [2, 50]}, 50, "eos_token_id = [2, 50] (the vocabulary has 50)"),
        ({"bad_words_ids": [[3], [9]]}, 9, "bad_words_ids = [[3], [9]] (the vocabulary has 9)"),
    ],
)
def test_tokens_that_the_vocabulary_lacks_are_named(
    keys: dict[str, Any], size: int, named: str, tmp_path: Path
) -> None:
    with pytest.warns(IgnoredSettings) as told:
        asked(tmp_path, keys, size=size)
    assert [str(one.message).partition("not followed: ")[2] for one in told] == [named]
    assert asked(tmp_path, keys, size=size + 1) is None


RULES = RulesConfig(min_length=3, suppress_tokens=(4, 5), repetition_penalty=1.2)
FORMS = {"normaliser": "length", "width": "constant", "unfinished": "ranked"}


@pytest.mark.parametrize(
    "decoding",
    [
        GreedyConfig(),
        GreedyConfig(rules=RULES),
        SampleConfig(),
        SampleConfig(temperature=0.7, top_k=7, top_p=0.9, min_p=0.1, rules=RULES),
        BeamConfig(beams=4, length_penalty=1.5, early_stopping=True, **FORMS),  # type: ignore[arg-type]
        BeamConfig(early_stopping=False, **FORMS, rules=RULES),  # type: ignore[arg-type]
        BeamConfig(length_penalty=1.0, **FORMS, rules=RULES),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_round_trips(decoding: DecodingConfig, tmp_path: Path) -> None:
    keys = keys_of(decoding, "target")
    found = asked(tmp_path, keys, writes="target")
    assert TypeAdapter(DecodingConfig).validate_python(found) == decoding
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert (theirs.do_sample or False) == isinstance(decoding, SampleConfig)
    assert theirs.repetition_penalty == keys.get("repetition_penalty")


def test_a_seed_has_no_key_and_other_forms_have_none_either() -> None:
    assert keys_of(SampleConfig(seed=3), "continuation") == keys_of(SampleConfig(), "continuation")
    assert keys_of(BeamConfig(beams=4), "target") is None
    assert keys_of(BeamConfig(rules=RULES), "target") is None
    assert keys_of(BeamConfig(n_best=2, **FORMS), "target") is None  # type: ignore[arg-type]


def test_ignored_settings_are_named_once(tmp_path: Path) -> None:
    keys = {"typical_p": 0, "num_beam_groups": 1, "stop_strings": ["x"], "new_key": 3}
    with pytest.warns(IgnoredSettings) as caught:
        asked(tmp_path, {**keys, "bad_words_ids": [[1], [2, 3]], "unused": None})
    [message] = [str(one.message) for one in caught]
    assert message.endswith("not followed: typical_p, stop_strings, new_key, bad_words_ids")


@pytest.mark.parametrize(
    ("keys", "writes", "named"),
    [
        ({"num_beams": 4, "do_sample": True}, "continuation", "do_sample (with num_beams, which"),
        (
            {"num_beams": 4, "temperature": 0.5},
            "continuation",
            "temperature (with num_beams, which",
        ),
        (
            {"do_sample": False, "top_p": 0.9, "top_k": 5},
            "continuation",
            "top_k (without do_sample",
        ),
        ({"num_beams": 1, "temperature": 0.6}, "continuation", "temperature (without do_sample"),
        ({"do_sample": True, "length_penalty": 2.0}, "continuation", "length_penalty (which is of"),
        ({"early_stopping": True}, "continuation", "early_stopping (which is of beam"),
        ({"top_p": 0.9}, "target", "top_p (with num_beams, which"),
    ],
)
def test_keys_of_another_method_are_named(
    keys: dict[str, Any], writes: str, named: str, tmp_path: Path
) -> None:
    with pytest.warns(IgnoredSettings) as caught:
        asked(tmp_path, keys, writes=writes)
    [message] = [str(one.message) for one in caught]
    assert f"not followed: {named}" in message


def test_a_language_model_that_is_told_how_to_sample_samples_so(tmp_path: Path) -> None:
    found = asked(tmp_path, {"temperature": 0.6, "top_p": 0.9})
    assert (found["kind"], found["temperature"], found["top_p"]) == ("sample", 0.6, 0.9)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_new_tokens": "5"}, "max_new_tokens = '5': "),
        ({"do_sample": True, "top_k": True}, "top_k = True: "),
        ({"suppress_tokens": ["1"]}, r"suppress_tokens = \['1'\]: "),
        ({"num_beams": 2, "early_stopping": 1}, "early_stopping = 1: "),
        ({"renormalize_logits": "yes"}, "renormalize_logits = 'yes': "),
        ({"num_beams": 0}, "num_beams = 0: "),
        ({"num_beams": "4"}, "num_beams = '4' must be of type int"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping = 'soon': "),
        ({"do_sample": True, "top_p": 1.5}, "top_p = 1.5: "),
        ({"repetition_penalty": -1}, "repetition_penalty = -1: "),
        ({"suppress_tokens": [-1]}, r"suppress_tokens = \[-1\]: "),
        ({"max_length": 0}, "max_length = 0: "),
    ],
)
def test_what_cannot_be_is_named(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{FILE}: {message}"):
        asked(tmp_path, keys)
