"""quantization.json: written and read, and refused with a sentence where it is damaged."""

from pathlib import Path

import pytest

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.quantize import DynamicConfig, Int4Config, Int8Config, StaticConfig
from addnorm.runs.files.folder import QUANTIZATION, is_quantized
from addnorm.runs.files.quantization_file import (
    Quantization,
    laid_out_as,
    read_quantization,
    write_quantization,
)


@pytest.mark.parametrize(
    ("scheme", "label"),
    [
        (Int8Config(), "int8 dynamic"),
        (
            Int8Config(activations=StaticConfig(range="mse"), smoothing=0.5),
            "int8 static smoothing 0.5",
        ),
        (Int4Config(rounding="gptq", group_size=64), "int4 gptq by 64"),
        (Int4Config(activations=DynamicConfig()), "int4 nearest by 32 dynamic"),
    ],
)
def test_round_trips(scheme: Int8Config | Int4Config, label: str, tmp_path: Path) -> None:
    facts = Quantization(scheme=scheme, kept=("head",), examples=3, source="runs/my")
    write_quantization(tmp_path, facts)
    assert read_quantization(tmp_path) == facts
    assert facts.label == label
    rows = facts.facts()
    assert rows["made of"] == "runs/my"
    assert rows["calibrated on"] == "3 examples"
    assert rows["kept in float32"] == "head"


def test_a_model_that_is_not_quantised_has_no_file(tmp_path: Path) -> None:
    write_quantization(tmp_path, None)
    assert not is_quantized(tmp_path)
    write_quantization(tmp_path, Quantization())
    assert is_quantized(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"scheme": {"kind": "int3"}}', '{"kepd": []}', "[" * 100_000]
)
def test_a_damaged_file(text: str, tmp_path: Path) -> None:
    (tmp_path / QUANTIZATION).write_text(text)
    with pytest.raises(InputError, match=r"quantization.json: damaged: "):
        read_quantization(tmp_path)


def test_layers_that_the_model_lacks(tmp_path: Path) -> None:
    model = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2)).build(9)
    with pytest.raises(InputError, match=r"does not fit this model: .*nowhere"):
        laid_out_as(model, Quantization(kept=("nowhere",)), tmp_path)
