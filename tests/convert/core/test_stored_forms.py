"""Weights of fewer bits: equal bit for bit to the reference, and every flaw is named."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from addnorm.convert.core.settings import Settings
from addnorm.convert.core.stored_forms import block_fp8, check_form, dequantised, mxfp4
from addnorm.convert.weights.files import Weights
from addnorm.errors import IgnoredSettings, InputError

Tensors = dict[str, Tensor]

MXFP4: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}


def a_row_by_hand() -> tuple[Tensor, Tensor]:
    """One number of each of the 16 codes, then zeros; the scale is 2."""
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[..., :8] = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    return blocks, torch.full((1, 1, 1), 128, dtype=torch.uint8)


def test_mxfp4_is_a_row_by_hand() -> None:
    sizes = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    row = mxfp4(*a_row_by_hand())[0, :, 0]
    assert row.tolist() == [*sizes, *(-size for size in sizes), *[0.0] * 16]
    assert row.dtype == torch.bfloat16


def test_mxfp4_equals_transformers_bit_for_bit() -> None:
    reference = pytest.importorskip("transformers.integrations.mxfp4")
    blocks = torch.randint(256, (3, 5, 4, 16), dtype=torch.uint8)
    scales = torch.randint(256, (3, 5, 4), dtype=torch.uint8)
    expected = reference.convert_moe_packed_tensors(blocks, scales)
    ours = mxfp4(blocks, scales)
    assert torch.equal(ours.contiguous().view(torch.int16), expected.view(torch.int16))


def test_fp8_equals_transformers_bit_for_bit() -> None:
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    numbers = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3) + 0.01
    expected = module.Fp8Dequantize(None)._dequantize_one(numbers, scales, torch.bfloat16)
    assert torch.equal(block_fp8(numbers, scales), expected)


def test_fp8_blocks_at_the_end_are_smaller() -> None:
    numbers = torch.ones(130, 5).to(torch.float8_e4m3fn)
    weight = block_fp8(numbers, torch.tensor([[2.0], [0.5]]))
    assert weight.shape == (130, 5)
    assert weight[127:129].tolist() == [[2.0] * 5, [0.5] * 5]


def opened(folder: Path, tensors: Tensors, form: dict[str, Any]) -> Weights:
    """The weights of a folder with these tensors in a form."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": form}))
    return dequantised(Weights.open(folder), Settings.of(folder))


def of_mxfp4() -> Tensors:
    blocks, scales = a_row_by_hand()
    return {"w_blocks": blocks, "w_scales": scales, "w_bias": torch.ones(3)}


def of_fp8() -> Tensors:
    numbers = torch.ones(130, 5).to(torch.float8_e4m3fn)
    return {"a.weight": numbers, "a.weight_scale_inv": torch.ones(2, 1), "b.weight": torch.ones(2)}


def test_a_warning_says_that_weights_are_dequantised(tmp_path: Path) -> None:
    with pytest.warns(IgnoredSettings, match="1 weights are stored as mxfp4"):
        weights = opened(tmp_path, of_mxfp4(), MXFP4)
    assert {*weights} == {"w", "w_bias"}
    assert weights.shape("w") == tuple(weights["w"].shape) == (1, 32, 1)
    other_words = {**FP8, "fmt": "float8_e4m3fn", "scale_fmt": "ue8m0"}  # as DeepSeek-V3.1 has
    for form in (FP8, other_words):
        with pytest.warns(IgnoredSettings, match="1 weights are stored as fp8"):
            weights = opened(tmp_path, of_fp8(), form)
    assert weights["a.weight"].dtype == weights.dtype("a.weight") == torch.bfloat16


FLAWS: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "no scales": (
        {"w_blocks": of_mxfp4()["w_blocks"]},
        MXFP4,
        "w_blocks is uint8 without scales: w_scales is missing",
    ),
    "scales alone": ({"w_scales": of_mxfp4()["w_scales"]}, MXFP4, "scales without w_blocks"),
    "blocks of another size": (
        {**of_mxfp4(), "w_blocks": torch.zeros(1, 1, 1, 8, dtype=torch.uint8)},
        MXFP4,
        r"w_blocks has shape \(1, 1, 1, 8\) of uint8, expected \(1, 1, 1, 16\)",
    ),
    "scales of another size": (
        {**of_mxfp4(), "w_scales": torch.zeros(1, 1, 2, dtype=torch.uint8)},
        MXFP4,
        r"w_scales has shape \(1, 1, 2\) of uint8, expected \(1, 1, 1\)",
    ),
    "no scales of fp8": (
        {"a.weight": of_fp8()["a.weight"]},
        FP8,
        "a.weight is float8_e4m3fn without scales: a.weight_scale_inv is missing",
    ),
    "too few scales": (
        {**of_fp8(), "a.weight_scale_inv": torch.ones(1, 1)},
        FP8,
        r"expected \(2, 1\)",
    ),
    "a known word": (of_fp8(), {"quant_method": "fp9"}, "Did you mean 'fp8'"),
    "another block": (
        of_fp8(),
        {**FP8, "weight_block_size": [64, 64]},
        r"only \[128, 128\], not \[64, 64\]",
    ),
}


@pytest.mark.parametrize(("tensors", "form", "expected"), FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_named(
    tensors: Tensors, form: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=expected):
        opened(tmp_path, tensors, form)


def test_without_the_key_nothing_is_changed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = Weights({})
        assert dequantised(weights, Settings({})) is weights
        check_form(Settings({}))


def test_a_form_that_no_weight_has_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    settings = Settings({"quantization_config": {"quant_method": "mxfp4"}})
    with pytest.warns(IgnoredSettings, match="names mxfp4, and no weight is stored so"):
        assert [*dequantised(Weights.open(tmp_path), settings)] == ["a"]
