"""Mixtures of experts against transformers: beam search, and experts of four bits."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import check_greedy_and_beam, made, small_config
from tests.parity.test_families import FAMILIES

from addnorm.convert.core.stored_forms import mxfp4
from addnorm.convert.folder import load, save
from addnorm.errors import IgnoredSettings, InputError

pytestmark = pytest.mark.parity

EXPERTS = "model.layers.0.mlp.experts."


def gpt_oss(**changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "hidden_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 3,
        "swiglu_limit": 0.5,
    }
    return small_config("GptOssConfig", **sizes | changes)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt_oss", "qwen2_moe", "glm4_moe", "deepseek_v2", "deepseek_v3"])
def test_ragged_batches_are_written_alike_by_beam_search(name: str, tmp_path: Path) -> None:
    stem, draw = FAMILIES[name]
    config = getattr(transformers, f"{stem}Config")(**draw(random.Random(name)))
    theirs, loaded = made(f"{stem}ForCausalLM", config, tmp_path)
    theirs.set_experts_implementation("eager")  # the grouped one has no float64
    check_greedy_and_beam(theirs, loaded, config.vocab_size, 8)


def in_four_bits(folder: Path) -> dict[str, torch.Tensor]:
    """Store the experts of a folder in MXFP4, as they are published; return them as numbers."""
    tensors, numbers = load_file(folder / "model.safetensors"), dict[str, torch.Tensor]()
    for name in [key for key in tensors if key.endswith(("gate_up_proj", "down_proj"))]:
        n, rows, columns = tensors.pop(name).shape
        blocks = torch.randint(256, (n, columns, rows // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 126, (n, columns, rows // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        numbers[name] = mxfp4(blocks, scales)
    save_file({name: w.contiguous() for name, w in tensors.items()}, folder / "model.safetensors")
    tree = json.loads((folder / "config.json").read_text())
    tree["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(tree))
    return numbers


def test_experts_of_four_bits_are_read_as_numbers(tmp_path: Path) -> None:
    theirs, _ = made("GptOssForCausalLM", gpt_oss(num_hidden_layers=1), tmp_path)
    theirs.set_experts_implementation("eager")
    numbers = in_four_bits(tmp_path)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if name in numbers:
                weight.copy_(numbers[name])
    with pytest.warns(IgnoredSettings, match="2 weights are stored as mxfp4"):
        model = load(tmp_path, dtype=torch.float64).model
    ids = torch.randint(64, (2, 7))
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-5)


def test_the_bias_that_chooses_experts_is_read_and_written(tmp_path: Path) -> None:
    """It is a buffer; in a model of bfloat16 it stays in float32, and so does no other tensor."""
    tree = FAMILIES["deepseek_v3"][1](random.Random(5)) | {"first_k_dense_replace": 0}
    config = transformers.DeepseekV3Config(**tree)
    theirs, _ = made("DeepseekV3ForCausalLM", config, tmp_path)
    gates = {name: b for name, b in theirs.named_buffers() if name.endswith("correction_bias")}
    assert gates
    for bias in gates.values():
        bias.copy_(torch.randn(bias.shape))
    theirs.bfloat16()
    for name, module in theirs.named_modules():
        if name.endswith("mlp.gate"):
            module.e_score_correction_bias = gates[f"{name}.e_score_correction_bias"].float()
    theirs.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=torch.bfloat16)
    assert {w.dtype for w in loaded.model.parameters()} == {torch.bfloat16}
    save(tmp_path / "saved", loaded.spec, loaded.model, None, model_type="deepseek_v3")
    tensors = load_file(tmp_path / "saved" / "model.safetensors")
    for name, bias in gates.items():
        assert torch.equal(tensors[name], bias.float())
    assert {w.dtype for name, w in tensors.items() if name not in gates} == {torch.bfloat16}


def test_missing_scales_are_named(tmp_path: Path) -> None:
    made("GptOssForCausalLM", gpt_oss(num_hidden_layers=1), tmp_path)
    in_four_bits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{EXPERTS}down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=f"{EXPERTS}down_proj_scales is missing"):
        load(tmp_path)


def test_an_unknown_form_is_named_with_those_that_are_read(tmp_path: Path) -> None:
    made("GptOssForCausalLM", gpt_oss(num_hidden_layers=1), tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    tree["quantization_config"] = {"quant_method": "bitsandbytes", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match=r"'bitsandbytes' is not supported.* mxfp4"):
        load(tmp_path)
