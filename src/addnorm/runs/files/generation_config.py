"""Decoding settings in `generation_config.json` of a Hugging Face folder: reading and writing."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, cast
from warnings import warn

from pydantic import TypeAdapter, ValidationError

from addnorm.config import problem_of
from addnorm.convert.core.settings import Settings
from addnorm.convert.tokenizers.layouts import GENERATION, generation_file
from addnorm.errors import IgnoredSettings, InputError
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.generate.rules import NO_RULES
from addnorm.runs.files.speech_prompt import SPEECH_KEYS

FILE = GENERATION

Writes = Literal["continuation", "target", "transcript"]
"""The kind of output of a model, which decides on the default method of decoding."""

RULES = tuple(field.name for field in fields(RulesConfig))  # pyright: ignore[reportArgumentType]
"""Rules have the same names here and in transformers."""

BEAM = {
    "num_beams": "beams",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
}
SAMPLE = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Our names of the keys for beam search and sampling."""

HUGGING_FACE_SEARCH = BeamConfig(
    length_penalty=1.0,
    normaliser="length",
    early_stopping=False,
    width="constant",
    unfinished="ranked",
)
"""Beam search as transformers does it by default, but for the number of beams."""

NO_EFFECT: dict[str, object] = {
    "length_penalty": 1.0,
    "early_stopping": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": None,
}
"""Keys of one method, with the default in transformers: another value selects that method."""

_IDS = "bos_token_id eos_token_id pad_token_id decoder_start_token_id bad_words_ids"
_IDLE = """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind
    cache_config cache_implementation compile_config disable_compile do_sample is_assistant
    low_memory max_cache_len max_matching_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule output_attentions output_hidden_states output_logits
    output_scores prefill_chunk_size remove_invalid_values return_dict_in_generate
    target_lookbehind transformers_version use_cache
"""
KNOWN = {*RULES, *BEAM, *SAMPLE, *_IDS.split(), *_IDLE.split()}
"""Keys that are supported here or by the tokenizer, or that do not affect the generated text."""

NEUTRAL: dict[str, object] = {
    "constraints": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_decoder_ids": None,
    "guidance_scale": 1.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": None,
    "sequence_bias": None,
    "stop_strings": None,
    "typical_p": 1.0,
}
"""Unsupported keys, with the value at which they have no effect."""


def decoding_of(folder: Path, writes: Writes, vocab_size: int) -> dict[str, Any] | None:
    """The decoding settings of a folder, as a recipe table; None if there are none.

    The keys are those of `generation_file`, in older folders of `config.json`. If beam search or
    sampling is configured, missing keys have the defaults of `transformers`; if neither is,
    language models sample, translation models search with 5 beams as `transformers` does, and
    transcription is greedy.
    Unsupported keys, and tokens outside the vocabulary that is written, are listed in one
    `IgnoredSettings` warning. Raises `InputError` naming a
    key with an invalid value.
    """
    file = generation_file(folder)
    settings = Settings.of(folder, file)
    tree = {key: value for key, value in settings.tree.items() if value is not None}
    if file != FILE:
        tree = {key: value for key, value in tree.items() if key in KNOWN or key in NEUTRAL}
    config = _decoding(tree, settings.where, writes)
    speech = SPEECH_KEYS if writes == "transcript" else ()
    left = [key for key, value in tree.items() if key not in speech and _is_left(key, value)]
    left += _of_other_methods(tree, config)
    left += [
        f"{key} = {tree[key]} (the vocabulary has {vocab_size:,})"
        for key in ("eos_token_id", "bad_words_ids")
        if any(i >= vocab_size for i in _ids(tree.get(key)))
    ]
    if left:
        warn(f"{settings.where}: not followed: {', '.join(left)}", IgnoredSettings, stacklevel=2)
    return None if config is None else json.loads(json.dumps(asdict(config)))


def keys_of(decoding: DecodingConfig, writes: Writes) -> Any:
    """The keys of this decoding, as `decoding_of` reads them; None if keys cannot express it.

    A seed has no key: it is as good as any other.
    """
    if isinstance(decoding, SampleConfig):
        decoding = replace(decoding, seed=0)
    usual = RulesConfig()
    rules = {key: getattr(decoding.rules, key) for key in RULES}
    rules = {key: value for key, value in rules.items() if value != getattr(usual, key)}
    for keys in (_own_keys(decoding), {}):
        tree = json.loads(json.dumps(rules | keys))
        if _decoding(tree, FILE, writes) == decoding:
            return tree
    return None


def _own_keys(decoding: DecodingConfig) -> dict[str, Any]:
    match decoding:
        case BeamConfig():
            return {theirs: getattr(decoding, ours) for theirs, ours in BEAM.items()}
        case SampleConfig():
            keys = {theirs: getattr(decoding, ours) for theirs, ours in SAMPLE.items()}
            return {"do_sample": True, **keys, "top_k": decoding.top_k or 0}
        case _:
            return {"num_beams": 1, "do_sample": False}


def _is_left(key: str, value: Any) -> bool:
    if key == "bad_words_ids":  # single tokens are handled by the tokenizer, words are not
        words: list[Any] = value if isinstance(value, list) else [value]
        return any(
            not isinstance(word, list) or len(word) != 1 or type(word[0]) is not int
            for word in words
        )
    if key in KNOWN or value is False or value in ("", [], {}):
        return False
    return key not in NEUTRAL or value != NEUTRAL[key]


def _ids(value: Any) -> Iterator[int]:
    """All token ids in a value, however deep its lists."""
    if isinstance(value, list):
        for inner in cast(list[Any], value):
            yield from _ids(inner)
    elif type(value) is int:
        yield value


def _of_other_methods(tree: Mapping[str, Any], config: DecodingConfig | None) -> list[str]:
    """The keys of sampling or beam search that the chosen decoding method ignores."""
    match config:
        case BeamConfig():
            why, others = "with num_beams, which searches", [*SAMPLE, "do_sample"]
        case SampleConfig():
            why, others = "which is of beam search", [*BEAM]
        case GreedyConfig():
            why, others = "without do_sample or num_beams", [*SAMPLE, *BEAM]
        case _:
            why, others = "which is of beam search", [*BEAM]
    usual = NO_EFFECT | {"do_sample": False, "num_beams": 1}
    return [f"{key} ({why})" for key in others if key in tree and tree[key] != usual[key]]


def _decoding(tree: Mapping[str, Any], where: str, writes: Writes) -> DecodingConfig | None:
    built_rules = _built(RulesConfig, {key: key for key in RULES}, _with_one_end(tree), {}, where)
    rules = asdict(built_rules)
    for key, kind in (("num_beams", int), ("do_sample", bool)):
        if key in tree and type(tree[key]) is not kind:
            raise InputError(f"{where}: {key} = {tree[key]!r} must be of type {kind.__name__}")
    beams = tree.get("num_beams", 1)
    sampled = tree.get(
        "do_sample", writes == "continuation" and "num_beams" not in tree and _draws(tree)
    )
    if beams != 1:
        return _built(BeamConfig, BEAM, tree, asdict(HUGGING_FACE_SEARCH) | {"rules": rules}, where)
    if sampled:
        keys = {key: value for key, value in tree.items() if (key, value) != ("top_k", 0)}
        usual = {"top_k": None if "top_k" in tree else 50, "rules": rules}
        return _built(SampleConfig, SAMPLE, keys, usual, where)
    if "num_beams" in tree or "do_sample" in tree or writes == "transcript":
        return GreedyConfig(rules=built_rules)
    if writes == "target":
        return replace(HUGGING_FACE_SEARCH, rules=built_rules)
    return None if built_rules == NO_RULES else SampleConfig(rules=built_rules)


def _draws(tree: Mapping[str, Any]) -> bool:
    """Whether any sampling key has a value other than the neutral one."""
    return any(key in tree and tree[key] != NO_EFFECT[key] for key in SAMPLE)


def _with_one_end(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys, with a one-element list of forced end tokens replaced by its element."""
    match tree.get("forced_eos_token_id"):
        case [end]:
            return {**tree, "forced_eos_token_id": end}
        case _:
            return tree


def _built(
    config: Any, names: Mapping[str, str], tree: Mapping[str, Any], more: dict[str, Any], where: str
) -> Any:
    """Build the configuration from the keys; `more` holds the defaults."""
    given = {ours: tree[theirs] for theirs, ours in names.items() if theirs in tree}
    try:  # strictly by type, as JSON has them: "5" is not a number, and 1 is not true
        return TypeAdapter(config).validate_json(json.dumps({**more, **given}), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        theirs = {ours: theirs for theirs, ours in names.items()}
        key = theirs.get(str(first["loc"][0]) if first["loc"] else "", "")
        raise InputError(f"{where}: {key} = {tree.get(key)!r}: {problem_of(first)}") from error
