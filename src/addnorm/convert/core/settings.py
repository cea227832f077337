"""Reading a Hugging Face `config.json` key by key, so that no setting is silently ignored."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from addnorm.convert.weights.mapped import read_object
from addnorm.errors import InputError, choices, some_of

Json = dict[str, Any]
T = TypeVar("T", bool, int, float, str)
V = TypeVar("V")

MAX_BYTES = 10 * 2**20
"""The maximum size of a configuration file."""

LIMITS = {"vocab_size": 2**24, "layers": 512, "width": 2**20}
"""Limits of sizes in a configuration; larger values are refused before building anything."""

LARGEST: Mapping[type, float] = {int: 2**31, float: 1e12}
"""The largest number under any other key: no setting of a model comes near it."""

# Keys about the origin of the folder and running it in transformers, then about training and
# generation, then of the tokenizer and of other tools.
_INERT = """
    _attn_implementation _name_or_path _num_labels add_cross_attention architectures
    attn_implementation auto_map cache_implementation chunk_size_feed_forward dtype
    experts_implementation gradient_checkpointing is_decoder is_encoder_decoder model_type
    name_or_path output_attentions output_hidden_states output_past output_scores pretraining_tp
    return_dict return_dict_in_generate tf_legacy_loss tie_encoder_decoder tie_word_embeddings
    torch_dtype torchscript transformers_version use_bfloat16 use_cache

    bad_words_ids begin_suppress_tokens bos_token_id cls_token_id constraints
    decoder_start_token_id diversity_penalty do_sample dola_layers early_stopping
    encoder_no_repeat_ngram_size encoder_repetition_penalty eos_token_id epsilon_cutoff
    eta_cutoff exponential_decay_length_penalty finetuning_task force_words_ids
    forced_bos_token_id forced_decoder_ids forced_eos_token_id guidance_scale id2label init_std
    initializer_factor initializer_range label2id length_penalty mask_token_id max_length
    max_new_tokens min_length min_new_tokens min_p n_ctx no_repeat_ngram_size num_beam_groups
    num_beams num_labels num_return_sequences pad_token_id penalty_alpha prefix problem_type
    remove_invalid_values renormalize_logits repetition_penalty
    sbert_ce_default_activation_function sentence_transformers sep_token_id sequence_bias
    stop_strings suppress_tokens task_specific_params temperature tokenizer_class top_k top_p
    typical_p unk_token_id

    _attn_implementation_autoset _flash_attn_2_enabled _from_model_config bos_token eos_token
    is_llama_config language mask_token max_sequence_length model_max_length name
    neftune_noise_alpha pad_token tokenizer_name transformers.js_config unk_token unsloth_fixed
    unsloth_version
"""
INERT = frozenset(_INERT.split())
"""Keys that do not affect the function of a model."""


class Settings:
    """The keys of a `config.json`; `check_all_read` refuses keys that were never read."""

    def __init__(self, tree: Mapping[str, Any], where: str = "config.json") -> None:
        self.tree = dict(tree)
        self.where = where
        self._read: dict[str, None] = {}
        self.suspects: frozenset[str] = frozenset()
        """The keys of the setting that is being read, for the message of an error."""

    @classmethod
    def of(cls, folder: Path, name: str = "config.json") -> "Settings":
        """Read the settings from a file of a folder.

        Raises `InputError` if it is missing or not a JSON object.
        """
        return cls(read_object(folder / name, MAX_BYTES), str(folder / name))

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.tree.get(key) is not None

    def get(self, key: str, default: T) -> T:
        """The value of a key, of the type of `default`, which replaces a missing or null value."""
        self.ignore(key)
        value = self.tree.get(key)
        return default if value is None else self._typed(key, value, type(default))

    def required_int(self, *keys: str) -> int:
        """The positive integer under the first of these keys that is present."""
        self.ignore(*keys)
        for key in keys:
            if self.tree.get(key) is not None:
                return self._count(key, self._typed(key, self.tree[key], int))
        raise InputError(f"{self.where}: {' or '.join(keys)} is missing")

    def optional_int(self, *keys: str, missing: int | None = None) -> int | None:
        """The positive integer under the first of these keys that is present, or None.

        If no key is present at all (not even null), the result is `missing`.
        """
        self.ignore(*keys)
        if any(self.has(key) for key in keys):
            return self.required_int(*keys)
        return None if any(key in self.tree for key in keys) else missing

    def int_pair(self, key: str, default: int) -> tuple[int, int]:
        """Two positive integers: a list of two, or one number for both."""
        self.ignore(key)
        value: object = self.tree.get(key)
        pair = value if isinstance(value, list) else [default if value is None else value] * 2
        if len(pair) != 2:
            raise InputError(f"{self.where}: {key} = {value!r} must be a number, or a list of two")
        first, second = (self._count(key, self._typed(key, size, int)) for size in pair)
        return first, second

    def optional_float(self, key: str) -> float | None:
        """The number under a key, or None."""
        return self.get(key, 0.0) if self.has(key) else self._none(key)

    def table(self, key: str) -> "Settings | None":
        """The object under a key, or None."""
        self.ignore(key)
        tree = self.tree.get(key)
        if tree is None:
            return None
        if not isinstance(tree, dict):
            raise InputError(f"{self.where}: {key} = {tree!r} must be an object")
        return Settings(tree, f"{self.where}: {key}")

    def string_list(self, key: str) -> list[str] | None:
        """The list of strings under a key, or None."""
        self.ignore(key)
        value = self.tree.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{self.where}: {key} = {value!r} must be a list of names")
        return value

    def integers(self, key: str, n: int) -> list[int] | None:
        """The list of `n` integers under a key, or None."""
        self.ignore(key)
        value = self.tree.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n:
            raise InputError(f"{self.where}: {key} = {value!r} must be a list of {n} integers")
        return [self._typed(key, item, int) for item in value]

    def numbers(self, key: str) -> tuple[float, ...]:
        """The list of numbers under a key, which is required."""
        self.ignore(key)
        value = self.tree.get(key)
        if not isinstance(value, list) or not value:
            raise InputError(f"{self.where}: {key} = {value!r} must be a list of numbers")
        return tuple(self._typed(key, item, float) for item in value)

    def choose(self, key: str, values: Mapping[Any, V], default: Any) -> V:
        """Our value for the name given under a key. Raises `InputError` for an unknown name."""
        name = self.get(key, default)
        if name not in values:
            raise InputError(
                f"{self.where}: {key} = {name!r} is not supported.{choices(str(name), values)}"
            )
        return values[name]

    def ignore(self, *keys: str) -> None:
        """Count keys as read, because their values have no effect here."""
        self._read |= dict.fromkeys(keys)

    def expect(self, key: str, *valid: object) -> None:
        """Raise `InputError` unless the key has a valid value; the first is the default."""
        self.ignore(key)
        value = self.tree.get(key, valid[0])
        if value not in valid and value is not None:
            shown = " or ".join(json.dumps(option) for option in valid)
            raise InputError(f"{self.where}: {key} = {value!r} is not supported, only {shown}")

    def check_all_read(self) -> None:
        """Raise `InputError` naming a key with an effect that was never read."""
        for key, value in self.tree.items():
            if key in self._read or key in INERT or _is_off(value):
                continue
            raise InputError(
                f"{self.where}: {key} = {value!r} is not supported for this model type"
            )

    @contextmanager
    def reading(self) -> Generator[None]:
        """In this context, blame an error on the keys that are read."""
        read, self._read = self._read, {}
        try:
            yield
        finally:
            self.suspects = frozenset(self._read)
            self._read = read | self._read

    def key_of(self, value: object) -> str:
        """A message prefix `key = value: ` for the suspected keys, or an empty string.

        Of several it names those with this number, and all if none has it.
        """
        suspected = {
            key: self.tree[key] for key in self._read if key in self.suspects & {*self.tree}
        }
        numbers = [*_numbers(suspected)]
        same = [(key, number) for key, number in numbers if number == value]
        chosen = dict(same or numbers)
        return f"{some_of([f'{key} = {number!r}' for key, number in chosen.items()], 8)}: " * bool(
            chosen
        )

    def refuse(self, key: str, why: str) -> InputError:
        """The error for an unsupported value of a key."""
        return InputError(f"{self.where}: {key} = {self.tree.get(key)!r} is not supported: {why}")

    def _none(self, key: str) -> None:
        self.ignore(key)

    def _typed(self, key: str, value: object, kind: type[T]) -> T:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**53 else value
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InputError(f"{self.where}: {key} = {value!r} must be of type {kind.__name__}")
        if isinstance(value, int | float) and not abs(value) <= LARGEST.get(kind, 1):
            raise InputError(
                f"{self.where}: {key} = {value!r} must be a number within ±{LARGEST[kind]:g}"
            )
        return value

    def _count(self, key: str, count: int) -> int:
        kind = "vocab_size" if "vocab" in key else "layers" if "layer" in key else "width"
        if not 1 <= count <= LIMITS[kind]:
            raise InputError(f"{self.where}: {key} = {count:,} must be from 1 to {LIMITS[kind]:,}")
        return count


def _numbers(tree: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, float]]:
    """Yield all keys with numeric values, also in nested tables and lists."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{table}{key}.")
        elif isinstance(value, list):
            yield from _numbers({f"{key}[{i}]": number for i, number in enumerate(value)}, table)
        elif type(value) in (int, float):
            yield f"{table}{key}", value


def _is_off(value: object) -> bool:
    return value is None or value is False or value in ([], {}, "")


def labels_of(settings: Settings) -> tuple[str, ...]:
    """The names of the classes, ordered by id."""
    tree: Mapping[str, Any] = settings.tree.get("id2label") or {}
    try:
        numbered = sorted((int(number), str(name)) for number, name in tree.items())
    except (ValueError, AttributeError) as error:
        raise InputError(f"{settings.where}: id2label must number names") from error
    if [number for number, _ in numbered] != list(range(len(numbered))):
        raise InputError(f"{settings.where}: id2label must number its names from 0 without a gap")
    names = tuple(name for _, name in numbered)
    return names or tuple(f"LABEL_{i}" for i in range(settings.tree.get("num_labels") or 2))
