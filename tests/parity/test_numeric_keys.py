"""Every numeric key of every family with a wrong number: one message with the file and the key."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.parity.test_clip import CLASSES as PAIRS
from tests.parity.test_dino import MODELS as PICTURES
from tests.parity.test_encoders import ENCODERS
from tests.parity.test_families import FAMILIES, random_settings
from tests.parity.test_linear_hybrids import FAMILIES as HYBRIDS
from tests.parity.test_linear_hybrids import random_settings as hybrid_settings
from tests.parity.test_wav2vec2 import STEMS as SOUNDS
from tests.parity.test_wav2vec2 import drawn as drawn_sound

from addnorm.convert.core.family import ModelSpec, build_untrained
from addnorm.convert.core.settings import INERT, Settings
from addnorm.convert.folder import read_config
from addnorm.convert.registry import families, family_of
from addnorm.errors import InputError
from addnorm.nn.init import without_values

pytestmark = pytest.mark.parity

Tree = dict[str, Any]
Place = tuple[str, ...]

WHERE = "folder/config.json"
WRONG = (0, -1, math.nan, 1e30, 2**40)
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
GEMMA = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
GEMMA4 = {
    **GEMMA,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "global_head_dim": 16,
    "num_kv_shared_layers": 1,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 64,
}
TRANSLATOR = {
    "vocab_size": 64,
    "d_model": 16,
    **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
       {"layers": 1, "attention_heads": 2, "ffn_dim": 20}.items()},
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
}  # fmt: skip
OTHERS: dict[str, tuple[str, Tree]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL),
    "GemmaForCausalLM": ("GemmaConfig", GEMMA),
    "Gemma2ForCausalLM": ("Gemma2Config", GEMMA),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", GEMMA),
    "Gemma4ForCausalLM": ("Gemma4TextConfig", GEMMA4),
    "Qwen3ForCausalLM": ("Qwen3Config", GEMMA),
    "OPTForCausalLM": ("OPTConfig", {"ffn_dim": 24, "hidden_size": 16, "num_attention_heads": 2}),
    "ViTForImageClassification": ("ViTConfig", {"image_size": 8, "patch_size": 4}),
    "ModernBertForMaskedLM": ("ModernBertConfig", SMALL),
    "BartForConditionalGeneration": ("BartConfig", TRANSLATOR),
    "MarianMTModel": ("MarianConfig", TRANSLATOR),
    "WhisperForConditionalGeneration": ("WhisperConfig", {**TRANSLATOR, "num_mel_bins": 8}),
}
"""The families without a random configuration, by their class."""

ALIKE = {"mt5", "camembert", "xlm-roberta", "new"} | {
    *(
        "gemma3",
        "gemma4",
        "mistral3",
        "llava",
        "smolvlm",
        "idefics3",
        "qwen2_5_vl",
        "qwen3_vl",
    ),  # text alone
    *("qwen3_5", "qwen3_5_moe"),
}
"""The families whose keys are those of another."""


def tree_of(name: str) -> Tree:
    """A small valid `config.json`."""
    if name in FAMILIES:
        return random_settings(name, 0).tree
    if name in ENCODERS:
        encoder = ENCODERS[name]
        names = {"architectures": [f"{encoder.stem}ForMaskedLM"]}
        return encoder.config(0, "Model").to_dict() | names
    if name in HYBRIDS:
        return hybrid_settings(name, 0).tree
    if name in PICTURES:
        names = {"architectures": [f"{PICTURES[name].stem}Model"]}
        return PICTURES[name].config(0, "Model").to_dict() | names
    if name in SOUNDS:
        names = {"architectures": [f"{SOUNDS[name]}Model"]}
        return drawn_sound(name, "Model", 0).to_dict() | names
    if name in PAIRS:
        return PAIRS[name](random.Random(name)).to_dict() | {"architectures": [name]}
    kind, sizes = OTHERS[name]
    return getattr(transformers, kind)(**sizes).to_dict() | {"architectures": [name]}


NAMES = [*FAMILIES, *ENCODERS, *HYBRIDS, *PICTURES, *PAIRS, *SOUNDS, *OTHERS]


def places(tree: Tree, above: Place = ()) -> Iterator[Place]:
    """The keys with a number or with numbers, also those of inner tables."""
    for key, value in tree.items():
        numbers = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            yield from places(value, (*above, key))
        elif numbers and all(type(number) in (int, float) for number in numbers):
            yield *above, key


def changed(tree: Tree, place: Place, number: float) -> Tree:
    """The tree with another number at a place."""
    key, *rest = place
    if rest:
        return tree | {key: changed(tree[key], tuple(rest), number)}
    return tree | {key: [number] * len(tree[key]) if isinstance(tree[key], list) else number}


def read(tree: Tree) -> tuple[ModelSpec | None, str]:
    """What a `config.json` stands for, or None and the message of its refusal."""
    settings = Settings(tree, WHERE)
    try:
        spec = read_config(family_of(settings), settings)
        with without_values():
            build_untrained(spec)
    except InputError as error:
        return None, str(error)
    return spec, ""


def test_all_families_are_walked() -> None:
    assert {tree_of(name)["model_type"] for name in NAMES} >= {*families()} - ALIKE


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_is_named_with_its_key(name: str) -> None:
    tree = tree_of(name)
    usual, _ = read(tree)
    for place in places(tree):
        if place[0] in INERT:
            continue
        for number in WRONG:
            spec, message = read(changed(tree, place, number))
            if spec is None:
                assert WHERE in message, (place, number, message)
                assert place[-1] in message, (place, number, message)
            else:  # a rate of zero, a switch, or a key that a model does not use
                assert number in (0, -1) or spec == usual, (place, number)


def test_values_outside_of_json_are_named_with_their_key(tmp_path: Path) -> None:
    for text in ("NaN", "-Infinity", "1e999", "[1.0, NaN]"):
        (tmp_path / "config.json").write_text(f'{{"model_type": "bert", "layer_norm_eps": {text}}}')
        with pytest.raises(InputError, match=r"'layer_norm_eps'.*is not"):
            Settings.of(tmp_path)
