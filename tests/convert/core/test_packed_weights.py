"""GPTQ and AWQ: equal bit for bit to the loops of the formats, and every flaw is named."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from addnorm.convert.core.packed_weights import AWQ_ORDER, unpacked
from addnorm.convert.core.settings import Settings
from addnorm.convert.core.stored_forms import dequantised
from addnorm.convert.weights.files import Weights
from addnorm.errors import IgnoredSettings, InputError

Tensors = dict[str, Tensor]


def packed(integers: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Words of the integers of each row, written bit by bit with Python's integers."""
    n = 32 // bits
    rows: list[list[int]] = []
    for row in integers.tolist():
        words: list[int] = []
        for at in range(0, len(row), n):
            word = sum(
                (row[at + (order[i] if order else i)] & (2**bits - 1)) << bits * i for i in range(n)
            )
            words.append(word - 2**32 if word >= 2**31 else word)
        rows.append(words)
    return torch.tensor(rows, dtype=torch.int32)


def drawn(
    bits: int, group: int, n_in: int = 64, n_out: int = 16, *, shuffled: bool = False
) -> dict[str, Tensor]:
    """Random integers, zero points, scales and groups, and the weight by its definition."""
    size = n_in if group == -1 else group
    n_groups = -(-n_in // size)
    q = torch.randint(2**bits, (n_in, n_out))
    zeros = torch.randint(2**bits, (n_groups, n_out))
    zeros[0, :3] = torch.tensor([0, 1, 2**bits - 1])
    scales = (torch.randn(n_groups, n_out) / 50).half()
    groups = torch.arange(n_in) // size
    if shuffled:
        groups = groups[torch.randperm(n_in)]
    weight = torch.empty(n_out, n_in, dtype=torch.float16)
    for i in range(n_in):
        for o in range(n_out):
            g = int(groups[i])
            exact = float(scales[g, o]) * (int(q[i, o]) - int(zeros[g, o]))
            weight[o, i] = torch.tensor(exact, dtype=torch.float64).half()
    return {"q": q, "zeros": zeros, "scales": scales, "groups": groups, "weight": weight}


def of_gptq(case: dict[str, Tensor], bits: int, offset: int, *, ordered: bool = True) -> Tensors:
    tensors = {
        "a.qweight": packed(case["q"].T, bits).T.contiguous(),
        "a.qzeros": packed(case["zeros"] - offset, bits),
        "a.scales": case["scales"],
        "a.g_idx": case["groups"].int(),
        "a.bias": torch.ones(16),
    }
    return tensors if ordered else {k: v for k, v in tensors.items() if k != "a.g_idx"}


def of_awq(case: dict[str, Tensor]) -> Tensors:
    return {
        "a.qweight": packed(case["q"], 4, AWQ_ORDER),
        "a.qzeros": packed(case["zeros"], 4, AWQ_ORDER),
        "a.scales": case["scales"],
    }


def opened(folder: Path, tensors: Tensors, form: dict[str, Any]) -> Weights:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": form}))
    return dequantised(Weights.open(folder), Settings.of(folder))


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 16,
    "version": "gemm",
    "zero_point": True,
}


def test_a_word_by_hand() -> None:
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert unpacked(word, 4).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert unpacked(word, 4, AWQ_ORDER).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert unpacked(torch.tensor([[-1]], dtype=torch.int32), 8).tolist() == [[255] * 4]


@pytest.mark.parametrize(
    ("bits", "group", "version"), [*product((4, 8), (16, 24, -1), ("gptq", "gptq_v2"))]
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq_is_its_definition_bit_for_bit(
    bits: int, group: int, version: str, shuffled: bool, tmp_path: Path
) -> None:
    case = drawn(bits, group, shuffled=shuffled)
    tensors = of_gptq(case, bits, 1 if version == "gptq" else 0)
    form = {**GPTQ, "bits": bits, "group_size": group, "checkpoint_format": version}
    with pytest.warns(IgnoredSettings, match="1 weights are stored as gptq, and read as float16"):
        weights = opened(tmp_path, tensors, form)
    assert {*weights} == {"a.weight", "a.bias"}
    assert weights.shape("a.weight") == (16, 64)
    assert torch.equal(weights["a.weight"], case["weight"])


def test_gptq_without_an_order_is_in_order(tmp_path: Path) -> None:
    case = drawn(4, 16)
    with pytest.warns(IgnoredSettings):
        weights = opened(tmp_path, of_gptq(case, 4, 1, ordered=False), GPTQ)
    assert torch.equal(weights["a.weight"], case["weight"])


@pytest.mark.parametrize("group", [16, -1])
def test_awq_is_its_definition_bit_for_bit(group: int, tmp_path: Path) -> None:
    case = drawn(4, group)
    with pytest.warns(IgnoredSettings, match="1 weights are stored as awq, and read as float16"):
        weights = opened(tmp_path, of_awq(case), {**AWQ, "group_size": group})
    assert torch.equal(weights["a.weight"], case["weight"])


def without(tensors: Tensors, name: str) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if key != name}


CASE = drawn(4, 16)
MADE, AWQ_MADE = of_gptq(CASE, 4, 1), of_awq(CASE)
FLAWS: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "no scales": (without(MADE, "a.scales"), GPTQ, "a.qweight is packed without scales: a.scales"),
    "no zeros": (without(AWQ_MADE, "a.qzeros"), AWQ, "packed without qzeros: a.qzeros is missing"),
    "scales alone": (without(MADE, "a.qweight"), GPTQ, "is there without a.qweight"),
    "another group size": (MADE, {**GPTQ, "group_size": 32}, r"qzeros has shape \(4, 2\)"),
    "the other packing": (MADE, AWQ, r"a\.qzeros has shape \(4, 2\) of int32, expected"),
    "scales of integers": (
        {**MADE, "a.scales": torch.zeros(4, 16, dtype=torch.int32)},
        GPTQ,
        "a.scales has shape .* of int32, expected .* of float16 or bfloat16 or float32",
    ),
    "an order too short": (
        {**MADE, "a.g_idx": torch.zeros(4, dtype=torch.int32)},
        GPTQ,
        r"a\.g_idx has shape \(4,\) of int32, expected \(64,\)",
    ),
    "three bits": (MADE, {**GPTQ, "bits": 3}, "bits = 3 is not supported"),
    "marlin": (MADE, {**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
    "gemv": (AWQ_MADE, {**AWQ, "version": "gemv"}, "version = 'gemv' is not supported"),
    "an unknown key": (MADE, {**GPTQ, "dynamic": {"a": 1}}, "dynamic = .* is not supported"),
    "bitsandbytes": (
        MADE,
        {"quant_method": "bitsandbytes"},
        "'bitsandbytes' is not supported.*gptq",
    ),
    "compressed-tensors": (
        MADE,
        {"quant_method": "compressed-tensors"},
        "Valid: mxfp4, fp8, gptq, awq",
    ),
}


@pytest.mark.parametrize(("tensors", "form", "expected"), FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_named(
    tensors: Tensors, form: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"config\.json.*{expected}"):
        opened(tmp_path, tensors, form)


def test_groups_beyond_the_scales_are_named(tmp_path: Path) -> None:
    wrong = {**MADE, "a.g_idx": torch.full((64,), 4, dtype=torch.int32)}
    with pytest.warns(IgnoredSettings):
        weights = opened(tmp_path, wrong, GPTQ)
    with pytest.raises(InputError, match=r"a\.g_idx has groups from 4 to 4: there are 4"):
        weights["a.weight"]
