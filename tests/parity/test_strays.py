"""A stray key or tensor in the folder of any family is refused or named, never ignored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.parity.families import made
from tests.parity.test_linear_hybrids import both_kinds
from tests.parity.test_numeric_keys import ALIKE, NAMES, tree_of
from tests.parity.test_own_code import GTE_KEYS, JINA_KEYS
from tests.parity.test_rotary_bert import SMALL

from addnorm.convert.core.family import Family
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import check_weights, load, read_config
from addnorm.convert.registry import family_of
from addnorm.errors import IgnoredSettings, InputError

pytestmark = pytest.mark.parity

Tree = dict[str, Any]

TEXT_OF = {
    "gemma3": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "mistral3": "mistral",
    "llava": "llama",
    "smolvlm": "llama",
    "idefics3": "llama",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "Qwen3ForCausalLM",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
}
"""The families of models of images, and the model of text in each."""

SAME = {"mt5": "t5", "camembert": "roberta", "xlm-roberta": "roberta"}
"""The families with the keys of another."""

OWN_CODE = {"new": {**SMALL, **GTE_KEYS}, "xlm-roberta with code": {**SMALL, **JINA_KEYS}}
"""The folders with code of their own, by `model_type`."""

EVERY = [*NAMES, *SAME, *OWN_CODE, *(f"{name} with images" for name in TEXT_OF)]

UNREAD = (
    *("id2label", "label2id", "task_specific_params", "vision_config"),
    *("auto_map", "task_instructions"),
)
"""Tables of names, of the tasks of other libraries, and of the half that a warning names."""


def whole_tree(name: str) -> Tree:
    """A small valid `config.json` of any family."""
    half = name.removesuffix(" with images")
    if half != name:
        text = tree_of(TEXT_OF[half])
        return {"model_type": half, "text_config": text, "vision_config": {"depth": 1}}
    if name in OWN_CODE:
        return OWN_CODE[name]
    if name in SAME:
        return tree_of(SAME[name]) | {"model_type": name, "architectures": None}
    return tree_of(name)


def with_stray_key(tree: Tree, above: str = "") -> Iterator[tuple[str, Tree]]:
    """The tree with a stray key in each of its tables in turn."""
    yield f"{above}stray", {**tree, "stray": 3}
    for key, inner in tree.items():
        if isinstance(inner, dict) and key not in UNREAD:
            for place, changed in with_stray_key(inner, f"{above}{key}."):
                yield place, {**tree, key: changed}


def stray_tensors(family: Family) -> set[str]:
    """Names of tensors that no model of a family has, in each module of it and beside them."""
    modules = {name.replace("*", "0") for name in family.names.values()}
    return {f"{module}.stray" for module in modules} | {
        "stray.weight",
        f"{family.prefix}stray.weight",
        f"{family.prefix}layers.0.stray.weight",
    }


def test_every_family_is_walked() -> None:
    """`test_numeric_keys` has all others."""
    assert {*SAME, *TEXT_OF, "new"} == ALIKE


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*only the text half:addnorm.errors.IgnoredSettings")
@pytest.mark.filterwarnings("ignore:.*lora_adaptations:addnorm.errors.IgnoredSettings")
@pytest.mark.parametrize("name", EVERY)
def test_a_stray_key_or_tensor_is_refused(name: str) -> None:
    whole = whole_tree(name)
    for place, tree in with_stray_key(whole):
        settings = Settings(tree)
        with pytest.raises(InputError, match="stray"):
            raise AssertionError(place, read_config(family_of(settings), settings))
    family = family_of(Settings(whole))
    assert not {tensor for tensor in stray_tensors(family) if family.ignores(tensor)}


OF_A_SPECTROGRAM: Tree = {
    "hidden_dropout_prob": 0.1,
    "feat_extract_dropout": 0.1,
    "mask_time_min_space": 1,
    "mask_time_other": 0.1,
    "mask_time_selection": "static",
    "mask_channel_length": 10,
    "mask_channel_selection": "static",
}
PUBLISHED: dict[str, Tree] = {
    "llama": {"is_llama_config": True, "transformers.js_config": {"dtype": "q4"}},
    "mistral": {"unsloth_fixed": True, "_attn_implementation_autoset": True},
    "smollm3": {"max_window_layers": 28},
    "qwen3_moe": {"max_window_layers": 48},
    "cohere2": {
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_parallel_block": True,
    },
    "starcoder2": {"activation_function": "gelu", "mlp_type": "default", "norm_type": "layer_norm"},
    "mpt": {"tokenizer_name": "EleutherAI/gpt-neox-20b"},
    "roberta": {"language": "english", "name": "Roberta"},
    "umt5": {"scalable_attention": True},
    "falcon": {"ff_factor": 4},
    "llava with images": {"ignore_index": -100, "vocab_size": 32064},
    "smolvlm with images": {"pixel_shuffle_factor": 4, "perceiver_config": {"model_type": "x"}},
    "eurobert": {"bos_token": "<s>", "mask_token": "<mask>", "clf_pooling": "late"},
    "MarianMTModel": {"extra_pos_embeddings": 58101},
    "nemotron": {"hidden_dropout": 0.1, "kv_channels": 128},
    "wav2vec2": OF_A_SPECTROGRAM,
    "hubert": OF_A_SPECTROGRAM,
}
"""Keys of well-known folders on which nothing depends."""


@pytest.mark.filterwarnings("ignore:.*only the text half:addnorm.errors.IgnoredSettings")
@pytest.mark.filterwarnings("ignore:.*lora_adaptations:addnorm.errors.IgnoredSettings")
@pytest.mark.parametrize("name", PUBLISHED)
def test_keys_of_published_folders_change_nothing(name: str) -> None:
    plain, more = (Settings(whole_tree(name) | extra) for extra in ({}, PUBLISHED[name]))
    assert read_config(family_of(more), more) == read_config(family_of(plain), plain)


def test_a_stray_tensor_is_refused_and_a_module_left_aside_is_named(tmp_path: Path) -> None:
    made("Qwen3_5ForCausalLM", both_kinds("qwen3_5"), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    ahead = {"mtp.fc.weight": torch.ones(2, 2), "mtp.layers.0.norm.weight": torch.ones(2)}
    save_file(weights | ahead, file)
    for read in (load, check_weights):
        with pytest.warns(
            IgnoredSettings, match=rf"{tmp_path}: the weights of mtp\.\* are left"
        ) as w:
            read(tmp_path)
        assert len(w) == 1, "one warning names all"
    save_file(weights | {"mtp": torch.ones(2)}, file)
    with pytest.raises(InputError, match="unexpected mtp"):
        load(tmp_path)
