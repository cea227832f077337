"""GTE and Jina embeddings v3 with code of their own, against the models of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.parity.encoders import output
from tests.parity.families import changed, made, padded, prompts
from tests.parity.test_rotary_bert import SMALL, config
from torch.testing import assert_close

from addnorm.convert.folder import load, save
from addnorm.errors import IgnoredSettings, InputError
from addnorm.nn.positions import LinearScaling, RotaryConfig

pytestmark = pytest.mark.parity

GTE_KEYS: dict[str, Any] = {
    "architectures": ["NewModel", "NewForTokenClassification"],
    "auto_map": {"AutoModel": "someone/new-impl--modeling.NewModel"},
    "model_type": "new",
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20.0,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
"""The keys of a folder of GTE with code of its own."""


def test_gte_with_code_of_its_own(tmp_path: Path) -> None:
    """The frequencies are `1 / (20 · 8)^(i / 4) / 8^(1 / 4)`, for heads of 8 features."""
    linear = {"rope_type": "linear", "factor": 8 ** (2 / 8), "rope_theta": 160.0}
    theirs, _ = made("GteModel", config("Gte", rope_parameters=linear), tmp_path)
    changed(tmp_path, GTE_KEYS, without=("rope_parameters",))
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"classifier.weight": torch.ones(1, 16)}, tmp_path / "model.safetensors")
    ids, valid = padded(prompts(64), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    with pytest.warns(IgnoredSettings, match=r"classifier\.\* are left aside"):
        loaded = load(tmp_path, dtype=torch.float64)
    position = loaded.spec.model.position
    assert isinstance(position, RotaryConfig)
    assert isinstance(position.scaling, LinearScaling)
    expected = [(20 * 8) ** (-i / 4) / 8 ** (1 / 4) for i in range(4)]
    assert_close(position.scaling.frequencies(8, position.theta).tolist(), expected)
    assert_close(loaded.model(ids, valid)[valid], output(theirs, batch, "last_hidden_state")[valid],
                 rtol=0, atol=1e-10)  # fmt: skip
    assert save(tmp_path / "saved", loaded.spec, loaded.model, None) == "gte"
    assert load(tmp_path / "saved").spec == loaded.spec


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            'type = .linear. is not supported, only "ntk"',
        ),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}}, "mixed_b = 0.5"),
        ({"logn_attention_scale": True}, "logn_attention_scale = True"),
        ({"pack_qkv": False}, "pack_qkv = False"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type = 'rms_norm'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type = 'absolute'"),
    ],
)
def test_other_keys_of_that_code_are_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    tree = {**SMALL, **GTE_KEYS, **changes}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match=match):
        load(tmp_path)


JINA_KEYS: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"],
    "auto_map": {"AutoModel": "someone/xlm-roberta-flash--modeling_lora.XLMRobertaLoRA"},
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 200.0,
    "load_trained_adapters": True,
    "lora_adaptations": ["retrieval.query", "classification"],
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 2,
    "matryoshka_dimensions": [8, 16],
    "task_instructions": {"retrieval.query": "Represent the query: "},
    "truncate_dim": None,
    "use_flash_attn": True,
}
"""The keys of the folder of Jina v3 with code of its own."""


def with_adapters(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights as the hidden originals of adapted ones, with adapters that change them."""
    stored: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if weight.ndim == 1:
            stored[name] = weight
            continue
        inner = f"{module}.parametrizations.weight"
        stored[f"{inner}.original"] = weight
        stored[f"{inner}.0.lora_A"] = torch.ones(2, 2, weight.shape[1])
        stored[f"{inner}.0.lora_B"] = torch.ones(2, weight.shape[0], 2)
    return {f"roberta.{name}": weight for name, weight in stored.items()}


def test_jina_with_code_of_its_own(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 200.0}
    theirs, _ = made("JinaEmbeddingsV3Model", config("JinaEmbeddingsV3", rope_parameters=rope),
                     tmp_path)  # fmt: skip
    changed(tmp_path, JINA_KEYS, without=("rope_parameters",))
    weights = load_file(tmp_path / "model.safetensors")
    save_file(with_adapters(weights), tmp_path / "model.safetensors")
    ids, valid = padded(prompts(64), left=False, pad=1)
    batch = {"input_ids": ids, "attention_mask": valid.long()}
    with pytest.warns(IgnoredSettings, match=r"retrieval\.query, classification\) are left aside"):
        loaded = load(tmp_path, dtype=torch.float64)
    assert_close(loaded.model(ids, valid), output(theirs, batch, "pooler_output"),
                 rtol=0, atol=1e-10)  # fmt: skip
    assert save(tmp_path / "saved", loaded.spec, loaded.model, None) == "jina_embeddings_v3"
    assert load(tmp_path / "saved").spec == loaded.spec


def test_xlm_roberta_itself_is_as_before(tmp_path: Path) -> None:
    tree = {**SMALL, "model_type": "xlm-roberta", "position_embedding_type": "relative_key"}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match="position_embedding_type = 'relative_key'"):
        load(tmp_path)
