"""Whole models: every scheme near the model, loaded again to the bit, and plain again."""

import copy
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Literal

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.quantize import (
    DynamicConfig,
    Int4Config,
    Int8Config,
    StaticConfig,
    WeightsOnlyConfig,
    dequantize,
    is_calibrated,
    is_quantized,
    quantize,
    with_weights,
)
from addnorm.quantize.model import group_size_for, laid_out, scales_of
from addnorm.quantize.quantizable_layers import check_some_left, names_matching, products_of

ATTENTION = AttentionConfig(n_heads=4)
KINDS: dict[str, Any] = {
    "decoder": DecoderConfig(d_model=64, n_layers=2, attention=ATTENTION),
    "untied": DecoderConfig(
        d_model=64, n_layers=1, attention=ATTENTION, head=TokenHeadConfig(tied=False)
    ),
    "exits": DecoderConfig(d_model=64, n_layers=2, attention=ATTENTION, exits=(1,)),
    "experts": DecoderConfig(
        d_model=64, n_layers=1, attention=ATTENTION, feedforward=MixtureOfExpertsConfig(n_experts=2)
    ),
    "recurrent": DecoderConfig(d_model=64, n_layers=1, attention=RecurrentConfig()),
    "both ways": EncoderConfig(
        d_model=64,
        n_layers=1,
        attention=RecurrentConfig(cell="gru", bias=False),
        head=TokenHeadConfig(),
    ),
    "translator": EncoderDecoderConfig(d_model=64, n_layers=1, attention=ATTENTION),
    "encoder": EncoderConfig(d_model=64, n_layers=1, attention=ATTENTION, head=TokenHeadConfig()),
}
SCHEMES = {
    "weights only": Int8Config(activations=WeightsOnlyConfig()),
    "dynamic": Int8Config(),
    "dynamic, smoothed": Int8Config(smoothing=0.5),
    "minmax": Int8Config(activations=StaticConfig()),
    "percentile": Int8Config(activations=StaticConfig(range="percentile")),
    "mse, smoothed": Int8Config(activations=StaticConfig(range="mse"), smoothing=0.5),
    "int4": Int4Config(),
    "int4, dynamic": Int4Config(activations=DynamicConfig()),
    "gptq": Int4Config(rounding="gptq", group_size=64),
}
IDS = torch.randint(20, (1, 60), generator=torch.Generator().manual_seed(1))


def test_schemes_by_default_are_valid_values() -> None:
    """As pydantic reads them back; it does not look at defaults by itself."""
    for scheme in (Int8Config(), Int4Config()):
        assert TypeAdapter(type(scheme)).validate_python(asdict(scheme)) == scheme
    assert Int4Config().rounding == "nearest"


def built(kind: str) -> Model:
    config = KINDS[kind]
    if isinstance(config, EncoderConfig):
        return config.build(20, n_labels=3).eval()
    return config.build(20).eval()


def inputs(kind: str) -> list[dict[str, torch.Tensor]]:
    names = (
        ("source", "target")
        if kind == "translator"
        else ("inputs",)
        if kind in ("encoder", "both ways")
        else ("tokens",)
    )
    return [dict.fromkeys(names, IDS)]


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_model_is_near_the_plain_one_and_round_trips(kind: str, scheme: Any) -> None:
    model, [batch] = built(kind), inputs(kind)
    want = model(**batch)
    quantized = quantize(copy.deepcopy(model), scheme, inputs(kind))
    assert is_quantized(quantized)
    y = quantized(**batch)
    assert 0 < (y - want).norm() / want.norm() < (0.3 if isinstance(scheme, Int4Config) else 0.1)
    again = laid_out(built(kind), scheme, ()).eval()
    again.load_state_dict(quantized.state_dict())
    assert torch.equal(again(**batch), y)


@pytest.mark.parametrize("kind", KINDS)
def test_dequantize_keeps_the_quantised_weights(kind: str) -> None:
    """Weights only in float64: the plain model is the quantised one, tied where it was tied."""
    [batch] = inputs(kind)
    model = quantize(built(kind), Int8Config(activations=WeightsOnlyConfig()))
    want = model(**batch)
    plain = dequantize(copy.deepcopy(model))
    assert not is_quantized(plain)
    torch.testing.assert_close(plain(**batch), want, rtol=1e-4, atol=1e-5)
    ours = dict(built(kind).named_parameters())
    assert dict(plain.named_parameters()).keys() == ours.keys()


def test_quantised_layers_stay_in_evaluation_mode() -> None:
    """Else each step of generation would set the mode of the whole model."""
    model = quantize(built("decoder").eval(), Int8Config())
    assert not any(module.training for module in model.modules())
    assert all(
        module.training for module in quantize(built("decoder").train(), Int8Config()).modules()
    )


def test_dequantize_undoes_smoothing() -> None:
    model = built("decoder")
    plain = dequantize(quantize(copy.deepcopy(model), Int8Config(smoothing=0.5), inputs("decoder")))
    for name, weight in model.named_parameters():
        restored = plain.get_parameter(name)
        assert (restored - weight).norm() <= 0.03 * weight.norm(), name


def test_weights_divided_by_their_scales_are_integers() -> None:
    model = quantize(built("decoder"), Int4Config())
    plain, scales = dequantize(copy.deepcopy(model)), scales_of(copy.deepcopy(model))
    for name, weight in plain.named_parameters():
        by = scales.get_parameter(name)
        if by.any():
            whole = weight / by
            assert torch.equal(whole, whole.round())
            assert whole.abs().max() <= 8


def test_kept_layers_are_unchanged() -> None:
    model = built("decoder")
    quantized = quantize(copy.deepcopy(model), Int8Config(), keep=["*.down_proj", "head"])
    names = [name for name, layer in products_of(model).items() if name.endswith("down_proj")]
    for name in [*names, "head"]:
        assert torch.equal(
            quantized.get_parameter(f"{name}.weight"), model.get_parameter(f"{name}.weight")
        )
    assert not isinstance(quantized.get_submodule("stack.blocks.0.feedforward.up_proj"), nn.Linear)


def test_tied_layers_are_kept_together() -> None:
    model = built("decoder")
    quantized = quantize(copy.deepcopy(model), Int8Config(), keep=["head"])
    assert quantized.get_parameter("head.weight") is quantized.get_parameter("embed.tokens.weight")
    assert names_matching(model, ["embed.tokens"]) == {"embed.tokens", "head"}
    with pytest.raises(InputError, match=r"all \d+ layers are to be kept"):
        check_some_left(model, names_matching(model, ["*"]))


def test_invalid_input_is_rejected_and_changes_nothing() -> None:
    model = built("decoder")
    before = [type(module) for module in model.modules()]
    with pytest.raises(
        InputError, match=r"keep = stack.blocks.0.attention.q_prj`: matches no layer"
    ):
        quantize(model, Int8Config(), keep=["stack.blocks.0.attention.q_prj"])
    with pytest.raises(InputError, match="calibrated: give it examples"):
        quantize(model, Int8Config(activations=StaticConfig()))
    with pytest.raises(InputError, match="weights_only rounds none"):
        Int8Config(activations=WeightsOnlyConfig(), smoothing=0.5)
    assert [type(module) for module in model.modules()] == before
    quantize(model, Int8Config())
    with pytest.raises(InputError, match="is quantised already"):
        quantize(model, Int8Config())
    with pytest.raises(InputError, match="is quantised already"):
        with_weights(model, "bfloat16")


def test_weights_of_another_kind_are_refused() -> None:
    """In a process without the tests' checks of types, which refuse it too."""
    code = (
        "from addnorm.models import DecoderConfig; from addnorm.quantize import with_weights\n"
        "with_weights(DecoderConfig(d_model=32, n_layers=1).build(40), 'int4')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: weights = 'int4' does not exist" in done.stderr


def test_a_layer_without_inputs_is_rejected_by_name() -> None:
    """An expert that no token of the calibration chose has no range."""
    config = MixtureOfExpertsConfig(n_experts=4, top_k=1)
    model = DecoderConfig(d_model=64, n_layers=1, attention=ATTENTION, feedforward=config).build(20)
    with pytest.raises(InputError, match=r"nothing reached stack.blocks.0.feedforward.experts"):
        quantize(model.eval(), Int8Config(activations=StaticConfig()), [{"tokens": IDS[:, :1]}])


def test_schemes_that_depend_on_inputs_are_calibrated() -> None:
    calibrated = {name for name, scheme in SCHEMES.items() if is_calibrated(scheme)}
    assert calibrated == {"dynamic, smoothed", "minmax", "percentile", "mse, smoothed", "gptq"}


@pytest.mark.parametrize(
    ("d_in", "largest", "size"), [(128, 32, 32), (384, 256, 128), (100, 128, 32), (512, 256, 256)]
)
def test_groups_fill_rows_exactly(d_in: int, largest: int, size: int) -> None:
    assert group_size_for(d_in, largest) == size


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_quantised_recurrence_continues_after_padding(cell: Literal["lstm", "gru"]) -> None:
    config = DecoderConfig(d_model=64, n_layers=1, attention=RecurrentConfig(cell=cell))
    model = quantize(config.build(40).eval(), Int8Config(activations=WeightsOnlyConfig()))
    tokens = torch.randint(40, (2, 7))
    valid = torch.tensor([[1, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0, 1]]).bool()
    cache = model.new_cache()
    parts = [model(tokens[:, :4], valid[:, :4], cache=cache)]
    parts += [model(tokens[:, 4:], valid, cache=cache)]
    expected = model(tokens, valid)
    assert_close(torch.cat(parts, 1)[valid], expected[valid])
